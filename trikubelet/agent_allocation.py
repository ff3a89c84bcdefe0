"""How an agent's parts are joined to the allocation manager (`trikubelet.allocation`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.allocation.manager import AllocationManager, Surroundings
from trikubelet.allocation.measures import NODE_CHANGED
from trikubelet.allocation.model import ResizeGates
from trikubelet.allocation.store import ACTUATED_FILE, ALLOCATED_FILE
from trikubelet.runtime.actuated import ActuatedResources
from trikubelet.runtime.resize import MeasuredByRuntime, Resizing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trikubelet.admission.types import ResizeAdmission
    from trikubelet.agent import Agent
    from trikubelet.agent_options import AgentOptions
    from trikubelet.allocation.store import AllocationStore
    from trikubelet.cgroups.interface import PodCgroups
    from trikubelet.cgroups.settings import CgroupOptions
    from trikubelet.cri.client import RuntimeClient

POD_LEVEL_RESIZES: Final = "InPlacePodLevelResourcesVerticalScaling"
INIT_CONTAINER_RESIZES: Final = "InPlacePodVerticalScalingInitContainers"


def resize_gates(gates: Mapping[str, bool]) -> ResizeGates:
    """Which resizes the node's feature gates leave; all of them are on by default."""
    return ResizeGates(
        pod_level=gates.get(POD_LEVEL_RESIZES, True),
        init_containers=gates.get(INIT_CONTAINER_RESIZES, True),
    )


def allocation_manager(
    agent: Agent, admission: ResizeAdmission, open_store: Callable[[Path], AllocationStore]
) -> AllocationManager:
    """The agent's parts need not be there before the manager is asked something.

    Raises CheckpointError for a file that cannot be used: nobody knows then what running pods have, and the kubelet
    does not start either.
    """
    surroundings = Surroundings(
        admission,
        node=lambda: agent.node.cached(),
        active=lambda: agent.sync_loop.active_pods(),
        pod_by_uid=agent.pods.pod_by_uid,
        sources_ready=lambda: agent.sync_loop.sources_ready,
        make_room=lambda pod, victims, resource: agent.preempting.make_room(pod, victims, resource),
        wake=lambda: agent.sync_loop.retry_resizes_soon(),
    )
    manager = AllocationManager(
        open_store(agent.options.root_dir / ALLOCATED_FILE),
        surroundings,
        agent.recorder,
        agent.clock,
        resize_gates(agent.options.configuration.feature_gates),
    )
    agent.observer.on_change(lambda: manager.room_appeared(NODE_CHANGED))
    if agent.cluster is not None:
        # What pods may have is what the API server's node says, which follows what was observed with each report.
        agent.cluster.on_volumes_reported(lambda _: manager.room_appeared(NODE_CHANGED))
    return manager


def resizing(
    options: AgentOptions,
    runtime: RuntimeClient,
    cgroups: PodCgroups,
    cgroup_options: CgroupOptions,
    open_store: Callable[[Path], AllocationStore],
) -> Resizing:
    """What the runtime manager resizes pods with. Raises CheckpointError for a file that cannot be used."""
    actuated = ActuatedResources(
        open_store(options.root_dir / ACTUATED_FILE), resize_gates(options.configuration.feature_gates)
    )
    return Resizing(actuated, cgroups, cgroup_options, MeasuredByRuntime(runtime, cgroups))
