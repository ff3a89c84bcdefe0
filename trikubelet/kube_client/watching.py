"""A watch that is open: bytes become lines, lines become events.

The server ends a watch after the time that it was asked for. One that does not (a proxy that keeps a dead connection)
is left a little later. A watch that we ended ourselves, because its connection is replaced, just ends: its owner goes
on from the last version on a new connection, as after any watch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

from trikubelet.api import KubernetesObject
from trikubelet.kube_client.decoding import decode_event
from trikubelet.kube_client.errors import ApiAnswerError, ApiError, ApiUnreachable
from trikubelet.kube_client.exchange import TransportError
from trikubelet.scopes import off_loop
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.kube_client.decoding import Known
    from trikubelet.kube_client.exchange import Body, Exchange
    from trikubelet.kube_client.health import ConnectionHealth
    from trikubelet.kube_client.types import Resource, WatchEvent

T = TypeVar("T", bound=KubernetesObject)

log = get_logger("cluster")

MAX_LINE: Final = 8 * 2**20
"""Bytes of one event. An object in etcd has at most 1.5 MiB; JSON escapes and managedFields come on top."""
GRACE: Final = 10.0
"""Seconds that the server may take longer than it was asked to."""


class LineReader:
    """Cuts a stream of bytes into lines. No I/O."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0

    @property
    def mid_line(self) -> bool:
        """The bytes so far end within a line that is not blank."""
        return bool(self._buffer.strip())

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_line(self) -> bytes | None:
        """The next whole line that is not blank, None when there is none yet. Raises ValueError when it is too long."""
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._buffer)
                if self._searched > self._limit:
                    raise ValueError(f"an event of more than {self._limit} bytes")
                return None
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if line.strip():
                return line


class OpenWatch(Generic[T]):
    """The events of a watch, one after the other. Iterate it in one task.

    Cancelling an iteration loses no event; over HTTP/1.1 it ends the watch.
    """

    def __init__(
        self,
        resource: Resource[T],
        request: str,
        body: Body,
        exchange: Exchange,
        health: ConnectionHealth,
        timeout: float,
        known: Known,
    ) -> None:
        self._resource = resource
        self._request = request
        self._body = body
        self._exchange = exchange
        self._health = health
        self._known = known
        self._deadline = trio.current_time() + timeout + GRACE
        self._lines = LineReader()
        self._line: bytes | None = None
        """Cut off, and not decoded yet."""
        self._decoding = trio.CapacityLimiter(1)
        self._ended = False

    def __aiter__(self) -> OpenWatch[T]:
        return self

    async def __anext__(self) -> WatchEvent[T]:
        """The next event. Ends with the watch. Raises what ends it otherwise: ApiStatusError for an `ERROR` event,
        ApiUnreachable, ApiAnswerError for what is no watch."""
        await trio.lowlevel.checkpoint()
        while not self._ended:
            try:
                if self._line is None:
                    self._line = self._lines.next_line()
                if self._line is None:
                    await self._receive()
                    continue
                line = self._line
                event = await off_loop(
                    self._decoding, len(line), decode_event, self._resource, line, self._request, self._known
                )
                self._line = None
            except ValueError as error:
                self._ended = True
                raise ApiAnswerError(self._request, str(error)) from error
            except ApiError:
                self._ended = True
                raise
            if isinstance(event, ApiError):
                self._ended = True
                raise event
            if not isinstance(event, str):
                return event
            log.warning("skipped what a watch told", request=self._request, reason=event)
        raise StopAsyncIteration

    async def _receive(self) -> None:
        with trio.CancelScope(deadline=self._deadline) as scope:
            try:
                data = await self._body.receive()
            except TransportError as error:
                if self._exchange.retired:
                    self._ended = True
                    return
                raise self._lost(str(error)) from error
            if data:
                self._lines.feed(data)
                return
            self._ended = True
            if self._lines.mid_line and not self._exchange.retired:
                raise self._lost("the watch ended in the middle of an event")
        if scope.cancelled_caught:
            log.info("the API server does not end a watch", request=self._request)
            self._ended = True

    def _lost(self, cause: str) -> ApiUnreachable:
        self._ended = True
        self._health.lost(cause)
        return ApiUnreachable(self._request, cause, sent=True)
