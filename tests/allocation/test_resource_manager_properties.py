"""Random machines, pods that come and go, agents that are killed: what holds for CPUs and memory at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tests.allocation.pods import pod_with
from trikubelet.allocation.cpus import checkpoint as cpu_file
from trikubelet.allocation.cpus.manager import CpuManager
from trikubelet.allocation.cpus.options import StaticPolicyOptions
from trikubelet.allocation.cpus.state import CpuState
from trikubelet.allocation.cpus.static_policy import StaticPolicy as CpuPolicy
from trikubelet.allocation.cpus.topology import CpuTopology
from trikubelet.allocation.demands import (
    all_containers,
    container_cpus,
    container_memory,
    ends_before_others,
    pod_cpus,
)
from trikubelet.allocation.memory import checkpoint as memory_file
from trikubelet.allocation.memory.manager import MemoryManager
from trikubelet.allocation.memory.state import MemoryState
from trikubelet.allocation.memory.static_policy import StaticPolicy as MemoryPolicy
from trikubelet.allocation.memory.static_policy import empty_machine
from trikubelet.allocation.topology.admit import CONTAINER_SCOPE, POD_SCOPE, admit
from trikubelet.allocation.topology.hints import AllocationError
from trikubelet.allocation.topology.policy import BEST_EFFORT, NONE, RESTRICTED, SINGLE_NUMA_NODE, TopologyPolicy
from trikubelet.linux.machine_topology import Core, MachineTopology, NumaNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Pod

_GIB = 2**30


@st.composite
def _machines(draw: st.DrawFn) -> MachineTopology:
    """Sockets with NUMA nodes or nodes with sockets, some CPUs offline, some nodes without CPUs."""
    nodes, cores, threads = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    nodes_in_socket, uncores = draw(st.integers(1, 2)), draw(st.booleans())
    total = nodes * cores
    offline = draw(st.sets(st.integers(1, max(total * threads - 1, 1)), max_size=3))
    made = []
    for node in range(nodes):
        own = []
        for core in range(node * cores, (node + 1) * cores):
            online = tuple(cpu for cpu in range(core, total * threads, total) if cpu not in offline)
            if online:
                own.append(Core(node // nodes_in_socket, online, core // 2 if uncores else None))
        huge = ((2 * 2**20, draw(st.integers(0, 8))),)
        made.append(NumaNode(node, tuple(own), draw(st.integers(1, 4)) * _GIB, huge))
    return MachineTopology(tuple(made))


_OPTIONS = st.one_of(
    st.builds(
        StaticPolicyOptions,
        full_cores=st.booleans(),
        strict_reservation=st.booleans(),
        align_uncore=st.booleans(),
        align_socket=st.booleans(),
    ),
    st.builds(StaticPolicyOptions, full_cores=st.booleans(), across_numa=st.just(True), align_socket=st.booleans()),
    st.builds(StaticPolicyOptions, across_cores=st.just(True), strict_reservation=st.booleans()),
)


@st.composite
def _containers(draw: st.DrawFn, name: str) -> list[Any]:
    cpus = draw(st.sampled_from(["500m", "1", "1", "2", "3", "4"]))
    requests = {"cpu": cpus, "memory": draw(st.sampled_from(["1Mi", "1Gi", "2Gi", "5Gi"]))}
    if draw(st.integers(0, 3)) == 0:
        requests["hugepages-2Mi"] = draw(st.sampled_from(["2Mi", "8Mi"]))
    return [name, requests, requests]


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Nearly all are Guaranteed. Some have resources of their own."""
    init = [draw(_containers(f"init-{number}")) for number in range(draw(st.integers(0, 2)))]
    for one in init:
        if draw(st.booleans()):
            one.append("Always")
    containers: list[list[Any]] = [
        draw(_containers(f"container-{number}")) for number in range(draw(st.integers(1, 2)))
    ]
    if draw(st.integers(0, 9)) == 0:
        containers[0][2] = {"cpu": "9", "memory": "9Gi"}
    row: dict[str, Any] = {"init": init, "containers": containers}
    if draw(st.booleans()):
        whole = {"cpu": draw(st.sampled_from(["1", "2", "4"])), "memory": draw(st.sampled_from(["1Gi", "2Gi", "6Gi"]))}
        row["resources"] = [whole, whole]
        for one in containers[1:]:
            if draw(st.booleans()):
                one[1] = one[2] = {}  # shares what is left of the pod's
    return row


class Node:
    """A node and its two files."""

    def __init__(self, machine: MachineTopology, cpus: CpuPolicy, topology: TopologyPolicy, scope: str) -> None:
        self.pod_level = cpus.pod_level
        memory = MemoryPolicy(empty_machine(machine, {0: {"memory": _GIB // 2}}), pod_level=self.pod_level)
        self.topology, self.scope = topology, scope
        self.managers = CpuManager(cpus, cpus.start(CpuState())), MemoryManager(memory, memory.start(MemoryState()))
        self.empty = self.managers
        self.pods: dict[str, Pod] = {}

    def admit(self, pod: Pod) -> bool:
        """The same pod again changes nothing; a refused one neither."""
        before = self.managers
        try:
            cpus, memory = admit(self.topology, self.scope, before, pod, pod_level=self.pod_level)
        except AllocationError:
            return False
        assert isinstance(cpus, CpuManager)
        assert isinstance(memory, MemoryManager)
        self.managers = cpus, memory
        self.pods[pod.metadata.uid] = pod
        return True

    def start(self, uid: str, number: int) -> None:
        """The pod's containers up to this one have started, so that init containers before it have ended."""
        cpus, memory = self.managers
        containers = all_containers(self.pods[uid])
        self.managers = cpus, memory.when_it_starts(self.pods[uid], containers[number % len(containers)])

    def remove(self, uid: str) -> None:
        cpus, memory = self.managers
        for container in all_containers(self.pods.pop(uid)):
            cpus = attrs.evolve(cpus, state=cpus.policy.remove_container(cpus.state, uid, container.name))
            memory = attrs.evolve(memory, state=memory.policy.remove_container(memory.state, uid, container.name))
        self.managers = cpus, memory

    def restart(self, cpus: CpuManager, memory: MemoryManager) -> None:
        """With what the files said at the end."""
        gate = self.pod_level
        cpu_state = cpu_file.from_bytes(
            cpu_file.to_bytes("static", cpus.state, pod_level=gate), "static", {}, pod_level=gate
        )
        memory_state = memory_file.from_bytes(
            memory_file.to_bytes("Static", memory.state, pod_level=gate), "Static", pod_level=gate
        )
        assert (cpu_state, memory_state) == (cpus.state, memory.state)
        self.managers = (
            attrs.evolve(cpus, state=cpus.policy.start(cpu_state)),
            attrs.evolve(memory, state=memory.policy.start(memory_state)),
        )

    def check(self) -> None:
        check_cpus(self.managers[0], self.pods)
        check_memory(self.managers[1], self.pods)


def check_cpus(manager: CpuManager, pods: Mapping[str, Pod]) -> None:
    """No CPU is given twice, reserved ones never, and each container has as many as it asks for.

    `pods`: by UID, all that may have something.
    """
    policy, state = manager.policy, manager.state
    everything = policy.topology.cpus & ~(policy.reserved if policy.options.strict_reservation else 0)
    seen = state.shared
    for uid, containers in state.containers.items():
        pod = pods[uid]
        whole = state.pods.get(uid, state.of_pod(uid))
        assert not whole & (seen | policy.reserved)
        assert not state.of_pod(uid) & ~whole
        seen |= whole
        if uid in state.pods:
            assert whole.bit_count() == pod_cpus(pod, pod_level=policy.pod_level)
        staying = 0
        for container in all_containers(pod):
            count = container_cpus(pod, container, pod_level=policy.pod_level)
            cpus = containers.get(container.name, 0)
            assert cpus.bit_count() == count or (not count and uid in state.pods)
            if count and not ends_before_others(pod, container):
                assert not cpus & staying
                staying |= cpus
    assert seen == everything


def check_memory(manager: MemoryManager, pods: Mapping[str, Pod]) -> None:
    """What containers have is gone from the nodes, no more and no less, and each has what it asks for."""
    policy, state = manager.policy, manager.state
    kept: dict[str, int] = {}
    for node in state.machine.values():
        for type_, table in node.memory.items():
            assert table.free + table.reserved == table.allocatable
            assert min(table.free, table.reserved) >= 0
            kept[type_] = kept.get(type_, 0) + table.reserved
    had: dict[str, int] = dict.fromkeys(kept, 0)
    for uid, containers in state.containers.items():
        for blocks in [state.pods[uid]] if uid in state.pods else containers.values():
            for block in blocks:
                had[block.type] += block.size
    assert kept == had
    for uid, containers in state.containers.items():
        for container in pods[uid].spec.containers:
            found = {block.type: block.size for block in containers.get(container.name, ())}
            amounts = container_memory(pods[uid], container, pod_level=policy.pod_level)
            assert found == amounts or (not amounts and uid in state.pods)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    machine = draw(_machines())
    topology = CpuTopology.of(machine)
    options = draw(_OPTIONS)
    reserved, pod_level = draw(st.integers(0, topology.cpus.bit_count() - 1)), draw(st.booleans())
    cpus = CpuPolicy.reserving(topology, reserved, 0, options, pod_level=pod_level)
    name = draw(st.sampled_from([NONE, BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE]))
    return Node(machine, cpus, TopologyPolicy.of(machine, name), draw(st.sampled_from([CONTAINER_SCOPE, POD_SCOPE])))


@given(nodes(), st.data())
def test_nothing_is_given_twice_and_everything_comes_back(node: Node, data: st.DataObject) -> None:
    for step in range(data.draw(st.integers(1, 8))):
        if node.pods and data.draw(st.integers(0, 2)) == 0:
            node.remove(data.draw(st.sampled_from(sorted(node.pods))))
        else:
            node.admit(pod_with({"uid": f"pod-{step}", **data.draw(pods())}))
        node.check()
    stay = data.draw(st.sets(st.sampled_from(sorted(node.pods)))) if node.pods else set()
    cpus, memory = node.managers
    kept = {uid: [one.name for one in all_containers(pod)] for uid, pod in node.pods.items() if uid in stay}
    node.managers = cpus.keep_only(kept), memory.keep_only(kept)
    node.pods = {uid: pod for uid, pod in node.pods.items() if uid in stay}
    node.check()
    for uid in list(node.pods):
        node.remove(uid)
    assert node.managers == node.empty


@given(nodes(), st.data())
def test_a_killed_agent_goes_on_as_if_nothing_had_happened(node: Node, data: st.DataObject) -> None:
    for step in range(data.draw(st.integers(1, 5))):
        before = node.managers
        pod = pod_with({"uid": f"pod-{step}", **data.draw(pods())})
        admitted = node.admit(pod)
        after = node.managers
        for uid in data.draw(st.sets(st.sampled_from(sorted(node.pods)))) if node.pods else ():
            node.start(uid, data.draw(st.integers(0, 3)))
        started = node.managers
        node.restart(*started)
        for one in node.pods.values():
            assert node.admit(one)  # each pod is asked about again
        assert node.managers == started
        node.restart(*before)
        node.pods.pop(pod.metadata.uid, None)
        assert node.admit(pod) is admitted
        assert node.managers == after
        node.managers = started


@given(nodes(), st.data())
def test_an_agent_that_is_killed_between_two_files_can_start_and_admit_or_remove(
    node: Node, data: st.DataObject
) -> None:
    for step in range(data.draw(st.integers(1, 4))):
        before = node.managers
        pod = pod_with({"uid": f"pod-{step}", **data.draw(pods())})
        admitted = node.admit(pod)
        after = node.managers
        if data.draw(st.booleans()):
            node.restart(after[0], before[1])
        else:
            node.restart(before[0], after[1])
        if admitted and not node.admit(pod):
            node.remove(pod.metadata.uid)
            assert node.managers == before
            continue
        node.check()
