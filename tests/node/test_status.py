"""The node as it should be, whether it has changed, and the patch for that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from tests.kube_client.scripted_patches import patched
from tests.node.stage import FACTS, IP, MACHINE, SETTINGS
from trikubelet.api import (
    ContainerImage,
    Node,
    NodeAddress,
    NodeCondition,
    NodeFeatures,
    NodeSpec,
    NodeStatus,
    NodeSystemInfo,
    ObjectMeta,
    Quantity,
    from_dict,
    to_dict,
)
from trikubelet.container.abilities import HandlerAbilities, RuntimeAbilities
from trikubelet.kube_client.types import PatchType
from trikubelet.node.address_choice import HostAddresses
from trikubelet.node.devices.model import DeviceResources
from trikubelet.node.facts import reported_version, runtime_version_text
from trikubelet.node.status import Accepted, has_changed, image_list, next_node, node_patch
from trikubelet.rpc.cri import v1

NOW = datetime(2026, 1, 1, microsecond=123, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
BARE = Node(metadata=ObjectMeta(name="n", labels={"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}))


def made(original: Node = BARE, facts: Any = FACTS, now: datetime = NOW, **settings: Any) -> Node:
    return next_node(original, facts, attrs.evolve(SETTINGS, **settings), now).node


def test_a_bare_node_gets_its_whole_status() -> None:
    document = to_dict(made())
    conditions = document["status"].pop("conditions")
    assert document == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": BARE.metadata.labels},
        "spec": {},
        "status": {
            "capacity": {"cpu": "2", "memory": "19531250Ki", "pods": "110", "ephemeral-storage": "5000"},
            "allocatable": {"cpu": "2", "memory": "19531250Ki", "pods": "110", "ephemeral-storage": "5000"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": "123",
                "systemUUID": "abc",
                "bootID": "1b3",
                "kernelVersion": "6.1",
                "osImage": "Debian",
                "containerRuntimeVersion": "containerd://1.6.20",
                "kubeletVersion": "v1.36.2",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }
    assert [condition["type"] for condition in conditions] == [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "Ready",
    ]
    assert conditions[-1] == {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def test_problems_come_in_the_kubelets_order() -> None:
    facts = attrs.evolve(
        FACTS,
        machine=attrs.evolve(MACHINE, storage=None),
        runtime_problems=("container runtime is down", "PLEG is not healthy: x"),
        network_problem="network",
        storage_problem="storage",
        shutdown_problem="node is shutting down",
    )
    assert made(facts=facts).status.conditions[-1].message == (
        "[container runtime is down, PLEG is not healthy: x, network, storage, node is shutting down, "
        "missing node capacity for resources: ephemeral-storage]"
    )


def test_what_others_wrote_stays() -> None:
    theirs = NodeCondition(type="NetworkUnavailable", status="False", reason="CalicoIsUp")
    original = attrs.evolve(
        BARE,
        status=NodeStatus(
            capacity={"example.com/gpu": Quantity(2)}, conditions=(theirs,), volumes_in_use=("a",), phase="Running"
        ),
    )
    status = made(original).status
    assert status.capacity["example.com/gpu"] == status.allocatable["example.com/gpu"] == Quantity(2)
    assert (status.conditions[0], status.volumes_in_use, status.phase) == (theirs, ("a",), "Running")


def test_devices_are_told_as_their_plugins_tell_of_them() -> None:
    """`TestMachineInfo`: "device plugin resources are reflected in capacity and allocatable", "inactive device plugin
    resources should have their capacity set to 0"; what plugins have nothing to do with stays."""
    both = {"vendor.com/gpu": Quantity(7), "vendor.com/old": Quantity(3), "others.com/dongle": Quantity(4)}
    before = attrs.evolve(BARE, status=NodeStatus(capacity=both, allocatable=both))
    devices = DeviceResources(
        {"vendor.com/gpu": 4, "vendor.com/nic": 2},
        {"vendor.com/gpu": 3, "vendor.com/nic": 0},
        frozenset({"vendor.com/old"}),
    )
    status = made(before, attrs.evolve(FACTS, devices=devices)).status
    told = {name: (str(amount), str(status.allocatable[name])) for name, amount in status.capacity.items()}
    assert {name: amounts for name, amounts in told.items() if "/" in name} == {
        "vendor.com/gpu": ("4", "3"),
        "vendor.com/nic": ("2", "0"),
        "vendor.com/old": ("0", "0"),
        "others.com/dongle": ("4", "4"),
    }
    assert made(BARE, attrs.evolve(FACTS, devices=devices)).status.allocatable["vendor.com/gpu"] == Quantity(3)


def test_addresses_that_cannot_be_told_stay_and_are_a_problem() -> None:
    original = attrs.evolve(BARE, status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="1.2.3.4"),)))
    following = next_node(original, attrs.evolve(FACTS, host=HostAddresses()), SETTINGS, NOW)
    assert following.node.status.addresses == original.status.addresses
    assert following.problem is not None
    assert following.problem.startswith("can't get ip address of node n. error: ")


@pytest.mark.parametrize(("known", "told"), [("", False), ("1b3", False), ("other", True)])
def test_a_boot_since_the_last_report_is_told(known: str, told: bool) -> None:
    original = attrs.evolve(BARE, status=NodeStatus(node_info=NodeSystemInfo(boot_id=known)))
    following = next_node(original, FACTS, SETTINGS, NOW)
    messages = [event.message for event in following.events if event.reason == "Rebooted"]
    assert messages == (["Node n has been rebooted, boot id: 1b3"] if told else [])
    assert following.node.status.node_info.boot_id == "1b3"


def test_conditions_that_begin_make_events() -> None:
    events = next_node(BARE, FACTS, SETTINGS, NOW).events
    assert [event.message for event in events] == [
        "Node n status is now: NodeHasSufficientMemory",
        "Node n status is now: NodeHasNoDiskPressure",
        "Node n status is now: NodeHasSufficientPID",
    ]


def test_the_runtimes_abilities_are_told_in_the_order_of_names() -> None:
    abilities = RuntimeAbilities(
        handlers={"runc": HandlerAbilities(user_namespaces=True), "": HandlerAbilities()}, features_told=True
    )
    document = to_dict(made(facts=attrs.evolve(FACTS, abilities=abilities)))["status"]
    no = {"recursiveReadOnlyMounts": False, "userNamespaces": False}
    assert document["runtimeHandlers"] == [
        {"name": "", "features": no},
        {"name": "runc", "features": no | {"userNamespaces": True}},
    ]
    assert document["features"] == {"supplementalGroupsPolicy": False}


def test_a_runtime_that_says_nothing_of_features_changes_nothing_of_them() -> None:
    said = NodeFeatures(supplemental_groups_policy=True)
    assert made(attrs.evolve(BARE, status=NodeStatus(features=said))).status.features == said
    assert made().status.features is None


def test_a_label_that_is_wrong_or_missing_is_put_right() -> None:
    original = attrs.evolve(BARE, metadata=ObjectMeta(name="n", labels={"kubernetes.io/os": "plan9", "mine": "x"}))
    assert made(original).metadata.labels == {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "mine": "x",
    }


def test_the_annotation_of_the_flag_goes_with_the_flag() -> None:
    cloud = attrs.evolve(SETTINGS.addresses, node_ips=(IP,), external_cloud=True)
    node = made(addresses=cloud)
    assert node.metadata.annotations == {"alpha.kubernetes.io/provided-node-ip": "10.0.0.1"}
    assert made(node).metadata.annotations == {}


def test_images_are_the_biggest_with_five_names_each() -> None:
    images = [
        v1.Image(id="a", size=1, repo_tags=["small:1"]),
        v1.Image(id="b", size=7, repo_digests=["d1", "d2"], repo_tags=["t1", "t2", "t3", "t4"]),
        v1.Image(id="c", size=7, repo_tags=["c:1"]),
    ]
    listed = image_list(images)
    assert listed == (
        ContainerImage(names=("c:1",), size_bytes=7),
        ContainerImage(names=("d1", "d2", "t1", "t2", "t3"), size_bytes=7),
        ContainerImage(names=("small:1",), size_bytes=1),
    )
    facts = attrs.evolve(FACTS, images=listed)
    assert made(facts=facts, max_images=1).status.images == listed[:1]
    assert made(facts=facts, max_images=-1).status.images == listed
    assert made(facts=facts, max_images=0).status.images == ()


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("1.6.20~ds1", "1.6.20"),
        ("v1.7.13", "1.7.13"),
        ("2.0.0-rc.1", "2.0.0-rc.1"),
        ("v2.1.0+unknown", "2.1.0+unknown"),
        ("1.30", "1.30"),
        (None, "Unknown"),
        ("", "Unknown"),
        ("devel", "Unknown"),
    ],
)
def test_a_runtimes_version_is_told_without_decoration(version: str | None, text: str) -> None:
    assert runtime_version_text(version) == text


def test_the_reported_version_compares_as_a_kubelets() -> None:
    assert reported_version().startswith("v1.36.2+trikubelet.")
    assert reported_version("v1.35.0+k3s1").startswith("v1.35.0+k3s1.trikubelet.")


def test_only_a_heartbeat_is_no_change() -> None:
    node = made()
    assert not has_changed(node, made(node, now=LATER))
    assert made(node, now=LATER) != node


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": attrs.evolve(MACHINE, memory=40 * 10**9)},
        {"runtime_problems": ("x",)},
        {"images": (ContainerImage(names=("a",)),)},
        {"volumes_in_use": ("v",)},
    ],
)
def test_everything_else_is_a_change(changes: dict[str, Any]) -> None:
    node = made()
    assert has_changed(node, made(node, facts=attrs.evolve(FACTS, **changes), now=LATER))


def test_conditions_in_another_order_are_no_change() -> None:
    node = made()
    turned = attrs.evolve(node, status=attrs.evolve(node.status, conditions=node.status.conditions[::-1]))
    assert not has_changed(node, turned)


def test_a_field_that_the_api_server_drops_is_no_change_the_second_time() -> None:
    node = made()
    wanted = made(node, declared_features=("RestartAllContainersOnContainerExits",))
    assert has_changed(node, wanted)
    accepted = Accepted(wanted.status, node.status)
    assert not has_changed(node, wanted, accepted)
    other = made(node, declared_features=("Another",))
    assert has_changed(node, other, accepted)
    somebody = attrs.evolve(node, status=attrs.evolve(node.status, declared_features=("Theirs",)))
    assert has_changed(somebody, wanted, accepted)


def test_the_patch_makes_the_new_node_of_the_old_and_leaves_the_spec() -> None:
    old = attrs.evolve(made(), spec=NodeSpec(unschedulable=True))
    problems = attrs.evolve(FACTS, runtime_problems=("x",), machine=attrs.evolve(MACHINE, cpus=4))
    new = attrs.evolve(made(old, facts=problems, now=LATER), spec=NodeSpec())
    patch = node_patch(old, new)
    assert "spec" not in patch
    result = from_dict(Node, patched(to_dict(old), PatchType.STRATEGIC, patch))
    assert result == attrs.evolve(new, spec=old.spec)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [("InternalIP", "1.1.1.1")]),
        ([("InternalIP", "1.1.1.1")], [("InternalIP", "2.2.2.2")]),
        ([("InternalIP", "1.1.1.1"), ("InternalIP", "::1")], [("InternalIP", "::2"), ("InternalIP", "2.2.2.2")]),
        ([("InternalIP", "1.1.1.1"), ("ExternalIP", "3.3.3.3")], [("InternalIP", "1.1.1.1"), ("Hostname", "h")]),
        ([("InternalIP", "1.1.1.1")], []),
    ],
)
def test_addresses_are_replaced_as_a_whole(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> None:
    def with_addresses(pairs: list[tuple[str, str]]) -> Node:
        addresses = tuple(NodeAddress(type=type_, address=address) for type_, address in pairs)
        return attrs.evolve(BARE, status=NodeStatus(addresses=addresses))

    old, new = with_addresses(before), with_addresses(after)
    assert from_dict(Node, patched(to_dict(old), PatchType.STRATEGIC, node_patch(old, new))) == new


def test_nothing_to_tell_is_an_empty_patch() -> None:
    assert node_patch(made(), made()) == {}
