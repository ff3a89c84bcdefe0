"""Spans of gRPC calls, around a channel: names and attributes are those that OpenTelemetry gives calls of grpc-go."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import trio
from grpclib import GRPCError, Status

from trikubelet.rpc.status_text import code_name
from trikubelet.tracing.spans import Kind

if TYPE_CHECKING:
    from types import TracebackType

    from grpclib.const import Cardinality

    from trikubelet.rpc.cri.caller import CallChannel
    from trikubelet.tracing.spans import Span, Tracer

SCOPE: Final = "trikubelet/grpc"

_SOONER: Final = 0.01
"""Seconds: a client keeps a call's deadline too, and may be a moment before the call."""


class TracedChannel:
    """A channel whose calls are spans, in which the other side is told of them. Implements `CallChannel`."""

    def __init__(self, channel: CallChannel, tracer: Tracer, server: str) -> None:
        """`server`: the other side's address, as spans name it."""
        self._channel = channel
        self._tracer = tracer
        self._server = server

    def request(
        self,
        name: str,
        cardinality: Cardinality,
        request_type: Any,
        reply_type: Any,
        *,
        timeout: float | None = None,
        deadline: Any = None,
        metadata: Any = None,
    ) -> TracedCall:
        method = name.removeprefix("/")
        attributes = {"rpc.method": method, "rpc.system.name": "grpc", "server.address": self._server}
        span = self._tracer.start(method, scope=SCOPE, kind=Kind.CLIENT, attributes=attributes)
        more = metadata.items() if hasattr(metadata, "items") else metadata or ()
        call = self._channel.request(
            name,
            cardinality,
            request_type,
            _Measured(reply_type, span) if span.recording else reply_type,
            timeout=timeout,
            deadline=deadline,
            metadata=[*more, *span.context.headers()],
        )
        until = math.inf if timeout is None else trio.current_time() + timeout
        return TracedCall(call, span, until)


class TracedCall:
    """A call whose span ends with it."""

    def __init__(self, call: Any, span: Span, until: float) -> None:
        """`until`: the call's deadline, in Trio time."""
        self._call = call
        self._stream: Any = call
        self._span = span
        self._until = until
        self._sent = 0

    async def __aenter__(self) -> TracedCall:
        self._stream = await self._call.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            handled: bool | None = await self._call.__aexit__(kind, error, trace)
        except BaseException as raised:
            self._end(raised)
            raise
        self._end(error)
        return handled

    async def send_message(self, message: Any, *, end: bool = False) -> None:
        if self._span.recording:
            message = _Serialized(message.SerializeToString())
            self._sent += 1
            _tell(self._span, "SENT", self._sent, len(message.payload))
        await self._stream.send_message(message, end=end)

    async def recv_message(self) -> Any:
        return await self._stream.recv_message()

    def __aiter__(self) -> TracedCall:
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _end(self, error: BaseException | None) -> None:
        status = _status(error, late=trio.current_time() >= self._until - _SOONER)
        self._span.set("rpc.response.status_code", code_name(status))
        if error is not None and status is not Status.OK:
            message = error.message if isinstance(error, GRPCError) else None
            called_off = isinstance(error, trio.Cancelled | GeneratorExit)
            self._span.fail_with(message or (status.name.lower() if called_off else str(error)))
        self._span.end()


class _Serialized:
    """A message whose bytes are there already: they were counted."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name for it
        return self.payload


class _Measured:
    """A type of messages whose bytes are counted as they are read."""

    def __init__(self, message_type: Any, span: Span) -> None:
        self.__name__ = message_type.__name__
        self._type = message_type
        self._span = span
        self._received = 0

    def FromString(self, data: bytes) -> Any:  # noqa: N802 - protobuf's name for it
        self._received += 1
        _tell(self._span, "RECEIVED", self._received, len(data))
        return self._type.FromString(data)


def _tell(span: Span, way: str, number: int, size: int) -> None:
    """Messages are never compressed here."""
    sizes = {"rpc.message.compressed_size": size, "rpc.message.uncompressed_size": size}
    span.add_event("message", {"rpc.message.type": way, "rpc.message.id": number, **sizes})


def _status(error: BaseException | None, *, late: bool) -> Status:
    """How a call has ended that left its block with this."""
    if error is None:
        return Status.OK
    if isinstance(error, GRPCError):
        return error.status
    if isinstance(error, trio.Cancelled):
        return Status.DEADLINE_EXCEEDED if late else Status.CANCELLED
    return Status.CANCELLED if isinstance(error, GeneratorExit) else Status.UNKNOWN
