"""An agent is killed in the middle of a pod's start, at each moment: the next one goes on, and no restart is counted.

The simulated runtime gives up a start whose client leaves, as containerd does: the container cannot be removed for two
seconds, then it has exited with 128 and the reason StartError, though no process of it ever ran.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio

from tests.agent.sim_node import SimNode, sim_node, static_pod
from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.machine import FAILED_TO_START
from trikubelet.sim.node import ScriptedSource, run_deterministically

if TYPE_CHECKING:
    from trikubelet.api import ContainerStatus, Pod

CALL: Final = 0.02
"""Seconds of each call to the runtime."""
FIRST: Final = 0.0 if IS_NIGHT else CALL / 2
STEP: Final = CALL / 2 if IS_NIGHT else CALL
"""Seconds between two moments: by day each is in the middle of a call, at night others are between two."""
STARTED_WITHIN: Final = 12.0
"""Seconds for a start in which nothing waits for a back-off: what a runtime gives up cannot be removed for a while."""
GIVEN_UP_WITHIN: Final = 3.0
KINDS: Final[dict[str, dict[str, Any]]] = {
    "service": {},
    "batch": {"restartPolicy": "Never"},
    "retrying": {"restartPolicy": "OnFailure"},
    "staged": {"initContainers": [{"name": "setup", "image": "test/setup:1"}], "restartPolicy": "Never"},
    "meshed": {"initContainers": [{"name": "proxy", "image": "test:1", "restartPolicy": "Always"}]},
}


def statuses(node: SimNode, pod: Pod) -> list[ContainerStatus]:
    status = node.status(pod)
    return [*status.init_container_statuses, *status.container_statuses]


def new_runtime() -> SimulatedRuntime:
    sim = SimulatedRuntime(seed=1)
    sim.delays["*"] = CALL
    sim.program(Program.exits(after=1), container="setup")
    return sim


async def start_with_a_death(pod: Pod, seconds: float) -> bool:
    """Start a pod by two agents, the first of which lives for so long. True if it died in the middle of the start."""
    sim, source = new_runtime(), ScriptedSource("file")
    async with sim_node(sim=sim, source=source):
        source.put(pod)
        await trio.sleep(seconds)
        was_running = {one.name for one in sim.running_containers()}
    source = ScriptedSource("file")
    async with sim_node(sim=sim, source=source) as node:
        source.put(pod)
        await node.until_running(pod, within=STARTED_WITHIN)
        await trio.sleep(30)
        assert [(one.name, one.restart_count, one.last_state.terminated) for one in statuses(node, pod)] == [
            (one.name, 0, None) for one in statuses(node, pod)
        ]
        names = [run.container_name for run in sim.runs()]
        assert sorted(names) == sorted(set(names)), "each ran once"
        assert {run.attempt for run in sim.runs()} == {0}
        reasons = [event.reason for event in node.agent.recorder.events_of(pod.metadata.uid)]
        assert "BackOff" not in reasons
        assert "Failed" not in reasons
    return "main" not in was_running


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_whose_start_is_cut_off_at_any_moment_starts_once_and_counts_no_restart(kind: str) -> None:
    moment, pod = FIRST, static_pod("web", **KINDS[kind])
    with capture_logs():
        while run_deterministically(partial(start_with_a_death, pod, moment), seed=1):
            moment += STEP
    assert moment > 5 * CALL


async def given_up(pod: Pod) -> SimulatedRuntime:
    """Return a runtime that has given up the start of the pod's container: the agent died in the middle of it."""
    sim, source = new_runtime(), ScriptedSource("file")
    sim.delays["StartContainer"] = 1.0
    async with sim_node(sim=sim, source=source) as node:
        source.put(pod)
        await node.until(lambda: bool(sim.calls.of("StartContainer")))
    await trio.sleep(GIVEN_UP_WITHIN)
    return sim


def test_the_event_says_that_a_container_was_made_again() -> None:
    async def live() -> list[str]:
        pod = static_pod("web", restartPolicy="Never")
        sim = await given_up(pod)
        assert sim.running_containers() == []
        [container] = sim.machine.containers.values()
        assert (container.exit_code, container.started_at) == (FAILED_TO_START, 0)
        source = ScriptedSource("file")
        async with sim_node(sim=sim, source=source) as node:
            source.put(pod)
            await node.until_running(pod, within=2)
            return [event.message for event in node.agent.recorder.events_of(pod.metadata.uid)]

    with capture_logs():
        said = run_deterministically(live, seed=1)
    assert "Container created again, with the same number: the agent went away before the last one had started" in said


def test_where_the_runtime_cannot_remove_what_it_gave_up_the_next_start_counts() -> None:
    """containerd 1.6 may keep the task of a container whose start it gave up, and then neither stops nor removes it."""

    async def live() -> tuple[int, int]:
        pod = static_pod("web", restartPolicy="Never")
        sim = await given_up(pod)
        sim.faults.fail_next(
            "RemoveContainer", times=1000, message="cannot delete running task main: failed precondition"
        )
        source = ScriptedSource("file")
        async with sim_node(sim=sim, source=source) as node:
            source.put(pod)
            await node.until_running(pod, within=3)
            return node.status(pod).container_statuses[0].restart_count, len(sim.running_containers())

    with capture_logs():
        assert run_deterministically(live, seed=1) == (1, 1)


def test_a_start_that_failed_by_itself_counts_and_waits() -> None:
    async def live() -> tuple[int, list[str]]:
        pod = static_pod("web")
        async with sim_node(sim=new_runtime()) as node:
            message = "failed to create containerd task: failed to create shim task: context canceled"
            node.sim.program(Program.fails_to_start(message), container="main")
            node.source.put(pod)
            await trio.sleep(100)
            reasons = [event.reason for event in node.agent.recorder.events_of(pod.metadata.uid)]
            return node.status(pod).container_statuses[0].restart_count, reasons

    with capture_logs():
        restarts, reasons = run_deterministically(live, seed=1)
    assert restarts > 0
    assert "BackOff" in reasons


async def start_in_a_sandbox_that_stops(policy: str) -> tuple[str, list[ContainerStatus]]:
    """Start a pod by two agents. The first one dies in the start, and before the second one comes the sandbox stops, as
    after a boot of the machine."""
    pod = static_pod("web", restartPolicy=policy)
    sim = await given_up(pod)
    for sandbox in [*sim.machine.sandboxes.values()]:
        await sim.machine.stop_sandbox(sandbox)
    source = ScriptedSource("file")
    async with sim_node(sim=sim, source=source) as node:
        source.put(pod)
        await trio.sleep(120)
        return node.status(pod).phase, statuses(node, pod)


def test_a_pod_that_runs_once_fails_where_its_start_was_cut_off_and_its_sandbox_is_gone() -> None:
    with capture_logs():
        phase, [main] = run_deterministically(partial(start_in_a_sandbox_that_stops, "Never"), seed=1)
    ended = main.state.terminated
    assert ended is not None
    assert (phase, ended.exit_code, ended.reason) == ("Failed", FAILED_TO_START, "StartError")
    assert "context canceled" in ended.message
    assert ended.finished_at is not None


def test_a_pod_that_restarts_goes_on_in_a_new_sandbox_where_its_start_was_cut_off() -> None:
    with capture_logs():
        phase, [main] = run_deterministically(partial(start_in_a_sandbox_that_stops, "OnFailure"), seed=1)
    assert phase == "Running"
    assert main.state.running is not None


def test_a_start_that_took_too_long_counts_and_waits_for_the_next_agent_too() -> None:
    async def live() -> tuple[list[str], list[int]]:
        sim, source, pod = new_runtime(), ScriptedSource("file"), static_pod("web")
        sim.delays["StartContainer"] = 1000.0
        async with sim_node(sim=sim, source=source) as node:
            source.put(pod)
            await node.until(
                lambda: "CONTAINER_EXITED" in {one.state.name for one in sim.machine.containers.values()}, within=200
            )
        sim.delays["StartContainer"] = CALL
        source = ScriptedSource("file")
        async with sim_node(sim=sim, source=source) as node:
            source.put(pod)
            await node.until_running(pod)
            events = [event.message for event in node.agent.recorder.events_of(pod.metadata.uid)]
            return events, [one.restart_count for one in statuses(node, pod)]

    with capture_logs():
        events, restarts = run_deterministically(live, seed=1)
    assert "Container created" in events
    assert restarts == [1]


def test_the_last_run_stays_when_the_start_of_the_next_one_was_cut_off() -> None:
    async def live() -> list[int]:
        sim, source = new_runtime(), ScriptedSource("file")
        container = {"name": "main", "image": "test:1", "imagePullPolicy": "Always"}
        pod = static_pod("web", containers=[container])
        sim.program(Program.exits(after=5, exit_code=3), container="main")
        async with sim_node(sim=sim, source=source) as node:
            source.put(pod)
            await node.until_running(pod)
            sim.delays["StartContainer"] = 1.0
            await node.until(lambda: len(sim.calls.of("StartContainer")) == 2)
        await trio.sleep(GIVEN_UP_WITHIN)
        sim.faults.fail_next("PullImage", times=1000)
        source = ScriptedSource("file")
        async with sim_node(sim=sim, source=source):
            source.put(pod)
            await trio.sleep(200)  # garbage is collected each minute
            return sorted(one.exit_code for one in sim.machine.containers.values())

    with capture_logs():
        assert run_deterministically(live, seed=1) == [3, FAILED_TO_START]
