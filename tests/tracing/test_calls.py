"""Spans of calls to a runtime, and what the runtime is told of them."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from grpclib import Status

from trikubelet.clock import TrioClock
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import CRIError, ImageClient, RuntimeClient
from trikubelet.rpc.grpc import Channel
from trikubelet.sim import SimulatedRuntime
from trikubelet.tracing.calls import TracedChannel
from trikubelet.tracing.context import parse_traceparent
from trikubelet.tracing.spans import Kind, Span, Tracer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RUNTIME = "runtime.v1.RuntimeService"
ENDPOINT = "/run/containerd/containerd.sock"


@attrs.define
class Listening:
    """A channel that shows what metadata calls are made with."""

    channel: Channel
    sent: list[dict[str, str]] = attrs.field(factory=list)

    def request(self, *args: Any, metadata: Any = None, **options: Any) -> Any:
        self.sent.append(dict(metadata))
        return self.channel.request(*args, metadata=metadata, **options)


@attrs.frozen
class Stage:
    sim: SimulatedRuntime
    runtime: RuntimeClient
    images: ImageClient
    spans: list[Span]
    channel: Listening
    tracer: Tracer

    @property
    def statuses(self) -> list[tuple[str, Any, str | None]]:
        return [(one.name, one.attributes.get("rpc.response.status_code"), one.error) for one in self.spans]


@asynccontextmanager
async def staged(per_million: int = 1_000_000, *, timeout: float = 10) -> AsyncIterator[Stage]:
    sim, spans = SimulatedRuntime(seed=1), list[Span]()
    tracer = Tracer(per_million, clock=TrioClock(), rng=Random(1), finish=spans.append)
    async with sim.connect() as channel:
        listening = Listening(channel)
        traced = TracedChannel(listening, tracer, ENDPOINT)
        clients = RuntimeClient(traced, timeout=timeout), ImageClient(traced, timeout=timeout)
        yield Stage(sim, *clients, spans, listening, tracer)


async def test_a_call_is_told_of_as_by_the_kubelet(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        await stage.runtime.version()
    (span,) = stage.spans
    assert (span.name, span.kind, span.parent) == (f"{RUNTIME}/Version", Kind.CLIENT, None)
    assert span.attributes == {
        "rpc.method": f"{RUNTIME}/Version",
        "rpc.system.name": "grpc",
        "server.address": ENDPOINT,
        "rpc.response.status_code": "OK",
    }
    sent, received = span.events
    size = len(bytes(v1.VersionRequest(version="v1")))
    assert (sent.name, sent.attributes) == (
        "message",
        {
            "rpc.message.type": "SENT",
            "rpc.message.id": 1,
            "rpc.message.compressed_size": size,
            "rpc.message.uncompressed_size": size,
        },
    )
    assert received.attributes["rpc.message.type"] == "RECEIVED"
    assert int(received.attributes["rpc.message.compressed_size"]) > 10


@pytest.mark.parametrize("per_million", [0, 1_000_000])
async def test_the_runtime_is_told_which_trace_a_call_is_of(
    autojump_clock: trio.testing.MockClock, per_million: int
) -> None:
    async with staged(per_million) as stage:
        with stage.tracer.span("around", scope="test") as around:
            await stage.runtime.version()
            await stage.runtime.list_containers()
    told = [parse_traceparent(sent["traceparent"]) for sent in stage.channel.sent]
    assert {one.trace_id for one in told if one is not None} == {around.context.trace_id}
    assert {one.sampled for one in told if one is not None} == {per_million > 0}
    assert len({one.span_id for one in told if one is not None} | {around.context.span_id}) == 3
    assert [span.name for span in stage.spans] == (
        [f"{RUNTIME}/Version", f"{RUNTIME}/ListContainers", "around"] if per_million else []
    )


async def test_a_refused_call_fails_its_span(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        with pytest.raises(CRIError):
            await stage.runtime.start_container("nothing")
    ((name, status, error),) = stage.statuses
    assert (name, status) == (f"{RUNTIME}/StartContainer", "NotFound")
    assert error


async def test_a_call_that_takes_too_long(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        stage.sim.delays["Version"] = 1000.0
        with pytest.raises(CRIError):
            await stage.runtime.version()
    ((_, status, error),) = stage.statuses
    assert status == "DeadlineExceeded"
    assert error


async def test_a_call_that_is_called_off(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        stage.sim.delays["Version"] = 1000.0
        with trio.move_on_after(3):
            await stage.runtime.version()
    assert stage.statuses == [(f"{RUNTIME}/Version", "Canceled", "cancelled")]


async def test_a_runtime_that_is_away(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage:
        stage.sim.faults.fail_next("Version", status=Status.UNAVAILABLE)
        with pytest.raises(CRIError):
            await stage.runtime.version()
    assert [status for _, status, _ in stage.statuses] == ["Unavailable"]


async def test_a_stream_lasts_as_long_as_it_is_read(autojump_clock: trio.testing.MockClock) -> None:
    async with staged() as stage, trio.open_nursery() as nursery:

        async def read() -> None:
            async with aclosing(stage.runtime.container_events()) as events:
                async for _ in events:
                    pass

        nursery.start_soon(read)
        await trio.sleep(5)
        assert stage.spans == []
        nursery.cancel_scope.cancel()
    assert [(name, status) for name, status, _ in stage.statuses] == [(f"{RUNTIME}/GetContainerEvents", "Canceled")]
    (span,) = stage.spans
    assert span.ended_at is not None
    assert span.ended_at - span.began_at == 5 * 10**9
