"""Parsed entries of list replies, kept from one reply to the next.

A relist asks for every container of the node, and nearly all of them are as they were a second ago. Parsing one entry
in Python costs about 18 µs, looking at its bytes a few. So a list reply is not decoded as a message: `RawReply` keeps
its bytes, `EntryCache` cuts them into entries by the wire format, and an entry that the last reply held too is the
same object as last time. A steady node parses nothing.

"The same bytes" needs one care: runtimes written in Go serialise maps in random order, so the labels of an unchanged
container arrive shuffled each time. An entry's key is therefore its bytes with the map fields sorted behind the others;
the keys are kept too, for runtimes that do not shuffle.

Only the entries of the last complete reply are kept, so the cache holds no more than the node does. The objects are
shared between replies: they must not be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from trikubelet.formats.values import define, frozen
from trikubelet.rpc.cri.wire import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT, read_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

T = TypeVar("T")


@frozen
class RawReply:
    """A reply whose bytes are left alone. It has what a gRPC codec asks of a message class."""

    data: bytes

    @classmethod
    def FromString(cls, data: bytes) -> RawReply:  # noqa: N802 - the codec's name for it
        return cls(bytes(data))

    def SerializeToString(self) -> bytes:  # noqa: N802 - the codec's name for it
        return self.data


@define
class CacheStatistics:
    """How often an entry was known (`hits`) and how often it had to be parsed (`parses`), since the start."""

    hits: int = 0
    parses: int = 0


class EntryCache(Generic[T]):
    """Turns replies of the form `repeated ENTRY entries = 1;` into lists of parsed entries.

    `map_fields` are the entry's map fields by number (all below 16): the order in which they arrive means nothing.
    """

    def __init__(self, parse: Callable[[bytes], T], *, map_fields: Collection[int]) -> None:
        self._parse = parse
        self._map_tags = frozenset((number << 3) | LENGTH_DELIMITED for number in map_fields)
        self._known: dict[bytes, T] = {}
        self._keys: dict[bytes, bytes] = {}
        """The keys of the last complete reply, by the bytes as they arrived."""
        self._statistics = CacheStatistics()

    def entries(self, reply: bytes, *, complete: bool) -> list[T]:
        """The entries of a reply, in its order; known ones are last time's objects.

        A complete reply replaces what is remembered; one that a filter narrowed only uses it. Raises ValueError when
        the bytes are not a protobuf message.
        """
        known = self._known
        seen: dict[bytes, T] = {}
        found: list[T] = []
        keys = self._keys
        try:
            keyed = [(keys.get(entry) or entry_key(entry, self._map_tags), entry) for entry in split_entries(reply)]
        except IndexError:
            raise ValueError(f"list reply of {len(reply)} bytes ends within a number") from None
        for key, entry in keyed:
            value = known.get(key)
            if value is None:
                value = self._parse(entry)
                self._statistics.parses += 1
            else:
                self._statistics.hits += 1
            seen[key] = value
            found.append(value)
        if complete:
            self._known = seen
            self._keys = {entry: key for key, entry in keyed}
        return found

    def statistics(self) -> CacheStatistics:
        return attrs.evolve(self._statistics)

    def __len__(self) -> int:
        return len(self._known)


def split_entries(reply: bytes) -> list[bytes]:
    """The bytes of each `field 1` message of a list reply. Other fields are skipped.

    Raises ValueError for bytes that are not a message, and IndexError where they end within a number.
    """
    entries: list[bytes] = []
    position, end = 0, len(reply)
    while position < end:
        tag, position = read_varint(reply, position)
        if tag == (1 << 3) | LENGTH_DELIMITED:
            length, position = read_varint(reply, position)
            stop = position + length
            if stop > end:
                raise ValueError(f"list reply ends early: an entry needs {length} bytes at {position}, {end} are there")
            entries.append(reply[position:stop])
            position = stop
        else:
            position = _skip_value(reply, position, tag)
    return entries


def entry_key(entry: bytes, map_tags: frozenset[int]) -> bytes:
    """Bytes that are equal for two serialisations of one entry: map fields sorted, behind all the others.

    Each field's bytes end where they say they do, so different entries cannot run into the same key. Raises as
    `split_entries` does.
    """
    plain: list[bytes] = []
    shuffled: list[bytes] = []
    position, end = 0, len(entry)
    while position < end:
        start = position
        tag = entry[position]
        if tag in map_tags:
            length, position = read_varint(entry, position + 1)
            position += length
            shuffled.append(entry[start:position])
        else:
            tag, position = read_varint(entry, position)
            position = _skip_value(entry, position, tag)
            plain.append(entry[start:position])
    if position != end:
        raise ValueError(f"list entry ends early: a field reaches to byte {position}, {end} are there")
    shuffled.sort()
    return b"".join(plain + shuffled)


def _skip_value(data: bytes, position: int, tag: int) -> int:
    """The position behind the value that starts at `position`."""
    wire_type = tag & 0b111
    if wire_type == LENGTH_DELIMITED:
        length, position = read_varint(data, position)
        return position + length
    if wire_type == VARINT:
        return read_varint(data, position)[1]
    if wire_type == FIXED64:
        return position + 8
    if wire_type == FIXED32:
        return position + 4
    raise ValueError(f"unknown wire type {wire_type} (field {tag >> 3}) before byte {position} of a list reply")
