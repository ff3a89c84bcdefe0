"""How often the runtime is asked for one pod's start and end: it stays so."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio

from tests.sim.node_stage import make_pod
from trikubelet.pleg.relist import LONGEST_PERIOD
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import simulated_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trikubelet.sim.node import SimulatedNode

SETTLED: Final = 300.0
"""Seconds after which relists come once a minute."""
WHILE: Final = 10.0
"""Seconds in which all is over that follows from a start or an end."""
IDLE: Final = frozenset({"Status", "ListImages", "ImageFsInfo", "ListContainerStats", "ListPodSandboxStats"})
"""What an agent asks that has nothing to do, beside relists."""


async def calls(node: SimulatedNode, change: Any) -> Counter[str]:
    """What the runtime is asked because of a change, which falls between two relists."""
    relist = node.agent.pleg_sources.relist
    await trio.sleep(SETTLED)
    lists = relist.lists
    with trio.fail_after(2 * LONGEST_PERIOD):
        while relist.lists == lists:
            await trio.sleep(1)
    await trio.sleep(1)
    node.sim.calls.clear()
    lists = relist.lists
    change()
    await trio.sleep(WHILE)
    assert relist.lists == lists
    return Counter(call.rpc for call in node.sim.calls.of() if call.rpc not in IDLE)


@pytest.fixture(params=[False, True], ids=["without events", "with events"])
async def node(autojump_clock: MockClock, request: pytest.FixtureRequest) -> AsyncIterator[SimulatedNode]:
    sim = SimulatedRuntime(seed=1)
    sim.events.supported = request.param
    async with simulated_node(sim) as running:
        yield running


async def test_a_pods_start_and_end(autojump_clock: MockClock, node: SimulatedNode) -> None:
    pod, earlier = make_pod("a", "a", "obedient", 5), make_pod("b", "b", "obedient", 5)
    node.source().put(earlier)  # brings the image
    started = await calls(node, lambda: node.source().put(earlier, pod))
    assert len(node.sim.running_containers()) == 2
    ended = await calls(node, lambda: node.source().remove(pod))
    assert len(node.sim.machine.containers) == 1
    tells = node.sim.events.supported
    # What cannot be done without: the five of a start ...
    needed = ["RunPodSandbox", "PodSandboxStatus", "ImageStatus", "CreateContainer", "StartContainer"]
    # ... and an inspection by ids. A runtime that has events tells of the container with its sandbox.
    inspection = ["PodSandboxStatus"] if tells else ["PodSandboxStatus", "ContainerStatus"]
    assert started == Counter([*needed, *inspection])
    needed = ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"]
    # Garbage collection lists all, for all pods that have ended of late.
    collection = ["ListContainers", "ListPodSandbox"]
    least = Counter([*needed, *inspection, *collection])
    # An event of a removal that comes after the agent knows of it has the pod looked at once more.
    # So has one of the other, and both may come while it is looked at.
    again = Counter(ListPodSandbox=4, ListContainers=4, PodSandboxStatus=2) if tells else Counter[str]()
    assert least <= ended <= least + again


async def test_a_restart(autojump_clock: MockClock, node: SimulatedNode) -> None:
    pod = make_pod("a", "a", "obedient", 5)
    node.source().put(pod)
    await trio.sleep(1)
    [container] = node.sim.running_containers()
    asked = await calls(node, lambda: node.sim.end_container(container, 1, "Error"))
    made = ["ImageStatus", "CreateContainer", "StartContainer"]
    assert asked["ListContainers"] == 0
    assert asked["ListPodSandbox"] == 0
    assert not Counter(made) - asked
