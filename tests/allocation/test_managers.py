"""Giving CPUs and memory to pods, taking them back, and what is written down of it."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
import pytest
import trio

from tests.allocation.cpus.machines import table
from tests.allocation.pods import cpu_pod, pod_with
from trikubelet.allocation.cpus.options import StaticPolicyOptions
from trikubelet.allocation.cpus.static_policy import StaticPolicy
from trikubelet.allocation.cpus.topology import CpuTopology
from trikubelet.allocation.demands import all_containers
from trikubelet.allocation.managers import Affinity, ManagerSettings, ResourceManagers, ResourceStateError
from trikubelet.allocation.memory.static_policy import StaticPolicy as MemoryPolicy
from trikubelet.allocation.memory.static_policy import empty_machine
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.allocation.topology.hints import AllocationError
from trikubelet.allocation.topology.policy import SINGLE_NUMA_NODE, TopologyPolicy
from trikubelet.formats.cpu_list import format_cpu_list
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.linux.machine_topology import Core, MachineTopology, NumaNode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from trikubelet.allocation.topology.hints import TopologyHint
    from trikubelet.api import Container, Pod

GIB = 2**30
MACHINE = MachineTopology(
    tuple(
        NumaNode(node, (Core(node, (4 * node, 4 * node + 1)), Core(node, (4 * node + 2, 4 * node + 3))), 4 * GIB)
        for node in range(2)
    )
)
"""Two sockets with a NUMA node each, of two cores with two threads: 0-3 and 4-7."""
CPUS = StaticPolicy(CpuTopology.of(MACHINE), reserved=0b1)
MEMORY = MemoryPolicy(empty_machine(MACHINE, {0: {"memory": GIB}}))


class NoDevice(NothingToGive):
    """It has none left."""

    def is_settled(self, pod: Pod, container: Container) -> bool:
        return False

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Self:
        raise AllocationError("no device")


class Node:
    def __init__(self, folder: Path | None, **settings: Any) -> None:
        self.active: list[Pod] = []
        self.ready = True
        self.managers = ResourceManagers(
            ManagerSettings(**{"cpus": CPUS, **settings}),
            folder,
            needed=lambda uid: any(one.metadata.uid == uid for one in self.active),
            sources_ready=lambda: self.ready,
        )

    def admit(self, pod: Pod) -> None:
        self.managers.admit(pod, NothingToGive())
        self.active.append(pod)

    def cpus(self, pod: Pod) -> Sequence[int]:
        return [self.managers.cpus(pod.metadata.uid, one.name) for one in pod.spec.containers]


@asynccontextmanager
async def running(managers: ResourceManagers) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(managers.run)
        yield
        nursery.cancel_scope.cancel()


def exclusive(uid: str, cpus: str = "2") -> Pod:
    return cpu_pod({"uid": uid, "containers": [["main", cpus, cpus]]})


def shared(uid: str) -> Pod:
    return cpu_pod({"uid": uid, "containers": [["main", "500m", "1"]]})


def test_who_has_cpus_for_itself_takes_them_from_the_others_until_it_ends() -> None:
    node = Node(None)
    others, pod = shared("others"), exclusive("a")
    node.admit(others)
    assert node.cpus(others) == [0xFF]
    node.admit(pod)
    assert node.cpus(pod) == [0b1100]
    assert node.cpus(others) == [0xF3]
    node.managers.forget("a")
    assert node.cpus(others) == [0xFF]


def test_who_shares_has_the_reserved_cpus_where_no_other_is_left() -> None:
    node = Node(None, cpus=attrs.evolve(CPUS, options=StaticPolicyOptions(strict_reservation=True)))
    others, pod = shared("others"), exclusive("a", "7")
    node.admit(others)
    assert node.cpus(others) == [0xFE]
    node.admit(pod)
    assert (node.cpus(pod), node.cpus(others)) == ([0xFE], [0b1])
    node.managers.forget("a")
    assert node.cpus(others) == [0xFE]


def test_those_who_follow_the_shared_cpus_are_told_when_they_change() -> None:
    node = Node(None)
    news = node.managers.changed.subscribe()
    node.admit(shared("others"))
    assert not news
    node.admit(exclusive("a"))
    assert news


def test_a_pod_that_is_asked_about_again_keeps_what_it_has() -> None:
    node = Node(None)
    pod = exclusive("a")
    node.admit(pod)
    before = node.cpus(pod)
    node.admit(pod)
    assert node.cpus(pod) == before


def test_a_refusal_gives_nothing() -> None:
    node = Node(None)
    with pytest.raises(AllocationError):
        node.managers.admit(exclusive("a", "8"), NothingToGive())
    with pytest.raises(AllocationError, match="no device"):
        node.managers.admit(exclusive("a"), NoDevice())
    assert node.managers.cpus("a", "main") == 0xFF


def test_what_pods_have_that_are_not_wanted_any_more_is_free_for_the_next() -> None:
    node = Node(None)
    node.managers.admit(exclusive("gone", "6"), NothingToGive())  # and never became active
    node.ready = False
    with pytest.raises(AllocationError):
        node.managers.admit(exclusive("b", "6"), NothingToGive())
    node.ready = True
    node.admit(exclusive("b", "6"))
    assert node.managers.exclusive_cpus("gone", "main") == 0


def test_cpus_and_memory_come_of_one_numa_node() -> None:
    node = Node(None, memory=MEMORY, topology=TopologyPolicy.of(MACHINE, SINGLE_NUMA_NODE))
    amounts = {"cpu": "2", "memory": "3500Mi"}
    pod = pod_with({"uid": "a", "containers": [["main", amounts, amounts]]})
    node.admit(pod)
    assert node.cpus(pod) == [0b110000]
    (block,) = node.managers.memory("a", "main")
    assert (block.nodes, block.size) == (0b10, 3500 * 2**20)
    with pytest.raises(AllocationError) as refused:
        node.managers.admit(exclusive("b", "4"), NothingToGive())  # five are free, four on no node
    assert refused.value.reason == "TopologyAffinityError"


@pytest.mark.parametrize(
    ("policy", "one_after_the_other", "alone"),
    [
        ("none", ["2-3", "1,4-5", "6-7"], "1,4-7"),
        ("best-effort", ["2-3", "4-6", "1,7"], "1,4-7"),
        ("restricted", ["2-3", "4-6", "TopologyAffinityError"], "1,4-7"),
        ("single-numa-node", ["2-3", "4-6", "TopologyAffinityError"], "TopologyAffinityError"),
    ],
)
def test_the_example_of_each_policy_in_the_documentation(
    policy: str, one_after_the_other: list[str], alone: str
) -> None:
    def given(*requests: str) -> list[str]:
        node, found = Node(None, topology=TopologyPolicy.of(MACHINE, policy)), []
        for number, cpus in enumerate(requests):
            try:
                node.admit(exclusive(str(number), cpus))
            except AllocationError as error:
                found.append(error.reason)
            else:
                found.append(format_cpu_list(node.managers.exclusive_cpus(str(number), "main")))
        return found

    assert given("2", "3", "2") == one_after_the_other
    assert given("5") == [alone]


PAGE = (Path(__file__).parents[2] / "docs/configuring.md").read_text()


def documented(table: str) -> dict[str, list[str]]:
    """The rows of the example below this header: what pods get, or why they are rejected."""
    rows = PAGE.partition(f"\n| {table} |\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = ([cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows)
    return {name: [re.sub(r"^rejected.*`(\w+)`\)$|:.*", r"\1", cell) for cell in its] for name, *its in cells}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("none", StaticPolicyOptions()),
        ("full-pcpus-only", StaticPolicyOptions(full_cores=True)),
        ("distribute-cpus-across-numa", StaticPolicyOptions(across_numa=True)),
    ],
)
def test_the_example_of_each_option_of_cpus_in_the_documentation(name: str, options: StaticPolicyOptions) -> None:
    def given(*requests: str) -> list[str]:
        node, found = Node(None, cpus=attrs.evolve(CPUS, options=options)), []
        for number, cpus in enumerate(requests):
            try:
                node.admit(exclusive(str(number), cpus))
            except AllocationError as error:
                found.append(error.reason)
            else:
                found.append(format_cpu_list(node.managers.exclusive_cpus(str(number), "main")))
        return found

    expected = documented("`cpuManagerPolicyOptions` | 2 | 3 | 2 | alone: 6")[name]
    assert [*given("2", "3", "2"), *given("6")] == expected


@pytest.mark.parametrize("requests", [("2Gi", "2Gi", "2Gi"), ("5Gi", "1Gi", "2Gi")])
async def test_the_example_of_memory_in_the_documentation(tmp_path: Path, requests: tuple[str, ...]) -> None:
    node, found = Node(tmp_path, memory=MEMORY), []
    async with running(node.managers):
        for number, memory in enumerate(requests):
            amounts = {"cpu": "500m", "memory": memory}
            pod = pod_with({"uid": str(number), "containers": [["main", amounts, amounts]]})
            try:
                node.admit(pod)
            except AllocationError as error:
                found.append(error.reason)
            else:
                affinity = await node.managers.affinity(pod, pod.spec.containers[0])
                found.append(format_cpu_list(affinity.nodes))
    assert found == documented(f"| {' | '.join(requests)}")["NUMA nodes"]
    if requests[0] == "2Gi":
        written = json.loads((tmp_path / "memory_manager_state").read_bytes())["entries"]["0"]
        assert f"    {json.dumps(written, separators=(',', ':'))}\n" in PAGE


async def test_what_a_container_starts_with_is_written_down(tmp_path: Path) -> None:
    node = Node(tmp_path, memory=MEMORY)
    pod = exclusive("a")
    async with running(node.managers):
        node.admit(pod)
        assert await node.managers.affinity(pod, pod.spec.containers[0]) == Affinity(0b1100, 0b1)
    written = json.loads((tmp_path / "cpu_manager_state").read_bytes())
    assert written["entries"] == {"a": {"main": "2-3"}}
    assert json.loads((tmp_path / "memory_manager_state").read_bytes())["policyName"] == "Static"


async def test_a_container_does_not_start_with_what_cannot_be_written_down(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    folder.mkdir()
    node = Node(folder)
    pod = exclusive("a")
    async with running(node.managers):
        folder.rmdir()
        node.admit(pod)
        with pytest.raises(CheckpointError, match="cpu_manager_state"):
            await node.managers.affinity(pod, pod.spec.containers[0])


async def test_the_next_agent_knows_who_has_what(tmp_path: Path) -> None:
    node, pod = Node(tmp_path, memory=MEMORY), exclusive("a")
    async with running(node.managers):
        node.admit(pod)
        await node.managers.affinity(pod, pod.spec.containers[0])
    after = Node(tmp_path, memory=MEMORY)
    assert after.cpus(pod) == node.cpus(pod)
    assert after.managers.memory("a", "main") == node.managers.memory("a", "main")
    after.ready = False  # nobody has told it of the pod yet
    after.admit(shared("b"))
    assert after.cpus(pod) == node.cpus(pod)


async def test_the_next_agent_finishes_what_a_killed_one_was_writing(tmp_path: Path) -> None:
    node, pod = Node(tmp_path), exclusive("a")
    async with running(node.managers):
        node.admit(pod)
        await node.managers.affinity(pod, pod.spec.containers[0])
    path = tmp_path / "cpu_manager_state"
    whole = path.read_bytes()
    path.unlink()
    (tmp_path / ".cpu_manager_state.tmp").write_bytes(whole[:-1])
    assert Node(tmp_path).cpus(pod) == [0xFF], "nothing was started with that yet"
    (tmp_path / ".cpu_manager_state.tmp").write_bytes(whole)
    assert Node(tmp_path).cpus(pod) == [0b1100]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("settings", "file", "problem"),
    [
        ({"cpus": None}, "cpu_manager_state", 'policy "static"'),
        ({"cpus": attrs.evolve(CPUS, reserved=0b100)}, "cpu_manager_state", "reserved CPUs 2"),
        ({"memory": None}, "memory_manager_state", 'policy "Static"'),
        ({"memory": MemoryPolicy(empty_machine(MACHINE, {}))}, "memory_manager_state", ""),
    ],
)
async def test_a_file_of_another_policy_or_machine_is_refused(
    tmp_path: Path, settings: dict[str, Any], file: str, problem: str
) -> None:
    node, pod = Node(tmp_path, memory=MEMORY), exclusive("a")
    async with running(node.managers):
        node.admit(pod)
        await node.managers.affinity(pod, pod.spec.containers[0])
    with pytest.raises(ResourceStateError) as refused:
        Node(tmp_path, **{"memory": MEMORY, **settings})
    assert str(tmp_path / file) in str(refused.value)
    assert problem in str(refused.value)
    assert "remove the file" in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"policyName":"static","defaultCpuSet":"0-7","checksum":1}'])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cpu_manager_state").write_bytes(content)
    with pytest.raises(ResourceStateError, match="cpu_manager_state"):
        Node(tmp_path)


def test_a_file_of_version_1_that_names_containers_by_their_ids_is_refused(tmp_path: Path) -> None:
    row = next(row for row in table("restore") if row["containers"])
    (tmp_path / "cpu_manager_state").write_text(row["content"])
    with pytest.raises(ResourceStateError, match=r"version 1.* remove the file"):
        Node(tmp_path)


async def test_memory_of_init_containers_is_free_when_the_next_one_starts() -> None:
    amounts = {"cpu": "1", "memory": "2Gi"}
    pod = pod_with(
        {
            "uid": "a",
            "init": [["init", amounts, amounts], ["sidecar", amounts, amounts, "Always"]],
            "containers": [["main", amounts, amounts]],
        }
    )
    node = Node(None, memory=MEMORY)
    node.admit(pod)
    init, sidecar = pod.spec.init_containers
    await node.managers.affinity(pod, init)
    assert node.managers.memory("a", "init")
    await node.managers.affinity(pod, sidecar)
    assert not node.managers.memory("a", "init")
    await node.managers.affinity(pod, pod.spec.containers[0])
    assert node.managers.memory("a", "sidecar")
    assert node.managers.exclusive_cpus("a", "init"), "CPUs stay, and are used again"


@pytest.mark.parametrize("topology", ["none", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
async def test_a_pod_whose_init_container_has_ended_keeps_what_it_has_under_the_next_agent(
    tmp_path: Path, topology: str, scope: str
) -> None:
    settings = {"memory": MEMORY, "topology": TopologyPolicy.of(MACHINE, topology), "scope": scope}
    pod = _with_init("a", "1", "2Gi")
    others = [_with_init("b", "1", "3Gi"), _with_init("c", "1", "1Gi")]
    node = Node(tmp_path, **settings)
    async with running(node.managers):
        for one in (pod, *others):
            node.admit(one)
            for container in all_containers(one):
                await node.managers.affinity(one, container)
    after = Node(tmp_path, **settings)
    after.active = [pod, *others]
    for one in after.active:
        after.managers.admit(one, NothingToGive())
        assert after.managers.memory(one.metadata.uid, "main") == node.managers.memory(one.metadata.uid, "main")
        assert not after.managers.memory(one.metadata.uid, "init")


def _with_init(uid: str, cpus: str, memory: str) -> Pod:
    amounts = {"cpu": cpus, "memory": memory}
    return pod_with({"uid": uid, "init": [["init", amounts, amounts]], "containers": [["main", amounts, amounts]]})


def test_who_has_cpus_for_itself_needs_no_quota() -> None:
    node = Node(None)
    pod = cpu_pod({"uid": "a", "containers": [["own", "2", "2"], ["part", "500m", "500m"]]})
    node.admit(pod)
    own, part = pod.spec.containers
    assert node.managers.has_exclusive_cpus(pod, own)
    assert not node.managers.has_exclusive_cpus(pod, part)
    assert node.managers.has_exclusive_cpus(pod)
    assert not node.managers.has_exclusive_cpus(shared("b"))
