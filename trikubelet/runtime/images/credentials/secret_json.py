"""Reading JSON that holds secrets: the errors say where something is wrong, never what is there.

`json`'s own error keeps the whole text, so it goes no further than this module.
"""

from __future__ import annotations

import json

from trikubelet.formats import go_json
from trikubelet.formats.values import frozen


@frozen
class SecretJSONError(ValueError):
    """A text is not the JSON that was expected."""

    problem: str

    def __str__(self) -> str:
        return self.problem


def parse_secret_json(raw: bytes) -> object:
    """Raises SecretJSONError."""
    try:
        return go_json.loads(raw)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(error.doc.rstrip())
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
    return value
