"""HTTP/2 in front of a handler of `trikubelet.http`, on the engine that the agent's own client uses.

`trikubelet.http.server` speaks HTTP/1.1. A real API server speaks HTTP/2 to clients that offer it in TLS, so the double
has to; both sides being the same engine is made up for by tests against plain h2 (`tests/kube_client/test_http2.py`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import trio

from trikubelet.http.messages import (
    AnyResponse,
    Handler,
    HTTPError,
    Request,
    Response,
    StreamResponse,
    UpgradeResponse,
    error_response,
)
from trikubelet.kube_client.http2 import ByteStream
from trikubelet.rpc.grpc.connection import Connection
from trikubelet.rpc.grpc.http2 import ErrorCodes, Http2
from trikubelet.rpc.grpc.wire import END

if TYPE_CHECKING:
    from trikubelet.rpc.grpc.hpack import Headers

MAX_STREAMS: Final = 250
"""As Go's server has it."""


class NoReply(Exception):  # noqa: N818 - no error, what a test wants
    """A handler raises it to leave a request without an answer: its stream is reset."""


async def serve_http2(stream: trio.abc.Stream, handler: Handler, *, max_streams: int = MAX_STREAMS) -> None:
    """Serve one connection until it ends, then close it. Raises nothing of the client's doing.

    A handler's `HTTPError` is its answer, after `NoReply` there is none, and another exception ends the test that runs
    this. When cancelled, handlers are cancelled and the connection is closed.
    """
    await Http2Connection(stream, handler, max_streams).run()


class Http2Connection(Connection):
    """One connection, on the server's side."""

    client_side = False

    def __init__(self, transport: trio.abc.Stream, handler: Handler, max_streams: int = MAX_STREAMS) -> None:
        super().__init__(transport, Http2(client_side=False, max_concurrent_streams=max_streams), 2**20)
        self._handler = handler
        self._max_streams = max_streams
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery) -> None:
        super().start(nursery)
        self._nursery = nursery

    def go_away(self) -> None:
        """Tell the client to make a new connection; requests in hand are finished."""
        self.http2.send_goaway(self.http2.highest_inbound_stream_id)
        self.flush()
        self.retire()

    def on_request(self, stream_id: int, headers: Headers) -> None:
        assert self._nursery is not None
        if self.retiring or len(self.streams) >= self._max_streams:
            self.http2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        stream = ByteStream(self, stream_id)
        stream.headers = headers
        stream.scope = trio.CancelScope()
        self.streams[stream_id] = stream
        self._nursery.start_soon(self._serve, stream, stream.scope)

    async def _serve(self, stream: ByteStream, scope: trio.CancelScope) -> None:
        code = ErrorCodes.NO_ERROR
        try:
            with scope, suppress(NoReply):
                if not stream.ended:
                    await stream.wait(END)
                code = ErrorCodes.INTERNAL_ERROR
                await self._answer(stream, await self._handle(stream))
                code = ErrorCodes.NO_ERROR
        finally:
            stream.release(code)

    async def _handle(self, stream: ByteStream) -> AnyResponse:
        try:
            return await self._handler(_request(stream))
        except HTTPError as error:
            return error_response(error)

    async def _answer(self, stream: ByteStream, response: AnyResponse) -> None:
        if isinstance(response, StreamResponse):
            writer = _Writer(stream, response)
            await response.produce(writer)
            await writer.write(b"")
            stream.end()
            return
        if isinstance(response, UpgradeResponse):
            response = Response(b"HTTP/2 knows no upgrades", 400)
        headers = _headers(response)
        headers.append((b"content-length", b"%d" % len(response.body)))
        if stream.reset:
            return
        stream.send_headers(headers, end=not response.body)
        if response.body:
            await stream.send_data(response.body, True)
        stream.flush()


class _Writer:
    """Where a handler's streamed body goes."""

    def __init__(self, stream: ByteStream, response: StreamResponse) -> None:
        self._stream = stream
        self._response = response
        self._begun = False

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if not self._begun and not self._stream.reset:
            self._begun = True
            self._stream.send_headers(_headers(self._response), end=False)
        if data:
            await self._stream.send_data(data, False)
        self._stream.flush()


def _headers(response: Response | StreamResponse) -> Headers:
    fields = [("content-type", response.content_type), *response.headers]
    status = (b":status", b"%d" % response.status)
    return [status, *((name.lower().encode(), value.encode()) for name, value in fields)]


def _request(stream: ByteStream) -> Request:
    fields = {name.decode(): value.decode("latin-1") for name, value in stream.headers or ()}
    target = fields.get(":path", "/")
    path, _, query = target.partition("?")
    headers = {name: value for name, value in fields.items() if not name.startswith(":")}
    headers.setdefault("host", fields.get(":authority", ""))
    return Request(
        method=fields.get(":method", "GET"),
        path=path,
        query=parse_qs(query, keep_blank_values=True),
        headers=headers,
        body=stream.take_all() if stream.messages else b"",
    )
