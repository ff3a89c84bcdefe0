"""A double of disks on a network, for machines that have none.

iscsiadm and its like are scripts that write down how they were called, and sysfs and /dev are folders that a test
fills. A login makes appear what the kernel and udev would show.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.set_ups import persistent_volume
from tests.volumes.stage import FakeStorage, InlineDisk
from trikubelet.clock import SystemClock
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.scsi.fibre_channel import FibreChannelKind
from trikubelet.volumes.scsi.host import ScsiHost
from trikubelet.volumes.scsi.iscsi import ISCSIKind
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    import pytest

    from trikubelet.api import PersistentVolume
    from trikubelet.linux.mounter import Mounter
    from trikubelet.volumes.kinds.protocol import VolumeKind
    from trikubelet.volumes.model import MountedVolume, SetUpRequest

IQN = "iqn.2014-12.com.example:test.tgt00"
INTERFACE = (
    "iface.iscsi_ifacename = default\niface.transport_name = tcp\niface.initiatorname = <empty>\niface.mtu = 0\n"
)

PORTAL = "10.0.0.1:3260"
OTHER_PORTAL = "10.0.0.2:3260"
FOLDER = f"plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-0"
LOGGING_IN = [
    "-m iface -I default -o show",
    f"-m discoverydb -t sendtargets -p {PORTAL} -I default -o new",
    f"-m discoverydb -t sendtargets -p {PORTAL} -I default --discover",
    f"-m node -p {PORTAL} -T {IQN} -I default -o update -n node.session.scan -v manual",
    f"-m node -p {PORTAL} -T {IQN} -I default --login",
    f"-m node -p {PORTAL} -T {IQN} -o update -n node.startup -v manual",
]
LOGGING_OUT = [
    f"-m node -p {PORTAL} -T {IQN} --logout -I default",
    f"-m node -p {PORTAL} -T {IQN} -o delete -I default",
]

_ISCSIADM = """
portal=none; act=; last=
for word in "$@"; do
    [ "$last" = -p ] && portal=$word
    case "$word" in --login|--logout|--discover|show) act=$word ;; esac
    last=$word
done
if [ -e "{san}/refused/$portal" ]; then
    [ "$act" = "$(cat "{san}/refused/$portal")" ] && {{ echo "iscsiadm: no, $*" >&2; exit 4; }}
fi
case "$act" in
    show) cat {san}/interface ;;
    --login) cp -a "{san}/portals/$portal/appears/." {san}/ ;;
    --logout)
        [ -e "{san}/$(head -n 1 "{san}/portals/$portal/goes")" ] || exit 21
        while read -r path; do rm -rf "{san}/$path"; done < "{san}/portals/$portal/goes" ;;
esac
exit 0
"""


@attrs.frozen
class San:
    """Below one folder: `sys`, `dev`, `bin`, and what appears with a login."""

    folder: Path

    @classmethod
    def at(cls, folder: Path, monkeypatch: pytest.MonkeyPatch, *, file_systems: bool = False) -> San:
        """`file_systems`: mount and its like are the machine's own."""
        san = cls(folder)
        for name in ("bin", "dev/disk/by-path", "dev/disk/by-id", "sys/block", "refused", "portals"):
            (folder / name).mkdir(parents=True)
        (folder / "interface").write_text(INTERFACE)
        san.program("iscsiadm", _ISCSIADM.format(san=folder))
        for name in ("multipath", "blockdev"):
            san.program(name, "")
        if not file_systems:
            san.program("blkid", "echo TYPE=ext4", silent=True)
            san.program("fsck", "", silent=True)
            san.program("mount", "")
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/sbin:/sbin:/usr/bin:/bin")
        return san

    def program(self, name: str, script: str, *, silent: bool = False) -> None:
        path = self.folder / "bin" / name
        log = "" if silent else f'echo "{name} $*" >> {shlex.quote(str(self.folder / "calls"))}\n'
        path.write_text(f"#!/bin/sh\n{log}{script}\n")
        path.chmod(0o755)

    def calls(self, program: str = "") -> list[str]:
        """Of a program, without its name, or of all, since the last time."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.removeprefix(f"{program} ") for line in lines if line.startswith(program)]

    def portal(self, address: str, number: int, disk: str, *, iqn: str = IQN, lun: int = 0) -> None:
        """A session over `address` will be that of host `number`, and its unit will be the disk."""
        host, port = address.strip("[").replace("]", "").rsplit(":", 1)
        appears = self.folder / "portals" / address / "appears"
        session = f"sys/class/iscsi_host/host{number}/device/session{number}"
        connection = f"{session}/connection{number}:0/iscsi_connection/connection{number}:0"
        for file, text in {
            f"{session}/iscsi_session/session{number}/targetname": iqn,
            f"{connection}/address": host,
            f"{connection}/port": port,
            f"{connection}/persistent_address": host,
            f"{connection}/persistent_port": port,
            f"{session}/target{number}:0:0/{number}:0:0:{lun}/block/{disk}/size": "1",
            f"sys/class/scsi_host/host{number}/scan": "",
            f"sys/block/{disk}/device/delete": "",
        }.items():
            (appears / file).parent.mkdir(parents=True, exist_ok=True)
            (appears / file).write_text(f"{text}\n")
        self.link(appears, "by-path", f"ip-{host}:{port}-iscsi-{iqn}-lun-{lun}", disk)
        self.disk(disk)
        goes = self.folder / "portals" / address / "goes"
        link = f"dev/disk/by-path/ip-{host}:{port}-iscsi-{iqn}-lun-{lun}"
        goes.write_text("".join(f"{path}\n" for path in (f"sys/class/iscsi_host/host{number}", link)))

    def disk(self, name: str, path: Path | None = None) -> None:
        """A device: a plain file, or what is at `path`."""
        device = self.folder / "dev" / name
        if path is not None:
            device.symlink_to(path)
        elif not device.exists():
            device.touch()
        delete = self.folder / "sys/block" / name / "device/delete"
        delete.parent.mkdir(parents=True, exist_ok=True)
        delete.touch()

    def link(self, top: Path, folder: str, name: str, disk: str) -> None:
        path = top / "dev/disk" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(f"../../{disk}")

    def multipath(self, name: str, *disks: str) -> Path:
        """A device of the device mapper on top of disks."""
        for disk in disks:
            slave = self.folder / "sys/block" / name / "slaves" / disk
            slave.parent.mkdir(parents=True, exist_ok=True)
            slave.touch()
        device = self.folder / "dev" / name
        device.touch()
        return device

    def refuse(self, portal: str, what: str = "--discover") -> None:
        (self.folder / "refused" / portal).write_text(what)

    def deleted(self, disk: str) -> bool:
        return (self.folder / "sys/block" / disk / "device/delete").read_text().strip() == "1"

    def scanned(self, number: int) -> str:
        return (self.folder / f"sys/class/scsi_host/host{number}/scan").read_text().strip()

    def sessions(self) -> list[str]:
        folder = self.folder / "sys/class/iscsi_host"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def device(self, name: str) -> Path:
        return self.folder / "dev" / name

    def iscsi(
        self, root: Path, mounter: Mounter | None = None, storage: FakeStorage | None = None, **more: Any
    ) -> ISCSIKind:
        return ISCSIKind(storage=storage or FakeStorage(), **self._common(root, mounter, more))

    def fibre_channel(self, root: Path, mounter: Mounter | None = None, **more: Any) -> FibreChannelKind:
        return FibreChannelKind(**self._common(root, mounter, more))

    def _common(self, root: Path, mounter: Mounter | None, more: dict[str, Any]) -> dict[str, Any]:
        common = {
            "root": root,
            "mounter": mounter or FakeMounter(),
            "disk": InlineDisk(),
            "meter": VolumeMeter(SystemClock()),
            "recorder": EventRecorder(SystemClock()),
            "attached_by_controller": True,
            "host": ScsiHost(self.folder / "sys", self.folder / "dev"),
        }
        return common | more


def disk(name: str = "pv-1", *, spec: dict[str, Any] | None = None, **source: Any) -> PersistentVolume:
    iscsi = {"targetPortal": PORTAL, "iqn": IQN, "lun": 0, "iscsiInterface": "default", **source}
    return persistent_volume({"iscsi": iscsi, **(spec or {})}, name)


async def staged(kind: VolumeKind, asked: SetUpRequest) -> MountedVolume:
    return await kind.set_up(attrs.evolve(asked, staging_path=await kind.stage(asked)))


def own_disk(**more: Any) -> dict[str, Any]:
    chap = {"secretRef": {"name": "chap"}}
    return {"targetPortal": PORTAL, "iqn": IQN, "lun": 0, "iscsiInterface": "default", **chap, **more}
