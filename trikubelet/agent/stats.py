"""The statistics of an agent (`/stats/summary` and what is made of it). Made when somebody first asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trikubelet.linux.machine import Machine
from trikubelet.node.stats.machine_info import MachineInfo
from trikubelet.node.stats.measure import Meter, NodePaths
from trikubelet.node.stats.provider import StatsProvider, StatsView

if TYPE_CHECKING:
    from trikubelet.agent.agent import Agent


def stats_provider(agent: Agent) -> StatsProvider:
    """Reads the machine's facts. Raises OSError where there is no /proc."""
    options = agent.options
    configuration = options.configuration
    paths = NodePaths(
        root_dir=options.root_dir,
        pod_logs_dir=Path(configuration.pod_logs_dir),
        earlier_logs_dir=agent.runtime_options.earlier_logs_dir,
        kubelet_cgroup=configuration.kubelet_cgroups,
        runtime_cgroup=options.runtime_cgroups,
        system_cgroup=configuration.system_cgroups,
        cgroup_root=configuration.cgroup_root or "/",
    )
    return StatsProvider(
        StatsView(options.node_name, agent.pods.pods, agent.volumes.usage),
        agent.runtime_client,
        agent.image_client,
        Meter(paths),
        clock=agent.clock,
        machine=MachineInfo.of(Machine.read(), paths.proc),
        prefer_runtime=configuration.enabled("PodAndContainerStatsFromCRI"),
    )
