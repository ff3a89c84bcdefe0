"""Locations of registries, as docker configurations and plugin configurations write them.

`quay.io`, `*.example.com:5000/team`: a host that may hold `*`, a port, and the beginning of a path. The kubelet reads
them with Go's URL parser, and what that parser refuses is refused here in its words.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import unquote

from trikubelet.formats.values import frozen

_BAD_ESCAPE: Final = re.compile("%(?![0-9a-fA-F]{2})")
_BAD_HOST_ESCAPE: Final = re.compile("%(?!25|[89a-fA-F][0-9a-fA-F])")
_BAD_HOST_CHARACTER: Final = re.compile(r"[ \\^`{|}]")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")
_BRACKETED: Final = re.compile(r"\[([^\[\]]*)\](.*)")
_PORT: Final = re.compile("(:[0-9]*)?")


@frozen
class LocationError(ValueError):
    """A text is no location. The problem quotes at most a few characters of it."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@frozen
class Location:
    """Where a registry, or a part of it, is."""

    authority: str
    """The host, with its port if one was written."""
    path: str
    """Empty, or with a `/` in front."""

    @property
    def host_parts(self) -> list[str]:
        return self._host_and_port[0].split(".")

    @property
    def port(self) -> str:
        return self._host_and_port[1]

    @property
    def _host_and_port(self) -> tuple[str, str]:
        if ":" not in self.authority or self.authority.endswith("]"):
            return self.authority, ""
        host, _, port = self.authority.rpartition(":")
        return host, port


def parse_location(text: str) -> Location:
    """Read a location without its scheme. Raises LocationError."""
    if _CONTROL_CHARACTER.search(text):
        raise LocationError("net/url: invalid control character in URL")
    whole = text.partition("#")[0].partition("?")[0]
    authority, slash, path = whole.partition("/")
    authority = _check_authority(authority.rpartition("@")[2])
    _refuse(_BAD_ESCAPE, path)
    return Location(authority, slash + unquote(path))


def location_matches(pattern: str, target: str) -> bool:
    """Whether a target is at a place that the pattern, in which each part of the host may hold `*`, speaks of.

    Nothing matches a text that is no location (Kubernetes: `URLsMatchStr`).
    """
    try:
        return covers(parse_location(pattern), parse_location(target))
    except LocationError:
        return False


def covers(wanted: Location, found: Location) -> bool:
    """The same for locations that were read already."""
    wanted_parts, found_parts = wanted.host_parts, found.host_parts
    return (
        wanted.port == found.port
        and len(wanted_parts) == len(found_parts)
        and found.path.startswith(wanted.path)
        and all(map(_part_matches, wanted_parts, found_parts))
    )


def _check_authority(authority: str) -> str:
    bracketed = _BRACKETED.fullmatch(authority)
    if bracketed is not None:
        port = bracketed[2]
        try:
            IPv6Address(unquote(bracketed[1]))
        except ValueError:
            raise LocationError("invalid host: expected an IPv6 address between the brackets") from None
    elif "[" in authority or "]" in authority:
        raise LocationError("invalid host: brackets are for IPv6 addresses")
    else:
        host, colon, port = authority.partition(":")
        port = colon + port
        wrong = _BAD_HOST_CHARACTER.search(host)
        if wrong is not None:
            raise LocationError(f'invalid character "{wrong[0]}" in host name')
        _refuse(_BAD_HOST_ESCAPE, host)
    if not _PORT.fullmatch(port):
        raise LocationError(f'invalid port "{port[:20]}" after host')
    return unquote(authority)


def _refuse(bad_escape: re.Pattern[str], text: str) -> None:
    wrong = bad_escape.search(text)
    if wrong is not None:
        raise LocationError(f'invalid URL escape "{text[wrong.start() : wrong.start() + 3]}"')


def _part_matches(pattern: str, text: str) -> bool:
    """Whether a part of a host is what a pattern with `*` asks for.

    No regular expression: pods bring their own patterns, and one with many `*` would keep an expression busy for ever.
    """
    first, *others = pattern.split("*")
    if not others:
        return first == text
    *middle, last = others
    position, end = len(first), len(text) - len(last)
    if position > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:
        found = text.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True
