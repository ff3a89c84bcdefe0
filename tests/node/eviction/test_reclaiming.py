"""What is freed on a simulated node before a pod has to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.sim_node import clock_without_threads, sim_node, static_pod
from trikubelet.sim import Program

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


async def test_dead_containers_of_pods_that_have_ended_go(mock_clock: MockClock) -> None:
    async with sim_node(None) as node:
        node.sim.program(Program.exits(after=1), image="test/done:1")
        runs, done = (
            static_pod("runs"),
            static_pod("done", containers=[{"name": "main", "image": "test/done:1"}], restartPolicy="Never"),
        )
        node.source.put(runs, done)
        await node.until_running(runs)
        await node.until_phase(done, "Succeeded")
        housekeeping = node.agent.housekeeping

        def pods_with_containers() -> set[str]:
            return {container.pod_uid for container in node.sim.machine.containers.values()}

        both = {pod.metadata.uid for pod in (runs, done)}
        await housekeeping.collect()
        assert pods_with_containers() == both
        await housekeeping.delete_dead_containers()
        assert pods_with_containers() == {runs.metadata.uid}
