"""SPDY's frames against the draft's bytes, against themselves, and against what nobody should send."""

from __future__ import annotations

import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from trikubelet.http.streaming.spdy_frames import (
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    MoreHeaders,
    Ping,
    RstStream,
    Setting,
    Settings,
    SpdyProtocolError,
    SynReply,
    SynStream,
    WindowUpdate,
)
from trikubelet.http.streaming.spdy_headers import DICTIONARY


def decoder(control_size: int = 65536, headers_size: int = 65536) -> FrameDecoder:
    return FrameDecoder(control_size=control_size, headers_size=headers_size)


def frames_of(decoding: FrameDecoder, data: bytes, step: int = 0) -> list[Frame]:
    frames = []
    for start in range(0, len(data), step or len(data) or 1):
        decoding.feed(data[start : start + (step or len(data))])
        while (frame := decoding.next_frame()) is not None:
            frames.append(frame)
    return frames


def control(kind: int, payload: bytes, flags: int = 0, version: int = 3) -> bytes:
    """A control frame, put together as the draft draws it."""
    head = bytes([0x80 | version >> 8, version & 0xFF, kind >> 8, kind & 0xFF, flags])
    return head + len(payload).to_bytes(3, "big") + payload


def block(*pairs: tuple[bytes, bytes], count: int | None = None) -> bytes:
    """A header block before compression."""
    data = (len(pairs) if count is None else count).to_bytes(4, "big")
    for pair in pairs:
        for text in pair:
            data += len(text).to_bytes(4, "big") + text
    return data


def deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(zdict=DICTIONARY)
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


def test_the_dictionary_is_the_drafts() -> None:
    # Its Adler-32 is part of every session's first header block: 0xe3c6a7c2 is what all SPDY/3 peers send.
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


VECTORS = [
    (b"\x00\x00\x00\x05\x00\x00\x00\x03abc", Data(5, b"abc")),
    (b"\x00\x00\x00\x05\x01\x00\x00\x00", Data(5, b"", fin=True)),
    (b"\x80\x03\x00\x03\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x05", RstStream(1, 5)),
    (b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01", Ping(1)),
    (b"\x80\x03\x00\x07\x00\x00\x00\x08\x00\x00\x00\x03\x00\x00\x00\x00", GoAway(3)),
    (b"\x80\x03\x00\x09\x00\x00\x00\x08\x00\x00\x00\x00\x00\x01\x00\x00", WindowUpdate(0, 65536)),
    (
        b"\x80\x03\x00\x04\x01\x00\x00\x0c\x00\x00\x00\x01\x01\x00\x00\x07\x00\x00\x20\x00",
        Settings((Setting(7, 8192, 1),), clear=True),
    ),
]


@pytest.mark.parametrize(("data", "frame"), VECTORS)
def test_frames_have_the_drafts_bytes(data: bytes, frame: Frame) -> None:
    assert frames_of(decoder(), data) == [frame]
    assert FrameEncoder().encode(frame) == data


def test_a_peers_syn_stream_is_read_whatever_its_compression_level() -> None:
    headers = block((b"port", b"80"), (b"streamtype", b"data"))
    payload = b"\x00\x00\x00\x03\x00\x00\x00\x01\x60\x02" + deflate(headers)
    expected = SynStream(3, {"port": "80", "streamtype": "data"}, fin=True, associated_id=1, priority=3, slot=2)
    assert frames_of(decoder(), control(1, payload, flags=1)) == [expected]


def test_header_blocks_share_one_compressor() -> None:
    compressor = zlib.compressobj(zdict=DICTIONARY)
    data = b""
    for stream_id in (1, 3):
        compressed = compressor.compress(block((b"streamtype", b"error"))) + compressor.flush(zlib.Z_SYNC_FLUSH)
        data += control(2, stream_id.to_bytes(4, "big") + compressed)
    assert frames_of(decoder(), data) == [SynReply(stream_id, {"streamtype": "error"}) for stream_id in (1, 3)]


def test_names_are_sent_in_lower_case() -> None:
    assert frames_of(decoder(), FrameEncoder().encode(SynStream(1, {"streamType": "x"}))) == [
        SynStream(1, {"streamtype": "x"})
    ]


STREAM = st.integers(1, 2**31 - 1)
WORD = st.integers(0, 2**32 - 1)
NAME = st.text(st.characters(codec="ascii", exclude_categories=["Lu", "Cc"]), min_size=1, max_size=20)
HEADERS = st.dictionaries(NAME, st.text(st.characters(codec="latin-1"), max_size=50), max_size=8)
FLAG = st.booleans()
FRAMES = st.one_of(
    st.builds(
        SynStream, STREAM, HEADERS, FLAG, FLAG, st.integers(0, 2**31 - 1), st.integers(0, 7), st.integers(0, 255)
    ),
    st.builds(SynReply, STREAM, HEADERS, FLAG),
    st.builds(MoreHeaders, STREAM, HEADERS, FLAG),
    st.builds(RstStream, STREAM, st.integers(1, 2**32 - 1)),
    st.builds(Ping, WORD),
    st.builds(GoAway, st.integers(0, 2**31 - 1), WORD),
    st.builds(WindowUpdate, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
    st.builds(
        Settings, st.lists(st.builds(Setting, st.integers(0, 2**24 - 1), WORD, st.integers(0, 255))).map(tuple), FLAG
    ),
    st.builds(Data, STREAM, st.binary(max_size=300), FLAG),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(FRAMES, max_size=8), st.integers(1, 64))
def test_frames_survive_the_wire_in_pieces_of_any_size(frames: list[Frame], step: int) -> None:
    encoder = FrameEncoder()
    received = frames_of(decoder(), b"".join(encoder.encode(frame) for frame in frames), step)
    assert _joined(received) == _joined(frames)


def _joined(frames: list[Frame]) -> list[Frame]:
    """Data frames that follow each other on one stream, as one: where a payload is cut has no meaning."""
    joined: list[Frame] = []
    for frame in frames:
        last = joined[-1] if joined else None
        if isinstance(frame, Data) and isinstance(last, Data) and last.stream_id == frame.stream_id and not last.fin:
            joined[-1] = Data(frame.stream_id, last.data + frame.data, frame.fin)
        else:
            joined.append(frame)
    return joined


def test_unknown_control_frames_are_skipped_however_many_and_long() -> None:
    unknown = control(5, b"") * 5000 + control(10, b"x" * 100_000) + control(0xFFFF, b"y")
    assert frames_of(decoder(), unknown + VECTORS[3][0], step=4096) == [Ping(1)]


def test_a_decoder_holds_no_payload_of_data_frames() -> None:
    decoding = decoder()
    decoding.feed(b"\x00\x00\x00\x01\x01\xff\xff\xff")
    for _ in range(10):
        decoding.feed(b"x" * 1000)
        assert decoding.next_frame() == Data(1, b"x" * 1000)
        assert decoding.next_frame() is None
    assert decoding.in_frame


BOMB = deflate(block((b"a", b"\0" * 10_000_000)))


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (control(6, b"\0\0\0\1", version=2), "version 2"),
        (control(6, b"\0\0\0"), "3"),
        (control(3, b"\0\0\0\1\0\0\0\0"), "a status, got 0"),
        (control(3, b"\0\0\0\0\0\0\0\1"), "a stream's number, got 0"),
        (b"\0\0\0\0\0\0\0\1x", "a stream's number, got 0"),
        (control(7, b"\0\0\0\1"), "at least 8 bytes, got 4"),
        (control(9, b"\0" * 12), "8 bytes, got 12"),
        (control(4, b"\0\0\0\5"), "44 bytes, got 4"),
        (control(1, b"\0\0\0\1"), "at least 10"),
        (control(2, b"\0\0\0\1" + b"not zlib"), "SPDY/3's dictionary"),
        (control(2, b"\0\0\0\1" + zlib.compress(block())), "end of the compressed stream"),
        (control(2, b"\0\0\0\1"), "a length of 4 bytes, got 0"),
        (control(2, b"\0\0\0\1" + deflate(block((b"A", b"x")))), "lower case, got 'A'"),
        (control(2, b"\0\0\0\1" + deflate(block((b"", b"x")))), "lower case, got ''"),
        (control(2, b"\0\0\0\1" + deflate(block((b"a", b"x"), (b"a", b"y")))), "once, got 'a' again"),
        (control(2, b"\0\0\0\1" + deflate(block((b"a", b"x"), count=2))), "a length of 4 bytes, got 0"),
        (control(2, b"\0\0\0\1" + deflate(block(count=2**32 - 1))), "a length of 4 bytes, got 0"),
        (control(2, b"\0\0\0\1" + deflate(block((b"a", b"x"), count=0))), "10 bytes more"),
        (control(2, b"\0\0\0\1" + deflate(b"\0\0\0\1\xff\xff\xff\xff")), "a text of 4294967295 bytes"),
        (control(2, b"\0\0\0\1" + BOMB), "at most 65536 bytes of headers"),
        (control(1, b"\0" * 70_000), "at most 65536 bytes, got 70000"),
        (control(2, b"\0\0\0\0" + deflate(block())), "a stream's number, got 0"),
    ],
)
def test_an_error_says_what_was_expected_and_what_came_and_is_final(data: bytes, fact: str) -> None:
    decoding = decoder()
    with pytest.raises(SpdyProtocolError) as caught:
        frames_of(decoding, data)
    assert fact in str(caught.value)
    decoding.feed(VECTORS[3][0])
    with pytest.raises(SpdyProtocolError):
        decoding.next_frame()


def test_frames_before_an_error_are_delivered() -> None:
    decoding = decoder()
    decoding.feed(VECTORS[3][0] + b"\0\0\0\0\0\0\0\0")
    assert decoding.next_frame() == Ping(1)
    with pytest.raises(SpdyProtocolError):
        decoding.next_frame()


@pytest.mark.fuzz
@settings(max_examples=examples(2000), deadline=None)
@given(st.lists(st.binary(max_size=200) | FRAMES.map(FrameEncoder().encode), max_size=5))
def test_random_bytes_give_frames_or_an_error(parts: list[bytes]) -> None:
    with suppress(SpdyProtocolError):
        frames_of(decoder(), b"".join(parts))
