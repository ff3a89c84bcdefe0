"""A call as its handler sees it: the stream that grpclib's contract and betterproto's service bases expect.

The reply of a unary method is kept until its handler has returned, and then goes out with headers and trailers in one
piece: without its status the client could do nothing with it. Messages of a streamed reply go out as they come.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio
from grpclib import GRPCError, Status
from grpclib.exceptions import ProtocolError

from trikubelet.rpc.grpc.deadline import Deadline
from trikubelet.rpc.grpc.framing import frame_message
from trikubelet.rpc.grpc.http2 import ErrorCodes
from trikubelet.rpc.grpc.metadata import decode_metadata, encode_metadata
from trikubelet.rpc.grpc.status import Failure, trailers_of
from trikubelet.rpc.grpc.wire import MESSAGE, WireStream

if TYPE_CHECKING:
    from grpclib.const import Handler

    from trikubelet.rpc.grpc.hpack import Headers
    from trikubelet.rpc.grpc.metadata import Metadata, MetadataLike

RecvT = TypeVar("RecvT")
SendT = TypeVar("SendT")

_RESPONSE_HEADERS: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]


class ServerStream(Generic[RecvT, SendT]):
    """One call on the server. Handlers get it from `Server`; betterproto's service bases hide it.

    The task of the handler is cancelled when the client resets the stream, when the connection is lost, and when the
    call's deadline passes.
    """

    __slots__ = ("_headers_sent", "_reply", "_trailers_sent", "_wire", "deadline", "handler", "path")

    def __init__(self, wire: WireStream, path: str, handler: Handler, deadline: float) -> None:
        self._wire = wire
        self.path = path
        self.handler = handler
        self.deadline = None if deadline == math.inf else Deadline(_timestamp=deadline)
        """The client's deadline, on Trio's clock."""
        self._reply: bytes | None = None
        self._headers_sent = False
        self._trailers_sent = False

    @property
    def metadata(self) -> Metadata:
        """What the client sent with its request. Raises `ValueError` for a "-bin" value that is not base64."""
        return decode_metadata(self._wire.headers or ())

    @property
    def user_agent(self) -> str | None:
        """The client's name for itself."""
        value = dict(self._wire.headers or ()).get(b"user-agent")
        return None if value is None else value.decode("ascii", "replace")

    async def recv_message(self) -> RecvT | None:
        """The next message of the request; None after the last one. Raises `GRPCError` for one that cannot be used."""
        wire = self._wire
        if not wire.messages and not wire.ended:
            await wire.wait(MESSAGE)
        if wire.messages:
            return self._decode(wire.take_message())
        if wire.failure is not None:
            raise wire.failure.to_error()
        if not self.handler.cardinality.client_streaming:
            raise GRPCError(Status.INTERNAL, f"expected one message in the request of {self.path}, got none")
        return None

    def __aiter__(self) -> ServerStream[RecvT, SendT]:
        return self

    async def __anext__(self) -> RecvT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def send_initial_metadata(self, *, metadata: MetadataLike | None = None) -> None:
        """Send the reply's headers now. Without this they go out with the first message."""
        if self._headers_sent:
            raise ProtocolError("initial metadata has already been sent")
        await trio.lowlevel.checkpoint()
        self._wire.send_headers(_RESPONSE_HEADERS + encode_metadata(metadata or {}), end=False)
        self._headers_sent = True
        self._wire.flush()

    async def send_message(self, message: SendT) -> None:
        """Send one message of the reply. Raises `GRPCError` RESOURCE_EXHAUSTED when it is too large."""
        payload: bytes = message.SerializeToString()  # type: ignore[attr-defined]
        data = frame_message(payload, self._wire.max_message_size)
        if self._trailers_sent:
            raise ProtocolError("the reply has ended: no message can follow")
        if not self.handler.cardinality.server_streaming:
            if self._reply is not None:
                raise ProtocolError("the message of this unary reply has already been sent")
            self._reply = data
            return
        if self._wire.reset:
            # The client is gone, so the scope of the handler is cancelled: this raises.
            await trio.lowlevel.checkpoint()
            return
        self._send_headers()
        if self._wire.queue_data(data, end=False):
            self._wire.flush()
        else:
            await self._wire.send_data(data, False)
        # A cancellation is better met in the handler than here, between two of its messages.
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def send_trailing_metadata(
        self,
        *,
        status: Status = Status.OK,
        status_message: str | None = None,
        status_details: Any = None,
        metadata: MetadataLike | None = None,
    ) -> None:
        """End the reply with this status. Without this the handler's outcome decides, and there is no metadata."""
        if self._trailers_sent:
            raise ProtocolError("trailing metadata has already been sent")
        failure = None
        if status is not Status.OK:
            details = status_details if isinstance(status_details, bytes) else None
            failure = Failure(status, status_message or "", details)
        await self.finish(failure, encode_metadata(metadata or {}))

    async def cancel(self) -> None:
        """Reset the stream: the client gets CANCELLED."""
        self._trailers_sent = True
        self._wire.abandon(Failure(Status.CANCELLED, "the call was cancelled by its handler"))
        await trio.lowlevel.checkpoint()

    async def finish(self, failure: Failure | None = None, metadata: Headers | None = None) -> None:
        """End the reply, unless that has been done. For `Server`; waits when the client's window is full."""
        if self._trailers_sent or self._wire.reset:
            return
        if failure is None and not self.handler.cardinality.server_streaming:
            if self._reply is None:
                raise ProtocolError(f"the handler of {self.path} returned without sending its message")
            data, self._reply = self._reply, b""
            self._send_headers()
            if not self._wire.queue_data(data, end=False):
                await self._wire.send_data(data, False)
        self.abort(failure, metadata)

    def abort(self, failure: Failure | None, metadata: Headers | None = None) -> None:
        """Send the trailers now, whatever has been sent before."""
        if self._trailers_sent or self._wire.reset:
            return
        self._trailers_sent = True
        headers = trailers_of(failure)
        if not self._headers_sent:
            headers = _RESPONSE_HEADERS + headers
        if metadata:
            headers = headers + metadata
        self._wire.send_headers(headers, end=True)
        self._wire.flush()

    def release(self) -> None:
        """The handler has ended. A client that is still sending gets a reset."""
        self._wire.release(ErrorCodes.NO_ERROR if self._trailers_sent else ErrorCodes.INTERNAL_ERROR)

    def _send_headers(self) -> None:
        if not self._headers_sent:
            self._headers_sent = True
            self._wire.send_headers(_RESPONSE_HEADERS, end=False)

    def _decode(self, payload: bytes) -> RecvT:
        try:
            message: RecvT = self.handler.request_type.FromString(payload)
        except Exception as error:
            name = self.handler.request_type.__name__
            text = f"cannot parse the request of {self.path} as {name}: {type(error).__name__}: {error}"
            raise GRPCError(Status.INTERNAL, text) from error
        return message
