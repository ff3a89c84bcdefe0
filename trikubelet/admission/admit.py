"""The questions in their order: whether this node runs a pod (kubelet: `canAdmitPod` and its handlers).

The first refusal is what the pod gets; it is final. A question that cannot be answered yet stops the asking: the pod is
held, and asked about again from the beginning. Ending other pods comes last of all, after everything else has been
asked, so that no pod is ended for one that is refused in the end.

Devices are asked about where the kubelet gives them out. They are given out later, to pods that nothing else speaks
against (`pods.admitting`): so no plugin is asked for a pod that is refused for something else.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.admission import handlers
from trikubelet.admission.declared_features import DECLARED
from trikubelet.admission.handlers import StaticPolicies, wants_strict_groups
from trikubelet.admission.predicates import NODE_AFFINITY, NODE_PORTS, Misfit, Mismatch, misfits, port_holders
from trikubelet.admission.preemption import NotEnoughToPreemptError, pods_to_preempt
from trikubelet.admission.resources import Demand, Insufficient, together
from trikubelet.admission.types import Admitted, Devices, NeedsFreshNode, NoDevices, Preempt, Rejected, Verdict, Wait
from trikubelet.api.pod_kinds import is_critical_pod, is_static_pod
from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trikubelet.admission.sysctls import SysctlAllowList
    from trikubelet.api import Container, Node, Pod
    from trikubelet.container.abilities import RuntimeAbilities
    from trikubelet.linux.machine_facts import MachineFacts

RUNTIME_SILENT: Final = Wait("the container runtime has not told yet what it can do")
_FORGET_BEYOND: Final = 64


def _no_pressure() -> tuple[str, ...]:
    return ()


def _no_swap(_pod: Pod, _container: Container) -> bool:
    return False


@define(eq=False)
class NodeAdmission:
    """Decides for this node about pods that arrive (`trikubelet.admission.types.Admission`), and about resizes."""

    sysctls: SysctlAllowList
    machine: MachineFacts
    abilities: Callable[[], RuntimeAbilities | None]
    """The runtime's abilities; None before it first answered."""
    features: Collection[str] = DECLARED
    """The node's declared features."""
    pressure: Callable[[], tuple[str, ...]] = _no_pressure
    """Types of the node's conditions that tell of something running out."""
    shutting_down: Callable[[], bool] = lambda: False
    has_begun: Callable[[Pod], bool] = lambda pod: False
    """Whether a pod was started here already. An agent that is started anew while the node shuts down must not forget
    such pods: it ends them with all others."""
    may_swap: Callable[[Pod, Container], bool] = _no_swap
    """Whether a container of a pod may use swap."""
    takes_pod_level: bool = True
    """Whether pods may ask for resources as a whole."""
    resizes_pod_level: bool = True
    """Whether resources of pods as a whole can be changed while they run."""
    static: StaticPolicies = attrs.field(factory=StaticPolicies)
    """Where resizes of Guaranteed pods are infeasible."""
    compares_tolerations: bool = False
    """Whether tolerations may compare numbers."""
    devices: Devices = attrs.field(factory=NoDevices)
    _demands: dict[str, tuple[Pod, Demand]] = attrs.field(factory=dict, init=False)
    """Cached demands, by UID."""
    _counted: list[Pod] = attrs.field(factory=list, init=False)
    """The pods that the last one was compared with. Of many that arrive at once, each is compared with those before it,
    and what these take is added up only once."""
    _together: Demand = attrs.field(factory=lambda: together(()), init=False)
    """What they take."""

    def admit(self, pod: Pod, others: Sequence[Pod], *, node: Node, fresh: bool) -> Verdict:
        """May the pod run beside `others`? See `Admission.admit`."""
        refusal = (
            handlers.under_pressure(pod, self.pressure())
            or handlers.forbidden_sysctl(pod, self.sysctls)
            or handlers.other_operating_system(pod)
        )
        if refusal is not None:
            return refusal
        if wants_strict_groups(pod):
            abilities = self.abilities()
            if abilities is None:
                return RUNTIME_SILENT
            refusal = handlers.unsupported_groups_policy(supported=abilities.supplemental_groups_policy)
            if refusal is not None:
                return refusal
        refusal = handlers.without_devices(self.devices.problem(pod))
        if refusal is not None:
            return refusal
        fits = misfits(pod, self._held(others), self._for_pod(pod, node), compares=self.compares_tolerations)
        room = _room_for(pod, others, fits, fresh=fresh)
        if not isinstance(room, Admitted | Preempt):
            return room
        return (
            handlers.unenforceable_apparmor(pod, self.machine)
            or handlers.unsupported_pod_level_resources(pod, supported=self.takes_pod_level)
            or handlers.missing_features(pod, self.features)
            or handlers.shutting_down(now=self.shutting_down() and not self.has_begun(pod))
            or room
        )

    def admit_resize(self, pod: Pod, allocated: Pod, others: Sequence[Pod], *, node: Node) -> Verdict:
        """May a pod that has what `allocated` asks for get what `pod` asks for, beside `others` without it?

        Never NeedsFreshNode. All refusals but InfeasibleResize may turn into their opposite when others end.
        """
        infeasible = handlers.resize_infeasible(
            pod, allocated, pod_level=self.resizes_pod_level, may_swap=self.may_swap, static=self.static
        )
        return (
            infeasible
            or handlers.shutting_down(now=self.shutting_down())
            or self.admit(pod, others, node=node, fresh=True)
        )

    def _for_pod(self, pod: Pod, node: Node) -> Node:
        """The node as it is for this pod: the object says nothing of devices whose plugin has not come back yet."""
        told = node.status.allocatable
        allocatable = self.devices.allocatable_for(pod, told)
        if allocatable is told:
            return node
        return attrs.evolve(node, status=attrs.evolve(node.status, allocatable={**allocatable}))

    def _held(self, others: Sequence[Pod]) -> Demand:
        if len(self._counted) > len(others) or not all(map(operator.is_, self._counted, others)):
            self._counted, self._together = [], together(())
        new = others[len(self._counted) :]
        if new:
            self._together = together((self._together, *map(self._demand, new)))
            self._counted += new
        if len(self._demands) > len(others) + _FORGET_BEYOND:
            uids = {pod.metadata.uid for pod in others}
            self._demands = {uid: known for uid, known in self._demands.items() if uid in uids}
        return self._together

    def _demand(self, pod: Pod) -> Demand:
        known, demand = self._demands.get(pod.metadata.uid, (None, None))
        if known is not pod or demand is None:
            demand = Demand.of(pod)
            self._demands[pod.metadata.uid] = pod, demand
        return demand


def _room_for(
    pod: Pod, others: Sequence[Pod], found: Sequence[Misfit], *, fresh: bool
) -> Admitted | Rejected | Preempt | NeedsFreshNode:
    """The verdict that follows from the predicates that fail (kubelet: `HandleAdmissionFailure`)."""
    if not found:
        return Admitted()
    if not fresh and all(misfit == NODE_AFFINITY for misfit in found):
        return NeedsFreshNode()
    first: Misfit | None = found[0]
    if is_critical_pod(pod):
        # Others would make room for it, so that is not why it cannot run.
        first = next((misfit for misfit in found if isinstance(misfit, Mismatch)), None)
    if first is not None:
        # Who may see a pod of the API server need not know of pods in other namespaces.
        because = port_holders(pod, others) if first == NODE_PORTS and is_static_pod(pod) else ""
        return Rejected(first.reason, first.message, because=because)
    shortages = [misfit for misfit in found if isinstance(misfit, Insufficient)]
    try:
        return Preempt(pods_to_preempt(pod, others, shortages), shortages[0].resource)
    except NotEnoughToPreemptError as error:
        what = f"preemption: error finding a set of pods to preempt: {error}"
        message = f"Unexpected error while attempting to recover from admission failure: {what}"
        # The kubelet's reason for a static pod is this one, where others are told OutOfcpu: the numbers say what lacks.
        because = "; ".join(f"{one.reason}: {one.message}" for one in shortages) if is_static_pod(pod) else ""
        return Rejected(handlers.UNEXPECTED_ADMISSION_ERROR, message, because=because)
