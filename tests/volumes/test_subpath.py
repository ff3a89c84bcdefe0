"""What a container gets for a sub path is in its volume and stays what it was, and goes without a trace."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.descriptors import open_descriptors
from tests.patience import PATIENCE
from tests.volumes import link_swapper
from tests.volumes.fake_mounter import FakeMounter
from trikubelet.linux import safe_path
from trikubelet.linux.mount_table import MountTable
from trikubelet.linux.mounter import Mounter
from trikubelet.linux.trees import StillMountedError
from trikubelet.volumes import layout
from trikubelet.volumes.subpath import bind_subpath, clean_subpaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEBIBYTE = 1 << 20
ATTACK = 0.8
"""Seconds, or more until both outcomes were seen."""


@pytest.fixture
def mounter() -> Mounter:
    return Mounter()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The agent's root folder, below which nothing stays mounted."""
    layout.pod_directory(tmp_path, "uid").mkdir(parents=True)
    yield tmp_path
    for mount in MountTable.read().below(tmp_path):
        Mounter().unmount(mount.point)


@pytest.fixture
def volume(root: Path) -> Path:
    path = root / "pods" / "uid" / "volumes" / layout.EMPTY_DIR / "data"
    (path / "folder").mkdir(parents=True)
    (path / "folder" / "file").write_text("x")
    path.chmod(0o2775)
    return path


@pytest.fixture
def folder(root: Path) -> Path:
    return layout.subpaths_directory(root, "uid")


def target(root: Path, index: int = 0, *, volume: str = "data", container: str = "main") -> Path:
    return layout.subpath_target(root, "uid", volume, container, index)


# Binding


@pytest.mark.root
def test_a_folder_is_bound_to_a_place_of_its_own(mounter: Mounter, root: Path, volume: Path) -> None:
    before = open_descriptors()
    bound = bind_subpath(mounter, volume, "folder", target(root, 3))
    assert bound == root / "pods" / "uid" / "volume-subpaths" / "data" / "main" / "3"
    assert (bound / "file").read_text() == "x"
    assert open_descriptors() == before


@pytest.mark.root
def test_what_was_bound_stays_when_a_link_takes_its_name(mounter: Mounter, root: Path, volume: Path) -> None:
    bound = bind_subpath(mounter, volume, "folder", target(root))
    (volume / "folder").rename(volume / "moved")
    (volume / "folder").symlink_to("/etc")
    assert [path.name for path in bound.iterdir()] == ["file"]


@pytest.mark.root
@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
def test_what_is_no_folder_is_bound_to_a_file(mounter: Mounter, root: Path, volume: Path, kind: str) -> None:
    thing = volume / "folder" / kind
    if kind != "file":
        os.mknod(thing, stat.S_IFIFO if kind == "pipe" else stat.S_IFSOCK)
    bound = bind_subpath(mounter, volume, f"folder/{kind}", target(root))
    assert os.path.samestat(bound.lstat(), thing.lstat())
    clean_subpaths(mounter, bound.parents[2])
    assert thing.exists()


@pytest.mark.root
def test_what_is_missing_becomes_a_folder_with_the_volumes_mode(mounter: Mounter, root: Path, volume: Path) -> None:
    bound = bind_subpath(mounter, volume, "new/deep", target(root))
    for path in (bound, volume / "new", volume / "new" / "deep"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o2775


def test_the_places_are_the_agents_alone(root: Path, volume: Path) -> None:
    bound = bind_subpath(FakeMounter(), volume, "folder", target(root))
    for path in (bound, *bound.parents[:3]):
        assert stat.S_IMODE(path.stat().st_mode) & 0o027 == 0
    file = bind_subpath(FakeMounter(), volume, "folder/file", target(root, 1))
    assert stat.S_IMODE(file.stat().st_mode) & 0o137 == 0


@pytest.mark.root
def test_a_second_call_keeps_what_is_bound(
    mounter: Mounter, root: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind_subpath(mounter, volume, "folder", target(root))
    first = MountTable.read().at(bound)
    for call in ("bind", "unmount"):
        monkeypatch.delattr(Mounter, call)
    assert bind_subpath(mounter, volume, "folder", target(root)) == bound
    monkeypatch.undo()
    assert MountTable.read().below(bound) == [first]


@pytest.mark.root
@pytest.mark.parametrize("sub_path", ["folder", "folder/file"])
@pytest.mark.parametrize("next_one", ["other", "other/file"])
def test_something_else_at_the_name_takes_the_place(
    mounter: Mounter, root: Path, volume: Path, sub_path: str, next_one: str
) -> None:
    """A container that starts anew gets what is there now."""
    bind_subpath(mounter, volume, sub_path, target(root))
    (volume / "other").mkdir()
    (volume / "other" / "file").write_text("y")
    bound = bind_subpath(mounter, volume, next_one, target(root))
    assert ((bound / "file") if bound.is_dir() else bound).read_text() == "y"
    assert len(MountTable.read().below(bound)) == 1
    assert (volume / "folder" / "file").read_text() == "x"


@pytest.mark.root
def test_a_folder_made_anew_under_the_same_name_takes_the_place(mounter: Mounter, root: Path, volume: Path) -> None:
    bind_subpath(mounter, volume, "folder", target(root))
    (volume / "folder" / "file").unlink()
    (volume / "folder").rmdir()
    (volume / "folder").mkdir()
    (volume / "folder" / "second").touch()
    bound = bind_subpath(mounter, volume, "folder", target(root))
    assert [path.name for path in bound.iterdir()] == ["second"]


@pytest.mark.parametrize("link", ["/etc", "../..", "/proc/self/root/etc"])
def test_what_leads_out_is_refused_and_nothing_is_bound(root: Path, volume: Path, link: str) -> None:
    mounter = FakeMounter()
    (volume / "link").symlink_to(link)
    with pytest.raises(ValueError, match="leads out"):
        bind_subpath(mounter, volume, "link", target(root))
    assert mounter.calls == []


def test_a_link_in_place_of_the_place_is_taken_away_not_followed(root: Path, volume: Path) -> None:
    place = target(root)
    place.parent.mkdir(parents=True)
    (root / "victim").mkdir()
    place.symlink_to(root / "victim")
    mounter = FakeMounter()
    bind_subpath(mounter, volume, "folder", place)
    assert not place.is_symlink()
    assert mounter.mount_at(place).root == str(volume / "folder")
    assert (root / "victim").is_dir()


def test_a_bind_that_failed_is_made_by_the_next_call(root: Path, volume: Path) -> None:
    mounter = FakeMounter(failures={"bind": OSError(errno.ENOMEM, "no memory")})
    before = open_descriptors()
    with pytest.raises(OSError, match="no memory"):
        bind_subpath(mounter, volume, "folder", target(root))
    assert open_descriptors() == before
    mounter.failures.clear()
    bind_subpath(mounter, volume, "folder", target(root))
    assert mounter.is_mount(target(root))


def test_a_mount_that_cannot_be_taken_away_is_an_error(root: Path, volume: Path) -> None:
    mounter = FakeMounter()
    bind_subpath(mounter, volume, "folder", target(root))
    for _ in range(20):
        mounter.bind(volume, target(root))
    with pytest.raises(StillMountedError):
        bind_subpath(mounter, volume, "folder/file", target(root))


# Cleaning


@pytest.mark.root
def test_all_is_unmounted_and_removed_and_the_volume_stays(
    mounter: Mounter, root: Path, volume: Path, folder: Path
) -> None:
    bind_subpath(mounter, volume, "folder", target(root))
    bind_subpath(mounter, volume, "folder/file", target(root, 1))
    bind_subpath(mounter, volume, "folder", target(root, container="other"))
    mounter.bind(volume, target(root))  # twice at one place
    clean_subpaths(mounter, folder)
    assert not folder.exists()
    assert MountTable.read().below(root) == []
    assert (volume / "folder" / "file").read_text() == "x"
    clean_subpaths(mounter, folder)


@pytest.mark.root
def test_the_sub_paths_of_one_volume_go_alone_and_the_folder_with_the_last(
    mounter: Mounter, root: Path, volume: Path, folder: Path
) -> None:
    bind_subpath(mounter, volume, "folder", target(root))
    other = bind_subpath(mounter, volume, "folder", target(root, volume="other"))
    clean_subpaths(mounter, folder, "data")
    assert [path.name for path in folder.iterdir()] == ["other"]
    assert mounter.is_mount(other)
    clean_subpaths(mounter, folder, "never there")
    clean_subpaths(mounter, folder, "other")
    assert not folder.exists()


@pytest.mark.root
def test_all_is_found_where_the_root_folder_is_behind_a_link(
    mounter: Mounter, root: Path, volume: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    link = tmp_path_factory.mktemp("links") / "root"
    link.symlink_to(root)
    bound = bind_subpath(mounter, volume, "folder", target(link))
    assert mounter.is_mount(bound)
    clean_subpaths(mounter, layout.subpaths_directory(link, "uid"))
    assert MountTable.read().below(root) == []


@pytest.mark.root
def test_a_disk_of_the_node_that_shows_inside_of_a_sub_path_stays_mounted(
    mounter: Mounter, root: Path, folder: Path
) -> None:
    source = root / "source"
    source.mkdir()
    mounter.tmpfs(source, size=MEBIBYTE, mode=0o755, group=None, noswap=False)
    subprocess.run(["mount", "--make-shared", str(source)], check=True)
    disk = source / "folder" / "disk"
    disk.mkdir(parents=True)
    bound = bind_subpath(mounter, source, "folder", target(root))
    mounter.tmpfs(disk, size=MEBIBYTE, mode=0o755, group=None, noswap=False)
    assert mounter.is_mount(bound / "disk")
    clean_subpaths(mounter, folder)
    assert not folder.exists()
    assert mounter.is_mount(disk)


@pytest.mark.parametrize("where", ["", "data", "data/main"])
def test_a_link_in_place_of_a_folder_is_not_followed(root: Path, folder: Path, where: str) -> None:
    victim = root / "victim"
    (victim / "main" / "0").mkdir(parents=True)
    place = folder / where
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim)
    with pytest.raises(NotADirectoryError):
        clean_subpaths(FakeMounter(), folder)
    assert (victim / "main" / "0").is_dir()


@pytest.mark.parametrize("content", ["file", "folder"])
def test_what_nobody_bound_there_is_never_deleted(root: Path, folder: Path, content: str) -> None:
    place = target(root)
    place.parent.mkdir(parents=True)
    if content == "file":
        place.write_text("precious")
    else:
        (place / "precious").mkdir(parents=True)
    with pytest.raises(OSError, match="empty"):
        clean_subpaths(FakeMounter(), folder)
    assert place.exists()


@pytest.mark.root
def test_what_is_still_mounted_is_told(mounter: Mounter, root: Path, volume: Path, folder: Path) -> None:
    bound = bind_subpath(mounter, volume, "folder", target(root))
    with pytest.raises(StillMountedError, match="main/0"):
        clean_subpaths(FakeMounter(), folder)
    assert (bound / "file").exists()


# Under attack


def no_openat2(folder: int, path: str, flags: int) -> int:
    raise OSError(errno.ENOSYS, "missing", path)


@pytest.mark.root
@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_container_that_swaps_links_meanwhile_never_gets_out(
    mounter: Mounter, root: Path, folder: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "old":
        monkeypatch.setattr(safe_path, "open_beneath", no_openat2)
    volume, outside = root / "volume", root / "outside"
    link_swapper.prepare(volume, outside)
    outcomes = {"inside": 0, "refused": 0}
    module = [sys.executable, "-m", "tests.volumes.link_swapper", str(volume), str(outside)]
    with subprocess.Popen(module, stdout=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdout is not None
            attacker.stdout.readline()
            began = time.monotonic()
            for number in itertools.count():
                sub_path = ("door/inner", "door/inner/file", "new/deep", f"door/made-{number}")[number % 4]
                outcomes[try_once(mounter, volume, sub_path, target(root, number % 4))] += 1
                if time.monotonic() - began > (ATTACK if all(outcomes.values()) else PATIENCE):
                    break
        finally:
            attacker.kill()
    clean_subpaths(mounter, folder)
    assert min(outcomes.values()) > 0
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("*")) == ["inner", "inner/file"]
    assert (outside / "inner" / "file").read_text() == "outside"


def try_once(mounter: Mounter, volume: Path, sub_path: str, place: Path) -> str:
    try:
        bound = bind_subpath(mounter, volume, sub_path, place)
    except (OSError, ValueError):
        return "refused"
    file = bound if bound.is_file() else bound / "file"
    assert not file.exists() or file.read_text() == "inside"
    assert not (bound / "inner").exists()
    return "inside"
