"""Netlink's frame: a header with a length, a kind and a sequence number, then attributes (type, length, value).

Numbers of headers and of rtnetlink are in the machine's byte order, those of netfilter in the network's. Everything is
padded to four bytes. (netlink(7); the kernel's Documentation/userspace-api/netlink/intro.rst)
"""

from __future__ import annotations

import os
import struct
from typing import Final

import attrs

from trikubelet.formats.values import frozen

NLMSG_NOOP: Final = 1
NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3

NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_DUMP_INTERRUPTED: Final = 0x10
NLM_F_EXCL: Final = 0x200
NLM_F_DUMP: Final = 0x300
NLM_F_CREATE: Final = 0x400
NLM_F_APPEND: Final = 0x800
_NLM_F_CAPPED: Final = 0x100
_NLM_F_ACK_TLVS: Final = 0x200

_NLA_F_NESTED: Final = 0x8000
_NLA_TYPE: Final = 0x3FFF
_NLMSGERR_ATTR_MSG: Final = 1

_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_LARGEST_VALUE: Final = 0xFFFF - _ATTRIBUTE.size


class MalformedMessageError(ValueError):
    """Bytes that are no netlink message or not the attributes that were expected."""


@frozen
class Request:
    """A message to the kernel, without what the socket adds: a sequence number, and that it is a request."""

    kind: int
    body: bytes
    flags: int = 0
    about: str = attrs.field(default="netlink request", eq=False)
    """What it does, for errors."""


@frozen
class Message:
    """A message from the kernel."""

    kind: int
    flags: int
    sequence: int
    body: bytes


def encode_request(request: Request, sequence: int, extra_flags: int = 0) -> bytes:
    length = _HEADER.size + len(request.body)
    flags = request.flags | NLM_F_REQUEST | extra_flags
    return _HEADER.pack(length, request.kind, flags, sequence, 0) + _padded(request.body)


def decode_messages(data: bytes) -> list[Message]:
    """The messages of one datagram. Raises MalformedMessageError."""
    messages = []
    offset = 0
    while offset < len(data):
        if len(data) - offset < _HEADER.size:
            raise MalformedMessageError(f"{len(data) - offset} bytes are left, too few for a header")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if not _HEADER.size <= length <= len(data) - offset:
            raise MalformedMessageError(f"a message of {length} bytes, where {len(data) - offset} are left")
        messages.append(Message(kind, flags, sequence, data[offset + _HEADER.size : offset + length]))
        offset += _aligned(length)
    return messages


def decode_error(message: Message) -> tuple[int, str]:
    """What NLMSG_ERROR or NLMSG_DONE says: a positive errno or 0, and the kernel's words if it has any.

    Raises MalformedMessageError.
    """
    (code,) = unpack("=i", message.body[:4])
    if message.kind == NLMSG_DONE:
        words_at = 4
    else:
        quoted = _HEADER.size
        if not message.flags & _NLM_F_CAPPED and code and len(message.body) >= 8:
            quoted = max(quoted, unpack("=I", message.body[4:8])[0])
        words_at = 4 + _aligned(quoted)
    words = b""
    if message.flags & _NLM_F_ACK_TLVS:
        words = decode_attributes(message.body[words_at:]).get(_NLMSGERR_ATTR_MSG, b"")
    return max(0, -code), words.rstrip(b"\0").decode(errors="replace")


# --- Attributes -------------------------------------------------------------------------------------------------------


def attribute(kind: int, value: bytes) -> bytes:
    """Raises ValueError for more than an attribute can hold."""
    if len(value) > _LARGEST_VALUE:
        raise ValueError(f"attribute {kind} has {len(value)} bytes, at most {_LARGEST_VALUE} fit")
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + _padded(value)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NLA_F_NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, os.fsencode(value) + b"\0")


def native32(kind: int, value: int) -> bytes:
    """Rtnetlink's numbers."""
    return attribute(kind, struct.pack("=I", value))


def network32(kind: int, value: int) -> bytes:
    """Netfilter's numbers."""
    return attribute(kind, struct.pack("!I", value))


def decode_attribute_list(data: bytes) -> list[tuple[int, bytes]]:
    """Attributes in their order, flags of their types taken off. Raises MalformedMessageError."""
    attributes = []
    offset = 0
    while len(data) - offset >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if not _ATTRIBUTE.size <= length <= len(data) - offset:
            raise MalformedMessageError(f"an attribute of {length} bytes, where {len(data) - offset} are left")
        attributes.append((kind & _NLA_TYPE, data[offset + _ATTRIBUTE.size : offset + length]))
        offset += _aligned(length)
    return attributes


def decode_attributes(data: bytes) -> dict[int, bytes]:
    """Attributes by type, the last of each. Raises MalformedMessageError."""
    return dict(decode_attribute_list(data))


def decode_text(value: bytes) -> str:
    return os.fsdecode(value.partition(b"\0")[0])


def unpack(form: str, value: bytes) -> tuple[int, ...]:
    """The numbers at the beginning of a value. Raises MalformedMessageError when it is too short."""
    size = struct.calcsize(form)
    if len(value) < size:
        raise MalformedMessageError(f"a value of {len(value)} bytes, where {size} were expected")
    return struct.unpack(form, value[:size])


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _padded(value: bytes) -> bytes:
    return value + bytes(-len(value) % 4)
