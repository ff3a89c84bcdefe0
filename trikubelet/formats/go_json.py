"""JSON as Go reads it: its strings are Unicode, whatever was written.

Half of a surrogate pair can be written in JSON, and Python reads it; but nothing can be made of it afterwards, neither
a file's content nor a signature.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_HALF: Final = re.compile("[\ud800-\udfff]")
_ESCAPE: Final = re.compile(r"\\u[dD]")


def loads(raw: bytes) -> Any:
    """As `json.loads`, which raises ValueError and RecursionError. What is not UTF-8, and half of a surrogate pair,
    becomes U+FFFD."""
    text = raw.decode(errors="replace")
    value = json.loads(text)
    # Only an escape writes one, as UTF-8 cannot.
    return _repaired(value) if "\\u" in text and _ESCAPE.search(text) else value


def whole(text: str) -> str:
    """Half of a surrogate pair, which JSON can write and Go cannot hold, becomes U+FFFD."""
    return _HALF.sub("\ufffd", text)


def _repaired(value: Any) -> Any:
    match value:
        case str():
            return whole(value)
        case list():
            return [_repaired(each) for each in value]
        case dict():
            return {whole(key): _repaired(each) for key, each in value.items()}
    return value
