"""What an agent admits to its node, and the resources that it gives to pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trikubelet.admission.admit import NodeAdmission
from trikubelet.admission.handlers import StaticPolicies
from trikubelet.admission.sysctls import SysctlAllowList
from trikubelet.allocation.manager import AllocationContext, AllocationManager
from trikubelet.allocation.model import ResizeGates
from trikubelet.allocation.store import ALLOCATED_FILE
from trikubelet.node.declared_features import usable_features
from trikubelet.runtime.containers.resources import may_swap

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trikubelet.agent.agent import Agent
    from trikubelet.allocation.store import AllocationStore
    from trikubelet.broadcast import Broadcast
    from trikubelet.config.kubelet_configuration import KubeletConfiguration


def resize_gates(configuration: KubeletConfiguration) -> ResizeGates:
    """Which resizes the node's feature gates leave."""
    return ResizeGates(
        pod_level=configuration.enabled("InPlacePodLevelResourcesVerticalScaling"),
        init_containers=configuration.enabled("InPlacePodVerticalScalingInitContainers"),
    )


def node_admission(agent: Agent) -> NodeAdmission:
    """The kubelet's rules."""
    state, options = agent.runtime_state, agent.runtime_options
    configuration = agent.options.configuration
    return NodeAdmission(
        sysctls=SysctlAllowList.of_node(options.allowed_unsafe_sysctls, options.machine.kernel),
        machine=options.machine,
        abilities=lambda: state.abilities if state.answered else None,
        features=usable_features(configuration.feature_gates),
        takes_pod_level=configuration.enabled("PodLevelResources"),
        resizes_pod_level=resize_gates(configuration).pod_level,
        static=StaticPolicies(
            cpus=configuration.cpu_manager_policy == "static"
            and not configuration.enabled("InPlacePodVerticalScalingExclusiveCPUs"),
            memory=configuration.memory_manager_policy == "Static"
            and not configuration.enabled("InPlacePodVerticalScalingExclusiveMemory"),
        ),
        compares_tolerations=configuration.enabled("TaintTolerationComparisonOperators"),
        devices=agent.devices,
        shutting_down=lambda: agent.shutdown is not None and agent.shutdown.shutting_down,
        has_begun=lambda pod: agent.pleg.cache.has_begun(pod.metadata.uid),
        may_swap=lambda pod, container: may_swap(pod, container, options),
        pressure=agent.eviction.conditions,
    )


def allocation_manager(
    agent: Agent, admission: NodeAdmission, open_store: Callable[[Path], AllocationStore]
) -> AllocationManager:
    """Raises CheckpointError for a file that cannot be used: it is not known then what running pods have, and the
    kubelet does not start either."""
    node_changes: list[Broadcast[Any]] = [agent.observer.changed]
    if agent.cluster is not None:
        # What pods may have is what the API server's node says, which follows what was observed with each report.
        node_changes.append(agent.cluster.node.reported)
    return AllocationManager(
        open_store(agent.options.root_dir / ALLOCATED_FILE),
        AllocationContext(
            admission,
            node=agent.node.cached,
            active=agent.desired.active,
            pod_by_uid=agent.pods.pod_by_uid,
            sources_ready=agent.desired.sources_ready,
            node_changes=node_changes,
        ),
        agent.recorder,
        agent.clock,
        resize_gates(agent.options.configuration),
    )
