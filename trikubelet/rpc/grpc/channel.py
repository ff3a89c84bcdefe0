"""The client's side: one connection that is there when a call needs it.

A call takes the open connection, synchronously. When there is none, the call asks `run` for one and waits for that
attempt, as all calls do that come meanwhile; when the attempt fails they all fail with UNAVAILABLE, and so do, at once,
the calls of the backoff time that follows. After it the next call causes the next attempt. (So gRPC's rules have it for
calls that do not wait for ready. An unused channel does not reconnect.)

A connection that announces its end (GOAWAY) is left to finish its calls, and new ones get a new connection.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio
from grpclib import GRPCError, Status

from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import define, frozen
from trikubelet.rpc.grpc.call import ClientStream
from trikubelet.rpc.grpc.connection import Connection
from trikubelet.rpc.grpc.deadline import earliest
from trikubelet.rpc.grpc.framing import DEFAULT_MAX_MESSAGE_SIZE
from trikubelet.rpc.grpc.http2 import Http2, NoStreamsLeftError
from trikubelet.rpc.grpc.metadata import USER_AGENT, encode_metadata, request_headers
from trikubelet.rpc.grpc.status import Failure, failure_of_response
from trikubelet.rpc.grpc.unix import connect_unix
from trikubelet.rpc.grpc.wire import WireStream
from trikubelet.rpc.status_text import connection_error, system_text
from trikubelet.scopes import running
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from types import TracebackType

    from grpclib.client import Channel as _StubChannel
    from grpclib.const import Cardinality
    from grpclib.metadata import Deadline

    from trikubelet.rpc.grpc.hpack import Headers
    from trikubelet.rpc.grpc.metadata import MetadataLike
else:
    # betterproto annotates its stubs with grpclib's channel, though all they use of it is `request`. To the type
    # checker ours is one; at run time it has nothing of it.
    _StubChannel = object

SendT = TypeVar("SendT")
RecvT = TypeVar("RecvT")

log = get_logger("grpc")

RECONNECTS: Final = Backoff(first=0.1, longest=3.0, factor=1.6, jitter=0.2)
"""Between attempts to connect. The kubelet's figures for its runtime (cri-client: `baseBackoffDelay`,
`maxBackoffDelay`), and gRPC's (connection-backoff.md) for the rest."""


class ClientConnection(Connection):
    """A connection that opens streams."""

    client_side = True

    def __init__(self, transport: trio.abc.Stream, max_message_size: int) -> None:
        super().__init__(transport, Http2(client_side=True), max_message_size)
        self._known = trio.Event()
        self._slots = trio.lowlevel.ParkingLot()

    @property
    def full(self) -> bool:
        """Whether a new call has to wait for another one to end."""
        return bool(self._slots) or self._limit_reached

    @property
    def _limit_reached(self) -> bool:
        return len(self.streams) >= self.http2.max_outbound_streams

    async def known(self) -> None:
        """Wait for the peer's settings, with which it proves to speak HTTP/2. Raises `GRPCError` if it does not."""
        await self._known.wait()
        if self.failure is not None:
            raise self.failure.to_error()

    async def slot(self) -> None:
        """Wait, first come first served, until `open` is possible or the connection retires: check which."""
        waited = False
        while not self.retiring and (self._limit_reached or (self._slots and not waited)):
            await self._slots.park()
            waited = True

    def open(self, headers: Headers, *, end: bool) -> WireStream:
        """Start a stream with these headers. Does not flush. Call when not `full` and not `retiring`."""
        try:
            stream_id = self.http2.open_stream(headers, end_stream=end)
        except NoStreamsLeftError as error:
            self.retire()
            raise GRPCError(Status.UNAVAILABLE, f"this connection takes no more calls: {error}") from error
        stream = self.streams[stream_id] = WireStream(self, stream_id, self.max_message_size)
        stream.local_ended = end
        if self._slots and not self._limit_reached:
            self._slots.unpark()
        return stream

    def on_response(self, stream: WireStream, headers: Headers) -> None:
        failure = failure_of_response(dict(headers))
        if failure is not None:
            stream.headers = headers
            stream.abandon(failure)
        else:
            stream.on_headers(headers)

    def on_change(self) -> None:
        if self.settings_known or self.failure is not None:
            self._known.set()
        if self.retiring:
            self._slots.unpark_all()
        elif self._slots and not self._limit_reached:
            self._slots.unpark()


@define
class _Attempt:
    """One try to connect, and the calls that wait for it."""

    done: trio.Event = attrs.Factory(trio.Event)
    failure: Failure | None = None


@frozen
class ChannelStatistics:
    """A snapshot of `Channel.statistics`."""

    connected: bool
    calls_in_flight: int
    connects: int
    """Connections made since the channel was built."""
    failures_in_a_row: int
    """Attempts to connect that failed since the last one that did not."""


class Channel(_StubChannel):
    """Where calls go. Give it to betterproto's stubs: `RuntimeServiceStub(channel)`.

    `connect` opens a new transport; what it raises (`OSError`, `trio.BrokenResourceError`) makes the waiting calls fail
    with UNAVAILABLE. Run it with `async with channel:` or `await nursery.start(channel.run)`. When that ends, calls in
    flight fail with UNAVAILABLE.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        *,
        authority: str = "localhost",
        max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
        max_reply_size: int | None = None,
        connect_timeout: float = 5.0,
        backoff: Backoff = RECONNECTS,
        target: str = "the server",
        user_agent: str = USER_AGENT,
    ) -> None:
        self.max_message_size = max_message_size
        self._max_reply_size = max_message_size if max_reply_size is None else max_reply_size
        self._connect = connect
        self._authority_bytes = authority.encode("ascii")
        self._connect_timeout = connect_timeout
        self._backoff = backoff
        self._target = target
        self._user_agent = user_agent
        self._headers: dict[str, Headers] = {}
        self._connection: ClientConnection | None = None
        self._attempt: _Attempt | None = None
        self._wanted: Broadcast[None] = Broadcast()
        self._retry_at = -math.inf
        self._last_failure: Failure | None = None
        self._failures = 0
        self._connects = 0
        self._running = False
        self._entered: AbstractAsyncContextManager[trio.CancelScope] | None = None
        self._scope: trio.CancelScope | None = None
        """Around the block that the channel was entered with."""

    def request(  # type: ignore[override]
        self,
        name: str,
        cardinality: Cardinality,
        request_type: type[SendT],
        reply_type: type[RecvT],
        *,
        timeout: float | None = None,
        deadline: Deadline | None = None,
        metadata: MetadataLike | None = None,
    ) -> ClientStream[SendT, RecvT]:
        """A call of the method `name` ("/package.Service/Method"), not sent yet; use it with `async with`.

        `timeout` in seconds from now; the sooner of it and `deadline` counts. Values of metadata keys that end in
        "-bin" are bytes. Messages need `SerializeToString` and their types `FromString`. Raises `ValueError` or
        `TypeError` for metadata that cannot be sent.
        """
        at = math.inf if timeout is None and deadline is None else earliest(timeout, deadline)
        extra = encode_metadata(metadata) if metadata else []
        return ClientStream(self, name, cardinality, reply_type, at, extra)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connection, until cancelled. Connects when the first call comes."""
        self._running = True
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                await supervise(self._keep_connected, nursery)
        finally:
            self._running = False
            self._finish_attempt(Failure(Status.UNAVAILABLE, "the channel was closed"))

    async def __aenter__(self) -> Channel:
        entered = running(self.run)
        self._scope = await entered.__aenter__()
        self._entered = entered
        return self

    async def __aexit__(  # type: ignore[override]
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._entered is not None
        return await self._entered.__aexit__(exc_type, exc, traceback)

    def close(self) -> None:
        """Begin to end a channel entered with `async with`."""
        if self._scope is not None:
            self._scope.cancel()

    def statistics(self) -> ChannelStatistics:
        """What a debugger wants to see."""
        connection = self._connection
        return ChannelStatistics(
            connected=connection is not None and not connection.retiring,
            calls_in_flight=0 if connection is None else len(connection.streams),
            connects=self._connects,
            failures_in_a_row=self._failures,
        )

    # For calls.

    @property
    def open_connection(self) -> ClientConnection | None:
        """The connection, if a call can start on it right now."""
        connection = self._connection
        if connection is None or connection.retiring or connection.full:
            return None
        return connection

    async def wait_for_connection(self) -> ClientConnection:
        """A connection that a call can start on. Raises `GRPCError` UNAVAILABLE when there is none to be had."""
        while True:
            connection = self._connection
            if connection is None or connection.retiring:
                await self._wait_for_attempt()
                continue
            await connection.slot()
            if not connection.retiring:
                return connection

    def headers_of(self, path: str) -> Headers:
        """The headers that each call of this method starts with, as a new list."""
        headers = self._headers.get(path)
        if headers is None:
            headers = self._headers[path] = request_headers(path, self._authority_bytes, self._user_agent)
        return headers.copy()

    async def _wait_for_attempt(self) -> None:
        if not self._running:
            raise GRPCError(Status.UNAVAILABLE, "the channel is not running: enter it, or start its run()")
        wait = self._retry_at - trio.current_time()
        if wait > 0 and self._last_failure is not None:
            await trio.lowlevel.checkpoint()
            last = self._last_failure
            raise GRPCError(last.status, f"{last.message} (next attempt in {wait:.1f} s)")
        if self._attempt is None:
            self._attempt = _Attempt()
            self._wanted.send(None)
        attempt = self._attempt
        await attempt.done.wait()
        if attempt.failure is not None:
            raise attempt.failure.to_error()

    # For `run`.

    async def _keep_connected(self, nursery: trio.Nursery) -> None:
        while True:
            while self._attempt is None:
                await self._wanted.wait()
            try:
                await self._make_connection(nursery)
            finally:
                self._finish_attempt(Failure(Status.UNAVAILABLE, "the attempt to connect was broken off"))

    async def _make_connection(self, nursery: trio.Nursery) -> None:
        connection: ClientConnection | None = None
        try:
            with trio.fail_after(self._connect_timeout):
                transport = await self._connect()
                connection = ClientConnection(transport, self._max_reply_size)
                nursery.start_soon(contain, connection.run)
                await connection.known()
        except trio.TooSlowError:
            self._dial_failed(f"no answer within {self._connect_timeout:g} s")
        except GRPCError as error:
            self._connect_failed(error.message or "")
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._dial_failed(f"connect: {system_text(error)}")
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        else:
            self._failures = 0
            self._connects += 1
            self._connection = connection
            self._finish_attempt(None)
            return
        if connection is not None:
            connection.close()

    def _dial_failed(self, reason: str) -> None:
        network = "unix" if self._target.startswith("/") else "tcp"
        self._connect_failed(
            connection_error(f"transport: Error while dialing: dial {network} {self._target}: {reason}")
        )

    def _connect_failed(self, problem: str) -> None:
        self._failures += 1
        # Jitter needs no secrecy.
        delay = self._backoff.delay(self._failures, random.random())
        self._retry_at = trio.current_time() + delay
        self._last_failure = Failure(Status.UNAVAILABLE, problem)
        log.debug("gRPC connect failed", target=self._target, problem=problem, retry_in=round(delay, 2))
        self._finish_attempt(self._last_failure)

    def _finish_attempt(self, failure: Failure | None) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.failure = failure
            attempt.done.set()


def open_unix_channel(
    path: str | Path, *, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE, max_reply_size: int | None = None
) -> Channel:
    """A channel to the Unix socket at `path`; enter it with `async with`. Connects with the first call.

    `path` is a plain path or an endpoint, `unix:///run/containerd/containerd.sock`.
    """
    plain = str(path).removeprefix("unix://")
    return Channel(
        lambda: connect_unix(plain), max_message_size=max_message_size, max_reply_size=max_reply_size, target=plain
    )
