"""What of the configuration and the machine the managers of CPUs, memory and NUMA nodes are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.allocation.pods import cpu_pod
from tests.allocation.test_managers import MACHINE
from trikubelet.agent.node import MachineView, node_settings
from trikubelet.agent.options import AgentOptions
from trikubelet.agent.overrides import Overrides
from trikubelet.agent.resource_managers import ResourceManagerError, resource_managers, with_exclusive_cpus
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.clock import TrioClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration, MemoryReservation
from trikubelet.linux.machine import Machine
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.pods.manager import DesiredPods, PodManager
from trikubelet.pods.registry import PodWorkerRegistry
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.status.manager import StatusManager

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.allocation.managers import ResourceManagers

GIB = 2**30
KEPT = {"kube_reserved": {"memory": "412Mi"}}
STATIC: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_system_cpus": "0"}


def options(root: Path, **fields: Any) -> AgentOptions:
    configuration = attrs.evolve(KubeletConfiguration(), **fields)
    return AgentOptions(configuration=configuration, root_dir=root, node_name="n")


def managers(root: Path, **fields: Any) -> ResourceManagers | None:
    told = options(root, **fields)
    pods = PodManager(now=lambda: 0.0)
    statuses = StatusManager(TrioClock(), pods, wanted_since=pods.wanted_since)
    return resource_managers(
        told,
        Overrides(machine=MachineView(topology=MACHINE)),
        DesiredPods(pods, PodWorkerRegistry(), statuses),
        lambda _: False,
        machine=Machine(cpus=8, memory=8 * GIB),
        settings=node_settings(told),
    )


def test_without_a_policy_there_are_none(tmp_path: Path) -> None:
    assert managers(tmp_path) is None


def test_all_policies_are_made_as_they_are_configured(tmp_path: Path) -> None:
    reserved = (MemoryReservation(numa_node=1, limits={"memory": "512Mi"}),)
    found = managers(
        tmp_path,
        **STATIC,
        **KEPT,
        memory_manager_policy="Static",
        reserved_memory=reserved,
        topology_manager_policy="restricted",
        topology_manager_scope="pod",
    )
    assert found is not None
    assert found.allocatable_cpus == 0xFE
    assert {block.nodes: block.size for block in found.allocatable_memory} == {1: 4 * GIB, 2: 4 * GIB - 512 * 2**20}
    settings = found.counts.settings
    assert (settings.topology.name, settings.scope, settings.pod_level) == ("restricted", "pod", False)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cpu_manager_policy": "static"}, "reservedSystemCPUs"),
        ({**STATIC, "reserved_system_cpus": "9"}, "this machine has 0-7"),
        ({**STATIC, "cpu_manager_policy_options": {"odd": "true"}}, "cpuManagerPolicyOptions: expected one of"),
        ({**STATIC, "cpu_manager_policy_options": {"align-by-socket": "true"}}, "CPUManagerPolicyAlphaOptions"),
        (
            {"topology_manager_policy": "restricted", "topology_manager_policy_options": {"odd": "1"}},
            "topologyManagerPolicyOptions: expected",
        ),
        ({"memory_manager_policy": "Static", **KEPT}, "make them equal"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ResourceManagerError, match=problem):
        managers(tmp_path, **fields)


def test_a_file_of_a_policy_that_is_off_now_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text('{"policyName":"static","defaultCpuSet":"0-7","checksum":1}')
    with pytest.raises(ResourceManagerError, match="cpu_manager_state"):
        managers(tmp_path)


@pytest.mark.parametrize(("gate", "lifted"), [(True, True), (False, False)])
def test_quotas_are_lifted_unless_the_gate_is_off(tmp_path: Path, gate: bool, lifted: bool) -> None:
    fields = {**STATIC, "feature_gates": {"DisableCPUQuotaWithExclusiveCPUs": gate}}
    found = managers(tmp_path, **fields)
    assert found is not None
    pod = cpu_pod({"uid": "a", "containers": [["main", "2", "2"]]})
    found.admit(pod, NothingToGive())
    runtime = RuntimeOptions(root_dir=tmp_path, machine=MachineFacts(GIB))
    told = with_exclusive_cpus(runtime, options(tmp_path, **fields), found)
    assert told.has_exclusive_cpus(pod, pod.spec.containers[0]) is lifted
