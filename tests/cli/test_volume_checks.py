from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import run_command
from trikubelet.cli import volume_checks as checks
from trikubelet.cli.machine_checks import Level, Machine
from trikubelet.cli.volume_checks import check_volumes

if TYPE_CHECKING:
    from pathlib import Path

ALL_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
ALL_BUT_MOUNTING = "CapEff:\t000001ffffdfffff\n"
ONE_MAPPING = "         0          0 4294967295\n"
SWAP = "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n"
PRIVATE = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
SHARED = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
DATA = r"40 22 254:16 / /my\040data rw,relatime shared:7 master:3 - xfs /dev/vdb rw"


def machine(root: Path, files: dict[str, str], *, kernel: str = "6.18.0") -> Machine:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root=root, uid=0, kernel=kernel)


def test_this_machine_can_be_checked(root_dir: Path) -> None:
    results = list(check_volumes(root_dir))
    assert all(result.fix or result.level is Level.OK for result in results), "what is not well has its remedy"
    subjects = ["secret volumes", "mount propagation", "NFS volumes", "volumes on devices"]
    assert [result.subject for result in results] == subjects


@pytest.mark.parametrize(
    ("files", "kernel", "level", "finding"),
    [
        ({"status": ALL_CAPABILITIES}, "6.1.0", Level.OK, "in memory"),
        ({"status": ALL_BUT_MOUNTING}, "6.18.0", Level.WARN, "kept on disk"),
        ({}, "6.18.0", Level.WARN, "kept on disk"),
        ({"status": ALL_CAPABILITIES, "uid_map": ONE_MAPPING, "swaps": SWAP}, "6.4.0", Level.OK, "never in swap"),
        ({"status": ALL_CAPABILITIES, "uid_map": ONE_MAPPING, "swaps": SWAP}, "6.3.9", Level.WARN, "swap them out"),
        ({"status": ALL_CAPABILITIES, "uid_map": "0 1000 1\n", "swaps": SWAP}, "6.4.0", Level.WARN, "swap them out"),
    ],
)
def test_where_secrets_are_kept_is_said(
    files: dict[str, str], kernel: str, level: Level, finding: str, tmp_path: Path
) -> None:
    places = {"status": "proc/self/status", "uid_map": "proc/self/uid_map", "swaps": "proc/swaps"}
    here = machine(tmp_path, {places[name]: text for name, text in files.items()}, kernel=kernel)
    result = checks.check_memory_volumes(here)
    assert result.level is level
    assert finding in result.finding


@pytest.mark.parametrize(
    ("table", "place", "level", "finding"),
    [
        (SHARED, "/var/lib/agent", Level.OK, "/ is a shared mount"),
        (PRIVATE, "/var/lib/agent", Level.WARN, "/, which /var/lib/agent is on, is no shared mount: mounts in "),
        (PRIVATE + DATA, "/my data/agent", Level.OK, "/my data is a shared mount"),
        (PRIVATE + DATA, "/my data2", Level.WARN, "/, which /my data2 is on"),
        (SHARED + PRIVATE, "/var/lib/agent", Level.WARN, "/, which /var/lib/agent is on"),
    ],
)
def test_the_mount_of_the_root_folder_must_be_shared(
    table: str, place: str, level: Level, finding: str, tmp_path: Path
) -> None:
    here = machine(tmp_path, {"proc/self/mountinfo": table})
    result = checks.check_mount_propagation(here, type(tmp_path)(place))
    assert result.level is level
    assert result.finding.startswith(finding)


@pytest.mark.parametrize(
    ("status", "uid_map", "level"),
    [
        (ALL_CAPABILITIES, ONE_MAPPING, Level.OK),
        (ALL_CAPABILITIES, "0 1000 1\n", Level.WARN),
        (ALL_BUT_MOUNTING, ONE_MAPPING, Level.WARN),
    ],
)
def test_an_agent_shares_its_root_folder_itself_where_it_may(
    status: str, uid_map: str, level: Level, tmp_path: Path
) -> None:
    files = {"proc/self/mountinfo": PRIVATE, "proc/self/status": status, "proc/self/uid_map": uid_map}
    result = checks.check_mount_propagation(machine(tmp_path, files), type(tmp_path)("/var/lib/agent"))
    assert result.level is level
    if level is Level.OK:
        assert result.finding == "an agent makes /var/lib/agent a shared mount when it starts"


def test_an_unreadable_mount_table_is_said(tmp_path: Path) -> None:
    result = checks.check_mount_propagation(machine(tmp_path, {}), tmp_path)
    assert "cannot be read" in result.finding


@pytest.mark.parametrize("folder", ["sbin", "usr/sbin"])
def test_the_nfs_helper_is_looked_for_where_mount_does(folder: str, tmp_path: Path) -> None:
    missing = checks.check_nfs(machine(tmp_path, {"usr/bin/mount.nfs": ""}))
    assert (missing.level, missing.fix) == (Level.WARN, "install nfs-common or nfs-utils")
    assert checks.check_nfs(machine(tmp_path, {f"{folder}/mount.nfs": ""})).level is Level.OK


def test_missing_tools_are_named_with_their_packages(tmp_path: Path) -> None:
    there = {f"usr/sbin/{name}": "" for name in ("blkid", "mkfs.ext4", "fsck")} | {"sbin/resize2fs": ""}
    result = checks.check_device_tools(machine(tmp_path, there))
    assert result.finding.startswith("losetup not installed")
    assert result.fix == "install util-linux"
    assert checks.check_device_tools(machine(tmp_path, {"bin/losetup": ""})).level is Level.OK


def test_the_command_tells_of_volumes(root_dir: Path) -> None:
    outcome = run_command("check", "--root-dir", root_dir, "--runtime-endpoint", "unix:///nowhere.sock")
    assert "mount propagation: " in outcome.out
    assert "NFS volumes: " in outcome.out
