"""SCSI disks as the kernel shows them in sysfs, and udev in /dev (kubelet: `DeviceUtil`). All of it blocks."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.volumes.folders import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOST: Final = re.compile(r"host(\d+)")


@frozen
class ScsiHost:
    """`sysfs` and `dev` are folders, so that there may be others than the machine's. Methods raise OSError."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")

    def links(self, folder: str) -> dict[str, Path]:
        """The devices behind the links in `/dev/disk/<folder>`, by the links' names. Links to nothing are left out."""
        found = {}
        for name in names_in(self.dev / "disk" / folder):
            link = self.dev / "disk" / folder / name
            if link.exists():
                found[name] = link.resolve()
        return found

    def multipath_of(self, device: Path) -> Path | None:
        """The device mapper's device on top of a disk; None for none."""
        if device.name.startswith("dm-"):
            return device
        for name in names_in(self.sysfs / "block"):
            if name.startswith("dm-") and os.path.lexists(self.sysfs / "block" / name / "slaves" / device.name):
                return self.dev / name
        return None

    def members_of(self, multipath: Path) -> list[Path]:
        """The disks below a device of the device mapper."""
        return [self.dev / name for name in names_in(self.sysfs / "block" / multipath.name / "slaves")]

    def portals(self, iqn: str) -> dict[str, int]:
        """The numbers of the hosts that are logged in to a target, by the portals, with ports."""
        found = {}
        for number, session in self._sessions(iqn):
            for connection in names_in(session):
                if not connection.startswith("connection"):
                    continue
                shown = session / connection / "iscsi_connection" / connection
                try:
                    addresses = [(_read(shown / "address"), _read(shown / "port"))]
                    addresses.append((_read(shown / "persistent_address"), _read(shown / "persistent_port")))
                except OSError:  # it is being closed
                    continue
                found.update({_joined(address, port): number for address, port in addresses})
        return found

    def devices_of(self, iqn: str, lun: int) -> list[Path]:
        """The disks that a unit of a target is, one for each session."""
        found = []
        for number, session in self._sessions(iqn):
            names = names_in(session / f"target{number}:0:0" / f"{number}:0:0:{lun}" / "block")
            found += [self.dev / name for name in names[:1]]
        return found

    def scan_unit(self, host: int, lun: int) -> None:
        """Have a host look for one unit only: others are none of the node's business."""
        _write(self.sysfs / f"class/scsi_host/host{host}/scan", f"0 0 {lun}")

    def scan_all(self) -> None:
        """Have all hosts look for all disks. One that cannot keeps no other from it."""
        for name in names_in(self.sysfs / "class/scsi_host"):
            with suppress(OSError):
                _write(self.sysfs / "class/scsi_host" / name / "scan", "- - -")

    def delete(self, device: Path) -> None:
        """Make the kernel forget a disk; one that it does not know is fine."""
        try:
            _write(self.sysfs / "block" / device.name / "device/delete", "1")
        except FileNotFoundError:
            return

    def _sessions(self, iqn: str) -> Iterator[tuple[int, Path]]:
        """Numbers of hosts, and the folders of their sessions with a target."""
        hosts = self.sysfs / "class/iscsi_host"
        for name in names_in(hosts):
            host = _HOST.fullmatch(name)
            for session in names_in(hosts / name / "device") if host is not None else ():
                folder = hosts / name / "device" / session
                if not session.startswith("session") or host is None:
                    continue
                try:
                    target = _read(folder / "iscsi_session" / session / "targetname")
                except OSError:  # it is being closed
                    continue
                if target == iqn:
                    yield int(host[1]), folder


def _read(file: Path) -> str:
    return file.read_text(errors="surrogateescape").strip()


def _write(file: Path, text: str) -> None:
    """To a file that is there."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _joined(address: str, port: str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
