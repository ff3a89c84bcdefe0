"""Pod workers: the lives of all pods, and what others may ask of them.

The story of a request: `update_pod` files it in the pure machine (`registry`), which merges it with what is known
of the pod, and notifies the pod's life. The first request of a pod begins its life (`life`), in the workers' nursery;
when that is over the phase stays behind as history. `until_ended` waits for the end of a pod's containers.

The machine is only touched between two awaits, so no lock is needed. Errors of a sync are outcomes like any other and
end in a retry. An exception in a life, or an illegal transition, is a fault of that pod alone: it is logged and
recorded as an event, and the life begins again, after a while, from what is observed then.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import trio

from trikubelet.api.pod_kinds import is_terminal
from trikubelet.broadcast import Broadcast
from trikubelet.pods.context import KILL_TIMEOUT_FACTOR, MINIMUM_KILL_TIMEOUT, LifeContext
from trikubelet.pods.life import PodLife
from trikubelet.pods.phases import AGENT_ENDS, ConfigUpdate, Finished, Phase, Terminated, WaitingToStart
from trikubelet.pods.registry import PodWorkerRegistry, WorkerSummary
from trikubelet.pods.retry import RetryPolicy
from trikubelet.pods.types import DesiredPod, KillPod, KillRuntimePod, OpenPod, PodStatusFn, Request
from trikubelet.supervision import FAULTS, begin_again, supervise
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.pods.registry import PodStates
    from trikubelet.pods.statistics import PodWorkersStatistics, WorkerCounts
    from trikubelet.pods.types import PodCache

log = get_logger("pod-workers")


class KillTimeoutError(Exception):
    """A pod did not end within the time that a killer waits for it. It is still being ended."""

    def __init__(self, full_name: str, uid: str, seconds: float) -> None:
        super().__init__(f"pod {full_name} ({uid}) was killed {seconds:g} s ago and its containers have not ended yet")
        self.full_name = full_name
        self.uid = uid
        self.seconds = seconds


class PodWorkers:
    """The life of every pod from its first request to its end (kubelet: `podWorkers`).

    `open_pod` makes what acts on a pod, `cache` has what was observed of the runtime. `desired` gives the newest
    version of a pod when it is looked at again; without it the last one is used again. `rng` is for jitter. `registry`
    is the machine to drive, empty; tests and the simulation watch it. `steps` and `why`: as of a `LifeContext`.

    What is known of each pod may be asked of `states`.
    """

    def __init__(
        self,
        open_pod: OpenPod,
        cache: PodCache,
        *,
        recorder: EventRecorder | None = None,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        rng: random.Random | None = None,
        desired: DesiredPod | None = None,
        registry: PodWorkerRegistry | None = None,
        steps: Steps | None = None,
        why: Callable[[str], str] | None = None,
    ) -> None:
        self._registry = registry or PodWorkerRegistry()
        self._context = LifeContext(
            registry=self._registry,
            open_pod=open_pod,
            cache=cache,
            policy=policy,
            rng=rng or random.Random(),
            desired=desired,
            recorder=recorder,
            steps=steps or Steps(),
            why=why or _not_known,
        )
        self._cache = cache
        self._recorder = recorder
        self._lives: dict[str, PodLife] = {}
        self._send_begun, self._begun = trio.open_memory_channel[PodLife](math.inf)
        self.draining_since: float | None = None
        """When all pods were asked to end; None: they were not."""
        self.finished: Broadcast[str] = Broadcast()
        """UIDs of pods whose lives are over: the moment for housekeeping, which forgets them and starts what was asked
        for anew."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the pods' lives, those of pods known already included. Runs until cancelled.

        Cancelling it cancels the work in flight of every pod and all that runs for it; no pod is killed by that.
        """
        async with trio.open_nursery() as nursery:
            task_status.started()
            await supervise(self._begin_lives, nursery)

    async def _begin_lives(self, nursery: trio.Nursery) -> None:
        async for life in self._begun:
            phase = self._registry.states.phase(life.uid)
            name = life.uid if phase is None else f"{phase.identity.full_name} {life.uid}"
            nursery.start_soon(self._live, life, name=f"pod {name}")
            del life

    # --- Requests ----------------------------------------------------------------------------------------------------

    def update_pod(self, request: Request) -> None:
        """Ask something of a pod's life (kubelet: `UpdatePod`). Never waits, and raises nothing.

        While the workers drain, pods not known yet are refused.
        """
        pod = None if isinstance(request, KillRuntimePod) else request.pod
        uid = request.running_pod.uid if isinstance(request, KillRuntimePod) else request.pod.metadata.uid
        unknown = self.states.phase(uid) is None
        if self.draining_since is not None and unknown and pod is not None:
            return
        try:
            status = self._observed(pod) if unknown and pod is not None else None
            self._registry.update_pod(request, trio.current_time(), status)
        except Exception as error:  # noqa: BLE001 - recorded; the pod stays as it was
            self._fault(uid, error)
            if uid in self._lives:
                self._lives[uid].look_again(FAULTS.first)
        self._notify(uid)

    def sync_known_pods(self, desired: Iterable[Pod]) -> dict[str, WorkerSummary]:
        """Compare the lives with all desired pods (kubelet: `SyncKnownPods`). Never waits.

        Of pods that are not desired, finished ones are forgotten and the others are ended. Returns the workers
        that remain; desired pods that are not among them shall be sent again as CREATE.
        """
        uids = {pod.metadata.uid for pod in desired}
        known = self._registry.sync_known_pods(uids, trio.current_time())
        for fault in known.faults:
            self._fault(fault.uid, fault)
        for uid in known.changed:
            self._notify(uid)
        return known.workers

    def summaries(self, desired: Iterable[Pod]) -> dict[str, WorkerSummary]:
        """The workers as they are now, finished ones included, beside all desired pods. Changes nothing."""
        return self._registry.summaries({pod.metadata.uid for pod in desired})

    async def kill_pod(
        self,
        pod: Pod,
        *,
        asked_by: str = "",
        evict: bool = False,
        grace_period_override: int | None = None,
        pod_status_fn: PodStatusFn | None = None,
    ) -> None:
        """Kill a pod and wait until its containers have ended (kubelet: `killPodNow`). `asked_by`: as of a `KillPod`.

        Waits one and a half times the grace period, ten seconds at least, then raises KillTimeoutError and records
        ExceededGracePeriod. Cancelling it stops the waiting, not the kill.
        """
        grace = grace_period_override
        if grace is None:
            grace = pod.spec.termination_grace_period_seconds or 0
        seconds = max(MINIMUM_KILL_TIMEOUT, KILL_TIMEOUT_FACTOR * grace)
        self.update_pod(
            KillPod(
                pod=pod,
                start_time=trio.current_time(),
                asked_by=asked_by,
                evict=evict,
                pod_status_fn=pod_status_fn,
                grace_period_override=grace_period_override,
            )
        )
        with trio.move_on_after(seconds):
            await self.until_ended(pod.metadata.uid)
            return
        message = "Container runtime did not kill the pod within specified grace period."
        self._record(pod, EventType.WARNING, "ExceededGracePeriod", message)
        raise KillTimeoutError(pod.full_name, pod.metadata.uid, seconds)

    def life(self, uid: str) -> PodLife | None:
        """The life of a pod, for looking at it; None when it is over or has not begun."""
        return self._lives.get(uid)

    async def until_ended(self, uid: str) -> None:
        """Return when no container of the pod runs, or ever will again; at once when nothing is known of it."""
        life = self._lives.get(uid)
        if life is not None:
            await life.containers_ended.wait()

    async def drain(self, timeout: float, *, grace_period_override: int | None = None) -> frozenset[str]:
        """End every pod and wait until each has released all it held, `timeout` seconds at most.

        From now on no pod starts any more. Returns the UIDs of the pods that have not ended in time. Cancelling it
        stops the waiting, not the ending.
        """
        self.draining_since = trio.current_time()
        for state in list(self._registry.phases.values()):
            update = _newest(state)
            if update is not None:
                self.update_pod(
                    KillPod(
                        pod=update.pod,
                        mirror_pod=update.mirror_pod,
                        start_time=trio.current_time(),
                        asked_by=AGENT_ENDS,
                        grace_period_override=grace_period_override,
                    )
                )
        with trio.move_on_after(timeout):
            while self._lives:
                await self.finished.wait()
        return frozenset(self._lives)

    @property
    def states(self) -> PodStates:
        """What is known of each pod."""
        return self._registry.states

    @property
    def counts(self) -> WorkerCounts:
        """For metrics."""
        return self._context.counts

    def statistics(self) -> PodWorkersStatistics:
        """Counts for debugging and metrics. Cheap enough for every scrape."""
        in_flight = sum(life.in_flight is not None for life in self._lives.values())
        by_phase = self.states.count_by_phase()
        return self.counts.statistics(by_phase, tasks=len(self._lives), in_flight=in_flight)

    # --- Lives -------------------------------------------------------------------------------------------------------

    def _notify(self, uid: str) -> None:
        """The registry has news of a pod: begin its life, notify it, or let it go."""
        phase, life = self._registry.states.phase(uid), self._lives.get(uid)
        if life is not None and (phase is None or _is_of_another(life, phase)):
            del self._lives[uid]
            life.forget()
            life = None
        if life is not None:
            life.notify()
        elif not isinstance(phase, Finished | None):
            life = self._lives[uid] = PodLife(uid, self._context)
            self._send_begun.send_nowait(life)
        if phase is not None and phase.identity.static:
            self._wake_next_static(phase.identity.full_name)

    def _wake_next_static(self, full_name: str) -> None:
        uid = self.states.startable_static_pod(full_name)
        if uid is not None and uid in self._lives:
            self._lives[uid].notify()

    async def _live(self, life: PodLife) -> None:
        """A pod's task: its life, begun again after a fault."""
        phase = self._registry.states.phase(life.uid)

        def begins_again(fault: Exception) -> bool:
            self._fault(life.uid, fault)
            if self._lives.get(life.uid) is not life:
                return False  # forgotten
            self._registry.begin_again(life.uid)
            return True

        await begin_again(life.live, begins_again)
        if self._lives.get(life.uid) is life:
            del self._lives[life.uid]
        life.containers_ended.set()
        self.finished.send(life.uid)
        if phase is not None and phase.identity.static:
            self._wake_next_static(phase.identity.full_name)

    def _fault(self, uid: str, error: BaseException | None) -> None:
        """Tell of an error in a pod's life or in the machine, which is a fault of the agent."""
        phase = self._registry.states.phase(uid)
        update = None if phase is None else _newest(phase)
        if update is not None:
            record_fault(self._recorder, update.pod, error)
        else:
            log.error("a fault of the agent in work on a pod", uid=uid, error=repr(error), exc_info=error)

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

    def _record(self, pod: Pod, type_: EventType, reason: str, message: str) -> None:
        if self._recorder is not None:
            self._recorder.pod_event(pod, type_, reason, message)


def _not_known(_uid: str) -> str:
    return "not known"


def record_fault(recorder: EventRecorder | None, pod: Pod, error: BaseException | None) -> None:
    """Tell of a fault of the agent in work on a pod, which is then begun again: in the log and by an event."""
    log.error(
        "a fault of the agent in work on a pod",
        pod=pod.full_name,
        uid=pod.metadata.uid,
        error=repr(error),
        exc_info=error,
    )
    if recorder is not None:
        text = f"The agent failed in the middle of work on the pod, and begins it again: {error!r}"
        recorder.pod_event(pod, EventType.WARNING, "FailedSync", text)


def _is_of_another(life: PodLife, phase: Phase) -> bool:
    """Whether the phase is that of a pod that came anew with the UID of one whose life is about to be over."""
    return life.containers_ended.is_set() and not isinstance(phase, Terminated | Finished)


def _newest(state: Phase) -> ConfigUpdate | None:
    """The newest config of a pod whose worker still runs."""
    if isinstance(state, Finished):
        return None
    active = None if isinstance(state, WaitingToStart) else state.active
    return next((each for each in (state.pending, active) if isinstance(each, ConfigUpdate)), None)
