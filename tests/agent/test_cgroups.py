"""Pods' cgroups in a pod's life, on the simulated runtime and a driver without a kernel."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.agent.sim_node import SimNode, static_pod
from tests.cgroups.fake_driver import FakeDriver
from tests.examples import IS_NIGHT
from trikubelet.cgroups.errors import CgroupBusyError, CgroupError
from trikubelet.cgroups.pods import NoPodCgroups, PodCgroupManager
from trikubelet.cgroups.settings import CgroupOptions
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import ScriptedSource, simulated_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.agent.private_cgroups import PrivateCgroups
    from trikubelet.agent.agent import Agent
    from trikubelet.cgroups.interface import CgroupDriver
    from trikubelet.cgroups.names import CgroupName
    from trikubelet.sources.mux import SendPods

ROOT = ("kubepods",)
BATCHES = 10 if IS_NIGHT else 1
REQUESTS: dict[str, Any] = {"requests": {"cpu": "500m"}}
LIMITS: dict[str, Any] = {"limits": {"cpu": "100m", "memory": "64Mi"}}


class SilentSource(ScriptedSource):
    async def run(self, send: SendPods, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


def with_resources(**asked: Any) -> dict[str, Any]:
    """Of a pod's spec."""
    return {"containers": [{"name": "main", "image": "test:1", "resources": asked}]}


@asynccontextmanager
async def node_on(
    driver: CgroupDriver,
    *,
    sim: SimulatedRuntime,
    source: ScriptedSource,
    silent: bool = False,
    root: CgroupName = ROOT,
) -> AsyncIterator[SimNode]:
    """An agent that was just started. `silent`: another source has said nothing yet."""
    sources = {source.name: source, **({"silent": SilentSource("silent")} if silent else {})}
    agents: list[Agent] = []
    keeper = PodCgroupManager(
        driver, root, CgroupOptions(), active_pods=lambda: agents[0].desired.active() if agents else ()
    )
    await keeper.start()
    async with (
        trio.open_nursery() as nursery,
        simulated_node(sim, sources=sources, prepare=agents.append, cgroups=keeper) as node,
    ):
        await nursery.start(keeper.run)
        yield SimNode(node.agent, sim, source, node.targets)
        nursery.cancel_scope.cancel()


@pytest.fixture
def sim() -> SimulatedRuntime:
    return SimulatedRuntime(seed=1)


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource("file")


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(ROOT)


def pods_of(driver: FakeDriver) -> list[CgroupName]:
    return [name for name in driver.groups if name[-1].startswith("pod")]


def parents(sim: SimulatedRuntime) -> list[str]:
    return [one.config.linux.cgroup_parent for one in sim.machine.sandboxes.values()]


async def test_a_pods_cgroup_is_there_before_its_sandbox_and_gone_after_the_pod(
    autojump_clock: MockClock, driver: FakeDriver, sim: SimulatedRuntime, source: ScriptedSource
) -> None:
    pod = static_pod("web", **with_resources(**REQUESTS))
    group = (*ROOT, "burstable", f"pod{pod.metadata.uid}")
    async with node_on(driver, sim=sim, source=source) as node:
        source.put(pod)
        await node.until_running(pod)
        assert parents(sim) == ["/" + "/".join(group)]
        assert driver.groups[group].cpu_shares == 512
        assert driver.groups[(*ROOT, "burstable")].cpu_shares == 512
        source.remove(pod)
        await node.until_gone(pod)
        assert pods_of(driver) == []
        assert ("kill", group) in driver.steps
        await node.until(lambda: driver.groups[(*ROOT, "burstable")].cpu_shares == 2)


async def test_a_pod_whose_cgroup_cannot_be_made_waits_and_says_so(
    autojump_clock: MockClock, driver: FakeDriver, sim: SimulatedRuntime, source: ScriptedSource
) -> None:
    pod = static_pod("web")
    group = (*ROOT, "besteffort", f"pod{pod.metadata.uid}")
    driver.fail("create", group, [CgroupError("/kubepods", "no room")])
    async with node_on(driver, sim=sim, source=source) as node:
        source.put(pod)
        await node.until(lambda: node.agent.workers.statistics().failures == 1)
        assert sim.calls.count("RunPodSandbox") == 0
        await node.until_running(pod)
        events = {event.reason: event.message for event in node.agent.recorder.events_of(pod.metadata.uid)}
        assert events["FailedCreatePodContainer"].startswith("unable to ensure pod container exists: ")
        assert "no room" in events["FailedCreatePodContainer"]


async def test_a_pod_that_runs_outside_of_its_cgroup_is_started_anew_in_there(
    autojump_clock: MockClock, driver: FakeDriver, sim: SimulatedRuntime, source: ScriptedSource
) -> None:
    pod, once = static_pod("web"), static_pod("once", restartPolicy="Never")
    async with simulated_node(sim, sources={"file": source}, cgroups=NoPodCgroups()) as before:
        node = SimNode(before.agent, sim, source, before.targets)
        source.put(pod, once)
        await node.until_running(pod)
        await node.until_running(once)
    assert set(parents(sim)) == {""}
    async with node_on(driver, sim=sim, source=source) as node:
        await node.until(lambda: len(sim.started("main", pod.metadata.uid)) == 2)
        await node.until_running(pod)
        assert f"/kubepods/besteffort/pod{pod.metadata.uid}" in parents(sim)
        # One that is to run once is not begun again, as by the kubelet.
        await node.until_phase(once, "Failed")
        assert len(sim.started("main", once.metadata.uid)) == 1
    async with node_on(driver, sim=sim, source=source) as node:
        await node.until_running(pod)
        await trio.sleep(60)
        assert len(sim.started("main", pod.metadata.uid)) == 2, "in its cgroup it is left alone"


async def test_a_cgroup_that_cannot_be_removed_is_tried_again(
    autojump_clock: MockClock, driver: FakeDriver, sim: SimulatedRuntime, source: ScriptedSource
) -> None:
    pod = static_pod("web")
    group = (*ROOT, "besteffort", f"pod{pod.metadata.uid}")
    driver.fail("remove", group, [CgroupBusyError("/kubepods", "somebody is in there", (7,))])
    async with node_on(driver, sim=sim, source=source) as node:
        source.put(pod)
        await node.until_running(pod)
        source.remove(pod)
        await node.until_gone(pod)
        assert pods_of(driver) == []
        assert driver.steps_on("remove").count(group) == 2


@pytest.mark.parametrize("grace", [1, 20])
async def test_what_an_earlier_agent_left_is_removed_once_all_sources_have_spoken(
    autojump_clock: MockClock, driver: FakeDriver, sim: SimulatedRuntime, grace: int
) -> None:
    """A group that nobody knows, and that of a pod that runs and that nobody wants, however long it takes to end."""
    sim.program(Program.runs_forever(sigterm=None), container="main")
    pod, kept = static_pod("gone", terminationGracePeriodSeconds=grace), static_pod("kept")
    first = ScriptedSource("file")
    async with node_on(driver, sim=sim, source=first) as node:
        first.put(pod, kept)
        await node.until_running(pod)
        await node.until_running(kept)
    driver.groups[*ROOT, "podabc-123"] = driver.groups[ROOT]
    left = (*ROOT, "besteffort", f"pod{kept.metadata.uid}")
    first.remove(pod)
    async with node_on(driver, sim=sim, source=first, silent=True):
        await trio.sleep(60)
        assert len(pods_of(driver)) == 3
    async with node_on(driver, sim=sim, source=first) as node:
        await node.until(lambda: pods_of(driver) == [left])
        assert sim.running_containers(pod.metadata.uid) == []
        await node.until_running(kept)
        await trio.sleep(60)
        driver.steps.clear()
        await trio.sleep(600)
        assert driver.steps == [], "a quiet node looks for nothing"


async def test_draining_leaves_no_cgroup_of_a_pod(
    autojump_clock: MockClock, driver: FakeDriver, sim: SimulatedRuntime, source: ScriptedSource
) -> None:
    pod = static_pod("web")
    async with node_on(driver, sim=sim, source=source) as node:
        source.put(pod)
        await node.until_running(pod)
        driver.groups[*ROOT, "podabc-123"] = driver.groups[ROOT]
        assert await node.agent.drain() == frozenset()
        assert pods_of(driver) == []


@pytest.mark.root
async def test_no_cgroup_is_left_of_many_pods(
    cgroups: PrivateCgroups, sim: SimulatedRuntime, source: ScriptedSource
) -> None:
    """On the kernel's own groups, a hundred pods of every class at a time: a thousand at night."""
    root = (cgroups.root, "kubepods")
    asked: tuple[dict[str, Any], ...] = ({}, REQUESTS, LIMITS)
    async with node_on(cgroups.driver, sim=sim, source=source, root=root) as node:
        for batch in range(BATCHES):
            pods = [static_pod(f"p-{batch}-{number}", **with_resources(**asked[number % 3])) for number in range(100)]
            source.put(*pods)
            with trio.fail_after(60):
                await node.until(lambda: len(sim.running_containers()) == 100)
            assert len(cgroups.pods()) == 100
            source.remove(*pods)
            with trio.fail_after(60):
                await node.until(lambda: not node.agent.workers.states.phases())
            assert cgroups.pods() == set()
