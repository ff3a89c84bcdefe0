"""Answers so simple that they can be read at a glance. Pure; `get` asks here first, and h11 about all others.

Most answers to probes are a short head that says how long its body is, and the body, all in one packet. h11 takes two
thirds of a request's time for one, since it is made for everything else. What is read here h11 would read the same:
anything the least bit unusual, and anything that is not there to its end, is not.
"""

from __future__ import annotations

import re
from typing import Final

from trikubelet.formats.values import frozen

_HEAD: Final = re.compile(
    rb"HTTP/1\.[01] ([2-5][0-9]{2}) [^\0\r\n\f\v]*\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\0\r\n\f\v]*\r\n)*+)"
    rb"\r\n"
)
_MATTERS: Final = re.compile(
    rb"^(content-length|transfer-encoding|location):[ \t]*([^\r]*?)[ \t]*\r$", re.IGNORECASE | re.MULTILINE
)
_LENGTH: Final = re.compile(rb"[0-9]{1,5}")
_WITHOUT_BODY: Final = (204, 304)


@frozen
class SimpleAnswer:
    """An answer that is there to its end."""

    status: int
    location: str
    body: bytes


def read_simple_answer(received: bytes, most_body: int) -> SimpleAnswer | None:
    """The answer to a GET request, of a body with at most that many bytes; None for any other answer."""
    head = _HEAD.match(received)
    if head is None:
        return None
    length, location = -1, ""
    for name, value in _MATTERS.findall(head[2]):
        match name.lower():
            case b"location":
                location = location or value.decode("latin-1")
            case b"content-length" if length == -1 and _LENGTH.fullmatch(value):
                length = int(value)
            case _:
                return None
    status = int(head[1])
    if status in _WITHOUT_BODY:
        length = 0
    body = received[head.end() : head.end() + length]
    if not 0 <= length <= most_body or len(body) < length:
        return None
    return SimpleAnswer(status, location, body)
