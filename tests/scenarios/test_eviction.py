"""A node that runs out of something, from the measurement to what the API server is told of pods and node.

Who goes and in which order is as the kubelet's tables say (`tests/node/eviction`); here it is what becomes of the pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.metrics.lives import families, metrics_of
from tests.node.eviction.situations import left, threshold
from tests.node.eviction.test_ten_pods import TEN, ten
from tests.scenarios.stage import NODE, Stage, cluster_stage
from trikubelet.config.eviction_values import Layout, Signal
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.node.eviction.model import ContainerUsage, FsUsage, Measurement, Observation, PodMemoryUsage, PodUsage
from trikubelet.sim import Life, Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from tests.apiserver.documents import Document
    from trikubelet.api import Pod

S = Signal
LOW: Final = left("100Mi")
ENOUGH: Final = left("2Gi")
OBSERVED: Final = (S.MEMORY, S.NODE_FS, S.IMAGE_FS, S.PIDS)


@attrs.define
class ScriptedUsage:
    """A `UsageSource` that says what a test has written down, by the names of pods."""

    pods: Mapping[str, PodUsage] = attrs.field(factory=dict)
    observations: dict[Signal, Observation] = attrs.field(factory=lambda: dict.fromkeys(OBSERVED, ENOUGH))
    layout: Layout = Layout.SINGLE
    measured: list[int] = attrs.field(factory=list)
    """Of how many pods all was measured."""

    async def measure_node(self, limited: Sequence[Pod]) -> Measurement:
        await trio.lowlevel.checkpoint()
        return self._measurement(limited, complete=False)

    async def measure(self, pods: Sequence[Pod]) -> Measurement:
        await trio.lowlevel.checkpoint()
        self.measured.append(len(pods))
        return self._measurement(pods, complete=True)

    async def pod_memory(self, pod: Pod) -> PodMemoryUsage:
        raise NotImplementedError

    def _measurement(self, pods: Sequence[Pod], *, complete: bool) -> Measurement:
        found = {one.metadata.uid: one.metadata.name.removesuffix(f"-{NODE}") for one in pods}
        usage = {uid: self.pods[name] for uid, name in found.items() if name in self.pods}
        return Measurement(observations=dict(self.observations), pods=usage, layout=self.layout, complete=complete)


def configuration(**fields: Any) -> KubeletConfiguration:
    thresholds = {"memory.available": "1Gi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"}
    return KubeletConfiguration(eviction_hard=thresholds | {"pid.available": "1Gi"}, **fields)


def pods_of_all_kinds(stage: Stage) -> None:
    """The ten of `tests.node.eviction.test_ten_pods`, as their owners would make them."""
    for name, (priority, requests, _, _) in TEN.items():
        amounts = {resource: str(amount) for resource, amount in requests.items()}
        resources = {"requests": amounts, **({"limits": amounts} if name.startswith("guaranteed") else {})}
        spec: dict[str, Any] = {
            "containers": [{"name": name, "image": "test:1", "resources": resources}],
            "volumes": [{"name": "local-volume", "emptyDir": {}}],
        }
        if name == "static":
            stage.add_static_pod(name, **spec)
        else:
            stage.create_pod(name, priority=priority, **spec)


def evicted(stage: Stage) -> list[str]:
    """Names of pods, in the order in which they were told so."""
    events = [event for event in stage.admin.list("events", "default") if event["reason"] == "Evicted"]
    events.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
    return [event["involvedObject"]["name"] for event in events]


def condition(document: Document, kind: str) -> Document:
    (found,) = (one for one in document["status"]["conditions"] if one["type"] == kind)
    return dict(found)


def node_condition(stage: Stage, kind: str) -> tuple[str, str]:
    """Status and reason."""
    found = condition(stage.admin.get("nodes", NODE), kind)
    return found["status"], found["reason"]


@pytest.mark.parametrize(
    ("signal", "resource", "type_", "reasons"),
    [
        (S.MEMORY, "memory", "MemoryPressure", ("KubeletHasInsufficientMemory", "KubeletHasSufficientMemory")),
        pytest.param(
            *(S.NODE_FS, "ephemeral-storage", "DiskPressure", ("KubeletHasDiskPressure", "KubeletHasNoDiskPressure")),
            marks=pytest.mark.night,
        ),
        pytest.param(
            *(S.PIDS, "pids", "PIDPressure", ("KubeletHasInsufficientPID", "KubeletHasSufficientPID")),
            marks=pytest.mark.night,
        ),
    ],
)
async def test_ten_pods_on_a_node_that_stays_short(
    autojump_clock: MockClock, signal: Signal, resource: str, type_: str, reasons: tuple[str, str]
) -> None:
    tables = ten(signal)
    tables.thresholds = (threshold(signal, "1Gi"),)
    wanted = []
    while (eviction := tables.evicts({signal: LOW}, later=10)) is not None:
        wanted.append(eviction.pod.metadata.name)
        tables.pods = [pod for pod in tables.pods if pod is not eviction.pod]
    usage = ScriptedUsage(tables.usage)
    async with cluster_stage(usage=usage, configuration=configuration()) as stage:
        await stage.until_node_ready()
        pods_of_all_kinds(stage)
        names = [name for name in TEN if name != "static"]
        await stage.until_ready(*names, f"static-{NODE}")
        await trio.sleep(30)
        assert usage.measured == [], "nobody asks what pods use while there is enough"
        assert node_condition(stage, type_) == ("False", reasons[1])

        usage.observations[signal] = LOW
        await stage.until(lambda: len(evicted(stage)) == 1, within=10.1)
        assert [name for name in names if stage.phase(name) == "Failed"] in ([], wanted[:1]), "one in a round"
        await stage.until(lambda: node_condition(stage, type_) == ("True", reasons[0]), within=2)
        await stage.until(lambda: all(stage.phase(name) == "Failed" for name in names), within=100)
        assert evicted(stage) == wanted
        for name in names:
            said_of(stage.pod(name), name, resource, stage.events(name))
        await trio.sleep(60)
        assert stage.phase(f"static-{NODE}") == "Running", "the node does not do without it"
        reason = f"Attempting to reclaim {resource}"
        assert ("Warning", "EvictionThresholdMet", reason) in stage.events(NODE)
        assert await counted(stage, signal) == 9

        usage.observations[signal] = ENOUGH
        assert await stage.until(lambda: node_condition(stage, type_) == ("False", reasons[1]), within=330) > 280


def said_of(pod: Document, name: str, resource: str, events: list[tuple[str, str, str]]) -> None:
    status = pod["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"].startswith(f"The node was low on resource: {resource}. Threshold quantity: ")
    assert ("Warning", "Evicted", status["message"]) in events
    disrupted = condition(pod, "DisruptionTarget")
    assert (disrupted["status"], disrupted["reason"]) == ("True", "TerminationByKubelet")
    assert disrupted["message"] == status["message"]
    (container,) = status["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] in (137, 143, 0), name
    assert condition(pod, "Ready")["status"] == "False"


async def counted(stage: Stage, signal: Signal) -> float:
    found = await families(metrics_of(stage.agent))
    (sample,) = found["kubelet_evictions"].samples
    assert sample.labels == {"eviction_signal": signal.value}
    return sample.value


async def test_whom_a_node_under_pressure_takes(autojump_clock: MockClock) -> None:
    usage = ScriptedUsage()
    requests = {"resources": {"requests": {"memory": "1Mi"}}}
    burstable = [{"name": "main", "image": "test:1", **requests}]
    tolerating = [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]
    critical: dict[str, Any] = {"priorityClassName": "system-node-critical", "priority": 2_000_001_000}

    async with cluster_stage(usage=usage, configuration=configuration()) as stage:
        await stage.until_node_ready()
        usage.observations[S.MEMORY] = LOW
        await stage.until(lambda: node_condition(stage, "MemoryPressure")[0] == "True", within=15)
        usage.observations[S.MEMORY] = ENOUGH  # the condition stays for a while
        await trio.sleep(11)
        stage.create_pod("best-effort")
        stage.create_pod("burstable", containers=burstable)
        stage.create_pod("tolerating", tolerations=tolerating)
        stage.create_pod("critical", **critical)
        await stage.until_ready("burstable", "tolerating", "critical")
        await stage.until_phase("best-effort", "Failed")
        status = stage.status("best-effort")
        said = "The node had condition: [MemoryPressure]. "
        assert (status["reason"], status["message"]) == ("Evicted", f"Pod was rejected: {said}")
        assert ("Warning", "Evicted", said) in stage.events("best-effort")

        usage.observations[S.NODE_FS] = LOW
        await stage.until(lambda: node_condition(stage, "DiskPressure")[0] == "True", within=15)
        usage.observations[S.NODE_FS] = ENOUGH
        await trio.sleep(11)
        stage.create_pod("burstable-too", containers=burstable)
        stage.create_pod("critical-too", **critical)
        await stage.until_ready("critical-too")
        await stage.until_phase("burstable-too", "Failed")
        assert stage.status("burstable-too")["message"].endswith("[MemoryPressure DiskPressure]. ")
        await stage.until(lambda: node_condition(stage, "DiskPressure")[0] == "False", within=330)
        stage.create_pod("after-all")
        await stage.until_ready("after-all")


async def test_a_soft_threshold_gives_the_pod_its_time(autojump_clock: MockClock) -> None:
    usage = ScriptedUsage()
    soft = configuration(
        eviction_soft={"memory.available": "3Gi"},
        eviction_soft_grace_period={"memory.available": "1m"},
        eviction_max_pod_grace_period=5,
    )
    async with cluster_stage(usage=usage, configuration=soft) as stage:
        await stage.until_node_ready()
        stage.create_pod("web")
        await stage.until_ready("web")
        await stage.until(lambda: node_condition(stage, "MemoryPressure")[0] == "True", within=15)
        assert await stage.until(lambda: evicted(stage) == ["web"], within=80) > 45
        await stage.until_phase("web", "Failed")
        assert "Threshold quantity: 3Gi, available: 2Gi. " in stage.status("web")["message"]


LIMITED: Final = [
    {"name": "main", "image": "test:1", "resources": {"limits": {"ephemeral-storage": "10Mi"}}},
    {"name": "side", "image": "test:1", "resources": {"limits": {"ephemeral-storage": "20Mi"}}},
]
MIB: Final = 2**20


@pytest.mark.parametrize(
    ("spec", "usage", "message", "metric"),
    [
        (
            {"volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "10Mi"}}]},
            PodUsage(volumes={"cache": FsUsage(bytes=10 * MIB + 1)}),
            'Usage of EmptyDir volume "cache" exceeds the limit "10Mi". ',
            "emptydirfs.limit",
        ),
        (
            {"containers": LIMITED},
            PodUsage(ephemeral=30 * MIB + 1),
            "Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. ",
            "ephemeralpodfs.limit",
        ),
        (
            {"containers": LIMITED},
            PodUsage(containers={"main": ContainerUsage(rootfs=FsUsage(bytes=11 * MIB))}, ephemeral=11 * MIB),
            'Container main exceeded its local ephemeral storage limit "10Mi". ',
            "ephemeralcontainerfs.limit",
        ),
    ],
)
async def test_a_pod_beyond_its_own_limits(
    autojump_clock: MockClock, spec: Document, usage: PodUsage, message: str, metric: str
) -> None:
    scripted = ScriptedUsage({"ok": PodUsage(volumes={"cache": FsUsage(bytes=10 * MIB)})})
    async with cluster_stage(usage=scripted, configuration=configuration()) as stage:
        await stage.until_node_ready()
        for name in ("ok", "greedy"):
            stage.create_pod(name, terminationGracePeriodSeconds=30, **spec)
        await stage.until_ready("ok", "greedy")
        scripted.pods = {**scripted.pods, "greedy": usage}
        await stage.until_phase("greedy", "Failed", within=15)
        pod = stage.pod("greedy")
        assert (pod["status"]["reason"], pod["status"]["message"]) == ("Evicted", message)
        assert ("Warning", "Evicted", message) in stage.events("greedy")
        assert all("terminated" in one["state"] for one in pod["status"]["containerStatuses"])
        assert not [one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget"]
        assert node_condition(stage, "DiskPressure")[0] == "False"
        await trio.sleep(30)
        assert stage.phase("ok") == "Running"
        (sample,) = (await families(metrics_of(stage.agent)))["kubelet_evictions"].samples
        assert (sample.labels, sample.value) == ({"eviction_signal": metric}, 1)


async def test_how_containers_ended_is_seen_though_they_are_removed(autojump_clock: MockClock) -> None:
    """An evicted pod's containers may go at once: here before the pod has ended, as that needs another attempt."""
    scripted = ScriptedUsage({"greedy": PodUsage(ephemeral=30 * MIB + 1)})
    async with cluster_stage(
        usage=scripted, configuration=configuration(feature_gates={"EventedPLEG": False})
    ) as stage:
        stage.sim.program(Program((Life(sigterm=0.0, sigterm_exit_code=3),)), container="main")
        stage.sim.program(Program((Life(sigterm=0.8, sigterm_exit_code=4),)), container="side")
        stage.sim.faults.fail_next("StopPodSandbox", times=2)
        await stage.until_node_ready()
        stage.create_pod("greedy", containers=LIMITED)
        await stage.until_phase("greedy", "Failed")
        statuses = {one["name"]: one["state"] for one in stage.status("greedy")["containerStatuses"]}
        assert {name: state["terminated"]["exitCode"] for name, state in statuses.items()} == {"main": 3, "side": 4}
        await trio.sleep(5)
        assert stage.sim.machine.containers == {}


async def test_a_node_that_nobody_measures_evicts_nobody(autojump_clock: MockClock) -> None:
    async with cluster_stage(configuration=configuration()) as stage:
        await stage.until_node_ready()
        await trio.sleep(60)
        assert stage.agent.eviction.manager is None
        assert node_condition(stage, "MemoryPressure")[0] == "False"
