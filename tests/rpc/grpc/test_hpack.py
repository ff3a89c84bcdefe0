"""Blocks of headers beside the `hpack` package: each reads what the other writes, and refuses what it refuses."""

from __future__ import annotations

import contextlib
from typing import Final

import hpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trikubelet.rpc.grpc.hpack import Decoder, Encoder, HpackError, NeverIndexed, TooLargeError, huffman_decode
from trikubelet.rpc.grpc.hpack_tables import CODE_LENGTHS, STATIC_TABLE

_LIST_SIZE: Final = 2**16

_NAMES: Final = st.sampled_from([b":path", b":status", b"content-type", b"x-own", b"grpc-status"]) | st.binary(
    max_size=40
)
_VALUES: Final = st.sampled_from([b"200", b"application/grpc", b"", b"a" * 1500]) | st.binary(max_size=300)
_HEADERS: Final = st.lists(st.tuples(st.booleans(), _NAMES, _VALUES), max_size=12)
_SIZES: Final = st.none() | st.sampled_from([0, 60, 200, 4096, 2**20])


@given(blocks=st.lists(st.tuples(_SIZES, _HEADERS), max_size=12))
def test_what_is_written_is_read_by_both(blocks: list[tuple[int | None, list[tuple[bool, bytes, bytes]]]]) -> None:
    encoder, ours, theirs = Encoder(), Decoder(_LIST_SIZE), hpack.Decoder(_LIST_SIZE)
    for size, headers in blocks:
        if size is not None:
            encoder.resize(size)
        written = [NeverIndexed(name, value) if secret else (name, value) for secret, name, value in headers]
        block = encoder.encode(written)
        expected = [(name, value) for _, name, value in headers]
        assert ours.decode(block) == expected
        assert [tuple(header) for header in theirs.decode(block, raw=True)] == expected


@given(blocks=st.lists(st.tuples(_SIZES, st.booleans(), _HEADERS), max_size=12))
def test_what_hpack_writes_is_read(blocks: list[tuple[int | None, bool, list[tuple[bool, bytes, bytes]]]]) -> None:
    theirs, ours = hpack.Encoder(), Decoder(_LIST_SIZE)
    for size, huffman, headers in blocks:
        if size is not None:
            theirs.header_table_size = min(size, 4096)
        written = [
            (hpack.NeverIndexedHeaderTuple if secret else hpack.HeaderTuple)(name, value)
            for secret, name, value in headers
        ]
        assert ours.decode(theirs.encode(written, huffman=huffman)) == [(name, value) for _, name, value in headers]


@pytest.mark.fuzz
@given(blocks=st.lists(st.binary(max_size=60), max_size=5))
@example([b"\x82\x3f\xe1\x1f"])
@example([b"\x3f\xe2\x1f"])
@example([b"\x7f\x00\x01a\x01b"])
@example([b"\x80"])
def test_any_bytes_mean_the_same(blocks: list[bytes]) -> None:
    theirs, ours = hpack.Decoder(_LIST_SIZE), Decoder(_LIST_SIZE)
    for block in blocks:
        expected: list[tuple[bytes, bytes]] | None = None
        with contextlib.suppress(hpack.HPACKError):
            expected = [(name, value) for name, value in theirs.decode(block, raw=True)]
        if expected is None:
            with pytest.raises(HpackError):
                ours.decode(block)
            return
        assert ours.decode(block) == expected


def test_what_repeats_is_a_byte() -> None:
    encoder = Encoder()
    headers = [(b":method", b"POST"), (b":path", b"/a.Service/Method"), (b"user-agent", b"x")]
    first = encoder.encode(headers)
    assert len(first) > 20
    assert len(encoder.encode(headers)) == len(headers)
    assert encoder.encode([NeverIndexed(b"once", b"only")]) == encoder.encode([NeverIndexed(b"once", b"only")])


def test_headers_are_bounded_before_they_are_unpacked() -> None:
    huge = b"\x00\x01a\xff" + bytes([0xFF, 0xFF, 0x0F])  # a coded string of 262,000 bytes
    with pytest.raises(HpackError, match="ends within"):
        Decoder(_LIST_SIZE).decode(huge)
    with pytest.raises(TooLargeError):
        Decoder(_LIST_SIZE).decode(huge + bytes(300_000))
    with pytest.raises(TooLargeError):
        Decoder(_LIST_SIZE).decode(b"\x82" * 10_000)


def test_the_tables_are_those_of_the_rfc() -> None:
    assert len(STATIC_TABLE) == 61
    assert STATIC_TABLE[1] == (b":method", b"GET")
    assert STATIC_TABLE[60] == (b"www-authenticate", b"")
    assert len(CODE_LENGTHS) == 257
    assert sum(2.0**-length for length in CODE_LENGTHS) == 1


def test_a_string_ends_with_ones_only() -> None:
    assert huffman_decode(b"\x1f") == b"a"
    for wrong in (b"\x18", b"\x1f\xff", b"\xff\xff\xff\xff"):
        with pytest.raises(HpackError):
            huffman_decode(wrong)
