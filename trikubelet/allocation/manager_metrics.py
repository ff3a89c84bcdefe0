"""What is counted of the resource managers, in the kubelet's words.

Each time that a pod is asked about counts, also a pod that has everything already, as in the kubelet. A pod that is
refused has taken nothing, so nothing of it counts but the refusal: once for the resource that could not be given. (The
kubelet counts also what the containers before it got.)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trikubelet.allocation.cpus.manager import CPU
from trikubelet.allocation.cpus.topology import union
from trikubelet.allocation.demands import (
    all_containers,
    container_cpus,
    container_memory,
    has_pod_level_resources,
    pod_memory,
)
from trikubelet.allocation.memory.static_policy import MEMORY
from trikubelet.allocation.topology.admit import CONTAINER_SCOPE, POD_SCOPE, TOPOLOGY_AFFINITY
from trikubelet.allocation.topology.hints import AllocationError
from trikubelet.allocation.topology.policy import NONE
from trikubelet.formats.values import frozen
from trikubelet.telemetry.metrics import Counts, Histogram, exponential_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from trikubelet.allocation.cpus.manager import CpuManager
    from trikubelet.allocation.managers import ManagerSettings
    from trikubelet.allocation.memory.manager import MemoryManager
    from trikubelet.api import Pod

    Managers = tuple[CpuManager | None, MemoryManager | None]

NUMA_NODE: Final = "numa_node"
PHYSICAL_CPU: Final = "physical_cpu"
UNCORE_CACHE: Final = "uncore_cache"
"""What does not divide the resources of a container, or of a pod."""

NODE: Final = "node"
POD: Final = "pod"
"""What resources are taken of."""
NODE_EXCLUSIVE: Final = "node_exclusive"
POD_EXCLUSIVE: Final = "pod_exclusive"
POD_SHARED: Final = "pod_shared"
"""What a container has of a resource."""

DURATION_BOUNDS: Final = exponential_bounds(0.05, 2, 15)
"""Milliseconds."""


class ManagerCounts:
    """What is counted since the agent began. Counts of what a policy that is on promises begin at 0."""

    def __init__(self, settings: ManagerSettings, stopwatch: Callable[[], float] = time.perf_counter) -> None:
        """`stopwatch`: seconds."""
        self.settings = settings
        self._stopwatch = stopwatch
        self.admissions = 0
        """Pods that were asked about."""
        self.refusals = 0
        self.durations = Histogram(DURATION_BOUNDS)
        """Milliseconds that answers took."""
        self.requests: Counts = Counter()
        """By resource, `cpu` or `memory`: containers that are to have some for themselves."""
        self.errors: Counts = Counter()
        """By resource: those that could not get it."""
        self.aligned: Counts = Counter()
        """By scope, `container` or `pod`, and by boundary: how often all that was given is within one."""
        self.misaligned: Counts = Counter()
        """By scope and boundary: refusals because it could not be."""
        self.allocations: Counts = Counter()
        """By resource, and by source, `node` or `pod`: what was given."""
        self.allocation_errors: Counts = Counter()
        """By resource and source."""
        self.assignments: Counts = Counter()
        """By resource, and by what containers have of it: NODE_EXCLUSIVE and so on."""
        if settings.topology.name != NONE:
            for counts in (self.aligned, self.misaligned):
                counts.update({(scope, NUMA_NODE): 0 for scope in (CONTAINER_SCOPE, POD_SCOPE)})
        if settings.cpus is not None:
            self.aligned.update({(CONTAINER_SCOPE, PHYSICAL_CPU): 0, (CONTAINER_SCOPE, UNCORE_CACHE): 0})
            self.misaligned.update({(CONTAINER_SCOPE, PHYSICAL_CPU): 0})

    @contextmanager
    def admission(self, pod: Pod) -> Iterator[None]:
        """A pod is asked about. It is refused if the block raises AllocationError."""
        began = self._stopwatch()
        self.admissions += 1
        try:
            yield
        except AllocationError as error:
            self._refused(pod, error)
            raise
        else:
            self._admitted(pod)
        finally:
            self.durations.observe((self._stopwatch() - began) * 1000)

    def given(self, pod: Pod, before: Managers, after: Managers) -> None:
        """What the managers of CPUs and of memory were before the pod was admitted, and what they are now."""
        (cpus, memory), (later_cpus, later_memory) = before, after
        if cpus is not None and later_cpus is not None:
            self._gave_cpus(pod, cpus, later_cpus)
        if memory is not None and later_memory is not None:
            self._gave_memory(pod, memory, later_memory)

    def _refused(self, pod: Pod, error: AllocationError) -> None:
        settings, resource = self.settings, error.resource
        self.refusals += 1
        as_pod = self._as_pod(pod)
        if resource:
            self.requests[resource,] += 1
            self.errors[resource,] += 1
            self.allocation_errors[resource, POD if as_pod else NODE] += 1
        if resource == CPU and not as_pod and settings.cpus is not None and settings.cpus.options.full_cores:
            self.misaligned[CONTAINER_SCOPE, PHYSICAL_CPU] += 1
        if error.reason == TOPOLOGY_AFFINITY and settings.topology.guarantees_alignment:
            self.misaligned[settings.scope, NUMA_NODE] += 1

    def _admitted(self, pod: Pod) -> None:
        settings, containers = self.settings, all_containers(pod)
        as_pod = self._as_pod(pod)
        if settings.cpus is not None:
            own = sum(1 for one in containers if container_cpus(pod, one, pod_level=settings.pod_level))
            self.requests[CPU,] += own
            if own and settings.cpus.options.full_cores and not as_pod:
                self.aligned[CONTAINER_SCOPE, PHYSICAL_CPU] += own
        if settings.memory is not None:
            own = sum(1 for one in containers if container_memory(pod, one, pod_level=settings.pod_level))
            whole = as_pod and bool(pod_memory(pod, pod_level=True))
            self.requests[MEMORY,] += own + whole
        if settings.topology.guarantees_alignment:
            self.aligned[settings.scope, NUMA_NODE] += len(containers) if settings.scope == CONTAINER_SCOPE else 1

    def _gave_cpus(self, pod: Pod, before: CpuManager, after: CpuManager) -> None:
        uid, state = pod.metadata.uid, after.state
        new = state.containers.get(uid, {}).keys() - before.state.containers.get(uid, {}).keys()
        if not new:
            return
        as_pod = uid in state.pods
        for cpus in [state.pods[uid]] if as_pod else [state.containers[uid][name] for name in new]:
            if after.policy.topology.share_uncore(cpus):
                self.aligned[CONTAINER_SCOPE, UNCORE_CACHE] += 1
        own = {one.name for one in all_containers(pod) if container_cpus(pod, one, pod_level=self.settings.pod_level)}
        self.allocations[CPU, POD if as_pod else NODE] += len(new)
        self._assigned(CPU, new, own, as_pod=as_pod)

    def _gave_memory(self, pod: Pod, before: MemoryManager, after: MemoryManager) -> None:
        uid, state = pod.metadata.uid, after.state
        new = state.containers.get(uid, {}).keys() - before.state.containers.get(uid, {}).keys()
        if not new:
            return
        as_pod = uid in state.pods
        pod_level = self.settings.pod_level
        own = {one.name for one in all_containers(pod) if container_memory(pod, one, pod_level=pod_level)}
        if as_pod:
            self.allocations[MEMORY, POD] += len(new)
        else:
            self.allocations[MEMORY, NODE] += sum(len(state.containers[uid][name]) for name in new)
        self._assigned(MEMORY, new, own, as_pod=as_pod)

    def _assigned(self, resource: str, new: Collection[str], own: Collection[str], *, as_pod: bool) -> None:
        for name in new:
            kind = NODE_EXCLUSIVE if not as_pod else POD_EXCLUSIVE if name in own else POD_SHARED
            self.assignments[resource, kind] += 1

    def _as_pod(self, pod: Pod) -> bool:
        """Whether resources are given to the pod as a whole (`topology.admit`)."""
        settings = self.settings
        as_pods = settings.pod_level and settings.topology.name != NONE and settings.scope == POD_SCOPE
        return as_pods and has_pod_level_resources(pod)


@frozen
class CpuUsage:
    """How the CPUs are used now, in CPUs."""

    shared: int
    """Those that containers could have for themselves and that nobody has."""
    exclusive: int
    by_node: Mapping[int, int]
    """The exclusive ones of each NUMA node."""


def cpu_usage(manager: CpuManager) -> CpuUsage:
    state, topology = manager.state, manager.policy.topology
    exclusive = union(state.of_pod(uid) for uid in state.containers)
    return CpuUsage(
        shared=manager.policy.available(state).bit_count(),
        exclusive=exclusive.bit_count(),
        by_node={node: (cpus & exclusive).bit_count() for node, cpus in topology.nodes.items()},
    )
