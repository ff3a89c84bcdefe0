"""On the kernel what its hierarchy of version 2 offers beside version 1; the other controllers on a tree of files."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.captured_logs import capture_logs
from tests.cgroups.fake_v2 import CONTROLLERS, FakeKernel
from tests.cgroups.pods import MI, burstable
from tests.cgroups.programs import DIES_WITHIN, FORKS, SLEEP, running
from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.files import THREADS
from trikubelet.cgroups.files_v2 import V2Files
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.cgroups.kernel_files import KernelFiles
from trikubelet.cgroups.names import SYSTEMD
from trikubelet.cgroups.ownership import Ownership
from trikubelet.cgroups.pods import PodCgroupManager
from trikubelet.cgroups.settings import CgroupOptions, CgroupReading, CgroupSettings, cpu_weight, shares_of_weight

if TYPE_CHECKING:
    from trikubelet.cgroups.names import CgroupName

NOTHING = CgroupSettings()
FULL = CgroupSettings(
    cpu_shares=512,
    cpu_quota=50_000,
    cpu_period=100_000,
    memory=64 * MI,
    pids=100,
    cpus="0-1",
    hugepages={2 * MI: 4 * MI},
    unified={"memory.min": "4096"},
)
POD = ("kubepods", "burstable", "podu-1")
EVERY = {
    "cpu.weight": "20",
    "cpu.max": "50000 100000",
    "memory.max": str(64 * MI),
    "memory.min": "4096",
    "memory.high": "8192",
    "pids.max": "100",
    "cpuset.cpus": "0",
    "hugetlb.2MB.max": str(4 * MI),
}
HUGE = CgroupSettings(hugepages={2 * MI: 4 * MI})


class Tree:
    """A driver on a tree of files."""

    def __init__(self, root: Path, controllers: tuple[str, ...] = CONTROLLERS) -> None:
        self.root = root
        self.kernel = FakeKernel(root, controllers)
        self.driver = V2Files(Hierarchies(2, {}, root, (2 * MI,)), kernel=self.kernel)

    def said(self, name: CgroupName, file: str) -> str:
        return (self.root.joinpath(*name) / file).read_text().strip()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


async def test_every_group_on_the_way_turns_the_controllers_on(tree: Tree) -> None:
    assert not await tree.driver.exists(POD)
    await tree.driver.create(POD, FULL)
    assert await tree.driver.exists(POD)
    for depth in range(len(POD)):
        assert tree.said(POD[:depth], "cgroup.subtree_control").split() == sorted(CONTROLLERS)
    assert tree.said(POD, "cgroup.subtree_control") == ""


async def test_limits_are_written_in_the_words_of_version_2(tree: Tree) -> None:
    await tree.driver.create(POD, FULL)
    assert {file: tree.said(POD, file) for file in ("cpu.weight", "cpu.max", "memory.max", "pids.max")} == {
        "cpu.weight": "20",
        "cpu.max": "50000 100000",
        "memory.max": str(64 * MI),
        "pids.max": "100",
    }
    assert tree.said(POD, "cpuset.cpus") == "0-1"
    assert tree.said(POD, "hugetlb.2MB.max") == str(4 * MI)
    assert tree.said(POD, "memory.min") == "4096"


async def test_what_was_written_is_read_back(tree: Tree) -> None:
    await tree.driver.create(POD, NOTHING)
    assert await tree.driver.read(POD) == CgroupReading(shares_of_weight(100), -1, 100_000, -1, 4096)
    await tree.driver.update(POD, FULL)
    shares = shares_of_weight(cpu_weight(512))
    assert await tree.driver.read(POD) == CgroupReading(shares, 50_000, 100_000, 64 * MI, 4096)


async def test_a_group_without_its_controllers_is_missing_and_gets_completed(tree: Tree) -> None:
    await tree.driver.create(("kubepods",), NOTHING)
    tree.kernel.make(str(tree.root / "kubepods/pod1"))
    assert await tree.driver.missing(("kubepods", "pod1")) == ["cpu", "cpuset", "hugetlb", "memory", "pids"]
    await tree.driver.create(("kubepods", "pod1"), FULL)
    assert await tree.driver.exists(("kubepods", "pod1"))
    assert tree.said(("kubepods", "pod1"), "memory.max") == str(64 * MI)


async def test_controllers_that_the_machine_lacks_do_not_count_and_are_named_once(tmp_path: Path) -> None:
    tree = Tree(tmp_path, ("cpu", "memory"))
    with capture_logs() as lines:
        await tree.driver.create(POD, FULL)
        await tree.driver.update(POD, FULL)
    assert await tree.driver.exists(POD)
    assert tree.said(POD, "memory.max") == str(64 * MI)
    assert sorted(line["controller"] for line in lines) == ["cpuset", "hugetlb", "pids"]


async def test_a_group_whose_limits_are_refused_is_not_left_behind(tree: Tree) -> None:
    tree.kernel.refuses["memory.max"] = OSError(errno.EINVAL, "Invalid argument", "memory.max")
    with pytest.raises(CgroupError, match=r"memory\.max"):
        await tree.driver.create(POD, FULL)
    assert not (tree.root / "kubepods/burstable/podu-1").exists()
    assert ("/kubepods/burstable/podu-1/pids.max", "100") in tree.kernel.writes


async def test_setting_a_group_that_is_gone_says_so(tree: Tree) -> None:
    with pytest.raises(CgroupError) as caught:
        await tree.driver.update(POD, FULL)
    assert caught.value.missing
    with pytest.raises(CgroupError) as caught:
        await tree.driver.read(POD)
    assert caught.value.missing


async def test_an_event_tells_that_the_last_process_is_gone(tree: Tree) -> None:
    await tree.driver.create(POD, NOTHING)
    folder = tree.root.joinpath(*POD)
    (folder / "cgroup.procs").write_text("12345\n")
    (folder / "cgroup.events").write_text("populated 1\n")
    looked: list[str] = []
    read = tree.kernel.read

    def counted(path: str) -> str:
        looked.append(Path(path).name)
        return read(path)

    tree.kernel.read = counted  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tree.driver.kill, POD)
        while "cgroup.events" not in looked:
            await trio.sleep(0.001)
        (folder / "cgroup.procs").write_text("")
        (folder / "cgroup.events").write_text("populated 0\n")
    assert ("/kubepods/burstable/podu-1/cgroup.kill", "1") in tree.kernel.writes
    assert 2 <= looked.count("cgroup.events") <= 4


async def test_children_are_told_by_their_names(tree: Tree) -> None:
    driver = V2Files(tree.driver.hierarchies, naming=SYSTEMD, kernel=tree.kernel)
    await driver.create(("kubepods", "podu-1"), NOTHING)
    tree.kernel.make(str(tree.root / "kubepods.slice/cri-containerd-abc.scope"))
    assert await driver.children(("kubepods",)) == [("kubepods", "podu-1")]
    assert await driver.children(("gone",)) == []


async def test_a_kernel_that_does_not_answer_is_left_behind(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trikubelet.cgroups.files.DEADLINE", 0.05)
    answers = threading.Event()
    monkeypatch.setattr(tree.kernel, "folders", lambda _: [] if answers.wait(10) else ["late"])
    try:
        for _ in range(THREADS + 1):
            with pytest.raises(CgroupError, match="has not answered"):
                await tree.driver.children(("kubepods",))
    finally:
        answers.set()


def controllers(folder: Path) -> set[str]:
    return set((folder / "cgroup.controllers").read_text().split())


@pytest.mark.root
async def test_the_kernel_takes_what_is_written(v2: V2Files, own_root: CgroupName) -> None:
    name = (*own_root, "burstable", "podu-1")
    await v2.create(name, HUGE)
    assert await v2.exists(name)
    folder = Path(v2.folders(name)[0])
    assert (folder / "hugetlb.2MB.max").read_text().strip() == str(4 * MI)
    assert (folder / "hugetlb.2MB.rsvd.max").read_text().strip() == str(4 * MI)
    assert controllers(folder) == controllers(Path(v2.folders(())[0])) & set(CONTROLLERS)
    await v2.remove(own_root)
    assert not folder.exists()


@pytest.mark.root
async def test_the_kernel_takes_every_setting_and_reads_it_back(v2: V2Files, own_root: CgroupName) -> None:
    if not {"cpu", "cpuset", "memory", "pids"} <= set(
        Path(v2.folders(())[0], "cgroup.controllers").read_text().split()
    ):
        pytest.skip("needs all controllers in cgroup v2")
    name = (*own_root, "burstable", "podu-1")
    await v2.create(name, NOTHING)
    fresh = await v2.read(name)
    assert attrs.evolve(fresh, memory_usage=0) == CgroupReading(2597, -1, 100_000, -1, 0)
    await v2.update(name, attrs.evolve(FULL, cpus="0", unified={"memory.min": "4096", "memory.high": "8192"}))
    folder = Path(v2.folders(name)[0])
    assert {file: (folder / file).read_text().strip() for file in EVERY} == EVERY
    reading = await v2.read(name)
    assert attrs.evolve(reading, memory_usage=0) == CgroupReading(500, 50_000, 100_000, 64 * MI, 0)
    await v2.update(name, CgroupSettings(cpu_quota=-1, memory=-1, pids=-1))
    assert {(folder / file).read_text().strip() for file in ("memory.max", "pids.max")} == {"max"}
    with pytest.raises(CgroupError, match=r"cpu\.max"):
        await v2.update(name, CgroupSettings(cpu_quota=10**18, cpu_period=1000, pids=7))
    assert (folder / "pids.max").read_text().strip() == "7"


@pytest.mark.root
async def test_the_kernel_kills_everything_inside(v2: V2Files, own_root: CgroupName) -> None:
    name = (*own_root, "podu-1")
    await v2.create(name, NOTHING)
    (Path(v2.folders(name)[0]) / "container").mkdir()
    with running(v2, (*name, "container"), FORKS):
        with trio.fail_after(20):
            while len(await v2.processes(name)) < 64:
                await trio.sleep(0.01)
        await v2.kill(name)
        assert await v2.processes(name) == []
        await v2.remove(name)
    assert not Path(v2.folders(name)[0]).exists()


@pytest.mark.root
@pytest.mark.parametrize("lacking", ["cgroup.kill", "cgroup.events"])
async def test_older_kernels_and_machines_without_watches_kill_too(
    v2: V2Files, own_root: CgroupName, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    name = (*own_root, "podu-1")
    await v2.create(name, NOTHING)
    if lacking == "cgroup.events":
        monkeypatch.setattr("trikubelet.cgroups.files_v2._watch", lambda *_: None)
    write = v2.kernel.write

    def older(path: str, text: str) -> None:
        if path.endswith(f"/{lacking}"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        write(path, text)

    monkeypatch.setattr(v2.kernel, "write", older)
    with running(v2, name, SLEEP) as process:
        await v2.kill(name)
        assert process.wait(DIES_WITHIN) == -9
    assert (Path(v2.folders(name)[0]) / "cgroup.freeze").read_text().strip() == "0"


@pytest.mark.root
async def test_processes_in_a_group_above_are_named_as_the_obstacle(v2: V2Files, own_root: CgroupName) -> None:
    Path(v2.folders(own_root)[0]).mkdir()
    await v2.create((*own_root, "a"), NOTHING)
    control = Path(v2.folders((*own_root, "a"))[0])
    with running(v2, (*own_root, "a"), SLEEP):
        with pytest.raises(CgroupError, match="processes are in that group itself") as caught:
            await v2.create((*own_root, "a", "b"), NOTHING)
        assert caught.value.number == errno.EBUSY
        assert (control / "cgroup.subtree_control").read_text().strip() == ""


@pytest.mark.root
async def test_a_group_carries_the_mark_of_its_owner(v2: V2Files, own_root: CgroupName) -> None:
    name = (*own_root, "podu-1")
    assert await v2.make(name, NOTHING, "/var/lib/trikubelet")
    assert os.getxattr(v2.folders(name)[0], "trusted.trikubelet") == b"/var/lib/trikubelet"
    assert await v2.marks((name,)) == {name: frozenset({"/var/lib/trikubelet"})}
    await v2.discard(name)
    assert await v2.marks((name,)) == {}


@pytest.mark.parametrize("allowed", [("trusted.trikubelet",), ("user.trikubelet",), ()])
def test_the_mark_is_the_attribute_that_an_agent_may_set(
    monkeypatch: pytest.MonkeyPatch, allowed: tuple[str, ...]
) -> None:
    attributes: dict[str, bytes] = {}

    def setxattr(path: str, attribute: str, value: bytes) -> None:
        if attribute not in allowed:
            raise OSError(errno.EPERM if attribute.startswith("trusted") else errno.ENOTSUP, "no", path)
        attributes[attribute] = value

    def getxattr(path: str, attribute: str) -> bytes:
        if attribute not in attributes:
            raise OSError(errno.ENODATA, "no data", path)
        return attributes[attribute]

    monkeypatch.setattr(os, "setxattr", setxattr)
    monkeypatch.setattr(os, "getxattr", getxattr)
    assert KernelFiles().mark("/group", "/root/folder") is bool(allowed)
    assert attributes == dict.fromkeys(allowed, b"/root/folder")
    assert KernelFiles().marks("/group") == ({"/root/folder"} if allowed else set())


async def test_a_group_without_marks_is_known_to_the_agent_that_made_it(tree: Tree) -> None:
    tree.kernel.takes_marks = False
    pods = burstable("u-1"), burstable("u-2")

    def keeper(*earlier: str) -> PodCgroupManager:
        owned = Ownership(mark="/root/folder", alone=True, earlier=frozenset(earlier))
        return PodCgroupManager(tree.driver, POD[:1], CgroupOptions(), active_pods=tuple, ownership=owned)

    first = keeper()
    await first.start()
    with capture_logs() as logs:
        for pod in pods:
            await first.ensure(pod)
    assert [line["event"].partition(":")[0] for line in logs] == ["cgroups cannot carry the mark of their owner"]
    assert (await first.found()).keys() == {"u-1", "u-2"}
    assert await keeper().found() == {}, "another agent's, as far as anybody can tell"
    assert (await keeper("u-1").found()).keys() == {"u-1"}, "its root folder has a folder of this pod"
    await first.release("u-2")
    await keeper().release("u-1")
    assert (await first.found()).keys() == {"u-1"}
