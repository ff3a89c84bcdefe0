"""SPDY/3.1's frames: bytes to values and back, with no I/O and no idea of what a session is.

    control frame:  1 | version (15 bits) | type (16) | flags (8) | length (24) | payload
    data frame:     0 | stream (31)                   | flags (8) | length (24) | payload

Control frames are small and arrive whole. Data frames may have 16 MiB, so their payload is handed on as it arrives: one
frame on the wire may become several `Data`, of which the last one carries the end of the stream. So a decoder holds
never more than one control frame. Unknown control frames are skipped, as the draft wants it.

Errors are final: after one the rest of the input has no meaning. (draft-mbelshe-httpbis-spdy-00 with 3.1's
WINDOW_UPDATE for the session; what peers really send was read off moby/spdystream, which all of Kubernetes uses.)
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import define, frozen
from trikubelet.http.streaming.spdy_headers import HeaderBlockError, HeaderDecoder, HeaderEncoder, Headers

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION: Final = 3
MAX_STREAM_ID: Final = 2**31 - 1

_HEAD: Final = 8
_FIN: Final = 0x01
_UNIDIRECTIONAL: Final = 0x02
_CLEAR_SETTINGS: Final = 0x01


class FrameType(IntEnum):
    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


class ResetStatus(IntEnum):
    """Why a stream was reset. Others than these may arrive, as plain numbers."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    UNSUPPORTED_VERSION = 4
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7
    STREAM_IN_USE = 8
    STREAM_ALREADY_CLOSED = 9
    INVALID_CREDENTIALS = 10
    FRAME_TOO_LARGE = 11


class GoAwayStatus(IntEnum):
    OK = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


@frozen
class SynStream:
    """Opens a stream. Clients' streams have odd numbers, servers' even ones, and they only grow."""

    stream_id: int
    headers: Headers
    fin: bool = False
    unidirectional: bool = False
    associated_id: int = 0
    priority: int = 0
    """0 (first) to 7."""
    slot: int = 0


@frozen
class SynReply:
    """Accepts a stream."""

    stream_id: int
    headers: Headers
    fin: bool = False


@frozen
class RstStream:
    """Ends a stream in both directions."""

    stream_id: int
    status: int


@frozen
class Setting:
    id: int
    value: int
    flags: int = 0


@frozen
class Settings:
    settings: tuple[Setting, ...]
    clear: bool = False


@frozen
class Ping:
    """Wants the same frame back, if it carries a number of the other side (clients' are odd)."""

    id: int


@frozen
class GoAway:
    """No more streams. moby/spdystream takes it for the end of everything: it reads nothing after it."""

    last_good_id: int
    status: int = GoAwayStatus.OK


@frozen
class MoreHeaders:
    """A HEADERS frame: headers that come later in a stream."""

    stream_id: int
    headers: Headers
    fin: bool = False


@frozen
class WindowUpdate:
    """`stream_id` 0 is the session."""

    stream_id: int
    delta: int


@frozen
class Data:
    """Payload of a stream; when received, maybe a part of what the frame carries."""

    stream_id: int
    data: bytes
    fin: bool = False


Frame = SynStream | SynReply | RstStream | Settings | Ping | GoAway | MoreHeaders | WindowUpdate | Data


@define(kw_only=True)
class SpdyProtocolError(Exception):
    """The peer broke the protocol: what was expected, what came, and in which frame of which stream (0: none)."""

    expected: str
    got: str
    frame: str = ""
    stream_id: int = 0

    def __str__(self) -> str:
        where = f"SPDY {self.frame or 'frame'}" + (f" of stream {self.stream_id}" if self.stream_id else "")
        return f"{where}: expected {self.expected}, got {self.got}"


class FrameEncoder:
    """One direction of a session, outwards."""

    def __init__(self) -> None:
        self._headers = HeaderEncoder()

    def encode(self, frame: Frame) -> bytes:
        """The frame's bytes. With headers they must be sent, and in the order of the calls."""
        match frame:
            case Data():
                head = frame.stream_id.to_bytes(4, "big") + bytes([_FIN if frame.fin else 0])
                return head + len(frame.data).to_bytes(3, "big") + frame.data
            case SynStream():
                flags = (_FIN if frame.fin else 0) | (_UNIDIRECTIONAL if frame.unidirectional else 0)
                payload = _words(frame.stream_id, frame.associated_id) + bytes([frame.priority << 5, frame.slot])
                return _control(FrameType.SYN_STREAM, flags, payload + self._headers.encode(frame.headers))
            case SynReply():
                payload = _words(frame.stream_id) + self._headers.encode(frame.headers)
                return _control(FrameType.SYN_REPLY, _FIN if frame.fin else 0, payload)
            case MoreHeaders():
                payload = _words(frame.stream_id) + self._headers.encode(frame.headers)
                return _control(FrameType.HEADERS, _FIN if frame.fin else 0, payload)
            case RstStream():
                return _control(FrameType.RST_STREAM, 0, _words(frame.stream_id, frame.status))
            case Ping():
                return _control(FrameType.PING, 0, _words(frame.id))
            case GoAway():
                return _control(FrameType.GOAWAY, 0, _words(frame.last_good_id, frame.status))
            case WindowUpdate():
                return _control(FrameType.WINDOW_UPDATE, 0, _words(frame.stream_id, frame.delta))
            case Settings():
                entries = b"".join(_words(entry.flags << 24 | entry.id, entry.value) for entry in frame.settings)
                payload = _words(len(frame.settings)) + entries
                return _control(FrameType.SETTINGS, _CLEAR_SETTINGS if frame.clear else 0, payload)


def _control(kind: FrameType, flags: int, payload: bytes) -> bytes:
    return (0x80000000 | VERSION << 16 | kind).to_bytes(4, "big") + _words(flags << 24 | len(payload)) + payload


def _words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


class FrameDecoder:
    """One direction of a session, inwards: `feed` it, then take frames until there is none.

    `control_size`: the largest payload of a control frame; `headers_size`: the largest header block, decompressed.
    """

    def __init__(self, *, control_size: int, headers_size: int) -> None:
        self._buffer = bytearray()
        self._control_size = control_size
        self._headers = HeaderDecoder(headers_size)
        self._left = 0
        """Of a data frame's payload, or of what is skipped."""
        self._stream_id = 0
        """Whose payload that is; 0: nobody's."""
        self._fin = False
        self._error: SpdyProtocolError | None = None

    @property
    def in_frame(self) -> bool:
        """Some of a frame has arrived, but not all."""
        return bool(self._buffer or self._left)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next frame, or the next part of a data frame; None: feed more.

        Raises SpdyProtocolError, and then again with every call.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except SpdyProtocolError as error:
            self._error = error
            raise

    def _next(self) -> Frame | None:
        while True:
            if self._left:
                part = self._take(min(self._left, len(self._buffer)))
                self._left -= len(part)
                if part and self._stream_id:
                    return Data(self._stream_id, part, self._fin and not self._left)
                if self._left:
                    return None
            if len(self._buffer) < _HEAD:
                return None
            if self._buffer[0] & 0x80:
                if not self._begin_unknown():
                    return self._control_frame()
            elif (frame := self._begin_data()) is not None:
                return frame

    def _begin_data(self) -> Data | None:
        head = self._take(_HEAD)
        stream_id, fin, self._left = int.from_bytes(head[:4], "big"), bool(head[4] & _FIN), _length(head)
        if not stream_id:
            raise SpdyProtocolError(frame="DATA", expected="a stream's number", got="0")
        self._stream_id, self._fin = stream_id, fin
        return None if self._left else Data(stream_id, b"", fin)

    def _begin_unknown(self) -> bool:
        """Whether a control frame begins here that is to be skipped."""
        head = bytes(self._buffer[:_HEAD])
        if (version := int.from_bytes(head[:2], "big") & 0x7FFF) != VERSION:
            raise SpdyProtocolError(expected=f"version {VERSION}", got=f"version {version}")
        if int.from_bytes(head[2:4], "big") in _READERS:
            return False
        del self._buffer[:_HEAD]
        self._stream_id, self._left = 0, _length(head)
        return True

    def _control_frame(self) -> Frame | None:
        """The control frame that begins here; None when more of it must come."""
        head = bytes(self._buffer[:_HEAD])
        kind, length = FrameType(int.from_bytes(head[2:4], "big")), _length(head)
        name = kind.name
        if length > self._control_size:
            raise SpdyProtocolError(frame=name, expected=f"at most {self._control_size} bytes", got=str(length))
        if len(self._buffer) < _HEAD + length:
            return None
        del self._buffer[:_HEAD]
        smallest, read = _READERS[kind]
        payload = self._take(length)
        if length < smallest:
            raise SpdyProtocolError(frame=name, expected=f"at least {smallest} bytes", got=str(length))
        try:
            return read(head[4], payload, self._headers)
        except HeaderBlockError as error:
            stream_id = _word(payload, 0)
            raise SpdyProtocolError(frame=name, stream_id=stream_id, expected="headers", got=str(error)) from error

    def _take(self, count: int) -> bytes:
        part = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return part


def _length(head: bytes) -> int:
    return int.from_bytes(head[5:8], "big")


def _word(payload: bytes, position: int) -> int:
    """31 bits; the first one is reserved."""
    return int.from_bytes(payload[position : position + 4], "big") & MAX_STREAM_ID


def _stream(kind: FrameType, payload: bytes) -> int:
    stream_id = _word(payload, 0)
    if not stream_id:
        raise SpdyProtocolError(frame=kind.name, expected="a stream's number", got="0")
    return stream_id


def _exactly(kind: FrameType, size: int, payload: bytes) -> None:
    if len(payload) != size:
        raise SpdyProtocolError(frame=kind.name, expected=f"{size} bytes", got=str(len(payload)))


def _read_syn_stream(flags: int, payload: bytes, headers: HeaderDecoder) -> SynStream:
    # The headers first: whatever else is wrong, the decompressor must have seen them.
    block = headers.decode(payload[10:])
    return SynStream(
        stream_id=_stream(FrameType.SYN_STREAM, payload),
        headers=block,
        fin=bool(flags & _FIN),
        unidirectional=bool(flags & _UNIDIRECTIONAL),
        associated_id=_word(payload, 4),
        priority=payload[8] >> 5,
        slot=payload[9],
    )


def _read_syn_reply(flags: int, payload: bytes, headers: HeaderDecoder) -> SynReply:
    block = headers.decode(payload[4:])
    return SynReply(_stream(FrameType.SYN_REPLY, payload), block, bool(flags & _FIN))


def _read_headers(flags: int, payload: bytes, headers: HeaderDecoder) -> MoreHeaders:
    block = headers.decode(payload[4:])
    return MoreHeaders(_stream(FrameType.HEADERS, payload), block, bool(flags & _FIN))


def _read_rst_stream(_flags: int, payload: bytes, _headers: HeaderDecoder) -> RstStream:
    _exactly(FrameType.RST_STREAM, 8, payload)
    stream_id, status = _stream(FrameType.RST_STREAM, payload), int.from_bytes(payload[4:], "big")
    if not status:
        raise SpdyProtocolError(frame="RST_STREAM", stream_id=stream_id, expected="a status", got="0")
    return RstStream(stream_id, status)


def _read_ping(_flags: int, payload: bytes, _headers: HeaderDecoder) -> Ping:
    _exactly(FrameType.PING, 4, payload)
    return Ping(int.from_bytes(payload, "big"))


def _read_goaway(_flags: int, payload: bytes, _headers: HeaderDecoder) -> GoAway:
    _exactly(FrameType.GOAWAY, 8, payload)
    return GoAway(_word(payload, 0), int.from_bytes(payload[4:], "big"))


def _read_window_update(_flags: int, payload: bytes, _headers: HeaderDecoder) -> WindowUpdate:
    _exactly(FrameType.WINDOW_UPDATE, 8, payload)
    return WindowUpdate(_word(payload, 0), _word(payload, 4))


def _read_settings(flags: int, payload: bytes, _headers: HeaderDecoder) -> Settings:
    count = int.from_bytes(payload[:4], "big")
    _exactly(FrameType.SETTINGS, 4 + 8 * count, payload)
    words = [int.from_bytes(payload[start : start + 4], "big") for start in range(4, len(payload), 4)]
    pairs = zip(words[::2], words[1::2], strict=True)
    entries = tuple(Setting(id=key & 0xFFFFFF, value=value, flags=key >> 24) for key, value in pairs)
    return Settings(entries, bool(flags & _CLEAR_SETTINGS))


_READERS: Final[dict[int, tuple[int, Callable[[int, bytes, HeaderDecoder], Frame]]]] = {
    FrameType.SYN_STREAM: (10, _read_syn_stream),
    FrameType.SYN_REPLY: (4, _read_syn_reply),
    FrameType.RST_STREAM: (8, _read_rst_stream),
    FrameType.SETTINGS: (4, _read_settings),
    FrameType.PING: (4, _read_ping),
    FrameType.GOAWAY: (8, _read_goaway),
    FrameType.HEADERS: (4, _read_headers),
    FrameType.WINDOW_UPDATE: (8, _read_window_update),
}
"""How each type is read, and how long its payload is at least."""
