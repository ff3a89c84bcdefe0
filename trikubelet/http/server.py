"""A small HTTP/1.1 server on Trio streams: h11 for the protocol, any stream for the bytes.

ASGI servers were weighed: exec, attach and port-forward need the raw connection after an upgrade, and client
certificates need the TLS object, and they give neither. So this serves any Trio stream (the agent's unix socket, memory
pairs in tests, TLS), with a handler from `trikubelet.http.routing`. What it costs is limited by `Limits`, and every
connection is a task whose scope ends with it.

    messages.py     what handlers see: Request, Response, StreamResponse, HTTPError
    routing.py      which handler
    connection.py   one connection
    here, places.py many of them
    listeners.py    the node's ports; TLS by tls_stream.py and serving_tls.py
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from trikubelet.formats.values import frozen
from trikubelet.http.connection import HttpConnection
from trikubelet.http.limits import Limits
from trikubelet.http.messages import NOBODY, Handler, HTTPError, Peer
from trikubelet.http.places import NoPlaceError, Place, Places
from trikubelet.rpc.grpc.unix import listen_unix
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

log = get_logger("http")


@frozen
class HttpStatistics:
    connections: int
    busy: int
    """Connections with a request in hand."""
    accepted: int
    refused: int
    """Connections beyond the limit."""
    lost: int
    """Connections that waited for their client when another one needed their place."""


class HttpServer:
    """Serves one handler (a `Router` is one) on any number of connections."""

    def __init__(self, handler: Handler, *, limits: Limits | None = None) -> None:
        self._handler = handler
        self._limits = Limits() if limits is None else limits
        self._places = Places(self._limits.connections)
        self._connections: set[HttpConnection] = set()
        self._listening: set[trio.CancelScope] = set()
        self._draining = False
        self._accepted = 0
        self._refused = 0

    def statistics(self) -> HttpStatistics:
        busy = sum(connection.busy for connection in self._connections)
        return HttpStatistics(self._places.taken, busy, self._accepted, self._refused, self._places.lost)

    async def serve_stream(self, stream: trio.abc.Stream, peer: Peer = NOBODY) -> None:
        """Serve one connection until it ends, then close it. Raises nothing of the client's or a handler's doing.

        When cancelled, the handler is cancelled, and the connection is cut.
        """
        self._accepted += 1
        try:
            with self._places.take() as place:
                await self._serve(stream, peer, place)
        except NoPlaceError:
            self._refused += 1
            connection = HttpConnection(stream, self._handler, self._limits, peer)
            await connection.refuse(HTTPError(503, "too many connections, try again later"))

    async def serve_transport(
        self,
        transport: trio.abc.Stream,
        begin: Callable[[], Awaitable[tuple[trio.abc.Stream, Peer] | None]],
        address: str = "",
    ) -> None:
        """Like `serve_stream`, for a connection that has to begin with something else, like a handshake.

        `begin` gives the stream and its peer, or None when there is nothing to serve. It has the time
        that a request's head may take, and may be cancelled to make room for others. However this ends, `transport`
        is closed. `address` is the client's, for the log.
        """
        self._accepted += 1
        try:
            with self._places.take() as place:
                begun = None
                with self.accepting(), trio.move_on_after(self._limits.header_timeout) as waiting:
                    begun = await begin()
                if waiting.cancelled_caught:
                    log.info(
                        "connection closed before it began", client=address, after=f"{self._limits.header_timeout:g}s"
                    )
                if begun is not None:
                    await self._serve(*begun, place)
        except* NoPlaceError:
            self._refused += 1
        except* Exception as group:
            log.error("a connection could not begin", exc_info=group)
        finally:
            await trio.aclose_forcefully(transport)

    async def _serve(self, stream: trio.abc.Stream, peer: Peer, place: Place) -> None:
        connection = HttpConnection(stream, self._handler, self._limits, peer, place)
        with self._known(connection):
            try:
                await connection.run()
            except* Exception as group:
                log.error("HTTP connection failed", exc_info=group)

    async def serve_unix(
        self, path: str | Path, *, mode: int = 0o600, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve connections to the Unix socket at `path` until cancelled or shut down; then the socket is removed.

        A socket without a listener is replaced. Raises `trikubelet.rpc.grpc.unix.SocketInUseError` for one
        with a listener, other `OSError`s when the path cannot be used.
        """
        listener = listen_unix(path, mode)
        async with trio.open_nursery() as connections:
            with self.accepting():
                # The listener's queue takes connections from here on.
                task_status.started()
                await supervise(self._accept, path, mode, [listener], connections)

    async def _accept(
        self, path: str | Path, mode: int, listeners: list[trio.SocketListener], connections: trio.Nursery
    ) -> None:
        """`listeners`: the first one, for the first attempt."""
        listener = listeners.pop() if listeners else listen_unix(path, mode)
        await trio.serve_listeners(partial(contain, self.serve_stream), [listener], handler_nursery=connections)

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """A block that takes connections in; `shutdown` ends it."""
        with trio.CancelScope() as scope:
            self._listening.add(scope)
            try:
                if self._draining:
                    scope.cancel()
                yield
            finally:
                self._listening.discard(scope)

    async def shutdown(self, grace: float) -> None:
        """Take no new connections or requests; give answers in progress `grace` seconds, then cancel their handlers.

        What serves returns then. When this is cancelled, handlers are cancelled at once.
        """
        self._draining = True
        for accepting in list(self._listening):
            accepting.cancel()
        for connection in list(self._connections):
            connection.drain()
        try:
            with trio.move_on_after(grace):
                await self._places.all_given_back()
        finally:
            self._places.empty_all()

    @contextmanager
    def _known(self, connection: HttpConnection) -> Iterator[None]:
        self._connections.add(connection)
        if self._draining:
            connection.close()
        try:
            yield
        finally:
            self._connections.discard(connection)
