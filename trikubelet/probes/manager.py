"""The probes of each pod, and what all of them share (kubelet: `prober.Manager`).

The story of a probe: the first sync of a pod calls `PodProbes.add`, which makes a worker for each probe of its
containers and sidecars. They look at the pod's status right then, so that the plan of the very same sync finds what
they say of containers that run already. A worker's task runs in the scope of the container instance that it probes, is
gone with it, and goes on in the scope of the next one, on the same grid of times. While there is no instance nothing is
asked: the worker only looks when the status changes. Results are in `results`, for the pod's syncs, and changes
that call for a sync come out of `receive`.

A worker ends by itself when its container is over for good; the next sync would make it anew, and it would end right
there. When the pod ends, liveness and startup stop before a container's first signal: nothing should be restarted any
more; of a sidecar, which serves the others, when it is its turn. Readiness goes on until everything has stopped, since
traffic may still come. With the pod's scope everything that was kept of it goes.

All calls but `run`, `receive` and `PodProbes.run` are synchronous. Stopping a worker cancels its task, in whatever it
waits for; what it said is forgotten before the call returns, so that its successor finds nothing of it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, assert_never

import trio

from trikubelet.container.probe_results import ProbeResult
from trikubelet.formats.values import frozen
from trikubelet.probes.decisions import workers_of
from trikubelet.probes.schedule import first_delay
from trikubelet.probes.types import ProbeKind
from trikubelet.probes.worker import ProbeContext, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from random import Random

    from trikubelet.api import Pod
    from trikubelet.broadcast import Inbox
    from trikubelet.clock import WallClock
    from trikubelet.probes.decisions import WorkerSpec
    from trikubelet.probes.metrics import ProbeMetrics
    from trikubelet.probes.results import PodResults, ProbeResultBook
    from trikubelet.probes.types import ProbeKey, ProbeUpdate
    from trikubelet.probes.worker import Asks
    from trikubelet.status.manager import StatusManager

_RESTARTING = (ProbeKind.LIVENESS, ProbeKind.STARTUP)
"""The kinds whose failure has a container restarted."""


@frozen
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


class PodProbes:
    """The probes of one pod, for as long as its scope is open."""

    def __init__(self, uid: str, manager: ProbeManager, nursery: trio.Nursery) -> None:
        self._uid = uid
        self._manager = manager
        self._nursery = nursery
        self._workers: dict[tuple[str, ProbeKind], Worker] = {}
        self._following = False

    @property
    def results(self) -> PodResults:
        """What the probes say now: the same object until that changes."""
        return self._manager.results.of_pod(self._uid)

    def workers(self) -> list[Worker]:
        return list(self._workers.values())

    def add(self, pod: Pod) -> None:
        """See to it that each probe of the pod has a worker (kubelet: `AddPod`). A worker stays as it is once made."""
        for spec in workers_of(pod):
            place = (spec.key.container, spec.key.kind)
            if place in self._workers:
                continue
            worker = self._manager.make_worker(spec, pod)
            if worker.ended:
                continue
            self._workers[place] = worker
        if self._workers and not self._following:
            self._following = True
            self._nursery.start_soon(self._follow_status, name="statuses for probes")

    def has(self, container: str) -> bool:
        """Whether a container has workers."""
        return any(name == container for name, _ in self._workers)

    async def run(self, container: str) -> None:
        """Probe a container that runs, until cancelled or nothing is left to ask."""
        async with trio.open_nursery() as nursery:
            for (name, kind), worker in self._workers.items():
                if name == container:
                    nursery.start_soon(self._run_worker, worker, name=f"{kind.value} probe of {name}")

    def stop_liveness_and_startup(self, container: str) -> None:
        """A container is about to be stopped for good (kubelet: `StopLivenessAndStartup`); its readiness stays."""
        self._stop([(container, kind) for kind in _RESTARTING])

    def stop(self) -> None:
        """Stop all workers (kubelet: `RemovePod`). Works again and again."""
        self._stop(list(self._workers))

    async def _follow_status(self) -> None:
        with self._manager.statuses.subscribe(self._uid) as changes:
            async for _ in changes:
                for worker in self.workers():
                    worker.wake()
                    if worker.ended:
                        self._drop(worker)

    async def _run_worker(self, worker: Worker) -> None:
        try:
            await worker.run()
        finally:
            if worker.ended:
                self._drop(worker)

    def _stop(self, places: Iterable[tuple[str, ProbeKind]]) -> None:
        for place in places:
            if (worker := self._workers.get(place)) is not None:
                worker.cancel()
                self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        """Forget a worker and what it said."""
        place = (worker.spec.key.container, worker.spec.key.kind)
        if self._workers.get(place) is worker:
            worker.forget()
            del self._workers[place]


class ProbeManager:
    """What the probes of all pods share.

    `newest` gives a pod as it is wanted now, by its UID. `rng` spreads the first probes after a restart of the agent,
    which begins with the making of this object. `clock` is that of the statuses. `begins_anew`: of containers that an
    earlier agent has started nothing is taken over.
    """

    def __init__(
        self,
        prober: Asks,
        statuses: StatusManager,
        *,
        clock: WallClock,
        rng: Random,
        newest: Callable[[str], Pod | None],
        begins_anew: bool = False,
    ) -> None:
        self.statuses = statuses
        self._rng = rng
        self._context = ProbeContext(
            prober, statuses, clock, newest, agent_started=None if begins_anew else clock.now()
        )
        self._started_at = trio.current_time()
        self._pods: set[PodProbes] = set()

    @property
    def results(self) -> ProbeResultBook:
        """What the probes say now."""
        return self._context.results

    @property
    def updates(self) -> Inbox[ProbeUpdate]:
        """Results that call for a sync of their pods."""
        return self._context.updates

    @property
    def metrics(self) -> ProbeMetrics:
        return self._context.metrics

    async def receive(self) -> ProbeUpdate:
        """The next result that calls for a sync of its pod, the newest of its probe. Cancelling it loses nothing."""
        return await self.updates.receive()

    def report(self, update: ProbeUpdate) -> bool:
        """Have a result of a pod that is wanted be in its status at once. Returns whether the pod has to be synced.

        Kubelet: `handleProbeSync` and its callers.
        """
        good = update.result is ProbeResult.SUCCESS
        match update.key.kind:
            case ProbeKind.LIVENESS:
                return update.result is ProbeResult.FAILURE
            case ProbeKind.READINESS:
                self.statuses.set_container_readiness(update.key.pod_uid, str(update.container_id), good)
            case ProbeKind.STARTUP:
                self.statuses.set_container_startup(update.key.pod_uid, str(update.container_id), good)
            case _:
                assert_never(update.key.kind)
        return True

    @contextmanager
    def of_pod(self, uid: str, nursery: trio.Nursery) -> Iterator[PodProbes]:
        """The probes of a pod whose scope is `nursery`. Nothing is kept of them afterwards."""
        probes = PodProbes(uid, self, nursery)
        self._pods.add(probes)
        try:
            yield probes
        finally:
            probes.stop()
            self._pods.discard(probes)

    def make_worker(self, spec: WorkerSpec, pod: Pod) -> Worker:
        age = trio.current_time() - self._started_at
        return Worker(spec, pod, self._context, first_delay(spec.probe.period_seconds, age, self._rng.random()))

    def worker_keys(self) -> list[ProbeKey]:
        """Whose workers there are."""
        return [worker.spec.key for pod in self._pods for worker in pod.workers()]

    def statistics(self) -> ProbeStatistics:
        by_pod = [pod.workers() for pod in self._pods]
        workers = [worker for of_pod in by_pod for worker in of_pod]
        counts = self._context.counts
        return ProbeStatistics(
            pods=sum(bool(of_pod) for of_pod in by_pod),
            workers=len(workers),
            resting=sum(worker.resting for worker in workers),
            asking=counts.asking,
            looks=counts.looks,
            asked=counts.asked,
            results=len(self.results),
            updates_waiting=len(self.updates),
        )
