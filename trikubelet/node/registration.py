"""The node object that the agent creates, and what it corrects of one that is there already (kubelet:
`initialNode`, `tryRegisterWithAPIServer`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import Node, NodeSpec, NodeStatus, ObjectMeta, Quantity, Taint
from trikubelet.node.capacity import HUGE_PAGES, is_extended_resource
from trikubelet.node.labels import RECONCILED, default_labels
from trikubelet.node.status import NextNode, next_node
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.node.facts import NodeFacts, NodeSettings

log = get_logger("node")

CONTROLLER_ATTACHES: Final = "volumes.kubernetes.io/controller-managed-attach-detach"
"""Annotation: volumes are attached by a controller and not by the agent."""
UNINITIALIZED: Final = Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule")
"""Keeps pods off until a cloud's controller has seen the node."""


def initial_node(settings: NodeSettings, facts: NodeFacts, now: datetime) -> NextNode:
    """The node as it is created, with its whole status. Its events are those of conditions that begin."""
    taints = settings.taints
    if settings.addresses.external_cloud:
        taints = (*taints, UNINITIALIZED)
    metadata = ObjectMeta(
        name=settings.name,
        labels={**default_labels(settings.addresses.hostname, facts.architecture), **settings.labels},
        annotations={CONTROLLER_ATTACHES: "true"} if settings.controller_attaches else {},
    )
    spec = NodeSpec(taints=taints, provider_id=settings.provider_id)
    return next_node(Node(metadata=metadata, spec=spec), facts, settings, now)


def reconciled(initial: Node, existing: Node, *, reset_extended: bool = False) -> Node:
    """The node that is there already, with what this agent would have created it with; `existing` itself when nothing
    is to be corrected. `reset_extended`: devices are not known yet, so nothing is promised of them."""
    metadata = attrs.evolve(
        existing.metadata,
        labels=_labels(initial, existing),
        annotations=_annotations(initial, existing),
    )
    status = _resources(initial.status, existing.status, reset_extended=reset_extended)
    node = attrs.evolve(existing, metadata=metadata, status=status)
    return existing if node == existing else node


def _labels(initial: Node, existing: Node) -> dict[str, str]:
    """A label that is to be empty is taken away."""
    wanted = {name: initial.metadata.labels[name] for name in RECONCILED if name in initial.metadata.labels}
    labels = existing.metadata.labels | wanted
    return {name: value for name, value in labels.items() if value or name not in wanted}


def _annotations(initial: Node, existing: Node) -> dict[str, str]:
    annotations = {key: text for key, text in existing.metadata.annotations.items() if key != CONTROLLER_ATTACHES}
    if (value := initial.metadata.annotations.get(CONTROLLER_ATTACHES)) is not None:
        annotations[CONTROLLER_ATTACHES] = value
    return annotations


def _resources(initial: NodeStatus, existing: NodeStatus, *, reset_extended: bool) -> NodeStatus:
    """Huge pages as the machine has them; all else only where nothing is there."""
    capacity = dict(existing.capacity or initial.capacity)
    allocatable = dict(existing.allocatable or initial.allocatable)
    if reset_extended:
        for name in filter(is_extended_resource, tuple(capacity)):
            capacity[name] = allocatable[name] = Quantity(0)
    for name, amount in initial.capacity.items():
        if name.startswith(HUGE_PAGES):
            capacity[name] = amount
            allocatable[name] = initial.allocatable.get(name, Quantity(0))
    for name in [name for name in capacity if name.startswith(HUGE_PAGES) and name not in initial.capacity]:
        log.info("Removing huge page resource which is no longer supported", resource=name)
        del capacity[name]
        allocatable.pop(name, None)
    return attrs.evolve(existing, capacity=capacity, allocatable=allocatable)
