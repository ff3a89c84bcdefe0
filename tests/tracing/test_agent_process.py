"""`trikubelet run` with traces: what a collector on a real port is sent, and that none keeps the agent from ending."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.serving import client_context
from tests.agent.test_refusing_to_start import configuration
from tests.agent.test_refusing_to_start import run as refused
from tests.agent.test_server import ALONE, running
from tests.patience import PATIENCE
from tests.tracing.collector import Collector
from trikubelet.rpc.grpc import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@asynccontextmanager
async def listening(collector: Collector) -> AsyncIterator[str]:
    """Where it listens."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, Server([collector]).serve_stream, [listener])
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.05)


async def test_pods_and_requests_of_a_process_reach_a_collector(tmp_path: Path) -> None:
    collector = Collector()
    async with listening(collector) as endpoint:
        tracing = {"endpoint": endpoint, "samplingRatePerMillion": 1_000_000}
        async with running(tmp_path, tracing=tracing, **ALONE) as agent:
            await until(lambda: bool(collector.named("podStart")))
            caller = agent.caller("port", client_context())
            path = "/containerLogs/default/web-given/main"
            assert (await caller.ask("GET", path, ("traceparent", TRACEPARENT))).status == 200
            await caller.hang_up()
            await until(lambda: bool(collector.of_trace(TRACE)))
            assert 'trikubelet_spans_total{outcome="exported"} ' in (await agent.ask("port", "/metrics")).text
            before = len(collector.spans)
            assert await agent.end() == 0
    assert len(collector.spans) > before, "what is left at the end is sent"
    served, *_ = collector.of_trace(TRACE)
    assert (served.name, served.scope) == ("/containerLogs/{podNamespace}/{podID}/{containerName}", "trikubelet/http")
    assert served.parent == "b7ad6b7169203331"
    start = collector.only("podStart")
    assert start.attributes["k8s.pod"] == "default/web-given"
    assert start.resource == {"service.name": "kubelet", "host.name": "given"}
    assert "syncPod" in [one.name for one in collector.children(start)]


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_collector_that_hangs_or_is_away_keeps_no_agent_from_ending(tmp_path: Path, hangs: bool) -> None:
    collector = Collector(hangs=True)
    async with listening(collector) as endpoint:
        tracing = {"endpoint": endpoint if hangs else "127.0.0.1:1", "samplingRatePerMillion": 1_000_000}
        async with running(tmp_path, tracing=tracing, **ALONE) as agent:
            await agent.until_said("container started")
            if hangs:
                await until(lambda: collector.requests > 0)
            else:
                await agent.until_said("spans cannot be sent to the collector")
            assert await agent.end() == 0


def test_what_keeps_an_agent_from_starting_is_told_as_without_traces(tmp_path: Path) -> None:
    told = refused(tmp_path, f"--kubeconfig={tmp_path / 'none'}", configuration(tmp_path, tracing={}, **ALONE))
    (line,) = told
    assert f"{tmp_path / 'none'}: invalid configuration: cannot be read" in line
