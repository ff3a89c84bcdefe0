"""The part of an agent that gives CPUs, memory and NUMA nodes to containers (`trikubelet.allocation`).

It is there when one of the policies is on, and when there is a file of an earlier agent which says that it was: a node
whose policy has changed has to be drained first. It costs nothing otherwise.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from trikubelet.api import Quantity
from trikubelet.container.errors import ContainerConfigError
from trikubelet.formats.cpu_list import format_cpu_list, parse_cpu_list
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.linux.durable_files import set_aside
from trikubelet.linux.machine_topology import MachineTopology
from trikubelet.node.capacity import CPU, capacity, reserved
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trikubelet.agent.devices import NodeDevices
    from trikubelet.agent.options import AgentOptions
    from trikubelet.agent.overrides import Overrides
    from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
    from trikubelet.api import Container, Pod
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.linux.machine import Machine
    from trikubelet.node.facts import NodeSettings
    from trikubelet.pods.manager import DesiredPods
    from trikubelet.runtime.containers.container import ContainerExtras, Extras
    from trikubelet.runtime.options import RuntimeOptions


log = get_logger("allocation")


class ResourceManagerError(Exception):
    """A policy cannot be had on this machine, or with this configuration. The text says why, and what to do."""


def has_policies(configuration: KubeletConfiguration) -> bool:
    policies = (configuration.cpu_manager_policy, configuration.memory_manager_policy)
    return policies != ("none", "None") or configuration.topology_manager_policy != "none"


def resource_managers(
    options: AgentOptions,
    overrides: Overrides,
    pods: DesiredPods,
    needed: Callable[[str], bool],
    *,
    machine: Machine | None,
    settings: NodeSettings,
    standalone: bool = False,
) -> ResourceManagers | None:
    """`needed`: of a pod's UID, see `Agent.may_run`. Raises ResourceManagerError.

    `standalone`: there is no cluster, so a file that a power cut has emptied does not keep the agent from starting.
    """
    folder = options.root_dir if overrides.grants_devices else None
    files = [] if folder is None else [folder / name for name in ("cpu_manager_state", "memory_manager_state")]
    if standalone:
        for path in files:
            _set_aside_if_cut(path)
    left = any(path.exists() for path in files)
    if not (left or has_policies(options.configuration)):
        return None
    from trikubelet.allocation.managers import ResourceManagers, ResourceStateError

    try:
        return ResourceManagers(
            _settings(options.configuration, overrides.machine.topology, machine, settings),
            folder,
            needed=needed,
            sources_ready=pods.sources_ready,
        )
    except (ResourceStateError, ValueError) as error:
        raise ResourceManagerError(str(error)) from error


def _set_aside_if_cut(path: Path) -> None:
    """After a power cut a file may be empty, or half of one. Pods get CPUs and memory again when they are admitted."""
    try:
        json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        log.error(
            "what containers were given cannot be read: the file is set aside, pods are given CPUs and memory again",
            set_aside=str(set_aside(path)),
            problem=f"expected JSON: {error}",
        )
    except OSError:
        pass  # it is not there, or the reader says what is wrong


def _settings(
    configuration: KubeletConfiguration,
    topology: MachineTopology | None,
    machine: Machine | None,
    settings: NodeSettings,
) -> ManagerSettings:
    """Raises ValueError."""
    from trikubelet.allocation.cpus.options import check_machine
    from trikubelet.allocation.cpus.options import parse_options as parse_cpu_options
    from trikubelet.allocation.cpus.static_policy import StaticPolicy as CpuPolicy
    from trikubelet.allocation.cpus.static_policy import reserved_count
    from trikubelet.allocation.cpus.topology import CpuTopology
    from trikubelet.allocation.managers import ManagerSettings
    from trikubelet.allocation.memory.reserved import require_reserved_memory, reserved_memory
    from trikubelet.allocation.memory.static_policy import StaticPolicy as MemoryPolicy
    from trikubelet.allocation.memory.static_policy import empty_machine
    from trikubelet.allocation.topology.options import parse_options
    from trikubelet.allocation.topology.policy import TopologyPolicy

    if not has_policies(configuration):
        return ManagerSettings()
    if topology is None:
        try:
            topology = MachineTopology.read()
        except OSError as error:
            raise ValueError(f"cannot read which CPUs and memory this machine has: {error}") from error
    kept = reserved(
        capacity(
            machine,
            max_pods=settings.max_pods,
            pods_per_core=settings.pods_per_core,
            local_storage=settings.local_storage,
        ),
        settings.reservations,
    )
    pod_level = configuration.enabled("PodLevelResourceManagers")
    with _about("topologyManagerPolicyOptions"):
        topology_options = parse_options(configuration.topology_manager_policy_options)
    policy = TopologyPolicy.of(topology, configuration.topology_manager_policy, topology_options)
    cpus = memory = None
    if configuration.cpu_manager_policy == "static":
        cpu_topology = CpuTopology.of(topology)
        with _about("cpuManagerPolicyOptions"):
            cpu_options = parse_cpu_options(configuration.cpu_manager_policy_options, configuration.feature_gates)
            check_machine(cpu_options, cpu_topology, configuration.topology_manager_policy)
        cpus = CpuPolicy.reserving(
            cpu_topology,
            reserved_count(kept.get(CPU)),
            parse_cpu_list(configuration.reserved_system_cpus),
            cpu_options,
            pod_level=pod_level,
        )
    if configuration.memory_manager_policy == "Static":
        reservations = [
            (one.numa_node, {name: Quantity(text) for name, text in one.limits.items()})
            for one in configuration.reserved_memory
        ]
        memory_kept = reserved_memory(topology, reservations, kept)
        require_reserved_memory(memory_kept)
        memory = MemoryPolicy(empty_machine(topology, memory_kept), pod_level=pod_level)
    return ManagerSettings(
        topology=policy,
        scope=configuration.topology_manager_scope,
        cpus=cpus,
        memory=memory,
        pod_level=pod_level,
    )


@contextmanager
def _about(field: str) -> Iterator[None]:
    """Name the field of the configuration in what the block complains about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error


def with_exclusive_cpus(
    told: RuntimeOptions, options: AgentOptions, managers: ResourceManagers | None
) -> RuntimeOptions:
    """The runtime's options, in which who has CPUs of its own has no quota."""
    if managers is None or not options.configuration.enabled("DisableCPUQuotaWithExclusiveCPUs"):
        return told
    return attrs.evolve(told, has_exclusive_cpus=managers.has_exclusive_cpus)


def given_to_containers(devices: NodeDevices, managers: ResourceManagers | None) -> Extras:
    """What containers are started with of all that they were given."""
    if managers is None:
        return devices.extras

    async def extras(pod: Pod, container: Container) -> ContainerExtras:
        """Raises ContainerConfigError: the container cannot be started now."""
        of_devices = await devices.extras(pod, container)
        try:
            affinity = await managers.affinity(pod, container)
        except CheckpointError as error:
            raise ContainerConfigError(str(error)) from error
        return attrs.evolve(
            of_devices, cpuset_cpus=format_cpu_list(affinity.cpus), cpuset_mems=format_cpu_list(affinity.nodes)
        )

    return extras
