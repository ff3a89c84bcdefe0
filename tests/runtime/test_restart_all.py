"""All containers of a pod restart, because one of them ended as its restart rules name (KEP-5532)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.api import pod_from_dict, set_pod_defaults
from trikubelet.container.model import ContainerState
from trikubelet.runtime.results import SyncAction
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import SimulatedNode, simulated_node
from trikubelet.sim.programs import Life

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trikubelet.api import PodCondition, PodStatus


async def test_all_containers_are_removed_one_after_the_other_without_grace(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod(make_container("a"), make_container("b"))
    await node.sync(pod)
    result = await node.sync(pod, restart_all_containers=True)
    assert [(one.action, one.target, one.reason) for one in result.results] == [
        (SyncAction.REMOVE_CONTAINER, "a", ""),
        (SyncAction.REMOVE_CONTAINER, "b", ""),
    ]
    assert [event for event in node.said(pod) if event[0] == "Killing"] == [("Killing", "killing")] * 2
    assert node.sim.machine.containers == {}
    await node.sync(pod)
    assert len(node.sim.running_containers()) == 2


@pytest.mark.parametrize(
    ("rpc", "reason"), [("StopContainer", "KillContainerError"), ("RemoveContainer", "RemoveContainerError")]
)
async def test_one_that_cannot_be_removed_ends_the_sync_and_the_next_goes_on(
    autojump_clock: MockClock, node: Node, rpc: str, reason: str
) -> None:
    pod = make_pod(make_container("a"), make_container("b"))
    await node.sync(pod)
    node.sim.faults.fail_next(rpc, message="stuck")
    result = await node.sync(pod, restart_all_containers=True)
    assert [(one.action, one.target, one.reason) for one in result.results] == [
        (SyncAction.REMOVE_CONTAINER, "a", reason)
    ]
    assert (await node.seen(pod, "b")).state is ContainerState.RUNNING
    result = await node.sync(pod, restart_all_containers=True)
    assert [one.target for one in result.results] == ["a", "b"]
    assert result.error is None


# On a whole node

RULE = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
POD = set_pod_defaults(
    pod_from_dict(
        {
            "metadata": {"name": "web", "namespace": "default", "uid": "web"},
            "spec": {
                "initContainers": [{"name": "init", "image": "test:1"}],
                "containers": [
                    {"name": "steady", "image": "test:1"},
                    {
                        "name": "source",
                        "image": "test:1",
                        "restartPolicy": "Never",
                        "restartPolicyRules": [RULE],
                    },
                ],
            },
        }
    )
)


@pytest.fixture
async def life(autojump_clock: MockClock) -> AsyncIterator[SimulatedNode]:
    """A pod whose container `source` asks after 60 s for all to restart, once."""
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.exits(1), container="init")
    sim.program(Program.runs_forever(), container="steady")
    sim.program(Program((Life(duration=60, exit_code=42), Life())), container="source")
    async with simulated_node(sim) as node:
        node.source().put(POD)
        yield node


def status_of(node: SimulatedNode) -> PodStatus:
    status = node.agent.statuses.get_pod_status("web")
    assert status is not None
    return status


def condition(node: SimulatedNode, type_: str) -> PodCondition:
    return next(one for one in status_of(node).conditions if one.type == type_)


async def test_the_whole_pod_starts_again_at_once_when_one_container_asks_for_it(
    life: SimulatedNode, autojump_clock: MockClock
) -> None:
    await trio.sleep(50)
    assert condition(life, "AllContainersRestarting").status == "False"
    await trio.sleep(30)
    for name in ("init", "steady", "source"):
        assert len(life.sim.started(name)) == 2, name
    [first, second] = life.sim.started("source")
    assert first.ended_at is not None
    assert second.started_at - first.ended_at < 6
    assert condition(life, "AllContainersRestarting").status == "False"
    assert {one.name: one.restart_count for one in status_of(life).container_statuses} == {"steady": 1, "source": 1}
    await trio.sleep(600)
    assert len(life.sim.started("steady")) == 2


async def test_a_restart_of_all_is_finished_by_an_agent_that_comes_later(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.program(Program.exits(1), container="init")
    sim.program(Program.runs_forever(), container="steady")
    sim.program(Program((Life(duration=60, exit_code=42), Life())), container="source")
    async with simulated_node(sim) as node:
        node.source().put(POD)
        await trio.sleep(30)
    await trio.sleep(60)
    async with simulated_node(sim) as node:
        node.source().put(POD)
        await trio.sleep(60)
    assert [len(sim.started(name)) for name in ("init", "steady", "source")] == [2, 2, 2]


# What a sandbox's readiness looks like from outside


async def test_that_the_sandbox_is_there_is_published_before_images_are(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    sim.images.default_pull_seconds = 300
    sim.program(Program.runs_forever(), container="main")
    seen: list[Any] = []
    async with simulated_node(sim) as node:
        node.source().put(
            set_pod_defaults(
                pod_from_dict(
                    {
                        "metadata": {"name": "web", "namespace": "default", "uid": "web", "generation": 3},
                        "spec": {"containers": [{"name": "main", "image": "test:1"}]},
                    }
                )
            )
        )
        await trio.sleep(10)
        seen.append(condition(node, "PodReadyToStartContainers"))
        assert not sim.running_containers("web")
        assert status_of(node).pod_ip == ""
        assert status_of(node).phase == "Pending"
    assert (seen[0].status, seen[0].observed_generation) == ("True", 3)
