"""Files of variables that a container wrote for the next ones (`fileKeyRef`, KEP-3721).

The format is a small part of a shell's: `NAME='value'`, where the value may go over several lines and nothing in it is
special; comments and empty lines. A file in which anything else comes before the wanted variable is refused, rather
than read in another way than a shell would. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ENV_FILE: Final = 64 * 1024
"""Bytes."""
_BLANKS: Final = " \t"


@attrs.frozen
class EnvFileError(Exception):
    """A line of the file is not what the format allows. Says nothing of what is in it, which may be secret."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"invalid environment variable format at line {self.line}: {self.problem}"


def env_file_value(text: str, name: str) -> str:
    """The value of a variable; empty when the file does not have it (kubelet: `ParseEnv`). Raises EnvFileError.

    The first assignment counts, and what follows it is not looked at.
    """
    return next((value for found, value in _assignments(text) if found == name), "")


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    lines = enumerate((line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")), start=1)
    for number, line in lines:
        stripped = line.lstrip(_BLANKS)
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            raise EnvFileError(number, "missing '='")
        if not name.strip(_BLANKS):
            raise EnvFileError(number, "empty variable name")
        if name[-1] in _BLANKS:
            raise EnvFileError(number, "whitespace before '=' is not allowed")
        if value.startswith(tuple(_BLANKS)):
            # To a shell this is an empty value, and a command after it.
            yield name, ""
        elif value.startswith("'"):
            yield name, _quoted(value[1:], number, lines)
        else:
            raise EnvFileError(number, "value must be enclosed in single quotes")


def _quoted(line: str, began: int, lines: Iterator[tuple[int, str]]) -> str:
    """The text up to the closing quote, which may be on a later line."""
    number, parts = began, []
    while "'" not in line:
        parts.append(line)
        try:
            number, line = next(lines)
        except StopIteration:
            raise EnvFileError(began, "unclosed single quote") from None
    last, _, rest = line.partition("'")
    rest = rest.lstrip(_BLANKS)
    if rest and not rest.startswith("#"):
        raise EnvFileError(number, "unexpected content after closing quote")
    return "\n".join([*parts, last])
