"""File systems on devices: known by what is on the device, made where there is nothing, checked, mounted, grown
(kubelet: `SafeFormatAndMount`, `ResizeFs`).

Nothing is ever made on a device that has something on it, be it a partition table only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.errors import FileSystemMismatchError, VolumeError
from trikubelet.volumes.kinds.programs import MissingProgramError, run_program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

log = get_logger("volumes")

DEFAULT: Final = "ext4"
PARTITIONS: Final = "unknown data, probably partitions"
"""What is said to be on a device with a partition table."""
QUICK: Final = 120.0
LONG: Final = 3600.0
"""Seconds; large disks take their time."""
_NOTHING_FOUND: Final = 2
_FSCK_CORRECTED: Final = 1
_FSCK_UNCORRECTED: Final = 4
_MAKE_OPTIONS: Final = {"ext3": ("-F", "-m0"), "ext4": ("-F", "-m0"), "xfs": ("-f",)}
_PACKAGES: Final = {
    "ext2": "e2fsprogs",
    "ext3": "e2fsprogs",
    "ext4": "e2fsprogs",
    "xfs": "xfsprogs",
    "btrfs": "btrfs-progs",
}


async def what_is_on(volume: str, device: Path) -> str:
    """The type of the file system on a device, `PARTITIONS`, or empty for nothing. Raises VolumeError."""
    arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", str(device)]
    ended = await run_program(volume, "blkid", arguments, package="util-linux", deadline=QUICK)
    if ended.code == _NOTHING_FOUND:
        return ""
    if ended.code != 0:
        raise VolumeError(volume, f"failed to get disk format of disk {device}: blkid: {ended.output or ended.code}")
    found = dict(line.split("=", 1) for line in ended.answer.splitlines() if "=" in line)
    return PARTITIONS if found.get("PTTYPE") else found.get("TYPE", "")


async def format_and_mount(volume: str, device: Path, at: Path, fs_type: str, options: Sequence[str]) -> None:
    """Mount a device, after a file system was made on it if there is nothing, or checked if there is one.

    Raises VolumeError, FileSystemMismatchError where that explains it. When cancelled, the program that was at work is
    ended: a file system may be half made, which the next call takes for none or has checked.
    """
    if "/" in fs_type:
        raise VolumeError(volume, f"expected a type of file system, got {fs_type!r}")
    found = await what_is_on(volume, device)
    read_only = "ro" in options
    if not found:
        if read_only:
            problem = f"cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
            raise VolumeError(volume, problem)
        await _make(volume, device, fs_type)
    else:
        if found != fs_type:
            log.warning("a disk has another file system than is asked for", disk=str(device), has=found, asked=fs_type)
        if not read_only:
            await _check(volume, device)
    arguments = ["-t", fs_type, "-o", ",".join([*options, "defaults"]), str(device), str(at)]
    ended = await run_program(volume, "mount", arguments, package="util-linux", deadline=QUICK)
    if ended.code != 0:
        kind = FileSystemMismatchError if found and found != fs_type else VolumeError
        raise kind(volume, f"mounting {device} at {at} as {fs_type} failed: {ended.output}")


async def grow(volume: str, device: Path, at: Path) -> None:
    """Let the file system on a device, which is mounted, take all of it. Raises VolumeError."""
    match await what_is_on(volume, device):
        case "":
            return
        case ("ext3" | "ext4") as fs_type:
            program, arguments = "resize2fs", [str(device)]
        case "xfs" as fs_type:
            program, arguments = "xfs_growfs", ["-d", str(at)]
        case "btrfs" as fs_type:
            program, arguments = "btrfs", ["filesystem", "resize", "max", str(at)]
        case other:
            problem = f"resize of format {other} is not supported for device {device} mounted at {at}"
            raise VolumeError(volume, problem)
    ended = await run_program(volume, program, arguments, package=_PACKAGES[fs_type], deadline=LONG)
    if ended.code != 0:
        raise VolumeError(volume, f"resize of device {device} failed: {program}: {ended.output}")


async def _make(volume: str, device: Path, fs_type: str) -> None:
    log.info("disk has nothing on it, making a file system", disk=str(device), type=fs_type)
    program, package = f"mkfs.{fs_type}", _PACKAGES.get(fs_type, f"what makes {fs_type}")
    arguments = [*_MAKE_OPTIONS.get(fs_type, ()), str(device)]
    ended = await run_program(volume, program, arguments, package=package, deadline=LONG)
    if ended.code != 0:
        raise VolumeError(volume, f"format of disk {device} failed: {program} ended with {ended.code}: {ended.output}")


async def _check(volume: str, device: Path) -> None:
    try:
        ended = await run_program(volume, "fsck", ["-a", str(device)], package="util-linux", deadline=LONG)
    except MissingProgramError:
        log.warning("fsck is not installed: disk is mounted unchecked", disk=str(device))
        return
    if ended.code == _FSCK_UNCORRECTED:
        problem = f"'fsck' found errors on device {device} but could not correct them: {ended.output}"
        raise VolumeError(volume, problem)
    if ended.code == _FSCK_CORRECTED:
        log.info("errors on a disk were corrected", disk=str(device))
    elif ended.code != 0:
        log.warning("fsck could not check a disk", disk=str(device), code=ended.code, output=ended.output)
