"""JSON from others: configurations, and what plugins print. It is read here or refused with `CniDataError`.

A document has at most `MOST_BYTES`, is nested no deeper than `DEEPEST`, lists at most `MOST_OBJECTS` and has no number
that JSON cannot write: so it costs little, and whatever was read can be passed on.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from typing import Any, Final

from trikubelet.embedded.network.model import NetworkError

MOST_BYTES: Final = 2**20
"""Of one document. The largest results in use have some kilobytes."""
MOST_OBJECTS: Final = 2**10
"""In a list: of addresses, routes, plugins. Each costs the event loop some ten microseconds."""
DEEPEST: Final = 64
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", re.ASCII)
_LONGEST_SHOWN: Final = 2000


class CniDataError(NetworkError):
    """A configuration, or what a plugin printed, is not what CNI says. The text can be written, whatever it quotes."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


def parse_object(data: bytes, what: str, *, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """A JSON object; `what` names the document in the error. Raises CniDataError."""
    if len(data) > most_bytes:
        raise CniDataError(f"{what}: expected at most {most_bytes} bytes, got {len(data)}")
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise CniDataError(f"{what}: expected JSON: {error}") from error
    if not isinstance(value, dict):
        raise CniDataError(f"{what}: expected a JSON object, got {shown(value)}")
    if _deeper_than(value, DEEPEST):
        raise CniDataError(f"{what}: expected at most {DEEPEST} levels, it is nested deeper")
    return value


def render(value: object) -> bytes:
    """As JSON, in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def text_in(fields: dict[str, Any], key: str, what: str) -> str:
    """Empty where it is missing or null, as it is for the library of the specification. Raises CniDataError."""
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CniDataError(f"{what}: expected a string as {key}, got {shown(value)}")
    return value


def number_in(fields: dict[str, Any], key: str, what: str) -> int | None:
    """None where it is missing or null. Raises CniDataError."""
    value = fields.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63):
        return value
    raise CniDataError(f"{what}: expected a whole number as {key}, got {shown(value)}")


def object_in(fields: dict[str, Any], key: str, what: str) -> dict[str, Any]:
    """Empty where it is missing or null. Raises CniDataError."""
    value = fields.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CniDataError(f"{what}: expected an object as {key}, got {shown(value)}")
    return value


def objects_in(fields: dict[str, Any], key: str, what: str) -> list[dict[str, Any]]:
    """A list of objects; empty where it is missing or null. Raises CniDataError."""
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise CniDataError(f"{what}: expected a list of objects as {key}, got {shown(value)}")
    if len(value) > MOST_OBJECTS:
        raise CniDataError(f"{what}: expected at most {MOST_OBJECTS} objects as {key}, got {len(value)}")
    return value


def texts_in(fields: dict[str, Any], key: str, what: str) -> tuple[str, ...]:
    """A list of strings; empty where it is missing or null. Raises CniDataError."""
    value = fields.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise CniDataError(f"{what}: expected a list of strings as {key}, got {shown(value)}")
    return tuple(value)


def is_name(text: str) -> bool:
    """Whether it can name a network or a container; such a name is also safe in the name of a file."""
    return _NAME.fullmatch(text) is not None


def shown(value: object) -> str:
    """The beginning of a value, for an error."""
    text = reprlib.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def printable(text: str) -> str:
    """What a plugin said, fit for a log and for CRI: its beginning and its end, without control characters."""
    text = text.encode(errors="backslashreplace").decode().strip()
    if len(text) > _LONGEST_SHOWN:
        half = _LONGEST_SHOWN // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _deeper_than(value: object, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        inner: list[object] = []
        for each in layer:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
        if not inner:
            return False
        layer = inner
    return True
