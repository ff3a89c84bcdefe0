"""One probe: looks at its container's status, asks when it is time to, and passes on what came of it.

It has a grid of points in time, one period apart, from the moment it was made; on these it looks, and asks if there is
a container to probe. Between two points it sleeps. Without a container it does not even wake for them: nothing but
another status can change that, and every change of its pod's status wakes it (the kubelet looks on each point all the
same, and comes to the same).

A readiness probe does not wait for the next point once its container can be asked for the first time: it asks at once,
and its grid begins anew. So a pod is ready as soon as it says so. The others stay on their grid: a liveness probe that
came earlier would kill containers that live under a kubelet. A startup probe is asked once more, out of turn, when its
container can be asked for the first time: a success counts, so that nobody waits for a period for what has started; a
failure does not, since it would use up what a slow starter is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from trikubelet.api import Pod
from trikubelet.broadcast import Inbox
from trikubelet.clock import WallClock
from trikubelet.container.probe_results import ProbeResult
from trikubelet.formats.values import define, frozen
from trikubelet.probes import decisions
from trikubelet.probes.decisions import Next, WorkerSpec, WorkerState
from trikubelet.probes.metrics import ProbeMetrics
from trikubelet.probes.results import ProbeResultBook
from trikubelet.probes.schedule import next_tick, tick_from
from trikubelet.probes.types import ProbeKind, ProbeTarget, ProbeUpdate
from trikubelet.status.manager import StatusManager
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.container.model import ContainerID
    from trikubelet.probes.decisions import Verdict

log = get_logger("probes")


class Asks(Protocol):
    """`trikubelet.probes.prober.Prober`."""

    async def probe(self, target: ProbeTarget) -> bool | None:
        """What came of it; None to be thrown away."""
        ...


@define
class WorkerCounts:
    """What all workers did since the agent's start."""

    looks: int = 0
    asked: int = 0
    asking: int = 0
    """How many are at it now."""


@frozen
class ProbeContext:
    """What all workers share."""

    prober: Asks
    statuses: StatusManager
    clock: WallClock
    newest: Callable[[str], Pod | None]
    """A pod as it is wanted now, by its UID."""
    agent_started: datetime | None
    """None: see `Observation`."""
    results: ProbeResultBook = attrs.field(factory=ProbeResultBook)
    updates: Inbox[ProbeUpdate] = attrs.field(factory=lambda: Inbox(key=lambda update: update.key))
    """For the sync loop. A channel that holds each result would make a worker wait while the loop waits for a runtime,
    and the loop act on what is no longer so."""
    metrics: ProbeMetrics = attrs.field(factory=ProbeMetrics)
    counts: WorkerCounts = attrs.field(factory=WorkerCounts)


class Worker:
    """One probe of one container (kubelet: prober `worker`)."""

    def __init__(self, spec: WorkerSpec, pod: Pod, context: ProbeContext, delay: float) -> None:
        """`delay`: seconds from now to the first point of its grid. It looks for the first time right here."""
        self.spec = spec
        self._scope: trio.CancelScope | None = None
        """Around its task, while the container runs."""
        self._pod = pod
        self._context = context
        self._state = WorkerState()
        self._askable: ContainerID | None = None
        """The container that may be asked, by the last look."""
        self._period = max(1, spec.probe.period_seconds)  # which a probe without defaults does not say
        self._anchor = self._due = trio.current_time() + delay
        self._woken: Inbox[None] = Inbox()
        self.ended = False
        """There will be nothing to ask any more."""
        self._inspect()
        self._asked_last: ContainerID | None = self._askable
        """The container that its task could ask when it last looked."""
        if spec.key.kind is ProbeKind.STARTUP:
            # One that runs already may have started long ago, as an earlier agent knew: ask before the grid begins.
            self._asked_last = None
            self._woken.put(None)

    @property
    def resting(self) -> bool:
        """It sleeps until its pod's status changes."""
        return math.isinf(self._due)

    async def run(self) -> None:
        """Probe until there is nothing to ask any more. One task at a time; the next one goes on where it was."""
        with trio.CancelScope() as scope:
            self._scope = scope
            try:
                await self._run()
            finally:
                if self._scope is scope:  # else the next task has begun
                    self._scope = None
                    if self._woken and not self.ended:
                        self._inspect()  # at changes that came while it was being cancelled

    async def _run(self) -> None:
        while not self.ended:
            if not await self._sleep():
                return
            self._inspect()
            before, self._asked_last = self._asked_last, self._askable
            now = trio.current_time()
            if self._askable is None:
                continue
            early = False
            if self._askable != before:
                match self.spec.key.kind:
                    case ProbeKind.READINESS:
                        self._anchor = self._due = now
                    case ProbeKind.STARTUP:
                        self._due = tick_from(self._anchor, self._period, now)
                        early = now < self._due
            if now >= self._due:
                self._due = next_tick(self._anchor, self._period, now)
                await self._ask(self._askable, now)
            elif early:
                await self._ask(self._askable, now, early=True)

    def cancel(self) -> None:
        """End its task, if it has one."""
        if self._scope is not None:
            self._scope.cancel()

    def wake(self) -> None:
        """The status of its pod has changed. Without a task there is nothing to ask, but perhaps something to say."""
        if self._scope is None:
            self._inspect()
        self._woken.put(None)

    def forget(self) -> None:
        """Take back what it said. Nothing of it is left then, and nothing will be."""
        self.ended = True
        key, context = self.spec.key, self._context
        if self._state.container_id is not None:
            context.results.forget(key.pod_uid, key.kind, self._state.container_id)
        context.updates.drop(key)
        context.metrics.drop(key)

    async def _sleep(self) -> bool:
        """False when it was forgotten meanwhile."""
        with trio.move_on_at(self._due):
            await self._woken.receive()
        return not self.ended

    def _inspect(self) -> None:
        """Decide what there is to do. Only what has changed since the last look makes a difference."""
        context, now = self._context, trio.current_time()
        context.counts.looks += 1
        newest = context.newest(self.spec.key.pod_uid)
        seen = decisions.observe(
            self.spec,
            context.statuses.get_pod_status(self.spec.key.pod_uid),
            deleting=newest is not None and newest.metadata.deletion_timestamp is not None,
            now=context.clock.now(),
            agent_started=context.agent_started,
        )
        verdict = decisions.decide(self.spec, self._state, seen)
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
        """When to look after the initial delay, which is over at `moment`: then, or on the grid."""
        if self.spec.key.kind is not ProbeKind.LIVENESS:
            return moment
        return tick_from(self._anchor, self._period, moment)

    async def _ask(self, container_id: ContainerID, began: float, *, early: bool = False) -> None:
        success = await self._probe(container_id, early=early)
        if success is None or self.ended or (early and not success):
            return
        seconds = trio.current_time() - began
        result = ProbeResult.SUCCESS if success else ProbeResult.FAILURE
        self._context.metrics.count(self.spec.key, self._pod, result, seconds if success else None)
        verdict = decisions.counted(self.spec, self._state, success)
        if verdict.next is Next.REST:
            self._askable = None
            self._due = math.inf
        for changed, outcome in self._keep(verdict):
            self._send(changed, outcome)

    async def _probe(self, container_id: ContainerID, *, early: bool) -> bool | None:
        key, context = self.spec.key, self._context
        status = context.statuses.get_pod_status(key.pod_uid)
        pod_ip = "" if status is None else status.pod_ip
        context.counts.asked += 1
        context.counts.asking += 1
        try:
            return await context.prober.probe(
                ProbeTarget(self._pod, self.spec.container, container_id, pod_ip, key.kind, early)
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
            context.counts.asking -= 1

    def _keep(self, verdict: Verdict) -> list[tuple[ContainerID, ProbeResult]]:
        """Remember and write down what was decided. Gives the results that are other ones than before."""
        self._state = verdict.state
        key, book = self.spec.key, self._context.results
        changed = []
        for container_id, result in verdict.results:
            if result is None:
                book.forget(key.pod_uid, key.kind, container_id)
            elif book.set(key.pod_uid, key.kind, container_id, result):
                changed.append((container_id, result))
        return changed

    def _send(self, container_id: ContainerID, result: ProbeResult) -> None:
        """Send an answer's result to the sync loop, unless it asks for nothing.

        What a look found is not sent: it comes from a status, and the sync for that status reads the results. Neither
        is it news that a container is alive.
        """
        key = self.spec.key
        if key.kind is ProbeKind.LIVENESS and result is ProbeResult.SUCCESS:
            return
        self._context.updates.put(ProbeUpdate(key, container_id, result))
