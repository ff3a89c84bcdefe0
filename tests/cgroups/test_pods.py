from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cgroups.fake_driver import FakeDriver
from tests.cgroups.pods import MI, amounts, best_effort, burstable, guaranteed
from tests.cgroups.programs import DIES_WITHIN, SLEEP, running
from trikubelet.cgroups.errors import CgroupBusyError, CgroupError, CgroupNameError, MemoryInUseError
from trikubelet.cgroups.names import SYSTEMD, pod_name
from trikubelet.cgroups.pods import RETRY, NoPodCgroups, PodCgroupManager
from trikubelet.cgroups.settings import CgroupOptions, CgroupSettings

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.cgroups.files_v1 import V1Files
    from trikubelet.cgroups.interface import CgroupDriver, PodCgroups
    from trikubelet.cgroups.names import CgroupName

ROOT = ("kubepods",)
BURSTABLE, BEST_EFFORT = (*ROOT, "burstable"), (*ROOT, "besteffort")


class Node:
    def __init__(self, driver: FakeDriver | None = None, options: CgroupOptions | None = None) -> None:
        self.driver = driver or FakeDriver(ROOT)
        self.pods: list[Pod] = []
        self.keeper = keeper_on(self.driver, self.pods, options=options)

    def shares(self, name: CgroupName = BURSTABLE) -> int | None:
        return self.driver.groups[name].cpu_shares


def keeper_on(
    driver: CgroupDriver, pods: list[Pod], *, root: CgroupName = ROOT, options: CgroupOptions | None = None
) -> PodCgroupManager:
    return PodCgroupManager(
        driver, root, options or CgroupOptions(), active_pods=lambda: pods, allocatable_memory=lambda: 1000 * MI
    )


def test_both_kinds_offer_the_same() -> None:
    both: list[PodCgroups] = [Node().keeper, NoPodCgroups()]
    assert len(both) == 2


async def test_the_memory_that_is_protected_is_that_of_the_running_pods() -> None:
    node = Node(options=CgroupOptions(memory_qos=True, tiered_reservation=True))
    node.pods += [guaranteed(memory="128Mi"), burstable(memory="64Mi"), best_effort()]
    await node.keeper.start()
    assert node.keeper.protected_memory() == (128 * MI, 64 * MI)
    untiered = Node(options=CgroupOptions(memory_qos=True))
    untiered.pods += node.pods
    await untiered.keeper.start()
    assert untiered.keeper.protected_memory() == (0, 0)
    assert Node().keeper.protected_memory() is None


async def test_the_groups_of_the_classes_are_made_at_the_start() -> None:
    node = Node()
    node.pods += [burstable()]
    await node.keeper.start()
    assert node.driver.groups == {
        ROOT: CgroupSettings(),
        BURSTABLE: CgroupSettings(cpu_shares=1024, hugepages={}),
        BEST_EFFORT: CgroupSettings(cpu_shares=2, hugepages={}),
    }


async def test_groups_of_an_earlier_life_are_set_anew() -> None:
    node = Node(FakeDriver(ROOT, BURSTABLE, BEST_EFFORT))
    node.driver.groups[BURSTABLE] = CgroupSettings(cpu_shares=7)
    await node.keeper.start()
    assert node.shares() == 2
    assert node.driver.steps_on("create") == []


async def test_a_pods_group_is_made_once_with_its_limits() -> None:
    node = Node(options=CgroupOptions(pod_pids_limit=100))
    await node.keeper.start()
    pod = burstable("u-1", limits=amounts("2", "256Mi"))
    assert not await node.keeper.exists(pod)
    assert await node.keeper.ensure(pod)
    assert node.driver.groups[(*BURSTABLE, "podu-1")] == CgroupSettings(
        cpu_shares=1024, cpu_quota=200_000, cpu_period=100_000, memory=256 * MI, pids=100, hugepages={}
    )
    assert await node.keeper.exists(pod)
    assert not await node.keeper.ensure(pod)
    assert len(node.driver.steps_on("create")) == 3
    assert node.keeper.statistics().made == 1


async def test_the_class_has_the_room_before_the_pods_group_is_there() -> None:
    node = Node()
    await node.keeper.start()
    pod = burstable("u-1")
    node.pods.append(pod)
    await node.keeper.ensure(pod)
    assert node.shares() == 1024
    assert node.driver.steps.index(("update", BURSTABLE)) < node.driver.steps.index(("create", (*BURSTABLE, "podu-1")))


async def test_a_class_that_cannot_be_written_does_not_keep_a_pod_from_starting() -> None:
    node = Node()
    await node.keeper.start()
    pod = burstable("u-1")
    node.pods.append(pod)
    node.driver.fail("update", BURSTABLE, [CgroupError("/kubepods/burstable", "no")])
    assert await node.keeper.ensure(pod)
    assert node.shares() == 2
    assert node.keeper.statistics().tier_failures == 1


async def test_runtimes_are_told_the_path_of_the_driver() -> None:
    assert Node().keeper.parent_of(guaranteed("u-1")) == "/kubepods/podu-1"
    assert Node(FakeDriver(naming=SYSTEMD)).keeper.parent_of(best_effort("u-1")) == (
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice"
    )


async def test_a_uid_that_is_no_name_keeps_the_pod_from_starting_but_not_from_ending() -> None:
    node = Node()
    with pytest.raises(CgroupNameError):
        await node.keeper.ensure(burstable("u_1"))
    await node.keeper.release("u_1")
    assert node.driver.steps == []


async def test_classes_follow_the_pods_and_are_written_only_where_something_changed(autojump_clock: MockClock) -> None:
    node = Node()
    await node.keeper.start()
    node.driver.steps.clear()
    async with trio.open_nursery() as nursery:
        await nursery.start(node.keeper.run)
        for pods, expected, writes in (
            ([burstable("1")], 1024, 1),
            ([burstable("1"), guaranteed("2")], 1024, 0),
            ([burstable("1"), burstable("3", cpu="500m")], 1536, 1),
            ([], 2, 1),
        ):
            node.pods[:] = pods
            node.driver.steps.clear()
            node.keeper.pods_changed()
            node.keeper.pods_changed()
            await trio.sleep(1)
            assert (node.shares(), len(node.driver.steps)) == (expected, writes)
        nursery.cancel_scope.cancel()


async def test_a_class_that_could_not_be_written_is_tried_again_after_a_minute(autojump_clock: MockClock) -> None:
    node = Node()
    await node.keeper.start()
    node.driver.fail("update", BURSTABLE, [CgroupError("/kubepods/burstable", "no")] * 2)
    node.pods.append(burstable())
    async with trio.open_nursery() as nursery:
        await nursery.start(node.keeper.run)
        node.keeper.pods_changed()
        await trio.sleep(2 * RETRY - 1)
        assert node.shares() == 2
        await trio.sleep(2)
        assert node.shares() == 1024
        node.driver.steps.clear()
        await trio.sleep(10 * RETRY)
        assert node.driver.steps == []
        nursery.cancel_scope.cancel()


async def test_a_class_in_which_more_is_in_use_is_kept_from_growing(autojump_clock: MockClock) -> None:
    node = Node(options=CgroupOptions(qos_reserved_memory=100))
    await node.keeper.start()
    node.pods.append(guaranteed(memory="600Mi"))
    node.driver.usage = 500 * MI
    refusal = MemoryInUseError("/kubepods/besteffort", limit=400 * MI, usage=500 * MI)
    node.driver.fail("update", BEST_EFFORT, [refusal])
    async with trio.open_nursery() as nursery:
        await nursery.start(node.keeper.run)
        node.keeper.pods_changed()
        await trio.sleep(1)
        assert node.driver.groups[BURSTABLE].memory == 400 * MI
        assert node.driver.groups[BEST_EFFORT].memory == 500 * MI
        await trio.sleep(RETRY)
        assert node.driver.groups[BEST_EFFORT].memory == 400 * MI
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_class_that_somebody_else_changed_is_set_back(version: int) -> None:
    node = Node(FakeDriver(ROOT, version=2 if version == 2 else 1))
    node.pods.append(burstable())
    await node.keeper.start()
    await node.keeper.verify_tiers()
    assert node.driver.steps_on("update") == []
    node.driver.groups[BURSTABLE] = CgroupSettings(cpu_shares=5000)
    await node.keeper.verify_tiers()
    assert node.shares() == 1024
    assert node.driver.steps_on("update") == [BURSTABLE]


async def test_a_pods_requests_are_summed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[str] = []
    from trikubelet.cgroups import pods, settings

    def counted(pod: Pod) -> settings.PodDemand:
        summed.append(pod.metadata.uid)
        return settings.pod_demand(pod)

    monkeypatch.setattr(pods, "pod_demand", counted)
    node = Node()
    await node.keeper.start()
    for number in range(3):
        node.pods.append(burstable(str(number)))
        await node.keeper.ensure(node.pods[-1])
    assert summed == ["0", "1", "2"]


async def test_a_group_is_read_and_set() -> None:
    node = Node()
    await node.keeper.start()
    pod = burstable("u-1")
    assert await node.keeper.read(pod) is None
    await node.keeper.ensure(pod)
    await node.keeper.set(pod, CgroupSettings(memory=7 * MI))
    reading = await node.keeper.read(pod)
    assert reading is not None
    assert (reading.memory_limit, reading.cpu_shares) == (7 * MI, 1024)
    node.driver.fail("read", (*BURSTABLE, "podu-1"), [CgroupError("x", "y", number=errno.EIO)])
    with pytest.raises(CgroupError):
        await node.keeper.read(pod)


async def test_a_pod_of_an_unknown_class_is_released_wherever_it_is() -> None:
    for make in (guaranteed, burstable, best_effort):
        node = Node()
        await node.keeper.start()
        pod = make("u-1")
        await node.keeper.ensure(pod)
        await node.keeper.release("u-1")
        assert not await node.keeper.exists(pod)
        kills, removals = node.driver.steps_on("kill"), node.driver.steps_on("remove")
        assert kills == removals == [pod_name(ROOT, pod)]


async def test_a_group_that_cannot_be_emptied_is_an_error_and_can_be_released_again() -> None:
    node = Node()
    await node.keeper.start()
    pod = guaranteed("u-1")
    await node.keeper.ensure(pod)
    node.driver.fail("kill", (*ROOT, "podu-1"), [CgroupBusyError("/kubepods/podu-1", "processes are still there")])
    with pytest.raises(CgroupBusyError):
        await node.keeper.release("u-1")
    assert node.keeper.statistics().removed == 0
    await node.keeper.release("u-1")
    assert not await node.keeper.exists(pod)
    assert node.keeper.statistics().removed == 1


async def test_only_groups_of_pods_are_found() -> None:
    node = Node()
    await node.keeper.start()
    for pod in (guaranteed("g-1"), burstable("b-1"), best_effort("e-1")):
        await node.keeper.ensure(pod)
    for name in ((*ROOT, "other"), (*ROOT, "podg-1", "podx"), ("podx",), ("other", "podx")):
        node.driver.groups[name] = CgroupSettings()
    assert await node.keeper.found() == {
        "g-1": (*ROOT, "podg-1"),
        "b-1": (*BURSTABLE, "podb-1"),
        "e-1": (*BEST_EFFORT, "pode-1"),
    }


async def test_a_pod_that_should_be_gone_is_throttled() -> None:
    node = Node()
    await node.keeper.start()
    pod = guaranteed("u-1")
    await node.keeper.ensure(pod)
    await node.keeper.throttle("u-1")
    await node.keeper.throttle("gone")
    assert node.shares((*ROOT, "podu-1")) == 2
    assert node.driver.groups[(*ROOT, "podu-1")].memory == 128 * MI


async def test_without_groups_every_pod_is_served() -> None:
    none = NoPodCgroups()
    pod = burstable("u_1")
    assert none.parent_of(pod) == ""
    assert await none.exists(pod)
    assert not await none.ensure(pod)
    assert await none.read(pod) is None
    await none.set(pod, CgroupSettings())
    await none.release("u_1")
    await none.throttle("u_1")
    none.pods_changed()
    assert await none.found() == {}


@pytest.mark.root
async def test_three_classes_on_the_kernel(v1: V1Files, own_root: CgroupName) -> None:
    root = (*own_root, "kubepods")
    pods = [guaranteed("g-1"), burstable("b-1", limits=amounts("2", "256Mi")), best_effort("e-1")]
    keeper = keeper_on(v1, pods, root=root, options=CgroupOptions(pod_pids_limit=50))
    await v1.create(root, CgroupSettings())
    await keeper.start()
    said: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        assert await keeper.ensure(pod)
        folders = {name: f"{point}{keeper.parent_of(pod)}" for name, point in v1.hierarchies.controllers.items()}
        files = (("cpu", "cpu.shares"), ("cpu", "cpu.cfs_quota_us"), ("memory", "memory.limit_in_bytes"))
        texts = [v1.kernel.read(f"{folders[controller]}/{file}").strip() for controller, file in files]
        said[pod.metadata.uid] = (*texts, v1.kernel.read(f"{folders['pids']}/pids.max").strip())
    unlimited = v1.kernel.read(f"{v1.hierarchies.controllers['memory']}/memory.limit_in_bytes").strip()
    assert said == {
        "g-1": ("1024", "100000", str(128 * MI), "50"),
        "b-1": ("1024", "200000", str(256 * MI), "50"),
        "e-1": ("2", "-1", unlimited, "50"),
    }
    assert (await v1.read((*root, "burstable"))).cpu_shares == 1024
    assert (await v1.read((*root, "besteffort"))).cpu_shares == 2


@pytest.mark.root
async def test_what_an_agent_left_that_was_killed_is_found_and_removed(v1: V1Files, own_root: CgroupName) -> None:
    root = (*own_root, "kubepods")
    first = keeper_on(v1, [], root=root)
    await v1.create(root, CgroupSettings())
    await first.start()
    pod = burstable("left-1")
    await first.ensure(pod)
    name = v1.name_of(first.parent_of(pod))
    with running(v1, name, SLEEP) as process:
        second = keeper_on(v1, [], root=root)
        await second.start()
        assert await second.found() == {"left-1": name}
        await second.release("left-1")
        assert process.wait(DIES_WITHIN) == -9
        assert await second.found() == {}
        assert not any(v1.kernel.exists(folder) for folder in v1.folders(name))


@pytest.mark.root
async def test_many_pods_leave_nothing(v1: V1Files, own_root: CgroupName) -> None:
    root = (*own_root, "kubepods")
    keeper = keeper_on(v1, [], root=root)
    await v1.create(root, CgroupSettings())
    await keeper.start()
    before = [len(v1.kernel.below(folder)) for folder in v1.folders(root)]
    pods = [make(f"u-{number}") for number in range(20) for make in (guaranteed, burstable, best_effort)]

    async def live(pod: Pod) -> None:
        await keeper.ensure(pod)
        await keeper.release(pod.metadata.uid)

    async with trio.open_nursery() as nursery:
        for pod in pods:
            nursery.start_soon(live, pod)
    assert [len(v1.kernel.below(folder)) for folder in v1.folders(root)] == before
