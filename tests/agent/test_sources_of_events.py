"""What becomes of pods when the sources of container events fail, each alone and all together.

Nothing is lost, latency is the poll's at worst, and it is the events' again when the fault is over. Also: what is
switched off is not used, and an unhealthy PLEG holds everything up that the kubelet holds up then.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest
import trio
from grpclib.const import Status

from tests.agent.sim_node import SimNode, sim_node, static_pod
from trikubelet.pleg.relist import LONGEST_PERIOD, PERIOD_ALONE, RELIST_TIMEOUT, UNHEALTHY_AFTER
from trikubelet.pleg.sources import SWITCHED_OFF
from trikubelet.runtime.state import DOWN_AFTER
from trikubelet.sim import SimulatedRuntime

if TYPE_CHECKING:
    from collections.abc import Collection

    from trio.testing import MockClock

    from trikubelet.api import Pod

FAULTS = ("events cut", "pidfds refused", "lists slow")
LIST_DELAY = 5.0
AT_ONCE = 0.2
"""Seconds; tests look every tenth."""
PODS = 5

ALL_SUBSETS = [
    pytest.param(subset, marks=[pytest.mark.night] if size == 2 else [])
    for size in range(len(FAULTS) + 1)
    for subset in combinations(FAULTS, size)
]
"""By day each fault alone, and all together; at night also two at a time."""


async def break_sources(node: SimNode, faults: Collection[str]) -> None:
    if "events cut" in faults:
        node.sim.events.supported = False
        node.sim.events.disconnect()
    if "pidfds refused" in faults:
        node.sim.refuses_watches = True
    if "lists slow" in faults:
        for rpc in ("ListContainers", "ListPodSandbox"):
            node.sim.delays[rpc] = LIST_DELAY
    await trio.sleep(120)


async def mend_sources(node: SimNode) -> None:
    node.sim.events.supported = True
    node.sim.refuses_watches = False
    for rpc in ("ListContainers", "ListPodSandbox"):
        node.sim.delays.pop(rpc, None)
    await trio.sleep(2 * LONGEST_PERIOD + 10)


def restarts(node: SimNode, pod: Pod) -> int:
    [container] = node.status(pod).container_statuses
    return container.restart_count


async def crash(node: SimNode, pods: Collection[Pod]) -> float:
    """All of them at once; seconds until the last one runs again."""
    before = {pod.metadata.uid: restarts(node, pod) for pod in pods}
    for pod in pods:
        [container] = node.sim.running_containers(pod.metadata.uid)
        node.sim.end_container(container, 7)

    def all_run_again() -> bool:
        return all(
            node.sim.running_containers(pod.metadata.uid) and restarts(node, pod) == before[pod.metadata.uid] + 1
            for pod in pods
        )

    return await node.until(all_run_again, within=120)


@pytest.mark.parametrize("faults", ALL_SUBSETS, ids=lambda faults: " and ".join(faults) or "no fault")
async def test_nothing_is_lost_and_latency_recovers(autojump_clock: MockClock, faults: tuple[str, ...]) -> None:
    async with sim_node() as node:
        early = [static_pod(f"early-{number}") for number in range(PODS)]
        node.source.put(*early)
        for pod in early:
            await node.until_running(pod)
        await break_sources(node, faults)
        late = [static_pod(f"late-{number}") for number in range(PODS)]
        node.source.put(*late)
        for pod in late:
            await node.until_running(pod, within=120)

        took = await crash(node, late)
        # Two relists, the first of which may have begun too early, and an inspection: two lists each.
        looks = 6 * LIST_DELAY if "lists slow" in faults else 0.0
        if "events cut" in faults and "pidfds refused" in faults:
            assert took <= PERIOD_ALONE + looks + AT_ONCE
        else:
            assert took <= looks + AT_ONCE
        for pod in late:
            last = node.status(pod).container_statuses[0].last_state.terminated
            assert last is not None
            assert last.exit_code == 7
            assert len(node.sim.runs(pod.metadata.uid)) == 2

        await mend_sources(node)
        assert await crash(node, early) <= AT_ONCE
        for pod in early:
            assert len(node.sim.runs(pod.metadata.uid)) == 2
        node.source.remove(*early, *late)
        for pod in (*early, *late):
            await node.until_gone(pod)


async def test_a_sandbox_that_dies_is_noticed_without_events_and_relists(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        pod = static_pod("a")
        node.source.put(pod)
        await node.until_running(pod)
        await break_sources(node, ["events cut"])
        assert node.agent.pleg_sources.events_healthy(), "by its processes"
        [sandbox] = node.sim.machine.sandboxes.values()
        node.sim.fail_sandbox(sandbox)
        took = await node.until(
            lambda: any(one.ready and one is not sandbox for one in node.sim.machine.sandboxes.values())
        )
        assert took <= AT_ONCE


async def test_an_unhealthy_pleg_holds_up_syncing_but_ends_no_pod(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        pod = static_pod("a")
        node.source.put(pod)
        await node.until_running(pod)
        for rpc in ("ListContainers", "ListPodSandbox"):
            node.sim.delays[rpc] = 1e6
        await trio.sleep(UNHEALTHY_AFTER + RELIST_TIMEOUT + LONGEST_PERIOD)
        errors = node.agent.runtime_state.errors()
        assert errors is not None
        assert errors.startswith("PLEG is not healthy: pleg was last seen active ")
        late = static_pod("late")
        node.source.put(late)
        await trio.sleep(300)
        assert node.agent.pods.pod_by_uid(late.metadata.uid) is None
        assert len(node.sim.running_containers()) == 1
        for rpc in ("ListContainers", "ListPodSandbox"):
            node.sim.delays.pop(rpc)
        await node.until_running(late, within=RELIST_TIMEOUT + 10)
        assert node.agent.runtime_state.errors() is None
        assert len(node.sim.runs(pod.metadata.uid)) == 1


async def test_a_runtime_that_is_away_for_long_holds_up_syncing(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        assert node.agent.runtime_state.errors() is None
        node.sim.restart(downtime=DOWN_AFTER + 60)
        await trio.sleep(DOWN_AFTER - 10)
        assert node.agent.runtime_state.errors() is None, "it may be a restart"
        await trio.sleep(20)
        assert node.agent.runtime_state.errors() == "container runtime is down"
        pod = static_pod("a")
        node.source.put(pod)
        await node.until_running(pod, within=100)
        assert node.agent.runtime_state.errors() is None


async def test_a_runtime_that_is_not_ready_is_an_error_at_once(autojump_clock: MockClock) -> None:
    async with sim_node() as node:
        condition = node.sim.runtime_service.runtime_ready
        condition.status, condition.reason, condition.message = False, "Broken", "no disk"
        await trio.sleep(6)
        errors = node.agent.runtime_state.errors()
        assert errors is not None
        assert errors.endswith("not ready: RuntimeReady=false reason:Broken message:no disk")
        node.sim.faults.fail_next("Status", status=Status.UNAVAILABLE)
        condition.status = True
        await trio.sleep(3)
        assert node.agent.runtime_state.errors() is None


@pytest.mark.parametrize("gate", ["EventedPLEG", "PidfdPLEG", "GenericPLEG"])
async def test_a_source_that_is_switched_off_is_not_used(autojump_clock: MockClock, gate: str) -> None:
    sim = SimulatedRuntime(seed=1)
    async with sim_node(sim=sim, feature_gates={gate: False}) as node:
        pod = static_pod("a")
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(3 * LONGEST_PERIOD)
        sources = node.agent.pleg_sources
        name = {"EventedPLEG": "events", "PidfdPLEG": "pidfds", "GenericPLEG": "relists"}[gate]
        assert sources.health() == {"events": None, "pidfds": None, "relists": None, name: SWITCHED_OFF}
        assert (sim.calls.count("GetContainerEvents") == 0) == (gate == "EventedPLEG")
        assert (sources.pidfds.watched == 0) == (gate == "PidfdPLEG")
        assert (sources.relist.lists == 1) == (gate == "GenericPLEG")
        assert await crash(node, [pod]) <= AT_ONCE


async def test_without_an_event_source_there_is_the_poll(autojump_clock: MockClock) -> None:
    async with sim_node(feature_gates={"EventedPLEG": False, "PidfdPLEG": False}) as node:
        pod = static_pod("a")
        node.source.put(pod)
        await node.until_running(pod)
        lists = node.agent.pleg_sources.relist.lists
        await trio.sleep(60)
        assert node.agent.pleg_sources.relist.lists - lists == pytest.approx(60, abs=2)
        assert await crash(node, [pod]) <= PERIOD_ALONE + AT_ONCE


@pytest.mark.parametrize("policy", ["Never", "Always"])
async def test_an_end_is_reported_although_the_container_is_removed_at_once(
    autojump_clock: MockClock, policy: str
) -> None:
    async with sim_node() as node:
        pod = static_pod("a", restartPolicy=policy)
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(20)
        [container] = node.sim.running_containers()
        node.sim.end_container(container, 7)
        await node.sim.machine.remove_container(container)
        if policy == "Never":
            await node.until_phase(pod, "Failed")
            ended = node.status(pod).container_statuses[0].state.terminated
        else:
            await node.until(lambda: len(node.sim.running_containers()) == 1)
            ended = node.status(pod).container_statuses[0].last_state.terminated
        assert ended is not None
        assert (ended.exit_code, ended.reason) == (7, "Error")
        assert len(node.sim.runs()) == (1 if policy == "Never" else 2)
