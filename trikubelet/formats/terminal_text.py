"""Text of others, as a terminal and a log may show it: names, messages and what containers print. Pure.

A terminal obeys control characters: C0, DEL, C1 (also in UTF-8), and the characters that turn the direction of writing.
A line feed inside of a message looks like a line of its own. Each writer to a terminal or to a log for people passes
the texts of others through `plain`; documents (JSON, YAML) escape these characters in their own way and stay exact.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_TAB: Final = 8
_LINE_END: Final = re.compile(r"\r?\n")
_WIDE: Final = frozenset("WF")
"""Classes of `east_asian_width` of characters that take two columns."""
_COMBINING: Final = frozenset(("Mn", "Me"))
"""Categories of characters that take no column of their own."""


def plain(text: str) -> str:
    """Return one line that moves no cursor, starts no line, turns no direction of writing and can be encoded.

    A line end at the end is dropped, one inside becomes a space, and so does each other kind of space. A tab becomes
    spaces. Any other character that is not printable becomes U+FFFD.
    """
    if text.isprintable():
        return text
    line = _LINE_END.sub(" ", text.rstrip("\r\n")).expandtabs(_TAB)
    return line if line.isprintable() else "".join(map(_shown, line))


def plain_lines(text: str) -> str:
    """Return the text with each of its lines made `plain`: for texts whose line feeds are ours."""
    return text if text.isprintable() else "\n".join(map(plain, text.split("\n")))


def plain_json(text: str) -> str:
    """Return the JSON text, which is ASCII, with DEL escaped too."""
    return text.replace("\x7f", "\\u007f")


def width(text: str) -> int:
    """Columns that a plain text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


def padded(text: str, columns: int) -> str:
    """Return the plain text with spaces behind it, at least so many columns wide."""
    return text + " " * (columns - width(text))


def cut(text: str, columns: int) -> str:
    """Return as much of the plain text as fits into so many columns."""
    if text.isascii():
        return text[: max(columns, 0)]
    taken = 0
    for index, each in enumerate(text):
        taken += _width(each)
        if taken > columns:
            return text[:index]
    return text


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if unicodedata.category(character) == "Zs" else _REPLACEMENT


def _width(character: str) -> int:
    if unicodedata.category(character) in _COMBINING:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
