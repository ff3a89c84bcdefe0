"""An agent that is asked to end its pods before it has learned which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.sim_node import clock_without_threads, sim_node, static_pod
from trikubelet.sim import Program
from trikubelet.sim.node import ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


async def test_a_drain_right_after_the_start_ends_what_an_earlier_agent_left(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    wanted, unwanted = (static_pod(name, terminationGracePeriodSeconds=10) for name in ("wanted", "unwanted"))
    async with sim_node(tmp_path) as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(wanted, unwanted)
        await node.until_running(wanted)
        await node.until_running(unwanted)
    source = ScriptedSource("file")
    source.put(wanted)
    async with sim_node(tmp_path, node.sim, source) as next_node:
        assert next_node.sim.running_containers(wanted.metadata.uid)
        began = trio.current_time()
        assert await next_node.agent.drain() == frozenset()
        assert trio.current_time() - began < 15, "they end at the same time, each with its own grace period"
        assert await next_node.agent.runtime.get_pods(all=True) == []
        assert await next_node.agent.volumes.pod_uids() == set()
