"""Hashes and JSON texts as Go computes and writes them, to the bit.

Files and annotations that a Go kubelet may read, or has written, carry such hashes: FNV-1a with 32 or 64 bits, often of
a text as Go's encoding/json writes it.
"""

from __future__ import annotations

from typing import Final

_FNV32_OFFSET: Final = 0x811C9DC5
_FNV32_PRIME: Final = 0x01000193
_FNV64_OFFSET: Final = 0xCBF29CE484222325
_FNV64_PRIME: Final = 0x100000001B3

# What Go's encoding/json writes for characters that it does not write as they are.
_GO_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ALSO_ESCAPED: Final = frozenset("<>&\u2028\u2029")


def fnv1a_32(data: bytes, value: int = _FNV32_OFFSET) -> int:
    """FNV-1a with 32 bits. `value`: the hash of what comes before."""
    for byte in data:
        value = ((value ^ byte) * _FNV32_PRIME) & 0xFFFFFFFF
    return value


def fnv1a_64(data: bytes) -> int:
    """FNV-1a with 64 bits."""
    value = _FNV64_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV64_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value


def go_json_string(text: str) -> str:
    """A string as Go's encoding/json writes it: HTML characters escaped, broken characters replaced."""
    return '"' + "".join(_escape(character) for character in text) + '"'


def _escape(character: str) -> str:
    known = _GO_ESCAPES.get(character)
    if known is not None:
        return known
    code = ord(character)
    if code < 0x20 or character in _ALSO_ESCAPED:
        return f"\\u{code:04x}"
    if 0xD800 <= code <= 0xDFFF:
        return "\\ufffd"
    return character
