"""Disks of a real iSCSI target, the kernel's own on loopback, with the system's iscsiadm and udev; and a SCSI disk that
is known by its name. In a guest that has all of it: `python -m tests.guest tests/volumes/scsi/test_on_target.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.agent.real_node import RealNode
from tests.patience import PATIENCE
from tests.volumes.scsi.san import staged
from tests.volumes.set_ups import claimed, mounts_below, persistent_volume
from tests.volumes.stage import FakeStorage
from trikubelet.api import ObjectMeta, Secret
from trikubelet.clock import SystemClock
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.scsi.fibre_channel import FibreChannelKind
from trikubelet.volumes.scsi.host import ScsiHost
from trikubelet.volumes.scsi.iscsi import ISCSIKind
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.api import PersistentVolume
    from trikubelet.volumes.model import MountedVolume, SetUpRequest

CONFIG: Final = Path("/sys/kernel/config/target")
MODULES: Final = ("target_core_mod", "target_core_file", "iscsi_target_mod", "iscsi_tcp")
IQN: Final = "iqn.2026-11.com.example:trikubelet"
INITIATOR: Final = "iqn.2026-11.com.example:volume"
PORTAL: Final = "127.0.0.1:3260"
OTHER_PORTAL: Final = "127.0.0.1:3261"
SIZE: Final = 32 << 20
UNITS: Final = (0, 1)
USER: Final = "somebody"
PASSWORD: Final = "secret-of-16-byt"


def has_modules(*names: str) -> bool:
    dry_run = ["modprobe", "--dry-run", "--quiet", "--all", *names]
    return bool(shutil.which("modprobe")) and subprocess.run(dry_run, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        not (shutil.which("iscsiadm") and has_modules(*MODULES)),
        reason="needs a kernel with an iSCSI target, and iscsiadm: python -m tests.guest",
    ),
]


@attrs.frozen
class Target:
    """Two units in files, and two portals on loopback."""

    folder: Path

    @property
    def group(self) -> Path:
        return CONFIG / "iscsi" / IQN / "tpgt_1"

    def start(self) -> None:
        for unit in UNITS:
            (self.folder / f"unit{unit}").touch()
            storage = CONFIG / "core" / f"fileio_{unit}" / f"unit{unit}"
            storage.mkdir(parents=True)
            put(storage / "control", f"fd_dev_name={self.folder / f'unit{unit}'},fd_dev_size={SIZE}")
            put(storage / "enable", "1")
            lun = self.group / "lun" / f"lun_{unit}"
            lun.mkdir(parents=True)
            (lun / "storage").symlink_to(storage)
        for name, value in {"generate_node_acls": 1, "demo_mode_write_protect": 0, "authentication": 0}.items():
            put(self.group / "attrib" / name, str(value))
        for portal in (PORTAL, OTHER_PORTAL):
            self.open(portal)
        put(self.group / "enable", "1")

    def open(self, portal: str) -> None:
        (self.group / "np" / portal).mkdir()

    def close(self, portal: str) -> None:
        (self.group / "np" / portal).rmdir()

    def want_password(self) -> None:
        """Of whoever looks for targets, too."""
        put(self.group / "attrib/authentication", "1")
        discovery = CONFIG / "iscsi/discovery_auth"
        for folder in (self.group / "auth", discovery):
            put(folder / "userid", USER)
            put(folder / "password", PASSWORD)
        put(discovery / "enforce_discovery_auth", "1")

    def stop(self) -> None:
        if (discovery := CONFIG / "iscsi/discovery_auth/enforce_discovery_auth").exists():
            put(discovery, "0")
        put(self.group / "enable", "0")
        for portal in list((self.group / "np").iterdir()):
            portal.rmdir()
        for unit in UNITS:
            lun = self.group / "lun" / f"lun_{unit}"
            (lun / "storage").unlink()
            lun.rmdir()
        self.group.rmdir()
        self.group.parent.rmdir()
        for unit in UNITS:
            (CONFIG / "core" / f"fileio_{unit}" / f"unit{unit}").rmdir()
            (CONFIG / "core" / f"fileio_{unit}").rmdir()


def put(file: Path, text: str, how: int = 0) -> None:
    """Into a file of the kernel's, or a device."""
    descriptor = os.open(file, os.O_WRONLY | how)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def iscsiadm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["iscsiadm", *arguments], capture_output=True, text=True, check=False)


def sessions() -> set[str]:
    """The portals that somebody here is logged in to."""
    return set(ScsiHost().portals(IQN))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    subprocess.run(["modprobe", "--all", *MODULES], check=True)
    target = Target(tmp_path / "units")
    target.folder.mkdir()
    target.start()
    try:
        yield target
        assert mounts_below(tmp_path) == []
        assert sessions() == set()
        assert f"{PORTAL},1 {IQN}" not in iscsiadm("-m", "node").stdout, "of the other one discovery tells, too"
    finally:
        iscsiadm("-m", "node", "-T", IQN, "--logout")
        iscsiadm("-m", "node", "-T", IQN, "-o", "delete")
        target.stop()


def common(folder: Path) -> dict[str, Any]:
    """What a kind of an agent in that folder is made of."""
    return {
        "root": folder / "root",
        "mounter": Mounter(),
        "disk": Disk(),
        "meter": VolumeMeter(SystemClock()),
        "recorder": EventRecorder(SystemClock()),
        "attached_by_controller": False,
    }


def iscsi(folder: Path, **secret: str) -> ISCSIKind:
    """`secret`: data of the secret `chap`, with `__` for a dot."""
    storage = FakeStorage()
    data = {f"{key.replace('__', '.')}": value.encode() for key, value in secret.items()}
    storage.secrets["default", "chap"] = Secret(metadata=ObjectMeta(name="chap"), data=data)
    return ISCSIKind(storage=storage, **common(folder))


def unit(number: int = 0, *, spec: dict[str, Any] | None = None, **source: Any) -> PersistentVolume:
    """Known by the portal's default port."""
    source = {"targetPortal": "127.0.0.1", "iqn": IQN, "lun": number, "iscsiInterface": "default", **source}
    return persistent_volume({"iscsi": source, **(spec or {})}, f"pv-{number}")


async def test_two_volumes_share_a_session_and_keep_their_data(tmp_path: Path, target: Target) -> None:
    kind = iscsi(tmp_path)
    asked = [claimed(kind, unit(number), uid=f"uid-{number}", group=4711) for number in UNITS]
    for number, one in enumerate(asked):
        mounted = await staged(kind, one)
        assert mounted.path is not None
        (mounted.path / "data").write_text(f"of {number}")
        assert mounted.path.stat().st_gid == 4711
    assert sessions() == {PORTAL}
    await kind.tear_down("uid-0", "pv-0")
    await kind.unstage("", asked[0].spec)
    assert ScsiHost().devices_of(IQN, 0) == []
    assert sessions() == {PORTAL}
    other = iscsi(tmp_path)
    assert (asked[1].path / "data").read_text() == "of 1"
    assert await other.reconstruct("uid-1", "pv-1") is not None
    await other.tear_down("uid-1", "pv-1")
    await other.unstage("", asked[1].spec)
    assert sessions() == set()
    mounted = await staged(other, asked[0])
    assert mounted.path is not None
    assert (mounted.path / "data").read_text() == "of 0"
    await other.tear_down("uid-0", "pv-0")
    await other.unstage("", asked[0].spec)


async def test_a_disk_over_two_portals_is_let_go_at_both(tmp_path: Path, target: Target) -> None:
    kind = iscsi(tmp_path)
    asked = claimed(kind, unit(portals=[OTHER_PORTAL]))
    await staged(kind, asked)
    assert sessions() == {PORTAL, OTHER_PORTAL}
    assert len(ScsiHost().devices_of(IQN, 0)) == 2
    await kind.tear_down("uid-1", "pv-0")
    await kind.unstage("", asked.spec)
    assert sessions() == set()


async def test_a_portal_that_is_away_keeps_nobody_from_the_disk(tmp_path: Path, target: Target) -> None:
    target.close(PORTAL)
    kind = iscsi(tmp_path)
    asked = claimed(kind, unit(portals=[OTHER_PORTAL]))
    await staged(kind, asked)
    assert sessions() == {OTHER_PORTAL}
    await kind.tear_down("uid-1", "pv-0")
    await kind.unstage("", asked.spec)
    with pytest.raises(VolumeError, match=f"failed to sendtargets to portal {PORTAL}"):
        await kind.stage(claimed(kind, unit()))
    await kind.unstage("", asked.spec)


async def test_only_who_knows_the_password_gets_the_disk(tmp_path: Path, target: Target) -> None:
    target.want_password()
    secret = {"name": "chap", "namespace": "default"}
    chap: dict[str, Any] = {"chapAuthDiscovery": True, "chapAuthSession": True, "secretRef": secret}
    names = {
        "discovery__sendtargets__auth__username": USER,
        "discovery__sendtargets__auth__password": PASSWORD,
        "node__session__auth__username": USER,
    }
    for data in ({}, {**names, "node__session__auth__password": "a-wrong-password"}):
        stranger = iscsi(tmp_path, **data)
        with pytest.raises(VolumeError, match=r"failed to (sendtargets|attach disk)") as refused:
            await stranger.stage(claimed(stranger, unit(**chap)))
        assert "a-wrong-password" not in str(refused.value)
        assert sessions() == set()
    kind = iscsi(tmp_path, **names, node__session__auth__password=PASSWORD)
    asked = claimed(kind, unit(**chap))
    await staged(kind, asked)
    assert sessions() == {PORTAL}
    await kind.tear_down("uid-1", "pv-0")
    await kind.unstage("", asked.spec)


async def test_a_volume_logs_in_by_a_name_of_its_own(tmp_path: Path, target: Target) -> None:
    kind = iscsi(tmp_path)
    asked = claimed(kind, unit(initiatorName=INITIATOR))
    await staged(kind, asked)
    assert f"Iface Initiatorname: {INITIATOR}" in iscsiadm("-m", "session", "-P", "1").stdout
    assert f"{PORTAL}:pv-0" in iscsiadm("-m", "iface").stdout
    await kind.tear_down("uid-1", "pv-0")
    await kind.unstage("", asked.spec)
    assert f"{PORTAL}:pv-0" not in iscsiadm("-m", "iface").stdout


async def test_a_device_is_the_units_own(tmp_path: Path, target: Target) -> None:
    kind = iscsi(tmp_path)
    asked = claimed(kind, unit(spec={"volumeMode": "Block"}), block=True)
    mounted = await staged(kind, asked)
    assert mounted.device is not None
    put(Path(mounted.device), "written by the pod", os.O_SYNC)
    await kind.tear_down("uid-1", "pv-0", block=True)
    await kind.unstage("", asked.spec)
    assert (target.folder / "unit0").read_bytes().startswith(b"written by the pod")


def test_a_pods_disk_outlives_its_agent_and_goes_with_the_pod(tmp_path: Path, target: Target) -> None:
    script = "cat /disk/data; echo kept > /disk/data; trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"
    source = {"targetPortal": PORTAL, "iqn": IQN, "lun": 0, "fsType": "ext4"}
    node = RealNode(tmp_path / "node", "localhost/host")
    try:
        node.start()
        for pod in ("first", "second"):
            main = node.container(script, volumeMounts=[{"name": "disk", "mountPath": "/disk"}])
            node.run(pod, main, volumes=[{"name": "disk", "iscsi": source}])
            node.until_running(pod)
            node.until(lambda: "up" in node.lines(pod), "its script has begun")  # noqa: B023
            assert ("kept" in node.lines(pod)) is (pod == "second")
            assert sessions() == {PORTAL}
            node.stop(signal.SIGKILL)
            assert sessions() == {PORTAL}
            node.start()
            assert node.until_running(pod).status.container_statuses[0].restart_count == 0
            node.delete(pod)
            node.until(lambda: not sessions(), "nobody is logged in")
        node.stop()
        assert node.leftovers() == []
    finally:
        node.clean()


@contextmanager
def disk_of_memory() -> Iterator[str]:
    """A SCSI disk of the kernel's own, as the name by which udev links it."""
    subprocess.run(["modprobe", "scsi_debug", f"dev_size_mb={SIZE >> 20}"], check=True)
    try:
        subprocess.run(["udevadm", "settle"], check=True, timeout=PATIENCE)
        (block,) = Path("/sys/bus/pseudo/drivers/scsi_debug").glob("adapter0/host*/target*/*/block/*")
        links = [name for name, device in ScsiHost().links("by-id").items() if device.name == block.name]
        yield next(name for name in links if name.startswith("scsi-")).removeprefix("scsi-")
    finally:
        subprocess.run(["modprobe", "--remove", "scsi_debug"], check=True)


async def staged_at_last(kind: FibreChannelKind, asked: SetUpRequest) -> MountedVolume:
    """As a node tries again: udev has made the link a moment after the kernel has found the disk."""
    with trio.fail_after(PATIENCE):
        while True:
            with suppress(VolumeError):
                return await staged(kind, asked)
            await trio.sleep(0.5)


@pytest.mark.skipif(not has_modules("scsi_debug"), reason="needs a kernel with scsi_debug: python -m tests.guest")
async def test_a_disk_that_was_let_go_is_found_again_by_its_name(tmp_path: Path) -> None:
    """As one of a Fibre Channel fabric. Its ports' names are the fabric's: no kernel has one of its own."""
    with disk_of_memory() as name:
        kind = FibreChannelKind(**common(tmp_path))
        asked = claimed(kind, persistent_volume({"fc": {"wwids": [name], "fsType": "ext4"}}))
        for first in (True, False):
            mounted = await staged_at_last(kind, asked)
            assert mounted.path is not None
            assert (mounted.path / "data").exists() is not first
            (mounted.path / "data").touch()
            await kind.tear_down("uid-1", "pv-1")
            await kind.unstage("", asked.spec)
            assert f"scsi-{name}" not in ScsiHost().links("by-id")
    assert mounts_below(tmp_path) == []
