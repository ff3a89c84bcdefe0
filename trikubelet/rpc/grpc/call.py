"""A call as the client sees it: the stream that grpclib's contract and betterproto's stubs expect.

A call has one deadline. It travels with the request, and each wait of the call is bounded by it here too. The scope
around a wait never spans more than that wait: betterproto's streaming stubs are async generators, and a cancel scope
must not stay open across their `yield`.

Leaving the `async with` block ends the call. If it is unfinished, because of an exception, a cancellation, or a
streamed reply that was not read to its end, the stream is reset with CANCEL, so the server can stop too; that needs no
await.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple

import trio
from grpclib import GRPCError, Status
from grpclib.exceptions import ProtocolError

from trikubelet.rpc.grpc.framing import frame_message
from trikubelet.rpc.grpc.metadata import decode_metadata, timeout_header
from trikubelet.rpc.grpc.status import Failure
from trikubelet.rpc.grpc.wire import END, HEADERS, MESSAGE, WireStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from grpclib.const import Cardinality

    from trikubelet.rpc.grpc.channel import Channel
    from trikubelet.rpc.grpc.hpack import Headers
    from trikubelet.rpc.grpc.metadata import Metadata

SendT = TypeVar("SendT")
RecvT = TypeVar("RecvT")
_ResultT = TypeVar("_ResultT")
_Ts = TypeVarTuple("_Ts")


class ClientStream(Generic[SendT, RecvT]):
    """One call. Made by `Channel.request`; use it with `async with`.

    Every method that waits raises `grpclib.GRPCError` when the call fails: DEADLINE_EXCEEDED, UNAVAILABLE when there is
    no connection or it is lost, RESOURCE_EXHAUSTED when a message is too large, else what the server says. They raise
    `grpclib.exceptions.ProtocolError` when they are called in an order that makes no sense. One task may send while
    another receives.
    """

    __slots__ = (
        "_cardinality",
        "_channel",
        "_deadline",
        "_metadata",
        "_path",
        "_reply_type",
        "_sent",
        "_settled",
        "_started",
        "_taken",
        "_wire",
    )

    def __init__(
        self,
        channel: Channel,
        path: str,
        cardinality: Cardinality,
        reply_type: Any,
        deadline: float,
        metadata: Headers,
    ) -> None:
        self._channel = channel
        self._path = path
        self._cardinality = cardinality
        self._reply_type = reply_type
        self._deadline = deadline
        self._metadata = metadata
        self._wire: WireStream | None = None
        self._started = -math.inf
        self._sent = False
        self._taken = False
        # The caller knows how the call ended.
        self._settled = False

    @property
    def initial_metadata(self) -> Metadata | None:
        """The server's metadata from the start of its reply; None before that has arrived."""
        if self._wire is None or self._wire.headers is None:
            return None
        return decode_metadata(self._wire.headers)

    @property
    def trailing_metadata(self) -> Metadata | None:
        """The server's metadata from the end of its reply; None before that, and when the call ended without."""
        wire = self._wire
        if wire is None or not wire.ended:
            return None
        trailers = wire.trailers or wire.headers
        return None if trailers is None else decode_metadata(trailers)

    async def send_request(self, *, end: bool = False) -> None:
        """Open the stream, without a message yet. `end`: there will be none."""
        if end and not self._cardinality.client_streaming:
            raise ProtocolError("a unary request needs its message before the stream can end")
        wire = await self._open(end=end)
        wire.flush()

    async def send_message(self, message: SendT, *, end: bool = False) -> None:
        """Send one message, after the request's headers if those have not been sent. `end`: it is the last.

        Waits while the server's flow control window is full. When the server has already ended the call without an
        error, the message goes nowhere.
        """
        payload: bytes = message.SerializeToString()  # type: ignore[attr-defined]
        data = frame_message(payload, self._channel.max_message_size)
        end = end or not self._cardinality.client_streaming
        wire = self._wire
        if wire is None:
            wire = await self._open()
        elif wire.local_ended or (self._sent and not self._cardinality.client_streaming):
            raise ProtocolError("the request has ended: no message can follow")
        self._sent = True
        if wire.ended:
            await trio.lowlevel.checkpoint()
            self._raise_if_failed(wire)
        elif wire.queue_data(data, end=end):
            wire.flush()
        else:
            await self._in_time(wire.send_data, data, end)

    async def end(self) -> None:
        """End the request. Nothing more can be sent."""
        wire = self._require_wire()
        if not self._cardinality.client_streaming:
            if not self._sent:
                raise ProtocolError("a unary request needs its message before the stream can end")
            return
        if wire.local_ended:
            raise ProtocolError("the request has already ended")
        if not wire.ended:
            wire.end()

    async def recv_initial_metadata(self) -> None:
        """Wait for the start of the reply; `initial_metadata` is there after that."""
        wire = self._require_wire()
        if wire.headers is None and not wire.ended:
            await self._in_time(wire.wait, HEADERS)
        if wire.ended and not wire.messages:
            self._raise_if_failed(wire)

    async def recv_message(self) -> RecvT | None:
        """The next message of the reply; None after the last one. A unary reply is returned with the call's status
        known: its message and an error never come one after the other."""
        wire = self._require_wire()
        if not self._cardinality.server_streaming:
            return await self._recv_only_message(wire)
        if not wire.messages and not wire.ended:
            await self._in_time(wire.wait, MESSAGE)
        if wire.messages:
            return self._decode(wire.take_message())
        self._raise_if_failed(wire)
        return None

    async def recv_trailing_metadata(self) -> None:
        """Wait for the end of the reply; `trailing_metadata` is there after that. Messages not received yet stay."""
        wire = self._require_wire()
        if not wire.ended:
            await self._in_time(wire.wait, END)
        self._raise_if_failed(wire)

    async def cancel(self) -> None:
        """Reset the stream: neither side wants more of it."""
        wire = self._require_wire()
        wire.abandon(Failure(Status.CANCELLED, "the call was cancelled on this side"))

    def __aiter__(self) -> ClientStream[SendT, RecvT]:
        return self

    async def __anext__(self) -> RecvT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> ClientStream[SendT, RecvT]:
        self._started = trio.current_time()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wire = self._wire
        if wire is None:
            return
        try:
            if exc is None and not wire.reset and wire.local_ended and not self._cardinality.server_streaming:
                # Of a unary reply, the status matters even when the message is not read.
                if not wire.ended:
                    await self._in_time(wire.wait, END)
                if not self._settled:
                    self._raise_if_failed(wire)
        finally:
            wire.release()

    async def _open(self, *, end: bool = False) -> WireStream:
        if self._wire is not None:
            raise ProtocolError("the request has already been sent")
        # A cancelled task must not start anything on the other side.
        await trio.lowlevel.checkpoint_if_cancelled()
        connection = self._channel.open_connection
        if connection is None:
            connection = await self._in_time(self._channel.wait_for_connection)
        headers = self._channel.headers_of(self._path)
        if self._deadline != math.inf:
            remaining = self._deadline - trio.current_time()
            if remaining <= 0:
                raise self._expired()
            headers.append(timeout_header(remaining))
        if self._metadata:
            headers.extend(self._metadata)
        self._wire = connection.open(headers, end=end)
        return self._wire

    def _require_wire(self) -> WireStream:
        if self._wire is None:
            raise ProtocolError("the request has not been sent yet")
        return self._wire

    async def _recv_only_message(self, wire: WireStream) -> RecvT | None:
        if not wire.ended:
            await self._in_time(wire.wait, END)
        self._raise_if_failed(wire)
        if self._taken:
            return None
        if len(wire.messages) != 1:
            raise GRPCError(
                Status.INTERNAL, f"expected one message in the reply of {self._path}, got {len(wire.messages)}"
            )
        self._taken = True
        return self._decode(wire.take_message())

    def _decode(self, payload: bytes) -> RecvT:
        try:
            message: RecvT = self._reply_type.FromString(payload)
        except Exception as error:
            name = self._reply_type.__name__
            raise GRPCError(
                Status.INTERNAL, f"cannot parse the reply of {self._path} as {name}: {type(error).__name__}: {error}"
            ) from error
        return message

    def _raise_if_failed(self, wire: WireStream) -> None:
        failure = wire.end_failure()
        self._settled = True
        if failure is None:
            return
        if failure.status is Status.CANCELLED and wire.reset and trio.current_time() >= self._deadline:
            # The server gave up at the deadline that we sent, a moment before we did.
            raise self._expired()
        raise failure.to_error()

    async def _in_time(self, wait: Callable[[*_Ts], Awaitable[_ResultT]], *args: *_Ts) -> _ResultT:
        if self._deadline == math.inf:
            return await wait(*args)
        with trio.CancelScope(deadline=self._deadline):
            return await wait(*args)
        raise self._expired()

    def _expired(self) -> GRPCError:
        allowed = self._deadline - self._started
        failure = Failure(
            Status.DEADLINE_EXCEEDED, f"context deadline exceeded: {self._path} did not finish within {allowed:.3g} s"
        )
        if self._wire is not None:
            self._wire.abandon(failure)
        return failure.to_error()
