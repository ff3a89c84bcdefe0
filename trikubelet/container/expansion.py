"""`$(NAME)` in commands, arguments and environment values (kubelet: third_party `expansion`).

A reference to an unknown name stays as it is written, `$$` is one dollar, and a dollar before anything else
means nothing. What comes out of a reference is not looked at again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_REFERENCE: Final = re.compile(r"\$(?:(?P<dollar>\$)|\((?P<name>[^)]*)\))")


def expand(text: str, lookup: Callable[[str], str]) -> str:
    """Replace each reference by what `lookup` says for its name."""
    return _REFERENCE.sub(lambda match: "$" if match["dollar"] else lookup(match["name"]), text)


def expand_known(text: str, *sources: Mapping[str, str]) -> str:
    """Replace references to names that one of the sources has; the first source wins."""

    def lookup(name: str) -> str:
        return next((source[name] for source in sources if name in source), f"$({name})")

    return expand(text, lookup)


def expand_strictly(text: str, variables: Mapping[str, str]) -> str:
    """Replace references, where each must have a value that is not empty (kubelet: `subPathExpr`).

    Raises KeyError with the names that are missing, sorted and joined with commas.
    """
    missing: set[str] = set()

    def lookup(name: str) -> str:
        value = variables.get(name, "")
        if not value:
            missing.add(name)
        return value

    expanded = expand(text, lookup)
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    return expanded
