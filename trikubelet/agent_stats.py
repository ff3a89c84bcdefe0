"""The statistics of an agent (`/stats/summary` and what is made of it). Made when somebody first asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trikubelet.node.machine import Machine
from trikubelet.stats.machine_info import MachineInfo
from trikubelet.stats.measure import Meter, NodePaths
from trikubelet.stats.provider import StatsProvider

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.agent import Agent
    from trikubelet.api import Pod
    from trikubelet.volumes.model import VolumeUsage


class _View:
    """The agent as statistics see it (`StatsView`)."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.node_name = agent.options.node_name

    def pods(self) -> Sequence[Pod]:
        return self._agent.pods.pods()

    async def volume_usage(self, uid: str) -> Mapping[str, VolumeUsage]:
        return await self._agent.volumes.usage(uid)


def stats_provider(agent: Agent) -> StatsProvider:
    """Reads the machine's facts. Raises OSError where there is no /proc."""
    options = agent.options
    configuration = options.configuration
    paths = NodePaths(
        root_dir=options.root_dir,
        pod_logs_dir=Path(configuration.pod_logs_dir),
        kubelet_cgroup=configuration.kubelet_cgroups,
        system_cgroup=configuration.system_cgroups,
        cgroup_root=configuration.cgroup_root or "/",
    )
    return StatsProvider(
        _View(agent),
        agent.runtime_client,
        agent.image_client,
        Meter(paths),
        clock=agent.clock,
        machine=MachineInfo.of(Machine.read(), paths.proc),
        prefer_runtime=configuration.feature_gates.get("PodAndContainerStatsFromCRI", False),
    )
