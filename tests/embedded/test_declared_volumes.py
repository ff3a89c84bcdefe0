"""Volumes that images declare, on the embedded runtime: what is copied, what is counted, and what is left."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from grpclib import GRPCError

from tests.cgroup_folders import cgroups_with
from tests.embedded.images.archives import Entry, directory, layer, oci_archive
from tests.embedded.runtime_node import is_alive, wait_until
from tests.oci_image import OciImage, make_root_folder
from trikubelet.embedded.keeper import declared_volumes

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root
HOLE = 8 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "data").mkdir(parents=True)
    return tmp_path / "root"


def copied(root: Path, path: str = "/data") -> Path:
    folder = root.parent / "container" / "volumes" / "0"
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(declared_volumes.make(descriptor, path, str(folder)))
    finally:
        os.close(descriptor)
    return folder


def test_files_of_every_kind_are_copied_as_they_are(root: Path) -> None:
    data = root / "data"
    os.mkfifo(data / "queue", 0o620)
    os.mknod(data / "null", stat.S_IFCHR | 0o640, os.makedev(1, 3))
    os.chown(data / "null", 1000, 5000)
    (data / "link").symlink_to("/etc/../nowhere")
    os.chown(data / "link", 1000, 1000, follow_symlinks=False)
    (data / "file").write_bytes(b"x")
    os.setxattr(data / "file", "user.name", b"value")
    os.utime(data / "file", ns=(1, 1_000_000_007))
    data.chmod(0o3711)
    os.utime(data, ns=(1, 2_000_000_007))
    folder = copied(root)
    for path in ("queue", "null", "link", "file", ""):
        ours, theirs = (folder / path).lstat(), (data / path).lstat()
        for field in ("st_mode", "st_uid", "st_gid", "st_rdev", "st_mtime_ns", "st_size", "st_nlink"):
            assert getattr(ours, field) == getattr(theirs, field), (path, field)
    assert os.getxattr(folder / "file", "user.name") == b"value"
    assert (folder / "link").readlink().as_posix() == "/etc/../nowhere"


def test_holes_stay_holes(root: Path) -> None:
    with (root / "data" / "sparse").open("wb") as file:
        file.seek(HOLE)
        file.write(b"in the middle")
        file.truncate(3 * HOLE)
    found = copied(root) / "sparse"
    assert found.stat().st_size == 3 * HOLE
    assert found.stat().st_blocks * 512 < HOLE
    with found.open("rb") as file:
        assert file.seek(HOLE) == HOLE
        assert file.read(20) == b"in the middle" + bytes(7)


def test_links_lead_within_the_root(root: Path) -> None:
    (root / "data" / "file").touch()
    (root / "out").symlink_to("../../../../../data")
    (root / "gone").symlink_to("/etc/nowhere")
    assert [path.name for path in copied(root, "/out").iterdir()] == ["file"]
    (root.parent / "container" / "volumes" / "0").rename(root.parent / "aside")
    assert list(copied(root, "/gone").iterdir()) == []


def test_a_volume_that_nobody_can_fill_says_why(root: Path) -> None:
    (root / "file").touch()
    with pytest.raises(OSError, match="VOLUME /file of the image: expected a folder there, the image has a file"):
        copied(root, "/file")
    (root.parent / "container" / "volumes" / "0").rmdir()
    deep = "/".join("d" * 300)
    (root / "data" / deep).mkdir(parents=True)
    with pytest.raises(OSError, match="VOLUME /data of the image: expected at most 200 folders within one another"):
        copied(root)


async def image_with(node: Node, folder: Path, volumes: tuple[str, ...] = ("/data",)) -> str:
    base = OciImage.from_folder(make_root_folder(folder / "busybox"), {}).layer
    entries = layer(directory("data", mode=0o700), Entry("data/file", b"of the image\n"))
    config: dict[str, Any] = {"Volumes": {volume: {} for volume in volumes}}
    await node.runtime.images.import_archive(oci_archive(folder / "image.tar", [base, entries], "data:1", config))
    return "data:1"


async def test_what_is_written_there_is_the_containers_use(node: Node, tmp_path: Path) -> None:
    image = await image_with(node, tmp_path)
    script = ["sh", "-c", "head -c 3000000 /dev/zero > /data/large; echo written; sleep 1000"]
    container = await node.launch(await node.sandbox(), script, image=image)
    await node.wait_for_output(container, "written")
    record = node.cri._inventory.container(container)
    used, inodes = await node.cri._usage.disk_usage(record)
    assert used >= 3_000_000
    assert inodes >= 3
    folder = Path(record.spec["directory"])
    assert (folder / "volumes" / "0" / "large").exists()
    await node.remove(container)
    assert not folder.exists()


async def test_a_container_whose_waiting_process_was_killed_has_its_images_content(node: Node, tmp_path: Path) -> None:
    """That had copied it already, when another one begins from the beginning."""
    image = await image_with(node, tmp_path)
    container = await node.create(await node.sandbox(), ["cat", "/data/file"], image=image)
    copy = Path(node.cri._inventory.container(container).spec["directory"]) / "volumes" / "0" / "file"
    await wait_until(copy.exists, "it is copied")
    waiting = {int(pid) for folder in cgroups_with(container) for pid in (folder / "cgroup.procs").read_text().split()}
    assert waiting
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not any(map(is_alive, waiting)), "what waited has ended")
    await node.start(container)
    assert (await node.ended(container)).out == "of the image\n"


@pytest.mark.parametrize("path", ["/", "/proc", "//", "/data/.."])
async def test_a_volume_that_cannot_be_is_refused(node: Node, tmp_path: Path, path: str) -> None:
    image = await image_with(node, tmp_path, (path,))
    with pytest.raises(GRPCError, match=r"image .*data:1 declares the volume .*: expected one below it"):
        await node.create(await node.sandbox(), ["true"], image=image)


async def test_what_the_runtime_mounts_itself_is_no_volume(node: Node, tmp_path: Path) -> None:
    image = await image_with(node, tmp_path, ("/dev/shm", "etc/hosts", "/data"))
    container = await node.create(await node.sandbox(), ["true"], image=image)
    assert node.cri._inventory.container(container).spec["volumes"] == ["/data"]
