"""Pods that this node does not take: from the object in the API server to its status, its event and its end.

Reasons and messages are the kubelet's: lifecycle/predicate.go and handlers.go, sysctl/allowlist.go, preemption.go. What
is written of a rejected pod is what `rejectPod` (kubelet.go) hands to the status manager, which adds the start time and
the observed generation; `mergePodStatus` drops the conditions that are the kubelet's, PodScheduled with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.apiserver.builders import node_document
from tests.scenarios.stage import NODE, Stage, cluster_stage, machine_view, told
from trikubelet.admission.admit import NodeAdmission
from trikubelet.admission.sysctls import SysctlAllowList
from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.sim import Program

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.documents import Document
    from trikubelet.api import Pod

GI: Final = 2**30
SOON: Final = 2.0
"""Seconds in which the agent has said of a pod that it does not take it."""
SECONDS_OF_AN_END: Final = 5.0
CRITICAL: Final[dict[str, Any]] = {"priorityClassName": "system-node-critical", "priority": 2_000_001_000}
BEST_EFFORT: Final = "BestEffort"
BURSTABLE: Final = "Burstable"


SMALL: Final = machine_view(cpus=1, memory=GI, storage=10 * GI, kernel_version="6.18.0")
"""1 CPU, 924 MiB of memory, 9 GiB of disk for pods."""


def asks_for(**requests: str) -> list[Document]:
    """Containers."""
    named = {name.replace("_", "-"): amount for name, amount in requests.items()}
    return [{"name": "main", "image": "test:1", "resources": {"requests": named, "limits": named}}]


def security(**fields: Any) -> Document:
    return {"securityContext": fields}


@attrs.frozen(kw_only=True)
class Case:
    """A pod, and why it is refused."""

    reason: str
    message: str
    spec: dict[str, Any] = attrs.field(factory=dict)
    metadata: dict[str, Any] = attrs.field(factory=dict)
    qos: str = BEST_EFFORT
    beside: dict[str, Any] | None = None
    """The spec of a pod that runs already."""
    node: dict[str, Any] | None = None
    """`spec` and `status` of a node that is there already."""
    settings: dict[str, Any] = attrs.field(factory=dict)


def judged_by(**parts: Any) -> dict[str, Any]:
    """Settings for a node whose other parts know of more than those that are here."""
    admission = NodeAdmission(
        **{
            "sysctls": SysctlAllowList.of_node(),
            "machine": MachineFacts(GI),
            "abilities": RuntimeAbilities,
            **parts,
        }
    )
    return {"admission": admission}


def affinity(key: str, operator: str, *values: str) -> Document:
    expression = {"key": key, "operator": operator, "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def lacks(name: str, requested: int, used: int, capacity: int) -> str:
    amounts = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return f"Node didn't have enough resource: {name}, {amounts}"


NOT_MATCHED: Final = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
PORT: Final = {
    "containers": [{"name": "main", "image": "test:1", "ports": [{"containerPort": 80, "hostPort": 8080}]}],
}
RESTARTS_ALL: Final = {
    "name": "main",
    "image": "test:1",
    "restartPolicy": "Never",
    "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}],
}
LABEL_MESSAGE: Final = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
CASES: Final = {
    # allowlist.go Admit: a kernel setting that is namespaced but not safe.
    "unsafe sysctl": Case(
        reason="SysctlForbidden",
        message='forbidden sysctl: "kernel.msgmax" not allowlisted',
        spec=security(sysctls=[{"name": "kernel.msgmax", "value": "65536"}]),
    ),
    # rejectPodAdmissionBasedOnOSSelector: a label of the pod, not a selector.
    "label of another OS": Case(
        reason="PodOSSelectorNodeLabelDoesNotMatch",
        message=LABEL_MESSAGE,
        metadata={"labels": {"kubernetes.io/os": "windows"}},
    ),
    "another OS": Case(
        reason="PodOSNotSupported",
        message="Failed to admit pod as the OS field doesn't match node OS",
        spec={"os": {"name": "windows"}},
    ),
    # The simulated runtime is of a version that does not tell of the policy.
    "strict groups": Case(
        reason="SupplementalGroupsPolicyNotSupported",
        message="SupplementalGroupsPolicy=Strict is not supported in this node",
        spec=security(supplementalGroupsPolicy="Strict"),
    ),
    # InsufficientResourceError: CPU in thousandths, all else in units.
    "pods": Case(
        reason="OutOfpods",
        message=lacks("pods", 1, 1, 1),
        beside={},
        settings={"change_options": told(max_pods=1)},
    ),
    "cpu": Case(
        reason="OutOfcpu",
        message=lacks("cpu", 600, 500, 1000),
        spec={"containers": asks_for(cpu="600m")},
        qos=BURSTABLE,
        beside={"containers": asks_for(cpu="500m")},
    ),
    "cpu of init containers": Case(
        reason="OutOfcpu",
        message=lacks("cpu", 1100, 0, 1000),
        spec={"initContainers": [{**asks_for(cpu="1100m")[0], "name": "init"}]},
        qos=BURSTABLE,
    ),
    "memory": Case(
        reason="OutOfmemory",
        message=lacks("memory", 2 * GI, 0, GI - 100 * 2**20),
        spec={"containers": asks_for(memory="2Gi")},
        qos=BURSTABLE,
    ),
    "disk": Case(
        reason="OutOfephemeral-storage",
        # A tenth of the disk, in single precision, is evictionHard's default.
        message=lacks("ephemeral-storage", 20 * GI, 0, 10 * GI - int(10 * GI * 0.10000000149011612)),
        spec={"containers": asks_for(ephemeral_storage="20Gi")},
    ),
    "devices": Case(
        reason="OutOfexample.com/widget",
        message=lacks("example.com/widget", 3, 0, 2),
        spec={"containers": asks_for(**{"example.com/widget": "3"})},
        node={"status": {name: {"example.com/widget": "2"} for name in ("capacity", "allocatable")}},
    ),
    "node selector": Case(reason="NodeAffinity", message=NOT_MATCHED, spec={"nodeSelector": {"disk": "ssd"}}),
    "node affinity": Case(
        reason="NodeAffinity", message=NOT_MATCHED, spec=affinity("kubernetes.io/os", "NotIn", "linux")
    ),
    "ports": Case(
        reason="NodePorts",
        message="Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        spec=PORT,
        beside=PORT,
    ),
    "taint": Case(
        reason="TaintToleration",
        message="Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        node={"spec": {"taints": [{"key": "broken", "value": "disk", "effect": "NoExecute"}]}},
    ),
    # preemption.go: what is still missing when everybody else had gone.
    "critical and too big": Case(
        reason="UnexpectedAdmissionError",
        message="Unexpected error while attempting to recover from admission failure: preemption: error finding a set "
        "of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]",
        spec={"containers": asks_for(cpu="2"), **CRITICAL},
        qos=BURSTABLE,
        beside={"containers": asks_for(cpu="500m")},
    ),
    "AppArmor": Case(
        reason="AppArmor",
        message="Cannot enforce AppArmor: AppArmor is not enabled on the host",
        spec=security(appArmorProfile={"type": "RuntimeDefault"}),
        settings=judged_by(machine=MachineFacts(GI, apparmor=False)),
    ),
    # A feature whose gate is switched off is not declared.
    "declared feature": Case(
        reason="PodFeatureUnsupported",
        message="Pod requires node features that are not available: RestartAllContainersOnContainerExits",
        spec={"restartPolicy": "Never", "containers": [RESTARTS_ALL]},
        settings={"change_options": told(feature_gates={"RestartAllContainersOnContainerExits": False})},
    ),
    # Parts that do not look at memory and shutdowns yet say nothing by themselves: the answers are here already.
    "memory pressure": Case(
        reason="Evicted",
        message="The node had condition: [MemoryPressure]. ",
        settings=judged_by(pressure=lambda: ("MemoryPressure",)),
    ),
    "shutdown": Case(
        reason="NodeShutdown",
        message="Pod was rejected as the node is shutting down.",
        settings=judged_by(shutting_down=lambda: True),
    ),
}


async def stage_of(stage: Stage, case: Case) -> None:
    """The node is ready, and what runs on it runs."""
    if case.node is not None:
        stage.admin.create(node_document(NODE) | {"spec": case.node.get("spec", {})})
        stage.admin.patch("nodes", NODE, body={"status": case.node.get("status", {})}, subresource="status")
    await stage.start_agent()
    await stage.until_node_ready()
    if case.beside is not None:
        stage.create_pod("beside", **case.beside)
        await stage.until_ready("beside")


def nothing_of(stage: Stage, pod: Pod) -> bool:
    """Neither a worker nor anything in the runtime."""
    uid = pod.metadata.uid
    sandboxes = [sandbox for sandbox in stage.sim.machine.sandboxes.values() if sandbox.config.metadata.uid == uid]
    return stage.agent.workers.states.phase(uid) is None and not stage.sim.runs(uid) and not sandboxes


@pytest.mark.parametrize("name", CASES)
async def test_a_pod_is_rejected_for_good(name: str, autojump_clock: MockClock) -> None:
    case = CASES[name]
    async with cluster_stage(start=False, **{"machine": SMALL, **case.settings}) as stage:
        await stage_of(stage, case)
        created = stage.sim.clock.now()
        pod = stage.create_pod("new", metadata=case.metadata, **case.spec)
        await stage.until_phase("new", "Failed", within=SOON)
        written = stage.status("new")
        assert written == {
            "phase": "Failed",
            "reason": case.reason,
            "message": f"Pod was rejected: {case.message}",
            "qosClass": case.qos,
            "startTime": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "observedGeneration": pod.metadata.generation,
        }
        assert nothing_of(stage, pod)
        await stage.until(lambda: stage.events("new") != [], within=SOON)
        # It is not told again as long as it is there, and whatever else happens on the node.
        await trio.sleep(60)
        assert stage.events("new") == [("Warning", case.reason, case.message)]
        assert stage.admin.list("events", "default")[-1]["count"] == 1
        version = stage.pod("new")["metadata"]["resourceVersion"]

        await stage.restart_agent()
        await trio.sleep(60)
        assert stage.pod("new")["metadata"]["resourceVersion"] == version, "nothing is written of it any more"
        assert stage.events("new") == [("Warning", case.reason, case.message)]
        assert not stage.sim.runs(pod.metadata.uid)
        if case.beside is not None:
            assert len(stage.sim.running_containers()) == 1, "the restart touches nobody"
        stage.delete_pod("new")
        await stage.until_gone("new", within=SECONDS_OF_AN_END)


async def test_a_static_pod_for_another_node_is_rejected(autojump_clock: MockClock) -> None:
    """The API server tells of no pods of other nodes, so only files can name one."""
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        pod = stage.add_static_pod("etcd")
        stage.source.remove(pod)
        pod = attrs.evolve(pod, spec=attrs.evolve(pod.spec, node_name="other"))
        stage.source.put(pod)
        message = "Predicate NodeName failed: node(s) didn't match the requested node name"
        await stage.until(lambda: ("Warning", "NodeName", message) in stage.events(pod.metadata.name), within=SOON)
        assert nothing_of(stage, pod)
        status = stage.agent.statuses.get_pod_status(pod.metadata.uid)
        assert status is not None
        assert (status.phase, status.reason, status.message) == ("Failed", "NodeName", f"Pod was rejected: {message}")


async def test_a_static_pod_puts_up_with_every_taint(autojump_clock: MockClock) -> None:
    async with cluster_stage(start=False) as stage:
        await stage_of(stage, CASES["taint"])
        stage.add_static_pod("etcd")
        await stage.until_ready(f"etcd-{NODE}", within=SOON)


async def test_a_rejected_pod_that_is_deleted_before_its_status_is_written_goes(autojump_clock: MockClock) -> None:
    """The API server waits for the agent then: it takes the pod for one that runs."""
    async with cluster_stage(machine=SMALL) as stage:
        await stage.until_node_ready()
        writes = stage.server.faults.on(verb="patch", resource="pods", subresource="status")
        writes.fail(500)
        pod = stage.create_pod("new", nodeSelector={"disk": "ssd"})
        await trio.sleep(5)
        assert stage.phase("new") == "Pending"
        stage.delete_pod("new", grace=30)
        await trio.sleep(20)
        assert stage.exists("new"), "it is not deleted before its end is known"
        stage.server.faults.clear()
        await stage.until_gone("new", within=30.0)
        assert not stage.sim.runs(pod.metadata.uid)


async def test_a_rejected_pod_with_a_finalizer_is_not_started_by_its_deletion(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=SMALL) as stage:
        await stage.until_node_ready()
        finalizers = ["example.com/keep"]
        pod = stage.create_pod("new", metadata={"finalizers": finalizers}, nodeSelector={"disk": "ssd"})
        await stage.until_phase("new", "Failed", within=SOON)
        before = stage.status("new")
        stage.delete_pod("new")
        await trio.sleep(30)
        assert stage.status("new") | {"observedGeneration": 0} == before | {"observedGeneration": 0}
        assert not stage.sim.runs(pod.metadata.uid)
        stage.admin.patch("pods", "new", body={"metadata": {"finalizers": None}})
        await stage.until_gone("new", within=SECONDS_OF_AN_END)


async def test_a_label_that_has_just_come_counts(autojump_clock: MockClock) -> None:
    """The agent's copy of the node may be older than what the scheduler went by."""
    async with cluster_stage(machine=SMALL) as stage:
        await stage.until_node_ready()
        stage.server.faults.hold_watches()
        stage.admin.patch("nodes", NODE, body={"metadata": {"labels": {"disk": "ssd"}}})
        pod = stage.add_static_pod("web", nodeSelector={"disk": "ssd"})
        await stage.until(lambda: bool(stage.sim.running_containers(pod.metadata.uid)), within=SOON)


async def test_a_critical_pod_gets_the_room_of_others(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=SMALL) as stage:
        await stage.until_node_ready()
        small, big = asks_for(cpu="200m"), asks_for(cpu="600m")
        stage.create_pod("small", containers=small)
        victim = stage.create_pod("big", containers=big, terminationGracePeriodSeconds=3)
        await stage.until_ready("small", "big")
        began = trio.current_time()
        stage.create_pod("critical", containers=asks_for(cpu="700m"), **CRITICAL)
        await stage.until_ready("critical", within=SECONDS_OF_AN_END)
        assert trio.current_time() - began < SOON
        assert stage.phase("small") == "Running", "the one that is big enough alone ends, and nobody else"
        message = "Preempted in order to admit critical pod"
        await stage.until_phase("big", "Failed", within=SECONDS_OF_AN_END)
        status = stage.status("big")
        assert (status["reason"], status["message"]) == ("Preempting", message)
        conditions = {one["type"]: one for one in status["conditions"]}
        # preemption.go evictPodsToFreeRequests
        disrupted = conditions["DisruptionTarget"]
        assert (disrupted["status"], disrupted["reason"]) == ("True", "TerminationByKubelet")
        assert disrupted["message"] == "Pod was preempted by Kubelet to accommodate a critical pod."
        assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "PodFailed")
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
        assert ("Warning", "Preempting", message) in stage.events("big")
        assert ("Normal", "Killing", "Stopping container main") in stage.events("big")
        await stage.restart_agent()
        await trio.sleep(60)
        assert len(stage.sim.runs(victim.metadata.uid)) == 1
        assert stage.condition("critical", "Ready") == "True"
        stage.delete_pod("big")
        await stage.until_gone("big", within=SECONDS_OF_AN_END)


async def test_a_static_pod_gets_the_room_of_others(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=SMALL) as stage:
        await stage.until_node_ready()
        stage.create_pod("big", containers=asks_for(cpu="600m"))
        await stage.until_ready("big")
        stage.add_static_pod("etcd", containers=asks_for(cpu="700m"))
        await stage.until_ready(f"etcd-{NODE}", within=SECONDS_OF_AN_END)
        await stage.until_phase("big", "Failed", within=SECONDS_OF_AN_END)


async def test_room_that_is_made_is_kept_for_the_one_it_is_made_for(autojump_clock: MockClock) -> None:
    async with cluster_stage(machine=SMALL) as stage:
        await stage.until_node_ready()
        stage.sim.program(Program.runs_forever(sigterm=2.0), pod="big")
        stage.create_pod("big", containers=asks_for(cpu="900m"))
        await stage.until_ready("big")
        stage.create_pod("critical", containers=asks_for(cpu="700m"), **CRITICAL)
        await trio.sleep(1)
        assert not stage.sim.started("main", stage.pod("critical")["metadata"]["uid"]), "the room is not free yet"
        stage.create_pod("thief", containers=asks_for(cpu="700m"))
        await stage.until_phase("thief", "Failed", within=SOON)
        assert stage.status("thief")["reason"] == "OutOfcpu"
        await stage.until_ready("critical", within=SECONDS_OF_AN_END)


async def test_a_pod_with_resource_claims_is_held_and_never_started_without_them(autojump_clock: MockClock) -> None:
    claims = [{"name": "gpu", "resourceClaimName": "gpu-7"}]
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        pod = stage.create_pod("new", resourceClaims=claims)
        other = stage.create_pod("other")
        await stage.until_ready("other", within=SOON)
        await trio.sleep(120)
        assert not stage.sim.runs(pod.metadata.uid)
        assert not [one for one in stage.sim.machine.sandboxes.values() if one.config.metadata.uid == pod.metadata.uid]
        status = stage.status("new")
        assert status["phase"] == "Pending"
        assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
        # kuberuntime_manager.go: before the sandbox is made.
        prefix = "Failed to prepare dynamic resources: "
        told = [
            (kind, message)
            for kind, reason, message in stage.events("new")
            if reason == "FailedPrepareDynamicResources"
        ]
        assert [kind for kind, _ in told] == ["Warning"]
        assert told[0][1].startswith(prefix)
        stage.delete_pod("new")
        await stage.until_gone("new", within=SECONDS_OF_AN_END)
        assert stage.sim.running_containers(other.metadata.uid)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_pod_ends_at_its_active_deadline(restarted: bool, autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        began = trio.current_time()
        pod = stage.create_pod("new", activeDeadlineSeconds=30, terminationGracePeriodSeconds=5)
        await stage.until_ready("new")
        await trio.sleep(10)
        if restarted:
            await stage.restart_agent()
        await stage.until_phase("new", "Failed", within=40.0)
        # The start time has whole seconds, and the clock is looked at every second.
        assert 29 <= trio.current_time() - began <= 32
        status = stage.status("new")
        message = "Pod was active on the node longer than the specified deadline"
        assert (status["reason"], status["message"]) == ("DeadlineExceeded", message)
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
        assert len(stage.sim.runs(pod.metadata.uid)) == 1
        assert ("Normal", "DeadlineExceeded", message) in stage.events("new")
        await trio.sleep(60)
        assert stage.phase("new") == "Failed"
        stage.delete_pod("new")
        await stage.until_gone("new", within=SECONDS_OF_AN_END)


async def test_the_deadline_counts_for_a_pod_that_never_started(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.sim.images.withdraw("nowhere:1")
        stage.create_pod("new", activeDeadlineSeconds=20, containers=[{"name": "main", "image": "nowhere:1"}])
        await stage.until_phase("new", "Failed", within=25.0)
        assert stage.status("new")["reason"] == "DeadlineExceeded"
