"""The static CPU policy: containers of Guaranteed pods that request whole CPUs get them for themselves.

Pure: a state in, another state out (kubelet: `cpumanager/policy_static.go`). All others share what is left, so the
shared set shrinks and grows. Reserved CPUs are in the shared set, and nobody gets one for itself; with
`strict-cpu-reservation` they are not even shared.

CPUs of init containers are used again by containers of the same pod that come after them; those of sidecars are not,
since sidecars stay. Which CPUs can be used again follows from the state and the pod, so it is the same after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.allocation.cpus.assignment import NotEnoughCpusError, take_packed
from trikubelet.allocation.cpus.distribution import take_distributed
from trikubelet.allocation.cpus.options import NO_OPTIONS, StaticPolicyOptions
from trikubelet.allocation.cpus.topology import CpuTopology, union
from trikubelet.allocation.demands import (
    all_containers,
    container_cpus,
    ends_before_others,
    has_pod_level_resources,
    pod_cpus,
)
from trikubelet.allocation.topology.hints import AllocationError, TopologyHint, node_sets
from trikubelet.formats.cpu_list import format_cpu_list, set_of
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.allocation.cpus.state import CpuState
    from trikubelet.api import Container, Pod, Quantity

SMT_ALIGNMENT: Final = "SMTAlignmentError"
EMPTY_SHARED_POOL: Final = "EmptyPodSharedPoolError"


class CpuStateError(ValueError):
    """What was written down of CPUs does not fit this machine, or what is reserved on it."""


def reserved_count(reserved: Quantity | None) -> int:
    """How many CPUs the node keeps, which may be parts of some (`kubeReserved` and `systemReserved`).

    Raises ValueError if it keeps none, which the static policy needs.
    """
    if not reserved:
        raise ValueError('cpuManagerPolicy "static" needs CPUs in kubeReserved, systemReserved or reservedSystemCPUs')
    return reserved.value()


@frozen
class StaticPolicy:
    topology: CpuTopology
    options: StaticPolicyOptions = NO_OPTIONS
    reserved: int = 0
    """CPUs that nobody gets for itself."""
    pod_level: bool = False
    """The feature gate `PodLevelResourceManagers`."""

    @classmethod
    def reserving(
        cls,
        topology: CpuTopology,
        count: int,
        reserved: int = 0,
        options: StaticPolicyOptions = NO_OPTIONS,
        *,
        pod_level: bool = False,
    ) -> StaticPolicy:
        """Reserve these CPUs (`reservedSystemCPUs`), else `count` of them as a container would get them.

        Raises ValueError if they are not `count` CPUs of this machine.
        """
        policy = cls(topology, options, pod_level=pod_level)
        if not reserved:
            try:
                reserved = policy._take(topology.cpus, count)
            except NotEnoughCpusError as error:
                raise ValueError(f"cannot reserve CPUs for the system: {error}") from error
        if reserved & ~topology.cpus:
            unknown, online = format_cpu_list(reserved & ~topology.cpus), format_cpu_list(topology.cpus)
            raise ValueError(f"cannot reserve the CPUs {unknown} for the system: this machine has {online}")
        if reserved.bit_count() != count:
            raise ValueError(f"expected {count} reserved CPUs, as reservations say, got {format_cpu_list(reserved)}")
        return attrs.evolve(policy, reserved=reserved)

    @property
    def allocatable(self) -> int:
        """The CPUs that containers can have for themselves."""
        return self.topology.cpus & ~self.reserved

    def available(self, state: CpuState) -> int:
        """Those of them that no container has."""
        return state.shared & ~self.reserved

    def start(self, state: CpuState) -> CpuState:
        """The state to begin with. Raises CpuStateError for one that this machine or configuration cannot have.

        No CPU has to be shared if containers have them all, which comes about with `strict-cpu-reservation` (the
        kubelet does not start then).
        """
        everything = self.topology.cpus & ~(self.reserved if self.options.strict_reservation else 0)
        if not state.shared and not state.containers:
            return attrs.evolve(state, shared=everything)
        reserved, shared = format_cpu_list(self.reserved), format_cpu_list(state.shared)
        if self.options.strict_reservation:
            if self.reserved & state.shared:
                raise CpuStateError(f"of the strictly reserved CPUs {reserved} some are shared: {shared}")
        elif self.reserved & ~state.shared:
            raise CpuStateError(f"of the reserved CPUs {reserved} some are not shared: {shared}")
        for uid, containers in state.containers.items():
            for name, cpus in containers.items():
                if cpus & state.shared:
                    has = format_cpu_list(cpus)
                    raise CpuStateError(f"container {name} of pod {uid} has {has}, of which some are shared: {shared}")
        pods = union(state.pods.values()) if self.pod_level else 0
        known = state.shared | pods | union(state.of_pod(uid) for uid in state.containers)
        if known != everything:
            there = format_cpu_list(everything)
            raise CpuStateError(f"this machine has the CPUs {there}, and the state knows {format_cpu_list(known)}")
        return state

    def allocate(self, state: CpuState, pod: Pod, container: Container, nodes: int | None = None) -> CpuState:
        """The state in which the container has its CPUs; the same state if it gets none, or has them already.

        `nodes`: the NUMA nodes that were agreed on, None if it does not matter. They are preferred, not a must. Raises
        AllocationError.
        """
        count = container_cpus(pod, container, pod_level=self.pod_level)
        if not count or state.get(pod.metadata.uid, container.name) is not None:
            return state
        reusable = self._reusable(state, pod, container)
        self._check_full_cores(state.shared | reusable, count)
        cpus = self._choose(self.available(state) | reusable, count, nodes)
        return attrs.evolve(state, shared=state.shared & ~cpus).with_container(pod.metadata.uid, container.name, cpus)

    def allocate_pod(self, state: CpuState, pod: Pod, nodes: int | None = None) -> CpuState:
        """The state in which a pod with resources of its own has its CPUs, and each container its part of them; the
        same state if it gets none, or has them already.

        Those that can have none for themselves share what is left of the pod's. Raises AllocationError.
        """
        count = pod_cpus(pod, pod_level=self.pod_level)
        if not count or pod.metadata.uid in state.containers:
            return state
        if (problem := self._empty_shared_pool(pod)) is not None:
            raise AllocationError(problem, EMPTY_SHARED_POOL)
        self._check_full_cores(state.shared, count)
        uid = pod.metadata.uid
        of_pod = self._choose(self.available(state), count, nodes)
        state = attrs.evolve(state, shared=state.shared & ~of_pod, pods={**state.pods, uid: of_pod})
        for name, cpus in self._parts(pod, of_pod).items():
            state = state.with_container(uid, name, cpus)
        return state

    def remove_container(self, state: CpuState, uid: str, container: str) -> CpuState:
        """The state without the container; what no other of its pod has goes back to the shared set."""
        cpus = state.get(uid, container)
        if cpus is None:
            return state
        state = state.without_container(uid, container)
        if self.pod_level and uid in state.pods:
            if uid in state.containers:
                return state
            cpus = state.pods[uid]
            state = attrs.evolve(state, pods={other: its for other, its in state.pods.items() if other != uid})
        return attrs.evolve(state, shared=state.shared | cpus & ~state.of_pod(uid))

    def is_settled(self, state: CpuState, pod: Pod, container: Container) -> bool:
        """Whether the container has as many CPUs as it asks for, or gets none."""
        uid = pod.metadata.uid
        if uid in state.pods:
            return True
        count = container_cpus(pod, container, pod_level=self.pod_level)
        if (state.get(uid, container.name) or 0).bit_count() != count:
            return False
        # While a pod with resources of its own has nothing, it may still get some as a whole.
        whole = has_pod_level_resources(pod) and pod_cpus(pod, pod_level=self.pod_level)
        return not whole or uid in state.containers

    def hints(self, state: CpuState, pod: Pod, container: Container) -> list[TopologyHint] | None:
        """Where the container's CPUs could be. None: it gets none; empty: nowhere.

        For a container that has them already, where they are; nowhere if it now asks for another number.
        """
        count = container_cpus(pod, container, pod_level=self.pod_level)
        if not count:
            return None
        own = state.get(pod.metadata.uid, container.name)
        if own is not None:
            return self._hints(own, 0, count) if own.bit_count() == count else []
        return self._hints(self.available(state), self._reusable(state, pod, container), count)

    def pod_hints(self, state: CpuState, pod: Pod) -> list[TopologyHint] | None:
        """Where the CPUs of all containers of the pod could be. See `hints`."""
        count = pod_cpus(pod, pod_level=self.pod_level)
        if not count:
            return None
        if (whole := state.pods.get(pod.metadata.uid)) is not None:
            return self._hints(whole, 0, count) if whole.bit_count() == count else []
        if has_pod_level_resources(pod) and self._empty_shared_pool(pod) is not None:
            return []
        for container in all_containers(pod):
            own = state.get(pod.metadata.uid, container.name)
            if own is not None and own.bit_count() != container_cpus(pod, container, pod_level=self.pod_level):
                return []
        own = state.of_pod(pod.metadata.uid)
        if own.bit_count() == count:
            return self._hints(own, 0, count)
        return self._hints(self.available(state), own, count)

    def _hints(self, available: int, reusable: int, count: int) -> list[TopologyHint]:
        """All sets of NUMA nodes with enough CPUs, that have all of the reusable ones."""
        nodes = self.topology.nodes
        free = {node: (cpus & available).bit_count() for node, cpus in nodes.items()}
        size = {node: cpus.bit_count() for node, cpus in nodes.items()}
        needed = {node for node, cpus in nodes.items() if cpus & reusable}
        narrowest = len(nodes)
        found = []
        for chosen in node_sets(nodes):
            if len(chosen) < narrowest and sum(size[node] for node in chosen) >= count:
                narrowest = len(chosen)
            if needed <= set(chosen) and reusable.bit_count() + sum(free[node] for node in chosen) >= count:
                found.append(chosen)
        return [TopologyHint(set_of(chosen), self._is_preferred(chosen, narrowest)) for chosen in found]

    def _is_preferred(self, chosen: tuple[int, ...], narrowest: int) -> bool:
        if len(chosen) == narrowest:
            return True
        sockets, nodes = self.topology.sockets, self.topology.nodes
        per_socket = len(nodes) // len(sockets)
        if not self.options.align_socket or not per_socket:
            return False
        cpus = union(nodes[node] for node in chosen)
        return sum(1 for socket in sockets.values() if socket & cpus) == -(-narrowest // per_socket)

    def _choose(self, available: int, count: int, nodes: int | None) -> int:
        """`count` CPUs, those of the NUMA nodes first. Raises AllocationError."""
        taken = 0
        try:
            if nodes is not None:
                align = self.topology.cpus_in_sockets_of if self.options.align_socket else self.topology.cpus_in_nodes
                aligned = available & align(nodes)
                taken = self._take(aligned, min(count, aligned.bit_count()))
            return taken | self._take(available & ~taken, count - taken.bit_count())
        except NotEnoughCpusError as error:
            raise AllocationError(str(error)) from error

    def _take(self, available: int, count: int) -> int:
        """Raises NotEnoughCpusError."""
        options = self.options
        if options.across_numa:
            group = self.topology.cpus_per_core if options.full_cores else 1
            return take_distributed(self.topology, available, count, group=group, spread=options.across_cores)
        spread, align = options.across_cores, options.align_uncore
        return take_packed(self.topology, available, count, spread=spread, align_uncore=align)

    def _check_full_cores(self, free: int, count: int) -> None:
        """Raises AllocationError. Cores with a reserved thread cannot be given as a whole."""
        if not self.options.full_cores:
            return
        per_core = self.topology.cpus_per_core
        if count % per_core:
            raise AllocationError(f"{count} CPUs are requested, and cores have {per_core} each", SMT_ALIGNMENT)
        whole = (free & ~self.topology.siblings(self.reserved)).bit_count()
        if count > whole:
            raise AllocationError(f"{count} CPUs are requested, and whole cores have {whole} free", SMT_ALIGNMENT)

    def _reusable(self, state: CpuState, pod: Pod, container: Container) -> int:
        """The CPUs of init containers before this one that no container after them has."""
        reusable = 0
        for one in all_containers(pod):
            if one.name == container.name:
                break
            cpus = state.get(pod.metadata.uid, one.name) or 0
            reusable = reusable | cpus if ends_before_others(pod, one) else reusable & ~cpus
        return reusable

    def _parts(self, pod: Pod, of_pod: int) -> dict[str, int]:
        """Raises AllocationError."""
        parts: dict[str, int] = {}
        left = of_pod
        sharing = []
        try:
            for container in all_containers(pod):
                count = container_cpus(pod, container, pod_level=self.pod_level)
                passes = ends_before_others(pod, container)
                if count:
                    parts[container.name] = self._take(left, count)
                    left &= ~(0 if passes else parts[container.name])
                elif passes:
                    parts[container.name] = left
                else:
                    sharing.append(container.name)
        except NotEnoughCpusError as error:
            raise AllocationError(str(error)) from error
        return parts | dict.fromkeys(sharing, left)

    def _empty_shared_pool(self, pod: Pod) -> str | None:
        """What is wrong if containers share the pod's CPUs, and those with CPUs of their own leave none."""
        total = pod_cpus(pod, pod_level=self.pod_level)
        exclusive = 0
        sharing = False
        for container in all_containers(pod):
            count = container_cpus(pod, container, pod_level=self.pod_level)
            if not ends_before_others(pod, container):
                exclusive += count
                sharing |= not count
            elif not count and exclusive >= total:
                return f"sidecars have all {total} CPUs of the pod, and leave none to init container {container.name}"
        if sharing and exclusive >= total:
            return f"containers with CPUs of their own have all {total} of the pod, and leave none to the others"
        return None
