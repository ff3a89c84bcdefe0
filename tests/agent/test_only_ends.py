"""An agent that is started to end what runs on: it wants no pods, and each gets its own grace period."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.agent.sim_node import SimNode, clock_without_threads, sim_node, static_pod
from trikubelet.sim import Program
from trikubelet.sim.node import ScriptedSource, simulated_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.agent.options import AgentOptions


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


def only_ends(options: AgentOptions) -> AgentOptions:
    return attrs.evolve(options, only_ends=True)


@pytest.mark.parametrize("change", [only_ends, None])
async def test_what_runs_on_ends_in_its_own_time(
    mock_clock: MockClock, tmp_path: Path, change: Callable[[AgentOptions], AgentOptions] | None
) -> None:
    """Without it, pods that nobody wants are orphans, and have a second."""
    hook = {"preStop": {"exec": {"command": ["drain"]}}}
    pods = [
        static_pod(
            f"pod-{grace}",
            containers=[{"name": "main", "image": "test:1", "lifecycle": hook}],
            terminationGracePeriodSeconds=grace,
        )
        for grace in (10, 40)
    ]
    async with sim_node(tmp_path) as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(*pods)
        for pod in pods:
            await node.until_running(pod)
    sim = node.sim
    async with simulated_node(
        sim, sources={"file": ScriptedSource("file")}, folder=tmp_path, sees_exits=False, change_options=change
    ) as simulated:
        ending = SimNode(simulated.agent, sim, node.source, simulated.targets)
        began, lasted = trio.current_time(), dict[str, float]()

        async def watch(uid: str) -> None:
            await ending.until(lambda: not sim.running_containers(uid), within=100)
            lasted[uid] = trio.current_time() - began

        async with trio.open_nursery() as nursery:
            for pod in pods:
                nursery.start_soon(watch, pod.metadata.uid)
            assert await simulated.agent.drain() == frozenset()
        assert await simulated.agent.runtime.get_pods(all=True) == []
        assert await simulated.agent.volumes.pod_uids() == set()
    first, second = (lasted[pod.metadata.uid] for pod in pods)
    if change is None:
        assert max(first, second) < 9
    else:
        assert 9 < first < 13
        assert 39 < second < 43
        assert sim.calls.count("ExecSync") == 2
