"""Protobuf's wire format, for messages as tables of readers and writers.

A message's bytes are a row of fields, each a tag (number and wire type) and a value. `read_fields` goes through them
once and asks a table, by tag, which field of the message it is and how its value is made. Writers go the other way:
from a field's value to all its bytes, tag included.

This is the hot path of every call of the runtime, so a few things are written out that could be a function: in
CPython, calling one costs as much as reading a short number.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

# What becomes of a value that was read: it is the field's, is merged into the field's message, is one more of its list,
# some more of its list, or an entry of its map.
SINGLE, MESSAGE, REPEATED, PACKED, MAP = range(5)

# The field's name, what becomes of the value, and how to make it (from bytes, or from a number for varints).
Reader: TypeAlias = "tuple[str, int, Callable[[Any], Any]]"
# From a field's value to its bytes; no bytes when the field is not sent.
Writer: TypeAlias = "Callable[[Any], bytes]"


class ValueCodec(NamedTuple):
    """How one value travels, without its tag and length, and what is there when nothing came."""

    wire_type: int
    read: Callable[[Any], Any]
    write: Callable[[Any], bytes]
    default: Callable[[], Any]


def read_fields(data: bytes, readers: Mapping[int, Reader], fields: dict[str, Any]) -> bytes:
    """Read a message's bytes into `fields`; returns those of the fields that no reader knows.

    Raises ValueError for bytes that are not a message, and IndexError where they end within a number.
    """
    position, end, unknown = 0, len(data), []
    while position < end:
        start = position
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = read_varint(data, start)
        wire_type = tag & 0b111
        value: Any
        if wire_type == LENGTH_DELIMITED:
            length = data[position]
            position += 1
            if length >= 0x80:
                length, position = read_varint(data, position - 1)
            begin, position = position, position + length
            value = data[begin:position]
        elif wire_type == VARINT:
            value, position = read_varint(data, position)
        elif wire_type in (FIXED64, FIXED32):
            begin, position = position, position + (8 if wire_type == FIXED64 else 4)
            value = data[begin:position]
        else:
            raise ValueError(f"unknown wire type {wire_type} of field {tag >> 3} at byte {start} of {end}")
        if position > end:
            raise ValueError(f"field {tag >> 3} at byte {start} reaches to byte {position}, the message has {end}")
        reader = readers.get(tag)
        if reader is None:
            if not 1 << 3 <= tag < 1 << 32:
                raise ValueError(f"field {tag >> 3} at byte {start}: fields are numbered from 1 to {(1 << 29) - 1}")
            unknown.append(data[start:position])
            continue
        name, way, make = reader
        if way == SINGLE:
            fields[name] = make(value)
        elif way == MAP:
            key, item = make(value)
            fields.setdefault(name, {})[key] = item
        elif way == REPEATED:
            fields.setdefault(name, []).append(make(value))
        elif way == PACKED:
            fields.setdefault(name, []).extend(make(value))
        elif fields.get(name) is not None:
            fields[name].parse(value)
        else:
            fields[name] = make(value)
    return b"".join(unknown)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number that starts at `position`, cut to 64 bits, and the position behind it.

    Raises ValueError when it is longer than any, and IndexError when the data ends first.
    """
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = shift = 0
    while shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
    raise ValueError(f"number longer than 10 bytes at byte {position - 10}")


def write_varint(value: int) -> bytes:
    """A number as protobuf writes it; a negative one takes 10 bytes. Raises ValueError beyond 64 bits."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"expected a number of 64 bits, got {value}")
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def tagged(number: int, codec: ValueCodec) -> Writer:
    """The writer that sends a value of field `number`, whatever it is."""
    tag, write = write_varint(number << 3 | codec.wire_type), codec.write
    if codec.wire_type != LENGTH_DELIMITED:
        return lambda value: tag + write(value)

    def write_field(value: Any) -> bytes:
        data = write(value)
        length = len(data)
        return tag + (_ONE_BYTE[length] if length < 0x80 else write_varint(length)) + data

    return write_field


def unless_empty(write: Writer) -> Writer:
    """The writer that sends nothing for the values that proto3 does not send: 0, "", [], {} (and None)."""
    return lambda value: write(value) if value else b""


def packed(codec: ValueCodec) -> ValueCodec:
    """The codec of a list of numbers in one field."""

    def read(data: bytes) -> list[Any]:
        values, position = [], 0
        while position < len(data):
            number, position = read_varint(data, position)
            values.append(codec.read(number))
        return values

    return ValueCodec(LENGTH_DELIMITED, read, lambda values: b"".join(map(codec.write, values)), list)


def map_entry(key: ValueCodec, value: ValueCodec) -> ValueCodec:
    """The codec of one (key, value) of a map: a message of two fields, each left out when it is empty."""
    tags = (1 << 3 | key.wire_type, 2 << 3 | value.wire_type)
    readers = {tags[0]: ("key", SINGLE, key.read), tags[1]: ("value", SINGLE, value.read)}
    write_key, write_value = unless_empty(tagged(1, key)), unless_empty(tagged(2, value))

    def read(data: bytes) -> tuple[Any, Any]:
        fields: dict[str, Any] = {}
        read_fields(data, readers, fields)
        return (
            fields["key"] if "key" in fields else key.default(),
            fields["value"] if "value" in fields else value.default(),
        )

    return ValueCodec(LENGTH_DELIMITED, read, lambda item: write_key(item[0]) + write_value(item[1]), tuple)


def signed(bits: int) -> Callable[[int], int]:
    """From the number on the wire to the signed one of this width."""
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    return lambda value: ((value & mask) ^ top) - top


def _read_double(data: bytes) -> float:
    value: float = _DOUBLE.unpack(data)[0]
    return value


def _write_bytes(value: bytes) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"expected bytes, got {type(value).__name__}")
    return bytes(value)


_DOUBLE: Final = struct.Struct("<d")
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(0x80))

# By protobuf's name of the type: the numbers and texts that CRI uses.
SCALARS: Final = {
    "bool": ValueCodec(VARINT, bool, write_varint, bool),
    "int32": ValueCodec(VARINT, signed(32), write_varint, int),
    "int64": ValueCodec(VARINT, signed(64), write_varint, int),
    "uint32": ValueCodec(VARINT, 0xFFFF_FFFF.__and__, write_varint, int),
    "uint64": ValueCodec(VARINT, int, write_varint, int),
    "double": ValueCodec(FIXED64, _read_double, _DOUBLE.pack, float),
    "string": ValueCodec(LENGTH_DELIMITED, bytes.decode, str.encode, str),
    "bytes": ValueCodec(LENGTH_DELIMITED, bytes, _write_bytes, bytes),
}
