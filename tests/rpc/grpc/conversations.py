"""Random conversations: what a peer says, mostly right and sometimes wrong, and what our side does meanwhile."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal, get_args

import attrs
from hpack import Encoder, NeverIndexedHeaderTuple
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.mutated import changed_bytes

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

REQUEST: Final = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/package.Service/Method"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
_RESPONSE: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_TRAILERS: Final = [(b"grpc-status", b"0"), (b"grpc-message", b"")]


_Action = Literal["request", "headers", "data", "end", "reset", "grow"]
_ACTIONS: Final[tuple[_Action, ...]] = get_args(_Action)


@attrs.frozen
class Says:
    """The peer's next bytes."""

    data: bytes


@attrs.frozen
class Does:
    """What our side does to a stream, if it can be done."""

    action: _Action
    stream_id: int
    end: bool


def conversation(chance: random.Random, *, client_side: bool) -> Iterator[Says | Does]:
    """With our side as the client or the server."""
    peer = _Peer(chance, client_side)
    if not client_side:
        yield Says(PREFACE)
    if chance.random() < 0.9:
        yield Says(_with_frame(SettingsFrame(0, settings=peer.settings())))
    # Before the first stream h2 has rules of its own, which the RFC has not.
    yield Does("request", 1, False) if client_side else Says(peer.request())
    peer.tame = chance.random() < 0.6
    for _ in range(chance.randrange(1, 25)):
        if chance.random() < 0.35:
            action = chance.choice(_ACTIONS)
            yield Does(action, peer.stream_id(), chance.random() < 0.3)
            continue
        frames = peer.tame_frames() if peer.tame else peer.frames()
        data = b"".join(_with_frame(frame) for frame in frames)
        if not peer.tame and chance.random() < 0.04:
            data = changed_bytes(chance, data)
        while data:
            cut = chance.randrange(1, len(data) + 1) if chance.random() < 0.2 else len(data)
            yield Says(data[:cut])
            data = data[cut:]


def _with_frame(frame: Frame) -> bytes:
    serialized: bytes = frame.serialize()
    return serialized


class _Peer:
    def __init__(self, chance: random.Random, we_are_client: bool) -> None:
        self._chance = chance
        self._we_are_client = we_are_client
        self._encoder = Encoder()
        self._next = 1
        self.tame = False
        """Whether the peer keeps to the rules. Our side may still have reset what it speaks of."""
        self._said: dict[int, str] = {1: "request"}
        """The last that came on each stream that the peer has not ended."""

    def settings(self) -> dict[int, int]:
        chance = self._chance
        some = {
            SettingsFrame.HEADER_TABLE_SIZE: chance.choice((0, 100, 4096, 65536)),
            SettingsFrame.MAX_CONCURRENT_STREAMS: chance.choice((1, 2, 100)),
            SettingsFrame.INITIAL_WINDOW_SIZE: chance.choice((0, 5, 65535, 2**20)),
            SettingsFrame.MAX_FRAME_SIZE: chance.choice((16384, 2**20)),
            SettingsFrame.MAX_HEADER_LIST_SIZE: 2**20,
            0x99: 7,
        }
        if chance.random() < 0.05:
            name = chance.choice(list(range(1, 9)))
            some[name] = chance.choice((0, 1, 2, 2**31, 2**24))
        return dict(chance.sample(sorted(some.items()), chance.randrange(len(some) + 1)))

    def stream_id(self) -> int:
        """One that exists, as a rule."""
        chance = self._chance
        if chance.random() < 0.03:
            return chance.choice((0, 2, 4, 2**31 - 1, 99))
        return chance.randrange(1, max(self._next, 2) + 2, 2)

    def request(self) -> bytes:
        """The first one."""
        first = self._headers_frame(self._next, REQUEST)
        self._next += 2
        return _with_frame(first)

    def tame_frames(self) -> Sequence[Frame]:
        """As a peer goes on that knows the protocol."""
        chance = self._chance
        if chance.random() < 0.3:
            increment = chance.randrange(1, 1000)
            settings = SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 2**16 + increment})
            return [chance.choice((PingFrame(0), settings, WindowUpdateFrame(0, window_increment=increment)))]
        if self._we_are_client and not self._said:
            return [PingFrame(0)]
        if not self._we_are_client and (not self._said or chance.random() < 0.3):
            first = self._headers_frame(self._next, REQUEST)
            self._said[self._next] = "request"
            self._next += 2
            return [first]
        stream_id = chance.choice(list(self._said))
        if self._we_are_client and self._said[stream_id] == "request":
            self._said[stream_id] = "response"
            return [self._headers_frame(stream_id, _RESPONSE)]
        if chance.random() < 0.6:
            return [DataFrame(stream_id, chance.randbytes(chance.randrange(200)))]
        del self._said[stream_id]
        if chance.random() < 0.2:
            return [RstStreamFrame(stream_id, error_code=8)]
        return [self._headers_frame(stream_id, _TRAILERS, "END_STREAM")]

    def _headers_frame(self, stream_id: int, headers: list[tuple[bytes, bytes]], *flags: str) -> HeadersFrame:
        return HeadersFrame(stream_id, data=self._encoder.encode(headers), flags=["END_HEADERS", *flags])

    def frames(self) -> Sequence[Frame]:
        chance = self._chance
        stream_id = self.stream_id()
        some = {
            "headers": 8,
            "data": 8,
            "reset": 2,
            "window": 3,
            "ping": 1,
            "settings": 1,
            "priority": 1,
            "goaway": 0.3,
            "push": 0.1,
            "continuation": 0.1,
            "unknown": 0.3,
        }
        match chance.choices(list(some), list(some.values()))[0]:
            case "headers":
                return self._headers(stream_id)
            case "data":
                frame = DataFrame(stream_id or 1, chance.randbytes(chance.choice((0, 1, 30, 3000))))
                self._maybe_end(frame)
                self._maybe_pad(frame)
                return [frame]
            case "reset":
                return [RstStreamFrame(stream_id or 1, error_code=chance.choice((0, 5, 8, 2**32 - 1)))]
            case "window":
                increment = chance.choice((1, 1000, 2**31 - 1 if chance.random() < 0.3 else 5))
                return [WindowUpdateFrame(chance.choice((0, stream_id)), window_increment=increment)]
            case "ping":
                return [PingFrame(0, opaque_data=b"12345678", flags=chance.choice(([], ["ACK"])))]
            case "settings":
                if chance.random() < 0.3:
                    return [SettingsFrame(0, flags=["ACK"])]
                return [SettingsFrame(0, settings=self.settings())]
            case "priority":
                return [PriorityFrame(stream_id or 1, depends_on=0, stream_weight=3)]
            case "goaway":
                return [
                    GoAwayFrame(0, last_stream_id=stream_id, error_code=chance.choice((0, 11)), additional_data=b"x")
                ]
            case "push":
                promised = PushPromiseFrame(stream_id or 1, promised_stream_id=2, data=self._encoder.encode(REQUEST))
                promised.flags.add("END_HEADERS")
                return [promised]
            case "continuation":
                return [ContinuationFrame(stream_id or 1, data=b"", flags=["END_HEADERS"])]
        return [_Unknown(stream_id)]

    def _headers(self, stream_id: int) -> list[HeadersFrame | ContinuationFrame]:
        chance = self._chance
        if not self._we_are_client and chance.random() < 0.5:
            stream_id = self._next
            self._next += 2
        elif self._we_are_client:
            self._next = max(self._next, stream_id)
        headers = [*chance.choices((REQUEST, _RESPONSE, _TRAILERS), (3, 4, 3))[0]]
        if chance.random() < 0.4:
            value = b"%d" % chance.randrange(10 ** chance.randrange(1, 20))
            headers.append(chance.choice((NeverIndexedHeaderTuple, _pair))(b"grpc-timeout", value))
        if chance.random() < 0.1:
            headers.append((b"content-length", chance.choice((b"0", b"1", b"30", b"x"))))
        if chance.random() < 0.1:
            headers.append((chance.randbytes(5), chance.randbytes(chance.choice((0, 10, 200, 5000)))))
        if chance.random() < 0.03:
            self._encoder.header_table_size = chance.choice((0, 50, 4096))
        block = self._encoder.encode(headers, huffman=chance.random() < 0.5)
        first = HeadersFrame(stream_id or 1, data=block)
        self._maybe_end(first)
        if chance.random() < 0.1:
            first.flags.add("PRIORITY")
            first.depends_on, first.stream_weight = 0, 5
        frames: list[HeadersFrame | ContinuationFrame] = [first]
        while chance.random() < 0.1:
            cut = chance.randrange(len(block) + 1)
            frames[-1].data, block = block[:cut], block[cut:]
            frames.append(ContinuationFrame(stream_id or 1, data=block))
        frames[-1].flags.add("END_HEADERS")
        if first.data:
            # h2 takes padding behind nothing for too long.
            self._maybe_pad(first)
        return frames

    def _maybe_end(self, frame: DataFrame | HeadersFrame) -> None:
        if self._chance.random() < 0.3:
            frame.flags.add("END_STREAM")

    def _maybe_pad(self, frame: DataFrame | HeadersFrame) -> None:
        if self._chance.random() < 0.1:
            frame.flags.add("PADDED")
            frame.pad_length = self._chance.choice((0, 1, 200))


def _pair(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return name, value


class _Unknown(Frame):
    """Of a kind that nobody knows."""

    type = 0xF0
    stream_association = "either"
    defined_flags = []

    def serialize(self) -> bytes:
        return struct.pack(">HBBBL", 0, 3, 0xF0, 0xFF, self.stream_id) + b"abc"
