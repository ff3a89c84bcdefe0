"""The resources of pods that the runtime was last told, in a file that survives the agent (kubelet: `actuatedState`).

A pod gets its record when its sandbox is made. A container's part is replaced before it starts with other resources
than it had, and after the runtime took others for it; the pod's own part after its cgroup was set. The start of a new
pod does not wait for the disk: of a pod without a record the runtime is asked what it runs with (`resize_plan`). A
record that would be wrong is replaced on the disk first, and a resize is done when its record is there. So a resize
that was cut short is found and finished; telling the runtime twice does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.allocation.model import ALL_RESIZES, PodAllocation, ResizeGates, allocation_of
from trikubelet.api import EphemeralContainer, Quantity, ResourceRequirements
from trikubelet.broadcast import Inbox
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.runtime.resize_plan import CPU, MEMORY, ActuatedPod, Amounts, container_amounts
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_typing import TaskStatus

    from trikubelet.allocation.store import AllocationStore
    from trikubelet.api import Container, Pod

log = get_logger("runtime")

WRITE_AFTER: Final = 0.5
"""Seconds until a change that no call waits for is written."""
_ZERO: Final = Quantity()


class ActuatedResources:
    """The records of all pods. Reading and setting is done in memory; `run` or `durable` writes."""

    def __init__(self, store: AllocationStore, gates: ResizeGates = ALL_RESIZES) -> None:
        self._store = store
        self.gates = gates
        self._behind: set[str] = set()
        self._to_write: Inbox[None] = Inbox()
        self._overdue = False
        """What was set is to be written, and was not tried yet."""

    def of_pod(self, uid: str) -> ActuatedPod:
        """Without `resources` for a pod without a record: it has no sandbox yet, or its agent was killed or another."""
        resources = self._store.get(uid)
        return ActuatedPod(resources, self.gates, uid in self._behind)

    def sandbox_made(self, pod: Pod) -> None:
        """The pod's cgroup and sandbox were made for what it is allocated; a record of an earlier sandbox stays.

        What an earlier sandbox's record says is what the pod's cgroup was set to, unless it was made anew.
        """
        if self._store.get(pod.metadata.uid) is None:
            self._set(pod.metadata.uid, self._as_allocated(pod))

    async def container_starts(self, pod: Pod, container: Container) -> None:
        """The container is about to start with its resources as allocated; returns when no other ones are on the disk.

        Raises CheckpointError.
        """
        if isinstance(container, EphemeralContainer):
            return  # it has no resources
        record = self._store.get(pod.metadata.uid)
        resources = _started_with(pod, container, self.gates)
        self._set_container(pod, container.name, resources)
        if record is not None and record.containers.get(container.name) != resources:
            await self._store.flush()

    def container_updated(self, pod: Pod, container: Container, told: Amounts) -> None:
        """The runtime took other resources for a running container."""
        resources = _started_with(pod, container, self.gates)
        self._set_container(pod, container.name, with_amounts(resources, told))

    def pod_updated(self, pod: Pod, resource: str) -> None:
        """The pod's cgroup was set to the cpu, or the memory, that the pod as a whole is allocated."""
        wanted = pod.spec.resources or ResourceRequirements()
        record = self._store.get(pod.metadata.uid) or self._as_allocated(pod)
        told = record.pod or ResourceRequirements()
        changed = attrs.evolve(
            told,
            requests=_replaced(told.requests, wanted.requests, resource),
            limits=_replaced(told.limits, wanted.limits, resource),
        )
        self._set(pod.metadata.uid, attrs.evolve(record, pod=changed))

    def group_is_behind(self, uid: str) -> None:
        """The pod's cgroup is still to follow containers that have started with other resources."""
        self._behind.add(uid)

    def group_follows(self, uid: str) -> None:
        """It does by now."""
        self._behind.discard(uid)

    def forget(self, uid: str) -> None:
        """The pod is no more; no error if it was not known."""
        self._behind.discard(uid)
        self._store.forget(uid)

    def forget_if(self, is_gone: Callable[[str], bool]) -> None:
        """Forget the pods that went while the agent was away."""
        for uid in [uid for uid in self._store.uids() if is_gone(uid)]:
            self.forget(uid)

    async def durable(self) -> None:
        """Return when all that was set is on the disk. Raises CheckpointError; the next call tries again."""
        await self._store.flush()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what was set, pods that start together at once. Until cancelled."""
        task_status.started()
        while True:
            if not self._overdue:
                await self._to_write.receive()
            self._overdue = True
            await trio.sleep(WRITE_AFTER)
            self._to_write.drop(None)
            try:
                await self._store.flush()
            except CheckpointError as error:
                log.error("what the runtime was told of resources cannot be kept", problem=str(error))
            self._overdue = False

    def _set_container(self, pod: Pod, name: str, resources: ResourceRequirements) -> None:
        # A pod without a record was started by another agent, and not resized by this one.
        record = self._store.get(pod.metadata.uid) or self._as_allocated(pod)
        if record.containers.get(name) != resources:
            record = attrs.evolve(record, containers={**record.containers, name: resources})
        self._set(pod.metadata.uid, record)

    def _as_allocated(self, pod: Pod) -> PodAllocation:
        """Containers without a limit run with the pod's."""
        allocation = allocation_of(pod)
        containers = {
            name: with_amounts(resources, container_amounts(resources, allocation.pod, self.gates))
            for name, resources in allocation.containers.items()
        }
        return attrs.evolve(allocation, containers=containers)

    def _set(self, uid: str, record: PodAllocation) -> None:
        self._store.set(uid, record)
        if not self._store.is_durable:
            self._to_write.put(None)


def with_amounts(resources: ResourceRequirements, told: Amounts) -> ResourceRequirements:
    """The same resources with other cpu and memory. What is 0 stays out where it was not mentioned before.

    A cpu request that is not mentioned is the limit, one of 0 is the smallest share: so they are told apart.
    """
    return attrs.evolve(
        resources,
        requests=_with(resources.requests, told.cpu_request, told.memory_request),
        limits=_with(resources.limits, told.cpu_limit, told.memory_limit),
    )


def _with(before: dict[str, Quantity], cpu: int, memory: int) -> dict[str, Quantity]:
    after = dict(before)
    if after.get(CPU, _ZERO).milli_value() != cpu:
        after[CPU] = Quantity.from_milli(cpu)
    if after.get(MEMORY, _ZERO).value() != memory:
        after[MEMORY] = Quantity.from_bytes_count(memory)
    return after


def _started_with(pod: Pod, container: Container, gates: ResizeGates) -> ResourceRequirements:
    resources = container.resources
    return with_amounts(resources, container_amounts(resources, pod.spec.resources, gates))


def _replaced(before: dict[str, Quantity], wanted: dict[str, Quantity], resource: str) -> dict[str, Quantity]:
    kept = {name: amount for name, amount in before.items() if name != resource}
    return {**kept, resource: wanted[resource]} if resource in wanted else kept
