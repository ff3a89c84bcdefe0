"""What a container runtime can do, as it says itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from trikubelet.formats.values import frozen


@frozen
class HandlerAbilities:
    """What pods of one runtime handler may ask for."""

    recursive_read_only_mounts: bool = False
    user_namespaces: bool = False


@frozen
class RuntimeAbilities:
    """What the runtime says that it can do. Older ones say nothing, which means no."""

    handlers: Mapping[str, HandlerAbilities] = attrs.field(factory=dict)
    """By name; the default handler's is empty."""
    supplemental_groups_policy: bool = False
    features_told: bool = False
    """Whether it said anything of what does not depend on the handler."""

    def handler(self, name: str) -> HandlerAbilities:
        """None of them for a handler that the runtime did not name."""
        return self.handlers.get(name, HandlerAbilities())


def is_older(runtime_name: str, runtime_version: str, first: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a runtime is older than the `first` version of its kind that can do something, as far as is known.

    Of most that an older one cannot do it says nothing but its version, and drops what it does not know without a word.
    """
    needed = first.get(runtime_name)
    version = re.match(r"v?(\d+)\.(\d+)", runtime_version)
    return needed is not None and version is not None and (int(version[1]), int(version[2])) < needed
