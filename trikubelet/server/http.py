"""A small HTTP/1.1 server on Trio streams: h11 for the protocol, any stream for the bytes.

ASGI servers were weighed: exec, attach and port-forward need the raw connection after an upgrade, and client
certificates need the TLS object, and they give neither. So this serves any Trio stream (the agent's unix socket, memory
pairs in tests, TLS), with a handler from `trikubelet.server.routing`. What it costs is limited by `Limits`, and every
connection is a task whose scope ends with it.

    messages.py     what handlers see: Request, Response, StreamResponse, HTTPError
    routing.py      which handler
    connection.py   one connection
    here            many of them
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.grpc.unix import listen_unix
from trikubelet.logs import get_logger
from trikubelet.server.connection import HttpConnection
from trikubelet.server.limits import Limits
from trikubelet.server.messages import NOBODY, Handler, HTTPError, Peer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = get_logger("http")


@attrs.frozen
class HttpStatistics:
    connections: int
    busy: int
    """Connections with a request in hand."""
    accepted: int
    refused: int
    """Connections beyond the limit."""


class HttpServer:
    """Serves one handler (a `Router` is one) on any number of connections."""

    def __init__(self, handler: Handler, *, limits: Limits | None = None) -> None:
        self._handler = handler
        self._limits = Limits() if limits is None else limits
        self._connections: set[HttpConnection] = set()
        self._listening: set[trio.CancelScope] = set()
        self._draining = False
        self._one_ended = trio.Event()
        self._accepted = 0
        self._refused = 0

    def statistics(self) -> HttpStatistics:
        busy = sum(connection.busy for connection in self._connections)
        return HttpStatistics(len(self._connections), busy, self._accepted, self._refused)

    async def serve_stream(self, stream: trio.abc.Stream, peer: Peer = NOBODY) -> None:
        """Serve one connection until it ends, then close it. Raises nothing of the client's or a handler's doing.

        When cancelled, the handler is cancelled, and the connection is cut.
        """
        connection = HttpConnection(stream, self._handler, self._limits, peer)
        self._accepted += 1
        if len(self._connections) >= self._limits.connections:
            self._refused += 1
            await connection.refuse(HTTPError(503, "too many connections, try again later"))
            return
        with self._counted(connection):
            try:
                await connection.run()
            except* Exception as group:
                log.error("HTTP connection failed", exc_info=group)

    async def serve_unix(
        self, path: str | Path, *, mode: int = 0o600, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve connections to the Unix socket at `path` until cancelled or shut down; then the socket is removed.

        A socket that nobody listens on any more is replaced. Raises `trikubelet.grpc.unix.SocketInUseError` when
        somebody does, other `OSError`s when the path cannot be used.
        """
        listener = listen_unix(path, mode)
        async with trio.open_nursery() as connections:
            with trio.CancelScope() as accepting:
                self._listening.add(accepting)
                try:
                    # The listener's queue takes connections from here on.
                    task_status.started()
                    await trio.serve_listeners(self.serve_stream, [listener], handler_nursery=connections)
                finally:
                    self._listening.discard(accepting)

    async def shutdown(self, grace: float) -> None:
        """Take no new connections or requests; give answers in progress `grace` seconds, then cancel their handlers.

        `serve_unix` and `serve_stream` return then. When this is cancelled, handlers are cancelled at once.
        """
        self._draining = True
        for accepting in list(self._listening):
            accepting.cancel()
        for connection in list(self._connections):
            connection.drain()
        try:
            with trio.move_on_after(grace):
                while self._connections:
                    self._one_ended = trio.Event()
                    await self._one_ended.wait()
        finally:
            for connection in list(self._connections):
                connection.close()

    @contextmanager
    def _counted(self, connection: HttpConnection) -> Iterator[None]:
        self._connections.add(connection)
        if self._draining:
            connection.close()
        try:
            yield
        finally:
            self._connections.discard(connection)
            self._one_ended.set()
