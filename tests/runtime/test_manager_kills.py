"""Ending pods and containers, against the simulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from grpclib.const import Status

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.container.errors import KillPodError
from trikubelet.runtime.kill import TerminationOrder
from trikubelet.sim.programs import Program

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod


async def seconds_to_kill(node: Node, pod: Pod, grace_override: int | None = None) -> float:
    began = trio.current_time()
    await node.kill(pod, grace_override)
    assert node.sim.running_containers() == []
    return trio.current_time() - began


async def test_all_containers_end_at_once_and_then_the_sandbox(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.runs_forever(sigterm=5), container="a")
    node.sim.program(Program.runs_forever(sigterm=5), container="b")
    pod = make_pod(make_container("a"), make_container("b"))
    await node.sync(pod)
    assert await seconds_to_kill(node, pod) == pytest.approx(5, abs=0.5)
    stops = node.sim.calls.of("StopContainer")
    assert len(stops) == 2
    [sandbox_stop] = node.sim.calls.of("StopPodSandbox")
    assert all(stop.ended_at is not None and stop.ended_at <= sandbox_stop.time for stop in stops)
    assert [reason for reason, _ in node.said(pod)].count("Killing") == 2
    assert ("Killing", "Stopping container a") in node.said(pod)


async def test_of_many_pods_each_has_its_signal_at_once_and_the_first_to_end_is_gone_first(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(Program.runs_forever(sigterm=None), container="stubborn")
    stubborn = make_pod(make_container("stubborn"), name="stubborn", termination_grace_period_seconds=100)
    pods = [make_pod(name=f"pod-{number}") for number in range(3 * node.options.calls_at_once)]
    for pod in (stubborn, *pods):
        await node.sync(pod)
    node.sim.delays["StopPodSandbox"] = (1.0, 1.0)
    began = trio.current_time()
    gone: list[float] = []

    async def end(pod: Pod) -> None:
        await node.kill(pod)
        gone.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for pod in (stubborn, *pods):
            nursery.start_soon(end, pod)
    assert all(stop.time - began < 0.5 for stop in node.sim.calls.of("StopContainer"))
    turns = [round(seconds) for seconds in gone[: len(pods)]]
    assert turns == [turn for turn in (1, 2, 3) for _ in range(node.options.calls_at_once)]
    assert gone[-1] == pytest.approx(101, abs=0.5), "it held no turn"


async def test_a_container_that_ignores_the_signal_gets_its_grace_period(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.runs_forever(sigterm=None))
    pod = make_pod()
    await node.sync(pod)
    assert await seconds_to_kill(node, pod) == pytest.approx(30, abs=0.5)


@pytest.mark.parametrize(("override", "seconds"), [(7, 7), (0, 2), (1, 2)])
async def test_the_override_wins_but_two_seconds_are_always_left(
    autojump_clock: MockClock, node: Node, override: int, seconds: float
) -> None:
    node.sim.program(Program.runs_forever(sigterm=None))
    pod = make_pod()
    await node.sync(pod)
    assert await seconds_to_kill(node, pod, override) == pytest.approx(seconds, abs=0.5)


async def test_a_pods_deletion_grace_period_wins_over_its_spec(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.runs_forever(sigterm=None))
    pod = make_pod()
    await node.sync(pod)
    deleted = attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, deletion_grace_period_seconds=4))
    assert await seconds_to_kill(node, deleted) == pytest.approx(4, abs=0.5)


async def test_a_pod_without_a_manifest_is_killed_by_what_its_containers_remember(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(Program.runs_forever(sigterm=None))
    pod = make_pod(termination_grace_period_seconds=11)
    await node.sync(pod)
    [running] = await node.manager.get_pods()
    began = trio.current_time()
    await node.manager.kill_pod(running, None)
    assert trio.current_time() - began == pytest.approx(11, abs=0.5)
    assert ("Killing", "Stopping container main") in node.said(pod)


async def test_a_container_that_is_no_longer_in_the_manifest_is_killed_all_the_same(
    autojump_clock: MockClock, node: Node
) -> None:
    await node.sync(make_pod(make_container("a"), make_container("b")))
    await seconds_to_kill(node, make_pod(make_container("a")))


async def test_a_shorter_grace_period_hurries_a_kill_that_was_cancelled(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.runs_forever(sigterm=None))
    pod = make_pod()
    await node.sync(pod)
    with trio.move_on_after(3):
        await node.kill(pod)
    assert await seconds_to_kill(node, pod, 2) == pytest.approx(2, abs=0.5)


async def test_sidecars_end_after_the_main_containers_last_one_first(autojump_clock: MockClock, node: Node) -> None:
    for name in ("main", "first", "second"):
        node.sim.program(Program.runs_forever(sigterm=4), container=name)
    sidecars = tuple(make_container(name, restart_policy="Always") for name in ("first", "second"))
    pod = make_pod(init_containers=sidecars)
    await node.settle(pod, 4)
    assert len(node.sim.running_containers()) == 3
    assert await seconds_to_kill(node, pod) == pytest.approx(12, abs=0.5)
    ends = [node.sim.started(name)[0].ended_at or 0 for name in ("main", "second", "first")]
    assert [end - ends[0] for end in ends] == pytest.approx([0, 4, 8], abs=0.5)


async def test_sidecars_do_not_wait_longer_than_the_grace_period(autojump_clock: MockClock, node: Node) -> None:
    for name in ("main", "side"):
        node.sim.program(Program.runs_forever(sigterm=None), container=name)
    pod = make_pod(init_containers=(make_container("side", restart_policy="Always"),))
    await node.settle(pod, 4)
    assert await seconds_to_kill(node, pod, 10) == pytest.approx(12, abs=0.5)


async def test_what_does_not_stop_is_told_and_the_rest_is_stopped(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(make_container("a"), make_container("b"))
    await node.sync(pod)
    node.sim.faults.fail_next("StopContainer", message="stuck")
    node.sim.faults.fail_next("StopPodSandbox", message="busy")
    with pytest.raises(KillPodError, match=r"stuck.*busy"):
        await node.kill(pod)
    assert len(node.sim.running_containers()) == 1
    await node.kill(pod)
    assert node.sim.running_containers() == []


async def test_what_is_gone_has_ended(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    await node.sync(pod)
    running = (await node.status(pod)).as_running_pod("simulated")
    node.sim.faults.fail_next("StopContainer", status=Status.NOT_FOUND)
    node.sim.faults.fail_next("StopPodSandbox", status=Status.NOT_FOUND)
    await node.manager.kill_pod(running, pod)


async def test_ended_containers_are_not_asked_to_stop(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(1))
    pod = make_pod(restart_policy="Never")
    await node.sync(pod)
    await trio.sleep(2)
    [found] = await node.manager.get_pods(all=True)
    await node.manager.kill_pod(found, pod)
    assert node.sim.calls.count("StopContainer") == 0
    assert node.sim.calls.count("StopPodSandbox") == 1


async def test_a_pod_that_is_done_is_stopped_by_its_sync(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(1))
    pod = make_pod(restart_policy="Never")
    await node.settle(pod, 4)
    [sandbox] = (await node.status(pod)).sandbox_statuses
    assert not sandbox.ready
    assert len(node.sim.started("main")) == 1


def test_only_sidecars_wait_for_others() -> None:
    pod = make_pod(
        make_container("main"),
        init_containers=(
            make_container("init"),
            make_container("first", restart_policy="Always"),
            make_container("gone", restart_policy="Always"),
            make_container("last", restart_policy="Always"),
        ),
    )
    order = TerminationOrder(pod, ["main", "first", "last"])
    assert order._before == {"first": ["main", "last"], "gone": ["main", "last"], "last": ["main"]}
