"""Whether a pod fits on the node, as the scheduler would ask (kubelet: `lifecycle/predicate.go`). Pure.

The scheduler asked before; but others choose nodes too, pods come from files, and what was known then may have changed.
All is asked, since what to do depends on all answers: for want of resources alone, others may make room for a critical
pod; for the node's labels alone, the node is looked at anew. Users are told the first answer.

Node affinity (`GetRequiredNodeAffinity`): the labels of `nodeSelector` must all be there, and of the terms of the
required node affinity one must hold. A term that cannot be understood does not hold, and does not hinder the others; a
term that says nothing holds nowhere. Taints (`Toleration.ToleratesTaint`): tolerations that compare numbers (`Lt`,
`Gt`) match nothing unless the gate for them is on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from trikubelet.admission.resources import (
    Demand,
    Insufficient,
    any_conflict,
    host_ports,
    insufficient,
    without_foreign_resources,
)
from trikubelet.api import Taint
from trikubelet.api.name_formats import label_value, qualified_name
from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.api import Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Toleration

OS: Final = "linux"
OS_LABEL: Final = "kubernetes.io/os"
_NAME_FIELD: Final = "metadata.name"
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)
NO_EXECUTE: Final = "NoExecute"
MEMORY_PRESSURE: Final = Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule")
"""The control plane's taint on nodes that run out of memory."""


@frozen
class Mismatch:
    """A predicate that does not hold."""

    reason: str
    """The predicate's name."""
    description: str

    @property
    def message(self) -> str:
        return f"Predicate {self.reason} failed: {self.description}"


NODE_AFFINITY: Final = Mismatch("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
NODE_NAME: Final = Mismatch("NodeName", "node(s) didn't match the requested node name")
NODE_PORTS: Final = Mismatch("NodePorts", "node(s) didn't have free ports for the requested pod ports")
TAINT_TOLERATION: Final = Mismatch("TaintToleration", "node(s) had taints that the pod didn't tolerate")

Misfit: TypeAlias = Insufficient | Mismatch


def misfits(pod: Pod, held: Demand, node: Node, *, compares: bool = False) -> list[Misfit]:
    """Why the pod does not fit on the node beside pods that take `held` together; empty when it does.

    `compares`: tolerations may compare numbers. Whatever the node's label for its operating system says, it is that of
    this agent.
    """
    allocatable = node.status.allocatable
    wanted = Demand.of(without_foreign_resources(pod, allocatable))
    found: list[Misfit] = [*insufficient(wanted.amounts, held.amounts, allocatable)]
    if not matches_node(pod, node.metadata.name, {**node.metadata.labels, OS_LABEL: OS}):
        found.append(NODE_AFFINITY)
    if pod.spec.node_name not in ("", node.metadata.name):
        found.append(NODE_NAME)
    if wanted.ports and any_conflict(wanted.ports, held.ports):
        found.append(NODE_PORTS)
    # The other effects are for schedulers, and no scheduler chose the node of a static pod.
    if not is_static_pod(pod) and _has_untolerated(pod, node, compares=compares):
        found.append(TAINT_TOLERATION)
    return found


def port_holders(pod: Pod, others: Iterable[Pod]) -> str:
    """Which ports of the node the pod cannot have, and which pods have them, in words."""
    found = []
    for other in others:
        for port in sorted(host_ports(pod), key=lambda port: (port.port, port.protocol, port.ip)):
            if any_conflict((port,), host_ports(other)):
                meta = other.metadata
                found.append(f"host port {port.port}/{port.protocol} is held by pod {meta.namespace}/{meta.name}")
    return "; ".join(found)


def matches_node(pod: Pod, node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node of this name, with these labels, is one that the pod may be on. Preferences do not count."""
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return True
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if required is None:
        return True
    return matches_terms(required.node_selector_terms, node_name, labels)


def matches_terms(terms: Iterable[NodeSelectorTerm], node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether one of the terms holds for a node of this name, with these labels."""
    return any(_holds(term, node_name, labels) for term in terms)


def _holds(term: NodeSelectorTerm, node_name: str, labels: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_label_holds(one, labels) for one in term.match_expressions) and all(
        _field_holds(one, node_name) for one in term.match_fields
    )


def _label_holds(wanted: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    if qualified_name(wanted.key) or any(label_value(value) for value in wanted.values):
        return False
    value = labels.get(wanted.key)
    match wanted.operator:
        case "In":
            return value in wanted.values
        case "NotIn":
            return bool(wanted.values) and value not in wanted.values
        case "Exists":
            return not wanted.values and value is not None
        case "DoesNotExist":
            return not wanted.values and value is None
        case "Gt" | "Lt":
            return len(wanted.values) == 1 and _compares(wanted.operator, value, wanted.values[0])
        case _:
            return False


def _compares(operator: str, value: str | None, limit: str) -> bool:
    number, bound = _integer(value or ""), _integer(limit)
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def _integer(text: str) -> int | None:
    """A number as Go reads one of 64 bits."""
    if len(text) > 64 or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number in _INT64 else None


def _field_holds(wanted: NodeSelectorRequirement, node_name: str) -> bool:
    """A node has one field; of others it has nothing, which is different from any value but the empty one."""
    if len(wanted.values) != 1:
        return False
    value = node_name if wanted.key == _NAME_FIELD else ""
    match wanted.operator:
        case "In":
            return value == wanted.values[0]
        case "NotIn":
            return value != wanted.values[0]
        case _:
            return False


def _has_untolerated(pod: Pod, node: Node, *, compares: bool) -> bool:
    return untolerated(node.spec.taints, pod.spec.tolerations, NO_EXECUTE, compares=compares) is not None


def tolerates(tolerations: Iterable[Toleration], taint: Taint, *, compares: bool = False) -> bool:
    """Whether one of the tolerations is for the taint. `compares`: they may compare numbers."""
    return any(_matches(toleration, taint, compares=compares) for toleration in tolerations)


def untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], effect: str, *, compares: bool = False
) -> Taint | None:
    """The first taint of this effect that no toleration is for."""
    accepted = tuple(tolerations)
    return next(
        (taint for taint in taints if taint.effect == effect and not tolerates(accepted, taint, compares=compares)),
        None,
    )


def _matches(toleration: Toleration, taint: Taint, *, compares: bool) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case "Lt" | "Gt" if compares and all(map(_DECIMAL.fullmatch, (toleration.value, taint.value))):
            return _compares(toleration.operator, taint.value, toleration.value)
        case _:
            return False
