"""emptyDir volumes."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import trio

from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.set_ups import UID, mounts_below, pod_with, request
from tests.volumes.test_removal import nest
from trikubelet.api import Pod, Quantity, pod_from_dict
from trikubelet.clock import SystemClock
from trikubelet.linux.mount_table import Mount
from trikubelet.linux.mounter import Mounter
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.kinds.empty_dir import EmptyDirKind, page_size
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.volumes.kinds.protocol import VolumeKind

MI = 2**20


def make_kind(root: Path, mounter: Mounter | None = None, **allocatable: str) -> EmptyDirKind:
    return EmptyDirKind(
        root=root,
        mounter=mounter or FakeMounter(),
        disk=Disk(),
        meter=VolumeMeter(SystemClock()),
        allocatable=lambda: {name: Quantity(amount) for name, amount in allocatable.items()},
    )


def scratch(**source: Any) -> Pod:
    return pod_with({"name": "scratch", "emptyDir": source})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("there was a thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)


# On disk


async def test_it_is_where_the_kubelet_puts_it_and_everybody_may_write(tmp_path: Path, no_threads: None) -> None:
    kind: VolumeKind = make_kind(tmp_path)
    mounted = await kind.set_up(request(kind, scratch()))
    path = tmp_path / "pods/uid-1/volumes/kubernetes.io~empty-dir/scratch"
    assert (mounted.path, mounted.read_only) == (path, False)
    assert mode(path) == 0o777
    assert (tmp_path / "pods/uid-1/plugins/kubernetes.io~empty-dir/scratch/ready").is_file()


async def test_the_next_agent_leaves_it_as_the_pod_made_it(tmp_path: Path) -> None:
    asked = request(make_kind(tmp_path), scratch())
    await make_kind(tmp_path).set_up(asked)
    (asked.path / "data").write_text("kept")
    asked.path.chmod(0o700)
    await make_kind(tmp_path).set_up(asked)
    assert (asked.path / "data").read_text() == "kept"
    assert mode(asked.path) == 0o700


async def test_one_that_was_not_finished_is_finished(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    asked = request(kind, scratch())
    asked.path.mkdir(mode=0o700, parents=True)
    await kind.set_up(asked)
    assert mode(asked.path) == 0o777


async def test_one_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    asked = request(kind, scratch())
    await kind.set_up(asked)
    asked.path.rmdir()
    await kind.set_up(asked)
    assert mode(asked.path) == 0o777


@pytest.mark.root
async def test_an_fs_group_owns_it(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    asked = request(kind, scratch(), group=4711)
    await kind.set_up(asked)
    assert (asked.path.stat().st_gid, mode(asked.path)) == (4711, 0o2777)


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    asked = request(kind, scratch())
    asked.path.parent.parent.mkdir(parents=True)
    asked.path.parent.write_text("in the way")
    with pytest.raises(VolumeError, match=r'volume "scratch": cannot make .*/scratch: '):
        await kind.set_up(asked)


async def test_an_unknown_medium_is_refused(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    with pytest.raises(VolumeError, match='volume "scratch": unknown storage medium "Tape"'):
        await kind.set_up(request(kind, scratch(medium="Tape")))


async def test_nothing_is_left_of_an_empty_one_without_a_thread(tmp_path: Path, no_threads: None) -> None:
    kind = make_kind(tmp_path)
    asked = request(kind, scratch())
    await kind.set_up(asked)
    await kind.tear_down(UID, "scratch")
    assert not asked.path.exists()
    assert not (tmp_path / "pods/uid-1/plugins/kubernetes.io~empty-dir/scratch").exists()
    await kind.tear_down(UID, "scratch")


async def test_what_a_pod_left_goes_and_no_link_is_followed(tmp_path: Path) -> None:
    kind = make_kind(tmp_path / "root")
    asked = request(kind, scratch())
    await kind.set_up(asked)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").write_text("x")
    (asked.path / "link").symlink_to(tmp_path / "outside")
    nest(asked.path, 200)
    await kind.tear_down(UID, "scratch")
    assert not asked.path.exists()
    assert (tmp_path / "outside/precious").exists()


async def test_a_cancelled_removal_ends_soon_and_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = make_kind(tmp_path)
    asked = request(kind, scratch())
    await kind.set_up(asked)
    nest(asked.path, 2000)
    check, scope, checks = trio.from_thread.check_cancelled, trio.CancelScope(), 0

    def cancel_at_the_hundredth() -> None:
        nonlocal checks
        checks += 1
        if checks == 100:
            trio.from_thread.run_sync(scope.cancel)
        check()

    monkeypatch.setattr(trio.from_thread, "check_cancelled", cancel_at_the_hundredth)
    with scope:
        await kind.tear_down(UID, "scratch")
    assert scope.cancelled_caught
    assert checks == 100
    await kind.tear_down(UID, "scratch")
    assert not asked.path.exists()


@pytest.mark.root
@pytest.mark.parametrize("medium", ["", "Memory"])
async def test_what_came_back_into_it_is_unmounted_and_kept(tmp_path: Path, medium: str) -> None:
    """As a termination message's file, and a volume inside of a Bidirectional one, with another inside of that."""
    mounter = Mounter()
    kind = make_kind(tmp_path, mounter)
    asked = request(kind, scratch(medium=medium))
    await kind.set_up(asked)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deeper").mkdir(parents=True)
    (elsewhere / "precious").write_text("x")
    for name in ("message", "last"):
        (tmp_path / name).write_text("last words")
    (asked.path / "message").touch()
    (asked.path / "inner").mkdir()
    mounter.bind(tmp_path / "message", asked.path / "message")
    mounter.bind(tmp_path / "last", asked.path / "message")  # of the container's second run
    mounter.bind(elsewhere, asked.path / "inner")
    mounter.tmpfs(asked.path / "inner" / "deeper", size=None, mode=0o755, group=None, noswap=False)
    try:
        await kind.tear_down(UID, "scratch")
    finally:
        for mount in reversed(mounts_below(tmp_path)):
            mounter.unmount(mount.point)
    assert not asked.path.exists()
    assert (elsewhere / "precious").exists()
    assert [(tmp_path / name).read_text() for name in ("message", "last")] == ["last words"] * 2


async def test_a_foreign_file_system_in_its_place_is_not_unmounted(tmp_path: Path) -> None:
    mounter = FakeMounter()
    kind = make_kind(tmp_path, mounter)
    asked = request(kind, scratch())
    await kind.set_up(asked)
    (asked.path / "data").write_text("x")
    mounter.mounts.append(Mount(point=asked.path, kind="nfs4"))
    with pytest.raises(VolumeError, match="still mounted"):
        await kind.tear_down(UID, "scratch")
    assert mounter.calls == []
    assert (asked.path / "data").exists()


# In memory


@pytest.mark.parametrize(
    ("source", "limits", "allocatable", "size"),
    [
        ({}, {}, {}, None),
        ({}, {}, {"memory": "64Mi"}, 64 * MI),
        ({"sizeLimit": "1Mi"}, {}, {"memory": "64Mi"}, MI),
        ({}, {"memory": "2Mi"}, {"memory": "64Mi"}, 2 * MI),
        ({"sizeLimit": "8Mi"}, {"memory": "2Mi"}, {}, 2 * MI),
    ],
)
async def test_memory_is_a_tmpfs_of_the_least_size_without_swap(
    tmp_path: Path, source: dict[str, Any], limits: dict[str, str], allocatable: dict[str, str], size: int | None
) -> None:
    mounter = FakeMounter()
    kind = make_kind(tmp_path, mounter, **allocatable)
    containers = [{"name": "main", "image": "x", "resources": {"limits": limits}}]
    pod = pod_from_dict(
        {
            "metadata": {"name": "pod", "uid": UID},
            "spec": {
                "containers": containers,
                "volumes": [{"name": "fast", "emptyDir": {"medium": "Memory", **source}}],
            },
        }
    )
    asked = request(kind, pod)
    await kind.set_up(asked)
    await kind.set_up(asked)
    [mount] = mounter.mounts
    sizes = [] if size is None else [f"size={size}"]
    assert (mount.point, mount.kind) == (asked.path, "tmpfs")
    assert list(mount.super_options) == ["rw", "mode=1777", *sizes, "noswap"]


async def test_memory_that_a_reboot_took_is_mounted_again(tmp_path: Path) -> None:
    mounter = FakeMounter()
    kind = make_kind(tmp_path, mounter)
    asked = request(kind, scratch(medium="Memory"))
    await kind.set_up(asked)
    mounter.mounts.clear()
    await kind.set_up(asked)
    assert mounter.is_mount(asked.path)


async def test_memory_that_cannot_be_mounted_is_an_error(tmp_path: Path) -> None:
    mounter = FakeMounter(failures={"tmpfs": OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))})
    kind = make_kind(tmp_path, mounter)
    with pytest.raises(VolumeError, match=r"cannot make .*/scratch: Cannot allocate memory"):
        await kind.set_up(request(kind, scratch(medium="Memory")))
    mounter.failures.clear()
    await kind.set_up(request(kind, scratch(medium="Memory")))


async def test_without_root_memory_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    kind = make_kind(tmp_path, FakeMounter(failures={"tmpfs": PermissionError(errno.EPERM, "no")}))
    asked = request(kind, scratch(medium="Memory"))
    await kind.set_up(asked)
    assert mode(asked.path) == 0o777


@pytest.mark.root
@pytest.mark.parametrize(("group", "expected"), [(None, 0o1777), (4711, 0o3777)])
async def test_memory_looks_as_the_kubelet_has_it_and_goes_with_the_pod(
    tmp_path: Path, group: int | None, expected: int
) -> None:
    kind = make_kind(tmp_path, Mounter())
    asked = request(kind, scratch(medium="Memory", sizeLimit="1Mi"), group=group)
    await kind.set_up(asked)
    try:
        figures = os.statvfs(asked.path)
        assert figures.f_blocks * figures.f_frsize == MI
        assert (mode(asked.path), asked.path.stat().st_gid) == (expected, group or 0)
        (asked.path / "data").write_text("x")
        usage = await kind.usage(await kind.set_up(asked))
        assert usage is not None
        assert (usage.capacity, usage.inodes_used, usage.used) == (MI, 2, 4096)
    finally:
        await kind.tear_down(UID, "scratch")
    assert mounts_below(tmp_path) == []
    assert not asked.path.exists()


@pytest.mark.root
async def test_mounts_are_found_when_the_root_is_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    kind = make_kind(tmp_path / "root", Mounter())
    await kind.set_up(request(kind, scratch(medium="Memory")))
    try:
        [mount] = mounts_below(tmp_path / "real")
        assert mount.kind == "tmpfs"
    finally:
        await kind.tear_down(UID, "scratch")
    assert mounts_below(tmp_path / "real") == []


# Huge pages


def asking(*names: str, init: tuple[str, ...] = (), pod_level: tuple[str, ...] = (), medium: str = "HugePages") -> Pod:
    """A pod that asks for huge pages in containers of its own, init containers and as a whole."""

    def container(name: str, resource: str) -> dict[str, Any]:
        requests = {resource: "4Mi", "cpu": "1"}
        return {"name": name, "image": "x", "resources": {"requests": requests, "limits": requests}}

    return pod_from_dict(
        {
            "metadata": {"name": "pod", "uid": UID},
            "spec": {
                "containers": [container(f"c{number}", name) for number, name in enumerate(names)],
                "initContainers": [container(f"i{number}", name) for number, name in enumerate(init)],
                "resources": {"requests": dict.fromkeys(pod_level, "4Mi")},
                "volumes": [{"name": "huge", "emptyDir": {"medium": medium}}],
            },
        }
    )


@pytest.mark.parametrize(
    ("medium", "pod", "size"),
    [
        ("HugePages", asking("hugepages-2Mi"), "2Mi"),
        ("HugePages", asking("hugepages-2Mi", "hugepages-2Mi"), "2Mi"),
        ("HugePages", asking("cpu", init=("hugepages-1Gi",)), "1Gi"),
        ("HugePages", asking("cpu", pod_level=("hugepages-2Mi",)), "2Mi"),
        ("HugePages-2Mi", asking("hugepages-1Gi", "hugepages-2Mi"), "2Mi"),
        ("HugePages-1Gi", asking("hugepages-1Gi", "hugepages-2Mi"), "1Gi"),
        ("HugePages-1024Mi", asking("hugepages-1Gi"), "1Gi"),
    ],
)
def test_the_size_of_huge_pages_is_what_the_pod_asks_for(medium: str, pod: Pod, size: str) -> None:
    assert page_size("huge", medium, pod) == Quantity(size)


@pytest.mark.parametrize(
    ("medium", "pod", "problem"),
    [
        (
            "HugePages",
            asking("hugepages-2Mi", "hugepages-1Gi"),
            "medium: HugePages can't be used if container requests multiple huge page sizes",
        ),
        (
            "HugePages",
            asking("hugepages-2Mi", pod_level=("hugepages-1Gi",)),
            "medium: HugePages can't be used if container requests multiple huge page sizes",
        ),
        (
            "HugePages",
            asking("cpu"),
            "medium HugePages: hugePages storage requested, but there is no resource request for huge pages",
        ),
        (
            "HugePages-1Gi",
            asking("hugepages-2Mi"),
            "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages",
        ),
    ],
)
def test_huge_pages_that_were_not_asked_for_are_refused(medium: str, pod: Pod, problem: str) -> None:
    with pytest.raises(VolumeError) as refused:
        page_size("huge", medium, pod)
    assert refused.value.problem == problem


@pytest.mark.parametrize("medium", ["HugePages-", "HugePages-large"])
def test_a_size_that_is_none_is_refused(medium: str) -> None:
    with pytest.raises(VolumeError, match=medium):
        page_size("huge", medium, asking("hugepages-2Mi"))


async def test_huge_pages_are_mounted_once(tmp_path: Path) -> None:
    mounter = FakeMounter()
    kind = make_kind(tmp_path, mounter)
    asked = request(kind, asking("hugepages-2Mi"), group=4711)
    await kind.set_up(asked)
    await kind.set_up(request(kind, asking("hugepages-2Mi", medium="HugePages-2Mi")))
    assert mounter.calls == [f"hugetlbfs {asked.path}"]
    [mount] = mounter.mounts
    assert mount.super_options == ("rw", "pagesize=2M", "mode=3777", "gid=4711")
    (asked.path / "data").write_text("x")  # a folder that is not empty, as one that is a mount, cannot just be removed
    await kind.tear_down(UID, "huge")
    assert mounter.mounts == []
    assert not asked.path.exists()


async def test_huge_pages_do_not_change_their_size(tmp_path: Path) -> None:
    kind = make_kind(tmp_path, FakeMounter())
    asked = request(kind, asking("hugepages-2Mi"))
    await kind.set_up(asked)
    with pytest.raises(VolumeError) as refused:
        await kind.set_up(request(kind, asking("hugepages-1Gi", medium="HugePages-1Gi")))
    assert refused.value.problem == (
        f"pod uid-1: mounted dir {asked.path} pagesize '2Mi' and requested medium size '1Gi' differ"
    )


async def test_huge_pages_that_the_kernel_does_not_have_are_an_error(tmp_path: Path) -> None:
    kind = make_kind(tmp_path, FakeMounter(failures={"hugetlbfs": OSError(errno.EINVAL, os.strerror(errno.EINVAL))}))
    with pytest.raises(VolumeError, match=r"cannot mount huge pages of 4Mi on .*/huge: Invalid argument"):
        await kind.set_up(request(kind, asking("hugepages-4Mi")))


@pytest.mark.root
async def test_files_can_be_on_huge_pages(tmp_path: Path) -> None:
    kind = make_kind(tmp_path, Mounter())
    asked = request(kind, asking("hugepages-2Mi", medium="HugePages-2Mi"))
    try:
        await kind.set_up(asked)
    except VolumeError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        pytest.skip(f"this machine has no huge pages of 2Mi: {error}")
    try:
        assert os.statvfs(asked.path).f_bsize == 2 * MI
        assert mode(asked.path) == 0o1777
        await kind.set_up(asked)
        [mount] = mounts_below(tmp_path)
        assert mount.kind == "hugetlbfs"
    finally:
        await kind.tear_down(UID, "huge")
    assert mounts_below(tmp_path) == []


# What else is asked of a kind


async def test_the_disk_tells_the_next_agent_what_was_set_up(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    assert await kind.reconstruct(UID, "scratch") is None
    await kind.set_up(request(kind, scratch()))
    found = await make_kind(tmp_path).reconstruct(UID, "scratch")
    assert found is not None
    assert (found.inner_name, found.plugin) == ("scratch", "kubernetes.io/empty-dir")
    assert kind.unique_name(found, UID) == "kubernetes.io/empty-dir/uid-1-scratch"


async def test_what_is_in_it_is_measured(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    mounted = await kind.set_up(request(kind, scratch()))
    assert mounted.path is not None
    (mounted.path / "data").write_bytes(b"x" * 5000)
    usage = await kind.usage(mounted)
    assert usage is not None
    assert usage.inodes_used == 2
    assert usage.used is not None
    assert 5000 <= usage.used <= 20_000
