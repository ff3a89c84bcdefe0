"""Versions of CNI's specification, and which of them a network is run with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from trikubelet.embedded.network.cni.documents import CniDataError, shown, text_in, texts_in

if TYPE_CHECKING:
    from collections.abc import Mapping

KNOWN: Final = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""All that were released, the oldest first."""
CURRENT: Final = KNOWN[-1]
OLDEST: Final = KNOWN[0]
"""What a document without a version has."""
_VERSION: Final = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?", re.ASCII)


def at_least(version: str, other: str) -> bool:
    """Of two known versions."""
    return KNOWN.index(version) >= KNOWN.index(other)


def parse_version(text: str, what: str) -> tuple[int, int, int]:
    """Its numbers; `1.0` is 1.0.0, and no text is 0.1.0. Raises CniDataError."""
    match = _VERSION.fullmatch(text or OLDEST)
    if match is None:
        raise CniDataError(f'{what}: expected a version such as "1.0.0", got {shown(text)}')
    major, minor, micro = (int(part or 0) for part in match.groups())
    return major, minor, micro


def configured_versions(fields: dict[str, Any], what: str) -> tuple[str, ...]:
    """What `cniVersion` and `cniVersions` of a configuration name, the oldest first. Raises CniDataError."""
    named = {*texts_in(fields, "cniVersions", what)}
    single = text_in(fields, "cniVersion", what)
    if single or not named:
        named.add(single or OLDEST)
    return tuple(sorted(named, key=lambda text: parse_version(text, what)))


def spoken_versions(answer: dict[str, Any], what: str) -> frozenset[str]:
    """What a plugin's answer to VERSION names. Raises CniDataError."""
    supported = texts_in(answer, "supportedVersions", what)
    if supported:
        return frozenset(supported)
    if text_in(answer, "cniVersion", what) == "0.2.0":
        return frozenset(("0.1.0", "0.2.0"))
    raise CniDataError(f"{what}: expected supportedVersions in its answer to VERSION, got {shown(answer)}")


def choose_version(configured: tuple[str, ...], spoken: Mapping[str, frozenset[str]], what: str) -> str:
    """The version to run a network with: the newest of the configured ones that every plugin speaks.

    Where the plugins speak none of these but older ones, the newest of those, since a configuration of a newer
    version has only fields that older plugins pass over. `spoken` is by the plugin's type. Raises CniDataError.
    """
    wanted = {parse_version(text, what) for text in configured}
    common = [version for version in KNOWN if all(version in versions for versions in spoken.values())]
    exact = [version for version in common if parse_version(version, what) in wanted]
    older = [version for version in common if parse_version(version, what) < max(wanted)]
    if exact or older:
        return (exact or older)[-1]
    plugins = "; ".join(f"{kind} speaks {', '.join(sorted(versions))[:200]}" for kind, versions in spoken.items())
    raise CniDataError(f"{what}: no version that is configured ({', '.join(configured)[:200]}) is one that {plugins}")
