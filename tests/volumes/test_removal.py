"""A pod's folder goes with everything in it, and nothing else goes with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trikubelet.volumes.removal import StillMountedError, remove_folder

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def go_on() -> None:
    pass


def nest(top: Path, depth: int) -> None:
    """Folders nested deeper than any path may be long."""
    here = os.open(top, os.O_PATH)
    for number in range(depth):
        os.mkdir("d", dir_fd=here)
        if number % 500 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        inner = os.open("d", os.O_PATH, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    path = tmp_path / "pods" / "uid"
    path.mkdir(parents=True)
    return path


def test_everything_in_the_folder_goes(pod: Path) -> None:
    (pod / "a" / "b").mkdir(parents=True)
    (pod / "a" / "b" / "file").write_text("x")
    (pod / "a" / "dangling").symlink_to("nowhere")
    os.mkfifo(pod / "pipe")
    remove_folder(pod, go_on)
    assert not pod.exists()
    assert pod.parent.exists()


def test_a_folder_that_is_gone_already_is_fine(tmp_path: Path) -> None:
    remove_folder(tmp_path / "none", go_on)


def test_folders_nested_deeper_than_the_stack_go_too(pod: Path) -> None:
    nest(pod, 5000)
    before = open_descriptors()
    remove_folder(pod, go_on)
    assert not pod.exists()
    assert open_descriptors() == before


def test_a_name_that_the_removal_itself_would_use_does_not_stop_it(pod: Path) -> None:
    nest(pod, 200)
    for number in range(3):
        (pod / f".removed-{os.getpid()}-{number}").mkdir()
        (pod / f".removed-{os.getpid()}-{number}" / "full").touch()
    remove_folder(pod, go_on)
    assert not pod.exists()


def test_the_target_of_a_link_stays(pod: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    (pod / "link").symlink_to(victim)
    (pod / "deep").mkdir()
    (pod / "deep" / "link").symlink_to(victim)
    remove_folder(pod, go_on)
    assert (victim / "file").read_text() == "x"


def test_a_link_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").touch()
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(NotADirectoryError):
        remove_folder(tmp_path / "link", go_on)
    assert (victim / "file").exists()


def test_work_that_was_interrupted_is_finished_by_the_next_call(pod: Path) -> None:
    for number in range(10):
        (pod / str(number)).mkdir()
    calls: list[None] = []

    def stop_soon() -> None:
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt

    before = open_descriptors()
    with pytest.raises(KeyboardInterrupt):
        remove_folder(pod, stop_soon)
    assert 0 < len(list(pod.iterdir())) < 10
    assert open_descriptors() == before
    remove_folder(pod, go_on)
    assert not pod.exists()


@pytest.fixture
def mounted(pod: Path, tmp_path: Path) -> Iterator[Path]:
    source, point = tmp_path / "source", pod / "a" / "b"
    source.mkdir()
    (source / "precious").write_text("x")
    point.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(source), str(point)], check=True)
    yield point
    subprocess.run(["umount", str(point)], check=True)


@pytest.mark.root
def test_a_bind_mount_of_the_same_file_system_is_an_error_and_keeps_its_files(pod: Path, mounted: Path) -> None:
    with pytest.raises(StillMountedError) as caught:
        remove_folder(pod, go_on)
    assert caught.value.filename == str(mounted)
    assert (mounted / "precious").read_text() == "x"
