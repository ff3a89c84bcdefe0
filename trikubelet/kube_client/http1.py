"""HTTP/1.1 to the API server: for servers without TLS, and for what stands before one and speaks nothing newer.

The protocol and the pool are httpcore's; only where the connections come from is ours.
They arrive with TLS established, so httpcore is set up without it. Every watch takes a connection of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import httpcore
import trio

from trikubelet.kube_client.exchange import Exchange, NotSentError, Reply, Request, TransportError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

_KEPT_IDLE: Final = 32
"""Idle connections that are kept for the next requests."""
_MOST: Final = 10_000
_CLOSE_TIMEOUT: Final = 1.0
_NOT_SENT: Final = (httpcore.ConnectError, httpcore.PoolTimeout)
_ERRORS: Final = (httpcore.NetworkError, httpcore.ProtocolError, *_NOT_SENT)


class Http1Pool:
    """Connections that are reused one request after the other. `connect` makes new ones, the first is `first`."""

    def __init__(self, connect: Callable[[], Awaitable[trio.abc.Stream]], first: trio.abc.Stream) -> None:
        self._backend = _Backend(connect, first)
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=_MOST,
            max_keepalive_connections=_KEPT_IDLE,
            keepalive_expiry=None,
            network_backend=self._backend,
        )
        self._bodies: set[_Http1Body] = set()
        self._requests = 0
        self._retiring = False

    async def send_request(self, request: Request) -> Reply:
        """Send a request and wait for the head of its response, which must be closed.

        Raises what `connect` raises, else TransportError. When cancelled, the connection is closed.
        """
        self._requests += 1
        try:
            with _translated():
                response = await self._pool.handle_async_request(_plain(request))
        except BaseException:
            await self._finished()
            raise
        body = _Http1Body(self, response, request.exchange)
        self._bodies.add(body)
        return Reply(response.status, [(name.lower(), value) for name, value in response.headers], body)

    async def replace(self) -> None:
        """Finish the requests in flight, end the watches, and close the connections then. Send no more requests."""
        self._retiring = True
        for body in list(self._bodies):
            if body.exchange.lasting:
                body.exchange.retired = True
                await body.cut()
        await self._close_if_done()

    async def drop(self) -> None:
        """Close all connections. Requests and watches in flight fail."""
        self._retiring = True
        await self._backend.close_all()

    async def body_closed(self, body: _Http1Body) -> None:
        """The response is not read any more."""
        self._bodies.discard(body)
        await self._finished()

    async def _finished(self) -> None:
        self._requests -= 1
        await self._close_if_done()

    async def _close_if_done(self) -> None:
        if self._retiring and not self._requests:
            await self._backend.close_all()


class _Http1Body:
    def __init__(self, pool: Http1Pool, response: httpcore.Response, exchange: Exchange) -> None:
        self._pool = pool
        self._response = response
        self._network = response.extensions["network_stream"]
        assert isinstance(response.stream, AsyncIterable)
        self._pieces = aiter(response.stream)
        self._ended = False
        self._closed = False
        self.exchange = exchange

    async def receive(self) -> bytes:
        with _translated():
            async for piece in self._pieces:
                if piece:
                    return bytes(piece)
        self._ended = True
        return b""

    async def cut(self) -> None:
        """Make a read that waits fail."""
        await self._network.aclose()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Nothing in here waits for the peer: connections are closed by force.
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            if not self._ended:
                await self.cut()
                # httpcore's generators end by what they raise; dropped in the middle they would be finished by the
                # garbage collector.
                with suppress(TransportError, httpcore.ConnectionNotAvailable), _translated():
                    async for _ in self._pieces:
                        pass
            await self._response.aclose()
            await self._pool.body_closed(self)


class _Backend(httpcore.AsyncNetworkBackend):
    """Where httpcore gets its connections."""

    def __init__(self, connect: Callable[[], Awaitable[trio.abc.Stream]], first: trio.abc.Stream) -> None:
        self._connect = connect
        self._first: trio.abc.Stream | None = first
        self._open: set[_NetworkStream] = set()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream, self._first = self._first, None
        if stream is None:
            stream = await self._connect()
        network = _NetworkStream(stream, self._open)
        self._open.add(network)
        return network

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def close_all(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            await trio.aclose_forcefully(first)
        for network in list(self._open):
            await network.aclose()


class _NetworkStream(httpcore.AsyncNetworkStream):
    """A Trio stream in httpcore's terms. There are no timeouts here: the client has a deadline for the whole call."""

    def __init__(self, stream: trio.abc.Stream, others: set[_NetworkStream]) -> None:
        self._stream = stream
        self._others = others
        self._socket = _socket_of(stream)
        self._closed = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.ReadError(_cause(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        try:
            await self._stream.send_all(buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.WriteError(_cause(error)) from error

    async def aclose(self) -> None:
        """Close by force: the end of a TLS conversation, sent to a peer that does not read, would take its time."""
        if not self._closed:
            self._closed = True
            self._others.discard(self)
            await trio.aclose_forcefully(self._stream)

    def get_extra_info(self, info: str) -> Any:
        """httpcore asks idle connections whether there is something to read, which is the peer's farewell."""
        if info == "is_readable":
            return self._closed or (self._socket is not None and self._socket.is_readable())
        return None


@contextmanager
def _translated() -> Iterator[None]:
    """Raises httpcore's errors as ours."""
    try:
        yield
    except _ERRORS as error:
        kind = NotSentError if isinstance(error, _NOT_SENT) else TransportError
        raise kind(str(error) or "the connection was lost") from error


def _plain(request: Request) -> httpcore.Request:
    async def trace(event: str, info: object) -> None:
        if event == "http11.send_request_headers.started":
            request.exchange.sent = True

    headers = [(b"host", request.authority.encode("ascii")), *request.headers]
    if request.body:
        headers.append((b"content-length", b"%d" % len(request.body)))
    return httpcore.Request(
        method=request.method,
        # Where the connection goes is known otherwise: to httpcore all are one host's.
        url=httpcore.URL(scheme=b"http", host=b"server", port=80, target=request.target.encode("ascii")),
        headers=headers,
        content=request.body,
        extensions={"trace": trace},
    )


def _socket_of(stream: trio.abc.Stream) -> trio.socket.SocketType | None:
    inner: object = stream
    while isinstance(inner, trio.SSLStream):
        inner = inner.transport_stream
    return inner.socket if isinstance(inner, trio.SocketStream) else None


def _cause(error: BaseException) -> str:
    return str(error.__cause__ or error) or "the connection was closed"
