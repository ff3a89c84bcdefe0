"""The hash that tells whether a running container still is the one that the pod asks for.

It is stored in a container's annotations when the container is made and compared at every sync. A node that is taken
over from a Go kubelet holds containers with the Go kubelet's hashes, so the value must be the same to the bit:
FNV-1a, 32 bits, over how Go prints the bytes of a small JSON object with the container's image and name. Nothing
else of a container can change while it runs, so nothing else is hashed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trikubelet.api import Container, EphemeralContainer

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


def hash_container(container: Container | EphemeralContainer) -> int:
    """The container's hash (kubelet: `HashContainer`)."""
    fields = f'{{"image":{go_json_string(container.image)},"name":{go_json_string(container.name)}}}'
    printed = "([]uint8)[" + " ".join(str(byte) for byte in fields.encode()) + "]"
    return fnv1a_32(printed.encode())


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
