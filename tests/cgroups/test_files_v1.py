from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.captured_logs import capture_logs
from tests.cgroups.pods import MI
from tests.cgroups.programs import DIES_WITHIN, FORKS, HOLDS, SLEEP, running
from trikubelet.cgroups import files_v1
from trikubelet.cgroups.errors import CgroupBusyError, CgroupError, CgroupNameError, MemoryInUseError
from trikubelet.cgroups.files_v1 import V1Files
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.cgroups.names import SYSTEMD
from trikubelet.cgroups.settings import CgroupReading, CgroupSettings

if TYPE_CHECKING:
    from trikubelet.cgroups.names import CgroupName

pytestmark = pytest.mark.root
NOTHING = CgroupSettings()
FULL = CgroupSettings(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000, memory=64 * MI, pids=100)


def said(driver: V1Files, name: CgroupName, controller: str, file: str) -> str:
    point = driver.hierarchies.controllers[controller]
    return Path(f"{point}{driver.literal(name)}/{file}").read_text().strip()


async def test_a_group_is_made_in_every_hierarchy_with_its_limits(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "kubepods", "burstable", "podu-1")
    assert not await v1.exists(name)
    await v1.create(name, FULL)
    assert await v1.exists(name)
    for point in v1.hierarchies.controllers.values():
        assert (point / "/".join(name)).is_dir()
    assert said(v1, name, "cpu", "cpu.shares") == "512"
    assert said(v1, name, "cpu", "cpu.cfs_quota_us") == "50000"
    assert said(v1, name, "cpu", "cpu.cfs_period_us") == "100000"
    assert said(v1, name, "memory", "memory.limit_in_bytes") == str(64 * MI)
    assert said(v1, name, "pids", "pids.max") == "100"


async def test_a_new_group_can_take_processes_at_once(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a", "b")
    await v1.create(name, NOTHING)
    cpuset = v1.hierarchies.controllers["cpuset"]
    for file in ("cpuset.cpus", "cpuset.mems"):
        assert said(v1, name, "cpuset", file) == (cpuset / file).read_text().strip()
    with running(v1, name, SLEEP) as process:
        assert await v1.processes(name) == [process.pid]


async def test_a_group_that_lacks_a_hierarchy_is_missing_and_gets_completed(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    await v1.create(name, NOTHING)
    Path(f"{v1.hierarchies.controllers['pids']}{v1.literal(name)}").rmdir()
    assert not await v1.exists(name)
    assert await v1.missing(name) == [f"{v1.hierarchies.controllers['pids']}{v1.literal(name)}"]
    await v1.create(name, FULL)
    assert await v1.exists(name)
    assert said(v1, name, "pids", "pids.max") == "100"


async def test_hierarchies_that_nobody_asks_about_do_not_count(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    await v1.create(name, NOTHING)
    Path(f"{v1.hierarchies.controllers['blkio']}{v1.literal(name)}").rmdir()
    assert await v1.exists(name)


async def test_what_was_written_is_read_back(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    await v1.create(name, NOTHING)
    fresh = await v1.read(name)
    assert attrs.evolve(fresh, memory_usage=0) == CgroupReading(1024, -1, 100_000, -1, 0)
    await v1.update(name, FULL)
    reading = await v1.read(name)
    assert attrs.evolve(reading, memory_usage=0) == CgroupReading(512, 50_000, 100_000, 64 * MI, 0)
    await v1.update(name, CgroupSettings(cpu_quota=-1, memory=-1))
    reading = await v1.read(name)
    assert (reading.cpu_quota, reading.memory_limit, reading.cpu_shares) == (-1, -1, 512)


async def test_a_shorter_period_and_a_smaller_quota_go_together(v1: V1Files, own_root: CgroupName) -> None:
    await v1.create((*own_root, "a"), CgroupSettings(cpu_quota=50_000, cpu_period=100_000))
    name = (*own_root, "a", "b")
    await v1.create(name, CgroupSettings(cpu_quota=50_000, cpu_period=100_000))
    # For a moment 50 ms of 5 ms would be more than the group above has: the kernel refuses that.
    await v1.update(name, CgroupSettings(cpu_quota=2500, cpu_period=5000))
    reading = await v1.read(name)
    assert (reading.cpu_quota, reading.cpu_period) == (2500, 5000)


async def test_setting_a_group_that_is_gone_says_so(v1: V1Files, own_root: CgroupName) -> None:
    with pytest.raises(CgroupError) as caught:
        await v1.update((*own_root, "gone"), FULL)
    assert caught.value.missing
    assert "cpu.shares" in str(caught.value)
    with pytest.raises(CgroupError) as caught:
        await v1.read((*own_root, "gone"))
    assert caught.value.missing


async def test_a_group_whose_limits_are_refused_is_not_left_behind(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    with pytest.raises(CgroupError):
        await v1.create(name, CgroupSettings(cpu_quota=10**18, cpu_period=1000))
    assert len(await v1.missing(name)) > 1


async def test_one_limit_that_is_refused_does_not_keep_the_others_from_being_set(
    v1: V1Files, own_root: CgroupName
) -> None:
    name = (*own_root, "a")
    await v1.create(name, NOTHING)
    with pytest.raises(CgroupError, match=r"cpu\.cfs_quota_us"):
        await v1.update(name, CgroupSettings(cpu_quota=10**18, cpu_period=1000, memory=64 * MI, pids=7))
    assert (await v1.read(name)).memory_limit == 64 * MI
    assert said(v1, name, "pids", "pids.max") == "7"


async def test_a_memory_limit_below_the_usage_is_refused_and_kills_nobody(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    await v1.create(name, CgroupSettings(memory=128 * MI))
    with running(v1, name, HOLDS) as process:
        assert process.stdout is not None
        await trio.to_thread.run_sync(process.stdout.readline)
        with pytest.raises(MemoryInUseError) as caught:
            await v1.update(name, CgroupSettings(memory=8 * MI))
        assert caught.value.limit == 8 * MI
        assert caught.value.usage is not None
        assert caught.value.usage > 32 * MI
        assert process.poll() is None
        assert (await v1.read(name)).memory_limit == 128 * MI


async def test_everything_inside_is_killed_though_it_forks_without_end(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    await v1.create((*name, "container"), NOTHING)
    await v1.update(name, CgroupSettings(pids=300))
    with running(v1, (*name, "container"), FORKS):
        with trio.fail_after(20):
            while len(await v1.processes(name)) < 64:
                await trio.sleep(0.01)
        await v1.kill(name)
        assert await v1.processes(name) == []
        await v1.remove(name)
        assert v1.kernel.below(v1.folders(name)[0]) == []


async def test_a_paused_container_is_killed_too(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    await v1.create((*name, "container"), NOTHING)
    with running(v1, (*name, "container"), SLEEP) as process:
        state = Path(f"{v1.hierarchies.controllers['freezer']}{v1.literal(name)}/container/freezer.state")
        state.write_text("FROZEN")
        await v1.kill(name)
        assert process.wait(DIES_WITHIN) == -9


async def test_nothing_can_fork_while_it_is_killed(
    v1: V1Files, own_root: CgroupName, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = (*own_root, "a")
    await v1.create(name, NOTHING)
    states: list[str] = []
    kill = v1.kernel.kill

    def seen(pid: int) -> None:
        states.append(said(v1, name, "freezer", "freezer.state"))
        kill(pid)

    monkeypatch.setattr(v1.kernel, "kill", seen)
    monkeypatch.setattr(files_v1, "_FREEZE_TIMEOUT", DIES_WITHIN)  # a machine may have no time for it at once
    with running(v1, name, SLEEP) as process:
        await v1.kill(name)
        assert process.wait(DIES_WITHIN) == -9
    # A process that has not gone yet when the group is read again is killed once more.
    assert set(states) == {"FROZEN"}
    assert said(v1, name, "freezer", "freezer.state") == "THAWED"


async def test_a_process_that_is_inside_in_one_hierarchy_only_is_killed(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    await v1.create(name, NOTHING)
    only_memory = V1Files(Hierarchies(1, {"memory": v1.hierarchies.controllers["memory"]}))
    with running(only_memory, name, SLEEP) as process:
        await v1.kill(name)
        assert process.wait(DIES_WITHIN) == -9


async def test_killing_nobody_is_no_error(v1: V1Files, own_root: CgroupName) -> None:
    await v1.kill((*own_root, "gone"))
    await v1.create((*own_root, "empty"), NOTHING)
    await v1.kill((*own_root, "empty"))


async def test_groups_that_others_made_go_too(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "podu-1")
    await v1.create(name, NOTHING)
    (v1.hierarchies.controllers["devices"] / "/".join(name) / "container" / "inner").mkdir(parents=True)
    left = v1.hierarchies.unified
    if left is not None:
        (left / "/".join(name) / "container").mkdir(parents=True)
        assert v1.kernel.exists(f"{left}{v1.literal(name)}")
    await v1.remove(name)
    assert [folder for folder in v1.folders(name) if v1.kernel.exists(folder)] == []
    await v1.remove(name)


async def test_removing_waits_until_a_process_is_gone(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "a")
    await v1.create(name, NOTHING)
    with running(v1, name, SLEEP) as process:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(v1.remove, name)
            await trio.sleep(0.05)
            assert v1.kernel.exists(v1.folders(name)[0])
            process.kill()
    assert not v1.kernel.exists(v1.folders(name)[0])


async def test_a_group_that_stays_busy_is_reported_with_who_is_in_it(
    v1: V1Files, own_root: CgroupName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikubelet.cgroups.files.REMOVAL_TIMEOUT", 0.1)
    name = (*own_root, "a")
    await v1.create(name, NOTHING)
    with running(v1, name, SLEEP) as process:
        with pytest.raises(CgroupBusyError) as caught:
            await v1.remove(name)
        assert caught.value.processes == (process.pid,)
        assert process.poll() is None


async def test_the_agent_does_not_kill_itself(
    v1: V1Files, own_root: CgroupName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikubelet.cgroups.files.REMOVAL_TIMEOUT", 0.05)
    killed: list[int] = []
    monkeypatch.setattr(v1.kernel, "processes", lambda _: [0, 4_000_000, os.getpid()])
    monkeypatch.setattr(v1.kernel, "kill", killed.append)
    await v1.create((*own_root, "a"), NOTHING)
    with pytest.raises(CgroupBusyError) as caught:
        await v1.kill((*own_root, "a"))
    assert caught.value.processes == tuple(sorted((0, 4_000_000, os.getpid())))
    assert set(killed) == {4_000_000}


async def test_the_root_is_never_emptied(v1: V1Files) -> None:
    with pytest.raises(CgroupNameError):
        await v1.kill(())
    with pytest.raises(CgroupNameError):
        await v1.remove(())


async def test_children_are_found_in_whatever_hierarchy_they_are(v1: V1Files, own_root: CgroupName) -> None:
    assert await v1.children(own_root) == []
    await v1.create((*own_root, "podu-1"), NOTHING)
    (v1.hierarchies.controllers["blkio"] / own_root[0] / "podu-2").mkdir()
    assert await v1.children(own_root) == [(*own_root, "podu-1"), (*own_root, "podu-2")]


async def test_slices_are_named_as_systemd_names_them(v1: V1Files, own_root: CgroupName) -> None:
    driver = V1Files(v1.hierarchies, naming=SYSTEMD)
    name = (*own_root, "burstable", "podu-1")
    flat = own_root[0].replace("-", "_")
    try:
        await driver.create(name, FULL)
        top = driver.hierarchies.controllers["memory"] / f"{flat}.slice"
        assert (top / f"{flat}-burstable.slice" / f"{flat}-burstable-podu_1.slice").is_dir()
        (top / "cri-container-abc.scope").mkdir()
        assert await driver.children(own_root) == [(*own_root, "burstable")]
    finally:
        await driver.remove(own_root)


async def test_a_limit_of_a_controller_that_is_not_mounted_is_named_once(v1: V1Files, own_root: CgroupName) -> None:
    mounted = {name: point for name, point in v1.hierarchies.controllers.items() if name != "pids"}
    driver = V1Files(Hierarchies(1, mounted))
    name = (*own_root, "a")
    with capture_logs() as lines:
        await driver.create(name, FULL)
        await driver.update(name, FULL)
    assert (await driver.read(name)).memory_limit == 64 * MI
    assert [line["controller"] for line in lines] == ["pids"]


async def test_a_group_carries_the_mark_of_its_owner_in_every_hierarchy(v1: V1Files, own_root: CgroupName) -> None:
    name, other = (*own_root, "podu-1"), (*own_root, "podu-2")
    assert await v1.make(name, NOTHING, "/var/lib/trikubelet")
    assert not await v1.make(name, NOTHING, "/var/lib/other")
    for folder in v1.folders(name)[:-1]:  # the last is of version 2, where a pod has no group here
        assert os.getxattr(folder, "trusted.trikubelet") == b"/var/lib/trikubelet"
    await v1.make(other, NOTHING)
    assert await v1.marks((name, other, (*own_root, "podu-3"))) == {
        name: frozenset({"/var/lib/trikubelet"}),
        other: frozenset(),
    }
    await v1.make(other, NOTHING, "/var/lib/other")
    assert await v1.marks((other,)) == {other: frozenset({"/var/lib/other"})}, "one without a mark gets it"


async def test_marks_that_differ_between_hierarchies_are_all_seen(v1: V1Files, own_root: CgroupName) -> None:
    name = (*own_root, "podu-1")
    await v1.make(name, NOTHING, "/one")
    os.setxattr(v1.folders(name)[0], "trusted.trikubelet", b"/two")
    assert await v1.marks((name,)) == {name: frozenset({"/one", "/two"})}


async def test_only_an_empty_group_is_discarded(v1: V1Files, own_root: CgroupName) -> None:
    name, below, empty = (*own_root, "a"), (*own_root, "a", "b"), (*own_root, "c")
    for each in (below, empty):
        await v1.create(each, NOTHING)
    await v1.discard(name)
    assert await v1.exists(below)
    with running(v1, empty, SLEEP) as process:
        await v1.discard(empty)
        assert await v1.exists(empty)
        assert process.poll() is None
    await v1.kill(empty)
    for each in (empty, below, name, name):
        await v1.discard(each)
    assert await v1.children(own_root) == []
