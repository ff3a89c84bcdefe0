"""HPACK (RFC 7541): how HTTP/2 writes headers, as what two programs say to each other again and again.

A header that has been sent once is one byte from then on, so the usual block of a call is a few bytes, and reading it a
few look-ups. Strings go out as they are: Huffman's code saves bytes, of which a socket on one machine has enough. What
comes in may be coded.

Alternative weighed: the `hpack` package, which is right and well kept. It takes 20 ms to import, and five to ten times
as long for a block. In the tests each reads what the other writes.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Final

from trikubelet.rpc.grpc.hpack_tables import CODE_LENGTHS, STATIC_TABLE

Header = tuple[bytes, bytes]
Headers = list[Header]

DEFAULT_TABLE_SIZE: Final = 4096
_ENTRY_OVERHEAD: Final = 32
_STATIC_SIZE: Final = len(STATIC_TABLE)
_MOST_INTEGER_BYTES: Final = 10

_STATIC_INDEX: Final = {header: index for index, header in enumerate(STATIC_TABLE, 1)}
_STATIC_NAMES: Final = {name: index for index, (name, _) in reversed(list(enumerate(STATIC_TABLE, 1)))}
_STATIC_ENTRIES: Final = [
    ((b"", b""), 0),
    *((header, len(header[0]) + len(header[1]) + _ENTRY_OVERHEAD) for header in STATIC_TABLE),
]


class HpackError(Exception):
    """A block that cannot be read, and with it nothing that follows on its connection."""


class TooLargeError(HpackError):
    """The headers of a block take more than was allowed."""


class NeverIndexed(Header):
    """A header that is kept out of the tables: it differs in every block, and would push out what repeats."""

    __slots__ = ()

    def __new__(cls, name: bytes, value: bytes) -> NeverIndexed:
        return super().__new__(cls, (name, value))


class Encoder:
    """Writes the blocks of one direction of a connection, in the order in which they are sent."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Header, int]] = deque()
        """Oldest first, with sizes."""
        self._size = 0
        self._table_size = DEFAULT_TABLE_SIZE
        self._inserted = 0
        self._positions: dict[Header, int] = {}
        """How many had been inserted before the entry; the newest counts."""
        self._resizes: list[int] = []
        """To be announced in the next block."""

    def resize(self, limit: int) -> None:
        """The peer's table has `limit` bytes from the next block on."""
        size = min(limit, DEFAULT_TABLE_SIZE)
        if size != self._table_size:
            self._resizes = [min([*self._resizes, size]), size] if self._resizes else [size]
            self._table_size = size
            self._evict()

    def encode(self, headers: Headers) -> bytes:
        """The block."""
        block = bytearray()
        if self._resizes:
            for size in self._resizes:
                _write_integer(block, 0x20, 5, size)
            self._resizes = []
        for header in headers:
            index = _STATIC_INDEX.get(header)
            if index is None:
                position = self._positions.get(header)
                if position is None:
                    self._write_literal(block, header)
                    continue
                index = _STATIC_SIZE + self._inserted - position
            if index < 0x7F:
                block.append(0x80 | index)
            else:
                _write_integer(block, 0x80, 7, index)
        return bytes(block)

    def _write_literal(self, block: bytearray, header: Header) -> None:
        name, value = header
        index = _STATIC_NAMES.get(name, 0)
        size = len(name) + len(value) + _ENTRY_OVERHEAD
        if type(header) is NeverIndexed:
            _write_integer(block, 0x10, 4, index)
        elif size > self._table_size:
            _write_integer(block, 0x00, 4, index)
        else:
            _write_integer(block, 0x40, 6, index)
            self._positions[header] = self._inserted
            self._inserted += 1
            self._entries.append((header, size))
            self._size += size
            self._evict()
        if not index:
            _write_integer(block, 0, 7, len(name))
            block += name
        _write_integer(block, 0, 7, len(value))
        block += value

    def _evict(self) -> None:
        while self._size > self._table_size:
            oldest = self._inserted - len(self._entries)
            header, size = self._entries.popleft()
            self._size -= size
            if self._positions[header] == oldest:
                del self._positions[header]


class Decoder:
    """Reads the blocks of one direction of a connection, in the order in which they come.

    `max_list_size`: bytes of all names and values of a block, with 32 for each (RFC 9113, 6.5.2).
    """

    def __init__(self, max_list_size: int) -> None:
        self._max_list_size = max_list_size
        self._entries: deque[tuple[Header, int]] = deque()
        """Newest first, with sizes."""
        self._size = 0
        self._table_size = DEFAULT_TABLE_SIZE

    def decode(self, block: bytes) -> Headers:
        """The headers of a block. Raises `HpackError`."""
        headers: Headers = []
        total = 0
        at = 0
        end = len(block)
        while at < end:
            first = block[at]
            if first >= 0x80:
                index = first & 0x7F
                at += 1
                if index == 0x7F:
                    index, at = _read_integer(block, at, index)
                header, size = self._entry(index)
            elif first & 0xE0 == 0x20:
                if headers:
                    raise HpackError("the size of the table changes in the middle of a block")
                new_size, at = _read_prefixed(block, at, 0x1F)
                self._resize(new_size)
                continue
            else:
                indexed = first >= 0x40
                header, at = self._read_literal(block, at, 0x3F if indexed else 0x0F)
                size = len(header[0]) + len(header[1]) + _ENTRY_OVERHEAD
                if indexed:
                    self._insert(header, size)
            total += size
            if total > self._max_list_size:
                raise TooLargeError(f"more than {self._max_list_size} bytes of headers")
            headers.append(header)
        return headers

    def _entry(self, index: int) -> tuple[Header, int]:
        if index <= _STATIC_SIZE:
            if not index:
                raise HpackError("a header with the index 0")
            return _STATIC_ENTRIES[index]
        try:
            return self._entries[index - _STATIC_SIZE - 1]
        except IndexError:
            raise HpackError(
                f"a header with the index {index}, of {_STATIC_SIZE + len(self._entries)} that are known"
            ) from None

    def _read_literal(self, block: bytes, at: int, mask: int) -> tuple[Header, int]:
        index, at = _read_prefixed(block, at, mask)
        if index:
            name = self._entry(index)[0][0]
        else:
            name, at = self._read_string(block, at)
        value, at = self._read_string(block, at)
        return (name, value), at

    def _read_string(self, block: bytes, at: int) -> tuple[bytes, int]:
        if at >= len(block):
            raise HpackError("the block ends before a string")
        coded = block[at] & 0x80
        length, at = _read_prefixed(block, at, 0x7F)
        end = at + length
        if end > len(block):
            raise HpackError("the block ends within a string")
        string = block[at:end]
        if coded:
            # The longest code has 30 bits.
            if length * 8 // 30 > self._max_list_size:
                raise TooLargeError(f"a header of more than {self._max_list_size} bytes")
            string = huffman_decode(string)
        return string, end

    def _insert(self, header: Header, size: int) -> None:
        self._entries.appendleft((header, size))
        self._size += size
        self._evict()

    def _resize(self, size: int) -> None:
        if size > DEFAULT_TABLE_SIZE:
            raise HpackError(f"a table of {size} bytes, where {DEFAULT_TABLE_SIZE} are allowed")
        self._table_size = size
        self._evict()

    def _evict(self) -> None:
        while self._size > self._table_size:
            self._size -= self._entries.pop()[1]


def _write_integer(block: bytearray, flags: int, bits: int, value: int) -> None:
    limit = (1 << bits) - 1
    if value < limit:
        block.append(flags | value)
        return
    block.append(flags | limit)
    value -= limit
    while value >= 0x80:
        block.append(0x80 | value & 0x7F)
        value >>= 7
    block.append(value)


def _read_prefixed(block: bytes, at: int, mask: int) -> tuple[int, int]:
    value = block[at] & mask
    return (value, at + 1) if value < mask else _read_integer(block, at + 1, value)


def _read_integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Go on behind a prefix whose bits are all set, with its `value`."""
    for count, byte in enumerate(block[at : at + _MOST_INTEGER_BYTES]):
        value += (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at + count + 1
    raise HpackError("an integer without an end")


class _Node:
    """A place in the tree of codes, and where each four bits lead from it: to a node, and past which symbol (or -1)."""

    __slots__ = ("children", "padding", "steps", "symbol")

    def __init__(self) -> None:
        self.children: list[_Node] = []
        self.symbol = -1
        self.steps: list[tuple[_Node, int]] = []
        self.padding = False
        """Whether a string may end here: it is filled up with the first bits of the code of ones."""


_END: Final = 256


@cache
def _tree() -> _Node:
    """The root."""
    root = _Node()
    inner = [root]
    level = [root]
    symbols = sorted(range(len(CODE_LENGTHS)), key=lambda symbol: (CODE_LENGTHS[symbol], symbol))
    # A canonical code fills each depth from the left: first the symbols of that length, then the nodes that go deeper.
    for depth in range(1, max(CODE_LENGTHS) + 1):
        below: list[_Node] = []
        for node in level:
            node.children = [_Node(), _Node()]
            below += node.children
        count = sum(CODE_LENGTHS[symbol] == depth for symbol in symbols)
        for node, symbol in zip(below, symbols[:count], strict=False):
            node.symbol = symbol
        symbols, level = symbols[count:], below[count:]
        inner += level
    for node in inner:
        node.steps = [_step(root, node, bits) for bits in range(16)]
    node = root
    for _ in range(8):
        node.padding = True
        node = node.children[1]
    return root


def _step(root: _Node, node: _Node, bits: int) -> tuple[_Node, int]:
    symbol = -1
    for shift in (3, 2, 1, 0):
        node = node.children[bits >> shift & 1]
        if node.symbol >= 0:
            symbol = node.symbol
            node = root
            if symbol == _END:
                break
    return node, symbol


def huffman_decode(data: bytes) -> bytes:
    """The string that was written as `data`. Raises `HpackError`."""
    node = _tree()
    string = bytearray()
    try:
        for byte in data:
            node, symbol = node.steps[byte >> 4]
            if symbol >= 0:
                string.append(symbol)
            node, symbol = node.steps[byte & 15]
            if symbol >= 0:
                string.append(symbol)
    except ValueError as error:
        raise HpackError("the end of a string as a symbol within it") from error
    if not node.padding:
        raise HpackError("a string that ends within a symbol")
    return bytes(string)
