"""Pods that hang, one for each thing that can hold a pod up: the first line of `why` is the true cause."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.agent.sim_node import SimNode, clock_without_threads, sim_node, static_pod
from tests.scenarios.stage import cluster_stage
from trikubelet.admission.types import Admitted, Preempt
from trikubelet.agent.why import causes, explain, first_cause
from trikubelet.sim import ExecOutcome, Program, SimulatedRuntime
from trikubelet.sim.images import PullError
from trikubelet.sim.machine import Machine
from trikubelet.sim.node import ScriptedSource, simulated_node
from trikubelet.volumes.decisions import Action
from trikubelet.volumes.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.admission.types import Verdict
    from trikubelet.api import Pod
    from trikubelet.volumes.decisions import Operation, Outcome


@pytest.fixture
def mock_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    return clock_without_threads(monkeypatch)


def why(node: SimNode, pod: Pod) -> str:
    return first_cause(node.agent, pod.metadata.uid)


def events(node: SimNode, pod: Pod, reason: str) -> list[str]:
    return [event.message for event in node.agent.recorder.events_of(pod.metadata.uid) if event.reason == reason]


async def test_a_pod_that_runs_waits_for_nothing(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        assert why(node, pod) == "nothing: the pod is Running and ready"


async def test_a_stop_that_takes_its_grace(mock_clock: MockClock) -> None:
    pod = static_pod("web", terminationGracePeriodSeconds=30)
    async with sim_node() as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        node.source.remove(pod)
        await trio.sleep(21)
        assert why(node, pod) == "StopContainer of `main`: 21 of 30 s of grace; asked by: manifest removed"
        await node.until_gone(pod)
        assert events(node, pod, "StuckTerminating") == [], "it ended within its grace"


async def test_a_restart_that_takes_its_grace(mock_clock: MockClock) -> None:
    probe = {"exec": {"command": ["alive"]}, "periodSeconds": 1, "failureThreshold": 1}
    pod = static_pod("web", containers=[{"name": "main", "image": "test:1", "livenessProbe": probe}])
    async with sim_node() as node:
        failing = attrs.evolve(Program.runs_forever(sigterm=None), exec=lambda _: ExecOutcome(exit_code=1))
        node.sim.program(failing, container="main")
        node.source.put(pod)
        await node.until_phase(pod, "Running")
        await trio.sleep(10)
        assert re.fullmatch(
            r"StopContainer of `main`: \d+ of 30 s of grace; Container main failed liveness probe, will be restarted",
            why(node, pod),
        )


async def test_a_pre_stop_hook(mock_clock: MockClock) -> None:
    hook = {"preStop": {"exec": {"command": ["drain"]}}}
    main = {"name": "main", "image": "test:1", "lifecycle": hook}
    pod = static_pod("web", containers=[main], terminationGracePeriodSeconds=60)
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        node.sim.faults.hang_next("ExecSync")
        node.source.remove(pod)
        await trio.sleep(10)
        assert why(node, pod) == "preStop hook of `main`: 10 of 60 s of grace; asked by: manifest removed"


async def test_a_post_start_hook(mock_clock: MockClock) -> None:
    hook = {"postStart": {"exec": {"command": ["warm-up"]}}}
    pod = static_pod("web", containers=[{"name": "main", "image": "test:1", "lifecycle": hook}])
    async with sim_node() as node:
        node.sim.faults.hang_next("ExecSync")
        node.source.put(pod)
        await trio.sleep(10)
        assert re.fullmatch(r"postStart hook of `main`: (9\.\d|10\.0|10) s", why(node, pod))


async def test_an_unmount(mock_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perform = Operations.perform

    async def hangs(self: Operations, operation: Operation) -> Outcome:
        if operation.action is Action.TEAR_DOWN:
            await trio.sleep_forever()
        return await perform(self, operation)

    monkeypatch.setattr(Operations, "perform", hangs)
    mounts = [{"name": "data", "mountPath": "/data"}]
    main = {"name": "main", "image": "test:1", "volumeMounts": mounts}
    pod = static_pod(
        "web", containers=[main], volumes=[{"name": "data", "emptyDir": {}}], terminationGracePeriodSeconds=1
    )
    async with sim_node(tmp_path) as node:
        node.source.put(pod)
        await node.until_running(pod)
        node.source.remove(pod)
        await trio.sleep(30)
        assert re.fullmatch(r"volume `data`: tear down for \d+ s; asked by: manifest removed", why(node, pod))
        (event,) = events(node, pod, "StuckTerminating")
        assert event.startswith("The pod has not ended within 10 s: volume `data`: tear down for ")


async def test_a_runtime_that_does_not_stop_a_container(mock_clock: MockClock) -> None:
    pod = static_pod("web", terminationGracePeriodSeconds=20)
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        node.sim.faults.hang_next("StopContainer", times=100)
        node.source.remove(pod)
        await trio.sleep(35)
        assert why(node, pod).startswith(
            "StopContainer of `main`: 35 s, 15 s longer than its grace: the runtime has not answered"
        )
        assert why(node, pod).endswith("; asked by: manifest removed")
        (event,) = events(node, pod, "StuckTerminating")
        assert event.startswith("The pod has not ended within 30 s: StopContainer of `main`: 30 s")


@pytest.mark.parametrize("rpc", ["RunPodSandbox", "CreateContainer", "StartContainer"])
async def test_a_runtime_that_does_not_answer_a_start(mock_clock: MockClock, rpc: str) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.sim.faults.hang_next(rpc, times=100)
        node.source.put(pod)
        await trio.sleep(50)
        of = "" if rpc == "RunPodSandbox" else " of `main`"
        assert re.fullmatch(rf"{rpc}{of}: \d+ s: the runtime has not answered", why(node, pod))


async def test_a_runtime_that_does_not_answer_an_inspection(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.source.put(pod)
        await node.until_running(pod)
        for rpc in ("ListContainers", "ContainerStatus", "PodSandboxStatus", "ListPodSandbox"):
            node.sim.faults.hang_next(rpc, times=100)
        node.source.remove(pod)
        await trio.sleep(40)
        assert re.match(
            r"the runtime, which has not answered (ListContainers|ContainerStatus|PodSandboxStatus|ListPodSandbox) "
            r"for \d+ s; asked by: manifest removed",
            why(node, pod),
        )


async def test_an_image_that_is_pulled(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node(pull_progress=lambda image: f"3 of 9 MB of {image}") as node:
        node.sim.images.offer("test:1", seconds=500)
        node.source.put(pod)
        await trio.sleep(50)
        assert re.fullmatch(r"PullImage of `main`: image test:1, \d+ s, 3 of 9 MB of test:1", why(node, pod))


async def test_an_image_that_cannot_be_pulled(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.sim.images.fail_pulls("test:1", PullError("manifest unknown"), times=1000)
        node.source.put(pod)
        await trio.sleep(100)
        assert re.match(
            r"(ErrImagePull|ImagePullBackOff) of `main`, tried again in \d+ s: (?!Back-off).*manifest unknown",
            why(node, pod),
        )


async def test_a_volume_that_is_not_ready(mock_clock: MockClock, tmp_path: Path) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    volumes = [{"name": "data", "hostPath": {"path": str(tmp_path / "missing"), "type": "Directory"}}]
    pod = static_pod("web", containers=[{"name": "main", "image": "test:1", "volumeMounts": mounts}], volumes=volumes)
    async with sim_node(tmp_path) as node:
        node.source.put(pod)
        await trio.sleep(50)
        assert re.match(r"volume `data`: hostPath type check failed: .*missing is not a directory", why(node, pod))


class Refusing:
    """An admission for which the second pod has to wait for the end of the first."""

    def admit(self, pod: Pod, others: Sequence[Pod], **_: Any) -> Verdict:
        return Preempt(tuple(others), "cpu") if others and pod.metadata.name == "critical-node" else Admitted()


async def test_admission(mock_clock: MockClock) -> None:
    victim, pod = static_pod("victim", terminationGracePeriodSeconds=90), static_pod("critical")
    sim, source = SimulatedRuntime(seed=1), ScriptedSource("file")
    sim.program(Program.runs_forever(sigterm=None), pod="victim-node")
    async with simulated_node(sim, sources={"file": source}, admission=Refusing()) as simulated:
        node = SimNode(simulated.agent, sim, source, simulated.targets)
        source.put(victim)
        await node.until_running(victim)
        source.put(pod)
        await trio.sleep(10)
        assert why(node, pod) == ("admission: it waits for the end of pods that make room for it: default/victim-node")
        assert why(node, victim) == (
            "StopContainer of `main`: 10 of 90 s of grace; asked by: preempted to make room for default/critical-node"
        )


async def test_a_back_off(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.sim.program(Program.crashes(100, after=0.5, exit_code=7), container="main")
        node.source.put(pod)
        await trio.sleep(60)
        assert re.fullmatch(
            r"CrashLoopBackOff of `main`, tried again in \d+ s: its last run ended with exit code 7 \(Error\)",
            why(node, pod),
        )


@pytest.mark.parametrize("of_pod", [True, False])
async def test_a_port_that_is_taken_on_the_network_that_pods_share(
    of_pod: bool, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sim_node() as node:
        node.source.put(some := static_pod("some"))
        await node.until_running(some)
        host_ip = node.status(some).host_ip
        monkeypatch.setattr(Machine, "_new_address", lambda _: host_ip)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            number = taken.getsockname()[1]
            containers = [{"name": "main", "image": "test:1", "ports": [{"containerPort": number}]}]
            if of_pod:
                node.source.put(first := static_pod("first", containers=containers))
                await node.until_running(first)
            node.sim.program(Program.crashes(100, after=0.5, exit_code=1), container="main")
            node.source.put(second := static_pod("second", containers=containers))
            await trio.sleep(60)
            holder = "pod default/first-node" if of_pod else "another process"
            expected = f"port {number} of `main`: {holder} has it, and both share the machine's network"
            assert why(node, second) == expected
        assert why(node, second).startswith("CrashLoopBackOff of `main`")


async def test_a_container_that_cannot_start(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        problem = 'exec: "/absent": stat /absent: no such file or directory'
        said = f"failed to create containerd task: unable to start container process: {problem}: unknown"
        node.sim.program(Program.fails_to_start(said), container="main")
        node.source.put(pod)
        await trio.sleep(60)
        told = (
            r"CrashLoopBackOff of `main`, tried again in \d+ s: its last run ended with exit code 128 \(StartError\): "
        )
        assert re.fullmatch(told + re.escape(problem), why(node, pod))
        answer = explain(node.agent, "default", pod.metadata.name, pod)
        assert answer is not None
        assert {run["message"] for run in answer["runs"] if run["what"] == "Ended"} == {problem}


async def test_a_back_off_is_as_long_as_it_is_told(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.sim.program(Program.crashes(100, after=0.5, exit_code=7), container="main")
        node.source.put(pod)
        await _told_as_it_comes(node, pod, "Started")


async def test_each_container_has_its_own_back_off(mock_clock: MockClock) -> None:
    containers = [{"name": "main", "image": "test:1"}, {"name": "slow", "image": "test:1"}]
    pod = static_pod("web", containers=containers)
    async with sim_node() as node:
        node.sim.program(Program.crashes(100, after=0.5, exit_code=7), container="main")
        node.sim.program(Program.crashes(100, after=45, exit_code=7), container="slow")
        node.source.put(pod)
        # Where the end of another container leads to an earlier look at the pod, what was added is not waited for.
        await _told_as_it_comes(node, pod, "Started", early=30)


async def test_an_image_is_pulled_again_when_it_is_told(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.sim.images.fail_pulls("test:1", PullError("manifest unknown"), times=1000)
        node.source.put(pod)
        await _told_as_it_comes(node, pod, "Pulling")


async def test_the_back_off_of_an_image_that_came_another_way_is_told_of_nothing_else(mock_clock: MockClock) -> None:
    pod = static_pod("web")
    async with sim_node() as node:
        node.sim.faults.fail_next("PullImage", times=5)
        node.source.put(pod)
        await node.until(lambda: node.sim.calls.count("PullImage") >= 5, within=900)
        await trio.sleep(2)
        assert int(re.findall(r"ErrImagePull of `main`, tried again in (\d+) s", why(node, pod))[0]) > 100
        node.sim.faults.fail_next("CreateContainer", times=1000)
        node.sim.images.add("test:1")
        for _ in range(5):
            await trio.sleep(30)
            told = re.findall(r"CreateContainerError of `main`, tried again in (\d+) s", why(node, pod))
            tries, began = node.sim.calls.count("CreateContainer"), trio.current_time()
            await node.until(lambda: node.sim.calls.count("CreateContainer") > tries)  # noqa: B023
            assert trio.current_time() - began == pytest.approx(int(told[0]), abs=2)


async def _told_as_it_comes(node: SimNode, pod: Pod, what: str, early: float = 0.0) -> None:
    """Each time that is told of `main` is that of the next entry, but for what is added so that many pods that failed
    together do not come back together: half of the last minute at most."""
    told: list[tuple[datetime, float]] = []
    happened: set[datetime] = set()
    while trio.current_time() < 900:
        await trio.sleep(2.9)
        for cause in causes(node.agent, pod.metadata.uid):
            if found := re.match(r"\w+ of `main`, tried again in (\d+) s", cause.text):
                assert cause.until is not None
                left = cause.until - trio.current_time()
                assert f"{left:.0f}" == found[1]
                told.append((node.agent.clock.now(), left))
        entries = node.agent.journal.entries(pod.metadata.uid)
        happened |= {one.at for one in entries if (one.what, one.container) == (what, "main")}
    assert len(happened) >= 4
    assert max(left for _, left in told) > 90, "longer than there is no look at the pod"
    for at, left in told:
        if (real := min((moment for moment in happened if moment > at), default=None)) is not None:
            late = (real - at).total_seconds() - left
            assert -early - 0.01 <= late <= min(left, 60) / 2 + 1, (at, left, late)


async def test_a_pod_that_was_rejected(mock_clock: MockClock) -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}]
    containers = [{"name": "main", "image": "test:1", "ports": ports}]
    first, second = static_pod("first", containers=containers), static_pod("second", containers=containers)
    async with sim_node() as node:
        node.source.put(first)
        await node.until_running(first)
        node.source.put(second)
        await trio.sleep(5)
        answer = explain(node.agent, "default", second.metadata.name, second)
        assert answer is not None
        assert answer["cause"].startswith("nothing: it was rejected with NodePorts: ")
        assert "host port 8080/TCP is held by pod default/first-node" in answer["cause"]
        assert (answer["phase"], answer["phases"], answer["runs"]) == (None, [], [])


async def test_a_deadline(mock_clock: MockClock) -> None:
    pod = static_pod("web", activeDeadlineSeconds=20, terminationGracePeriodSeconds=60)
    async with sim_node() as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(pod)
        await node.until_running(pod)
        await trio.sleep(30)
        assert re.fullmatch(
            r"StopContainer of `main`: \d+ of 60 s of grace; asked by: DeadlineExceeded: Pod was active on the node "
            r"longer than the specified deadline",
            why(node, pod),
        )


async def test_a_static_pod_whose_predecessor_still_ends(mock_clock: MockClock) -> None:
    old, new = static_pod("web", terminationGracePeriodSeconds=50), static_pod("web", uid="second")
    async with sim_node() as node:
        node.sim.program(Program.runs_forever(sigterm=None), container="main")
        node.source.put(old)
        await node.until_running(old)
        node.source.pods.pop(old.metadata.uid)
        node.source.put(new)
        await trio.sleep(5)
        assert why(node, new) == (
            "the end of the pod that had its name before: StopContainer of `main`: 5 of 50 s of grace; "
            "asked by: replaced by a newer version of its manifest"
        )


async def test_a_probe_that_does_not_succeed(mock_clock: MockClock) -> None:
    probe = {"exec": {"command": ["ready"]}, "failureThreshold": 1000}
    containers = [{"name": "main", "image": "test:1", "startupProbe": probe}]
    pod = static_pod("web", containers=containers)
    async with sim_node() as node:
        node.sim.faults.hang_next("ExecSync", times=1000)
        node.source.put(pod)
        await node.until_phase(pod, "Running")
        await trio.sleep(2)
        assert why(node, pod) == "startup probe of `main`: it has not succeeded yet"


async def test_a_finalizer(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        stage.create_pod("web", metadata={"finalizers": ["example.org/keep"]})
        await stage.until_ready("web")
        uid = stage.pod("web")["metadata"]["uid"]
        stage.delete_pod("web")
        await trio.sleep(120)
        assert first_cause(stage.agent, uid) == (
            "finalizers, which keep its object: `example.org/keep`; asked by: deleted through the API server"
        )


async def test_an_api_server_that_is_away_when_a_pod_has_ended(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        stage.sim.program(Program.runs_forever(sigterm=1), container="main")
        stage.create_pod("web", terminationGracePeriodSeconds=5)
        await stage.until_ready("web")
        uid = stage.pod("web")["metadata"]["uid"]
        stage.delete_pod("web")
        await trio.sleep(0.5)
        stage.server.faults.unreachable()
        await trio.sleep(60)
        assert first_cause(stage.agent, uid) == (
            "the API server, which does not answer: that the pod has ended cannot be told; "
            "asked by: deleted through the API server"
        )


async def test_an_api_server_that_is_away_when_a_volume_needs_it(mock_clock: MockClock, tmp_path: Path) -> None:
    async with cluster_stage(folder=tmp_path) as stage:
        await stage.until_node_ready()
        mounts = [{"name": "settings", "mountPath": "/settings"}]
        pod = stage.create_pod(
            "web",
            containers=[{"name": "main", "image": "test:1", "volumeMounts": mounts}],
            volumes=[{"name": "settings", "configMap": {"name": "none"}}],
        )
        await trio.sleep(5)
        stage.server.faults.unreachable()
        await trio.sleep(30)
        assert re.match(
            r"the API server, which has not answered for \d+ s: volumes `settings` are made of it",
            first_cause(stage.agent, pod.metadata.uid),
        )


async def test_an_api_server_that_is_away_when_a_container_needs_it(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        pod = stage.create_pod(
            "web",
            containers=[{"name": "main", "image": "test:1", "envFrom": [{"configMapRef": {"name": "none"}}]}],
        )
        await trio.sleep(5)
        stage.server.faults.unreachable()
        await trio.sleep(60)
        first, second = causes(stage.agent, pod.metadata.uid)
        assert re.fullmatch(
            r'CreateContainerConfigError of `main`, tried again in \d+ s: configmap "none" not found', first.text
        )
        assert re.fullmatch(r"the API server, which has not answered for \d+ s and may know more", second.text)


async def test_the_whole_answer_has_phases_with_their_lengths_and_the_runs_of_containers(
    mock_clock: MockClock,
) -> None:
    pod = static_pod("web", terminationGracePeriodSeconds=30)
    async with sim_node() as node:
        node.sim.program(Program.crashes(1, after=1.0, exit_code=7), container="main")
        node.source.put(pod)
        await trio.sleep(30)
        answer = explain(node.agent, "default", "web-node", pod)
        assert answer is not None
        assert answer["phase"] == "Syncing"
        assert [phase["phase"] for phase in answer["phases"]] == ["WaitingToStart", "Syncing"]
        assert [(run["what"], run.get("exitCode")) for run in answer["runs"]] == [
            ("Started", None),
            ("Ended", 7),
            ("Started", None),
        ]
        node.source.remove(pod)
        await node.until_gone(pod)
        gone = explain(node.agent, "default", "web-node", None)
        assert gone is not None
        assert gone["cause"] == "nothing: the pod is gone"
        assert gone["phases"][-1]["phase"] == "Gone"
        assert explain(node.agent, "default", "never", None) is None
