"""Fibre Channel disks, against sysfs and /dev as folders and the node's programs as scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.scsi.san import San, staged
from tests.volumes.set_ups import UID, claimed, persistent_volume, pod_with, request
from trikubelet.linux.mount_table import Mount
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import PersistentVolume

WWN, OTHER_WWN = "500a0981891b8dc5", "5005076810213b32"
WWID = "3600508b400105e210000900000490000"
FOLDER = "plugins/kubernetes.io/fc"


def disk(name: str = "pv-1", *, spec: dict[str, Any] | None = None, **source: Any) -> PersistentVolume:
    fc = source or {"targetWWNs": [WWN], "lun": 0}
    return persistent_volume({"fc": fc, **(spec or {})}, name)


@pytest.fixture
def fabric(san: San) -> San:
    """The kubelet's rows (`fc_util_test.go`)."""
    for name in ("sda", "sdb", "sdc", "sdd"):
        san.disk(name)
    for folder, link, name in (
        ("by-path", "pci-0000:41:00.0-fc-0x500a0981891b8dc5-lun-0", "sda"),
        ("by-path", "pci-0000:41:00.0-fc-0x500a0981891b8dc5-lun-1", "sdb"),
        ("by-path", "fc-0x5005076810213b32-lun-2", "sdc"),
        ("by-path", "abc-0000:41:00.0-fc-0x5005076810213404-lun-0", "sdd"),
        ("by-id", f"scsi-{WWID}", "sda"),
        ("by-id", "scsi-VENDOR_DISK_1", "sdb"),
    ):
        san.link(san.folder, folder, link, name)
    return san


@pytest.mark.parametrize(
    ("source", "device", "folder", "name"),
    [
        ({"targetWWNs": [WWN], "lun": 0}, "sda", f"{WWN}-lun-0", f"[{WWN}]:0"),
        ({"targetWWNs": [WWN], "lun": 1}, "sdb", f"{WWN}-lun-1", f"[{WWN}]:1"),
        ({"targetWWNs": [OTHER_WWN], "lun": 2}, "sdc", f"{OTHER_WWN}-lun-2", f"[{OTHER_WWN}]:2"),
        ({"targetWWNs": ["50", OTHER_WWN], "lun": 2}, "sdc", f"50-{OTHER_WWN}-lun-2", f"[50 {OTHER_WWN}]:2"),
        ({"wwids": [WWID]}, "sda", WWID, f"[{WWID}]"),
        ({"wwids": ["x", "VENDOR DISK 1"]}, "sdb", "x-VENDOR_DISK_1", "[x VENDOR DISK 1]"),
        ({"wwids": [WWID], "targetWWNs": [OTHER_WWN]}, "sda", WWID, f"[{WWID}]"),
    ],
)
async def test_a_disk_is_found_by_its_names(
    tmp_path: Path, fabric: San, source: dict[str, Any], device: str, folder: str, name: str
) -> None:
    kind = fabric.fibre_channel(tmp_path)
    asked = claimed(kind, disk(**source))
    assert kind.unique_name(asked.spec, UID) == f"kubernetes.io/fc/{name}"
    assert await kind.stage(asked) == tmp_path / FOLDER / folder
    assert fabric.calls("mount") == [f"-t ext4 -o defaults {fabric.device(device)} {tmp_path / FOLDER / folder}"]


@pytest.mark.parametrize(
    "source",
    [
        {"targetWWNs": ["5005076810213404"], "lun": 0},
        {"targetWWNs": ["500507681fffffff"], "lun": 0},
        {"targetWWNs": [".*"], "lun": 0},
        {"wwids": ["VENDOR"]},
    ],
)
async def test_a_disk_that_the_fabric_does_not_show_is_none(
    tmp_path: Path, fabric: San, source: dict[str, Any]
) -> None:
    kind = fabric.fibre_channel(tmp_path)
    asked = claimed(kind, disk(**source))
    with pytest.raises(UncertainVolumeError, match="no fc disk found"):
        await kind.stage(asked)
    await kind.unstage("", asked.spec)
    assert await kind.staged_volumes() == []
    assert fabric.calls() == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"fsType": "ext4"}, "fc: no fc disk information found"),
        ({"targetWWNs": [WWN]}, "fc: no fc disk information found"),
        ({"wwids": ["../../x"]}, "without slashes"),
        ({"wwids": [".."]}, "expected names that can be folders"),
        ({"wwids": ["volumeDevices"]}, "expected names that can be folders"),
    ],
)
async def test_a_disk_without_a_name_is_refused(tmp_path: Path, fabric: San, source: dict[str, Any], text: str) -> None:
    with pytest.raises(VolumeError, match=text):
        await fabric.fibre_channel(tmp_path).stage(claimed(fabric.fibre_channel(tmp_path), disk(**source)))


async def test_hosts_look_for_disks_unless_a_multipath_device_is_there(tmp_path: Path, fabric: San) -> None:
    scan = fabric.folder / "sys/class/scsi_host/host5/scan"
    scan.parent.mkdir(parents=True)
    scan.touch()
    kind = fabric.fibre_channel(tmp_path)
    asked = claimed(kind, disk())
    await kind.stage(asked)
    assert scan.read_text() == "- - -"
    await kind.unstage("", asked.spec)
    scan.write_text("")
    multipath = fabric.multipath("dm-3", "sda", "sdd")
    fabric.calls()
    await kind.stage(asked)
    assert scan.read_text() == ""
    assert str(multipath) in fabric.calls("mount")[0]


async def test_a_disk_is_flushed_and_forgotten(tmp_path: Path, fabric: San) -> None:
    kind = fabric.fibre_channel(tmp_path)
    asked = claimed(kind, disk())
    await staged(kind, asked)
    await kind.tear_down(UID, "pv-1")
    fabric.calls()
    await kind.unstage("", asked.spec)
    assert fabric.calls() == [f"blockdev --flushbufs {fabric.device('sda')}"]
    assert fabric.deleted("sda")
    assert not (tmp_path / FOLDER / f"{WWN}-lun-0").exists()
    await kind.unstage("", asked.spec)
    assert fabric.calls() == []


async def test_a_multipath_device_that_is_busy_keeps_its_disks(tmp_path: Path, fabric: San) -> None:
    multipath = fabric.multipath("dm-3", "sda", "sdd")
    fabric.program("multipath", "echo map in use; exit 1")
    kind = fabric.fibre_channel(tmp_path)
    asked = claimed(kind, disk())
    await kind.stage(asked)
    with pytest.raises(VolumeError) as refused:
        await kind.unstage("", asked.spec)
    assert refused.value.problem == f"failed to flush multipath device {multipath}: map in use (1)"
    assert not fabric.deleted("sda")
    assert len(await kind.staged_volumes()) == 1, "it is tried again"
    fabric.program("multipath", "")
    await kind.unstage("", asked.spec)
    assert fabric.deleted("sda")
    assert fabric.deleted("sdd")


async def test_a_disk_that_another_volume_uses_stays(tmp_path: Path, fabric: San) -> None:
    kind = fabric.fibre_channel(tmp_path)
    first, second = claimed(kind, disk()), claimed(kind, disk("pv-2", wwids=[WWID]))
    for asked in (first, second):
        await kind.stage(asked)
    await kind.unstage("", first.spec)
    assert not fabric.deleted("sda")
    await kind.unstage("", second.spec)
    assert fabric.deleted("sda")


async def test_a_pods_own_disk_is_found_again(tmp_path: Path, fabric: San) -> None:
    mounter = FakeMounter()
    kind = fabric.fibre_channel(tmp_path, mounter)
    own = {"name": "data", "fc": {"targetWWNs": [WWN], "lun": 0, "readOnly": True, "fsType": "xfs"}}
    asked = request(kind, pod_with(own))
    at = await kind.stage(asked)
    assert at is not None
    assert fabric.calls("mount") == [f"-t xfs -o ro,defaults {fabric.device('sda')} {at}"]
    mounter.mounts.append(Mount(point=at, source="/dev/sda", kind="xfs", device=(8, 0), id=50))
    mounted = await kind.set_up(attrs.evolve(asked, staging_path=at))
    assert mounted.read_only
    mounter.mounts.append(attrs.evolve(mounter.mounts.pop(), device=(8, 0), root="/"))
    found = await fabric.fibre_channel(tmp_path, mounter).reconstruct(UID, "data")
    assert found is not None
    assert kind.unique_name(found, UID) == f"kubernetes.io/fc/[{WWN}]:0"
    assert (found.inner_name, found.block) == ("data", False)


async def test_without_a_controller_nobody_waits_for_one(tmp_path: Path, fabric: San) -> None:
    kind = fabric.fibre_channel(tmp_path, attached_by_controller=False)
    assert not kind.attachable(claimed(kind, disk()).spec)
