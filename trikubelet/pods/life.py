"""The life of one pod, told in order (kubelet: `podWorkerLoop`). Read `PodLife.live` first.

A pod's life is one task. It opens a nursery, and all that runs for the pod runs in there: its syncs, the scopes of its
container instances with their probes, hooks and ends, and whatever watches something for it. The phases follow each
other: wait to start, sync until something asks for the end or the pod has run its course, terminate, clean up. When the
last one is over the nursery is cancelled, and nothing of the pod is left in this process.

What comes next is not decided here but in the pure machine (`machine`), which the life asks before each work and
tells the outcome. Requests are merged by the same machine the moment they arrive; here they arrive as news on a
channel that holds one, for which the life waits between two works. A work under way may be called off at once (a sync
of a pod that is to end) or hastened (the end of a pod, when its grace period gets shorter).

What lives outside of this process (containers, mounts, cgroups) is not scoped. Cancelling a life touches none of it:
the agent's next life adopts it, by the same code. It is released in the last phase, in one place.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final, assert_never

import trio

from trikubelet.pods import phases
from trikubelet.pods.context import INSPECTION, tell_when_stuck
from trikubelet.pods.machine import is_in_the_way
from trikubelet.pods.retry import failure
from trikubelet.pods.types import STATUS_TIMEOUT, PodSyncReport, SyncPodType, UpdatePod
from trikubelet.supervision import contain
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.pods.context import LifeContext
    from trikubelet.pods.phases import Failed, Outcome, Work
    from trikubelet.pods.types import Kill, PodSyncer

log = get_logger("pod-workers")


class PodLife:
    """One pod, from its first request until nothing of it is left."""

    def __init__(self, uid: str, context: LifeContext) -> None:
        self.uid = uid
        self._context = context
        self._registry = context.registry
        self._send_news, self._news = trio.open_memory_channel[None](1)
        self.look_again_at = math.inf
        """Trio time of the next look at the pod, if nothing else comes before."""
        self._acted_at = -math.inf  # What was observed before the pod was acted on says nothing about it.
        self.in_flight: tuple[PodSyncer, Work, trio.CancelScope] | None = None
        self.begun_at = -math.inf
        """When the work in flight, or the last one, began."""
        self.problem = ""
        """Why the last work failed; empty when it did not."""
        self.containers_ended: Final = trio.Event()  # Nothing of the pod runs any more, or ever will.

    async def live(self) -> None:
        """Live it from the phase in which it is. Cancelled, it leaves what is outside of this process as it is."""
        async with trio.open_nursery() as everything:
            with self._context.open_pod(self.uid, everything) as pod:
                work = await self._wait_to_start()
                work = await self._sync_until_end(pod, work)
                everything.start_soon(contain, tell_when_stuck, self._context, self.uid)
                work = await self._terminate(pod, work)
                self.containers_ended.set()
                await self._clean_up(pod, work)
            everything.cancel_scope.cancel()

    def notify(self) -> None:
        """There is news for it in the registry. Never waits."""
        if self.in_flight is not None:
            self._attend(*self.in_flight)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(trio.WouldBlock, trio.BrokenResourceError):  # told already, or not alive
            self._send_news.send_nowait(None)

    def look_again(self, delay: float) -> None:
        """Have a look at the pod in `delay` seconds at the latest, unless a work says otherwise."""
        self.look_again_at = min(self.look_again_at, trio.current_time() + delay)
        self._wake()

    def forget(self) -> None:
        """The registry does not know the pod any more, and perhaps another one with its UID."""
        self._send_news.close()

    # --- The phases. Each returns the work that begins the next one; None when there is none any more. ----------------

    async def _wait_to_start(self) -> Work | None:
        """Another static pod of the same name may have to end first."""
        return await self._next_work()

    async def _sync_until_end(self, pod: PodSyncer, work: Work | None) -> Work | None:
        """Make the runtime match the pod, at every change and now and then."""
        while isinstance(work, phases.SyncPod):
            await self._perform(pod, work)
            work = await self._next_work()
        return work

    async def _terminate(self, pod: PodSyncer, work: Work | None) -> Work | None:
        """End its containers within their grace period, again and again until none runs."""
        while isinstance(work, phases.TerminatePod | phases.TerminateRuntimePod):
            await self._perform(pod, work)
            work = await self._next_work()
        return work

    async def _clean_up(self, pod: PodSyncer, work: Work | None) -> None:
        """Release what it held, again and again until all of it is."""
        while isinstance(work, phases.CleanUpPod):
            await self._perform(pod, work)
            work = await self._next_work()

    # --- Between two works -------------------------------------------------------------------------------------------

    async def _next_work(self) -> Work | None:
        """Wait for something to do. None when this life is over."""
        while True:
            if self._news.statistics().open_send_channels == 0:
                return None  # forgotten
            work = self._registry.begin(self.uid, trio.current_time())
            if work is not None:
                return work
            if isinstance(self._registry.states.phase(self.uid), phases.Finished | None):
                return None
            with trio.move_on_at(self.look_again_at) as due:
                try:
                    await self._news.receive()
                except trio.EndOfChannel:
                    return None
            if due.cancelled_caught:
                self.look_again_at = math.inf
                self._look_again()

    def _look_again(self) -> None:
        newest = None if self._context.desired is None else self._context.desired(self.uid)
        if newest is None:
            self._registry.retry(self.uid)
            return
        now = trio.current_time()
        again = UpdatePod(update_type=SyncPodType.SYNC, pod=newest[0], mirror_pod=newest[1], start_time=now)
        self._registry.update_pod(again, now)

    # --- One work ----------------------------------------------------------------------------------------------------

    async def _perform(self, pod: PodSyncer, work: Work) -> None:
        """Do one work in a scope of its own. Every error of it becomes an outcome."""
        outcome: Outcome = phases.Cancelled()
        self.begun_at = trio.current_time()
        self._context.counts.begun(work, trio.current_time())
        self.look_again_at = math.inf  # This is a look; what asks for another one from now on counts.
        try:
            with trio.CancelScope() as scope:
                self.in_flight = pod, work, scope
                outcome = await self._outcome(pod, work)
        finally:
            self.in_flight = None
        now = trio.current_time()
        if not isinstance(outcome, phases.Completed):
            self._acted_at = now  # What it did before it failed is not known.
        self._context.counts.ended(work, outcome, now)
        retry = self._registry.done(self.uid, outcome, now)
        if retry is not None:
            delay = self._context.policy.delay(retry, now, self._context.rng.random())
            self.look_again_at = min(self.look_again_at, now + delay)

    def _attend(self, pod: PodSyncer, work: Work, scope: trio.CancelScope) -> None:
        """Call off the work in flight when it is out of date, and pass on that there is less time."""
        phase = self._registry.states.phase(self.uid)
        if phase is not None and is_in_the_way(phase):
            scope.cancel()
        elif isinstance(phase, phases.Terminating):
            try:
                pod.shorten_grace(phase.kill.deadline)
            except Exception as error:  # noqa: BLE001 - the work begins again, with the new deadline
                self._failed(work, error)
                scope.cancel()

    async def _outcome(self, pod: PodSyncer, work: Work) -> Outcome:
        try:
            report = await self._act(pod, work)
        except BaseExceptionGroup as group:
            errors, others = group.split(Exception)
            if others is not None:
                raise others from None
            assert errors is not None
            return self._failed(work, errors)
        except Exception as error:  # noqa: BLE001 - whatever a sync raises concerns its own pod only
            return self._failed(work, error)
        self.problem = ""
        if report.acted_at is not None:
            self._acted_at = report.acted_at
        return phases.Completed(terminal=report.terminal, why=report.why)

    async def _act(self, pod: PodSyncer, work: Work) -> PodSyncReport:
        if isinstance(work, phases.TerminateRuntimePod):
            await pod.sync_terminating_runtime_pod(work.update.running_pod, self._kill())
            return PodSyncReport(trio.current_time())
        update = work.update
        status = await self._status(update.pod)
        match work:
            case phases.SyncPod():
                return await pod.sync_pod(update.update_type, update.pod, update.mirror_pod, status)
            case phases.TerminatePod():
                return await pod.sync_terminating_pod(update.pod, status, self._kill)
            case phases.CleanUpPod():
                await pod.sync_terminated_pod(update.pod, status)
                return PodSyncReport(trio.current_time())
            case _:
                assert_never(work)

    def _failed(self, work: Work, error: Exception) -> Failed:
        self.problem = str(error)
        phase, failed = self._registry.states.phase(self.uid), failure(error)
        name = None if phase is None else phase.identity.full_name
        pod_log = log.bind(pod=name, uid=self.uid, work=type(work).__name__)
        if failed.retry_at is not None:
            pod_log.debug("the pod waits", reason=str(error))
        else:
            pod_log.error("work on the pod failed, will try again", error=str(error))
            pod_log.debug("the traceback", exc_info=error)
        return failed

    def _kill(self) -> Kill:
        """How the pod is to be ended, as asked for by now."""
        phase = self._registry.states.phase(self.uid)
        assert isinstance(phase, phases.TerminationRequested | phases.Terminating), f"a pod that is ended, not {phase}"
        return phase.kill

    async def _status(self, pod: Pod) -> PodRuntimeStatus:
        """What was observed of the pod after it was last acted on."""
        try:
            with trio.fail_after(STATUS_TIMEOUT), self._context.steps.step(self.uid, INSPECTION):
                return await self._context.cache.get_newer_than(pod.metadata.uid, self._acted_at)
        except Exception as error:
            if (recorder := self._context.recorder) is not None:
                recorder.pod_event(pod, EventType.WARNING, "FailedSync", f"error determining status: {error}")
            raise
