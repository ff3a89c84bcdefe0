"""Text in quotes as Go's `strconv.Quote` (`%q`) writes it.

Programs in containers read a pod's labels and annotations in this form, from files and variables of the downward API,
and take the quotes off again. JSON's form is another one: it escapes what HTML needs and not what is invisible.
What is printable is the same in both languages but for characters newer than either's Unicode tables.
"""

from __future__ import annotations

from typing import Final

from trikubelet.formats.go_json import whole

_ESCAPES: Final = {
    '"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
}  # fmt: skip


def go_quote(text: str) -> str:
    """A string in quotes, made `whole`."""
    return '"' + "".join(map(_escaped, whole(text))) + '"'


def go_quote_bytes(data: bytes) -> str:
    """Bytes in quotes, with escapes for those that are no UTF-8."""
    return '"' + "".join(map(_escaped, data.decode(errors="surrogateescape"))) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
