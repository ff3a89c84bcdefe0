"""The part of an agent that keeps its node from running out of memory, disk and processes.

It begins when it is known which pods there are, or will not be soon, and a moment later: measuring takes code that
nothing else needs, and to read that code takes longer than to start a pod. Until then the node has no pressure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.node.conditions import Pressure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.agent import Agent
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.eviction.alarms import AlarmPlaces
    from trikubelet.eviction.manager import EvictionManager
    from trikubelet.eviction.model import EvictionConfig, UsageSource
    from trikubelet.housekeeping import Housekeeping
    from trikubelet.runtime.image_gc import ImageCollector
    from trikubelet.volumes.model import VolumeUsage

SETTLED_WITHIN: Final = 60.0
"""Seconds that it waits for every source of pods. An API server that is away may stay away, and pods that run meanwhile
need their node; a minute is enough for one that restarts together with the node."""
SETTLING: Final = 2.0
"""Seconds after the pods are known in which they have the processor for themselves."""


class AgentEviction:
    """What others ask of the node's pressure, at any time. `run` it beside the agent's other parts."""

    def __init__(self, agent: Agent, *, stand_in: UsageSource | None, measures: bool) -> None:
        """`stand_in` measures in the place of the node's statistics. Without one, and if the node cannot be measured,
        nobody is evicted."""
        self._agent = agent
        self._stand_in = stand_in
        self._measures = measures
        self.manager: EvictionManager | None = None
        """None until the first round is about to begin."""

    def conditions(self) -> tuple[str, ...]:
        """Types of the node's conditions that tell of something running out."""
        return () if self.manager is None else self.manager.conditions()

    def pressure(self) -> Pressure:
        """The same for the node's status."""
        return Pressure() if self.manager is None else self.manager.pressure()

    async def run(self) -> None:
        """Until cancelled."""
        if self._stand_in is None and not self._measures:
            return
        with trio.move_on_after(SETTLED_WITHIN):
            await self._agent.sync_loop.settled.wait()
        await trio.sleep(SETTLING)
        manager = self.manager = self._make_manager()
        manager.on_change(self._agent.observer.tell)
        self._agent.on_worker_finished(manager.pod_finished)
        if self._agent.volume_parts is not None:
            self._agent.volume_parts.manager.on_measured(self._volumes_measured)
        await manager.run()

    def _volumes_measured(self, uid: str, usage: Mapping[str, VolumeUsage]) -> None:
        """A pod that fills an emptyDir need not fill the disk until the next round."""
        from trikubelet.eviction.local_limits import overfills

        pod = self._agent.pods.pod_by_uid(uid)
        if self.manager is not None and pod is not None and overfills(pod, {one: usage[one].used for one in usage}):
            self.manager.look_soon()

    def _make_manager(self) -> EvictionManager:
        from trikubelet.eviction.alarms import Alarms
        from trikubelet.eviction.manager import EvictionManager
        from trikubelet.eviction.thresholds import eviction_config

        agent = self._agent
        config = eviction_config(agent.options.configuration)
        places = None if self._stand_in is not None else alarm_places(agent.options.configuration, config)
        return EvictionManager(
            config,
            self._stand_in or self._source(),
            agent.workers,
            _Reclaimer(agent.housekeeping, agent.image_collector),
            agent.recorder,
            clock=agent.clock,
            active_pods=lambda: [agent.allocation.allocated(pod) for pod in agent.sync_loop.active_pods()],
            is_finished=agent.workers.states.should_pod_be_finished,
            alarms=None if places is None else Alarms(places, config.thresholds),
        )

    def _source(self) -> UsageSource:
        from trikubelet.eviction.measure import StatsUsageSource

        return StatsUsageSource(lambda: self._agent.stats)


class _Reclaimer:
    """Implements `Reclaimer`."""

    def __init__(self, housekeeping: Housekeeping, images: ImageCollector | None) -> None:
        self._images = images
        self.delete_dead_containers = housekeeping.delete_dead_containers

    async def delete_unused_images(self) -> object:
        return 0 if self._images is None else await self._images.delete_unused_images()


def alarm_places(configuration: KubeletConfiguration, config: EvictionConfig) -> AlarmPlaces | None:
    """Where the kernel rings on this machine; None when there is nothing to ring for."""
    from trikubelet.cgroups.names import paths_of_all_pods
    from trikubelet.eviction.alarms import NODE_PRESSURE, AlarmPlaces
    from trikubelet.eviction.model import MEMORY_SIGNALS, Signal
    from trikubelet.stats.cgroup_places import CgroupPlaces

    if not any(threshold.signal in MEMORY_SIGNALS for threshold in config.thresholds):
        return None
    groups: dict[Signal, Path] = {}
    if configuration.kernel_memcg_notification:
        cgroups = CgroupPlaces(Path("/proc"))
        of_pods = next(filter(None, map(cgroups.at, paths_of_all_pods(configuration.cgroup_root))), None)
        for signal, place in ((Signal.MEMORY, cgroups.root()), (Signal.ALLOCATABLE_MEMORY, of_pods)):
            folder = None if place is None else place.controllers.get("memory")
            if folder is not None:
                groups[signal] = Path(folder)
    return AlarmPlaces(groups=groups, pressure=NODE_PRESSURE if NODE_PRESSURE.exists() else None)
