"""Probes of pods on a simulated node: who is asked when, and what is done about the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.sim_node import SimNode, sim_node, static_pod
from tests.examples import examples
from tests.probes.stage import LIVENESS, READINESS, STARTUP
from tests.scenarios.health import Health, asked, assert_nothing_left, probed, sidecar
from trikubelet.agent.view import LocalView
from trikubelet.probes.types import ProbeKind
from trikubelet.sim import ExecOutcome, Program, SimulatedRuntime
from trikubelet.sim.node import ScriptedSource
from trikubelet.sim.programs import HANGS

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import ContainerStatus, Pod

AT_ONCE = 0.05
"""Seconds: a few calls of the runtime, and no period of anybody."""


def told(node: SimNode, pod: Pod, reason: str) -> list[tuple[str, str, str]]:
    """Type, text and place of the pod's events with this reason."""
    events = node.agent.recorder.events_of(pod.metadata.uid)
    return [(one.type.value, one.message, one.field_path) for one in events if one.reason == reason]


def container_of(node: SimNode, pod: Pod, name: str = "main") -> ContainerStatus:
    status = node.status(pod)
    return next(one for one in (*status.container_statuses, *status.init_container_statuses) if one.name == name)


# --- liveness ---


async def test_a_container_that_fails_its_liveness_probe_restarts_with_the_grace_of_the_probe(
    autojump_clock: MockClock,
) -> None:
    health = Health()
    container = probed("main", LIVENESS, periodSeconds=10, terminationGracePeriodSeconds=3)
    pod = static_pod("web", containers=[container], terminationGracePeriodSeconds=60)
    async with sim_node() as node:
        node.sim.program(health.program(sigterm=None), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        # So long that nothing but the probe itself is news.
        await trio.sleep(1000)
        assert len(node.sim.started("main")) == 1
        health.ill(LIVENESS)
        broken = trio.current_time()
        await node.until(lambda: len(node.sim.started("main")) == 2)
        failures = asked(node.targets, LIVENESS, since=broken)[:3]
        first, second = node.sim.started("main")
        assert first.ended_at is not None
        assert first.exit_code == 137
        assert first.ended_at - failures[-1] == pytest.approx(3, abs=AT_ONCE), "not after the pod's minute"
        assert second.started_at - first.ended_at < 1
        assert told(node, pod, "Unhealthy") == [
            ("Warning", "Liveness probe failed: HTTP probe failed with statuscode: 500", "spec.containers{main}")
        ]
        assert told(node, pod, "Killing") == [
            ("Normal", "Container main failed liveness probe, will be restarted", "spec.containers{main}")
        ]
        await trio.sleep(1)
        assert container_of(node, pod).restart_count == 1


async def test_nobody_asks_between_a_liveness_failure_and_the_restart(autojump_clock: MockClock) -> None:
    health = Health()
    pod = static_pod("web", containers=[probed("main", LIVENESS, READINESS)], terminationGracePeriodSeconds=20)
    async with sim_node() as node:
        node.sim.program(health.program(sigterm=None), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        health.ill(LIVENESS)
        await node.until(lambda: bool(told(node, pod, "Killing")))
        dying = trio.current_time()
        health.ill(READINESS)  # which is still asked, and makes another status, at which every worker looks again
        await node.until(lambda: not container_of(node, pod).ready, within=5)
        health.says.clear()
        await node.until(lambda: len(node.sim.started("main")) == 2)
        again = node.sim.started("main")[1].started_at
        assert again - dying > 15
        assert [time for time in asked(node.targets, LIVENESS, since=dying) if time < again] == []
        await trio.sleep(30)
        assert len(asked(node.targets, LIVENESS, since=again)) >= 29
        assert len(node.sim.started("main")) == 2, "what was said of the old container is not held against the new one"


async def test_a_container_that_always_fails_its_liveness_probe_backs_off(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(LIVENESS)
    pod = static_pod("web", containers=[probed("main", LIVENESS)])
    async with sim_node() as node:
        node.sim.program(health.program(), container="main")
        node.source.put(pod)
        await node.until(lambda: len(node.sim.started("main")) == 3)
        first, second, third = node.sim.started("main")
        # Its kill and its start are one sync, which knows only of earlier instances that have ended: the kubelet's
        # back-off begins with the second of these.
        assert first.ended_at is not None
        assert second.ended_at is not None
        assert second.started_at - first.ended_at < 1
        assert third.started_at - second.ended_at < 1
        await node.until(lambda: third.ended_at is not None)
        assert third.ended_at is not None
        await trio.sleep(1)
        container = container_of(node, pod)
        assert container.state.waiting is not None
        assert container.state.waiting.reason == "CrashLoopBackOff"
        assert container.last_state.terminated is not None
        assert container.last_state.terminated.exit_code == 143
        assert (container.restart_count, container.started, container.ready) == (2, False, False)
        await node.until(lambda: len(node.sim.started("main")) == 4)
        again = node.sim.started("main")[3].started_at
        assert 10 <= again - third.ended_at < 20
        assert [time for time in asked(node.targets, LIVENESS, since=third.ended_at) if time < again] == []
        health.says.clear()
        await trio.sleep(300)
        assert len(node.sim.started("main")) == 4
        assert container_of(node, pod).ready


async def test_a_container_that_nobody_may_restart_stays_ended(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(LIVENESS)
    pod = static_pod("job", containers=[probed("main", LIVENESS)], restartPolicy="Never")
    async with sim_node() as node:
        node.sim.program(health.program(), container="main")
        node.source.put(pod)
        await node.until_phase(pod, "Failed")
        await trio.sleep(60)
        assert len(node.sim.started("main")) == 1
        # The pod is still wanted, and over.
        assert_nothing_left(node.agent)


# --- startup ---


async def test_startup_goes_before_liveness_and_readiness(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(STARTUP)
    pod = static_pod("slow", containers=[probed("main", LIVENESS, READINESS, STARTUP, failureThreshold=1000)])
    async with sim_node() as node:
        node.sim.program(health.program(), container="main")
        node.source.put(pod)
        await trio.sleep(100)
        assert len(asked(node.targets, STARTUP)) >= 99
        assert asked(node.targets, LIVENESS) == asked(node.targets, READINESS) == []
        assert (container_of(node, pod).started, container_of(node, pod).ready) == (False, False)
        health.says.clear()
        began = trio.current_time()
        await node.until(lambda: container_of(node, pod).ready)
        (started,) = asked(node.targets, STARTUP, since=began)
        assert container_of(node, pod).started
        assert asked(node.targets, READINESS)[0] - started < AT_ONCE, "readiness does not wait for its period"
        await trio.sleep(10)
        assert asked(node.targets, STARTUP)[-1] == started, "who has started is not asked again"
        assert len(asked(node.targets, LIVENESS)) >= 9


async def test_a_container_that_does_not_start_in_time_restarts(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(STARTUP)
    pod = static_pod("slow", containers=[probed("main", LIVENESS, STARTUP, failureThreshold=5)])
    async with sim_node() as node:
        node.sim.program(health.program(), container="main")
        node.source.put(pod)
        await node.until(lambda: len(node.sim.started("main")) == 2)
        first = node.sim.started("main")[0]
        assert first.ended_at is not None
        before_its_turn, *failures = asked(node.targets, STARTUP)[:6]
        assert before_its_turn < failures[0]
        assert first.ended_at - failures[4] < AT_ONCE
        assert told(node, pod, "Killing") == [
            ("Normal", "Container main failed startup probe, will be restarted", "spec.containers{main}")
        ]
        assert told(node, pod, "Unhealthy")[0][1].startswith("Startup probe failed: ")
        assert asked(node.targets, LIVENESS) == []


async def test_main_containers_wait_until_a_sidecar_has_started(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(STARTUP)
    mesh = sidecar(probed("mesh", STARTUP, failureThreshold=1000))
    pod = static_pod("meshed", initContainers=[mesh], containers=[{"name": "main", "image": "test:1"}])
    async with sim_node() as node:
        node.sim.program(health.program(), container="mesh")
        node.source.put(pod)
        await trio.sleep(100)
        assert node.sim.started("main") == []
        assert node.status(pod).phase == "Pending"
        health.says.clear()
        await node.until_running(pod)
        passed = asked(node.targets, STARTUP, "mesh")[-1]
        assert node.sim.started("main")[0].started_at - passed < AT_ONCE


# --- the runtime is away ---


async def test_nobody_is_killed_for_a_runtime_that_is_away(autojump_clock: MockClock) -> None:
    outcome = ExecOutcome()
    container = probed("main", LIVENESS, READINESS, how={"exec": {"command": ["healthy"]}}, failureThreshold=1)
    pod = static_pod("web", containers=[container])
    async with sim_node() as node:
        node.sim.program(Program(exec=lambda command: outcome), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        node.sim.restart(downtime=60)
        began = trio.current_time()
        await trio.sleep(50)
        assert len(asked(node.targets, LIVENESS, since=began)) > 20, "it is tried all the same"
        assert container_of(node, pod).ready
        await trio.sleep(60)
        assert [(run.attempt, run.ended_at) for run in node.sim.started("main")] == [(0, None)]
        assert container_of(node, pod).ready
        texts = [text for _, text, _ in told(node, pod, "Unhealthy")]
        assert texts
        assert all(" probe errored and resulted in unknown state: " in text for text in texts)
        outcome = ExecOutcome(exit_code=1, stdout=b"sick")
        await node.until(lambda: len(node.sim.started("main")) == 2, within=5)
        assert "Liveness probe failed: sick" in [text for _, text, _ in told(node, pod, "Unhealthy")]


# --- the end of a pod ---


async def test_at_its_end_a_pod_is_asked_no_longer_than_each_answer_matters(autojump_clock: MockClock) -> None:
    main = probed("main", LIVENESS, READINESS)
    mesh = sidecar(probed("mesh", LIVENESS, READINESS))
    pod = static_pod("meshed", initContainers=[mesh], containers=[main], terminationGracePeriodSeconds=60)
    health = Health()
    async with sim_node() as node:
        node.sim.program(health.program(sigterm=10.5), container="main")
        node.sim.program(Program.runs_forever(sigterm=5.0), container="mesh")
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(10.5)
        health.ill(LIVENESS)
        node.source.remove(pod)
        ending = trio.current_time()
        await node.until_gone(pod)
        turn, end = node.sim.started("main")[0].ended_at, node.sim.started("mesh")[0].ended_at
        assert turn is not None
        assert end is not None
        assert turn - ending == pytest.approx(10.5, abs=AT_ONCE)
        assert end - turn == pytest.approx(5, abs=AT_ONCE)
        assert asked(node.targets, LIVENESS, "main", since=ending + AT_ONCE) == []
        assert len(asked(node.targets, READINESS, "main", since=ending)) >= 10
        assert len(asked(node.targets, LIVENESS, "mesh", since=ending)) >= 10
        assert asked(node.targets, LIVENESS, "mesh", since=turn + AT_ONCE) == []
        assert len(asked(node.targets, READINESS, "mesh", since=turn)) >= 4
        assert asked(node.targets, READINESS, "mesh", since=end + AT_ONCE) == []
        assert [run.attempt for run in node.sim.started("main")] == [0]
        assert_nothing_left(node.agent)


@pytest.mark.parametrize("kind", [LIVENESS, STARTUP], ids=lambda kind: kind.value)
async def test_what_could_restart_a_container_is_not_asked_while_it_is_stopped(
    kind: ProbeKind, autojump_clock: MockClock
) -> None:
    health = Health()
    health.ill(STARTUP)
    pod = static_pod("web", containers=[probed("main", kind, failureThreshold=1000)])
    async with sim_node() as node:
        node.sim.program(health.program(sigterm=10.0), container="main")
        node.source.put(pod)
        await trio.sleep(10.5)
        assert len(asked(node.targets, kind)) >= 9
        node.source.remove(pod)
        ending = trio.current_time()
        assert await node.until_gone(pod) > 9
        assert asked(node.targets, kind, since=ending + AT_ONCE) == []


@pytest.mark.parametrize("kind", list(ProbeKind), ids=lambda kind: kind.value)
async def test_a_pod_that_is_removed_while_its_probe_hangs_leaves_nothing(
    kind: ProbeKind, autojump_clock: MockClock
) -> None:
    health = Health({kind: HANGS})
    pod = static_pod("stuck", containers=[probed("main", kind, timeoutSeconds=3600)])
    async with sim_node() as node:
        node.sim.program(health.program(), container="main")
        node.source.put(pod)
        await trio.sleep(10)
        assert LocalView(node.agent).statistics()["probes"].asking == 1
        node.source.remove(pod)
        assert await node.until_gone(pod) < 0.5
        assert_nothing_left(node.agent)


STUCK_PODS = examples(50)
"""Each has ten probes."""


async def test_hundreds_of_targets_that_hang_do_not_delay_a_deletion(autojump_clock: MockClock) -> None:
    health = Health({LIVENESS: HANGS, READINESS: HANGS})
    crowd = [
        static_pod(
            f"stuck-{number}",
            containers=[
                probed(f"c{place}", LIVENESS, READINESS, timeoutSeconds=5, failureThreshold=1000) for place in range(5)
            ],
        )
        for number in range(STUCK_PODS)
    ]
    one = static_pod("web", containers=[probed("main", LIVENESS, READINESS)])

    async def seconds_to_end(node: SimNode) -> float:
        node.source.put(one)
        await node.until_running(one)
        await trio.sleep(3.3)
        node.source.remove(one)
        removed = trio.current_time()
        while node.agent.workers.states.phase(one.metadata.uid) is not None:
            await trio.sleep(0.001)
            assert trio.current_time() - removed < 30
        return trio.current_time() - removed

    async with sim_node() as node:
        alone = await seconds_to_end(node)
        for number in range(5):
            node.sim.program(health.program(), container=f"c{number}")
        node.source.put(*crowd)
        await node.until(lambda: node.agent.probes.statistics().asking == 10 * STUCK_PODS, within=120)
        assert await seconds_to_end(node) == pytest.approx(alone, abs=AT_ONCE)
        assert node.agent.probes.statistics().asking == 10 * STUCK_PODS
        node.source.remove(*crowd)
        for pod in crowd:
            await node.until_gone(pod, within=120)
        assert_nothing_left(node.agent)


# --- the agent restarts ---


async def test_a_new_agent_lets_static_pods_be_until_their_probes_say_something(autojump_clock: MockClock) -> None:
    """Without an API server nothing remembers that a container was ready: it is so again with its first success."""
    health = Health()
    sim, source = SimulatedRuntime(seed=1), ScriptedSource("file")
    sim.program(health.program(), container="main")
    pod = static_pod("web", containers=[probed("main", LIVENESS, READINESS, periodSeconds=10, failureThreshold=1)])
    source.put(pod)
    async with sim_node(sim=sim, source=source) as node:
        await node.until_running(pod)
    await trio.sleep(100)
    async with sim_node(sim=sim, source=source) as node:
        await node.until_running(pod, within=11)
        await trio.sleep(100)
        assert [run.attempt for run in sim.started("main")] == [0]
