"""Pod workers: a task for every pod, which carries out what the pure machine decides.

The story of a request: `update_pod` hands it to the machine (`worker_registry`), which answers with commands; they are
carried out before the call returns, since none waits. The first request of a pod starts its task in the workers'
nursery. A task sleeps on a channel of capacity 1 ("there is something to take") with a deadline ("look again"). When
it wakes it asks the machine for work, waits for a status of the pod that is newer than its last action, and runs the
syncer in a cancel scope of its own. So the machine can call off exactly that: when the pod is asked to end, or asked to
end sooner. How the work ended goes back into the machine, and the task sleeps again or stops.

The machine is only touched between two awaits, so no lock is needed. An exception of the syncer is an outcome like any
other and ends in a retry; it never leaves the pod's task.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, assert_never

import attrs
import trio

from trikubelet.events import EventRecorder, EventType
from trikubelet.logs import get_logger
from trikubelet.pods import worker_messages as messages
from trikubelet.pods.classify import is_terminal
from trikubelet.pods.retry import RetryPolicy, failure
from trikubelet.pods.types import (
    STATUS_TIMEOUT,
    KillPodOptions,
    PodStatusFn,
    PodSyncReport,
    SyncPodType,
    UpdatePodOptions,
)
from trikubelet.pods.worker_phases import Finished, Phase, WaitingToStart
from trikubelet.pods.worker_registry import PodWorkerRegistry, WorkerSummary
from trikubelet.pods.worker_statistics import PodWorkersStatistics, WorkerCounts

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.pods.types import PodCache, PodSyncer
    from trikubelet.pods.worker_queries import PodStates
    from trikubelet.runtime.model import PodRuntimeStatus

log = get_logger("pod-workers")

KILL_TIMEOUT_FACTOR: Final = 1.5
MINIMUM_KILL_TIMEOUT: Final = 10.0
"""Seconds: what a runtime may take for a kill without any grace."""

DesiredPod = Callable[[str], "tuple[Pod, Pod | None] | None"]
"""UID to the pod and its mirror pod as they are wanted now; None for a pod that nobody wants any more."""


class KillTimeoutError(Exception):
    """A pod did not end within the time that a killer waits for it. It is still being ended."""

    def __init__(self, full_name: str, uid: str, seconds: float) -> None:
        super().__init__(f"pod {full_name} ({uid}) was killed {seconds:g} s ago and its containers have not ended yet")
        self.full_name = full_name
        self.uid = uid
        self.seconds = seconds


@attrs.define(eq=False)
class _Worker:
    """What belongs to one task."""

    wake: trio.MemorySendChannel[None]
    woken: trio.MemoryReceiveChannel[None]
    look_again_at: float = math.inf
    acted_at: float = -math.inf
    """When the pod was last acted on: what was observed earlier says nothing about it."""
    in_flight: trio.CancelScope | None = None


class PodWorkers:
    """Drives every pod from its first update to its end (kubelet: `podWorkers`).

    `syncer` does the work, `cache` tells what the runtime was seen to hold. `desired` gives the newest version of a pod
    when it is looked at again; without it the last one is used again. `on_finished` is called with the UID when a pod's
    worker stops: the moment for housekeeping, which forgets it and starts what was asked for anew. `rng` is for jitter.
    `registry` is the machine to drive, empty, for whoever wants to look on.

    What is known of each pod may be asked of `states`.
    """

    def __init__(
        self,
        syncer: PodSyncer,
        cache: PodCache,
        *,
        recorder: EventRecorder | None = None,
        resync_interval: float = 60.0,
        backoff: float = 10.0,
        network_backoff: float = 1.0,
        rng: random.Random | None = None,
        desired: DesiredPod | None = None,
        on_finished: Callable[[str], None] | None = None,
        registry: PodWorkerRegistry | None = None,
    ) -> None:
        self._registry = registry or PodWorkerRegistry()
        self._syncer = syncer
        self._cache = cache
        self._recorder = recorder
        self._policy = RetryPolicy(resync_interval=resync_interval, backoff=backoff, network_backoff=network_backoff)
        self._rng = rng or random.Random()
        self._desired = desired
        self._on_finished = on_finished
        self._nursery: trio.Nursery | None = None
        self._workers: dict[str, _Worker] = {}
        self._draining = False
        self._worker_stopped = trio.Event()
        self.counts = WorkerCounts()
        """For metrics."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the workers' tasks, those of pods known already included. Runs until cancelled.

        Cancelling it cancels the work in flight of every pod and ends every pod's task; no pod is killed by that.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for uid, worker in self._workers.items():
                    nursery.start_soon(self._work, uid, worker, name=f"pod worker {uid}")
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # --- Requests ----------------------------------------------------------------------------------------------------

    def update_pod(self, options: UpdatePodOptions) -> None:
        """Tell a pod's worker of a change (kubelet: `UpdatePod`). Never waits.

        Whoever must know when the pod's containers have ended puts `on_completed` into the kill options: it is called
        once, possibly before this returns. While the workers drain, pods not known yet are refused.
        """
        known = options.pod is None or self._registry.phase(options.pod.metadata.uid) is not None
        if self._draining and not known:
            if options.kill_options is not None and options.kill_options.on_completed is not None:
                _call(options.kill_options.on_completed)
            return
        status = self._observed(options.pod) if options.pod is not None and not known else None
        self._carry_out(self._registry.update_pod(options, trio.current_time(), status))

    def sync_known_pods(self, desired: Iterable[Pod]) -> dict[str, WorkerSummary]:
        """Compare the workers with all desired pods (kubelet: `SyncKnownPods`). Never waits.

        Finished pods that nobody wants are forgotten, pods that nobody wants any more are ended. Returns the workers
        that remain; desired pods that are not among them shall be sent again as CREATE.
        """
        uids = {pod.metadata.uid for pod in desired}
        workers, commands = self._registry.sync_known_pods(uids, trio.current_time())
        self._carry_out(commands)
        return workers

    def summaries(self, desired: Iterable[Pod]) -> dict[str, WorkerSummary]:
        """The workers as they are now, finished ones included, beside all desired pods. Changes nothing."""
        return self._registry.summaries({pod.metadata.uid for pod in desired})

    async def kill_pod(
        self,
        pod: Pod,
        *,
        evict: bool = False,
        grace_period_override: int | None = None,
        pod_status_fn: PodStatusFn | None = None,
    ) -> None:
        """Kill a pod and wait until its containers have ended (kubelet: `killPodNow`).

        Waits one and a half times the grace period, ten seconds at least, then raises KillTimeoutError and records
        ExceededGracePeriod. Cancelling it stops the waiting, not the kill.
        """
        grace = grace_period_override
        if grace is None:
            grace = pod.spec.termination_grace_period_seconds or 0
        seconds = max(MINIMUM_KILL_TIMEOUT, KILL_TIMEOUT_FACTOR * grace)
        ended = trio.Event()
        options = KillPodOptions(
            on_completed=ended.set,
            evict=evict,
            pod_status_fn=pod_status_fn,
            grace_period_override=grace_period_override,
        )
        self.update_pod(_request(SyncPodType.KILL, pod, None, options))
        with trio.move_on_after(seconds):
            await ended.wait()
            return
        message = "Container runtime did not kill the pod within specified grace period."
        self._record(pod, EventType.WARNING, "ExceededGracePeriod", message)
        raise KillTimeoutError(pod.full_name, pod.metadata.uid, seconds)

    async def drain(self, timeout: float, *, grace_period_override: int | None = None) -> frozenset[str]:
        """End every pod and wait until each has released all it held, `timeout` seconds at most.

        From now on no pod starts any more. Returns the UIDs of the pods that have not ended in time. Cancelling it
        stops the waiting, not the ending.
        """
        self._draining = True
        for state in list(self._registry.phases().values()):
            update = _newest(state)
            if update is not None:
                options = KillPodOptions(grace_period_override=grace_period_override)
                self.update_pod(_request(SyncPodType.KILL, update.pod, update.mirror_pod, options))
        with trio.move_on_after(timeout):
            while self._workers:
                await self._worker_stopped.wait()
        return frozenset(self._workers)

    @property
    def states(self) -> PodStates:
        """What is known of each pod, for everybody to ask."""
        return self._registry

    def statistics(self) -> PodWorkersStatistics:
        """Counts for debugging and metrics. Cheap enough for every scrape."""
        in_flight = sum(worker.in_flight is not None for worker in self._workers.values())
        return self.counts.statistics(self._registry.count_by_phase(), tasks=len(self._workers), in_flight=in_flight)

    # --- The machine's commands --------------------------------------------------------------------------------------

    def _carry_out(self, commands: Iterable[messages.Command]) -> None:
        callbacks: list[Callable[[], object]] = []  # Called last: by then everything is as the machine says.
        for command in commands:
            match command:
                case messages.StartWorker(uid):
                    self._start(uid)
                case messages.StopWorker(uid):
                    self._stop(uid)
                    if self._on_finished is not None:
                        callbacks.append(functools.partial(self._on_finished, uid))
                case messages.Wake(uid):
                    # Woken already, or the tasks have ended and this only keeps the books.
                    with contextlib.suppress(trio.WouldBlock, trio.BrokenResourceError):
                        self._workers[uid].wake.send_nowait(None)
                case messages.CancelWork(uid):
                    scope = self._workers[uid].in_flight
                    if scope is not None:
                        scope.cancel()
                case messages.Retry(uid):
                    now = trio.current_time()
                    delay = self._policy.delay(command, now, self._rng.random())
                    self._workers[uid].look_again_at = now + delay
                case messages.Notify(_, waiting):
                    callbacks += waiting
                case messages.Run():
                    pass  # The worker that asked for it does it.
                case _:
                    assert_never(command)
        for callback in callbacks:
            _call(callback)

    def _start(self, uid: str) -> None:
        wake, woken = trio.open_memory_channel[None](1)
        worker = self._workers[uid] = _Worker(wake, woken)
        if self._nursery is not None:
            self._nursery.start_soon(self._work, uid, worker, name=f"pod worker {uid}")

    def _stop(self, uid: str) -> None:
        self._workers.pop(uid).wake.close()
        self._worker_stopped.set()
        self._worker_stopped = trio.Event()

    # --- One pod's task ----------------------------------------------------------------------------------------------

    async def _work(self, uid: str, worker: _Worker) -> None:
        with worker.woken:
            while await self._woken(uid, worker):
                commands = self._registry.begin(uid, trio.current_time())
                self._carry_out(commands)
                for command in commands:
                    if isinstance(command, messages.Run):
                        outcome = await self._perform(uid, worker, command.work)
                        self._carry_out(self._registry.done(uid, outcome, trio.current_time()))

    async def _woken(self, uid: str, worker: _Worker) -> bool:
        """Wait for something to take, and look again when it is time. False when the worker shall stop."""
        while True:
            with trio.move_on_at(worker.look_again_at) as deadline:
                try:
                    await worker.woken.receive()
                except trio.EndOfChannel:
                    return False
            if self._workers.get(uid) is not worker:
                return False  # The pod was forgotten, and perhaps another one with its UID has a worker of its own.
            if not deadline.cancelled_caught:
                return True
            worker.look_again_at = math.inf
            self._look_again(uid)

    def _look_again(self, uid: str) -> None:
        newest = None if self._desired is None else self._desired(uid)
        if newest is None:
            self._carry_out(self._registry.retry(uid))
        else:
            self.update_pod(_request(SyncPodType.SYNC, *newest))

    async def _perform(self, uid: str, worker: _Worker, work: messages.Work) -> messages.Outcome:
        """Do one work in a scope that `CancelWork` can cancel. Every error becomes an outcome."""
        kind = type(work).__name__
        self.counts.begun(work, trio.current_time())
        scope = worker.in_flight = trio.CancelScope()
        outcome: messages.Outcome = messages.Cancelled()
        try:
            with scope:
                report = await self._run(uid, worker.acted_at, work)
                outcome = messages.Completed(terminal=report.terminal)
        except BaseExceptionGroup as group:
            errors, others = group.split(Exception)
            if errors is not None:
                outcome = self._failed(uid, kind, errors)
            if others is not None:
                raise others from None
        except Exception as error:  # noqa: BLE001 - whatever a sync raises concerns its own pod only
            outcome = self._failed(uid, kind, error)
        finally:
            worker.in_flight = None
        if not isinstance(outcome, messages.Completed):
            worker.acted_at = trio.current_time()  # What it did before it failed is not known.
        elif report.acted_at is not None:
            worker.acted_at = report.acted_at
        self.counts.ended(work, outcome, trio.current_time())
        return outcome

    async def _run(self, uid: str, acted_at: float, work: messages.Work) -> PodSyncReport:
        """Call the syncer."""
        if isinstance(work, messages.TerminateRuntimePod):
            await self._syncer.sync_terminating_runtime_pod(work.update.running_pod)
            return PodSyncReport(trio.current_time())
        pod = work.update.pod
        status = await self._status_newer_than(acted_at, pod)
        match work:
            case messages.SyncPod(update):
                return await self._syncer.sync_pod(update.update_type, pod, update.mirror_pod, status)
            case messages.TerminatePod():
                status_fn = self._registry.status_fn(uid)
                return await self._syncer.sync_terminating_pod(pod, status, work.grace_period, status_fn)
            case messages.CleanUpPod():
                await self._syncer.sync_terminated_pod(pod, status)
                return PodSyncReport(trio.current_time())
            case _:
                assert_never(work)

    async def _status_newer_than(self, acted_at: float, pod: Pod) -> PodRuntimeStatus:
        try:
            with trio.fail_after(STATUS_TIMEOUT):
                return await self._cache.get_newer_than(pod.metadata.uid, acted_at)
        except Exception as error:
            self._record(pod, EventType.WARNING, "FailedSync", f"error determining status: {error}")
            raise

    # --- Pieces ------------------------------------------------------------------------------------------------------

    def _observed(self, pod: Pod) -> PodRuntimeStatus | None:
        """What the cache holds of a pod that may have ended before the agent started. None when that is not known."""
        if not is_terminal(pod):
            return None
        try:
            return self._cache.get(pod.metadata.uid)
        except Exception as error:  # noqa: BLE001 - the cache raises what the inspection raised
            log.debug("no status of a terminal pod", pod=pod.full_name, uid=pod.metadata.uid, error=str(error))
            return None

    def _failed(self, uid: str, kind: str, error: Exception) -> messages.Failed:
        state = self._registry.phase(uid)
        pod_log = log.bind(pod=None if state is None else state.identity.full_name, uid=uid)
        failed = failure(error)
        if failed.retry_at is not None:
            pod_log.debug("the pod waits", work=kind, reason=str(error))
            return failed
        pod_log.error("work on the pod failed, will try again", work=kind, error=str(error))
        pod_log.debug("the traceback", exc_info=error)
        return failed

    def _record(self, pod: Pod, type_: EventType, reason: str, message: str) -> None:
        if self._recorder is not None:
            self._recorder.pod_event(pod, type_, reason, message)


def _request(
    update_type: SyncPodType, pod: Pod, mirror_pod: Pod | None, kill_options: KillPodOptions | None = None
) -> UpdatePodOptions:
    return UpdatePodOptions(
        update_type=update_type,
        start_time=trio.current_time(),
        pod=pod,
        mirror_pod=mirror_pod,
        kill_options=kill_options,
    )


def _newest(state: Phase) -> messages.ConfigUpdate | None:
    """The newest config of a pod whose worker still runs."""
    if isinstance(state, Finished):
        return None
    active = None if isinstance(state, WaitingToStart) else state.active
    return next((each for each in (state.pending, active) if isinstance(each, messages.ConfigUpdate)), None)


def _call(callback: Callable[[], object]) -> None:
    """Tell somebody else, whose failure is not the worker's."""
    try:
        callback()
    except Exception as error:
        log.error("somebody who was told of a pod's end raised", error=repr(error), exc_info=error)
