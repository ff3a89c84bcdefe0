"""The server's side of port-forward.

    async def handle(takeover: Takeover) -> None:
        async with serve_port_forward(request, takeover, ports) as forwards, trio.open_nursery() as nursery:
            async for forwarded in forwards:
                nursery.start_soon(copy_both_ways, forwarded)

    return UpgradeResponse(handle)

Over SPDY (bare, or tunnelled in a WebSocket), a client opens two streams for each connection that it wants to a port:
one for errors and one for data, paired by a request id. Over WebSocket channels every port of the URL gets one
connection, at once; the first message of each channel is the port's number. (kubelet: `cri/streaming/portforward`.)
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import define
from trikubelet.http.messages import HTTPError
from trikubelet.http.streaming.channels import MAX_CHANNELS, PORT_FORWARD_PROTOCOLS, open_channels
from trikubelet.http.streaming.command import DEFAULT_TIMEOUTS, StreamingTimeouts
from trikubelet.http.streaming.handshake import (
    accept_spdy,
    accept_websocket,
    is_websocket,
    tunnelled_protocol,
    websocket_protocol,
)
from trikubelet.http.streaming.spdy import SpdySession, SpdyStream, open_spdy
from trikubelet.http.streaming.spdy_frames import ResetStatus
from trikubelet.http.streaming.websocket import WebSocketByteStream, open_websocket
from trikubelet.scopes import body_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from trikubelet.http.messages import Request, Takeover
    from trikubelet.http.streaming.channels import Channel

__all__ = ["ForwardedPort", "serve_port_forward"]

SPDY_PROTOCOLS: Final = ("portforward.k8s.io",)
_DATA, _ERROR = "data", "error"
_LONGEST_ERROR: Final = 8192


class ForwardedPort:
    """One connection that a client wants to a port.

    `data.receive_some` gives b"" when the client sends no more (it may still read), `data.send_eof` tells it the same
    the other way, where the protocol can (SPDY). Both raise `trio.BrokenResourceError` when the client has reset the
    stream or is gone.
    """

    def __init__(self, port: int, request_id: str, data: SpdyStream | Channel, errors: SpdyStream | Channel) -> None:
        self.port = port
        self.request_id = request_id
        self.data: trio.abc.HalfCloseableStream = data
        self._data = data
        self._errors = errors

    async def finish(self, error: str = "") -> None:
        """End this connection: in order, or, with an error, by telling the client the error and cutting the data.

        Drops what the client still sends. Raises nothing for a client that is gone; waits while it does not read.
        """
        self._data.discard_received()
        self._errors.discard_received()
        with suppress(trio.BrokenResourceError):
            if error:
                await self._errors.send_all(error.encode()[:_LONGEST_ERROR])
            await self._errors.send_eof()
        if error:
            await self._data.aclose()
            return
        with suppress(trio.BrokenResourceError):
            await self._data.send_eof()


@asynccontextmanager
async def serve_port_forward(
    request: Request, takeover: Takeover, ports: Sequence[int] = (), timeouts: StreamingTimeouts = DEFAULT_TIMEOUTS
) -> AsyncIterator[AsyncIterator[ForwardedPort]]:
    """Take the connection over, and yield each connection that the client makes through it, until it leaves.

    `ports` is what a client of WebSocket channels asked for when the URL was made (CRI's `PortForwardRequest.port`);
    SPDY clients name theirs stream by stream, and any port is theirs. With channels, the iteration ends after `ports`.

    Every yielded port must be finished: until then what the client sends occupies the connection's memory. Raises
    `HTTPError` (to be passed on) like `serve_remote_command`. When the body ends the connection ends; it ends at once
    when the body raises or is cancelled.
    """
    if not is_websocket(request):
        _, transport = await accept_spdy(request, takeover, SPDY_PROTOCOLS)
        async with _serve_spdy(transport, timeouts) as forwards:
            yield forwards
    elif (protocol := tunnelled_protocol(request, SPDY_PROTOCOLS)) is not None:
        transport = await accept_websocket(request, takeover, protocol)
        async with open_websocket(transport, client=False) as websocket:
            async with _serve_spdy(WebSocketByteStream(websocket), timeouts) as forwards:
                yield forwards
    else:
        async with _serve_channels(request, takeover, ports, timeouts) as forwards:
            yield forwards


@asynccontextmanager
async def _serve_channels(
    request: Request, takeover: Takeover, ports: Sequence[int], timeouts: StreamingTimeouts
) -> AsyncIterator[AsyncIterator[ForwardedPort]]:
    if not 0 < 2 * len(ports) <= MAX_CHANNELS:
        raise HTTPError(400, f"expected 1 to {MAX_CHANNELS // 2} ports for a WebSocket, got {len(ports)}")
    protocols = {protocol.name: protocol for protocol in PORT_FORWARD_PROTOCOLS}
    protocol = protocols[websocket_protocol(request, tuple(protocols))]
    transport = await accept_websocket(request, takeover, protocol.name)
    numbers = range(2 * len(ports))
    async with open_channels(transport, protocol, numbers, client=False, idle_timeout=timeouts.idle) as channels:
        with suppress(trio.BrokenResourceError):
            for number in numbers:
                await channels.send(number, ports[number // 2].to_bytes(2, "little"))
        put, take = trio.open_memory_channel[ForwardedPort](len(ports))
        for index, port in enumerate(ports):
            errors = channels[2 * index + 1]
            errors.discard_received()
            put.send_nowait(ForwardedPort(port, str(index), channels[2 * index], errors))
        put.close()
        yield take


@asynccontextmanager
async def _serve_spdy(
    transport: trio.abc.Stream, timeouts: StreamingTimeouts
) -> AsyncIterator[AsyncIterator[ForwardedPort]]:
    async with open_spdy(transport, client=False, idle_timeout=timeouts.idle) as session:
        put, take = trio.open_memory_channel[ForwardedPort](0)
        with body_errors():
            async with trio.open_nursery() as nursery:
                pairing = _Pairing(session, nursery, put, timeouts.creation)
                nursery.start_soon(pairing.run)
                yield take
                nursery.cancel_scope.cancel()


@define
class _Pair:
    """What has come of a request so far."""

    streams: dict[str, SpdyStream] = attrs.field(factory=dict)
    complete: trio.Event = attrs.field(factory=trio.Event)


class _Pairing:
    """Finds the streams that belong together."""

    def __init__(
        self,
        session: SpdySession,
        nursery: trio.Nursery,
        put: trio.MemorySendChannel[ForwardedPort],
        timeout: float,
    ) -> None:
        self._session = session
        self._nursery = nursery
        self._put = put
        self._timeout = timeout
        self._pairs: dict[str, _Pair] = {}

    async def run(self) -> None:
        """Pair streams until the session is over. Raises nothing of the client's doing."""
        with self._put, suppress(trio.EndOfChannel):
            while True:
                stream = await self._session.accept_stream()
                port, kind = _port(stream), stream.headers.get("streamtype", "")
                if port is None or kind not in (_DATA, _ERROR):
                    await stream.reset(ResetStatus.REFUSED_STREAM)
                    continue
                with suppress(trio.BrokenResourceError):
                    await stream.reply()
                await self._add(_request_id(stream, kind), kind, stream)

    async def _add(self, request_id: str, kind: str, stream: SpdyStream) -> None:
        pair = self._pairs.get(request_id)
        if pair is None:
            pair = self._pairs[request_id] = _Pair()
            self._nursery.start_soon(self._expire, request_id, pair)
        if kind in pair.streams:
            await stream.aclose()
            await _send_error(pair, f"error processing stream for request {request_id}: {kind} stream already assigned")
            return
        pair.streams[kind] = stream
        if len(pair.streams) == 2:
            pair.complete.set()
            del self._pairs[request_id]
            data = pair.streams[_DATA]
            await self._put.send(ForwardedPort(_port(data) or 0, request_id, data, pair.streams[_ERROR]))

    async def _expire(self, request_id: str, pair: _Pair) -> None:
        with trio.move_on_after(self._timeout):
            await pair.complete.wait()
            return
        if self._pairs.get(request_id) is pair:
            del self._pairs[request_id]
        await _send_error(pair, f"timed out waiting for the second stream of request {request_id}")
        for stream in pair.streams.values():
            await stream.aclose()


async def _send_error(pair: _Pair, message: str) -> None:
    if (errors := pair.streams.get(_ERROR)) is not None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            await errors.send_all(message.encode()[:_LONGEST_ERROR])


def _port(stream: SpdyStream) -> int | None:
    text = stream.headers.get("port", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 2**16 else None


def _request_id(stream: SpdyStream, kind: str) -> str:
    """Old clients send none; their streams come in pairs, the one for errors first."""
    return stream.headers.get("requestid") or str(stream.id if kind == _ERROR else stream.id - 2)
