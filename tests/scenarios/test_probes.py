"""Probes of a cluster's pods: what the API server shows, and when, and what a restart of the agent makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.apiserver.documents import Document
from tests.apiserver.resources import PODS
from tests.probes.stage import LIVENESS, READINESS, STARTUP
from tests.scenarios.health import Health, asked, assert_nothing_left, probed, sidecar
from tests.scenarios.stage import NODE, Stage, cluster_stage, condition_status
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.sim import ExecOutcome, Program
from trikubelet.sim.programs import HANGS

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.store import Change
    from trikubelet.sim.probing import SimulatedTargets

AT_ONCE = 0.05
"""Seconds: a few calls of the runtime, and no period of anybody."""


@attrs.define(eq=False)
class Diary:
    """Every change of something in the API server's pods, with its time."""

    stage: Stage
    look: Callable[[Document], object]
    entries: list[tuple[float, object]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.stage.server.store.subscribe(PODS, self, None)

    def deliver(self, change: Change) -> None:
        """Implements the store's `Watcher`."""
        seen = self.look(change.new)
        if not self.entries or self.entries[-1][1] != seen:
            self.entries.append((trio.current_time(), seen))

    def since(self, moment: float) -> list[tuple[float, object]]:
        return [entry for entry in self.entries if entry[0] >= moment]


def readiness(document: Document) -> str:
    return condition_status(document, "Ready")


def container_of(stage: Stage, name: str, container: str = "main") -> Document:
    status = stage.status(name)
    reported = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
    return next((one for one in reported if one["name"] == container), {})


def flags(document: Document) -> list[tuple[str, bool, bool]]:
    """Name, started and ready of each container."""
    status = document.get("status", {})
    reported = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
    return [(one["name"], one.get("started", False), one["ready"]) for one in reported]


def targets_of(stage: Stage) -> SimulatedTargets:
    assert stage.node is not None
    return stage.node.targets


async def test_readiness_is_in_the_api_server_as_soon_as_the_container_says_so(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(READINESS)
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        await trio.sleep(30)
        stage.sim.program(health.program(), container="main")
        diary = Diary(stage, readiness)
        stage.create_pod("web", containers=[probed("main", READINESS, periodSeconds=7, failureThreshold=2)])
        await trio.sleep(30)
        assert condition_status(stage.pod("web"), "ContainersReady") == "False"
        for turn in range(3):
            changed = trio.current_time()
            health.says.clear()
            await trio.sleep(30)
            health.ill(READINESS)
            failing = trio.current_time()
            await trio.sleep(30)
            (ready, yes), (unready, no) = diary.since(changed)
            assert (yes, no) == ("True", "False")
            questions = asked(targets_of(stage), READINESS, since=changed)
            assert ready - questions[0] < AT_ONCE, turn
            second_failure = [time for time in questions if time >= failing][1]
            assert unready - second_failure < AT_ONCE, turn
        assert [run.attempt for run in stage.sim.started("main")] == [0]


async def test_the_api_server_is_told_of_failures_in_the_kubelets_words(autojump_clock: MockClock) -> None:
    health = Health()
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(sigterm=None), container="main")
        container = probed("main", LIVENESS, terminationGracePeriodSeconds=4)
        stage.create_pod("web", containers=[container], terminationGracePeriodSeconds=60)
        await stage.until_ready("web")
        await trio.sleep(300)
        health.ill(LIVENESS)
        broken = trio.current_time()
        await stage.until(lambda: len(stage.sim.started("main")) == 2, within=20)
        first = stage.sim.started("main")[0]
        failures = asked(targets_of(stage), LIVENESS, since=broken)
        assert first.ended_at is not None
        assert first.ended_at - failures[2] == pytest.approx(4, abs=AT_ONCE)
        health.says.clear()
        await trio.sleep(5)
        unhealthy, killing = (
            next(one for one in stage.admin.list("events", "default") if one["reason"] == reason)
            for reason in ("Unhealthy", "Killing")
        )
        assert unhealthy["message"] == "Liveness probe failed: HTTP probe failed with statuscode: 500"
        assert (unhealthy["type"], unhealthy["count"]) == ("Warning", 3)
        assert unhealthy["involvedObject"]["fieldPath"] == "spec.containers{main}"
        assert killing["message"] == "Container main failed liveness probe, will be restarted"
        assert killing["type"] == "Normal"
        shown = container_of(stage, "web")
        assert (shown["restartCount"], shown["ready"], shown["started"]) == (1, True, True)
        assert shown["lastState"]["terminated"]["exitCode"] == 137


async def test_a_pod_that_never_lives_is_shown_to_back_off(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(LIVENESS)
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(), container="main")
        stage.create_pod("web", containers=[probed("main", LIVENESS, READINESS)])

        def reason() -> str:
            state = container_of(stage, "web").get("state", {})
            return str(state.get("waiting", {}).get("reason", ""))

        await stage.until(lambda: reason() == "CrashLoopBackOff", within=60)
        shown = container_of(stage, "web")
        assert (shown["restartCount"], shown["ready"], shown["started"]) == (2, False, False)
        assert shown["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=main pod=web_")
        assert stage.condition("web", "Ready") == "False"
        assert stage.phase("web") == "Running"
        health.says.clear()
        await stage.until_ready("web", within=30)
        assert container_of(stage, "web")["restartCount"] == 3


async def test_the_other_probes_and_the_pods_readiness_wait_for_startup(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(STARTUP)
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(), container="main")
        diary = Diary(stage, flags)
        container = probed("main", LIVENESS, READINESS, STARTUP, periodSeconds=10, failureThreshold=100)
        stage.create_pod("web", containers=[container])
        await trio.sleep(95)
        began = trio.current_time()
        health.says.clear()
        await stage.until_ready("web")
        targets = targets_of(stage)
        (passed,) = asked(targets, STARTUP, since=began)
        assert asked(targets, READINESS)[0] >= passed
        assert asked(targets, LIVENESS) == []
        shown = diary.since(began)
        assert shown[-1][1] == [("main", True, True)]
        assert shown[-1][0] - passed < AT_ONCE, "readiness is asked when startup is through, and shown"


async def test_a_sidecar_that_has_not_started_keeps_the_pod_from_being_initialized(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(STARTUP)
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(), container="mesh")
        mesh = sidecar(probed("mesh", STARTUP, failureThreshold=1000))
        stage.create_pod("web", initContainers=[mesh], containers=[{"name": "main", "image": "test:1"}])
        await trio.sleep(60)
        assert stage.condition("web", "Initialized") == "False"
        assert stage.phase("web") == "Pending"
        assert stage.sim.started("main") == []
        health.says.clear()
        await stage.until_ready("web", within=2)
        assert stage.condition("web", "Initialized") == "True"


async def test_a_readiness_gate_is_needed_beside_the_probe(autojump_clock: MockClock) -> None:
    health = Health()
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(), container="main")
        gate = "example.com/load-balancer"
        stage.create_pod("web", containers=[probed("main", READINESS)], readinessGates=[{"conditionType": gate}])
        await stage.until(lambda: stage.condition("web", "ContainersReady") == "True")
        await trio.sleep(30)
        assert stage.condition("web", "Ready") == "False"

        def open_gate(status: str) -> None:
            body = {"status": {"conditions": [{"type": gate, "status": status}]}}
            kind = "application/strategic-merge-patch+json"
            stage.admin.patch("pods", "web", body=body, content_type=kind, subresource="status")

        open_gate("True")
        assert await stage.until_ready("web", within=2) < 1
        health.ill(READINESS)
        await stage.until(lambda: stage.condition("web", "Ready") == "False", within=5)
        assert stage.condition("web", gate) == "True"
        health.says.clear()
        await stage.until_ready("web", within=2)
        open_gate("False")
        await stage.until(lambda: stage.condition("web", "Ready") == "False", within=2)
        assert stage.condition("web", "ContainersReady") == "True"


async def test_a_restart_of_the_agent_takes_nobody_out_of_service(autojump_clock: MockClock) -> None:
    health = Health()
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program())
        mesh = sidecar(probed("mesh", READINESS, STARTUP, periodSeconds=20))
        main = probed("main", LIVENESS, READINESS, STARTUP, periodSeconds=20)
        names = [f"web-{number}" for number in range(20)]
        for name in names:
            stage.create_pod(name, initContainers=[mesh], containers=[main])
        await stage.until_ready(*names, within=120)
        await trio.sleep(60)
        before = {name: flags(stage.pod(name)) for name in names}
        changes = Diary(stage, readiness)
        await stage.restart_agent()
        restarted = trio.current_time()
        await trio.sleep(100)
        assert {name: flags(stage.pod(name)) for name in names} == before
        assert {seen for _, seen in changes.entries} <= {"True"}, "it was never said otherwise"
        assert {stage.condition(name, "Initialized") for name in names} == {"True"}
        assert {run.attempt for run in stage.sim.runs()} == {0}
        targets = targets_of(stage)
        assert [one for one in targets.asked if one.kind is STARTUP] == [], "who has started is known to have"
        firsts = sorted(
            min(one.time for one in targets.asked if one.container_id == run.container_id) - restarted
            for run in stage.sim.started("main")
        )
        assert len(firsts) == 20
        assert firsts[0] > 0
        assert firsts[-1] < 21
        in_halves = sum(time < 10 for time in firsts)
        assert in_halves >= 5, firsts
        assert len({round(time, 1) for time in firsts}) > 10, "not all in one moment"


async def test_a_new_agent_knows_that_a_sidecar_has_started(autojump_clock: MockClock) -> None:
    """Its startup probe is never asked again; if nobody knew, main containers would wait for it forever."""
    health = Health()
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program())
        mesh = sidecar(probed("mesh", STARTUP))
        stage.create_pod("web", initContainers=[mesh], containers=[{"name": "main", "image": "test:1"}])
        await stage.until_ready("web")
        await trio.sleep(60)
        await stage.restart_agent()
        await trio.sleep(30)
        (main,) = (one for one in stage.sim.running_containers() if one.name == "main")
        stage.sim.end_container(main, exit_code=1)
        await stage.until(lambda: len(stage.sim.started("main")) == 2, within=2)
        assert len(stage.sim.started("mesh")) == 1
        assert asked(targets_of(stage), STARTUP, "mesh") == []


async def test_a_container_that_was_not_ready_is_not_made_ready_by_a_restart(autojump_clock: MockClock) -> None:
    health = Health()
    health.ill(READINESS)
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(), container="main")
        stage.create_pod("web", containers=[probed("main", READINESS)])
        await stage.until_phase("web", "Running")
        await trio.sleep(60)
        diary = Diary(stage, readiness)
        await stage.restart_agent()
        await trio.sleep(30)
        assert [seen for _, seen in diary.entries if seen != "False"] == []
        health.says.clear()
        await stage.until_ready("web", within=2)


@pytest.mark.parametrize("gate", [False, True])
async def test_with_the_gate_on_a_restart_takes_everybody_out_of_service(gate: bool, autojump_clock: MockClock) -> None:
    """ChangeContainerStatusOnKubeletRestart."""
    health = Health()
    gates = {"ChangeContainerStatusOnKubeletRestart": gate}
    async with cluster_stage(configuration=KubeletConfiguration(feature_gates=gates)) as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program())
        stage.create_pod("web", containers=[probed("main", READINESS, STARTUP, periodSeconds=20)])
        await stage.until_ready("web", within=120)
        await trio.sleep(60)
        changes = Diary(stage, readiness)
        await stage.restart_agent()
        await trio.sleep(60)
        seen = [seen for _, seen in changes.entries]
        assert ("False" in seen) is gate
        assert stage.condition("web", "Ready") == "True"
        assert (asked(targets_of(stage), STARTUP) != []) is gate


async def test_after_a_restart_containers_of_a_pod_that_was_not_ready_prove_themselves(
    autojump_clock: MockClock,
) -> None:
    well, bad = Health(), Health()
    bad.ill(READINESS)
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(well.program(), container="good")
        stage.sim.program(bad.program(), container="bad")
        probes = [probed(name, READINESS, periodSeconds=20) for name in ("good", "bad")]
        stage.create_pod("web", containers=probes)
        await stage.until(lambda: bool(container_of(stage, "web", "good").get("ready")))
        await trio.sleep(60)
        changes = Diary(stage, lambda pod: {one["name"]: one["ready"] for one in pod["status"]["containerStatuses"]})
        await stage.restart_agent()
        await trio.sleep(30)
        assert [ready for _, ready in changes.entries] == [
            {"good": False, "bad": False},
            {"good": True, "bad": False},
        ]


async def test_a_static_pod_is_ready_again_with_its_first_success_after_a_restart(autojump_clock: MockClock) -> None:
    """It is known before its mirror pod is, so nothing remembers that it was ready; as with the kubelet."""
    health = Health()
    mirror = f"etcd-{NODE}"
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(), container="main")
        stage.add_static_pod("etcd", containers=[probed("main", LIVENESS, READINESS, periodSeconds=30)])
        await stage.until_ready(mirror, within=60)
        await trio.sleep(60)
        await stage.restart_agent()
        diary = Diary(stage, readiness)
        await stage.until(lambda: diary.entries[-1:] != [] and diary.entries[-1][1] == "True", within=31)
        shown = diary.entries[-1][0]
        assert shown - asked(targets_of(stage), READINESS)[0] < AT_ONCE
        assert [run.attempt for run in stage.sim.started("main")] == [0]


async def test_nobody_is_killed_or_unready_for_a_runtime_that_is_away(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(Program(exec=lambda command: ExecOutcome()), container="main")
        how = {"exec": {"command": ["healthy"]}}
        stage.create_pod("web", containers=[probed("main", LIVENESS, READINESS, how=how, failureThreshold=1)])
        await stage.until_ready("web")
        diary = Diary(stage, flags)
        began = trio.current_time()
        stage.sim.restart(downtime=60)
        await trio.sleep(150)
        assert diary.since(began) == [], "its containers stay as they were"
        assert [(run.attempt, run.ended_at) for run in stage.sim.started("main")] == [(0, None)]
        errored = [text for _, reason, text in stage.events("web") if reason == "Unhealthy"]
        assert errored
        assert all(" probe errored and resulted in unknown state: " in text for text in errored)


async def test_a_pod_that_is_deleted_is_not_restarted_and_serves_until_its_end(autojump_clock: MockClock) -> None:
    health = Health()
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(sigterm=8.0), container="main")
        stage.sim.program(health.program(sigterm=6.0), container="mesh")
        mesh = sidecar(probed("mesh", LIVENESS, READINESS))
        stage.create_pod("web", initContainers=[mesh], containers=[probed("main", LIVENESS, READINESS)])
        await stage.until_ready("web")
        await trio.sleep(10.4)
        diary = Diary(stage, flags)
        health.ill(LIVENESS)
        stage.delete_pod("web", grace=60)
        deleted = trio.current_time()
        await trio.sleep(4)
        assert stage.condition("web", "Ready") == "True", "whoever is still being sent requests answers them"
        health.ill(READINESS, LIVENESS)
        await trio.sleep(3.5)
        assert stage.condition("web", "Ready") == "False"
        assert diary.entries[-1][1] == [("main", True, False), ("mesh", True, False)]
        await stage.until_gone("web")
        assert {run.attempt for run in stage.sim.runs()} == {0}
        turn = stage.sim.started("main")[0].ended_at
        assert turn is not None
        targets = targets_of(stage)
        assert asked(targets, LIVENESS, "main", since=deleted + AT_ONCE) == []
        assert len(asked(targets, READINESS, "mesh", since=turn)) >= 5
        assert_nothing_left(stage.agent)


async def test_a_pod_that_is_deleted_by_force_while_its_probe_hangs_leaves_nothing(autojump_clock: MockClock) -> None:
    health = Health({LIVENESS: HANGS, READINESS: HANGS})
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(), container="main")
        stage.create_pod("web", containers=[probed("main", LIVENESS, READINESS, timeoutSeconds=600)])
        await stage.until_phase("web", "Running")
        await trio.sleep(5)
        assert stage.agent.probes.statistics().asking == 2
        stage.delete_pod("web", grace=0)
        await stage.until(lambda: not stage.sim.running_containers(), within=5)
        await trio.sleep(5)
        assert_nothing_left(stage.agent)


async def test_an_api_server_that_is_away_changes_nothing_for_probes(autojump_clock: MockClock) -> None:
    health = Health()
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.program(health.program(), container="main")
        stage.create_pod("web", containers=[probed("main", LIVENESS, READINESS)])
        await stage.until_ready("web")
        stage.server.faults.unreachable()
        health.ill(LIVENESS)
        await stage.until(lambda: len(stage.sim.started("main")) == 2, within=10)
        health.ill(READINESS)
        await trio.sleep(10)
        stage.server.faults.back()
        await stage.until(lambda: stage.condition("web", "Ready") == "False", within=60)
        health.says.clear()
        await stage.until_ready("web", within=2)
        assert container_of(stage, "web")["restartCount"] == 1
