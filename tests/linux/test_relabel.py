"""Labels of files. Every kernel keeps them for root, whether it has SELinux or not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trikubelet.linux.relabel import NEVER, ForbiddenPathError, has_label, relabel
from trikubelet.linux.selinux import ATTRIBUTE
from trikubelet.linux.trees import remove_tree

pytestmark = pytest.mark.root
LABEL = "system_u:object_r:container_file_t:s0:c1,c2"


def label(path: Path) -> str:
    """Empty on a kernel without SELinux, for what has none."""
    if ATTRIBUTE not in os.listxattr(path, follow_symlinks=False):
        return ""
    return os.getxattr(path, ATTRIBUTE, follow_symlinks=False).rstrip(b"\0").decode()


def test_a_folder_and_all_in_it_get_the_label_and_no_link_is_followed(tmp_path: Path) -> None:
    volume, other = tmp_path / "volume", tmp_path / "other"
    (volume / "a/b").mkdir(parents=True)
    other.mkdir()
    for file in (volume / "a/b/file", volume / "file", other / "file"):
        file.touch()
    os.mkfifo(volume / "pipe")
    (volume / "link").symlink_to(other / "file")
    (volume / "away").symlink_to(other)
    before = label(other / "file")
    relabel(volume, LABEL)
    for path in (volume, *volume.rglob("*")):
        assert label(path) == LABEL
    assert [label(path) for path in (other, other / "file")] == [before] * 2
    assert has_label(volume, LABEL)
    assert not has_label(other, LABEL)


def test_a_file_and_what_a_link_leads_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    relabel(tmp_path / "link", LABEL)
    assert label(tmp_path / "file") == LABEL
    assert label(tmp_path / "link") != LABEL


def test_what_has_it_is_only_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time, and when the first was interrupted."""
    for name in ("a", "b"):
        (tmp_path / "volume" / name).mkdir(parents=True)
        (tmp_path / "volume" / name / "file").touch()
    done: list[str] = []
    set_attribute = os.setxattr

    def recorded(path: str, name: str, value: bytes, *, follow_symlinks: bool) -> None:
        done.append(path)
        set_attribute(path, name, value, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "setxattr", recorded)
    folders = 0

    def interrupt() -> None:
        nonlocal folders
        folders += 1
        if folders == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        relabel(tmp_path / "volume", LABEL, interrupt)
    assert len(done) == 2
    assert not has_label(tmp_path / "volume", LABEL)  # it gets it last
    relabel(tmp_path / "volume", LABEL)
    assert len(done) == 5
    relabel(tmp_path / "volume", LABEL)
    assert len(done) == 5


def test_folders_may_be_nested_by_the_thousand(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    here = os.open(tmp_path / "volume", os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    relabel(tmp_path / "volume", LABEL)
    assert os.getxattr(here, ATTRIBUTE).rstrip(b"\0").decode() == LABEL
    os.close(here)
    remove_tree(tmp_path / "volume")


def test_what_is_mounted_inside_keeps_its_own(tmp_path: Path) -> None:
    inside, other = tmp_path / "volume/inside", tmp_path / "other"
    for folder in (inside, other):
        folder.mkdir(parents=True)
    (other / "file").touch()
    subprocess.run(["mount", "--bind", str(other), str(inside)], check=True)
    try:
        before = label(other / "file")
        relabel(tmp_path / "volume", LABEL)
        assert label(other / "file") == before
        assert label(tmp_path / "volume") == LABEL
    finally:
        subprocess.run(["umount", str(inside)], check=True)


@pytest.mark.parametrize("moves", [1, 4, 5])
def test_a_folder_that_is_moved_away_leads_nowhere_else(tmp_path: Path, moves: int) -> None:
    """Its `..` is outside then. After that it is tried again, but not for ever."""
    for number in range(moves):
        (tmp_path / f"volume/{number}/b").mkdir(parents=True)
    (tmp_path / "outside/c").mkdir(parents=True)
    inside = {str(number) for number in range(moves)}

    def move() -> None:
        """Away, the folder that the walk is in."""
        here = {entry.resolve() for entry in Path("/proc/self/fd").iterdir()}
        for number in sorted(inside):
            if tmp_path / f"volume/{number}/b" in here:
                inside.remove(number)
                (tmp_path / f"volume/{number}").rename(tmp_path / f"outside/c/{number}")

    before = label(tmp_path / "outside")
    if moves < 5:
        relabel(tmp_path / "volume", LABEL, move)
        assert has_label(tmp_path / "volume", LABEL)
    else:
        with pytest.raises(OSError, match="moved about"):
            relabel(tmp_path / "volume", LABEL, move)
    assert inside == set()
    assert [label(tmp_path / name) for name in ("outside", "outside/c")] == [before] * 2


@pytest.mark.parametrize("name", NEVER.split())
def test_what_the_machine_needs_is_refused_by_every_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name.lstrip("/")
    if name in ("/etc/passwd", "/etc/shadow"):
        path.parent.mkdir(parents=True)
        path.touch()
    else:
        path.mkdir(parents=True, exist_ok=True)
    with pytest.raises(ForbiddenPathError, match="not relabelled for containers"):
        relabel(path, LABEL, root=tmp_path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ForbiddenPathError):
        relabel(tmp_path / "link", LABEL, root=tmp_path)
    assert label(path) != LABEL


def test_a_home_and_a_folder_by_another_mount_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "root/etc", "place"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", "/home")
    with pytest.raises(ForbiddenPathError):
        relabel(tmp_path / "home", LABEL, root=tmp_path)
    subprocess.run(["mount", "--bind", str(tmp_path / "root/etc"), str(tmp_path / "place")], check=True)
    try:
        with pytest.raises(ForbiddenPathError):
            relabel(tmp_path / "place", LABEL, root=tmp_path / "root")
    finally:
        subprocess.run(["umount", str(tmp_path / "place")], check=True)


def test_a_file_system_without_labels_has_none() -> None:
    relabel(Path("/proc/self/fdinfo"), LABEL)
