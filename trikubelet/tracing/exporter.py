"""Sends spans that have ended to a collector, in batches. Nobody waits for it, and nothing fails because of it.

Spans wait in a queue of bounded length. A batch goes out when it is full, or after five seconds; encoding pauses
again and again, so that pods are served meanwhile. A collector that is away, or hangs, is tried again for a minute.
Then the batch is dropped, as is what finds the queue full: both are counted. Numbers are those of OpenTelemetry's own
exporters.
"""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from grpclib import GRPCError, Status
from grpclib.const import Cardinality

from trikubelet.backoff import Backoff
from trikubelet.config.tracing_endpoint import TcpEndpoint
from trikubelet.formats.values import define, frozen
from trikubelet.http.client.connect import connect_tcp, host_and_port
from trikubelet.rpc.grpc import SHORT_REPLY, Channel, open_unix_channel
from trikubelet.rpc.otlp.v1 import ExportTraceServiceResponse
from trikubelet.scopes import running
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger
from trikubelet.tracing.otlp import encode_span, resource_spans

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio_typing import TaskStatus

    from trikubelet.config.tracing_endpoint import Endpoint
    from trikubelet.tracing.spans import Attributes, Span

log = get_logger("tracing")

EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MOST_QUEUED: Final = 2048
BATCH: Final = 512
"""Spans of one request."""
BATCH_BYTES: Final = 2 * 2**20
"""And bytes: a collector takes four MiB, if nobody has told it otherwise."""
EXPORT_PERIOD: Final = 5.0
EXPORT_TIMEOUT: Final = 10.0
RETRY: Final = Backoff(first=5.0, longest=30.0, factor=1.5, jitter=0.5)
RETRY_FOR: Final = 60.0
"""Seconds."""
FLUSH_TIMEOUT: Final = 2.0
"""Seconds that the agent's end may take longer for the last spans."""
_AT_ONCE: Final = 16
"""Spans encoded without a pause: less than a millisecond."""
_WORTH_A_RETRY: Final = frozenset(
    {
        Status.CANCELLED,
        Status.DEADLINE_EXCEEDED,
        Status.ABORTED,
        Status.OUT_OF_RANGE,
        Status.UNAVAILABLE,
        Status.DATA_LOSS,
    }
)


@define
class ExportCounts:
    """Spans, by what became of them."""

    exported: int = 0
    dropped: int = 0
    """For want of room, or of a collector that takes them."""


@frozen
class _Encoded:
    """A request whose bytes are there."""

    payload: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name for it
        return self.payload


@frozen
class _Batch:
    spans: int
    request: _Encoded


class Exporter:
    """The queue, and the way to the collector. `offer` may be called before it is `running`."""

    def __init__(self, channel: Channel, resource: Attributes) -> None:
        """`channel`: to the collector, not entered yet. `resource`: what is true of all spans."""
        self._channel = channel
        self._resource = resource
        self._queue: deque[Span] = deque()
        self._batch: _Batch | None = None
        """Being sent."""
        self._full = trio.Event()
        self._failing = False
        self.counts = ExportCounts()

    @property
    def waiting(self) -> int:
        """Spans that were neither sent nor dropped yet."""
        return len(self._queue) + (0 if self._batch is None else self._batch.spans)

    def offer(self, span: Span) -> None:
        """Take a span that has ended, or drop it. Never waits."""
        if len(self._queue) >= MOST_QUEUED:
            self.counts.dropped += 1
            return
        self._queue.append(span)
        if len(self._queue) >= BATCH:
            self._full.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send batches while the block runs, and at its end what is left, in FLUSH_TIMEOUT seconds at most.

        Cancelled, it drops what is left.
        """
        try:
            async with self._channel:
                try:
                    async with running(partial(supervise, self._run)):
                        yield
                finally:
                    with trio.move_on_after(FLUSH_TIMEOUT):
                        await self._flush()
        finally:
            self.counts.dropped += self.waiting
            self._queue.clear()
            self._batch = None

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        if self._batch is not None:  # a fault came between
            self.counts.dropped += self._batch.spans
            self._batch = None
        while True:
            with trio.move_on_after(EXPORT_PERIOD):
                await self._full.wait()
            self._full = trio.Event()
            while self._queue:
                self._batch = await self._next_batch()
                if not await self._send(self._batch):
                    self.counts.dropped += self._batch.spans
                self._batch = None

    async def _flush(self) -> None:
        """What is left goes out at once, or not at all."""
        problem = None if self._batch is None else await self._export(self._batch)
        while problem is None and self._queue:
            self._batch = await self._next_batch()
            problem = await self._export(self._batch)
        if problem is None:
            self._batch = None

    async def _next_batch(self) -> _Batch:
        """From the queue, which is not empty. When cancelled, what was taken is dropped."""
        by_scope: defaultdict[str, list[bytes]] = defaultdict(list)
        spans = size = 0
        try:
            while self._queue and spans < BATCH and size < BATCH_BYTES:
                span = self._queue.popleft()
                spans += 1
                encoded = encode_span(span)
                by_scope[span.scope].append(encoded)
                size += len(encoded)
                if spans % _AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.counts.dropped += spans
            raise
        return _Batch(spans, _Encoded(resource_spans(self._resource, by_scope)))

    async def _send(self, batch: _Batch) -> bool:
        """Whether it was taken, be it after a while."""
        failures, until = 0, trio.current_time() + RETRY_FOR
        while True:
            problem = await self._export(batch)
            if problem is None:
                return True
            failures += 1
            pause = RETRY.delay(failures)
            if problem.status not in _WORTH_A_RETRY or trio.current_time() + pause > until:
                return False
            await trio.sleep(pause)

    async def _export(self, batch: _Batch) -> GRPCError | None:
        """One attempt; why it failed. The first failure in a row is told, and when that is over."""
        try:
            rejected = await self._call(batch.request)
        except Exception as error:  # noqa: BLE001 - whatever a collector does concerns its spans only
            problem = error if isinstance(error, GRPCError) else GRPCError(Status.INTERNAL, repr(error))
            if not self._failing:
                log.warning("spans cannot be sent to the collector", why=problem.message or problem.status.name)
            self._failing = True
            return problem
        if self._failing:
            log.info("the collector takes spans again", dropped=self.counts.dropped)
        self._failing = False
        rejected = min(max(rejected, 0), batch.spans)
        self.counts.exported += batch.spans - rejected
        self.counts.dropped += rejected
        return None

    async def _call(self, request: _Encoded) -> int:
        """How many spans of it the collector does not want. Raises GRPCError."""
        async with self._channel.request(
            EXPORT, Cardinality.UNARY_UNARY, _Encoded, ExportTraceServiceResponse, timeout=EXPORT_TIMEOUT
        ) as stream:
            await stream.send_message(request, end=True)
            reply = await stream.recv_message()
        assert reply is not None
        complaint = reply.partial_success
        if complaint.rejected_spans or complaint.error_message:
            log.warning("the collector complains", rejected=complaint.rejected_spans, why=complaint.error_message)
        return complaint.rejected_spans


def open_channel(endpoint: Endpoint) -> Channel:
    """To enter, or to give to an exporter. Connects with the first call."""
    if isinstance(endpoint, TcpEndpoint):
        host, port = endpoint.host, endpoint.port
        place = host_and_port(host, port)
        return Channel(lambda: connect_tcp(host, port), authority=place, target=place, max_reply_size=SHORT_REPLY)
    address = endpoint.address
    if address.startswith("@"):
        connect = partial(trio.open_unix_socket, f"\0{address[1:]}")
        return Channel(connect, target=address, max_reply_size=SHORT_REPLY)
    return open_unix_channel(address, max_reply_size=SHORT_REPLY)
