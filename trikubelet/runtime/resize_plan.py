"""Which running containers get other resources, and which are restarted for them. Pure.

A pod's spec, as allocated, says what its containers are to have; what was actuated says what the runtime was last told.
Where a running container's cpu or memory differ, its resize policy decides: NotRequired changes it in place,
RestartContainer ends it, and the plan starts it again with what it is to have. A container that does not run is not
resized: it starts with what it is to have then.

In place, decreases come before increases, for memory and for cpu apart: what one container gives back may be what
another one gets. The kubelet's `computePodResizeAction`, `computePodLevelResourcesResizeAction` and
`IsPodResizeInProgress`; their tables are this module's tests.

Two things are not as the kubelet's. The pod's cgroup follows when a container *starts* with other resources than it
ran with before. And of a pod without a record, since its agent was killed as it started or kept none, the runtime's
word is taken for what its containers have, and where it says nothing, what they are allocated. The kubelet takes them
to have nothing, tells the runtime again, and restarts those with RestartContainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.allocation.model import ALL_RESIZES, PodAllocation, ResizeGates
from trikubelet.api import Container, Pod, Quantity, ResourceRequirements, is_sidecar
from trikubelet.cgroups.settings import MIN_MILLI_CPU_LIMIT, MIN_SHARES
from trikubelet.container.model import ContainerID, ContainerState
from trikubelet.formats.values import define, frozen

if TYPE_CHECKING:
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus, RuntimeResources

CPU: Final = "cpu"
MEMORY: Final = "memory"
_RESTART_CONTAINER: Final = "RestartContainer"
_ZERO: Final = Quantity()
_NOTHING: Final = ResourceRequirements()


@frozen
class Amounts:
    """Resources of a container or a pod that can be resized: thousandths of a CPU, bytes. 0: none."""

    cpu_request: int = 0
    cpu_limit: int = 0
    memory_request: int = 0
    memory_limit: int = 0

    def with_cpu_of(self, other: Amounts) -> Amounts:
        return attrs.evolve(self, cpu_request=other.cpu_request, cpu_limit=other.cpu_limit)

    def with_memory_of(self, other: Amounts) -> Amounts:
        return attrs.evolve(self, memory_request=other.memory_request, memory_limit=other.memory_limit)


@frozen
class ActuatedPod:
    """The resources of a pod that the runtime was last told."""

    resources: PodAllocation | None
    """None: there is no record."""
    gates: ResizeGates = ALL_RESIZES
    group_is_behind: bool = False
    """An earlier sync started containers with other resources and could not set the pod's cgroup accordingly."""


@frozen
class ContainerToResize:
    """A running container that gets other resources in place."""

    id: ContainerID
    container: Container
    wanted: Amounts
    current: Amounts


@frozen
class PodResize:
    """The resizes to do, in this order: memory, then cpu."""

    memory: tuple[ContainerToResize, ...] = ()
    cpu: tuple[ContainerToResize, ...] = ()
    group: bool = False
    """A container starts with other resources than it had, so that the pod's cgroup has to follow."""
    pod_level: bool = False
    """The pod as a whole is to have others."""

    def __bool__(self) -> bool:
        return bool(self.memory or self.cpu or self.group or self.pod_level)


NO_RESIZE: Final = PodResize()


@define
class ResizePlanner:
    """Collects the resizes of one pod, while the plan looks at its containers one by one."""

    pod: Pod
    """As allocated."""
    actuated: ActuatedPod | None
    """None: nothing is resized."""
    _memory: list[ContainerToResize] = attrs.field(factory=list)
    _cpu: list[ContainerToResize] = attrs.field(factory=list)
    _group: bool = False

    def must_restart(self, container: Container, observed: ContainerStatus) -> bool:
        """Look at a running container that stays: whether it has to be restarted, else it is noted if it changes."""
        if self.actuated is None or not _is_resizable(container, self.pod, self.actuated.gates):
            return False
        wanted = container_amounts(container.resources, self.pod.spec.resources, self.actuated.gates)
        current = _current(container, observed, wanted, self.actuated)
        if wanted == current:
            return False
        memory = (wanted.memory_limit - current.memory_limit, wanted.memory_request - current.memory_request)
        cpu = (wanted.cpu_limit - current.cpu_limit, wanted.cpu_request - current.cpu_request)
        for resource, changes in ((MEMORY, memory), (CPU, cpu)):
            if any(changes) and _restarts(container, resource):
                self._group = True
                return True
        for noted, changes in ((self._memory, memory), (self._cpu, cpu)):
            change = changes[0] or changes[1]
            if change:
                place = len(noted) if change > 0 else 0
                noted.insert(place, ContainerToResize(observed.id, container, wanted, current))
        return False

    def starts(self, container: Container) -> None:
        """Note a container that starts in a pod whose cgroup is there: it may have had other resources before."""
        if self.actuated is None or self.actuated.resources is None:
            return
        recorded = self.actuated.resources.containers.get(container.name)
        if recorded is not None:
            wanted = container_amounts(container.resources, self.pod.spec.resources, self.actuated.gates)
            self._group = self._group or wanted != amounts(recorded)

    def result(self, *, initialized: bool) -> PodResize:
        """`initialized`: also look at the pod as a whole, which is not resized while init containers run."""
        actuated = self.actuated
        if actuated is None:
            return NO_RESIZE
        pod_level = False
        if initialized and actuated.gates.pod_level and actuated.resources is not None:
            pod_level = amounts(self.pod.spec.resources) != amounts(actuated.resources.pod)
        return PodResize(
            tuple(self._memory), tuple(self._cpu), group=self._group or actuated.group_is_behind, pod_level=pod_level
        )


def _is_resizable(container: Container, pod: Pod, gates: ResizeGates) -> bool:
    """Init containers that run to completion are only where the node does that."""
    is_init = any(one is container for one in pod.spec.init_containers)
    return gates.init_containers or is_sidecar(container) or not is_init


def _current(container: Container, observed: ContainerStatus, wanted: Amounts, actuated: ActuatedPod) -> Amounts:
    """The resources that a running container has."""
    record = actuated.resources
    if record is None:
        return _reported(observed.resources, wanted)
    recorded = record.containers.get(container.name)
    if recorded is None:
        # As the kubelet: it is told again, which changes nothing.
        return container_amounts(_NOTHING, record.pod, actuated.gates)
    # It says what the container runs with, the pod's limits included. The pod's own part of the record may be older:
    # it follows once the pod has initialized.
    return amounts(recorded)


def _reported(said: RuntimeResources | None, wanted: Amounts) -> Amounts:
    """What the runtime says, as far as it says other things than it was told if it has what is wanted.

    It knows no memory request. It gives the smallest amounts of cpu for less, and the limit for a request of nothing.
    """
    if said is None:
        return wanted
    request, limit, memory = said.cpu_request or 0, said.cpu_limit or 0, said.memory_limit or 0
    same_request = not wanted.cpu_request or request == max(wanted.cpu_request, MIN_SHARES)
    same_limit = limit == (max(wanted.cpu_limit, MIN_MILLI_CPU_LIMIT) if wanted.cpu_limit else 0)
    return Amounts(
        cpu_request=wanted.cpu_request if same_request else request,
        cpu_limit=wanted.cpu_limit if same_limit else limit,
        memory_request=wanted.memory_request,
        memory_limit=memory,
    )


def amounts(resources: ResourceRequirements | None) -> Amounts:
    if resources is None:
        return Amounts()
    requests, limits = resources.requests, resources.limits
    return Amounts(
        cpu_request=requests.get(CPU, _ZERO).milli_value(),
        cpu_limit=limits.get(CPU, _ZERO).milli_value(),
        memory_request=requests.get(MEMORY, _ZERO).value(),
        memory_limit=limits.get(MEMORY, _ZERO).value(),
    )


def container_amounts(
    container: ResourceRequirements, pod: ResourceRequirements | None, gates: ResizeGates = ALL_RESIZES
) -> Amounts:
    """Of a container, which without a limit of its own runs with the pod's."""
    own = amounts(container)
    if not gates.pod_level or pod is None:
        return own
    whole = amounts(pod)
    return attrs.evolve(
        own, cpu_limit=own.cpu_limit or whole.cpu_limit, memory_limit=own.memory_limit or whole.memory_limit
    )


def is_resize_in_progress(pod: Pod, status: PodRuntimeStatus, actuated: ActuatedPod | None) -> bool:
    """Whether what runs has other cpu or memory than allocated (kubelet: `IsPodResizeInProgress`).

    `pod`: as allocated. What does not run is no resize, nor are init containers that run to completion.
    """
    if actuated is None:
        return False
    if actuated.group_is_behind:
        return True
    record, gates = actuated.resources, actuated.gates
    sidecars = (one for one in pod.spec.init_containers if is_sidecar(one))
    for container in (*sidecars, *pod.spec.containers):
        observed = status.find_container(container.name)
        if observed is None or observed.state is not ContainerState.RUNNING:
            continue
        wanted = container_amounts(container.resources, pod.spec.resources, gates)
        if record is None:
            current = _reported(observed.resources, wanted)
        else:
            current = amounts(record.containers.get(container.name))
        if current != wanted:
            return True
    if record is None or record.pod is None or pod.spec.resources is None:
        return False
    return gates.pod_level and amounts(record.pod) != amounts(pod.spec.resources)


def _restarts(container: Container, resource: str) -> bool:
    policy = next((one for one in container.resize_policy if one.resource_name == resource), None)
    return policy is not None and policy.restart_policy == _RESTART_CONTAINER
