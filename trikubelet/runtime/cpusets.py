"""Keeps the CPUs of containers that run as they should be: when some get CPUs of their own, all others lose them.

The kubelet looks every ten seconds (`cpumanager.reconcileState`). Here it is done when the shared CPUs change, and when
a container is seen to run that was started with others; every `cpuManagerReconcilePeriod` what failed is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.cpu_list import format_cpu_list
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trio_typing import TaskStatus

    from trikubelet.allocation.managers import ResourceManagers
    from trikubelet.broadcast import Broadcast
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.pleg.cache import PodStatusCache
    from trikubelet.rpc.cri.client import RuntimeClient

log = get_logger("runtime")

AT_ONCE: Final = 4
"""Calls to the runtime at a time."""


class CpusetReconciler:
    """Compares what the managers say with what containers were told last."""

    def __init__(
        self,
        runtime: RuntimeClient,
        managers: ResourceManagers,
        cache: PodStatusCache,
        observed: Broadcast[PodRuntimeStatus],
        *,
        period: float,
    ) -> None:
        """`observed` is sent each status that PLEG puts into the cache. `period`: seconds."""
        self._runtime = runtime
        self._managers = managers
        self._cache = cache
        self._observed = observed
        self._period = period
        self._applied: dict[str, int] = {}
        """The CPUs that containers were moved to, by container id."""
        self._one_round_at_a_time = trio.Lock()
        self._calls = trio.CapacityLimiter(AT_ONCE)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reconcile until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._follow_changes)
            nursery.start_soon(supervise, self._follow_containers)
            task_status.started()

    async def _follow_changes(self) -> None:
        with self._managers.changed.subscribe(key=lambda _: None) as changed:
            while True:
                await self._reconcile_all()
                with trio.move_on_after(self._period):
                    await changed.receive()

    async def _follow_containers(self) -> None:
        with self._observed.subscribe(key=lambda status: status.uid) as observed:
            async for status in observed:
                await self._reconcile([status])

    async def _reconcile_all(self) -> None:
        seen = [status for uid in self._cache.uids() if (status := self._cache.last_seen(uid)) is not None]
        running = {one.id.id for status in seen for one in status.running_containers()}
        self._applied = {container: cpus for container, cpus in self._applied.items() if container in running}
        await self._reconcile(seen)

    async def _reconcile(self, pods: Iterable[PodRuntimeStatus]) -> None:
        """Give the containers that run the CPUs that they should have. What fails is logged, and tried again."""
        async with self._one_round_at_a_time, trio.open_nursery() as nursery:
            for status in pods:
                for one in status.running_containers():
                    wanted = self._managers.cpus(status.uid, one.name)
                    has = self._applied.get(one.id.id, self._managers.started_with(status.uid, one.name))
                    if wanted not in (0, has):
                        pod = f"{status.namespace}/{status.name}"
                        nursery.start_soon(contain, self._update, pod, one.name, one.id.id, wanted)

    async def _update(self, pod: str, container: str, container_id: str, cpus: int) -> None:
        told = format_cpu_list(cpus)
        try:
            async with self._calls:
                await self._runtime.update_container_resources(
                    container_id, v1.LinuxContainerResources(cpuset_cpus=told)
                )
        except CRIError as error:
            log.error("cannot change the CPUs of a container", pod=pod, container=container, problem=str(error))
        else:
            self._applied[container_id] = cpus
            log.info("CPUs of a container changed", pod=pod, container=container, cpus=told)
