"""Spans on their way to a collector: in batches, without end never, and whatever the collector does."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from grpclib import Status
from grpclib.const import Cardinality, Handler

from tests.captured_logs import capture_logs
from tests.tracing.collector import Collector
from trikubelet.clock import TrioClock
from trikubelet.config.tracing_endpoint import TcpEndpoint, UnixEndpoint
from trikubelet.rpc.grpc import Channel, Server, UnixStream
from trikubelet.tracing import exporter as exporting
from trikubelet.tracing.exporter import (
    BATCH,
    EXPORT_PERIOD,
    EXPORT_TIMEOUT,
    FLUSH_TIMEOUT,
    MOST_QUEUED,
    RETRY_FOR,
    Exporter,
    open_channel,
)
from trikubelet.tracing.spans import Tracer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@attrs.frozen
class Stage:
    collector: Collector
    exporter: Exporter
    tracer: Tracer

    def end_spans(self, number: int) -> None:
        for index in range(number):
            self.tracer.start(f"span {index}", scope="test").end()

    @property
    def counted(self) -> tuple[int, int, int]:
        """Exported, dropped, and still to be sent."""
        return self.exporter.counts.exported, self.exporter.counts.dropped, self.exporter.waiting


@asynccontextmanager
async def staged(collector: Collector | None = None) -> AsyncIterator[Stage]:
    collector = collector or Collector()
    async with collector.served() as channel:
        exporter = Exporter(channel, {"service.name": "test"})
        tracer = Tracer(1_000_000, clock=TrioClock(), rng=Random(1), finish=exporter.offer)
        yield Stage(collector, exporter, tracer)


async def test_spans_go_out_every_few_seconds(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage, stage.exporter.running():
        stage.end_spans(3)
        await trio.sleep(EXPORT_PERIOD - 0.1)
        assert stage.counted == (0, 0, 3)
        await trio.sleep(0.2)
        assert [one.name for one in stage.collector.spans] == ["span 0", "span 1", "span 2"]
        assert stage.collector.spans[0].resource == {"service.name": "test"}
        assert stage.counted == (3, 0, 0)
        await trio.sleep(10 * EXPORT_PERIOD)
        assert stage.collector.requests == 1, "nothing is sent when there is nothing"


async def test_a_full_batch_goes_out_at_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "BATCH", batch := 20)
    async with staged() as stage, stage.exporter.running():
        await trio.sleep(0.5)
        stage.end_spans(batch + 1)
        await trio.sleep(0.1)
        assert stage.counted == (batch + 1, 0, 0)
        assert stage.collector.requests == 2


async def test_a_batch_is_no_larger_than_a_collector_takes(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "BATCH_BYTES", 100 * 2**10)
    async with staged() as stage, stage.exporter.running():
        for _ in range(60):
            stage.tracer.start("long", scope="test", attributes={"a": "x" * 4096}).end()
        await trio.sleep(EXPORT_PERIOD + 1)
        assert len(stage.collector.spans) == 60
        assert stage.collector.requests == 3


async def test_the_queue_is_bounded_and_what_does_not_fit_is_counted() -> None:
    async with staged() as stage:
        stage.end_spans(MOST_QUEUED + 7)
        assert stage.counted == (0, 7, MOST_QUEUED)


async def test_encoding_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = run = 0

    def encode(_: object) -> bytes:
        nonlocal run, longest
        run += 1
        longest = max(longest, run)
        return b""

    async def others() -> None:
        nonlocal run
        while True:
            await trio.lowlevel.checkpoint()
            run = 0

    monkeypatch.setattr(exporting, "encode_span", encode)
    async with staged() as stage, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        stage.end_spans(BATCH)
        await stage.exporter._next_batch()
        nursery.cancel_scope.cancel()
    assert 0 < longest <= 4 * exporting._AT_ONCE


# --- Collectors that do not do as they should -------------------------------------------------------------------------


async def test_a_collector_that_comes_back_gets_what_waited(autojump_clock: trio.testing.MockClock) -> None:
    with capture_logs() as lines:
        async with staged(Collector(away=True)) as stage, stage.exporter.running():
            stage.end_spans(3)
            await trio.sleep(EXPORT_PERIOD + 20)
            assert stage.counted == (0, 0, 3)
            stage.collector.away = False
            await trio.sleep(RETRY_FOR)
            assert stage.counted == (3, 0, 0)
            stage.end_spans(1)
            await trio.sleep(EXPORT_PERIOD)
    told = [(line["log_level"], line["event"]) for line in lines if line.get("logger") == "tracing"]
    assert told == [
        ("warning", "spans cannot be sent to the collector"),
        ("info", "the collector takes spans again"),
    ]


@pytest.mark.parametrize("how", ["away", "hangs", "refuses"])
async def test_a_collector_that_stays_bad_costs_spans_and_nothing_else(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    most, batch = 200, 50
    monkeypatch.setattr(exporting, "MOST_QUEUED", most)
    monkeypatch.setattr(exporting, "BATCH", batch)
    bad = {"away": {"away": True}, "hangs": {"hangs": True}, "refuses": {"refuses": Status.UNAVAILABLE}}[how]
    with capture_logs() as lines:
        async with staged(Collector(**bad)) as stage, stage.exporter.running():  # type: ignore[arg-type]
            for _ in range(600):
                stage.end_spans(4)
                await trio.sleep(1)
            exported, dropped, waiting = stage.counted
            assert exported == 0
            assert dropped + waiting == 2400
            assert most <= waiting <= most + batch
            stage.collector.away = stage.collector.hangs = False
            stage.collector.refuses = None
            await trio.sleep(2 * RETRY_FOR)
            assert stage.exporter.waiting == 0
            assert stage.exporter.counts.exported == len(stage.collector.spans) >= most
    assert len([line for line in lines if line["log_level"] == "warning"]) == 1


@pytest.mark.parametrize("status", [Status.UNIMPLEMENTED, Status.PERMISSION_DENIED, Status.INVALID_ARGUMENT])
async def test_what_will_never_be_taken_is_not_sent_again(
    autojump_clock: trio.testing.MockClock, status: Status
) -> None:
    async with staged(Collector(refuses=status)) as stage, stage.exporter.running():
        stage.end_spans(3)
        await trio.sleep(EXPORT_PERIOD + 1)
        assert stage.counted == (0, 3, 0)
        assert stage.collector.requests == 1


async def test_what_the_collector_rejects_is_counted(autojump_clock: trio.testing.MockClock) -> None:
    with capture_logs() as lines:
        async with staged(Collector(rejects=2)) as stage, stage.exporter.running():
            stage.end_spans(3)
            await trio.sleep(EXPORT_PERIOD + 1)
            assert stage.counted == (1, 2, 0)
    (line,) = [line for line in lines if line["log_level"] == "warning"]
    assert (line["rejected"], line["why"]) == (2, "some are too long")


@pytest.mark.parametrize("rejects", [-5, 2**62])
async def test_a_collector_that_cannot_count(autojump_clock: trio.testing.MockClock, rejects: int) -> None:
    async with staged(Collector(rejects=rejects)) as stage, stage.exporter.running():
        stage.end_spans(3)
        await trio.sleep(EXPORT_PERIOD + 1)
        assert sum(stage.counted[:2]) == 3


async def test_a_collector_that_talks_nonsense_ends_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nonsense(_: object) -> int:
        await trio.lowlevel.checkpoint()
        raise ValueError("what?")

    async with staged() as stage:
        monkeypatch.setattr(stage.exporter, "_call", nonsense)
        async with stage.exporter.running():
            stage.end_spans(3)
            await trio.sleep(EXPORT_PERIOD + 1)
            assert stage.counted == (0, 3, 0)
            monkeypatch.undo()
            stage.end_spans(2)
            await trio.sleep(EXPORT_PERIOD + 1)
            assert stage.counted == (2, 3, 0)


async def test_answers_without_form(autojump_clock: trio.testing.MockClock) -> None:
    """Bytes of a reply that are none."""
    for payload in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\x12\xff", b"\x08\x01", b"\x0a\x01\x08"):
        answers = Answers(payload)
        async with trio.open_nursery() as nursery:

            async def connect(nursery: trio.Nursery = nursery, answers: Answers = answers) -> UnixStream:
                ours, theirs = socket.socketpair()
                nursery.start_soon(Server([answers]).serve_stream, UnixStream(theirs))
                return UnixStream(ours)

            exporter = Exporter(Channel(connect), {})
            tracer = Tracer(1_000_000, clock=TrioClock(), rng=Random(1), finish=exporter.offer)
            async with exporter.running():
                tracer.start("one", scope="test").end()
                await trio.sleep(EXPORT_PERIOD + 1)
                assert exporter.counts.exported + exporter.counts.dropped == 1
            nursery.cancel_scope.cancel()


@attrs.frozen
class Raw:
    """A message of any bytes."""

    payload: bytes

    def SerializeToString(self) -> bytes:
        return self.payload

    @classmethod
    def FromString(cls, data: bytes) -> Raw:
        return cls(data)


@attrs.frozen
class Answers:
    """In the place of a collector."""

    payload: bytes

    def __mapping__(self) -> dict[str, Handler]:
        return {exporting.EXPORT: Handler(self._export, Cardinality.UNARY_UNARY, Raw, Raw)}

    async def _export(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(Raw(self.payload))


# --- The end ----------------------------------------------------------------------------------------------------------


async def test_what_is_left_at_the_end_goes_out(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        async with stage.exporter.running():
            stage.end_spans(30)
        assert stage.counted == (30, 0, 0)


async def test_a_batch_in_flight_at_the_end_is_sent_again(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(Collector(hangs=True)) as stage:
        async with stage.exporter.running():
            stage.end_spans(3)
            await trio.sleep(EXPORT_PERIOD + 1)
            stage.collector.hangs = False
            stage.end_spans(2)
        assert stage.counted == (5, 0, 0)


@pytest.mark.parametrize("how", [{"hangs": True}, {"refuses": Status.UNAVAILABLE}, {"away": True}])
async def test_the_end_waits_for_no_collector(autojump_clock: trio.testing.MockClock, how: dict[str, bool]) -> None:
    async with staged(Collector(**how)) as stage:  # type: ignore[arg-type]
        async with stage.exporter.running():
            stage.end_spans(3)
            ended_at = trio.current_time()
        assert trio.current_time() - ended_at <= FLUSH_TIMEOUT < EXPORT_TIMEOUT
        assert stage.counted == (0, 3, 0)


async def test_the_end_does_not_wait_when_it_is_insisted_on(autojump_clock: trio.testing.MockClock) -> None:
    async with staged(Collector(hangs=True)) as stage:
        began = trio.current_time()
        with trio.move_on_after(1):
            async with stage.exporter.running():
                stage.end_spans(3)
                await trio.sleep_forever()
        assert trio.current_time() - began == 1
        assert stage.counted == (0, 3, 0)


async def test_an_error_in_the_agent_comes_out_as_it_is(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        stage.end_spans(3)
        with pytest.raises(KeyError):
            async with stage.exporter.running():
                raise KeyError("x")
        assert stage.counted == (3, 0, 0)


# --- Where it goes ----------------------------------------------------------------------------------------------------


async def test_over_tcp_and_unix_sockets(tmp_path: Path) -> None:
    collector = Collector()
    async with trio.open_nursery() as nursery:
        server = Server([collector])
        (tcp,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = tcp.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.serve_stream, [tcp])
        await nursery.start(server.serve_unix, tmp_path / "socket")
        abstract = trio.socket.socket(trio.socket.AF_UNIX)
        await abstract.bind(f"\0{tmp_path}")
        abstract.listen()
        nursery.start_soon(trio.serve_listeners, server.serve_stream, [trio.SocketListener(abstract)])
        for endpoint in (
            TcpEndpoint("127.0.0.1", port),
            TcpEndpoint("localhost", port),
            UnixEndpoint(str(tmp_path / "socket")),
            UnixEndpoint(f"@{tmp_path}"),
        ):
            exporter = Exporter(open_channel(endpoint), {})
            tracer = Tracer(1_000_000, clock=TrioClock(), rng=Random(1), finish=exporter.offer)
            async with exporter.running():
                tracer.start("one", scope="test").end()
            assert exporter.counts.exported == 1, endpoint
        nursery.cancel_scope.cancel()
    assert len(collector.spans) == 4
