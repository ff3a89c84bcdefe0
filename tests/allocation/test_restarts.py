"""What pods have under the next agent: the rows of the kubelet's `policy_static_restore_test.go` of CPUs and of memory,
and agents that are killed between their two files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest

from tests.allocation.managed import GIB, MACHINE
from tests.allocation.pods import pod_with
from tests.allocation.test_managers import running
from tests.killed_writer import kill_at_every_step
from trikubelet.allocation.cpus.static_policy import StaticPolicy as CpuPolicy
from trikubelet.allocation.cpus.topology import CpuTopology
from trikubelet.allocation.demands import all_containers
from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
from trikubelet.allocation.memory.static_policy import StaticPolicy as MemoryPolicy
from trikubelet.allocation.memory.static_policy import empty_machine
from trikubelet.allocation.topology.admit import CONTAINER_SCOPE, POD_SCOPE, NothingToGive
from trikubelet.allocation.topology.policy import BEST_EFFORT, NONE, SINGLE_NUMA_NODE, TopologyPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import Pod

ONE: Final = {"cpu": "1", "memory": "1Gi"}
TWO: Final = {"cpu": "2", "memory": "2Gi"}
FILES: Final = ("cpu_manager_state", "memory_manager_state")


def managers(
    folder: Path, scope: str = POD_SCOPE, topology: str = BEST_EFFORT, *, gate: bool = True
) -> ResourceManagers:
    settings = ManagerSettings(
        topology=TopologyPolicy.of(MACHINE, topology),
        scope=scope,
        cpus=CpuPolicy(CpuTopology.of(MACHINE), reserved=0b1, pod_level=gate),
        memory=MemoryPolicy(empty_machine(MACHINE, {0: {"memory": GIB}}), pod_level=gate),
        pod_level=gate,
    )
    return ResourceManagers(settings, folder, needed=lambda _: True, sources_ready=lambda: True)


def found(managers: ResourceManagers, pod: Pod) -> dict[str, Any]:
    """What its containers have for themselves or share with each other."""
    uid = pod.metadata.uid
    return {
        one.name: (managers.exclusive_cpus(uid, one.name), managers.memory(uid, one.name))
        for one in all_containers(pod)
    }


async def start(managers: ResourceManagers, *pods: Pod) -> None:
    """Start each pod's containers, one after the other; what they have is in the files when this returns."""
    for pod in pods:
        managers.admit(pod, NothingToGive())
        for container in all_containers(pod):
            await managers.affinity(pod, container)
    for file in managers._files:
        await file.durable()


@pytest.mark.parametrize(
    ("whole", "containers", "gate", "has"),
    [
        (True, 1, True, True),
        (True, 1, False, False),
        (False, 2, True, True),
        (False, 2, False, True),
    ],
)
async def test_the_next_agent_knows_what_a_pod_has_as_a_whole(
    tmp_path: Path, whole: bool, containers: int, gate: bool, has: bool
) -> None:
    row: dict[str, Any] = {
        "uid": "a",
        "containers": [[f"container-{number}", ONE, ONE] for number in range(containers)],
    }
    pod = pod_with({**row, "resources": [TWO, TWO]} if whole else row)
    before = managers(tmp_path, gate=gate)
    async with running(before):
        await start(before, pod)
    after = managers(tmp_path, gate=gate)
    assert found(after, pod) == found(before, pod)
    for cpus, memory in found(after, pod).values():
        assert (cpus.bit_count(), [block.size for block in memory]) == ((1, [GIB]) if has else (0, []))
    # Two CPUs and 2 GiB are gone for others where the pod has them as a whole.
    assert all(('"podEntries"' in (tmp_path / file).read_text()) is (whole and gate) for file in FILES)


def with_init(uid: str, *, init: dict[str, str], whole: bool) -> Pod:
    """With an init container, one that may have something for itself, and one that shares with others of the pod."""
    containers = [["own", ONE, ONE], ["other", {}, {}]]
    row: dict[str, Any] = {
        "uid": uid,
        "init": [["init", init, init]],
        "containers": containers if whole else containers[:1],
    }
    return pod_with({**row, "resources": [TWO, TWO]} if whole else row)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("topology", [NONE, BEST_EFFORT])
@pytest.mark.parametrize("scope", [CONTAINER_SCOPE, POD_SCOPE])
async def test_pods_whose_init_containers_have_ended_keep_what_they_have(
    tmp_path: Path, whole: bool, scope: str, topology: str
) -> None:
    pods = [with_init(uid, init=ONE, whole=whole) for uid in "abc"]
    before = managers(tmp_path, scope, topology)
    async with running(before):
        await start(before, *pods)
    after = managers(tmp_path, scope, topology)
    async with running(after):
        for pod in reversed(pods):
            after.admit(pod, NothingToGive())
    assert [found(after, pod) for pod in pods] == [found(before, pod) for pod in pods]
    assert not any(after.memory(pod.metadata.uid, "init") for pod in pods)


async def test_an_init_container_that_shares_what_a_pod_has_gets_none_anew(tmp_path: Path) -> None:
    pod = with_init("a", init={}, whole=True)
    before = managers(tmp_path)
    async with running(before):
        await start(before, pod)
    after = managers(tmp_path)
    after.admit(pod, NothingToGive())
    assert found(after, pod) == found(before, pod)


async def test_a_pod_whose_init_container_ended_under_the_kubelet_keeps_what_it_has(tmp_path: Path) -> None:
    pod = with_init("a", init=TWO, whole=False)
    before = managers(tmp_path)
    async with running(before):
        await start(before, pod)
        memory = before._memory
        assert memory is not None
        # The kubelet's state has no such container any more.
        before._set(attrs.evolve(memory, state=memory.state.without_container("a", "init")))
        await before.affinity(pod, pod.spec.containers[0])
    after = managers(tmp_path)
    after.admit(pod, NothingToGive())
    assert found(after, pod) == found(before, pod)


@pytest.mark.parametrize("lost", FILES)
async def test_a_pod_with_resources_of_its_own_gets_them_once_though_one_file_was_not_written(
    tmp_path: Path, lost: str
) -> None:
    pod, other = with_init("a", init=ONE, whole=True), with_init("b", init=ONE, whole=True)
    before = managers(tmp_path)
    async with running(before):
        await start(before, other)
        old = (tmp_path / lost).read_bytes()
        await start(before, pod)
    (tmp_path / lost).write_bytes(old)
    after = managers(tmp_path)
    async with running(after):
        await start(after, pod, other)
    assert found(after, pod) == found(before, pod)
    after.forget("a")
    after.forget("b")
    assert after.cpus("a", "own") == 0xFF
    assert after._memory is not None
    assert after._memory.state.machine == after._memory.policy.empty


async def test_a_pod_keeps_what_its_containers_have_when_the_scope_was_changed(tmp_path: Path) -> None:
    pod = with_init("a", init=ONE, whole=True)
    before = managers(tmp_path, CONTAINER_SCOPE)
    async with running(before):
        await start(before, pod)
    after = managers(tmp_path, POD_SCOPE)
    after.admit(pod, NothingToGive())
    assert found(after, pod) == found(before, pod)
    after.forget("a")
    assert after.cpus("a", "own") == 0xFF


@pytest.mark.parametrize("lost", FILES)
async def test_a_pod_of_several_containers_stays_on_one_node_though_one_file_was_not_written(
    tmp_path: Path, lost: str
) -> None:
    large = {"cpu": "2", "memory": "3Gi"}
    first = pod_with({"uid": "first", "containers": [["main", large, large]]})
    pod = pod_with({"uid": "a", "init": [["init", ONE, ONE]], "containers": [["one", ONE, ONE], ["two", ONE, ONE]]})
    before = managers(tmp_path, topology=SINGLE_NUMA_NODE)
    async with running(before):
        await start(before, first)
        old = (tmp_path / lost).read_bytes()
        before.admit(pod, NothingToGive())
        await before.affinity(pod, pod.spec.init_containers[0])
    (tmp_path / lost).write_bytes(old)
    after = managers(tmp_path, topology=SINGLE_NUMA_NODE)
    after.forget("first")  # so that the other node would do now
    after.admit(pod, NothingToGive())
    assert found(after, pod) == found(before, pod)


ADMITTER: Final = """
import trio
from pathlib import Path
from tests.allocation.test_restarts import managers, with_init
from trikubelet.allocation.topology.admit import NothingToGive

async def admit():
    folder = Path(sys.argv[2])
    told, pod = managers(folder), with_init("a", init={"cpu": "1", "memory": "1Gi"}, whole=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(told.run)
        watch()
        told.admit(pod, NothingToGive())
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            await told.affinity(pod, container)
            with (folder / "started").open("a") as started:
                started.write(container.name + " ")
        nursery.cancel_scope.cancel()

trio.run(admit)
"""


async def test_an_agent_that_is_killed_while_it_gives_has_given_what_runs(tmp_path: Path) -> None:
    pod, other = (with_init(uid, init=ONE, whole=True) for uid in "ab")
    fresh = managers(tmp_path)
    fresh.admit(pod, NothingToGive())
    expected = found(fresh, pod)
    fresh.forget("a")
    async with running(fresh):
        for file in fresh._files:
            await file.durable()
    empty = {file: (tmp_path / file).read_bytes() for file in FILES}
    seen = set()
    for _ in kill_at_every_step(ADMITTER, str(tmp_path)):
        witness = tmp_path / "started"
        started = witness.read_text().split() if witness.exists() else []
        seen.add(len(started))
        after = managers(tmp_path)
        has = found(after, pod)
        for name in started:
            assert has[name][0] == expected[name][0]
            assert has[name][1] == expected[name][1] or (name == "init" and not has[name][1])
        # Nothing is lost, so there is room for both.
        for one in (pod, other) if started else (other, pod):
            after.admit(one, NothingToGive())
        assert not started or found(after, pod) == has
        after.forget("a")
        after.forget("b")
        assert after.cpus("a", "own") == 0xFF
        assert after._memory is not None
        assert after._memory.state.machine == after._memory.policy.empty
        for path in tmp_path.iterdir():
            path.unlink()
        for name, content in empty.items():
            (tmp_path / name).write_bytes(content)
    assert {0, 1, 3} <= seen  # the last two are mostly one write
