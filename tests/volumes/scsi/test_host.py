"""SCSI disks in sysfs and /dev: the kubelet's rows (`device_util_linux_test.go`), on folders of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from trikubelet.volumes.scsi.host import ScsiHost


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def host(tmp_path: Path) -> ScsiHost:
    """Two hosts, logged in to one target each, with two units."""
    sysfs = tmp_path / "sys"
    hosts = sysfs / "class/iscsi_host"
    for number, address, target, disks in ((2, "10.0.0.1", "target1", "ac"), (3, "fd00::2", "target2", "bd")):
        session = hosts / f"host{number}/device/session{number - 1}"
        connection = session / f"connection{number - 1}:0/iscsi_connection/connection{number - 1}:0"
        write(session / f"iscsi_session/session{number - 1}/targetname", f"{target}\n")
        for prefix, place in (("", address), ("persistent_", f"{address}0")):
            write(connection / f"{prefix}address", f"{place}\n")
            write(connection / f"{prefix}port", "3260\n")
        for lun, letter in enumerate(disks, 1):
            write(session / f"target{number}:0:0/{number}:0:0:{lun}/block/sd{letter}/size")
        write(hosts / f"host{number}/device/ignore/x")
        write(session / "ignore")
    write(hosts / "ignore/device/session9/x")
    write(hosts / "host4/device/session4/connection4:0/iscsi_connection/connection4:0/address", "10.0.0.4")
    for name in ("sda", "sdb"):
        write(sysfs / "block/dm-1/slaves" / name)
    write(sysfs / "block/sda/size")
    return ScsiHost(sysfs, tmp_path / "dev")


def test_portals_that_a_target_is_reached_over(host: ScsiHost) -> None:
    assert host.portals("target1") == {"10.0.0.1:3260": 2, "10.0.0.10:3260": 2}
    assert host.portals("target2") == {"[fd00::2]:3260": 3, "[fd00::20]:3260": 3}
    assert host.portals("target") == {}
    assert ScsiHost(host.sysfs / "none", host.dev).portals("target1") == {}


def test_a_connection_that_is_being_closed_is_none(host: ScsiHost) -> None:
    session = host.sysfs / "class/iscsi_host/host2/device/session1"
    (session / "connection1:0/iscsi_connection/connection1:0/port").unlink()
    assert host.portals("target1") == {}
    (session / "iscsi_session/session1/targetname").unlink()
    assert host.devices_of("target1", 1) == []


def test_the_disks_of_a_unit(host: ScsiHost) -> None:
    assert host.devices_of("target1", 1) == [host.dev / "sda"]
    assert host.devices_of("target2", 2) == [host.dev / "sdd"]
    assert host.devices_of("target1", 3) == []


@pytest.mark.parametrize(("device", "expected"), [("dm-1", "dm-1"), ("sda", "dm-1"), ("sdc", None)])
def test_a_multipath_device_is_on_top_of_its_disks(host: ScsiHost, device: str, expected: str | None) -> None:
    assert host.multipath_of(host.dev / device) == (None if expected is None else host.dev / expected)


def test_the_disks_below_a_multipath_device(host: ScsiHost) -> None:
    assert host.members_of(Path("/dev/dm-1")) == [host.dev / "sda", host.dev / "sdb"]
    assert host.members_of(Path("/dev/sdc")) == []


def test_links_to_devices(host: ScsiHost) -> None:
    write(host.dev / "sda")
    links = host.dev / "disk/by-path"
    links.mkdir(parents=True)
    (links / "there").symlink_to("../../sda")
    (links / "gone").symlink_to("../../sdz")
    assert host.links("by-path") == {"there": host.dev / "sda"}
    assert host.links("by-id") == {}


def test_hosts_are_told_what_to_look_for(host: ScsiHost) -> None:
    scans = [host.sysfs / f"class/scsi_host/host{number}/scan" for number in (2, 3)]
    for scan in scans:
        write(scan)
    (host.sysfs / "class/scsi_host/broken").mkdir()
    host.scan_unit(3, 7)
    assert [scan.read_text() for scan in scans] == ["", "0 0 7"]
    host.scan_all()
    assert [scan.read_text() for scan in scans] == ["- - -", "- - -"]
    with pytest.raises(FileNotFoundError):
        host.scan_unit(9, 0)


def test_the_kernel_forgets_a_disk(host: ScsiHost) -> None:
    delete = host.sysfs / "block/sda/device/delete"
    write(delete)
    host.delete(host.dev / "sda")
    assert delete.read_text() == "1"
    host.delete(host.dev / "sdz")
