"""CPUs and memory of their own, as the kernel shows them, on both runtimes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trikubelet.cgroups.version import read_hierarchies
from trikubelet.formats.cpu_list import format_cpu_list, members, parse_cpu_list, set_of

if TYPE_CHECKING:
    from tests.agent.private_cgroups import PrivateCgroups
    from tests.agent.real_node import RealNode

UNTIL_TERM = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
ONLINE = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(ONLINE) < 2, reason="one CPU cannot be shared out")


def static(**fields: Any) -> dict[str, Any]:
    return {"cpuManagerPolicy": "static", "reservedSystemCPUs": str(ONLINE[0]), **fields}


def amounts(cpu: str, memory: str = "32Mi") -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def cpus_of(node: RealNode, container: str) -> list[int]:
    """What its process may use, and what its cgroup was told: the same once it was told."""
    process = node.until_process(container)
    told = cpuset_of(process, "cpuset.cpus")
    may_use = sorted(os.sched_getaffinity(process))
    return may_use if told == may_use else []


def cpuset_of(process: int, file: str) -> list[int]:
    """The numbers in a file of its cgroup, on v1 or v2."""
    hierarchies = read_hierarchies()
    point = hierarchies.controllers.get("cpuset") or hierarchies.unified
    controller = "cpuset" if "cpuset" in hierarchies.controllers else ""
    lines = (line.split(":", 2) for line in Path(f"/proc/{process}/cgroup").read_text().splitlines())
    (path,) = (path for _, controllers, path in lines if controller in controllers.split(","))
    return list(members(parse_cpu_list(Path(f"{point}{path}/{file}").read_text().strip())))


def test_a_container_has_a_cpu_for_itself_until_its_pod_ends(cgroups: PrivateCgroups, node: RealNode) -> None:
    node.configure(**cgroups.fields, **static())
    node.run("others", node.container(UNTIL_TERM, "others"), terminationGracePeriodSeconds=1)
    node.start("--no-drain-on-exit")
    node.until_running("others")
    node.until(lambda: cpus_of(node, "others") == ONLINE, "all CPUs are shared")

    node.run("lone", node.container(UNTIL_TERM, "lone", resources=amounts("1")), terminationGracePeriodSeconds=1)
    uid = node.until_running("lone").metadata.uid
    (own,) = cpus_of(node, "lone")
    assert own != ONLINE[0], "that one is the system's"
    rest = [cpu for cpu in ONLINE if cpu != own]
    node.until(lambda: cpus_of(node, "others") == rest, "the others have lost it")
    assert cgroups.read(f"kubepods/pod{uid}").cpu_quota == -1, "nobody has to be protected from it"
    state = node.root / "cpu_manager_state"
    node.until(lambda: str(own) in state.read_text().partition("entries")[2], "it is on the disk")
    written = json.loads(state.read_bytes())
    assert written["entries"] == {uid: {"lone": str(own)}}
    assert written["defaultCpuSet"] == format_cpu_list(set_of(rest))

    # The next agent takes it up as it is, and one that comes later starts beside it.
    node.stop(signal.SIGKILL)
    node.start()
    node.run("late", node.container(UNTIL_TERM, "late"), terminationGracePeriodSeconds=1)
    node.until_running("late")
    assert (cpus_of(node, "lone"), cpus_of(node, "late"), cpus_of(node, "others")) == ([own], rest, rest)
    assert not node.status("lone", "lone").restart_count

    node.delete("lone")
    node.until_gone("lone")
    node.until(lambda: cpus_of(node, "others") == cpus_of(node, "late") == ONLINE, "it comes back")


def test_memory_comes_from_the_numa_node_that_has_it(cgroups: PrivateCgroups, node: RealNode) -> None:
    kept = {"kubeReserved": {"memory": "512Mi"}, "reservedMemory": [{"numaNode": 0, "limits": {"memory": "512Mi"}}]}
    topology = {"topologyManagerPolicy": "single-numa-node"}
    node.configure(**cgroups.fields, **static(memoryManagerPolicy="Static", **kept, **topology))
    node.run("near", node.container(UNTIL_TERM, "near", resources=amounts("1")), terminationGracePeriodSeconds=1)
    node.start()
    uid = node.until_running("near").metadata.uid
    state = node.root / "memory_manager_state"
    node.until(lambda: uid in state.read_text(), "it is on the disk")
    written = json.loads(state.read_bytes())
    assert written["entries"] == {uid: {"near": [{"numaAffinity": [0], "type": "memory", "size": 32 * 2**20}]}}
    process = node.until_process("near")
    assert "\nMems_allowed_list:\t0\n" in Path(f"/proc/{process}/status").read_text()
    assert cpuset_of(process, "cpuset.mems") == [0]


def test_what_was_written_for_another_policy_keeps_the_agent_from_starting(node: RealNode) -> None:
    node.configure(**static())
    node.run("lone", node.container(UNTIL_TERM, "lone", resources=amounts("1")), terminationGracePeriodSeconds=1)
    node.start("--no-drain-on-exit")
    node.until_running("lone")
    node.stop(signal.SIGKILL)
    node.configure(cpuManagerPolicy="none")
    assert node.spawn().wait() == 1
    told = node.told()
    assert "cpu_manager_state" in told
    assert 'of the policy \\"static\\"' in told or 'of the policy "static"' in told
    assert "remove the file" in told
    node.configure(**static())
    node.start()
    assert not node.status("lone", "lone").restart_count
