"""The machine of a whole agent shuts down: what the API server is told, in which order, and what an agent does that is
started anew in the middle."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import trio

from tests.node.shutdown.fake_logind import FakeLogind
from tests.scenarios.stage import NODE, Stage, cluster_stage
from trikubelet.config.kubelet_configuration import KubeletConfiguration, ShutdownGracePeriod
from trikubelet.sim import Program

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.documents import Document

CRITICAL: Final[dict[str, Any]] = {"priorityClassName": "system-node-critical", "priority": 2_000_001_000}
THIRTY_SECONDS: Final = KubeletConfiguration(
    shutdown_grace_period=timedelta(seconds=30), shutdown_grace_period_critical_pods=timedelta(seconds=10)
)
MESSAGE: Final = "Pod was terminated in response to imminent node shutdown."


def containers(name: str) -> list[Document]:
    return [{"name": name, "image": "test:1"}]


def ready_condition(stage: Stage) -> Document:
    conditions: list[Document] = stage.admin.get("nodes", NODE)["status"]["conditions"]
    return next(one for one in conditions if one["type"] == "Ready")


def told(stage: Stage, name: str) -> tuple[str, str, str]:
    status = stage.status(name)
    return status["phase"], status.get("reason", ""), status.get("message", "")


def ends(stage: Stage, uid: str) -> list[float]:
    """Trio times at which the pod's containers have ended."""
    return [run.ended_at for run in stage.sim.runs(uid) if run.ended_at is not None]


async def test_pods_end_in_order_and_the_api_server_knows_it_before_the_machine_goes_down(
    autojump_clock: MockClock,
) -> None:
    logind = FakeLogind()
    async with cluster_stage(configuration=THIRTY_SECONDS, logind=logind) as stage:
        for name, seconds in (("slow", 6.0), ("quick", 1.0), ("critical", 2.0)):
            stage.sim.program(Program.runs_forever(sigterm=seconds), container=name)
        stage.sim.program(Program.runs_forever(sigterm=None), container="deaf")
        slow = stage.create_pod("slow", containers=containers("slow"), terminationGracePeriodSeconds=300)
        quick = stage.create_pod("quick", containers=containers("quick"))
        deaf = stage.create_pod("deaf", containers=containers("deaf"), terminationGracePeriodSeconds=8)
        critical = stage.create_pod("critical", containers=containers("critical"), **CRITICAL)
        await stage.until_ready("slow", "quick", "deaf", "critical")
        await stage.until_node_ready()
        assert len(logind.inhibitors) == 1

        began = trio.current_time()
        logind.shut_down()
        await stage.until(lambda: ready_condition(stage)["status"] == "False", within=0.5)
        assert (ready_condition(stage)["reason"], ready_condition(stage)["message"]) == (
            "KubeletNotReady",
            "node is shutting down",
        )
        stage.create_pod("late")
        await stage.until_phase("late", "Failed", within=2)
        assert told(stage, "late")[1:] == (
            "NodeShutdown",
            "Pod was rejected: Pod was rejected as the node is shutting down.",
        )
        await stage.until(lambda: not logind.inhibitors, within=30)
        for name in ("slow", "quick", "deaf", "critical"):
            assert told(stage, name) == ("Failed", "Terminated", MESSAGE)
            assert stage.condition(name, "DisruptionTarget") == "True"
            (container,) = stage.status(name)["containerStatuses"]
            assert "terminated" in container["state"], "what it ended with is told too"
        assert ends(stage, quick.metadata.uid)[0] - began < 2
        assert 5.5 < ends(stage, slow.metadata.uid)[0] - began < 7
        assert 8 <= ends(stage, deaf.metadata.uid)[0] - began < 9, "its own grace period is shorter than the node's"
        assert 10 <= ends(stage, critical.metadata.uid)[0] - began < 11.5, "after all others"
        assert ("Normal", "Shutdown", "Shutdown manager detected shutdown event") in stage.events(NODE)
        await trio.sleep(60)
        assert not stage.sim.running_containers(), "nothing is started again"


async def test_a_shutdown_that_is_called_off(autojump_clock: MockClock) -> None:
    logind = FakeLogind()
    async with cluster_stage(configuration=THIRTY_SECONDS, logind=logind) as stage:
        stage.sim.program(Program.runs_forever(sigterm=5.0), container="normal")
        stage.create_pod("normal", containers=containers("normal"))
        critical = stage.create_pod("critical", **CRITICAL)
        await stage.until_ready("normal", "critical")
        logind.shut_down()
        await stage.until(lambda: not stage.node_is_ready(), within=0.5)
        await trio.sleep(1)
        logind.call_off()
        await stage.until_node_ready(within=2)
        await stage.until_phase("normal", "Failed", within=10)
        stage.create_pod("later")
        await stage.until_ready("later")
        assert stage.phase("critical") == "Running"
        assert not ends(stage, critical.metadata.uid)
        assert len(logind.inhibitors) == 1


async def test_an_agent_that_is_killed_in_the_middle_goes_on_when_it_is_back(autojump_clock: MockClock) -> None:
    logind = FakeLogind()
    async with cluster_stage(configuration=THIRTY_SECONDS, logind=logind) as stage:
        stage.sim.program(Program.runs_forever(sigterm=15.0), container="slow")
        stage.sim.program(Program.runs_forever(sigterm=2.0), container="critical")
        quick = stage.create_pod("quick")
        quick_static = stage.add_static_pod("quick-static")
        slow = stage.create_pod("slow", containers=containers("slow"))
        critical = stage.create_pod("critical", containers=containers("critical"), **CRITICAL)
        await stage.until_ready("quick", "slow", "critical")
        await stage.until(lambda: len(stage.sim.running_containers()) == 4)
        logind.shut_down()
        await stage.until_phase("quick", "Failed", within=5)
        await stage.until(lambda: bool(ends(stage, quick_static.metadata.uid)), within=5)
        await stage.kill_agent()
        assert not logind.inhibitors
        assert len(stage.sim.running_containers()) == 2
        await trio.sleep(1)
        await stage.start_agent()
        await stage.until_phase("slow", "Failed", within=30)
        assert not ends(stage, critical.metadata.uid)
        await stage.until_phase("critical", "Failed", within=12)
        assert [told(stage, name)[1] for name in ("quick", "slow", "critical")] == ["Terminated"] * 3
        await trio.sleep(30)
        for pod in (quick, quick_static, slow, critical):
            assert len(stage.sim.runs(pod.metadata.uid)) == 1, f"{pod.full_name} is not started again"
        assert not stage.node_is_ready()


async def test_the_bus_goes_in_the_middle(autojump_clock: MockClock) -> None:
    logind = FakeLogind()
    async with cluster_stage(configuration=THIRTY_SECONDS, logind=logind) as stage:
        stage.sim.program(Program.runs_forever(sigterm=5.0), container="normal")
        stage.create_pod("normal", containers=containers("normal"))
        await stage.until_ready("normal")
        logind.shut_down()
        await trio.sleep(1)
        logind.there = False
        logind.lose_connections()
        await stage.until_phase("normal", "Failed", within=10)
        assert told(stage, "normal")[1] == "Terminated"
        await stage.until(lambda: not logind.inhibitors, within=5)


async def test_every_priority_may_have_its_own_time(autojump_clock: MockClock) -> None:
    logind = FakeLogind(longest_delay=5)
    periods = tuple(
        ShutdownGracePeriod(priority=priority, shutdown_grace_period_seconds=seconds)
        for priority, seconds in ((1000, 5), (0, 10), (2_000_000_000, 3))
    )
    configuration = KubeletConfiguration(shutdown_grace_period_by_pod_priority=periods)
    async with cluster_stage(configuration=configuration, logind=logind) as stage:
        names = {"low": 10, "middle": 999, "high": 1000}
        for name, priority in names.items():
            stage.sim.program(Program.runs_forever(sigterm=None), container=name)
            stage.create_pod(name, containers=containers(name), priority=priority, terminationGracePeriodSeconds=60)
        await stage.until_ready(*names)
        assert logind.overrides == [18]
        began = trio.current_time()
        logind.shut_down()
        await stage.until(lambda: not logind.inhibitors, within=30)
        ended = {run.container_name: round((run.ended_at or 0) - began) for run in stage.sim.runs()}
        assert ended == {"low": 10, "middle": 10, "high": 15}


async def test_a_node_that_gives_its_pods_no_time_does_not_ask_logind(autojump_clock: MockClock) -> None:
    logind = FakeLogind()
    async with cluster_stage(logind=logind) as stage:
        await stage.until_node_ready()
        assert stage.agent.shutdown is None
        assert logind.sessions == 0
