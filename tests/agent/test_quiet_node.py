"""A node at which nothing happens costs next to nothing, and still sees what happens behind the agent's back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.sim_node import clock_without_threads, sim_node, static_pod
from trikubelet.pods import sync_loop

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


class Steps(trio.abc.Instrument):
    """Counts the steps of every task by its function's name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts[".".join(task.name.split(".")[-2:])] += 1


async def steps_of_a_minute() -> Counter[str]:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    await trio.sleep(60)
    trio.lowlevel.remove_instrument(steps)
    return steps.counts


async def test_nothing_ticks_while_no_pod_waits_for_a_time(mock_clock: MockClock) -> None:
    async with sim_node(None) as node:
        pod = static_pod("quiet")
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(60)
        counts = await steps_of_a_minute()
        assert counts["SyncLoop._tick"] == 0
        assert counts["SyncLoop._keep_house"] <= 45, "it looks whether anything changed, and asks nobody"
        limited = static_pod("limited", activeDeadlineSeconds=600)
        node.source.put(limited)
        await node.until_running(limited)
        await trio.sleep(5)
        assert (await steps_of_a_minute())["SyncLoop._tick"] >= 60


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


async def test_a_folder_that_appears_on_a_quiet_node_is_removed(mock_clock: MockClock, tmp_path: Path) -> None:
    async with sim_node(tmp_path) as node:
        pod = static_pod("quiet")
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(60)
        left = tmp_path / "root" / "pods" / "left-by-somebody"
        left.mkdir(parents=True)
        await trio.sleep(sync_loop.QUIET_HOUSEKEEPING_PERIOD + 2 * sync_loop.HOUSEKEEPING_PERIOD)
        assert not left.exists()
        assert (tmp_path / "root" / "pods" / pod.metadata.uid).is_dir()


async def test_housekeeping_has_nothing_to_do_with_a_container_that_is_started_again(mock_clock: MockClock) -> None:
    async with sim_node(None) as node:
        pod = static_pod("crashes")
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(10)
        assert not node.agent.housekeeping.has_work()
        (container,) = node.sim.running_containers(pod.metadata.uid)
        node.sim.end_container(container, 1)
        await trio.sleep(1)
        assert len(node.sim.started("main")) == 2
        assert not node.agent.housekeeping.has_work()
        node.source.remove(pod)
        await trio.sleep(0.1)
        assert node.agent.housekeeping.has_work()
