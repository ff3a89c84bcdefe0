"""Pods of many kinds side by side, and what the API server shows of each: every field of its status.

The documents are written by hand from the kubelet's source, which the comments name: `convertStatusToAPIStatus`,
`convertToAPIContainerStatuses`, `getPhase` and `generateAPIPodStatus` in kubelet_pods.go, status/generate.go for the
conditions, `UpdatePodStatus` of the prober for `started` and `ready`. Only ids, addresses and image digests come from
the simulated runtime, since it makes them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from tests.scenarios.stage import NODE, Stage, cluster_stage, machine_view, told
from trikubelet.sim import Program

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.documents import Document
    from trikubelet.api import Pod

SOON: Final = 2.0
BEGIN: Final = 10
"""Second at which the pods are created."""
SHOWN: Final = 20
"""Second at which they are looked at."""
HOST_IP: Final = "10.0.0.7"
IMAGE: Final = "registry.test/app:1"
ETCD: Final = f"etcd-{NODE}"
MISSING: Final = "registry.test/missing:1"
MACHINE: Final = machine_view(HOST_IP, cpus=32, memory=2**36, storage=2**40, kernel_version="6.18.0")
SETTINGS: Final[dict[str, Any]] = {
    "machine": MACHINE,
    "change_options": told(cluster_dns=("10.96.0.10",), max_pods=110),
}


def container(name: str, **fields: Any) -> Document:
    return {"name": name, "image": IMAGE, **fields}


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}Z"


def addresses_of(stage: Stage) -> dict[str, str]:
    """By UID, of the pods' sandboxes."""
    return {sandbox.config.metadata.uid: sandbox.ip for sandbox in stage.sim.machine.sandboxes.values()}


class Facts:
    """What only the runtime knows of a pod."""

    def __init__(self, stage: Stage, name: str, addresses: dict[str, str] | None = None) -> None:
        """`addresses`: by UID, of sandboxes that have stopped since."""
        self._stage = stage
        document = stage.pod(name)
        annotations = document["metadata"].get("annotations", {})
        self.uid: str = annotations.get("kubernetes.io/config.mirror") or document["metadata"]["uid"]
        self.ip = (addresses_of(stage) if addresses is None else addresses)[self.uid]

    def identity(self, name: str) -> Document:
        """Of a container that was created: its last id, its image, and who it runs as."""
        newest = self._stage.sim.started(name, self.uid)[-1]
        image = self._stage.sim.images.find(IMAGE)
        assert image is not None
        return {
            "name": name,
            "containerID": f"simulated://{newest.container_id}",
            "image": image.reference,
            # Historically the digest of the repository, not the runtime's id.
            "imageID": image.digest_reference,
            # The runtime tells (SupplementalGroupsPolicy): root, and root's group also as a supplemental one.
            "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}},
        }

    def running(self, name: str, since: int, **fields: Any) -> Document:
        """A container without probes: UpdatePodStatus has it started and ready as soon as it runs."""
        return {
            **self.identity(name),
            "state": {"running": {"startedAt": at(since)}},
            "lastState": {},
            "ready": True,
            "started": True,
            "restartCount": 0,
            # Of a container that was created, always there: an empty struct behind a pointer.
            "resources": {},
            **fields,
        }

    def terminated(self, name: str, since: int, until: int, exit_code: int) -> Document:
        """A state."""
        reason = "Completed" if exit_code == 0 else "Error"
        times = {"startedAt": at(since), "finishedAt": at(until)}
        container_id = self.identity(name)["containerID"]
        return {"terminated": {"exitCode": exit_code, "reason": reason, "containerID": container_id, **times}}

    def ended(self, name: str, since: int, until: int, exit_code: int = 0, **fields: Any) -> Document:
        """isContainerStarted and readiness are those of a running container only."""
        state = self.terminated(name, since, until, exit_code)
        return self.running(name, since, state=state, ready=False, started=False, **fields)

    def init(self, name: str, since: int, until: int) -> Document:
        """An init container that is done counts as ready, and not as started."""
        return self.ended(name, since, until) | {"ready": True}


def condition(kind: str, status: str = "True", since: int = BEGIN, *, generation: int = 1, **why: str) -> Document:
    told_of = {"type": kind, "status": status, "lastTransitionTime": at(since), **why}
    return told_of | ({"observedGeneration": generation} if generation else {})


NOT_READY: Final = "ContainersNotReady"


def conditions(
    others: dict[str, Document] | None = None,
    *,
    ready: int = BEGIN,
    initialized: Document | None = None,
    generation: int = 1,
) -> list[Document]:
    """In the order in which generateAPIPodStatus appends them, for a pod that runs; `others` by type instead."""
    others = others or {}
    usual = [
        condition("PodReadyToStartContainers", generation=generation),
        initialized or condition("Initialized", generation=generation),
        condition("Ready", since=ready, generation=generation),
        condition("ContainersReady", since=ready, generation=generation),
        condition("PodScheduled", generation=generation),
    ]
    return [others.get(one["type"], one) for one in usual]


def not_ready(since: int, reason: str, message: str = "", *, generation: int = 1) -> dict[str, Document]:
    """Ready says why the containers are not."""
    why = {"reason": reason, **({"message": message} if message else {})}
    return {
        kind: condition(kind, "False", since, generation=generation, **why) for kind in ("Ready", "ContainersReady")
    }


def no_sandbox(since: int, generation: int = 1) -> dict[str, Document]:
    """PodSandboxChanged: no ready sandbox is left, so a new one would be needed."""
    kind = "PodReadyToStartContainers"
    return {kind: condition(kind, "False", since, generation=generation)}


def status(facts: Facts, phase: str, ip: str = "", *, generation: int = 1, **fields: Any) -> Document:
    ip = ip or facts.ip
    return {
        "phase": phase,
        "qosClass": "BestEffort",
        "hostIP": HOST_IP,
        "hostIPs": [{"ip": HOST_IP}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": at(BEGIN),
        # InPlacePodLevelResourcesVerticalScaling: an empty struct behind a pointer where nothing is asked for.
        "resources": {},
        **({"observedGeneration": generation} if generation else {}),
        **fields,
    }


# --- The pods, and what is shown of each -----------------------------------------------------------------------------


def create_pods(stage: Stage) -> None:
    sim = stage.sim
    for name, program in {
        "first": Program.exits(1.0),
        "second": Program.exits(2.0),
        "succeeds": Program.exits(2.0),
        "fails": Program.exits(3.0, exit_code=3),
        "crasher": Program.crashes(100, after=1.0, exit_code=2),
    }.items():
        sim.program(program, container=name)
    sim.program(Program.runs_forever(sigterm=30.0), pod="ending")
    sim.images.add(IMAGE)
    sim.images.withdraw(MISSING)
    requests, limits = {"cpu": "100m", "memory": "64Mi"}, {"memory": "128Mi"}
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/ro", "readOnly": True}]
    web = container("web", resources={"requests": requests, "limits": limits}, volumeMounts=mounts)
    agent = container("agent", securityContext={"runAsUser": 1000, "runAsGroup": 1001})
    stage.create_pod("plain", containers=[web, agent], volumes=[{"name": "data", "emptyDir": {}}])
    stage.create_pod("init", initContainers=[container("first"), container("second")], containers=[container("main")])
    proxy = container("proxy", restartPolicy="Always")
    stage.create_pod("sidecar", initContainers=[proxy, container("first")], containers=[container("main")])
    stage.create_pod("job", restartPolicy="Never", containers=[container("succeeds")])
    stage.create_pod("failed-job", restartPolicy="Never", containers=[container("succeeds"), container("fails")])
    stage.create_pod("crashing", containers=[container("crasher")])
    stage.create_pod("unpulled", containers=[{"name": "main", "image": MISSING}])
    stage.create_pod("gated", readinessGates=[{"conditionType": "example.com/lb"}], containers=[container("main")])
    stage.create_pod("host", hostNetwork=True, containers=[container("main")])
    stage.add_static_pod("etcd", containers=[container("main")])
    stage.create_pod("debugged", containers=[container("main")])
    stage.create_pod("ending", terminationGracePeriodSeconds=60, containers=[container("main")])


async def meanwhile(stage: Stage) -> None:
    """A debugger attaches to one pod, and another is deleted."""
    shell = container("shell", targetContainerName="main")
    body = {"spec": {"ephemeralContainers": [shell]}}
    stage.admin.patch("pods", "debugged", body=body, subresource="ephemeralcontainers")
    stage.delete_pod("ending")


def expected_plain(facts: Facts) -> Document:
    """Two containers: one with requests, a limit and volumes, the other as another user."""
    requests, limits = {"cpu": "100m", "memory": "64Mi"}, {"memory": "128Mi"}
    web = facts.running(
        "web",
        BEGIN,
        resources={"requests": requests, "limits": limits},
        allocatedResources=requests,
        # Read-only mounts say whether that holds for what is mounted below them; the runtime cannot do that.
        volumeMounts=[
            {"name": "data", "mountPath": "/data"},
            {"name": "data", "mountPath": "/ro", "readOnly": True, "recursiveReadOnly": "Disabled"},
        ],
    )
    agent = facts.running("agent", BEGIN, user={"linux": {"uid": 1000, "gid": 1001, "supplementalGroups": [1001]}})
    return status(
        facts,
        "Running",
        qosClass="Burstable",
        # SortedContainerStatuses: by name, whatever the spec's order is.
        containerStatuses=[agent, web],
        conditions=conditions(),
        # The pod's cgroup has a memory limit only when every container has one.
        resources={"requests": requests},
        allocatedResources=requests,
    )


def expected_init(facts: Facts) -> Document:
    return status(
        facts,
        "Running",
        # In the spec's order. They ran one after the other, and keep their statuses.
        initContainerStatuses=[facts.init("first", 10, 11), facts.init("second", 11, 13)],
        containerStatuses=[facts.running("main", 13)],
        conditions=conditions(initialized=condition("Initialized", since=13), ready=13),
    )


def expected_sidecar(facts: Facts) -> Document:
    """A sidecar is started and ready as a main container is; the pod is initialized when it has started."""
    return status(
        facts,
        "Running",
        initContainerStatuses=[facts.running("proxy", 10), facts.init("first", 10, 11)],
        containerStatuses=[facts.running("main", 11)],
        conditions=conditions(initialized=condition("Initialized", since=11), ready=11),
    )


def expected_job(facts: Facts) -> Document:
    """It keeps the address that its sandbox had (PLEG's getPodIPs)."""
    return status(
        facts,
        "Succeeded",
        containerStatuses=[facts.ended("succeeds", 10, 12)],
        conditions=conditions(
            not_ready(12, "PodCompleted") | no_sandbox(12),
            # The status is the same as before, so its time is too; only the reason is new.
            initialized=condition("Initialized", reason="PodCompleted"),
        ),
    )


def expected_failed_job(facts: Facts) -> Document:
    return status(
        facts,
        "Failed",
        containerStatuses=[facts.ended("fails", 10, 13, exit_code=3), facts.ended("succeeds", 10, 12)],
        conditions=conditions(
            # Not ready since the first of its containers ended, whatever the reason was then.
            not_ready(12, "PodFailed") | no_sandbox(13)
        ),
    )


def expected_crashing(facts: Facts) -> Document:
    """Started again at once after its first crash, then held back: the end is shown as the last state."""
    text = f"back-off 10s restarting failed container=crasher pod=crashing_default({facts.uid})"
    crasher = facts.running(
        "crasher",
        11,
        state={"waiting": {"reason": "CrashLoopBackOff", "message": text}},
        lastState=facts.terminated("crasher", 11, 12, 2),
        ready=False,
        started=False,
        restartCount=1,
    )
    return status(
        facts,
        # getPhase: all containers are stopped, and one at least will be restarted.
        "Running",
        containerStatuses=[crasher],
        conditions=conditions(not_ready(12, NOT_READY, "containers with unready status: [crasher]")),
    )


def expected_unpulled(facts: Facts) -> Document:
    """There is no container: the image is the one that the spec names, and nothing is said of resources and user."""
    problem = (
        f'rpc error: code = NotFound desc = failed to pull and unpack image "{MISSING}": failed to resolve reference '
        f'"{MISSING}": {MISSING}: not found'
    )
    text = f'Back-off pulling image "{MISSING}": ErrImagePull: {problem}'
    main = {
        "name": "main",
        "image": MISSING,
        "imageID": "",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": text}},
        "lastState": {},
        "ready": False,
        "started": False,
        "restartCount": 0,
    }
    return status(
        facts,
        "Pending",
        containerStatuses=[main],
        conditions=conditions(not_ready(BEGIN, NOT_READY, "containers with unready status: [main]")),
    )


def expected_gated(facts: Facts) -> Document:
    message = 'corresponding condition of pod readiness gate "example.com/lb" does not exist.'
    return status(
        facts,
        "Running",
        containerStatuses=[facts.running("main", BEGIN)],
        conditions=conditions(
            {"Ready": condition("Ready", "False", BEGIN, reason="ReadinessGatesNotReady", message=message)}
        ),
    )


def expected_host(facts: Facts) -> Document:
    """The sandbox has no address of its own: the pod's are the node's."""
    return status(
        facts,
        "Running",
        HOST_IP,
        containerStatuses=[facts.running("main", BEGIN)],
        conditions=conditions(),
    )


def expected_mirror(facts: Facts) -> Document:
    """Manifests have no generation, so none is observed."""
    return status(
        facts,
        "Running",
        generation=0,
        containerStatuses=[facts.running("main", BEGIN)],
        conditions=conditions(generation=0),
    )


def expected_debugged(facts: Facts) -> Document:
    """The prober says nothing of ephemeral containers: they are never ready, and never said to have started."""
    shell = facts.running("shell", 15, ready=False)
    del shell["started"]
    return status(
        facts,
        "Running",
        # The list of ephemeral containers is part of the spec: it has changed once.
        generation=2,
        containerStatuses=[facts.running("main", BEGIN)],
        ephemeralContainerStatuses=[shell],
        conditions=conditions(generation=2),
    )


def expected_ending(facts: Facts) -> Document:
    """Until it has ended it is what it was; a deletion is a generation."""
    return status(
        facts,
        "Running",
        generation=2,
        containerStatuses=[facts.running("main", BEGIN)],
        conditions=conditions(generation=2),
    )


EXPECTED: Final = {
    "plain": expected_plain,
    "init": expected_init,
    "sidecar": expected_sidecar,
    "job": expected_job,
    "failed-job": expected_failed_job,
    "crashing": expected_crashing,
    "unpulled": expected_unpulled,
    "gated": expected_gated,
    "host": expected_host,
    ETCD: expected_mirror,
    "debugged": expected_debugged,
    "ending": expected_ending,
}


async def ten_pods(stage: Stage) -> dict[str, str]:
    """All of them, as they are at second SHOWN. Returns the addresses that they were given, by UID."""
    stage.sim.abilities.supplemental_groups_policy = True
    await stage.start_agent()
    await stage.until_node_ready()
    await trio.sleep(BEGIN - trio.current_time())
    create_pods(stage)
    await trio.sleep(1)
    addresses = addresses_of(stage)
    await trio.sleep(BEGIN + 5 - trio.current_time())
    await meanwhile(stage)
    await trio.sleep(SHOWN - trio.current_time())
    return addresses


def without_clutter(written: Document) -> Document:
    """Without `null`s, which the API server's own conditions have."""
    conditions = [
        {key: value for key, value in one.items() if value is not None} for one in written.get("conditions", ())
    ]
    return {**written, "conditions": conditions}


def differences(is_: Document, should: Document) -> Document:
    return {
        field: {"is": is_.get(field), "should be": should.get(field)}
        for field in sorted(is_.keys() | should.keys())
        if is_.get(field) != should.get(field)
    }


async def test_the_status_of_every_kind_of_pod(autojump_clock: MockClock) -> None:
    async with cluster_stage(start=False, **SETTINGS) as stage:
        addresses = await ten_pods(stage)
        wrong = {
            name: differences(without_clutter(stage.status(name)), expected(Facts(stage, name, addresses)))
            for name, expected in EXPECTED.items()
        }
        assert {name: fields for name, fields in wrong.items() if fields} == {}


def lasting(stage: Stage, name: str) -> Document:
    """What of a status does not depend on what an agent remembers, of which a new one knows nothing."""
    written = without_clutter(stage.status(name))
    if name in ("job", "failed-job"):  # the address of a sandbox that is gone; the kubelet's cache is new too
        written = {field: value for field, value in written.items() if field not in ("podIP", "podIPs")}
    if name == ETCD:  # it is reported before the mirror pod with the times is known
        times = ("lastTransitionTime",)
        written["conditions"] = [
            {key: value for key, value in one.items() if key not in times} for one in written["conditions"]
        ]
    return written


async def test_a_restart_of_the_agent_changes_no_status(autojump_clock: MockClock) -> None:
    async with cluster_stage(start=False, **SETTINGS) as stage:
        await ten_pods(stage)
        # What is held back is tried anew.
        names = EXPECTED.keys() - {"crashing", "unpulled"}
        before = {name: lasting(stage, name) for name in names}
        runs = len(stage.sim.runs())
        crashes = len(stage.sim.started("crasher"))
        await stage.restart_agent()
        await trio.sleep(1)
        changed = {name: differences(lasting(stage, name), before[name]) for name in names}
        assert {name: fields for name, fields in changed.items() if fields} == {}
        assert len(stage.sim.runs()) - runs == len(stage.sim.started("crasher")) - crashes, "nothing else is started"


def condition_of(stage: Stage, name: str, kind: str) -> Document:
    return next(one for one in stage.status(name)["conditions"] if one["type"] == kind)


async def test_a_condition_of_somebody_else_opens_the_gate(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        await stage.until_node_ready()
        stage.create_pod("gated", readinessGates=[{"conditionType": "example.com/lb"}])
        await stage.until(lambda: stage.condition("gated", "ContainersReady") == "True")
        assert stage.condition("gated", "Ready") == "False"

        def decide(answer: str) -> None:
            mine = {"type": "example.com/lb", "status": answer, "reason": "Balanced"}
            others = [one for one in stage.status("gated")["conditions"] if one["type"] != mine["type"]]
            stage.admin.patch("pods", "gated", body={"status": {"conditions": [*others, mine]}}, subresource="status")

        decide("True")
        await stage.until_ready("gated", within=SOON)
        found = condition_of(stage, "gated", "example.com/lb")
        assert (found["status"], found["reason"]) == ("True", "Balanced"), "it stays somebody else's"
        decide("False")
        message = 'the status of pod readiness gate "example.com/lb" is not "True", but False'
        await stage.until(lambda: condition_of(stage, "gated", "Ready").get("message") == message, within=SOON)
        assert stage.condition("gated", "Ready") == "False"


async def test_a_deleted_pod_is_shown_as_ended_before_it_goes(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        await stage.until_node_ready()
        await trio.sleep(BEGIN - trio.current_time())
        stage.sim.images.add(IMAGE)
        stage.sim.program(Program.runs_forever(sigterm=3.0), pod="web")
        # A finalizer lets us see what would be gone at once.
        metadata = {"finalizers": ["example.com/look"]}
        stage.create_pod("web", metadata=metadata, containers=[container("main")])
        await stage.until_ready("web")
        facts = Facts(stage, "web")
        await trio.sleep(15 - trio.current_time())
        stage.delete_pod("web")
        await trio.sleep(2)
        assert stage.phase("web") == "Running", "not before its containers have ended"
        await stage.until_phase("web", "Failed", within=SOON)
        await trio.sleep(5)
        main = {
            "name": "main",
            **{key: facts.identity("main")[key] for key in ("containerID", "image", "imageID")},
            "state": facts.terminated("main", 10, 18, 143),
            "lastState": {},
            "ready": False,
            "started": False,
            "restartCount": 0,
            "resources": {},
        }
        # A pod that is being deleted ends for good; 143 is no success.
        should = status(
            facts,
            "Failed",
            generation=2,
            containerStatuses=[main],
            conditions=conditions(
                not_ready(18, "PodFailed", generation=2) | no_sandbox(18, generation=2), generation=2
            ),
        )
        assert differences(without_clutter(stage.status("web")), should) == {}
        stage.admin.patch("pods", "web", body={"metadata": {"finalizers": None}})
        await stage.until_gone("web", within=SOON)


# --- Mirror pods -----------------------------------------------------------------------------------------------------


HASH: Final = "kubernetes.io/config.hash"


async def shown_static_pod(stage: Stage, **spec: Any) -> Pod:
    await stage.until_node_ready()
    pod = stage.add_static_pod("etcd", **spec)
    await stage.until_ready(ETCD, within=SOON)
    return pod


def is_another(stage: Stage, uid: str) -> bool:
    """Whether there is a mirror pod that is not the one with this UID."""
    found = stage.admin.find("pods", ETCD)
    return found is not None and found["metadata"]["uid"] != uid


def runs(stage: Stage, pod: Pod) -> int:
    return len(stage.sim.runs(pod.metadata.uid))


async def test_a_mirror_pod_shows_the_static_pod_and_belongs_to_the_node(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        pod = await shown_static_pod(stage, priorityClassName="system-node-critical", priority=2_000_001_000)
        mirror = stage.pod(ETCD)
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "controller": True}
        owner["uid"] = stage.admin.get("nodes", NODE)["metadata"]["uid"]
        assert mirror["metadata"]["ownerReferences"] == [owner]
        annotations = mirror["metadata"]["annotations"]
        assert annotations["kubernetes.io/config.source"] == "file"
        assert annotations["kubernetes.io/config.mirror"] == annotations[HASH] == pod.metadata.uid
        assert mirror["metadata"]["uid"] != pod.metadata.uid, "the API server gives its own"
        assert mirror["spec"]["nodeName"] == NODE
        # Static pods from files put up with every NoExecute taint (applyDefaults).
        assert mirror["spec"]["tolerations"] == [{"operator": "Exists", "effect": "NoExecute"}]
        assert [one["name"] for one in mirror["spec"]["containers"]] == ["main"]


async def test_deleting_a_mirror_pod_does_not_stop_the_static_pod(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        pod = await shown_static_pod(stage)
        for grace in (0, 30):
            uid = stage.pod(ETCD)["metadata"]["uid"]
            stage.delete_pod(ETCD, grace=grace)
            await stage.until(partial(is_another, stage, uid), within=SOON)
            await stage.until_ready(ETCD, within=SOON)
            assert "deletionTimestamp" not in stage.pod(ETCD)["metadata"]
        await trio.sleep(60)
        assert runs(stage, pod) == 1
        assert stage.sim.running_containers(pod.metadata.uid)


async def test_a_changed_manifest_gets_a_new_mirror_pod(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        old = await shown_static_pod(stage)
        uid = stage.pod(ETCD)["metadata"]["uid"]
        stage.source.remove(old)
        new = stage.add_static_pod("etcd", containers=[container("main")])
        assert new.metadata.uid != old.metadata.uid
        await stage.until(lambda: bool(stage.sim.running_containers(new.metadata.uid)), within=35.0)
        await stage.until_ready(ETCD, within=SOON)
        mirror = stage.pod(ETCD)
        assert mirror["metadata"]["uid"] != uid
        assert mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] == new.metadata.uid
        assert mirror["spec"]["containers"][0]["image"] == IMAGE
        assert not stage.sim.running_containers(old.metadata.uid)
        assert len(stage.admin.list("pods")) == 1


async def test_the_mirror_pod_goes_when_the_static_pod_has_ended(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        stage.sim.program(Program.runs_forever(sigterm=5.0), pod=ETCD)
        pod = await shown_static_pod(stage)
        stage.source.remove(pod)
        await trio.sleep(3)
        assert stage.sim.running_containers(pod.metadata.uid)
        assert stage.exists(ETCD), "as long as something of it runs it is shown"
        await stage.until_gone(ETCD, within=6.0)
        assert not stage.sim.running_containers()


async def test_a_mirror_pod_whose_manifest_went_while_no_agent_ran_is_removed(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        pod = await shown_static_pod(stage)
        await stage.kill_agent()
        stage.source.remove(pod)
        await trio.sleep(60)
        assert stage.exists(ETCD)
        await stage.start_agent()
        await stage.until_gone(ETCD, within=10.0)
        await stage.until(lambda: not stage.sim.running_containers(), within=10.0)


async def test_a_restart_keeps_the_mirror_pod(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        pod = await shown_static_pod(stage)
        uid = stage.pod(ETCD)["metadata"]["uid"]
        for _ in range(3):
            await stage.restart_agent()
            await trio.sleep(5)
        assert stage.pod(ETCD)["metadata"]["uid"] == uid
        assert runs(stage, pod) == 1


async def test_a_pod_of_somebody_else_with_the_name_is_left_alone(autojump_clock: MockClock) -> None:
    async with cluster_stage(**SETTINGS) as stage:
        await stage.until_node_ready()
        stage.admin.create({"kind": "Pod", "metadata": {"name": ETCD}, "spec": {"containers": [container("other")]}})
        pod = stage.add_static_pod("etcd")
        await trio.sleep(60)
        assert stage.sim.running_containers(pod.metadata.uid)
        assert "annotations" not in stage.pod(ETCD)["metadata"]
        stage.delete_pod(ETCD, grace=0)
        await stage.until_ready(ETCD, within=15.0)


# --- Events ----------------------------------------------------------------------------------------------------------


def described(stage: Stage, name: str) -> list[tuple[str, str, str, int]]:
    """What `kubectl describe pod` finds: it asks for name, namespace and UID, and of a mirror pod for the hash."""
    metadata = stage.pod(name)["metadata"]
    uid = metadata.get("annotations", {}).get("kubernetes.io/config.mirror") or metadata["uid"]
    fields = f"involvedObject.name={name},involvedObject.namespace=default,involvedObject.uid={uid}"
    return [
        (one["type"], one["reason"], one["message"], one["count"])
        for one in stage.admin.list("events", "default", fields=fields)
    ]


async def test_what_kubectl_describe_tells_of_the_pods(autojump_clock: MockClock) -> None:
    async with cluster_stage(start=False, **SETTINGS) as stage:
        await ten_pods(stage)
        present = f'Container image "{IMAGE}" already present on machine'
        started = [
            ("Normal", "Pulled", present, 1),
            ("Normal", "Created", "Container created", 1),
            ("Normal", "Started", "Container started", 1),
        ]
        assert described(stage, "host") == started
        assert described(stage, ETCD) == started, "events of a static pod are found at its mirror"
        assert described(stage, "plain") == [*started, *started], "one for each container"
        assert described(stage, "init") == 3 * started
        assert described(stage, "job") == started, "nothing is told of an end that nobody caused"
        assert described(stage, "ending") == [*started, ("Normal", "Killing", "Stopping container main", 1)]
        crashing = described(stage, "crashing")
        counts = {reason: count for _, reason, _, count in crashing}
        assert counts.pop("BackOff") >= 1
        assert counts == {"Pulled": 2, "Created": 2, "Started": 2}
        uid = stage.pod("crashing")["metadata"]["uid"]
        text = f"Back-off restarting failed container crasher in pod crashing_default({uid})"
        assert ("Warning", "BackOff", text) in {one[:3] for one in crashing}
        unpulled = [one[:3] for one in described(stage, "unpulled")]
        assert unpulled[0] == ("Normal", "Pulling", f'Pulling image "{MISSING}"')
        assert unpulled[1][:2] == ("Warning", "Failed")
        assert unpulled[1][2].startswith(f'Failed to pull image "{MISSING}": ')
        assert unpulled[2:] == [
            ("Warning", "Failed", "Error: ErrImagePull"),
            ("Normal", "BackOff", f'Back-off pulling image "{MISSING}"'),
            ("Warning", "Failed", "Error: ImagePullBackOff"),
        ]


async def test_an_event_is_a_whole_object(autojump_clock: MockClock) -> None:
    """Recorder.makeEvent and the correlator of client-go."""
    async with cluster_stage(**SETTINGS) as stage:
        await stage.until_node_ready()
        await trio.sleep(BEGIN - trio.current_time())
        stage.sim.images.add(IMAGE)
        web = stage.create_pod("web", containers=[container("main")])
        await stage.until_ready("web", within=SOON)
        await trio.sleep(1)
        event = next(one for one in stage.admin.list("events", "default") if one["reason"] == "Started")
        name, _, nanoseconds = event["metadata"].pop("name").partition(".")
        assert name == "web"
        assert int(nanoseconds, 16) // 10**9 == int(stage.sim.clock.now().timestamp()) - 1
        involved = event["involvedObject"]
        assert int(involved.pop("resourceVersion")) > 0
        assert {key: value for key, value in event.items() if key not in ("metadata", "apiVersion")} == {
            "kind": "Event",
            "involvedObject": {
                "kind": "Pod",
                "namespace": "default",
                "name": "web",
                "uid": web.metadata.uid,
                "apiVersion": "v1",
                "fieldPath": "spec.containers{main}",
            },
            "type": "Normal",
            "reason": "Started",
            "message": "Container started",
            "count": 1,
            "firstTimestamp": at(BEGIN),
            "lastTimestamp": at(BEGIN),
            "source": {"component": "kubelet", "host": NODE},
            "reportingComponent": "kubelet",
            "reportingInstance": NODE,
        }
