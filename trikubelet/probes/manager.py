"""The probe manager: which workers there are, and where their results go (kubelet: `prober.Manager`).

The story of a worker: each sync of a pod calls `add_pod`, and the first one makes the workers, a task for each probe in
a scope of its pod. They look at the pod's status right then, so that the plan of the very same sync finds what they say
of containers that run already. From then on they keep themselves busy (`worker`), woken by what a subscription tells of
statuses. Their results are in `results`, for whoever syncs the pod, and changes that call for a sync come out of
`receive`.

A worker ends by itself when its container is over for good; the next sync would make it anew, and it would end right
there. When a pod ends, `stop_liveness_and_startup` comes before its containers are stopped: nothing should be restarted
any more. Its sidecars serve the others until it is their turn (`stop_container`). Readiness goes on until everything
has stopped (`remove_pod`), since traffic may still come.

All calls but `run` and `receive` are synchronous. Stopping a worker cancels its task, in whatever it waits for, and
nobody waits for that; what it said is forgotten before the call returns, so that its successor finds nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.probes.decisions import workers_of
from trikubelet.probes.schedule import first_delay
from trikubelet.probes.types import ProbeKind
from trikubelet.probes.worker import Surroundings, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable
    from random import Random

    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.probes.metrics import ProbeMetrics
    from trikubelet.probes.outbox import ProbeUpdates
    from trikubelet.probes.results import ProbeResultBook
    from trikubelet.probes.types import ProbeKey, ProbeUpdate
    from trikubelet.probes.worker import Asks
    from trikubelet.status.manager import StatusManager

_CANNOT_BE_RESTARTED = (ProbeKind.LIVENESS, ProbeKind.STARTUP)
"""The kinds that nobody needs any more of a container that is going to be stopped."""


@attrs.frozen
class ProbeStatistics:
    """What a debugger wants to see."""

    pods: int
    workers: int
    resting: int
    """Workers that sleep until a status changes."""
    asking: int
    """Workers that wait for an answer."""
    looks: int
    """Since the start, as is the next."""
    asked: int
    results: int
    updates_waiting: int


@attrs.define(eq=False)
class _PodProbes:
    """The workers of one pod, and the task that they are in."""

    uid: str
    workers: dict[tuple[str, ProbeKind], Worker] = attrs.field(factory=dict)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    nursery: trio.Nursery | None = None
    """None until its task has begun."""


class ProbeManager:
    """Keeps a worker for each probe of the pods that run.

    `newest` gives a pod as it is wanted now, by its UID. `rng` spreads the first probes after a restart of the agent,
    which begins with the making of this object. `clock` is that of the statuses.
    """

    def __init__(
        self,
        prober: Asks,
        statuses: StatusManager,
        *,
        clock: WallClock,
        rng: Random,
        newest: Callable[[str], Pod | None],
    ) -> None:
        self._statuses = statuses
        self._rng = rng
        self._around = Surroundings(prober, statuses, clock, newest, agent_started=clock.now())
        self._started_at = trio.current_time()
        self._pods: dict[str, _PodProbes] = {}
        self._nursery: trio.Nursery | None = None
        self._needed = trio.Event()

    @property
    def results(self) -> ProbeResultBook:
        """What the probes say now."""
        return self._around.results

    @property
    def updates(self) -> ProbeUpdates:
        """Results that call for a sync of their pods."""
        return self._around.updates

    @property
    def metrics(self) -> ProbeMetrics:
        return self._around.metrics

    async def receive(self) -> ProbeUpdate:
        """The next result that calls for a sync of its pod, the newest of its probe. Cancelling it loses nothing."""
        return await self.updates.receive()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the workers' tasks, and wake them when statuses change. Runs until cancelled, which ends them all."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for pod in self._pods.values():
                    self._start(pod)
                task_status.started()
                await self._needed.wait()  # most nodes have probes, but whoever has none shall not pay for them
                with self._statuses.subscribe() as changes:
                    async for change in changes:
                        self._wake(change.pod.metadata.uid)
            finally:
                self._nursery = None

    def add_pod(self, pod: Pod) -> None:
        """See to it that each probe of the pod has a worker (kubelet: `AddPod`). A worker stays as it is once made."""
        uid = pod.metadata.uid
        pod_probes = self._pods.get(uid)
        for spec in workers_of(pod):
            if pod_probes is not None and _place(spec.key) in pod_probes.workers:
                continue
            age = trio.current_time() - self._started_at
            worker = Worker(spec, pod, self._around, first_delay(spec.probe.period_seconds, age, self._rng.random()))
            if worker.ended:
                continue
            if pod_probes is None:
                pod_probes = self._pods[uid] = _PodProbes(uid)
                self._needed.set()
                if self._nursery is not None:
                    self._start(pod_probes)
            pod_probes.workers[_place(spec.key)] = worker
            if pod_probes.nursery is not None:
                self._start_worker(pod_probes, pod_probes.nursery, worker)

    def stop_liveness_and_startup(self, pod: Pod) -> None:
        """The pod's containers are about to be stopped (kubelet: `StopLivenessAndStartup`); sidecars come later."""
        for container in pod.spec.containers:
            self.stop_container(pod.metadata.uid, container.name)

    def stop_container(self, uid: str, container: str) -> None:
        """A container is about to be stopped: stop what would have it restarted, and leave its readiness."""
        self._stop(uid, [(container, kind) for kind in _CANNOT_BE_RESTARTED])

    def remove_pod(self, uid: str) -> None:
        """Stop all workers of the pod (kubelet: `RemovePod`). Works again and again."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._stop(uid, list(pod.workers))
            pod.scope.cancel()

    def cleanup(self, keep: Container[str]) -> None:
        """Stop the workers of all pods whose UID is not in `keep` (kubelet: `CleanupPods`)."""
        for uid in [uid for uid in self._pods if uid not in keep]:
            self.remove_pod(uid)

    def worker_keys(self) -> list[ProbeKey]:
        """Whose workers there are."""
        return [worker.spec.key for pod in self._pods.values() for worker in pod.workers.values()]

    def statistics(self) -> ProbeStatistics:
        workers = [worker for pod in self._pods.values() for worker in pod.workers.values()]
        counts = self._around.counts
        return ProbeStatistics(
            pods=len(self._pods),
            workers=len(workers),
            resting=sum(worker.resting for worker in workers),
            asking=counts.asking,
            looks=counts.looks,
            asked=counts.asked,
            results=len(self.results),
            updates_waiting=len(self.updates),
        )

    # Tasks

    def _start(self, pod: _PodProbes) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._run_pod, pod, name=f"probes of pod {pod.uid}")

    async def _run_pod(self, pod: _PodProbes) -> None:
        """A pod's task: it ends when its last worker does."""
        with pod.scope:
            async with trio.open_nursery() as nursery:
                pod.nursery = nursery
                for worker in pod.workers.values():
                    self._start_worker(pod, nursery, worker)

    def _start_worker(self, pod: _PodProbes, nursery: trio.Nursery, worker: Worker) -> None:
        key = worker.spec.key
        nursery.start_soon(self._run_worker, pod, worker, name=f"{key.kind.value} probe of {key.container}")

    async def _run_worker(self, pod: _PodProbes, worker: Worker) -> None:
        await worker.run()
        if worker.ended and pod.workers.get(_place(worker.spec.key)) is worker:
            self._drop(pod, worker)

    def _stop(self, uid: str, places: Iterable[tuple[str, ProbeKind]]) -> None:
        pod = self._pods.get(uid)
        for place in places:
            if pod is not None and (worker := pod.workers.get(place)) is not None:
                worker.scope.cancel()
                self._drop(pod, worker)

    def _drop(self, pod: _PodProbes, worker: Worker) -> None:
        """Forget a worker whose task is about to end, and its pod with the last one, as its task is too."""
        worker.forget()
        del pod.workers[_place(worker.spec.key)]
        if not pod.workers:
            del self._pods[pod.uid]

    def _wake(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is not None:
            for worker in pod.workers.values():
                worker.wake()


def _place(key: ProbeKey) -> tuple[str, ProbeKind]:
    return key.container, key.kind
