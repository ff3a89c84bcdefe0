"""A node joins the cluster: what it writes of itself, field by field, and what it makes of what is there already.

The documents are written by hand from the kubelet's source: `initialNode` and `tryRegisterWithAPIServer` in
kubelet_node_status.go, nodestatus/setters.go, the lease controller of component-helpers, and `nodeInfoManager` of the
CSI plugin.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import trio

from tests.apiserver.builders import node_document
from tests.scenarios.stage import NODE, Stage, cluster_stage, condition_status, machine_view, told
from trikubelet import __version__
from trikubelet.agent.options import NodeOptions
from trikubelet.api import Taint

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.documents import Document

GI = 2**30
READY_WITHIN = 2.0
"""Seconds from the agent's start."""
LEASES = "kube-node-lease"
VIEW = machine_view(
    "10.0.0.7",
    "192.0.2.7",
    cpus=4,
    memory=8 * GI,
    huge_pages={2 * 2**20: 512, GI: 0},
    storage=100 * GI,
    machine_id="4f5e3c",
    system_uuid="b7c1",
    boot_id="e0a9",
    kernel_version="6.18.0",
    os_image="Debian GNU/Linux 13 (trixie)",
)
HOST = NodeOptions(hostname="host-7")


def without_server_fields(document: Document) -> Document:
    """Without what the API server itself writes."""
    metadata = dict(document["metadata"])
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        metadata.pop(field, None)
    return {**document, "metadata": metadata}


def refusals(stage: Stage) -> list[tuple[str, str, int]]:
    """What the API server refused; asking for what is not there yet is no offence."""
    return [
        (one.call.verb, one.call.resource, one.code)
        for one in stage.server.calls
        if one.code >= 400 and one.code not in (404,)
    ]


def node_of(stage: Stage) -> Document:
    return stage.admin.get("nodes", NODE)


async def test_a_node_is_ready_two_seconds_after_the_start_of_its_agent(autojump_clock: MockClock) -> None:
    async with cluster_stage(start=False) as stage:
        began = trio.current_time()
        await stage.start_agent()
        await stage.until_node_ready(within=READY_WITHIN)
        assert trio.current_time() - began < READY_WITHIN
        stage.create_pod("web")
        await stage.until_ready("web", within=READY_WITHIN)
        stage.delete_pod("web")
        await stage.until_gone("web", within=READY_WITHIN)
        assert refusals(stage) == [], "the Node authorizer and NodeRestriction have nothing against it"


async def test_the_node_object_is_what_a_kubelet_writes(autojump_clock: MockClock) -> None:
    taints = (Taint(key="dedicated", value="gpu", effect="NoSchedule"),)
    node = NodeOptions(hostname="host-7", labels={"tier": "edge", "node.kubernetes.io/pool": "a"}, taints=taints)
    change = told(node, max_pods=110, provider_id="cloud://7", kube_reserved={"cpu": "500m", "memory": "1Gi"})
    async with cluster_stage(machine=VIEW, change_options=change) as stage:
        await stage.until_node_ready()
        written = without_server_fields(node_of(stage))
        now = "2026-01-01T00:00:00Z"

        def condition(kind: str, status: str, reason: str, message: str) -> Document:
            told_at = {"lastHeartbeatTime": now, "lastTransitionTime": now}
            return {"type": kind, "status": status, "reason": reason, "message": message, **told_at}

        assert written["metadata"] == {
            "name": NODE,
            # initialNode: hostname, os and arch, the latter two under their old names too, then --node-labels.
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": "host-7",
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/pool": "a",
                "tier": "edge",
            },
            # enableControllerAttachDetach is on by default.
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        }
        assert written["spec"] == {
            "providerID": "cloud://7",
            "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}],
        }
        assert written["status"] == {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": "host-7"}],
            # setters.go MachineInfo: every size of huge pages that the kernel has, and 512 of 2 MiB are there.
            "capacity": {
                "cpu": "4",
                "memory": "8Gi",
                "ephemeral-storage": "100Gi",
                "hugepages-1Gi": "0",
                "hugepages-2Mi": "1Gi",
                "pods": "110",
            },
            # Without kubeReserved, without evictionHard's defaults (100Mi of memory, 10% of the disk in single
            # precision), and of memory without the huge pages too.
            "allocatable": {
                "cpu": "3500m",
                "memory": "6044Mi",
                "ephemeral-storage": "96636764000",
                "hugepages-1Gi": "0",
                "hugepages-2Mi": "1Gi",
                "pods": "110",
            },
            # defaultNodeStatusFuncs: Ready comes last. NetworkUnavailable is not the kubelet's.
            "conditions": [
                condition(
                    "MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"
                ),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            # kubeProxyVersion is not told any more, but is not omitted when empty.
            "nodeInfo": {
                "machineID": "4f5e3c",
                "systemUUID": "b7c1",
                "bootID": "e0a9",
                "kernelVersion": "6.18.0",
                "osImage": "Debian GNU/Linux 13 (trixie)",
                "containerRuntimeVersion": "simulated://1.0.0",
                "kubeletVersion": f"v1.36.2+trikubelet.{__version__}",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "declaredFeatures": [
                "ExtendWebSocketsToKubelet",
                "InPlacePodLevelResourcesVerticalScaling",
                "InPlacePodVerticalScalingInitContainers",
                "RestartAllContainersOnContainerExits",
            ],
            # The runtime names one handler, its default one, and is of a version that does not tell of `features`.
            "runtimeHandlers": [{"name": "", "features": {"recursiveReadOnlyMounts": False, "userNamespaces": False}}],
        }


async def test_the_lease_belongs_to_the_node_and_is_renewed_every_ten_seconds(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        await trio.sleep(1)
        first = stage.admin.get("leases", NODE, LEASES)
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node_of(stage)["metadata"]["uid"]}
        assert first["metadata"]["ownerReferences"] == [owner], "no controller, or the garbage collector would object"
        assert first["spec"]["holderIdentity"] == NODE
        assert first["spec"]["leaseDurationSeconds"] == 40
        assert len(first["spec"]["renewTime"]) == len("2026-01-01T00:00:00.000000Z"), "microseconds"
        stage.server.calls.clear()
        await trio.sleep(100)
        calls = [one for one in stage.server.calls if one.call.resource == "leases"]
        assert {(one.call.verb, one.code) for one in calls} == {("update", 200)}, "nothing is read before"
        gaps = [later.at - earlier.at for earlier, later in pairwise(calls)]
        assert all(10 <= gap <= 10.5 for gap in gaps)
        assert len(calls) >= 9


async def test_the_csi_node_says_that_no_driver_is_there(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        plugins = ("aws-ebs", "azure-disk", "azure-file", "cinder", "gce-pd", "portworx-volume", "vsphere-volume")
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node_of(stage)["metadata"]["uid"]}
        assert without_server_fields(stage.admin.get("csinodes", NODE)) == {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {
                "name": NODE,
                "annotations": {
                    "storage.alpha.kubernetes.io/migrated-plugins": ",".join(
                        f"kubernetes.io/{name}" for name in plugins
                    )
                },
                "ownerReferences": [owner],
            },
            "spec": {"drivers": []},
        }


async def test_events_tell_of_the_node_as_kubectl_describe_looks_for_them(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        await trio.sleep(1)
        assert stage.events() == [
            ("Normal", "Starting", "Starting kubelet."),
            ("Normal", "NodeHasSufficientMemory", f"Node {NODE} status is now: NodeHasSufficientMemory"),
            ("Normal", "NodeHasNoDiskPressure", f"Node {NODE} status is now: NodeHasNoDiskPressure"),
            ("Normal", "NodeHasSufficientPID", f"Node {NODE} status is now: NodeHasSufficientPID"),
            ("Normal", "NodeReady", f"Node {NODE} status is now: NodeReady"),
        ]
        event = stage.admin.list("events", "default")[-1]
        # kubectl describe node asks for both UIDs, the object's and the name; kubelet 1.36 sends none (`nodeRef`).
        assert event["involvedObject"] == {"kind": "Node", "name": NODE, "apiVersion": "v1"}
        assert event["source"] == {"component": "kubelet", "host": NODE}
        assert (event["reportingComponent"], event["reportingInstance"]) == ("kubelet", NODE)


async def test_with_an_external_cloud_the_node_waits_for_the_cloud(autojump_clock: MockClock) -> None:
    node = NodeOptions(hostname="host-7", ips=(IPv4Address("192.0.2.7"),), external_cloud=True)
    async with cluster_stage(machine=VIEW, change_options=told(node)) as stage:
        await stage.until_node_ready()
        written = node_of(stage)
        assert written["spec"]["taints"] == [
            {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}
        ]
        # The cloud's controller reads there which of its addresses --node-ip has chosen.
        assert written["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"] == "192.0.2.7"


async def test_the_reported_version_can_be_that_of_an_older_cluster(autojump_clock: MockClock) -> None:
    async with cluster_stage(change_options=told(NodeOptions(reported_version="v1.34.1"))) as stage:
        await stage.until_node_ready()
        assert node_of(stage)["status"]["nodeInfo"]["kubeletVersion"] == f"v1.34.1+trikubelet.{__version__}"


async def test_of_a_node_that_is_there_only_what_belongs_to_the_kubelet_is_changed(autojump_clock: MockClock) -> None:
    existing = node_document(
        NODE,
        labels={"kubernetes.io/os": "windows", "kubernetes.io/hostname": "old", "team": "red"},
        annotations={"example.com/note": "keep"},
    )
    existing["spec"] = {"unschedulable": True, "taints": [{"key": "cordon", "effect": "NoSchedule"}]}
    existing["status"] = {
        "capacity": {"cpu": "64", "example.com/widget": "3", "hugepages-4Mi": "8Mi"},
        "allocatable": {"cpu": "64", "example.com/widget": "3", "hugepages-4Mi": "8Mi"},
        "conditions": [{"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated"}],
        "nodeInfo": {"bootID": "e0a9"},
    }
    node = NodeOptions(hostname="host-7", labels={"tier": "edge", "node.kubernetes.io/instance-type": "m7"})
    change = told(attrs.evolve(node, taints=(Taint(key="dedicated", effect="NoSchedule"),)), max_pods=110)
    async with cluster_stage(start=False, machine=VIEW, change_options=change) as stage:
        before = stage.admin.create(existing)
        stage.admin.patch("nodes", NODE, body={"status": existing["status"]}, subresource="status")
        await stage.start_agent()
        await stage.until_node_ready(within=READY_WITHIN)
        after = node_of(stage)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        # updateDefaultLabels: the labels that are the kubelet's are put right, `tier` is not one of them.
        assert after["metadata"]["labels"] == {
            "beta.kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": "host-7",
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "m7",
            "team": "red",
        }
        assert after["metadata"]["annotations"] == {
            "example.com/note": "keep",
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        }
        assert after["spec"] == before["spec"], "taints are given at creation only, and nobody is uncordoned"
        # reconcileHugePageResource: a size that the machine has not is gone. Devices of others stay.
        assert after["status"]["capacity"] == {
            "cpu": "4",
            "memory": "8Gi",
            "ephemeral-storage": "100Gi",
            "hugepages-1Gi": "0",
            "hugepages-2Mi": "1Gi",
            "pods": "110",
            "example.com/widget": "3",
        }
        assert condition_status(after, "NetworkUnavailable") == "False"
        reasons = [reason for _, reason, _ in stage.events()]
        assert "NodeReady" not in reasons, "there was no condition that changed"
        assert "Rebooted" not in reasons, "it is the same boot"


async def test_a_node_that_comes_back_from_a_reboot_says_so(autojump_clock: MockClock) -> None:
    async with cluster_stage(start=False, machine=VIEW, change_options=told(HOST)) as stage:
        stage.admin.create(node_document(NODE))
        stage.admin.patch("nodes", NODE, body={"status": {"nodeInfo": {"bootID": "old"}}}, subresource="status")
        await stage.start_agent()
        await stage.until_node_ready(within=READY_WITHIN)
        await trio.sleep(1)
        rebooted = ("Warning", "Rebooted", f"Node {NODE} has been rebooted, boot id: e0a9")
        assert rebooted in stage.events()


async def test_a_node_that_may_not_create_its_object_takes_the_one_that_is_there(autojump_clock: MockClock) -> None:
    async with cluster_stage(start=False) as stage:
        stage.admin.create(node_document(NODE))
        stage.server.faults.on(verb="create", resource="nodes").fail(403)
        await stage.start_agent()
        await stage.until_node_ready(within=READY_WITHIN)


async def test_unless_it_registers_nodes_an_agent_waits_for_its_object(autojump_clock: MockClock) -> None:
    async with cluster_stage(change_options=told(register_node=False)) as stage:
        stage.add_static_pod("etcd")
        await trio.sleep(60)
        assert stage.admin.find("nodes", NODE) is None
        assert len(stage.sim.running_containers()) == 1, "static pods run without a node object"
        assert not stage.exists(f"etcd-{NODE}"), "and have no mirror, which would have no owner"
        stage.admin.create(node_document(NODE))
        await stage.until_node_ready(within=12.0)
        await stage.until_ready(f"etcd-{NODE}", within=READY_WITHIN)


async def test_the_csi_node_of_an_earlier_node_with_this_name_is_replaced(autojump_clock: MockClock) -> None:
    async with cluster_stage(start=False) as stage:
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "of-another"}
        metadata = {"name": NODE, "ownerReferences": [owner]}
        document = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": {"drivers": []}}
        stage.admin.create(document)
        await stage.start_agent()
        await stage.until_node_ready(within=READY_WITHIN)
        owners = stage.admin.get("csinodes", NODE)["metadata"]["ownerReferences"]
        assert [owner["uid"] for owner in owners] == [node_of(stage)["metadata"]["uid"]]


async def test_a_deleted_node_registers_again_only_after_a_restart_of_its_agent(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        web = stage.create_pod("web")
        await stage.until_ready("web")
        uid = node_of(stage)["metadata"]["uid"]
        stage.admin.delete("nodes", NODE)
        # What the garbage collector does to what the node owns.
        stage.admin.delete("leases", NODE, LEASES)
        stage.admin.delete("csinodes", NODE)
        await trio.sleep(600)
        assert stage.admin.find("nodes", NODE) is None
        assert stage.admin.find("leases", NODE, LEASES) is None, "a lease has an owner or does not exist"
        assert len(stage.sim.runs(web.metadata.uid)) == 1, "its pods go on"
        assert stage.sim.running_containers(web.metadata.uid)
        await stage.restart_agent()
        await stage.until_node_ready(within=READY_WITHIN)
        node = node_of(stage)
        assert node["metadata"]["uid"] != uid
        await trio.sleep(1)
        for what, where in (("leases", LEASES), ("csinodes", "")):
            owners = stage.admin.get(what, NODE, where)["metadata"]["ownerReferences"]
            assert [owner["uid"] for owner in owners] == [node["metadata"]["uid"]], what
        assert len(stage.sim.runs(web.metadata.uid)) == 1
