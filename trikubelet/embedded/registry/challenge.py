"""What a server asks for with a 401: the WWW-Authenticate header (RFC 9110, section 11). Pure.

Servers are lax here, so reading is too: what cannot be understood ends the reading, and what came before it counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PARAMETER = re.compile(r"""([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))""")
_BETWEEN = re.compile(r"[\s,]*")


@frozen
class Challenge:
    """One way to authenticate that a server offers."""

    scheme: str
    """In lower case: `basic`, `bearer`."""
    parameters: Mapping[str, str] = attrs.field(factory=dict)
    """Names in lower case."""


def parse_challenges(values: Iterable[str]) -> list[Challenge]:
    """The challenges of all WWW-Authenticate headers, in their order. Never raises."""
    found: list[Challenge] = []
    for value in values:
        at = _end(_BETWEEN.match(value))
        parameters: dict[str, str] | None = None
        while at < len(value):
            if parameters is not None and (parameter := _PARAMETER.match(value, at)):
                name, quoted, plain = parameter.groups()
                text = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
                parameters.setdefault(name.lower(), text)
                at = parameter.end()
            elif scheme := _TOKEN.match(value, at):
                parameters = {}
                found.append(Challenge(scheme.group().lower(), parameters))
                at = scheme.end()
            else:
                break
            at = _end(_BETWEEN.match(value, at))
    return found


def strongest(challenges: Iterable[Challenge]) -> Challenge | None:
    """The one to answer: a token is better than a password; None where there is nothing that we know."""
    by_scheme: dict[str, Challenge] = {}
    for challenge in challenges:
        by_scheme.setdefault(challenge.scheme, challenge)
    bearer = by_scheme.get("bearer")
    if bearer is not None and "realm" in bearer.parameters:
        return bearer
    return by_scheme.get("basic")


def _end(match: re.Match[str] | None) -> int:
    return 0 if match is None else match.end()
