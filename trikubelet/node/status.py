"""The node object as it should be, what of it has changed, and the patch for that (kubelet: `setNodeStatus`).

The object is always made from the one that the API server has, so what others wrote of it stays: their conditions,
their capacities, the addresses of a cloud's controller. Everything here is pure; the status manager asks and sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api import (
    ContainerImage,
    DaemonEndpoint,
    Node,
    NodeCondition,
    NodeDaemonEndpoints,
    NodeFeatures,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    NodeStatus,
    NodeSwapStatus,
    NodeSystemInfo,
    ObjectMeta,
    Quantity,
    to_dict,
)
from trikubelet.formats.values import frozen
from trikubelet.kube_client.patches import NODE_LISTS, replacing, strategic_patch
from trikubelet.node import labels
from trikubelet.node.address_choice import PROVIDED_NODE_IP, NodeAddressError, node_addresses
from trikubelet.node.capacity import CPU, MEMORY, PODS, STORAGE, allocatable, capacity, reserved
from trikubelet.node.conditions import next_conditions
from trikubelet.node.facts import runtime_version_text
from trikubelet.telemetry.events import EventType

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from trikubelet.linux.machine import Machine
    from trikubelet.node.facts import NodeFacts, NodeSettings
    from trikubelet.rpc.cri import v1

NAMES_PER_IMAGE: Final = 5


@frozen
class NodeOccurrence:
    """Something about the node that an event is to tell."""

    type: EventType
    reason: str
    message: str


@frozen
class NextNode:
    """The node as it should be."""

    node: Node
    events: tuple[NodeOccurrence, ...] = ()
    problem: str | None = None
    """Why some of it is unknown; that part is as it was."""


@frozen
class Accepted:
    """What the API server made of the last patch. An older one does not know all fields and drops them silently."""

    wanted: NodeStatus
    answered: NodeStatus


def next_node(original: Node, facts: NodeFacts, settings: NodeSettings, now: datetime) -> NextNode:
    """`original` with everything that this agent knows better."""
    now = now.replace(microsecond=0)  # Timestamps have whole seconds on the wire.
    before = original.status
    amounts = _capacity(before, facts, settings)
    addresses, problem = before.addresses, None
    try:
        addresses = node_addresses(settings.addresses, facts.host, before.addresses)
    except NodeAddressError as error:
        problem = str(error)
    missing = _missing_capacity(amounts, settings)
    conditions, reasons = next_conditions(
        before.conditions,
        pressure=facts.pressure,
        problems=facts.problems if missing is None else (*facts.problems, missing),
        warnings=facts.warnings,
        now=now,
    )
    status = attrs.evolve(
        before,
        capacity=amounts,
        allocatable=_unchanged_as_before(
            before.allocatable,
            {
                **allocatable(amounts, reserved(amounts, settings.reservations), before.allocatable),
                **_quantities(facts.devices.allocatable),
            },
        ),
        conditions=conditions,
        addresses=addresses,
        daemon_endpoints=NodeDaemonEndpoints(kubelet_endpoint=DaemonEndpoint(port=settings.kubelet_port)),
        node_info=_node_info(before.node_info, facts, settings),
        images=facts.images if settings.max_images < 0 else facts.images[: settings.max_images],
        runtime_handlers=_runtime_handlers(facts),
        features=_features(before.features, facts),
        volumes_in_use=before.volumes_in_use if facts.volumes_in_use is None else facts.volumes_in_use,
        declared_features=before.declared_features
        if settings.declared_features is None
        else settings.declared_features,
    )
    events = [
        NodeOccurrence(EventType.NORMAL, reason, status_event_message(settings.name, reason)) for reason in reasons
    ]
    if _has_rebooted(before, facts.machine):
        events.insert(0, _reboot(settings.name, status.node_info.boot_id))
    node = attrs.evolve(original, metadata=_metadata(original, facts, settings), status=status)
    return NextNode(node, tuple(events), problem)


def status_event_message(node_name: str, reason: str) -> str:
    """Of the events that tell a change of the node's status."""
    return f"Node {node_name} status is now: {reason}"


def has_changed(original: Node, node: Node, accepted: Accepted | None = None) -> bool:
    """Whether `node` says something that the API server does not know. Times of heartbeats say nothing.

    A field that is as it was when the API server last answered, and that was reported the same then, has not changed:
    the server dropped it once and would again.
    """
    if original.metadata != node.metadata:
        return True
    fields = {field.name for field in attrs.fields(NodeStatus)} - {"unknown_fields"}
    return any(_field_changed(name, original.status, node.status, accepted) for name in fields)


def _field_changed(name: str, before: NodeStatus, after: NodeStatus, accepted: Accepted | None) -> bool:
    if _comparable(name, before) == _comparable(name, after):
        return False
    return (
        accepted is None
        or _comparable(name, accepted.wanted) != _comparable(name, after)
        or _comparable(name, accepted.answered) != _comparable(name, before)
    )


def _comparable(name: str, status: NodeStatus) -> object:
    if name != "conditions":
        return getattr(status, name)
    return {condition.type: _without_heartbeat(condition) for condition in status.conditions}


def _without_heartbeat(condition: NodeCondition) -> NodeCondition:
    return attrs.evolve(condition, last_heartbeat_time=None)


def node_patch(old: Node, new: Node) -> dict[str, Any]:
    """The strategic merge patch of `nodes/status` that makes `new` of `old`. The spec is never in it.

    Addresses are merged by type, of which there may be two, so a changed list replaces the old one.
    """
    addresses_differ = bool(old.status.addresses) and old.status.addresses != new.status.addresses
    target = attrs.evolve(new, spec=old.spec)
    if addresses_differ:
        target = attrs.evolve(target, status=attrs.evolve(new.status, addresses=old.status.addresses))
    patch = strategic_patch(to_dict(old), to_dict(target), NODE_LISTS)
    if addresses_differ:
        items = [to_dict(address) for address in new.status.addresses]
        patch.setdefault("status", {})["addresses"] = replacing(items)
    return patch


def image_list(images: list[v1.Image]) -> tuple[ContainerImage, ...]:
    """A runtime's images as nodes report them: the biggest first, of each its digests, then its tags, five at most."""
    ordered = sorted(images, key=lambda image: (image.size, image.id), reverse=True)
    return tuple(
        ContainerImage(names=(*image.repo_digests, *image.repo_tags)[:NAMES_PER_IMAGE], size_bytes=image.size)
        for image in ordered
    )


def _capacity(before: NodeStatus, facts: NodeFacts, settings: NodeSettings) -> dict[str, Quantity]:
    """What others say that the node has stays. Of devices whose plugin has gone for good it has none any more."""
    known = capacity(
        facts.machine,
        max_pods=settings.max_pods,
        pods_per_core=settings.pods_per_core,
        local_storage=settings.local_storage,
    )
    devices = {**dict.fromkeys(facts.devices.gone, 0), **facts.devices.capacity}
    return _unchanged_as_before(before.capacity, {**before.capacity, **known, **_quantities(devices)})


def _quantities(numbers: Mapping[str, int]) -> dict[str, Quantity]:
    return {name: Quantity(number) for name, number in numbers.items()}


def _unchanged_as_before(before: Mapping[str, Quantity], after: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """An amount that is the same is written the same: the server says `5k` where a size in bytes is `5000`."""
    return {name: before[name] if before.get(name) == amount else amount for name, amount in after.items()}


def _missing_capacity(amounts: Mapping[str, object], settings: NodeSettings) -> str | None:
    required = (CPU, MEMORY, PODS, STORAGE) if settings.local_storage else (CPU, MEMORY, PODS)
    missing = [name for name in required if name not in amounts]
    return f"missing node capacity for resources: {', '.join(missing)}" if missing else None


def _node_info(before: NodeSystemInfo, facts: NodeFacts, settings: NodeSettings) -> NodeSystemInfo:
    info = attrs.evolve(
        before,
        container_runtime_version=f"{facts.runtime_name}://{runtime_version_text(facts.runtime_version)}",
        kubelet_version=settings.kubelet_version,
        kube_proxy_version="",
        operating_system=labels.LINUX,
        architecture=facts.architecture,
    )
    machine = facts.machine
    if machine is None:
        return info
    return attrs.evolve(
        info,
        machine_id=machine.machine_id,
        system_uuid=machine.system_uuid,
        boot_id=machine.boot_id,
        kernel_version=machine.kernel_version,
        os_image=machine.os_image,
        swap=NodeSwapStatus(capacity=machine.swap) if machine.swap else before.swap,
    )


def _runtime_handlers(facts: NodeFacts) -> tuple[NodeRuntimeHandler, ...]:
    return tuple(
        NodeRuntimeHandler(
            name=name,
            features=NodeRuntimeHandlerFeatures(
                recursive_read_only_mounts=abilities.recursive_read_only_mounts,
                user_namespaces=abilities.user_namespaces,
            ),
        )
        for name, abilities in sorted(facts.abilities.handlers.items())
    )


def _features(before: NodeFeatures | None, facts: NodeFacts) -> NodeFeatures | None:
    """A runtime that says nothing of its features leaves what the node says of them."""
    if not facts.abilities.features_told:
        return before
    return NodeFeatures(supplemental_groups_policy=facts.abilities.supplemental_groups_policy)


def _metadata(original: Node, facts: NodeFacts, settings: NodeSettings) -> ObjectMeta:
    """With the two labels that every node has to have, and the annotation of `--node-ip`."""
    metadata = original.metadata
    required = {labels.OS: labels.LINUX, labels.ARCH: facts.architecture}
    annotations = {key: value for key, value in metadata.annotations.items() if key != PROVIDED_NODE_IP}
    if (provided := settings.addresses.provided_node_ip) is not None:
        annotations[PROVIDED_NODE_IP] = provided
    return attrs.evolve(metadata, labels={**metadata.labels, **required}, annotations=annotations)


def _has_rebooted(before: NodeStatus, machine: Machine | None) -> bool:
    known = before.node_info.boot_id
    return machine is not None and known != "" and known != machine.boot_id


def _reboot(node_name: str, boot_id: str) -> NodeOccurrence:
    return NodeOccurrence(EventType.WARNING, "Rebooted", f"Node {node_name} has been rebooted, boot id: {boot_id}")
