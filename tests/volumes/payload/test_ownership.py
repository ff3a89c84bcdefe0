"""A volume's files and the group of the pod."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

import pytest

from tests.descriptors import open_descriptors
from tests.examples import IS_NIGHT
from tests.volumes.payload.steps import before_each_step
from trikubelet.volumes.payload.ownership import Progress, has_owner, set_owner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GROUP = 4321
pytestmark = pytest.mark.root


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Files of all kinds."""
    top = tmp_path / "uid-1" / "volume"
    (top / "d" / "e").mkdir(parents=True)
    for name, bits in (("a", 0o600), ("d/run", 0o4755), ("d/e/x", 0)):
        (top / name).write_bytes(b"")
        (top / name).chmod(bits)
    os.mkfifo(top / "pipe", 0o600)
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    outside.chmod(0o600)
    (top / "link").symlink_to(outside)
    (top / "d" / "broken").symlink_to("nowhere")
    for folder in (top / "d" / "e", top / "d", top):
        folder.chmod(0o755)
    return top


@pytest.mark.parametrize(
    ("read_only", "modes"),
    [
        (False, {".": 0o2775, "a": 0o660, "d": 0o2775, "d/run": 0o4775, "d/e": 0o2775, "d/e/x": 0o660, "pipe": 0o660}),
        (True, {".": 0o2755, "a": 0o640, "d": 0o2755, "d/run": 0o4755, "d/e": 0o2755, "d/e/x": 0o440, "pipe": 0o640}),
    ],
)
def test_everything_inside_is_the_groups(volume: Path, read_only: bool, modes: dict[str, int]) -> None:
    progress = set_owner(volume, GROUP, read_only=read_only)
    assert {name: mode(volume / name) for name in modes} == modes
    assert {path.lstat().st_gid for path in [volume, *volume.rglob("*")]} == {GROUP}
    assert {path.lstat().st_uid for path in [volume, *volume.rglob("*")]} == {0}
    assert progress == Progress(files=9)


def test_what_a_link_leads_to_is_not_touched(volume: Path) -> None:
    set_owner(volume, GROUP, read_only=False)
    outside = volume.parent.parent / "outside"
    assert (outside.stat().st_gid, mode(outside)) == (0, 0o600)


def test_what_is_right_already_is_only_looked_at(volume: Path) -> None:
    set_owner(volume, GROUP, read_only=False)
    steps: list[str] = []
    with before_each_step(lambda event, _: steps.append(event)):
        assert set_owner(volume, GROUP, read_only=False).files == 9
    assert set(steps) == {"open", "os.listdir"}


def test_the_root_is_changed_last(volume: Path) -> None:
    order: list[tuple[str, bool]] = []

    def look(event: str, _: tuple[object, ...]) -> None:
        if event == "os.chown":
            order.append((event, has_owner(volume, GROUP, read_only=False)))

    with before_each_step(look):
        set_owner(volume, GROUP, read_only=False)
    assert len(order) == 9
    assert not any(done for _, done in order)
    assert has_owner(volume, GROUP, read_only=False)


@pytest.mark.parametrize(
    ("bits", "group", "read_only", "right"),
    [
        (0o2775, GROUP, False, True),
        (0o2770, GROUP, False, True),
        (0o3777, GROUP, False, True),
        (0o2770, 0, False, False),
        (0o770, GROUP, False, False),
        (0o2750, GROUP, False, False),
        (0o2750, GROUP, True, True),
        (0o2740, GROUP, True, False),
    ],
)
def test_a_root_tells_whether_all_is_right(volume: Path, bits: int, group: int, read_only: bool, right: bool) -> None:
    os.chown(volume, -1, group)
    volume.chmod(bits)
    assert has_owner(volume, GROUP, read_only=read_only) is right


def test_a_root_that_is_no_folder_never_tells(volume: Path) -> None:
    os.chown(volume / "a", -1, GROUP)
    (volume / "a").chmod(0o2770)
    assert has_owner(volume / "a", GROUP, read_only=False) is False
    assert has_owner(volume / "missing", GROUP, read_only=False) is False


def test_a_volume_that_is_one_file_is_the_groups_too(volume: Path) -> None:
    set_owner(volume / "a", GROUP, read_only=False)
    assert ((volume / "a").stat().st_gid, mode(volume / "a")) == (GROUP, 0o660)
    with pytest.raises(FileNotFoundError):
        set_owner(volume / "missing", GROUP, read_only=False)


def test_folders_nested_deeper_than_descriptors_allow_are_the_groups_too(tmp_path: Path) -> None:
    top = tmp_path / "volume"
    top.mkdir()
    descriptor = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("n", dir_fd=descriptor)
        deeper = os.open("n", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = deeper
    try:
        before = open_descriptors()
        assert set_owner(top, GROUP, read_only=False).files == 3001
        assert os.fstat(descriptor).st_gid == GROUP
        assert open_descriptors() == before
    finally:
        for _ in range(3000):
            parent = os.open("..", os.O_RDONLY, dir_fd=descriptor)
            os.rmdir("n", dir_fd=parent)
            os.close(descriptor)
            descriptor = parent
        os.close(descriptor)


def swap_for_link(path: Path, target: Path) -> Callable[[], None]:
    def swap() -> None:
        path.rename(path.with_name(path.name + ".away"))
        path.symlink_to(target)

    return swap


SWAPPED: Final = ("a", "d", "d/run", "d/e")


@pytest.mark.parametrize(
    ("name", "step"),
    # By day each moment is tried with one of them.
    [(name, step) for step in range(40) for place, name in enumerate(SWAPPED) if IS_NIGHT or step % 4 == place],
)
def test_a_link_swapped_in_at_any_moment_changes_nothing_outside(volume: Path, name: str, step: int) -> None:
    outside = volume.parent.parent / "elsewhere"
    outside.mkdir()
    for inside in ("a", "run", "x"):
        (outside / inside).write_bytes(b"")
        (outside / inside).chmod(0o600)
    target = outside if (volume / name).is_dir() else outside / "a"
    swap = swap_for_link(volume / name, target)
    seen = 0

    def look(_: str, __: tuple[object, ...]) -> None:
        nonlocal seen
        if seen == step:
            swap()
        seen += 1

    with before_each_step(look):
        set_owner(volume, GROUP, read_only=False)
    assert {path.stat().st_gid for path in (outside, *outside.iterdir())} == {0}
    assert {mode(path) for path in outside.iterdir()} == {0o600}
    assert has_owner(volume, GROUP, read_only=False)


def test_a_folder_that_is_moved_out_meanwhile_is_not_followed_back_up(volume: Path) -> None:
    away = volume.parent / "away"
    away.mkdir()
    moved = False

    def look(_: str, arguments: tuple[object, ...]) -> None:
        nonlocal moved
        if not moved and "x" in arguments:  # the walk is in d/e
            moved = True
            (volume / "d" / "e").rename(away / "e")

    with before_each_step(look):
        set_owner(volume, GROUP, read_only=False)
    assert moved
    assert (away.stat().st_gid, mode(away)) == (0, 0o755)
    assert has_owner(volume, GROUP, read_only=False)
    assert (volume / "a").stat().st_gid == GROUP


def test_what_cannot_be_changed_is_counted(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    progress = set_owner(volume, GROUP, read_only=False)
    assert (progress.files, progress.failures) == (9, 6)
    assert isinstance(progress.first_failure, PermissionError)
    assert mode(volume / "a") == 0o660
