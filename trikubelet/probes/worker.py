"""The task of one probe: looks at its container's status, asks when it is time to, and passes on what came of it.

It has a grid of points in time, one period apart, from the moment it was made; on these it looks, and asks if there is
somebody to ask. Between two points it sleeps. While there is nobody to ask it does not even wake for them: nothing but
another status can change that, and every change of its pod's status wakes it (the kubelet looks on each point all the
same, and comes to the same).

A readiness probe does not wait for the next point once its container can be asked for the first time: it asks at once,
and its grid begins anew. So a pod is ready as soon as it says so. The others stay on their grid: a liveness probe that
came earlier would kill containers that live under a kubelet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from trikubelet.api import Pod, PodStatus
from trikubelet.clock import WallClock
from trikubelet.logs import get_logger
from trikubelet.probes import decisions
from trikubelet.probes.decisions import Next, WorkerSpec, WorkerState
from trikubelet.probes.metrics import ProbeMetrics
from trikubelet.probes.outbox import ProbeUpdates
from trikubelet.probes.results import ProbeResultBook
from trikubelet.probes.schedule import next_tick, tick_from
from trikubelet.probes.types import ProbeKind, ProbeTarget, ProbeUpdate
from trikubelet.runtime.plan import ProbeResult

if TYPE_CHECKING:
    from trikubelet.probes.decisions import Verdict
    from trikubelet.runtime.model import ContainerID
log = get_logger("probes")


class Statuses(Protocol):
    """The part of the status manager that a worker reads."""

    def get_pod_status(self, uid: str) -> PodStatus | None: ...


class Asks(Protocol):
    """`trikubelet.probes.prober.Prober`."""

    async def probe(self, target: ProbeTarget) -> bool | None:
        """What came of it; None to be thrown away."""
        ...


@attrs.define
class WorkerCounts:
    """What all workers did since the agent's start."""

    looks: int = 0
    asked: int = 0
    asking: int = 0
    """How many are at it now."""


@attrs.frozen
class Surroundings:
    """What all workers share."""

    prober: Asks
    statuses: Statuses
    clock: WallClock
    newest: Callable[[str], Pod | None]
    """A pod as it is wanted now, by its UID."""
    agent_started: datetime
    results: ProbeResultBook = attrs.field(factory=ProbeResultBook)
    updates: ProbeUpdates = attrs.field(factory=ProbeUpdates)
    metrics: ProbeMetrics = attrs.field(factory=ProbeMetrics)
    counts: WorkerCounts = attrs.field(factory=WorkerCounts)


class Worker:
    """One probe of one container (kubelet: prober `worker`)."""

    def __init__(self, spec: WorkerSpec, pod: Pod, around: Surroundings, delay: float) -> None:
        """`delay`: seconds from now to the first point of its grid. It looks for the first time right here."""
        self.spec = spec
        self.scope = trio.CancelScope()
        """Around its task, if there is one yet."""
        self._pod = pod
        self._around = around
        self._state = WorkerState()
        self._askable: ContainerID | None = None
        """The container that may be asked, by the last look."""
        self._period = max(1, spec.probe.period_seconds)  # which a probe without defaults does not say
        self._anchor = self._due = trio.current_time() + delay
        self._woken = trio.Event()
        self.ended = False
        """There will be nothing to ask any more."""
        self._look()

    @property
    def resting(self) -> bool:
        """It sleeps until its pod's status changes."""
        return math.isinf(self._due)

    async def run(self) -> None:
        """Probe until there is nothing to ask any more, or `scope` is cancelled: then it leaves at once."""
        with self.scope:
            while not self.ended:
                await self._sleep()
                before, now = self._askable, trio.current_time()
                self._look()
                if self._askable is None:
                    continue
                if self.spec.key.kind is ProbeKind.READINESS and self._askable != before:
                    self._anchor = self._due = now
                if now >= self._due:
                    self._due = next_tick(self._anchor, self._period, now)
                    await self._ask(self._askable, now)

    def wake(self) -> None:
        """The status of its pod has changed."""
        self._woken.set()

    def forget(self) -> None:
        """Take back what it said. Nothing of it is left then."""
        key, around = self.spec.key, self._around
        if self._state.container_id is not None:
            around.results.forget(key.pod_uid, key.kind, self._state.container_id)
        around.updates.drop(key)
        around.metrics.drop(key)

    async def _sleep(self) -> None:
        with trio.move_on_at(self._due):
            await self._woken.wait()
        if self._woken.is_set():
            self._woken = trio.Event()

    def _look(self) -> None:
        """Decide what there is to do. Only what has changed since the last look makes a difference."""
        around, now = self._around, trio.current_time()
        around.counts.looks += 1
        newest = around.newest(self.spec.key.pod_uid)
        seen = decisions.look_at(
            self.spec,
            around.statuses.get_pod_status(self.spec.key.pod_uid),
            deleting=newest is not None and newest.metadata.deletion_timestamp is not None,
            now=around.clock.now(),
            agent_started=around.agent_started,
        )
        verdict = decisions.look(self.spec, self._state, seen)
        self._askable = None
        match verdict.next:
            case Next.ASK:
                self._askable = verdict.state.container_id
                if self.resting:
                    self._due = max(self._anchor, next_tick(self._anchor, self._period, now))
            case Next.REST:
                self._due = math.inf if verdict.resume_in is None else self._resumes_at(now + verdict.resume_in)
            case Next.END:
                self.ended = True
                return  # what it would say now would be taken back at once
        self._keep(verdict)

    def _resumes_at(self, moment: float) -> float:
        """The first point at which the initial delay is over, `moment` itself included."""
        if self.spec.key.kind is ProbeKind.READINESS:
            return moment
        return tick_from(self._anchor, self._period, moment)

    async def _ask(self, container_id: ContainerID, began: float) -> None:
        success = await self._probe(container_id)
        if success is None:
            return
        seconds = trio.current_time() - began
        result = ProbeResult.SUCCESS if success else ProbeResult.FAILURE
        self._around.metrics.count(self.spec.key, self._pod, result, seconds if success else None)
        verdict = decisions.counted(self.spec, self._state, success)
        if verdict.next is Next.REST:
            self._askable = None
            self._due = math.inf
        for changed, outcome in self._keep(verdict):
            self._tell(changed, outcome)

    async def _probe(self, container_id: ContainerID) -> bool | None:
        key, around = self.spec.key, self._around
        status = around.statuses.get_pod_status(key.pod_uid)
        pod_ip = "" if status is None else status.pod_ip
        around.counts.asked += 1
        around.counts.asking += 1
        try:
            return await around.prober.probe(
                ProbeTarget(self._pod, self.spec.container, container_id, pod_ip, key.kind)
            )
        except Exception as error:  # whatever fails here concerns this probe only, and says nothing of the container
            log.error(
                "a probe raised, its answer is thrown away",
                pod=self._pod.full_name,
                container=key.container,
                probe=key.kind.value,
                error=repr(error),
                exc_info=error,
            )
            return None
        finally:
            around.counts.asking -= 1

    def _keep(self, verdict: Verdict) -> list[tuple[ContainerID, ProbeResult]]:
        """Remember and write down what was decided. Gives the results that are other ones than before."""
        self._state = verdict.state
        key, book = self.spec.key, self._around.results
        changed = []
        for container_id, result in verdict.results:
            if result is None:
                book.forget(key.pod_uid, key.kind, container_id)
            elif book.set(key.pod_uid, key.kind, container_id, result):
                changed.append((container_id, result))
        return changed

    def _tell(self, container_id: ContainerID, result: ProbeResult) -> None:
        """Send an answer's result to the sync loop, unless it asks for nothing.

        What a look found is not sent: it comes from a status, and whoever syncs the pod for it reads the book. Neither
        is it news that a container is alive.
        """
        key = self.spec.key
        if key.kind is ProbeKind.LIVENESS and result is ProbeResult.SUCCESS:
            return
        self._around.updates.put(key, ProbeUpdate(key.pod_uid, container_id, key.kind, result))
