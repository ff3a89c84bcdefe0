"""The part of an agent that keeps its node from running out of memory, disk and processes.

It begins when it is known which pods there are, or will not be soon, and a moment later: measuring takes code that
nothing else needs, and to read that code takes longer than to start a pod. Until then the node has no pressure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.node.conditions import Pressure
from trikubelet.supervision import supervise

if TYPE_CHECKING:
    from trikubelet.agent.agent import Agent
    from trikubelet.config.eviction_values import EvictionConfig
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.node.eviction.manager import EvictionManager
    from trikubelet.node.eviction.model import UsageSource
    from trikubelet.node.eviction.threshold_notifier import NotifierPlaces
    from trikubelet.volumes.manager import VolumeManager

SETTLED_WITHIN: Final = 60.0
"""Seconds that it waits for every source of pods. An API server that is away may stay away, and pods that run meanwhile
need their node; a minute is enough for one that restarts together with the node."""
SETTLING: Final = 2.0
"""Seconds after the pods are known in which nothing is measured, so that they start sooner."""


class AgentEviction:
    """The node's pressure, which may be asked for at any time. `run` it beside the agent's other parts."""

    def __init__(self, *, usage: UsageSource | None, measures: bool) -> None:
        """`usage` measures in the place of the node's statistics. Without it, and if the node cannot be measured,
        no pod is evicted."""
        self._usage = usage
        self._measures = measures
        self.manager: EvictionManager | None = None
        """None until the first round is about to begin."""

    def conditions(self) -> tuple[str, ...]:
        """Types of the node's conditions that tell of something running out."""
        return () if self.manager is None else self.manager.conditions()

    def pressure(self) -> Pressure:
        """The same for the node's status."""
        return Pressure() if self.manager is None else self.manager.pressure()

    async def run(self, agent: Agent) -> None:
        """Until cancelled."""
        if self._usage is None and not self._measures:
            return
        with trio.move_on_after(SETTLED_WITHIN):
            await agent.sync_loop.settled.wait()
        await trio.sleep(SETTLING)
        manager = self.manager = self._make_manager(agent)
        async with trio.open_nursery() as nursery:
            if agent.volume_parts is not None:
                nursery.start_soon(supervise, self._follow_usage, agent, manager, agent.volume_parts.manager)
            await manager.run()

    async def _follow_usage(self, agent: Agent, manager: EvictionManager, volumes: VolumeManager) -> None:
        """A pod that fills an emptyDir need not fill the disk until the next round."""
        from trikubelet.node.eviction.local_limits import overfills

        with volumes.measured.subscribe() as measured:
            async for uid in measured:
                pod, usage = agent.pods.pod_by_uid(uid), await volumes.usage(uid)
                if pod is not None and overfills(pod, {one: usage[one].used for one in usage}):
                    manager.measure_soon()

    def _make_manager(self, agent: Agent) -> EvictionManager:
        from trikubelet.config.eviction_thresholds import eviction_config
        from trikubelet.node.eviction.manager import EvictionContext, EvictionManager
        from trikubelet.node.eviction.measure import StatsUsageSource
        from trikubelet.node.eviction.threshold_notifier import ThresholdNotifier

        config = eviction_config(agent.options.configuration)
        places = None if self._usage is not None else notifier_places(agent.options.configuration, config)
        images = agent.image_collector
        context = EvictionContext(
            source=self._usage or StatsUsageSource(lambda: agent.stats),
            killer=agent.workers,
            delete_dead_containers=agent.housekeeping.delete_dead_containers,
            delete_unused_images=_no_images if images is None else images.delete_unused_images,
            active_pods=lambda: [agent.allocation.allocated(pod) for pod in agent.desired.active()],
            is_finished=agent.workers.states.should_pod_be_finished,
            finished=agent.workers.finished,
            changed=agent.observer.changed,
        )
        return EvictionManager(
            config,
            context,
            agent.recorder,
            clock=agent.clock,
            notifier=None if places is None else ThresholdNotifier(places, config.thresholds),
        )


async def _no_images() -> None:
    await trio.lowlevel.checkpoint()


def notifier_places(configuration: KubeletConfiguration, config: EvictionConfig) -> NotifierPlaces | None:
    """Where the kernel notifies on this machine; None when there is nothing to notify of."""
    from trikubelet.cgroups.names import paths_of_all_pods
    from trikubelet.config.eviction_values import MEMORY_SIGNALS, Signal
    from trikubelet.node.eviction.threshold_notifier import NODE_PRESSURE, NotifierPlaces
    from trikubelet.node.stats.cgroup_places import CgroupPlaces

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
    return NotifierPlaces(groups=groups, pressure=NODE_PRESSURE if NODE_PRESSURE.exists() else None)
