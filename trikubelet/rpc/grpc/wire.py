"""One HTTP/2 stream as both sides of a call see it.

The connection's reader puts in what arrives (`on_…`), synchronously; the task of the call takes it out. A waiting task
says what it waits for, headers, a message or the end, and is woken only by that or by something later: the caller of a
unary method sleeps through headers and message and wakes once, when the status is there.

Received bytes are granted back to the sender as long as the messages not received yet stay below one window. So a
slow consumer holds up its own stream only.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING

import trio
from grpclib import GRPCError, Status

from trikubelet.rpc.grpc.framing import MessageReader
from trikubelet.rpc.grpc.http2 import STREAM_WINDOW, ErrorCodes
from trikubelet.rpc.grpc.status import Failure, failure_of_reset, failure_of_trailers

if TYPE_CHECKING:
    from trikubelet.rpc.grpc.connection import Connection
    from trikubelet.rpc.grpc.hpack import Headers

_GRANT_STEP = STREAM_WINDOW // 4


class Progress(enum.IntEnum):
    """How far the other side has come. Waiting for one ends when a later one is reached too."""

    HEADERS = 1
    MESSAGE = 2
    END = 3


# The reader compares these for every frame, and members of an enum are slow to look up.
HEADERS, MESSAGE, END = int(Progress.HEADERS), int(Progress.MESSAGE), int(Progress.END)


class WireStream:
    """The state of one stream. Made by the connection; the call must `release` it."""

    __slots__ = (
        "_awaited",
        "_connection",
        "_queued",
        "_reader",
        "_receiver",
        "_ungranted",
        "ended",
        "failure",
        "headers",
        "id",
        "local_ended",
        "messages",
        "remote_ended",
        "reset",
        "scope",
        "trailers",
    )

    def __init__(self, connection: Connection, stream_id: int, max_message_size: int) -> None:
        self._connection = connection
        self.id = stream_id
        self.headers: Headers | None = None
        self.trailers: Headers | None = None
        self.messages: deque[bytes] = deque()
        # Why the stream ended before its time, or with a bad reply.
        self.failure: Failure | None = None
        # Nothing more will come for the task: the peer has ended its side, or there is a failure.
        self.ended = False
        # What is true on the wire.
        self.local_ended = False
        self.remote_ended = False
        # Either side has reset the stream, or the connection is gone: nothing can be sent any more.
        self.reset = False
        # On a server: cancelled when the client loses interest.
        self.scope: trio.CancelScope | None = None
        self._reader = MessageReader(max_message_size)
        self._queued = 0
        self._ungranted = 0
        self._receiver: trio.lowlevel.Task | None = None
        self._awaited = 0

    # What the connection's reader calls.

    def on_headers(self, headers: Headers) -> None:
        self.headers = headers
        self._notify(HEADERS)

    def on_data(self, data: bytes, flow_controlled_length: int) -> None:
        self._ungranted += flow_controlled_length
        if self.ended:
            return
        try:
            messages = self._reader.feed(data)
        except GRPCError as error:
            failure = Failure.of(error)
            if self._connection.client_side:
                self.abandon(failure)
            else:
                # The handler passes it on to the client, in trailers.
                self.fail(failure)
            return
        if messages:
            self.messages.extend(messages)
            self._queued += sum(map(len, messages))
            self._notify(MESSAGE)
        if self._ungranted >= _GRANT_STEP:
            self._grant()

    def on_trailers(self, trailers: Headers) -> None:
        self.trailers = trailers

    def on_end(self) -> None:
        if self._reader.mid_message and self.failure is None:
            self.failure = Failure(Status.INTERNAL, "the peer ended the stream in the middle of a message")
        self.remote_ended = True
        self.ended = True
        self._notify(END)
        # What a client still sends has no receiver.
        self._connection.wake_senders()

    def on_reset(self, code: int | None) -> None:
        self.reset = True
        self.fail(failure_of_reset(code))
        if self.scope is not None:
            self.scope.cancel()

    def fail(self, failure: Failure) -> None:
        """End the stream for its task with `failure`, unless it has ended already. Tells the peer nothing."""
        if not self.ended:
            self.failure = failure
            self.ended = True
            self._notify(END)
        self._connection.wake_senders()

    def lose(self, failure: Failure) -> None:
        """The connection is gone."""
        self.reset = True
        self.fail(failure)
        if self.scope is not None:
            self.scope.cancel()

    # What the call's task calls.

    @property
    def max_message_size(self) -> int:
        """Bytes; for both directions."""
        return self._connection.max_message_size

    def flush(self) -> None:
        """Send what is queued on the whole connection."""
        self._connection.flush()

    def end_failure(self) -> Failure | None:
        """On a client, after the end: why the call failed, or None for OK."""
        if self.failure is not None:
            return self.failure
        # A reply without a body has its trailers where the headers would be.
        return failure_of_trailers(dict(self.trailers or self.headers or ()))

    async def wait(self, progress: int) -> None:
        """Sleep until the peer has come that far. The caller checks first whether it has. Cancellable any time."""
        if self._receiver is not None:
            raise trio.BusyResourceError("another task is already receiving from this stream")
        self._receiver = trio.lowlevel.current_task()
        self._awaited = progress
        await trio.lowlevel.wait_task_rescheduled(self._abort_wait)

    def take_message(self) -> bytes:
        """The oldest message that has arrived; there must be one."""
        message = self.messages.popleft()
        self._queued -= len(message)
        if self._ungranted >= _GRANT_STEP:
            self._grant()
            self._connection.flush()
        return message

    def send_headers(self, headers: Headers, *, end: bool) -> None:
        """Queue headers or trailers; the caller flushes. The stream must not be reset."""
        self._connection.http2.send_headers(self.id, headers, end_stream=end)
        self.local_ended = end

    def queue_data(self, data: bytes, *, end: bool) -> bool:
        """Queue `data`, if it fits one frame and the peer's window; False when `send_data` is needed.

        The caller flushes.
        """
        connection = self._connection
        http2 = connection.http2
        size = len(data)
        if (
            self.reset
            or connection.congested
            or size > http2.largest_data_frame
            or size > http2.local_flow_control_window(self.id)
        ):
            return False
        http2.send_data(self.id, data, end_stream=end)
        self.local_ended = end
        return True

    async def send_data(self, data: bytes, end: bool) -> None:
        """Send `data`, as the peer's flow control allows, and flush. Returns early when the stream is reset or ended.

        Waits only when the peer's window or the transport is full, so this is no checkpoint as a rule. When it is
        cancelled, part of the data has been sent: reset the stream.
        """
        connection = self._connection
        http2 = connection.http2
        view: bytes | memoryview = data
        while not self.reset and not (self.ended and connection.client_side):
            room = min(http2.local_flow_control_window(self.id), http2.largest_data_frame)
            if room <= 0 or connection.congested:
                connection.flush()
                await connection.wait_for_room()
                continue
            if len(view) <= room:
                http2.send_data(self.id, view, end_stream=end)
                self.local_ended = end
                connection.flush()
                return
            view = memoryview(view)
            http2.send_data(self.id, view[:room])
            view = view[room:]
            connection.flush()

    def end(self) -> None:
        """End our side without more data, and flush."""
        if not self.reset and not self.local_ended:
            self._connection.http2.end_stream(self.id)
            self.local_ended = True
            self._connection.flush()

    def abandon(self, failure: Failure, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Fail the stream here, and reset it for the peer."""
        self.fail(failure)
        self._send_reset(code)

    def release(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """The task has finished with the stream: reset it with `code` if it is still open, and forget it."""
        if not (self.local_ended and self.remote_ended):
            self._send_reset(code)
        self._connection.forget(self)

    def _send_reset(self, code: ErrorCodes) -> None:
        if not self.reset:
            self.reset = True
            self._connection.http2.reset_stream(self.id, code)
            self._connection.flush()

    def _grant(self) -> None:
        if self.reset or self.ended:
            self._ungranted = 0
        elif self._queued < STREAM_WINDOW:
            self._connection.http2.increment_flow_control_window(self._ungranted, self.id)
            self._ungranted = 0

    def _notify(self, progress: int) -> None:
        if self._receiver is not None and progress >= self._awaited:
            task, self._receiver = self._receiver, None
            trio.lowlevel.reschedule(task)

    def _abort_wait(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._receiver = None
        return trio.lowlevel.Abort.SUCCEEDED
