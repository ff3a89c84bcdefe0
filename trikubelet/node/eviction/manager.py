"""Measures, decides and ends pods, for as long as the agent runs (kubelet: `managerImpl.Start`).

The rhythm: every ten seconds, at once when a threshold is crossed though not twice in a second, and at once when
the pods of the last round have released what they held, unless it is the disk that is scarce. A round only looks at the
node, and at pods with limits; what all pods use is measured when one of them has to go. While nothing can be measured
the node's conditions stay as they are, and no pod is ended.

The manager owns the node's pressure. Admission asks for `conditions`, the node's status for `pressure`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import Pod
from trikubelet.broadcast import Broadcast
from trikubelet.config.eviction_thresholds import unused
from trikubelet.config.eviction_values import DISK_PRESSURE, MEMORY_PRESSURE, PID_PRESSURE, EvictionConfig, Layout
from trikubelet.formats.values import frozen
from trikubelet.node.conditions import Pressure
from trikubelet.node.eviction.choice import HARD_GRACE, choose
from trikubelet.node.eviction.local_limits import is_limited
from trikubelet.node.eviction.messages import REASON, THRESHOLD_MET, disrupted_status, evicted_status
from trikubelet.node.eviction.model import LocalEviction, Measurement, UsageError, UsageSource
from trikubelet.node.eviction.rounds import Reclaim, Round, RoundState, after_reclaim, begin_round, reclaims
from trikubelet.pods.preempting import PodKiller
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Counts, Histograms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trio_typing import TaskStatus

    from trikubelet.clock import WallClock
    from trikubelet.config.eviction_values import Threshold
    from trikubelet.node.eviction.threshold_notifier import ThresholdNotifier
    from trikubelet.pods.types import PodStatusFn
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("eviction")

PERIOD: Final = 10.0
"""Seconds between the beginnings of rounds (kubelet: `evictionMonitoringPeriod`)."""
LEAST_PAUSE: Final = 1.0
"""Seconds between a round and one that a threshold, or a slow measurement, brings."""
MEASURE_TIMEOUT: Final = 30.0
"""Seconds for a measurement. Its sources have less each; this is for those that do not keep to it."""
RECLAIM_TIMEOUT: Final = 60.0
"""Seconds for removing containers and images. What is removed later counts in the next round."""
CLEANUP_TIMEOUT: Final = 30.0
"""Seconds that an evicted pod has to release what it held before the node is measured again."""
AGE_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@frozen(kw_only=True)
class EvictionContext:
    """What eviction asks of the agent's other parts."""

    source: UsageSource
    killer: PodKiller
    delete_dead_containers: Callable[[], Awaitable[None]]
    """Removes all ended containers of pods that have ended, even if their objects are still there. What it raises is
    logged, as with the next."""
    delete_unused_images: Callable[[], Awaitable[object]]
    """Removes all images that no container uses."""
    active_pods: Callable[[], Sequence[Pod]]
    """Those that have not ended, as they were allowed resources."""
    is_finished: Callable[[str], bool]
    """Whether the pod with a UID has released all that it held."""
    finished: Broadcast[str]
    """Tells of each at that moment."""
    changed: Broadcast[None] = attrs.field(factory=Broadcast)
    """Is told when the conditions are others."""


class EvictionManager:
    """Keeps the node from running out of memory, disk and processes. `run` is to be started when it is known which
    pods there are: one that is not known cannot be ended, and others would be in its place."""

    def __init__(
        self,
        config: EvictionConfig,
        context: EvictionContext,
        recorder: EventRecorder,
        *,
        clock: WallClock,
        notifier: ThresholdNotifier | None = None,
    ) -> None:
        self._config = config
        self._context = context
        self._recorder = recorder
        self._clock = clock
        self._notifier = notifier
        self._state = RoundState()
        self._conditions: tuple[str, ...] = ()
        self.changed = context.changed
        self._round_wanted: Broadcast[None] = Broadcast()
        self._rounds_wanted = self._round_wanted.subscribe()
        self._ahead = False
        """Something has brought this round forward. The log shows by it whether the notifier works."""
        self._blind = False
        """The last measurement failed."""
        self._layout: Layout | None = None
        self.evictions: Counts = Counter()
        """Pods that were ended, by the signal or the limit (`kubelet_evictions`)."""
        self.stats_age = Histograms(AGE_BOUNDS)
        """How old the observation was that led to an eviction, by signal (`kubelet_eviction_stats_age_seconds`)."""

    def conditions(self) -> tuple[str, ...]:
        """Types of the node's conditions that are true, as `DiskPressure`."""
        return self._conditions

    def pressure(self) -> Pressure:
        """The same for the node's status."""
        return Pressure(
            memory=MEMORY_PRESSURE in self._conditions,
            disk=DISK_PRESSURE in self._conditions,
            pids=PID_PRESSURE in self._conditions,
        )

    def measure_soon(self) -> None:
        """There is reason not to wait for the period."""
        self._round_wanted.send(None)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Rounds until cancelled. At once over when there is nothing to watch for."""
        task_status.started()
        if not self._config.watches:
            return
        async with trio.open_nursery() as nursery:
            if self._notifier is not None:
                nursery.start_soon(self._notifier.run, self._round_wanted, self._memory_is_scarce)
            await supervise(self._rounds)

    async def _rounds(self) -> None:
        while True:
            began = trio.current_time()
            self._rounds_wanted.drop(None)
            ended = await self.round()
            self._ahead = False
            if ended:
                await self._wait_for_cleanup(ended)
            if not ended or DISK_PRESSURE in self._conditions:
                # Layers and logs of pods that have ended are removed a little later than all else.
                await self._wait_for_next(began)

    async def round(self) -> tuple[Pod, ...]:
        """Measure, and do what is to be done now; returns the pods that were ended."""
        pods = tuple(self._context.active_pods())
        measured = await self._inspect(pods)
        if measured is None:
            return ()
        self._record_layout(measured.layout)
        found = begin_round(self._config, self._state, measured, pods, trio.current_time())
        self._state = found.state
        self._report(found.conditions)
        if self._notifier is not None:
            await self._notifier.follow(measured.observations)
        if found.local:
            await self._end_for_their_limits(found.local)
            return tuple(eviction.pod for eviction in found.local)
        if found.target is None:
            return ()
        return await self._relieve(found, found.target, measured, pods)

    # What a round does

    async def _inspect(self, pods: Iterable[Pod] = ()) -> Measurement | None:
        """At the node, and at what the pods are limited in."""
        limited = [pod for pod in pods if is_limited(pod)] if self._config.local_limits else []
        return await self._ask(lambda: self._context.source.measure_node(limited))

    async def _ask(self, question: Callable[[], Awaitable[Measurement]]) -> Measurement | None:
        """None: there was no answer."""
        problem = f"no answer within {MEASURE_TIMEOUT:g} s"
        with trio.move_on_after(MEASURE_TIMEOUT):
            try:
                measured = await question()
            except UsageError as error:
                problem = str(error)
            else:
                if self._config.split_disks or measured.layout is not Layout.SPLIT:
                    self._blind = False
                    return measured
                problem = "KubeletSeparateDiskGC is turned off but we still have a split filesystem"
        if not self._blind:
            self._blind = True
            log.error("the node cannot be measured, so no pod is evicted", problem=problem)
        return None

    async def _relieve(
        self, found: Round, target: Threshold, measured: Measurement, pods: Sequence[Pod]
    ) -> tuple[Pod, ...]:
        """Act on the most urgent threshold; ends one pod at most."""
        resource = target.signal.resource
        log.warning(
            "the node is low on a resource", resource=resource, signal=target.signal.value, ahead_of_period=self._ahead
        )
        self._recorder.node_event(EventType.WARNING, THRESHOLD_MET, f"Attempting to reclaim {resource}")
        if await self._reclaim(reclaims(target.signal, measured.layout)):
            log.info("no pod needs to be evicted", resource=resource)
            return ()
        if not measured.complete:
            more = await self._ask(lambda: self._context.source.measure(pods))
            if more is None:
                return ()
            measured = attrs.evolve(measured, pods=more.pods)
        self._record_ages(found.thresholds)
        # Some may have ended meanwhile. Those that came meanwhile were not measured, and would be first.
        active = {pod.metadata.uid for pod in self._context.active_pods()}
        candidates = [pod for pod in pods if pod.metadata.uid in active]
        eviction = choose(self._config, found, measured, candidates)
        if eviction is None:
            log.error("the node is low on a resource and there is no pod to evict", resource=resource)
            return ()
        pod, message = eviction.pod, eviction.message
        status = partial(disrupted_status, message=message, generation=pod.metadata.generation)
        self.evictions[(target.signal.value,)] += 1
        await self._end(pod, message, status, grace=eviction.grace, annotations=eviction.annotations)
        return (pod,)

    async def _reclaim(self, steps: Sequence[Reclaim]) -> bool:
        """Free what is unused; whether that was enough."""
        if not steps:
            return False
        with trio.move_on_after(RECLAIM_TIMEOUT):
            for step in steps:
                await self._free(step)
        measured = await self._inspect()
        return measured is not None and after_reclaim(self._config, measured)

    async def _free(self, step: Reclaim) -> None:
        try:
            if step is Reclaim.DEAD_CONTAINERS:
                await self._context.delete_dead_containers()
            else:
                await self._context.delete_unused_images()
        except Exception as error:  # noqa: BLE001 - then pods have to make room
            log.warning("disk space could not be reclaimed", what=step.value, problem=str(error))

    async def _end_for_their_limits(self, evictions: Iterable[LocalEviction]) -> None:
        """All at the same time: none of them makes room for another."""
        async with trio.open_nursery() as nursery:
            for eviction in evictions:
                status = partial(evicted_status, message=eviction.message)
                end = partial(self._end, eviction.pod, eviction.message, status, grace=HARD_GRACE)
                nursery.start_soon(contain, end)
                self.evictions[(eviction.limit,)] += 1

    async def _end(
        self, pod: Pod, message: str, status: PodStatusFn, *, grace: int, annotations: Mapping[str, str] | None = None
    ) -> None:
        """One that does not end in time is still being ended, so it counts."""
        log.warning("pod is evicted", pod=pod.full_name, uid=pod.metadata.uid, why=message)
        self._recorder.pod_event(pod, EventType.WARNING, REASON, message, annotations=annotations)
        try:
            await self._context.killer.kill_pod(
                pod, asked_by=f"evicted: {message}", evict=True, grace_period_override=grace, pod_status_fn=status
            )
        except KillTimeoutError as error:
            log.error("an evicted pod did not end in time", pod=pod.full_name, problem=str(error))

    # The rhythm

    def _memory_is_scarce(self) -> bool:
        return MEMORY_PRESSURE in self._conditions

    async def _wait_for_next(self, began: float) -> None:
        with trio.move_on_at(max(began + PERIOD, trio.current_time() + LEAST_PAUSE)):
            await self._rounds_wanted.receive()
            self._ahead = True
            await trio.sleep_until(began + LEAST_PAUSE)

    async def _wait_for_cleanup(self, pods: Iterable[Pod]) -> None:
        waiting = [pod.metadata.uid for pod in pods]
        with trio.move_on_after(CLEANUP_TIMEOUT) as cleaning:
            while not all(map(self._context.is_finished, waiting)):
                await self._context.finished.wait()
        if cleaning.cancelled_caught:
            log.warning("evicted pods have not released what they held in time", uids=waiting)

    # What others see

    def _report(self, conditions: tuple[str, ...]) -> None:
        if conditions == self._conditions:
            return
        log.info("the node's pressure has changed", conditions=conditions)
        self._conditions = conditions
        self.changed.send(None)

    def _record_layout(self, layout: Layout) -> None:
        if layout is self._layout:
            return
        log.info("the node's file systems", layout=layout.value)
        if self._layout is None and (ignored := unused(self._config.thresholds)):
            log.warning("thresholds of containerfs follow those of nodefs or imagefs and are ignored", fields=ignored)
        self._layout = layout

    def _record_ages(self, thresholds: Iterable[Threshold]) -> None:
        now = self._clock.now().timestamp()
        for threshold in thresholds:
            observed = self._state.observations.get(threshold.signal)
            if observed is not None and observed.at is not None:
                self.stats_age.observe((threshold.signal.value,), now - observed.at)
