"""Pods and nodes to be judged."""

from __future__ import annotations

from typing import Any

from trikubelet.api import (
    Affinity,
    Container,
    ContainerPort,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
    Taint,
)
from trikubelet.api.pod_kinds import CONFIG_SOURCE_ANNOTATION

MI = 2**20


def quantities(amounts: dict[str, str]) -> dict[str, Quantity]:
    return {name: Quantity(amount) for name, amount in amounts.items()}


def resources(requests: dict[str, str], limits: dict[str, str] | None = None) -> ResourceRequirements:
    return ResourceRequirements(requests=quantities(requests), limits=quantities(limits or {}))


def container(requests: dict[str, str] | None = None, *, name: str = "main", **fields: Any) -> Container:
    return Container(name=name, resources=resources(requests or {}), **fields)


def make_pod(
    *requests: dict[str, str],
    uid: str = "uid",
    init: tuple[Container, ...] = (),
    labels: dict[str, str] | None = None,
    static: bool = False,
    status: PodStatus | None = None,
    **spec: Any,
) -> Pod:
    """A pod with one container for each of the requests."""
    containers = tuple(container(one, name=f"c{index}") for index, one in enumerate(requests))
    return Pod(
        metadata=ObjectMeta(
            name=uid,
            namespace="ns",
            uid=uid,
            labels=labels or {},
            annotations={CONFIG_SOURCE_ANNOTATION: "file" if static else "api"},
        ),
        spec=PodSpec(**{"containers": containers, "init_containers": init, **spec}),
        status=status or PodStatus(),
    )


def pod_with_ports(*ports: int | ContainerPort, uid: str = "uid", **spec: Any) -> Pod:
    made = tuple(ContainerPort(host_port=port) if isinstance(port, int) else port for port in ports)
    return make_pod(uid=uid, containers=(Container(name="main", ports=made),), **spec)


def make_node(
    *,
    name: str = "machine1",
    labels: dict[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    allocatable: dict[str, str] | None = None,
) -> Node:
    """A node for 32 pods with 10m of CPU and 20 bytes of memory, where nothing else is said."""
    amounts = {"cpu": "10m", "memory": "20", "pods": "32"} | (allocatable or {})
    return Node(
        metadata=ObjectMeta(name=name, labels=labels or {}),
        spec=NodeSpec(taints=taints),
        status=NodeStatus(allocatable=quantities(amounts)),
    )


def wants(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key=key, operator=operator, values=values)


def term(*expressions: NodeSelectorRequirement, fields: tuple[NodeSelectorRequirement, ...] = ()) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=expressions, match_fields=fields)


def requires(*terms: NodeSelectorTerm) -> Affinity:
    """One of these terms has to hold."""
    selector = NodeSelector(node_selector_terms=terms)
    return Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=selector))
