"""Resource managers of a machine with two NUMA nodes, and pods that want something for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trikubelet.allocation.cpus.options import NO_OPTIONS, StaticPolicyOptions
from trikubelet.allocation.cpus.static_policy import StaticPolicy as CpuPolicy
from trikubelet.allocation.cpus.topology import CpuTopology
from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
from trikubelet.allocation.memory.static_policy import StaticPolicy as MemoryPolicy
from trikubelet.allocation.memory.static_policy import empty_machine
from trikubelet.allocation.topology.admit import CONTAINER_SCOPE
from trikubelet.allocation.topology.policy import NONE, TopologyPolicy
from trikubelet.api import pod_from_dict
from trikubelet.linux.machine_topology import Core, MachineTopology, NumaNode

if TYPE_CHECKING:
    from trikubelet.api import Pod

GIB: Final = 2**30
MACHINE: Final = MachineTopology(
    tuple(
        NumaNode(node, (Core(node, (4 * node, 4 * node + 1)), Core(node, (4 * node + 2, 4 * node + 3))), 4 * GIB)
        for node in range(2)
    )
)
"""The CPUs 0-3 and 4-7, two to a core, and 4 GiB on each node."""


def managers(
    *,
    topology: str = NONE,
    scope: str = CONTAINER_SCOPE,
    options: StaticPolicyOptions = NO_OPTIONS,
    pod_level: bool = False,
) -> ResourceManagers:
    """Of a node that keeps CPU 0, and 1 GiB of its first NUMA node. It writes nothing down."""
    settings = ManagerSettings(
        topology=TopologyPolicy.of(MACHINE, topology),
        scope=scope,
        cpus=CpuPolicy(CpuTopology.of(MACHINE), options, reserved=0b1, pod_level=pod_level),
        memory=MemoryPolicy(empty_machine(MACHINE, {0: {"memory": GIB}}), pod_level=pod_level),
        pod_level=pod_level,
    )
    return ResourceManagers(settings, None, needed=lambda _: False, sources_ready=lambda: False)


def container(name: str, cpu: str, memory: str, **others: Any) -> dict[str, Any]:
    return {"name": name, "resources": resources(cpu, memory), **others}


def resources(cpu: str, memory: str) -> dict[str, Any]:
    """As many as requested, and no more."""
    amounts = {"cpu": cpu, "memory": memory}
    return {"requests": amounts, "limits": amounts}


def make_pod(*containers: dict[str, Any], uid: str = "1", init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Pod:
    return pod_from_dict(
        {
            "metadata": {"name": "web", "namespace": "default", "uid": uid},
            "spec": {"containers": list(containers), "initContainers": list(init), **spec},
        }
    )
