"""Texts of others, as a terminal may show them. Pure."""

from __future__ import annotations

from typing import Final

from trikubelet.formats import terminal_text

LONGEST: Final = 4096
"""Characters of a line that are shown."""


def plain(text: str) -> str:
    """One line without anything that moves the cursor, turns the direction of writing or cannot be encoded."""
    return terminal_text.plain(text[:LONGEST])


def narrow(text: str) -> str:
    """The same in ASCII: each character takes one column, so that tables stay straight."""
    line = plain(text)
    return line if line.isascii() else "".join(c if c.isascii() else "?" for c in line)


def fitted(text: str, width: int) -> str:
    """Exactly that wide, for texts of `narrow`: a longer one ends with a tilde."""
    if len(text) <= width:
        return text.ljust(width)
    return text[: width - 1] + "~" if width > 0 else ""
