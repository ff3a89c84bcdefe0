"""What a volume shall hold, before it is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.formats.aggregate import aggregate
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trikubelet.api import KeyToPath


class PayloadError(Exception):
    """The content of a volume cannot be had. Its text is the kubelet's, and never has content in it."""

    @classmethod
    def of(cls, problems: Iterable[str]) -> PayloadError:
        """Each problem once, in brackets when there are several."""
        return cls(aggregate(problems))


@frozen
class PayloadFile:
    """One file."""

    data: bytes = attrs.field(repr=False)
    mode: int
    """Its permissions, whatever the umask is."""
    user: int | None = None
    """Its owner; None: the agent's user."""


Payload = dict[str, PayloadFile]
"""Files by their path in the volume."""


def mode_of_files(default_mode: int | None) -> int:
    """The mode that a volume gives to files without one of their own. Raises PayloadError: a pod has it by default."""
    if default_mode is None:
        raise PayloadError("no defaultMode used, not even the default value for it")
    return default_mode


def choose(
    values: Mapping[str, bytes], items: Sequence[KeyToPath], *, default_mode: int, optional: bool, missing: str
) -> Payload:
    """All values as files, or with `items` only those, under their paths (kubelet: `MakePayload`).

    Raises PayloadError, `missing` with the key, for one that is not there, unless that is `optional`.
    """
    payload = {}
    for item in items:
        if item.key in values:
            mode = default_mode if item.mode is None else item.mode
            payload[item.path] = PayloadFile(values[item.key], mode)
        elif not optional:
            raise PayloadError(f"{missing}: {item.key}")
    if items:
        return payload
    return {key: PayloadFile(value, default_mode) for key, value in values.items()}
