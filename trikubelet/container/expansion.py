"""`$(NAME)` in commands, arguments and environment values (kubelet: third_party `expansion`).

A reference to an unknown name stays as it is written, `$$` is one dollar, and a dollar before anything else
means nothing. What comes out of a reference is not looked at again.

A few hundred bytes of references that refer to each other can ask for gigabytes, so an expansion ends where the kernel
would refuse its result anyway.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST_OF_ONE: Final = 32 * os.sysconf("SC_PAGE_SIZE")
"""Bytes of one argument, or of one variable with its name, that the kernel takes (`MAX_ARG_STRLEN`)."""
MOST_OF_ALL: Final = 6 * 1024 * 1024
"""Bytes of all of them that a kernel takes at most; with the usual stack it takes 2 MiB."""
TOO_LONG: Final = "?" * MOST_OF_ONE
"""Stands for a word or value that no process can be given. The kernel refuses it for the same reason."""
_REFERENCE: Final = re.compile(r"\$(?:(?P<dollar>\$)|\((?P<name>[^)]*)\))")


class ExpansionError(ValueError):
    """What comes out is longer than anything that a process can be given."""

    def __init__(self, most: int) -> None:
        super().__init__(f"with its references expanded it is longer than {most >> 10} KiB")


def expand(text: str, lookup: Callable[[str], str]) -> str:
    """Replace each reference by what `lookup` says for its name. Raises ExpansionError."""
    replaced = 0

    def replacement(match: re.Match[str]) -> str:
        nonlocal replaced
        value = "$" if match["dollar"] else lookup(match["name"])
        replaced += len(value)
        if replaced > MOST_OF_ONE:
            raise ExpansionError(MOST_OF_ONE)
        return value

    # Behind the last bracket nothing refers, however often it seems to begin to: the search for its end would be long.
    end = text.rfind(")") + 1
    expanded = _REFERENCE.sub(replacement, text[:end]) + text[end:].replace("$$", "$")
    if len(expanded) > MOST_OF_ONE:
        raise ExpansionError(MOST_OF_ONE)
    return expanded


def expand_known(text: str, *sources: Mapping[str, str]) -> str:
    """Replace references to names that one of the sources has; the first source wins. Raises ExpansionError."""

    def lookup(name: str) -> str:
        return next((source[name] for source in sources if name in source), f"$({name})")

    return expand(text, lookup)


def expand_words(words: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Replace references in a command or its arguments. Raises ExpansionError."""
    expanded: list[str] = []
    size = 0
    for word in words:
        expanded.append(expand_known(word, variables))
        size += len(expanded[-1])
        if size > MOST_OF_ALL:
            raise ExpansionError(MOST_OF_ALL)
    return expanded


def expand_strictly(text: str, variables: Mapping[str, str]) -> str:
    """Replace references, where each must have a value that is not empty (kubelet: `subPathExpr`).

    Raises ExpansionError, and KeyError with the names that are missing, sorted and joined with commas.
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
