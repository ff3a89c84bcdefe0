"""Disks with real file systems and mounts: the disk behind the double of iscsiadm is a loop device."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.volumes.scsi.san import IQN, PORTAL, San, disk, staged
from tests.volumes.set_ups import claimed, mounts_below
from trikubelet.linux.mounter import Mounter
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root


@contextmanager
def loop_device(file: Path) -> Iterator[Path]:
    with file.open("wb") as image:
        image.truncate(32 * 2**20)
    attach = ["losetup", "--find", "--show", str(file)]
    device = subprocess.run(attach, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.fixture
def real_san(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[San]:
    san = San.at(tmp_path / "san", monkeypatch, file_systems=True)
    with loop_device(tmp_path / "image") as device:
        san.disk("sda", device)
        san.portal(PORTAL, 2, "sda")
        yield san
    assert mounts_below(tmp_path) == []


async def test_two_pods_share_a_disk_that_keeps_its_data(tmp_path: Path, real_san: San) -> None:
    root = tmp_path / "root"
    for uid in ("uid-1", "uid-2"):
        kind = real_san.iscsi(root, Mounter(), disk=Disk())
        asked = claimed(kind, disk(spec={"mountOptions": ["noatime", "commit=7"]}), uid=uid, group=4711)
        other = claimed(kind, disk(), uid="uid-3", read_only=False)
        try:
            mounted = await staged(kind, asked)
            await staged(kind, other)
            assert mounted.path is not None
            data = mounted.path / "data"
            if uid == "uid-1":
                data.write_text("kept")
            assert (other.path / "data").read_text() == "kept"
            assert mounted.path.stat().st_gid == 4711
            again = real_san.iscsi(root, Mounter(), disk=Disk())
            found = await again.reconstruct(uid, "pv-1")
            assert found is not None
            assert again.unique_name(found, uid) == kind.unique_name(asked.spec, uid)
            await kind.tear_down("uid-3", "pv-1")
            with pytest.raises(VolumeError, match="still mounted by other references"):
                await kind.unstage("", asked.spec)
        finally:
            await kind.tear_down("uid-3", "pv-1")
            await kind.tear_down(uid, "pv-1")
            await kind.unstage("", asked.spec)
        assert mounts_below(root) == []
        assert real_san.sessions() == []
        assert list((root / "plugins/kubernetes.io/iscsi").iterdir()) == []


async def test_what_came_back_into_a_disk_goes_with_the_volume(tmp_path: Path, real_san: San) -> None:
    """As a termination message's file in a Bidirectional volume: other pods that have the disk see it too."""
    mounter, message = Mounter(), tmp_path / "message"
    kind = real_san.iscsi(tmp_path / "root", mounter)
    message.write_text("last words")
    one, other = [claimed(kind, disk(), uid=uid) for uid in ("uid-1", "uid-2")]
    at = await kind.stage(one)
    assert at is not None
    await trio.run_process(["mount", "--make-shared", str(at)])
    try:
        for asked in (one, other):
            await staged(kind, asked)
        (one.path / "log").touch()
        mounter.bind(message, one.path / "log")
        await kind.tear_down("uid-1", "pv-1")
        assert not one.path.exists()
        assert (other.path / "log").read_text() == "last words"
        await kind.tear_down("uid-2", "pv-1")
        await kind.unstage("", one.spec)
        assert mounts_below(tmp_path) == []
    finally:
        for mount in reversed(mounts_below(tmp_path)):
            mounter.unmount(mount.point)
    assert real_san.sessions() == []
    assert message.read_text() == "last words"


async def test_a_reader_cannot_write(tmp_path: Path, real_san: San) -> None:
    kind = real_san.iscsi(tmp_path / "root", Mounter())
    writer = claimed(kind, disk())
    await kind.stage(writer)
    await kind.unstage("", writer.spec)
    asked = claimed(kind, disk(), read_only=True)
    try:
        mounted = await staged(kind, asked)
        assert mounted.path is not None
        with pytest.raises(OSError, match="Read-only file system"):
            (mounted.path / "data").write_text("x")
    finally:
        await kind.tear_down("uid-1", "pv-1")
        await kind.unstage("", asked.spec)


async def test_a_device_is_mapped_for_each_pod_and_found_again(tmp_path: Path, real_san: San) -> None:
    root = tmp_path / "root"
    kind = real_san.iscsi(root, Mounter(), disk=Disk())
    volume = disk(spec={"volumeMode": "Block"})
    folder = root / f"plugins/kubernetes.io/iscsi/volumeDevices/iface-default/{PORTAL}-{IQN}-lun-0"
    asked = [claimed(kind, volume, uid=uid, block=True) for uid in ("uid-1", "uid-2")]
    try:
        for one in asked:
            mounted = await staged(kind, one)
            assert mounted.device == str(real_san.device("sda").resolve())
            assert (folder / one.pod.metadata.uid).is_block_device()
        again = real_san.iscsi(root, Mounter(), disk=Disk())
        found = await again.reconstruct("uid-2", "pv-1", block=True)
        assert found is not None
        assert found.block
        assert again.unique_name(found, "uid-2") == kind.unique_name(asked[1].spec, "uid-2")
        await again.tear_down("uid-1", "pv-1", block=True)
        with pytest.raises(VolumeError, match="still referenced from other Pods"):
            await again.unstage("", found)
        assert real_san.sessions() == ["host2"]
    finally:
        for uid in ("uid-1", "uid-2"):
            await kind.tear_down(uid, "pv-1", block=True)
        await kind.unstage("", asked[0].spec)
    assert real_san.sessions() == []
    assert not folder.parent.exists()
    assert await kind.reconstruct("uid-2", "pv-1", block=True) is None
