"""Mounts are made as asked for, in steps that leave nothing half done, and go again without harm to others."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trikubelet.linux import mount_calls
from trikubelet.linux.mount_table import Mount, MountTable
from trikubelet.linux.mounter import Mounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.root

MEBIBYTE = 1 << 20
LINUX = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


@pytest.fixture
def mounter() -> Mounter:
    return Mounter()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Path]:
    """A folder below which nothing stays mounted."""
    yield tmp_path
    for mount in MountTable.read().below(tmp_path):
        Mounter().unmount(mount.point)
    assert MountTable.read().below(tmp_path) == []


@pytest.fixture
def folder(stage: Path) -> Path:
    """With a file in it."""
    (stage / "folder").mkdir()
    (stage / "folder" / "file").write_text("x")
    return stage / "folder"


@pytest.fixture
def at(stage: Path) -> Path:
    (stage / "at").mkdir()
    return stage / "at"


@pytest.fixture(params=["as they are", "missing", "forbidden"])
def new_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The calls of Linux 5.2 and later may be missing, or a container's filter may forbid them."""

    def refuse(*args: object, **options: object) -> int:
        raise OSError(errno.ENOSYS if request.param == "missing" else errno.EPERM, "refused")

    if request.param != "as they are":
        for name in ("new_mount", "open_tree", "mount_setattr", "move_mount", "make_private"):
            monkeypatch.setattr(mount_calls, name, refuse)
    return str(request.param)


def mount_at(path: Path) -> Mount:
    found = MountTable.read().at(path)
    assert found is not None
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# New file systems


def test_a_tmpfs_has_its_size_mode_and_group_from_the_beginning(mounter: Mounter, at: Path) -> None:
    mounter.tmpfs(at, size=MEBIBYTE, mode=0o3777, group=1234, noswap=False)
    info = at.stat()
    assert (stat.S_IMODE(info.st_mode), info.st_gid) == (0o3777, 1234)
    found = mount_at(at)
    assert found.kind == "tmpfs"
    assert "size=1024k" in found.super_options
    assert {"nosuid", "nodev"} <= set(found.options)


def test_a_tmpfs_without_a_size_has_the_kernels(mounter: Mounter, at: Path) -> None:
    mounter.tmpfs(at, size=None, mode=0o1777, group=None, noswap=False)
    assert not [option for option in mount_at(at).super_options if option.startswith("size")]


@pytest.mark.skipif(LINUX < (6, 4), reason="noswap came with Linux 6.4")
@pytest.mark.parametrize("noswap", [True, False])
def test_a_tmpfs_does_without_swap_where_that_is_asked_for(mounter: Mounter, at: Path, noswap: bool) -> None:
    mounter.tmpfs(at, size=MEBIBYTE, mode=0o1777, group=None, noswap=noswap)
    assert ("noswap" in mount_at(at).super_options) is noswap


def test_a_user_namespace_gets_its_tmpfs_all_the_same(at: Path) -> None:
    """The kernel refuses `noswap` there."""
    program = f"""
import pathlib
from trikubelet.linux.mounter import Mounter
mounter, at = Mounter(), pathlib.Path({str(at)!r})
mounter.tmpfs(at, size=4096, mode=0o1777, group=None, noswap=True)
print(mounter.table().at(at).super_options)
"""
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "size=4k" in done.stdout
    assert "noswap" not in done.stdout


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EPERM])
def test_an_old_kernel_is_asked_again_without_noswap(
    mounter: Mounter, at: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    asked = []

    def old_mount(source: str, target: str, kind: str, flags: int, data: str, *, name: Path) -> None:
        asked.append(data)
        if "noswap" in data:
            raise OSError(refusal, "refused")

    monkeypatch.setattr(mount_calls, "mount", old_mount)
    mounter.tmpfs(at, size=None, mode=0o1777, group=None, noswap=True)
    assert asked == ["mode=1777,noswap", "mode=1777"]


def test_huge_pages_have_the_size_that_is_asked_for(mounter: Mounter, at: Path, new_calls: str) -> None:
    mounter.hugetlbfs(at, 2 * MEBIBYTE, mode=0o3777, group=1234)
    found = mount_at(at)
    assert (found.kind, at.stat().st_gid, stat.S_IMODE(at.stat().st_mode)) == ("hugetlbfs", 1234, 0o3777)
    assert "pagesize=2M" in found.super_options


def test_huge_pages_of_a_size_that_no_processor_has_are_refused(mounter: Mounter, at: Path, new_calls: str) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        mounter.hugetlbfs(at, 3 * MEBIBYTE, mode=0o1777, group=None)
    assert not mounter.is_mount(at)


# Binds


@pytest.mark.parametrize("by", ["path", "descriptor"])
def test_a_folder_is_bound(mounter: Mounter, folder: Path, at: Path, new_calls: str, by: str) -> None:
    before = descriptors()
    source = os.open(folder, os.O_PATH) if by == "descriptor" else folder
    mounter.bind(source, at)
    if isinstance(source, int):
        os.close(source)
    assert (at / "file").read_text() == "x"
    (at / "new").touch()
    assert (folder / "new").exists()
    assert descriptors() == before


def test_a_file_is_bound_through_its_descriptor_whatever_its_name_leads_to_by_now(
    mounter: Mounter, folder: Path, stage: Path, new_calls: str
) -> None:
    (stage / "place").touch()
    source = os.open(folder / "file", os.O_PATH)
    (folder / "file").rename(folder / "moved")
    (folder / "file").symlink_to("/etc/passwd")
    mounter.bind(source, stage / "place")
    os.close(source)
    assert (stage / "place").read_text() == "x"


def test_a_bind_has_the_options_that_are_asked_for(mounter: Mounter, folder: Path, at: Path, new_calls: str) -> None:
    mounter.bind(folder, at, options=["bind", "ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime"])
    assert {"ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime"} <= set(mount_at(at).options)
    with pytest.raises(OSError, match="Read-only"):
        (at / "new").touch()
    (folder / "new").touch()


def test_a_bind_keeps_the_options_of_what_it_shows_but_for_those_that_are_asked_for(
    mounter: Mounter, folder: Path, at: Path, stage: Path, new_calls: str
) -> None:
    mounter.bind(folder, at, options=["nosuid", "noexec", "noatime"])
    (stage / "second").mkdir()
    mounter.bind(at, stage / "second", options=["ro", "exec", "relatime"])
    options = set(mount_at(stage / "second").options)
    assert {"ro", "nosuid", "relatime"} <= options
    assert not {"noexec", "noatime"} & options


@pytest.mark.parametrize(
    ("options", "wins"), [(("ro", "rw"), "rw"), (("rw", "ro"), "ro"), (("noatime", "relatime"), "relatime")]
)
def test_the_last_of_two_options_that_exclude_each_other_wins(
    mounter: Mounter, folder: Path, at: Path, new_calls: str, options: tuple[str, ...], wins: str
) -> None:
    mounter.bind(folder, at, options=options)
    assert wins in mount_at(at).options


@pytest.mark.parametrize(("options", "count"), [((), 1), (("rbind", "ro"), 2)])
def test_mounts_below_are_bound_too_only_when_that_is_asked_for(
    mounter: Mounter, folder: Path, at: Path, options: tuple[str, ...], count: int
) -> None:
    (folder / "inner").mkdir()
    mounter.tmpfs(folder / "inner", size=MEBIBYTE, mode=0o755, group=None, noswap=False)
    mounter.bind(folder, at, options=options)
    found = MountTable.read().below(at)
    assert len(found) == count
    assert all("ro" in mount.options for mount in found) is bool(options)


def test_an_option_that_a_bind_cannot_have_is_refused_before_anything_is_done(
    mounter: Mounter, folder: Path, at: Path
) -> None:
    with pytest.raises(OSError, match=r"options that a bind mount may have \(.*nosuid.*\), got 'size=5'"):
        mounter.bind(folder, at, options=["ro", "size=5"])
    assert not mounter.is_mount(at)


def test_nothing_is_mounted_on_a_link(mounter: Mounter, folder: Path, at: Path, stage: Path) -> None:
    (stage / "link").symlink_to(at)
    attempts: list[Callable[[], None]] = [
        lambda: mounter.bind(folder, stage / "link"),
        lambda: mounter.tmpfs(stage / "link", size=None, mode=0o755, group=None, noswap=False),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="got a link"):
            attempt()
    assert MountTable.read().below(stage) == []


def test_a_missing_source_or_place_is_named(mounter: Mounter, folder: Path, at: Path, new_calls: str) -> None:
    with pytest.raises(FileNotFoundError):
        mounter.bind(folder / "missing", at)
    with pytest.raises(FileNotFoundError, match="at/missing"):
        mounter.bind(folder, at / "missing")


def test_a_path_with_a_nul_is_not_cut_there(mounter: Mounter, folder: Path, at: Path) -> None:
    with pytest.raises(ValueError, match="null"):
        mounter.bind(Path(f"{folder}\0/inner"), at)


def test_a_bind_whose_options_cannot_be_set_in_a_second_step_is_undone(
    mounter: Mounter, folder: Path, at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mount_calls.mount

    def first_only(source: str, target: str, kind: str, flags: int, data: str, *, name: Path) -> None:
        if flags & mount_calls.MS_REMOUNT:
            raise OSError(errno.EPERM, "refused")
        real(source, target, kind, flags, data, name=name)

    def missing(*args: object, **options: object) -> int:
        raise OSError(errno.ENOSYS, "missing")

    monkeypatch.setattr(mount_calls, "open_tree", missing)
    monkeypatch.setattr(mount_calls, "mount", first_only)
    with pytest.raises(OSError, match="refused"):
        mounter.bind(folder, at, options=["ro"])
    assert not mounter.is_mount(at)


class Stop(BaseException):
    """The agent ends here."""


class Steps:
    """Counts the steps that are announced, and ends the work at one of them."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.last: int | None = None
        self.active = False
        sys.addaudithook(self._hear)  # for good: there is no way to take it away

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.active and event == "trikubelet.mount":
            if len(self.seen) == self.last:
                raise Stop
            self.seen.append(str(arguments[0]))


@pytest.fixture
def steps() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    steps.active = False


@pytest.mark.parametrize("last", range(4))
def test_a_read_only_bind_that_ends_at_any_step_is_there_complete_or_not_at_all(
    mounter: Mounter, folder: Path, at: Path, steps: Steps, last: int
) -> None:
    steps.last, steps.active = last, True
    if last < 3:
        with pytest.raises(Stop):
            mounter.bind(folder, at, options=["ro"])
        assert not mounter.is_mount(at)
    else:
        mounter.bind(folder, at, options=["ro"])
        assert "ro" in mount_at(at).options
    assert steps.seen == ["open_tree", "mount_setattr", "move_mount"][:last]


# Unmounting


def test_unmounting_what_is_not_mounted_is_fine(mounter: Mounter, folder: Path, new_calls: str) -> None:
    mounter.unmount(folder)
    mounter.unmount(folder / "missing")
    mounter.unmount(folder / "file" / "below")
    assert (folder / "file").exists()


def test_the_newest_of_two_mounts_goes_first(mounter: Mounter, folder: Path, at: Path, new_calls: str) -> None:
    mounter.bind(folder, at)
    mounter.tmpfs(at, size=MEBIBYTE, mode=0o755, group=None, noswap=False)
    mounter.unmount(at)
    assert (at / "file").exists()
    mounter.unmount(at, force=True)
    assert not mounter.is_mount(at)
    assert list(at.iterdir()) == []


def test_what_is_in_use_is_detached(mounter: Mounter, at: Path) -> None:
    mounter.tmpfs(at, size=MEBIBYTE, mode=0o755, group=None, noswap=False)
    with (at / "open").open("w"):
        mounter.unmount(at)
        assert not mounter.is_mount(at)


def test_nothing_is_unmounted_through_a_link(mounter: Mounter, folder: Path, at: Path, new_calls: str) -> None:
    mounter.bind(folder, at)
    link = at.with_name("link")
    link.symlink_to(at)
    mounter.unmount(link)
    assert mounter.is_mount(at)


def test_a_mount_of_the_node_that_shows_inside_of_a_bind_stays_when_the_bind_goes(
    mounter: Mounter, stage: Path, at: Path, new_calls: str
) -> None:
    """A bind shares with where it comes from: what is unmounted inside of one goes in the other, too."""
    source = stage / "source"
    source.mkdir()
    mounter.tmpfs(source, size=MEBIBYTE, mode=0o755, group=None, noswap=False)
    subprocess.run(["mount", "--make-shared", str(source)], check=True)
    mounter.bind(source, at)
    (source / "disk").mkdir()
    mounter.tmpfs(source / "disk", size=MEBIBYTE, mode=0o755, group=None, noswap=False)
    assert mounter.is_mount(at / "disk")
    mounter.unmount(at)
    assert not MountTable.read().below(at)
    assert mounter.is_mount(source / "disk")


# Looking


def test_a_bind_within_one_file_system_is_a_mount(mounter: Mounter, folder: Path, at: Path) -> None:
    assert not mounter.is_mount(at)
    mounter.bind(folder, at)
    assert mounter.is_mount(at)
    assert not mounter.is_mount(at / "file")
    at.with_name("link").symlink_to(at)
    assert not mounter.is_mount(at.with_name("link"))
    assert not mounter.is_mount(at / "missing")
    assert not mounter.is_mount(at / "file" / "below")


@pytest.mark.parametrize("answer", [None, errno.ENOTCONN, errno.ESTALE])
def test_where_the_file_system_does_not_tell_the_table_does(
    mounter: Mounter, folder: Path, at: Path, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    def ask(path: Path) -> None:
        if answer is not None:
            raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(mount_calls, "is_mount_root", ask)
    assert not mounter.is_mount(at)
    mounter.bind(folder, at)
    assert mounter.is_mount(at)
