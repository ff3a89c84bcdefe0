"""Which resizes an agent's options leave, and what its runtime manager resizes pods with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.allocation.model import ResizeGates
from trikubelet.allocation.store import ACTUATED_FILE
from trikubelet.runtime.actuated import ActuatedResources
from trikubelet.runtime.resize import MeasuredByRuntime, Resizing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trikubelet.agent.options import AgentOptions
    from trikubelet.allocation.store import AllocationStore
    from trikubelet.cgroups.interface import PodCgroups
    from trikubelet.cgroups.settings import CgroupOptions
    from trikubelet.rpc.cri.client import RuntimeClient

POD_LEVEL_RESIZES: Final = "InPlacePodLevelResourcesVerticalScaling"
INIT_CONTAINER_RESIZES: Final = "InPlacePodVerticalScalingInitContainers"


def resize_gates(gates: Mapping[str, bool]) -> ResizeGates:
    """Which resizes the node's feature gates leave; all of them are on by default."""
    return ResizeGates(
        pod_level=gates.get(POD_LEVEL_RESIZES, True),
        init_containers=gates.get(INIT_CONTAINER_RESIZES, True),
    )


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
