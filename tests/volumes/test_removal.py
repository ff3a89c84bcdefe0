"""A pod's folder goes with everything in it, and nothing else goes with it."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.descriptors import open_descriptors
from tests.examples import examples
from tests.volumes.fake_mounter import FakeMounter
from trikubelet.linux.mount_table import MountTable
from trikubelet.linux.mounter import Mounter
from trikubelet.linux.trees import StillMountedError
from trikubelet.volumes.removal import remove_folder, remove_pod_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    nest(pod, examples(5000))  # by day, too, more than functions may call each other
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


# A pod's folder

OWN = ["empty-dir", "configmap", "secret", "projected", "downward-api"]
FOREIGN = ["local-volume", "nfs", "csi", "host-path", "empty-dir-2"]


@pytest.fixture
def layout(pod: Path) -> Path:
    """A pod's folder after its volumes were taken down, with all that may be left."""
    for folder in ("volumes/kubernetes.io~csi/pv/mount", "volumes/kubernetes.io~nfs/share", "containers/main"):
        (pod / folder).mkdir(parents=True)
    (pod / "volumes/kubernetes.io~csi/pv/vol_data.json").write_text("{}")
    (pod / "volumeDevices/kubernetes.io~csi").mkdir(parents=True)
    (pod / "volume-subpaths/data/main/0").mkdir(parents=True)
    (pod / "volume-subpaths/data/main/1").touch()
    (pod / "plugins/kubernetes.io~empty-dir/data").mkdir(parents=True)
    (pod / "plugins/kubernetes.io~empty-dir/data/ready").touch()
    (pod / "containers/main/4a5b").write_text("last words")
    (pod / "etc-hosts").write_text("127.0.0.1 localhost")
    return pod


def remove(pod: Path) -> None:
    remove_pod_folder(pod, FakeMounter(), go_on)


def test_a_pods_folder_goes_with_all_that_its_volumes_left(layout: Path) -> None:
    before = open_descriptors()
    remove(layout)
    assert not layout.exists()
    assert open_descriptors() == before
    remove(layout)


@pytest.mark.parametrize("kind", OWN)
def test_a_volume_that_lives_in_the_pods_folder_goes_with_its_content(layout: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").touch()
    volume = layout / "volumes" / f"kubernetes.io~{kind}" / "data"
    (volume / "deep" / "deeper").mkdir(parents=True)
    (volume / "deep" / "deeper" / "file").write_text("x")
    (volume / "link").symlink_to(tmp_path / "victim")
    nest(volume, 500)
    remove(layout)
    assert not layout.exists()
    assert (tmp_path / "victim" / "file").exists()


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("where", ["data", "data/file", "data/mount/file", "data/mount/vol_data.json", "vol_data.json"])
def test_what_may_be_data_of_a_share_or_disk_stays_and_all_else_goes(layout: Path, kind: str, where: str) -> None:
    own = layout / "volumes" / "kubernetes.io~empty-dir" / "data"
    own.mkdir(parents=True)
    (own / "file").touch()
    precious = layout / "volumes" / f"kubernetes.io~{kind}" / where
    precious.parent.mkdir(parents=True, exist_ok=True)
    precious.write_text("precious")
    with pytest.raises(OSError, match="never deleted here") as caught:
        remove(layout)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTEMPTY, str(precious))
    assert precious.read_text() == "precious"
    assert [path.name for path in layout.iterdir()] == ["volumes"]
    assert [path.name for path in (layout / "volumes").iterdir()] == [f"kubernetes.io~{kind}"]


def test_what_tells_of_a_volume_stays_while_the_volumes_data_do(layout: Path) -> None:
    volume = layout / "volumes" / "kubernetes.io~csi" / "pv"
    (volume / "mount" / "file").touch()
    with pytest.raises(OSError, match="never deleted here"):
        remove(layout)
    assert (volume / "vol_data.json").exists()


@pytest.mark.parametrize(
    "link", ["volumes", "volumes/kubernetes.io~nfs", "volumes/kubernetes.io~nfs/share", "volumeDevices", "containers"]
)
def test_a_link_in_the_layout_is_never_followed(layout: Path, tmp_path: Path, link: str) -> None:
    victim = tmp_path / "victim"
    (victim / "kubernetes.io~empty-dir").mkdir(parents=True)
    (victim / "kubernetes.io~empty-dir" / "file").touch()
    (layout / link).rename(tmp_path / "before")
    (layout / link).symlink_to(victim)
    if link == "containers":  # the agent's own: the link goes
        remove(layout)
        assert not layout.exists()
    else:
        with pytest.raises(OSError, match=r"never deleted here|expected a folder, got a link"):
            remove(layout)
        assert (layout / link).is_symlink()
    assert (victim / "kubernetes.io~empty-dir" / "file").exists()


@pytest.mark.parametrize("leftover", ["volumeDevices/kubernetes.io~csi/pv", "volume-subpaths/data/main/2"])
def test_a_device_or_a_full_file_in_place_of_a_mount_is_told(layout: Path, leftover: str) -> None:
    if leftover.startswith("volumeDevices"):
        (layout / leftover).symlink_to("/dev/null")
    else:
        (layout / leftover).write_text("x")
    with pytest.raises(OSError, match="never deleted here"):
        remove(layout)
    assert (layout / leftover).exists()


def test_folders_nested_deeper_than_descriptors_are_held_are_not_taken_for_empty(layout: Path) -> None:
    before = open_descriptors()
    nest(layout / "volumes/kubernetes.io~nfs/share", 200)
    with pytest.raises(OSError, match="never deleted here"):
        remove(layout)
    assert open_descriptors() == before


def test_a_mount_anywhere_inside_is_found_before_anything_is_touched(layout: Path) -> None:
    mounter = FakeMounter()
    mounter.tmpfs(layout / "containers" / "main", size=None, mode=0o755, group=None, noswap=False)
    with pytest.raises(StillMountedError, match="containers/main"):
        remove_pod_folder(layout, mounter, go_on)
    assert (layout / "etc-hosts").exists()
    assert (layout / "volumes/kubernetes.io~csi/pv/vol_data.json").exists()


@pytest.mark.root
@pytest.mark.parametrize(
    "where", ["volumes", "volumes/kubernetes.io~empty-dir/data", "volumes/kubernetes.io~nfs/share", "containers/main"]
)
@pytest.mark.parametrize("table", ["true", "blind"])
def test_what_is_mounted_inside_is_never_entered(layout: Path, tmp_path: Path, where: str, table: str) -> None:
    """Not even when the mount came after the table was read."""
    mounter, point = Mounter(), layout / where
    point.mkdir(parents=True, exist_ok=True)
    source = tmp_path / "source"
    (source / "kubernetes.io~empty-dir").mkdir(parents=True)
    (source / "kubernetes.io~empty-dir" / "precious").touch()
    mounter.bind(source, point)
    try:
        with pytest.raises(StillMountedError) as caught:
            remove_pod_folder(layout, mounter if table == "true" else FakeMounter(), go_on)
        assert caught.value.filename == str(point)
        assert (source / "kubernetes.io~empty-dir" / "precious").exists()
    finally:
        mounter.unmount(point)
    remove(layout)
    assert MountTable.read().below(tmp_path) == []


@pytest.mark.root
def test_mounts_are_found_where_the_root_folder_is_behind_a_link(layout: Path, tmp_path: Path) -> None:
    mounter, point = Mounter(), layout / "containers" / "main"
    (tmp_path / "link").symlink_to(layout.parent)
    mounter.tmpfs(point, size=None, mode=0o755, group=None, noswap=False)
    try:
        with pytest.raises(StillMountedError):
            remove_pod_folder(tmp_path / "link" / "uid", mounter, go_on)
        assert (layout / "etc-hosts").exists()
    finally:
        mounter.unmount(point)


def test_a_pods_removal_that_was_interrupted_is_finished_by_the_next_call(layout: Path) -> None:
    calls: list[None] = []

    def stop_soon() -> None:
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt

    before = open_descriptors()
    with pytest.raises(KeyboardInterrupt):
        remove_pod_folder(layout, FakeMounter(), stop_soon)
    assert layout.exists()
    assert open_descriptors() == before
    remove(layout)
    assert not layout.exists()
