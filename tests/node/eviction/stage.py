"""A node whose measurements, pods and runtime a test writes down, with a manager that looks after it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.api import Pod, PodStatus
from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.clock import TrioClock
from trikubelet.config.eviction_values import EvictionConfig, Layout, Signal, Threshold
from trikubelet.node.eviction.manager import EvictionContext, EvictionManager
from trikubelet.node.eviction.model import Measurement, Observation, PodMemoryUsage, PodUsage, UsageError
from trikubelet.node.eviction.threshold_notifier import ThresholdNotifier
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.telemetry.events import AnyEvent, EventRecorder, PodEvent

if TYPE_CHECKING:
    from trikubelet.pods.types import PodStatusFn


@attrs.frozen
class Kill:
    """A pod that was asked to end."""

    at: float
    name: str
    grace: int | None
    status: PodStatus
    """What a running pod's becomes."""


@attrs.define(eq=False)
class Stage:
    """All fakes at once. Times count from the begin of the test."""

    thresholds: tuple[Threshold, ...] = ()
    pods: list[Pod] = attrs.field(factory=list)
    usage: Mapping[str, PodUsage] = attrs.field(factory=dict)
    observations: dict[Signal, Observation] = attrs.field(factory=dict)
    layout: Layout = Layout.SINGLE
    local_limits: bool = True
    split_disks: bool = True
    notifier: ThresholdNotifier | None = None
    measuring_takes: float = 0.0
    measuring_fails: bool = False
    killing_takes: float = 0.0
    cleanup_takes: float = 0.0
    reclaiming_takes: float = 0.0
    reclaiming_fails: bool = False
    reclaimed: dict[Signal, Observation] = attrs.field(factory=dict)
    """What is left once images were removed, where that is another amount."""
    measured: list[float] = attrs.field(factory=list)
    """When measurements were begun."""
    kills: list[Kill] = attrs.field(factory=list)
    freed: list[str] = attrs.field(factory=list)
    events: list[tuple[str, str]] = attrs.field(factory=list)
    """Reasons and messages."""
    annotations: list[Mapping[str, str]] = attrs.field(factory=list)
    changes: list[tuple[float, tuple[str, ...]]] = attrs.field(factory=list)
    """When the node's conditions changed, and to which."""
    began: float = attrs.field(factory=trio.current_time)
    _finished: set[str] = attrs.field(factory=set)
    _finishing: Broadcast[str] = attrs.field(factory=Broadcast)
    _nursery: trio.Nursery | None = None
    _manager: EvictionManager | None = None

    @property
    def now(self) -> float:
        return round(trio.current_time() - self.began, 3)

    @property
    def manager(self) -> EvictionManager:
        if self._manager is None:
            clock = TrioClock()
            clock.now()  # From here on it goes with Trio's.
            recorder = EventRecorder(clock)
            recorder.add_listener(self._hear)
            self._manager = EvictionManager(
                EvictionConfig(
                    thresholds=self.thresholds,
                    max_pod_grace=5,
                    local_limits=self.local_limits,
                    split_disks=self.split_disks,
                ),
                EvictionContext(
                    source=self,
                    killer=self,
                    delete_dead_containers=self.delete_dead_containers,
                    delete_unused_images=self.delete_unused_images,
                    active_pods=lambda: self.pods,
                    is_finished=self._finished.__contains__,
                    finished=self._finishing,
                ),
                recorder,
                clock=clock,
                notifier=self.notifier,
            )
        return self._manager

    async def run_for(self, seconds: float) -> None:
        """Run the manager for a while, from now on."""
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._follow, self.manager.changed.subscribe())
                await self.manager.run()

    async def _follow(self, changes: Subscription[None]) -> None:
        with changes:
            async for _ in changes:
                self.changes.append((self.now, self.manager.conditions()))

    def _hear(self, event: AnyEvent) -> None:
        self.events.append((event.reason, event.message))
        if isinstance(event, PodEvent):
            self.annotations.append(event.annotations)

    # UsageSource

    async def measure_node(self, limited: Sequence[Pod]) -> Measurement:
        return await self.measure(self.pods)

    async def measure(self, pods: Sequence[Pod]) -> Measurement:
        self.measured.append(self.now)
        found = dict(self.observations)
        await trio.sleep(self.measuring_takes)
        if self.measuring_fails:
            raise UsageError("the disk hangs")
        uids = {pod.metadata.uid for pod in pods}
        usage = {uid: used for uid, used in self.usage.items() if uid in uids}
        return Measurement(observations=found, pods=usage, layout=self.layout)

    async def pod_memory(self, pod: Pod) -> PodMemoryUsage:
        raise NotImplementedError

    # PodKiller

    async def kill_pod(
        self,
        pod: Pod,
        *,
        asked_by: str,
        evict: bool = False,
        grace_period_override: int | None = None,
        pod_status_fn: PodStatusFn | None = None,
    ) -> None:
        assert evict
        assert pod_status_fn is not None
        status = pod_status_fn(PodStatus(phase="Running"))
        self.kills.append(Kill(self.now, pod.metadata.name, grace_period_override, status))
        if math.isinf(self.killing_takes):
            await trio.sleep(10)
            raise KillTimeoutError(pod.full_name, pod.metadata.uid, 10)
        await trio.sleep(self.killing_takes)
        self.pods = [other for other in self.pods if other is not pod]
        assert self._nursery is not None
        self._nursery.start_soon(self._clean_up, pod)

    async def _clean_up(self, pod: Pod) -> None:
        await trio.sleep(self.cleanup_takes)
        self._finished.add(pod.metadata.uid)
        self._finishing.send(pod.metadata.uid)

    # What frees the disk

    async def delete_dead_containers(self) -> None:
        self.freed.append("containers")
        await trio.sleep(self.reclaiming_takes)
        if self.reclaiming_fails:
            raise RuntimeError("the runtime is gone")

    async def delete_unused_images(self) -> None:
        self.freed.append("images")
        self.observations |= self.reclaimed
