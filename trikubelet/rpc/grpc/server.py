"""The server's side: service bases of betterproto (or anything with grpclib's `__mapping__`) on Trio streams.

A connection is a nursery, and a call is a task in it, within the call's own cancel scope. Whatever ends the call from
outside cancels that scope: the client's RST_STREAM, the deadline it sent, the loss of its connection, the end of the
server. What the handler raises ends its call and nothing else; what a peer sends ends its connection and nothing else.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio
from grpclib import GRPCError, Status

from trikubelet.broadcast import Broadcast
from trikubelet.rpc.grpc.accept import Accepted, accept, unknown_method
from trikubelet.rpc.grpc.connection import Connection
from trikubelet.rpc.grpc.framing import DEFAULT_MAX_MESSAGE_SIZE
from trikubelet.rpc.grpc.http2 import ErrorCodes, Http2
from trikubelet.rpc.grpc.server_call import ServerStream
from trikubelet.rpc.grpc.status import Failure
from trikubelet.rpc.grpc.unix import listen_unix
from trikubelet.rpc.grpc.wire import WireStream
from trikubelet.scopes import leaves
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from grpclib.const import Handler

    from trikubelet.rpc.grpc.hpack import Headers

DEFAULT_MAX_CONCURRENT_STREAMS = 1000
_SLACK = 100

_SHUTTING_DOWN = Failure(Status.UNAVAILABLE, "the server is shutting down")

log = get_logger("grpc")


class Servable(Protocol):
    """What can be served: betterproto's `ServiceBase`s are."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Handlers by path, "/package.Service/Method"."""
        ...


class ServerConnection(Connection):
    """A connection that accepts streams and runs a handler for each."""

    client_side = False

    def __init__(
        self, transport: trio.abc.Stream, handlers: Mapping[str, Handler], max_message_size: int, max_streams: int
    ) -> None:
        http2 = Http2(client_side=False, max_concurrent_streams=max_streams)
        super().__init__(transport, http2, max_message_size)
        self._handlers_by_path = handlers
        self._max_streams = max_streams

    def drain(self) -> None:
        """Tell the client to go elsewhere; calls in flight finish, and the connection ends with the last one."""
        self.http2.send_goaway(self.http2.highest_inbound_stream_id)
        self.flush()
        self.retire()

    def on_request(self, stream_id: int, headers: Headers) -> None:
        if self.retiring or self._overloaded:
            self.http2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        stream = WireStream(self, stream_id, self.max_message_size)
        stream.headers = headers
        stream.scope = trio.CancelScope()
        self.streams[stream_id] = stream
        self.calls.append(partial(self._serve, stream, stream.scope))

    @property
    def _overloaded(self) -> bool:
        running = len(self.streams)
        if running < self._max_streams:
            return False
        # A client may open a stream as soon as it has reset another, whose handler is then still being cancelled. But
        # not without end.
        open_streams = sum(not stream.reset for stream in self.streams.values())
        return open_streams >= self._max_streams or running >= 2 * self._max_streams + _SLACK

    async def _serve(self, stream: WireStream, scope: trio.CancelScope) -> None:
        accepted = accept(dict(stream.headers or ()), self._handlers_by_path)
        if not isinstance(accepted, Accepted):
            if not stream.reset:
                stream.send_headers(accepted.headers, end=True)
                stream.flush()
            stream.release(ErrorCodes.NO_ERROR)
            return
        scope.deadline = trio.current_time() + accepted.timeout
        call: ServerStream[object, object] = ServerStream(stream, accepted.path, accepted.handler, scope.deadline)
        try:
            with scope:
                await accepted.handler.func(call)
                await call.finish()
            if scope.cancelled_caught:
                call.abort(
                    Failure(Status.DEADLINE_EXCEEDED, f"context deadline exceeded: {accepted.path} took too long")
                )
        except* Exception as group:  # noqa: BLE001
            # Also what a handler raises while it is being cancelled, since that must not end the connection either.
            call.abort(_failure_of_handler(accepted.path, group))
        finally:
            # Nothing has been sent only when the whole connection is being cancelled.
            call.abort(_SHUTTING_DOWN)
            call.release()


class Server:
    """Serves the methods of `handlers` on any number of connections.

    Raises `ValueError` when two of them have the same method.
    """

    def __init__(
        self,
        handlers: Sequence[Servable],
        *,
        max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
        max_concurrent_streams: int = DEFAULT_MAX_CONCURRENT_STREAMS,
    ) -> None:
        self._handlers: dict[str, Handler] = {}
        for servable in handlers:
            for path, handler in servable.__mapping__().items():
                if path in self._handlers:
                    raise ValueError(f"two of the handlers serve {path}")
                self._handlers[path] = handler
        self._max_message_size = max_message_size
        self._max_concurrent_streams = max_concurrent_streams
        self._connections: set[ServerConnection] = set()
        self._listening: set[trio.CancelScope] = set()
        self._draining = False
        self._ended: Broadcast[None] = Broadcast()
        """A connection has."""

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends, then close it. Raises nothing of the peer's or a handler's doing.

        When cancelled, calls in flight are cancelled (their clients get UNAVAILABLE), and GOAWAY is sent.
        """
        connection = ServerConnection(stream, self._handlers, self._max_message_size, self._max_concurrent_streams)
        with self._counted(connection):
            await connection.run()

    async def serve_unix(
        self, path: str | Path, *, mode: int = 0o600, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve connections to the Unix socket at `path` until cancelled or shut down; then the socket is removed.

        A socket without a listener is replaced. Raises `SocketInUseError` for one with a listener, other
        `OSError`s when the path cannot be used.
        """
        listener = listen_unix(path, mode)
        async with trio.open_nursery() as connections:
            with trio.CancelScope() as accepting:
                self._listening.add(accepting)
                try:
                    # The listener's queue takes connections from here on.
                    task_status.started()
                    await supervise(self._accept, path, mode, [listener], connections)
                finally:
                    self._listening.discard(accepting)

    async def _accept(
        self, path: str | Path, mode: int, listeners: list[trio.SocketListener], connections: trio.Nursery
    ) -> None:
        """`listeners`: the first one, for the first attempt."""
        listener = listeners.pop() if listeners else listen_unix(path, mode)
        await trio.serve_listeners(partial(contain, self.serve_stream), [listener], handler_nursery=connections)

    async def shutdown(self, grace: float) -> None:
        """Take no new calls, and give those in flight `grace` seconds to finish, before they are cancelled.

        `serve_unix` and `serve_stream` return then. When this is cancelled, calls in flight are cancelled at once.
        """
        self._draining = True
        for accepting in list(self._listening):
            accepting.cancel()
        for connection in list(self._connections):
            connection.drain()
        try:
            with trio.move_on_after(grace):
                while self._connections:
                    await self._ended.wait()
        finally:
            for connection in list(self._connections):
                connection.close()

    @contextmanager
    def _counted(self, connection: ServerConnection) -> Iterator[None]:
        self._connections.add(connection)
        if self._draining:
            connection.close()
        try:
            yield
        finally:
            self._connections.discard(connection)
            self._ended.send(None)


def _failure_of_handler(path: str, group: ExceptionGroup[Exception]) -> Failure:
    """What to tell the client. A `GRPCError` is the handler's answer, also out of a nursery; all else is a mistake.

    Methods that a service does not override refuse without a word: no handler is what that means.
    """
    errors = list(leaves(group))
    answers = [error for error in errors if isinstance(error, GRPCError)]
    if len(answers) == len(errors):
        failure = Failure.of(answers[0])
        if failure.status is Status.UNIMPLEMENTED and not failure.message:
            return Failure(failure.status, unknown_method(path))
        return failure
    cause = errors[0] if len(errors) == 1 else group
    log.error("gRPC handler failed", rpc=path, error=repr(cause), exc_info=cause)
    return Failure(Status.UNKNOWN, f"internal error in {path}: {type(errors[0]).__name__}: {errors[0]}")
