"""What may be kept from pods, and enforced. Facts of the kubelet's own tests of its configuration."""

from __future__ import annotations

import attrs
import pytest

from trikubelet.config.kubelet_configuration import KubeletConfiguration, MemoryReservation
from trikubelet.config.rules import check_configuration


def problems(**settings: object) -> dict[str, str]:
    configuration = attrs.evolve(KubeletConfiguration(), **settings)  # type: ignore[arg-type]
    return {problem.path: problem.message for problem in check_configuration(configuration)}


@pytest.mark.parametrize(
    ("settings", "path", "part"),
    [
        ({"cgroups_per_qos": False}, "enforceNodeAllocatable", "cgroupsPerQOS"),
        ({"enforce_node_allocatable": ("pods", "pods")}, "enforceNodeAllocatable", "2 times"),
        ({"enforce_node_allocatable": ("all",)}, "enforceNodeAllocatable", '"all"'),
        ({"enforce_node_allocatable": ("none", "pods")}, "enforceNodeAllocatable", "with others"),
        ({"enforce_node_allocatable": ("system-reserved",)}, "systemReservedCgroup", "must be given"),
        ({"enforce_node_allocatable": ("system-reserved-compressible",)}, "systemReservedCgroup", "must be given"),
        ({"enforce_node_allocatable": ("kube-reserved",)}, "kubeReservedCgroup", "must be given"),
        ({"enforce_node_allocatable": ("kube-reserved-compressible",)}, "kubeReservedCgroup", "must be given"),
        (
            {
                "enforce_node_allocatable": ("kube-reserved", "kube-reserved-compressible"),
                "kube_reserved_cgroup": "/kube",
            },
            "enforceNodeAllocatable",
            "together",
        ),
        ({"reserved_system_cpus": "0-3", "system_reserved_cgroup": "/system"}, "reservedSystemCPUs", "cannot be used"),
        ({"reserved_system_cpus": "3-0"}, "reservedSystemCPUs", "list of processors"),
        ({"system_reserved": {"cpu": "-100m"}}, "systemReserved[cpu]", "negative"),
        ({"system_reserved": {"memory": "1x"}}, "systemReserved[memory]", "quantity"),
        ({"kube_reserved": {"nvidia.com/gpu": "1"}}, "kubeReserved[nvidia.com/gpu]", "cannot be reserved"),
        ({"qos_reserved": {"memory": "50"}}, "qosReserved[memory]", '"50"'),
        ({"qos_reserved": {"memory": "101%"}}, "qosReserved[memory]", '"101%"'),
        ({"qos_reserved": {"cpu": "50%"}}, "qosReserved[cpu]", "only memory"),
        (
            {"reserved_memory": (MemoryReservation(limits={"cpu": "1"}),)},
            "reservedMemory[0].limits[cpu]",
            "cannot be reserved",
        ),
        (
            {"reserved_memory": (MemoryReservation(limits={"memory": "0"}),)},
            "reservedMemory[0].limits[memory]",
            "zero",
        ),
        (
            {"reserved_memory": (MemoryReservation(limits={"memory": "1Gi"}),) * 2},
            "reservedMemory[1].limits[memory]",
            "twice",
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused(settings: dict[str, object], path: str, part: str) -> None:
    found = problems(**settings)
    assert list(found) == [path]
    assert part in found[path]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cgroups_per_qos": False, "enforce_node_allocatable": ()},
        {"cgroups_per_qos": False, "enforce_node_allocatable": ("none",)},
        {
            "enforce_node_allocatable": ("pods", "system-reserved", "kube-reserved-compressible"),
            "system_reserved_cgroup": "/system.slice",
            "kube_reserved_cgroup": "/runtime.slice",
            "system_reserved": {"cpu": "100m", "memory": "100Mi", "pid": "1000", "ephemeral-storage": "1Gi"},
        },
        {"qos_reserved": {"memory": "0%"}},
        {"reserved_system_cpus": "0-3,6"},
        {
            "reserved_memory": (
                MemoryReservation(limits={"memory": "1Gi", "hugepages-2Mi": "2Mi"}),
                MemoryReservation(numa_node=1, limits={"memory": "1Gi"}),
            )
        },
    ],
)
def test_what_the_kubelet_takes_is_taken(settings: dict[str, object]) -> None:
    assert problems(**settings) == {}
