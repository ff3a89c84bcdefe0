"""A pod at which nothing has changed is looked at again for next to nothing, and one that has changed is not missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from grpclib.const import Status

from trikubelet.api import pod_from_dict, set_pod_defaults
from trikubelet.pods.types import SyncPodType, UpdatePod
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.kinds import with_image
from trikubelet.sim.node import SimulatedNode, simulated_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trikubelet.agent.agent import Agent

POD = set_pod_defaults(
    pod_from_dict(
        {
            "metadata": {"name": "web", "namespace": "default", "uid": "web"},
            "spec": {"containers": [{"name": "main", "image": "test/web:1"}]},
        }
    )
)
ASKING = ("ListContainers", "ListPodSandbox", "ContainerStatus", "PodSandboxStatus", "ImageStatus")


@pytest.fixture
async def node(autojump_clock: MockClock) -> AsyncIterator[SimulatedNode]:
    """With one pod that has run for ten minutes."""
    sim = SimulatedRuntime(seed=1)
    for version in (1, 2):
        sim.program(Program.runs_forever(), image=f"test/web:{version}")
    async with simulated_node(sim) as node:
        node.source().put(POD)
        await trio.sleep(600)
        assert len(sim.running_containers("web")) == 1
        yield node


async def resync(node: SimulatedNode) -> None:
    request = UpdatePod(update_type=SyncPodType.SYNC, start_time=trio.current_time(), pod=node.agent.pods.pods()[0])
    node.agent.workers.update_pod(request)
    await trio.testing.wait_all_tasks_blocked()


async def test_an_unchanged_pod_asks_nothing_of_the_runtime(node: SimulatedNode, autojump_clock: MockClock) -> None:
    syncs = node.agent.workers.statistics().works["SyncPod"]
    before = node.sim.calls.total()
    for _ in range(5):
        await resync(node)
    assert node.agent.workers.statistics().works["SyncPod"] == syncs + 5
    assert node.sim.calls.total() == before


async def test_a_dead_container_is_found_by_the_next_sync(node: SimulatedNode, autojump_clock: MockClock) -> None:
    (container,) = node.sim.running_containers("web")
    node.sim.end_container(container, 1)
    await trio.sleep(1)
    (again,) = node.sim.running_containers("web")
    assert again is not container


async def test_a_changed_pod_is_synced(node: SimulatedNode, autojump_clock: MockClock) -> None:
    node.source().put(with_image(POD, "test/web:2"))
    await trio.sleep(40)
    (container,) = node.sim.running_containers("web")
    assert container.config.image.user_specified_image == "test/web:2"


async def test_a_node_without_a_network_is_told_of_by_every_sync(
    node: SimulatedNode, autojump_clock: MockClock
) -> None:
    state = node.agent.runtime_state
    state.conditions = attrs.evolve(state.conditions, network_problem="no CNI configuration")
    before = node.agent.workers.statistics().failures
    await resync(node)
    assert node.agent.workers.statistics().failures == before + 1


async def test_housekeeping_asks_the_runtime_only_when_it_may_hold_a_pod_that_nobody_knows(
    node: SimulatedNode, autojump_clock: MockClock
) -> None:
    before = {call: node.sim.calls.count(call) for call in ASKING}
    await trio.sleep(25)
    # One relist and one garbage collection may fall into this time.
    assert sum(node.sim.calls.count(call) - count for call, count in before.items()) <= 5


@pytest.mark.parametrize(
    "message", ['failed to reserve sandbox name "web": name "web" is reserved for "abc"', "the runtime restarts"]
)
async def test_what_the_runtime_could_not_do_just_now_is_tried_again_soon(
    autojump_clock: MockClock, message: str
) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever())
    status = Status.UNKNOWN if "reserved" in message else Status.UNAVAILABLE
    sim.faults.fail_next("RunPodSandbox", status=status, message=message)
    async with simulated_node(sim) as node:
        node.source().put(POD)
        await trio.sleep(4)
        assert len(sim.running_containers("web")) == 1


async def test_a_pod_in_the_nodes_network_knows_its_addresses(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.runs_forever())
    variable = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {"name": "main", "image": "test/web:1", "env": [variable]}
    pod = pod_from_dict(
        {
            "metadata": {"name": "web", "namespace": "default", "uid": "web"},
            "spec": {"hostNetwork": True, "containers": [container]},
        }
    )
    async with simulated_node(sim) as node:
        node.source().put(set_pod_defaults(pod))
        await trio.sleep(10)
        (running,) = sim.running_containers("web")
        values = {one.key: one.value for one in running.config.envs}
        assert values["IP"].decode() == node.agent.node.host_ips()[0]


async def test_a_round_of_housekeeping_that_fails_is_not_the_last(autojump_clock: MockClock) -> None:
    def fail_once(agent: Agent) -> None:
        works = agent.housekeeping.compare_workers

        def compare_workers() -> None:
            agent.housekeeping.compare_workers = works  # type: ignore[method-assign]
            raise LookupError

        agent.housekeeping.compare_workers = compare_workers  # type: ignore[method-assign]

    async with simulated_node(SimulatedRuntime(seed=1), prepare=fail_once) as node:
        node.source().put(POD)
        with trio.fail_after(10):
            await node.agent.sync_loop.settled.wait()
