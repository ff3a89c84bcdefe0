"""A subPath stays in its volume, also while the pod swaps folders for links."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from trikubelet.linux import safe_path
from trikubelet.linux.mount_calls import open_beneath
from trikubelet.linux.safe_path import MAX_DEPTH, open_in_volume


def resolve_in_volume(volume: Path, sub_path: str) -> Path:
    found = open_in_volume(volume, sub_path)
    try:
        return Path(f"/proc/self/fd/{found}").readlink()
    finally:
        os.close(found)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def open_descriptors() -> int:
    return len(names(Path("/proc/self/fd")))


@pytest.fixture(autouse=True, params=["kernel", "old kernel", "busy kernel"])
def lookup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Without openat2, or where it only ever says that something was renamed, all is the same."""
    refusal = {"old kernel": errno.ENOSYS, "busy kernel": errno.EAGAIN}.get(request.param)

    def refuse(folder: int, path: str, flags: int) -> int:
        assert refusal is not None
        raise OSError(refusal, os.strerror(refusal), path)

    if refusal is not None:
        monkeypatch.setattr(safe_path, "open_beneath", refuse)
    return str(request.param)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    path = tmp_path / "volume"
    path.mkdir()
    path.chmod(0o2775)
    return path


def test_what_is_missing_is_made_with_the_volumes_mode(volume: Path) -> None:
    assert resolve_in_volume(volume, "a/b") == volume / "a" / "b"
    for path in (volume / "a", volume / "a" / "b"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o2775


def test_what_is_there_keeps_its_mode(volume: Path) -> None:
    (volume / "a").mkdir(mode=0o700)
    (volume / "a" / "file").write_text("x")
    assert resolve_in_volume(volume, "a/file") == volume / "a" / "file"
    assert stat.S_IMODE((volume / "a").stat().st_mode) & 0o777 == 0o700


def test_links_that_stay_inside_are_followed(volume: Path) -> None:
    (volume / "real" / "deep").mkdir(parents=True)
    (volume / "link").symlink_to("real/deep")
    (volume / "real" / "back").symlink_to("../link")
    assert resolve_in_volume(volume, "real/back/new") == volume / "real" / "deep" / "new"


def test_an_absolute_link_of_the_node_is_followed_while_it_stays_inside(volume: Path) -> None:
    (volume / "real" / "deep").mkdir(parents=True)
    (volume / "real" / "link").symlink_to(volume / "real" / "deep")
    (volume / "top").symlink_to(volume)
    assert resolve_in_volume(volume, "real/link") == volume / "real" / "deep"
    assert resolve_in_volume(volume, "real/link/new") == volume / "real" / "deep" / "new"
    assert resolve_in_volume(volume, "top/real") == volume / "real"


def test_a_link_whose_target_is_missing_leads_to_a_new_folder(volume: Path) -> None:
    (volume / "link").symlink_to("a/b")
    assert resolve_in_volume(volume, "link") == volume / "a" / "b"
    assert (volume / "a" / "b").is_dir()


def test_what_is_no_folder_is_opened_without_being_touched(volume: Path) -> None:
    os.mkfifo(volume / "pipe")
    found = open_in_volume(volume, "pipe")
    assert stat.S_ISFIFO(os.fstat(found).st_mode)
    os.close(found)


def test_folders_deeper_than_descriptors_are_held_are_found_only_by_the_kernel(volume: Path, lookup: str) -> None:
    deep = "/".join("d" * (MAX_DEPTH + 10))
    (volume / deep).mkdir(parents=True)
    if lookup == "kernel":
        assert resolve_in_volume(volume, deep) == volume / deep
    else:
        with pytest.raises(OSError, match="folders deep"):
            resolve_in_volume(volume, deep)


@pytest.mark.parametrize("sub_path", ["/etc", "..", "a/../../b", "a/..", "a\0/b"])
def test_an_absolute_path_and_one_that_climbs_are_refused(volume: Path, sub_path: str) -> None:
    with pytest.raises(ValueError, match="relative path without"):
        resolve_in_volume(volume, sub_path)


@pytest.mark.parametrize(
    "target",
    [
        "/etc",
        "..",
        "../outside",
        "a/../../outside",
        "/proc/self/root",
        "{volume}/../outside",
        "{volume}-2",
        "{volume}/a/../../outside",
    ],
)
@pytest.mark.parametrize("sub_path", ["link", "link/passwd", "link/new/folder"])
def test_a_link_that_leads_out_is_refused_and_nothing_is_made(
    volume: Path, tmp_path: Path, target: str, sub_path: str
) -> None:
    (tmp_path / "outside").mkdir()
    (volume / "a").mkdir()
    (tmp_path / "volume-2").mkdir()
    leads_to = target.format(volume=volume)
    (volume / "link").symlink_to(leads_to)
    with pytest.raises(ValueError, match="leads out") as refused:
        resolve_in_volume(volume, sub_path)
    assert leads_to not in str(refused.value)
    assert list((tmp_path / "outside").iterdir()) == list((tmp_path / "volume-2").iterdir()) == []


def test_a_circle_of_links_ends_with_an_error(volume: Path) -> None:
    (volume / "a").symlink_to("b")
    (volume / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        resolve_in_volume(volume, "a/x")


def test_a_path_below_a_file_is_an_error(volume: Path) -> None:
    (volume / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        resolve_in_volume(volume, "file/below")


def test_the_volume_itself_may_be_behind_a_link(volume: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(volume)
    assert resolve_in_volume(tmp_path / "other", "a") == volume / "a"


def test_no_descriptor_is_left_open(volume: Path) -> None:
    (volume / "link").symlink_to("/etc")
    before = open_descriptors()
    resolve_in_volume(volume, "a/b/c")
    with pytest.raises(ValueError, match="leads out"):
        resolve_in_volume(volume, "link")
    assert open_descriptors() == before


@pytest.mark.parametrize("victim_is", ["file", "folder"])
def test_a_link_swapped_in_for_the_new_folder_changes_nothing_outside(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim_is: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir() if victim_is == "folder" else victim.write_text("secret")
    victim.chmod(0o600)
    make = os.mkdir

    def make_and_swap(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        make(path, mode, dir_fd=dir_fd)
        (volume / path).rmdir()
        (volume / path).symlink_to(victim)

    monkeypatch.setattr(os, "mkdir", make_and_swap)
    with pytest.raises(OSError, match=r"directory|links"):
        resolve_in_volume(volume, "new")
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


@pytest.mark.parametrize("race", ["made", "removed", "moved out"])
def test_what_changes_during_the_lookup_gives_no_wrong_path(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, race: str
) -> None:
    make, change_mode = os.mkdir, os.fchmod

    def make_too_late(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        (volume / path).touch()
        make(path, mode, dir_fd=dir_fd)

    def take_away(descriptor: int, mode: int) -> None:
        change_mode(descriptor, mode)
        (volume / "new").rmdir() if race == "removed" else (volume / "new").rename(tmp_path / "outside")

    if race == "made":
        monkeypatch.setattr(os, "mkdir", make_too_late)
        assert resolve_in_volume(volume, "new").is_file()
        return
    monkeypatch.setattr(os, "fchmod", take_away)
    with pytest.raises(FileNotFoundError if race == "removed" else ValueError, match="new"):
        resolve_in_volume(volume, "new")


@pytest.mark.parametrize(
    ("path", "refusal"),
    [("../outside", errno.EXDEV), ("out", errno.EXDEV), ("absolute", errno.EXDEV), ("fd/0", errno.ELOOP)],
)
def test_the_kernel_itself_refuses_what_leads_out(volume: Path, path: str, refusal: int) -> None:
    (volume.parent / "outside").mkdir()
    (volume / "out").symlink_to("../outside")
    (volume / "absolute").symlink_to(volume)
    top = os.open("/proc/self" if path == "fd/0" else volume, os.O_PATH)
    with pytest.raises(OSError) as refused:  # noqa: PT011  (its number tells)
        open_beneath(top, path, os.O_PATH)
    os.close(top)
    assert refused.value.errno == refusal
