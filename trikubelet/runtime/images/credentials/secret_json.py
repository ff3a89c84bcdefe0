"""Reading JSON that holds secrets: the errors say where something is wrong, never what is there.

`json`'s own error keeps the whole text, so it goes no further than this module. Strings come out fit for the wire:
half a surrogate pair, which JSON can write and UTF-8 cannot, becomes the replacement character, as in Go.
"""

from __future__ import annotations

import json
import re
from typing import Final

from trikubelet.formats.values import frozen

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@frozen
class SecretJSONError(ValueError):
    """A text is not the JSON that was expected."""

    problem: str

    def __str__(self) -> str:
        return self.problem


def parse_secret_json(raw: bytes) -> object:
    """Raises SecretJSONError."""
    text = raw.decode(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text.rstrip())
        problem = "unexpected end of JSON input" if at_end else f"no JSON at line {error.lineno} column {error.colno}"
    except RecursionError:
        problem = "JSON that is nested too deeply"
    except ValueError:
        problem = "a number that is too long"
    raise SecretJSONError(problem)


def as_object(value: object, what: str) -> dict[str, object]:
    """A JSON object, empty for null. Raises SecretJSONError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SecretJSONError(f"{what} is no JSON object")
    return value


def as_text(value: object, what: str) -> str:
    """A string, empty for null. Raises SecretJSONError."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SecretJSONError(f"{what} is no string")
    return clean(value)


def clean(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)
