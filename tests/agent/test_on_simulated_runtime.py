"""Pods' lives from source to status, on the simulated runtime."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.agent.sim_node import SimNode, clock_without_threads, sim_node, static_pod
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.sim import Life, Program, SimulatedRuntime
from trikubelet.sim.faults import Fault, FaultKind
from trikubelet.sim.memory import MemoryMounts
from trikubelet.sim.node import ScriptedSource, simulated_node

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=[pytest.param("in memory", marks=pytest.mark.night), "on disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where the node has its files; None: it has no disk."""
    return tmp_path if request.param == "on disk" else None


@pytest.fixture
def mock_clock(folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return MockClock(autojump_threshold=0) if folder is None else clock_without_threads(monkeypatch)


def reasons(node: SimNode, uid: str) -> list[str]:
    return [event.reason for event in node.agent.recorder.events_of(uid)]


async def test_a_pod_runs_is_reported_and_ends_when_its_manifest_goes(
    mock_clock: MockClock, folder: Path | None
) -> None:
    pod = static_pod("hello")
    async with sim_node(folder) as node:
        node.source.put(pod)
        await node.until_running(pod, within=2)
        assert node.status(pod).phase == "Running"
        assert reasons(node, pod.metadata.uid)[-2:] == ["Created", "Started"]
        node.source.remove(pod)
        await node.until_gone(pod, within=5)
        await trio.sleep(5)
        assert await node.agent.runtime.get_pods(all=True) == [], "its containers and sandbox are removed"
        assert await node.agent.volumes.pod_uids() == set()


async def test_termination_waits_for_no_period(mock_clock: MockClock, folder: Path | None) -> None:
    pod = static_pod("hello")
    async with sim_node(folder) as node:
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(0.5)
        node.source.remove(pod)
        uid = pod.metadata.uid
        await node.until(lambda: node.agent.workers.states.should_pod_be_finished(uid), within=0.5)


async def test_init_containers_run_one_after_the_other_before_the_main_ones(
    mock_clock: MockClock, folder: Path | None
) -> None:
    pod = static_pod(
        "staged",
        initContainers=[{"name": "first", "image": "test:1"}, {"name": "second", "image": "test:1"}],
        containers=[{"name": "a", "image": "test:1"}, {"name": "b", "image": "test:1"}],
    )
    async with sim_node(folder) as node:
        for name in ("first", "second"):
            node.sim.program(Program.exits(after=3), container=name)
        node.source.put(pod)
        await node.until_running(pod)
        runs = {run.container_name: run for run in node.sim.runs(pod.metadata.uid)}
        first_end, second_end = runs["first"].ended_at, runs["second"].ended_at
        assert first_end is not None
        assert second_end is not None
        assert first_end <= runs["second"].started_at
        assert second_end <= min(runs["a"].started_at, runs["b"].started_at)


async def test_a_crashing_container_backs_off_and_is_said_to(mock_clock: MockClock, folder: Path | None) -> None:
    pod = static_pod("crash")
    async with sim_node(folder) as node:
        node.sim.program(Program.exits(after=1, exit_code=3), container="main")
        node.source.put(pod)
        await node.until(lambda: len(node.sim.started("main")) == 3, within=60)
        starts = [run.started_at for run in node.sim.started("main")]
        # The first restart is at once; the second waits 10 s from the end of the run before (and up to half as much).
        assert starts[1] - starts[0] < 3
        assert 10 <= starts[2] - starts[1] < 20
        await trio.sleep(5)
        (container,) = node.status(pod).container_statuses
        assert container.state.waiting is not None
        assert container.state.waiting.reason == "CrashLoopBackOff"
        assert container.last_state.terminated is not None
        assert container.last_state.terminated.exit_code == 3
        assert container.restart_count == 2
        assert "BackOff" in reasons(node, pod.metadata.uid)


async def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_period(
    mock_clock: MockClock, folder: Path | None
) -> None:
    pod = static_pod("stubborn", terminationGracePeriodSeconds=7)
    async with sim_node(folder) as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        node.source.remove(pod)
        assert await node.until_gone(pod, within=30) == pytest.approx(7, abs=1.5)


async def test_an_edited_pod_starts_only_after_the_old_one_has_ended(
    mock_clock: MockClock, folder: Path | None
) -> None:
    old = static_pod("edited", uid="old", terminationGracePeriodSeconds=5)
    new = static_pod("edited", uid="new")
    async with sim_node(folder) as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(old)
        await node.until_running(old)
        node.source.remove(old)
        node.source.put(new)
        await node.until_running(new)
        (first,), (second,) = node.sim.runs("old"), node.sim.runs("new")
        assert first.ended_at is not None
        assert first.ended_at <= second.started_at


@pytest.mark.parametrize("exit_code", [0, 137])
async def test_a_pod_removed_and_put_back_with_its_uid_runs_again(
    mock_clock: MockClock, folder: Path | None, exit_code: int
) -> None:
    pod = static_pod("again", terminationGracePeriodSeconds=3)
    async with sim_node(folder) as node:
        node.sim.program(Program((Life(sigterm=1, sigterm_exit_code=exit_code),)), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        node.source.remove(pod)
        await trio.sleep(0.5)
        node.source.put(pod)
        await node.until(lambda: len(node.sim.runs(pod.metadata.uid)) == 2, within=20)
        await node.until_running(pod)


@pytest.mark.parametrize(("exit_code", "phase"), [(0, "Succeeded"), (1, "Failed")])
async def test_a_pod_that_is_never_restarted_reaches_its_end(
    mock_clock: MockClock, folder: Path | None, exit_code: int, phase: str
) -> None:
    pod = static_pod("job", restartPolicy="Never")
    async with sim_node(folder) as node:
        node.sim.program(Program.exits(after=2, exit_code=exit_code), container="main")
        node.source.put(pod)
        await node.until_phase(pod, phase, within=5)
        await trio.sleep(300)
        assert len(node.sim.runs(pod.metadata.uid)) == 1
        assert node.status(pod).phase == phase


async def test_the_next_agent_adopts_what_runs(mock_clock: MockClock, folder: Path | None) -> None:
    pods = [static_pod(f"pod-{number}") for number in range(5)]
    source = ScriptedSource("file")
    source.put(*pods)
    async with sim_node(folder, source=source) as node:
        for pod in pods:
            await node.until_running(pod)
        sim = node.sim
    starts = len(sim.runs())
    await trio.sleep(10)
    async with sim_node(folder, sim, source) as node:
        for pod in pods:
            await node.until_running(pod)
        started = node.status(pods[0]).start_time
        assert started is not None
        age = node.agent.clock.now() - started
        assert age.total_seconds() > 9, "its age is the pod's, not the agent's"
        await trio.sleep(120)
        assert len(sim.runs()) == starts, "none is restarted, none doubled"
        assert len(sim.running_containers()) == len(pods)


async def test_a_pod_whose_manifest_went_while_no_agent_ran_is_ended(
    mock_clock: MockClock, folder: Path | None
) -> None:
    orphan, wanted = static_pod("orphan"), static_pod("wanted")
    source = ScriptedSource("file")
    source.put(orphan, wanted)
    async with sim_node(folder, source=source) as node:
        await node.until_running(orphan)
        await node.until_running(wanted)
        sim = node.sim
    source.remove(orphan)
    async with sim_node(folder, sim, source) as node:
        await node.until_gone(orphan, within=20)
        assert [container.pod_uid for container in sim.running_containers()] == [wanted.metadata.uid]
        await trio.sleep(70)
        assert [pod.uid for pod in await node.agent.runtime.get_pods(all=True)] == [wanted.metadata.uid]


async def test_a_drained_agent_leaves_nothing(mock_clock: MockClock, folder: Path | None) -> None:
    pods = [static_pod(f"pod-{number}", terminationGracePeriodSeconds=number + 1) for number in range(5)]
    async with sim_node(folder) as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(*pods)
        for pod in pods:
            await node.until_running(pod)
        began = trio.current_time()
        assert await node.agent.drain() == frozenset()
        assert trio.current_time() - began == pytest.approx(5, abs=2)
        assert await node.agent.runtime.get_pods(all=True) == []
        assert await node.agent.volumes.pod_uids() == set()


async def test_a_runtime_that_restarts_loses_no_pod(mock_clock: MockClock, folder: Path | None) -> None:
    pods = [static_pod(f"pod-{number}") for number in range(3)]
    async with sim_node(folder) as node:
        node.source.put(*pods)
        for pod in pods:
            await node.until_running(pod)
        node.sim.restart(downtime=30)
        late = static_pod("late")
        node.source.put(late)
        await node.until_running(late, within=120)
        assert len(node.sim.runs()) == 4
        node.source.remove(*pods)
        for pod in pods:
            await node.until_gone(pod)


@pytest.mark.parametrize("rpc", ["RunPodSandbox", "CreateContainer", "StartContainer"])
async def test_a_lost_reply_starts_no_container_twice(mock_clock: MockClock, folder: Path | None, rpc: str) -> None:
    pod = static_pod("lost")
    async with sim_node(folder) as node:
        node.sim.faults.lose_next_reply(rpc)
        node.source.put(pod)
        await node.until_running(pod, within=120)
        await trio.sleep(60)
        assert len(node.sim.running_containers()) == 1


async def test_a_pod_is_failed_when_its_active_deadline_has_passed(mock_clock: MockClock, folder: Path | None) -> None:
    pod = static_pod("late", activeDeadlineSeconds=20)
    async with sim_node(folder) as node:
        node.source.put(pod)
        await node.until_running(pod)
        took = await node.until_phase(pod, "Failed", within=40)
        assert took == pytest.approx(20, abs=2)
        assert node.status(pod).reason == "DeadlineExceeded"
        await node.until(lambda: not node.sim.running_containers(), within=10)


@pytest.mark.parametrize("folder", ["on disk"], indirect=True)
async def test_an_unknown_kind_of_volume_leaves_other_pods_alone(mock_clock: MockClock, folder: Path | None) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    broken = static_pod(
        "broken",
        containers=[{"name": "main", "image": "test:1", "volumeMounts": mounts}],
        volumes=[{"name": "data", "glusterfs": {"endpoints": "x", "path": "/"}}],
    )
    good = static_pod("good")
    async with sim_node(folder) as node:
        if isinstance(node.agent.volumes, MemoryMounts):
            node.agent.volumes.broken.add("data")
        node.source.put(broken, good)
        await node.until_running(good)
        await node.until(lambda: "FailedMount" in reasons(node, broken.metadata.uid))
        assert node.status(broken).phase == "Pending"
        node.source.remove(broken)
        await node.until(lambda: node.agent.workers.states.phase(broken.metadata.uid) is None)


async def test_a_pod_marked_for_deletion_is_ended_with_that_grace_period(
    mock_clock: MockClock, folder: Path | None
) -> None:
    pod = static_pod("deleted")
    async with sim_node(folder) as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        deleted = attrs.evolve(
            pod,
            metadata=attrs.evolve(
                pod.metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC), deletion_grace_period_seconds=4
            ),
        )
        node.source.put(deleted)
        took = await node.until(lambda: not node.sim.running_containers(), within=30)
        assert took == pytest.approx(4, abs=1.5)


async def test_a_runtime_that_hangs_delays_no_decision(mock_clock: MockClock, folder: Path | None) -> None:
    pod, other = static_pod("first"), static_pod("second")
    async with sim_node(folder) as node:
        node.source.put(pod)
        await node.until_running(pod)
        node.sim.faults.fail_randomly("*", 1.0, Fault(FaultKind.HANG, seconds=90))
        await trio.sleep(5)
        node.source.remove(pod)
        node.source.put(other)
        await trio.sleep(1)
        assert node.agent.workers.states.is_pod_termination_requested(pod.metadata.uid)
        assert node.agent.workers.states.phase(other.metadata.uid) is not None
        node.sim.stop_faults()
        await node.until_gone(pod, within=300)
        await node.until_running(other, within=300)
        assert len(node.sim.runs(other.metadata.uid)) == 1


async def test_an_orphan_that_cannot_be_ended_has_an_event(mock_clock: MockClock) -> None:
    orphan, wanted = static_pod("orphan"), static_pod("wanted")
    source = ScriptedSource("file")
    source.put(orphan, wanted)
    async with sim_node(source=source) as node:
        await node.until_running(orphan)
        await node.until_running(wanted)
        sim = node.sim
    source.remove(orphan)
    sim.faults.fail_randomly("StopContainer", 1)
    async with sim_node(sim=sim, source=source) as node:

        def told() -> bool:
            events = node.agent.recorder.events_of(orphan.metadata.uid)
            return any(event.reason == "FailedKillPod" for event in events)

        await node.until(told, within=60)
        (event, *_) = (
            one for one in node.agent.recorder.events_of(orphan.metadata.uid) if one.reason == "FailedKillPod"
        )
        assert (event.namespace, event.name) == (orphan.metadata.namespace, orphan.metadata.name)
        assert event.message.startswith("error killing pod: ")
        sim.stop_faults()
        await node.until_gone(orphan, within=60)


@pytest.mark.parametrize(("cidr", "told"), [("10.1.0.0/24", 1), ("", 0)])
async def test_a_runtime_is_told_the_networks_of_an_agent_by_itself(
    cidr: str, told: int, autojump_clock: MockClock
) -> None:
    sim = SimulatedRuntime(seed=1)
    async with simulated_node(sim, configuration=KubeletConfiguration(pod_cidr=cidr)):
        await trio.sleep(60)
    assert sim.calls.count("UpdateRuntimeConfig") == told
