"""Whether a pod fits on the node, as the scheduler would ask (kubelet: `lifecycle/predicate.go`). Pure.

The scheduler asked before; but others choose nodes too, pods come from files, and what was known then may have changed.
All is asked, since what to do depends on all answers: for want of resources alone, others may make room for a critical
pod; for the node's labels alone, the node is looked at anew. Users are told the first answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from trikubelet.admission.host_ports import any_conflict
from trikubelet.admission.node_affinity import matches_node
from trikubelet.admission.resources import Demand, Insufficient, insufficient, together, without_foreign_resources
from trikubelet.admission.taints import NO_EXECUTE, untolerated
from trikubelet.api.pod_kinds import is_static_pod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Node, Pod

OS: Final = "linux"
OS_LABEL: Final = "kubernetes.io/os"


@attrs.frozen
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


def misfits(pod: Pod, held: Sequence[Demand], node: Node) -> list[Misfit]:
    """Why the pod does not fit on the node beside pods that take `held`; empty when it does.

    Whatever the node's label for its operating system says, it is that of this agent.
    """
    allocatable = node.status.allocatable
    wanted = Demand.of(without_foreign_resources(pod, allocatable))
    found: list[Misfit] = [*insufficient(wanted.amounts, together(held), allocatable)]
    if not matches_node(pod, node.metadata.name, {**node.metadata.labels, OS_LABEL: OS}):
        found.append(NODE_AFFINITY)
    if pod.spec.node_name not in ("", node.metadata.name):
        found.append(NODE_NAME)
    if wanted.ports and any_conflict(wanted.ports, (port for demand in held for port in demand.ports)):
        found.append(NODE_PORTS)
    # The other effects are for those who choose a node, and nobody chose one for a static pod.
    if not is_static_pod(pod) and untolerated(node.spec.taints, pod.spec.tolerations, NO_EXECUTE) is not None:
        found.append(TAINT_TOLERATION)
    return found
