"""The driver as a program of its own, real mounts and devices."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio

from tests.patience import PATIENCE
from tests.volumes.csi.stage import NAME, NODE, FakeCluster, csi_driver, inline, persistent
from tests.volumes.csi.stage import POD as WEB
from trikubelet.clock import SystemClock
from trikubelet.linux.mount_table import MountTable
from trikubelet.linux.mounter import Mounter
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.rpc.plugin_registration import v1 as plugins
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.csi.drivers import Driver, Drivers
from trikubelet.volumes.csi.kind import CSIKind
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError
from trikubelet.volumes.model import MountedVolume, SetUpRequest, VolumeSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.kube_client.volume_objects import PodCredentials, StorageObjects

pytestmark = pytest.mark.root
GROUP = 4321


@attrs.define
class Node:
    """One agent's CSI kind and one driver."""

    kind: CSIKind
    cluster: FakeCluster
    folder: Path
    socket: Path
    registry: Path
    process: trio.Process

    def request(self, spec: VolumeSpec, **options: Any) -> SetUpRequest:
        path = self.kind.path("uid-web", spec.inner_name, block=spec.block)
        return SetUpRequest(pod=WEB, spec=spec, path=path, **options)

    async def set_up(self, spec: VolumeSpec, **options: Any) -> MountedVolume:
        request = self.request(spec, **options)
        staged = await self.kind.stage(request)
        return await self.kind.set_up(attrs.evolve(request, staging_path=staged))

    async def undo(self, spec: VolumeSpec) -> None:
        await self.kind.tear_down("uid-web", spec.inner_name, block=spec.block)
        await self.kind.unstage("", spec)

    def set_faults(self, faults: dict[str, Any]) -> None:
        new = self.folder / "faults.new"
        new.write_text(json.dumps(faults))
        new.rename(self.folder / "faults.json")

    def calls(self) -> list[tuple[str, str]]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [(call["call"], call["outcome"]) for call in map(json.loads, lines)]

    def mounts(self) -> list[str]:
        return [str(mount.point) for mount in MountTable.read().below(self.folder)]


@asynccontextmanager
async def node(folder: Path, *options: str, timeout: float = 60.0) -> AsyncIterator[Node]:
    registry, root = folder / "plugins_registry", folder / "root"
    socket = folder / "csi.sock"
    for made in (registry, root):
        made.mkdir(exist_ok=True)
    program: list[str | Path] = [sys.executable, "-m", "tests.csi_driver", "--socket", socket, "--registry", registry]
    files: list[str | Path] = [
        "--storage",
        folder / "storage",
        "--log",
        folder / "calls.jsonl",
        "--faults",
        folder / "faults.json",
    ]
    cluster = FakeCluster()
    cluster.attach()
    drivers = Drivers(timeout=timeout)
    drivers.add(Driver(NAME, str(socket)))
    clock = SystemClock()
    kind = CSIKind(
        root=root,
        node=NODE,
        drivers=drivers,
        disk=Disk(),
        mounter=Mounter(),
        storage=cast("StorageObjects", cluster),
        credentials=cast("PodCredentials", cluster),
        recorder=EventRecorder(clock),
        clock=clock,
        rng=random.Random(1),
    )
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, [*program, *files, *options], stdout=subprocess.PIPE)
        process: trio.Process = await nursery.start(start)
        try:
            with trio.fail_after(30):
                await told(process, b"ready\n")
            yield Node(kind, cluster, folder, socket, registry, process)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 30):
                for mount in MountTable.read().below(folder):
                    Mounter().unmount(mount.point)
                process.send_signal(signal.SIGTERM)
                await process.wait()
                release_loops(folder)
    assert not socket.exists(), "the driver ended by itself"


async def told(process: trio.Process, line: bytes) -> None:
    """Wait until the program has written a line."""
    assert process.stdout is not None
    written = b""
    while line not in written:
        received = await process.stdout.receive_some()
        assert received, f"it ended after {written!r}"
        written += received


async def test_a_volume_is_mounted_with_its_options_and_group(tmp_path: Path) -> None:
    async with node(tmp_path) as stage:
        spec = persistent(fs_type="ext4", spec={"mount_options": ("noexec",)})
        mounted = await stage.set_up(spec, group=GROUP)
        assert mounted.path is not None
        mount = MountTable.read().at(mounted.path)
        assert mount is not None
        assert "noexec" in mount.options
        info = mounted.path.stat()
        assert (info.st_gid, stat.S_IMODE(info.st_mode) & 0o2770) == (GROUP, 0o2770)
        (mounted.path / "file").write_text("kept")

        await stage.undo(spec)
        assert stage.mounts() == []
        assert not mounted.path.parent.exists()
        again = await stage.set_up(spec)
        assert again.path is not None
        assert (again.path / "file").read_text() == "kept"
        await stage.undo(spec)


async def test_a_read_only_inline_volume_cannot_be_written(tmp_path: Path) -> None:
    async with node(tmp_path, "--writes-context") as stage:
        stage.cluster.drivers[NAME] = csi_driver(volume_lifecycle_modes=("Ephemeral",), pod_info_on_mount=True)
        spec = inline(read_only=True)
        mounted = await stage.set_up(spec)
        assert mounted.path is not None
        context = json.loads((mounted.path / "volume_context.json").read_text())
        assert context["csi.storage.k8s.io/pod.name"] == "web"
        with pytest.raises(OSError, match="Read-only"):
            (mounted.path / "new").touch()
        await stage.undo(spec)
        assert list((tmp_path / "storage/volumes").iterdir()) == []


@pytest.mark.parametrize("rpc", ["NodeStageVolume", "NodePublishVolume"])
async def test_what_a_hanging_driver_mounted_is_found_and_undone(tmp_path: Path, rpc: str) -> None:
    async with node(tmp_path, timeout=5) as stage:
        stage.set_faults({rpc: {"kind": "late", "times": 1}})
        spec = persistent()
        with pytest.raises(UncertainVolumeError):
            await stage.set_up(spec)
        with trio.fail_after(PATIENCE):
            while not stage.mounts():
                await trio.sleep(0.05)
        await stage.undo(spec)
        assert stage.mounts() == []
        assert not any((tmp_path / "root").rglob("vol_data.json"))


async def test_a_volume_in_use_by_a_stranger_stays_staged(tmp_path: Path) -> None:
    async with node(tmp_path) as stage:
        spec = persistent()
        at = await stage.kind.stage(stage.request(spec))
        assert at is not None
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        Mounter().bind(at, stranger)
        with pytest.raises(VolumeError, match=f"still mounted by other references .*{stranger}"):
            await stage.kind.unstage("", spec)
        Mounter().unmount(stranger)
        await stage.kind.unstage("", spec)
        assert stage.mounts() == []


async def test_a_loop_device_is_given_to_the_pod_and_back(tmp_path: Path) -> None:
    async with node(tmp_path, "--mounts", "loop") as stage:
        spec = persistent(block=True)
        mounted = await stage.set_up(spec)
        assert mounted.device is not None
        device = Path(mounted.device).stat()
        assert stat.S_ISBLK(device.st_mode)
        link = stage.kind.path("uid-web", "pv-1", block=True)
        assert link.stat().st_rdev == device.st_rdev
        mapped = tmp_path / "root/plugins/kubernetes.io/csi/volumeDevices/pv-1/dev/uid-web"
        assert mapped.stat().st_rdev == device.st_rdev
        usage = await stage.kind.usage(mounted)
        assert usage is not None
        assert usage.capacity == 16 * 2**20
        assert len(loops(tmp_path)) == 1
        await stage.undo(spec)
        assert stage.mounts() == []
        assert not os.path.lexists(link)
    assert loops(tmp_path) == []


async def test_the_driver_registers_itself(tmp_path: Path) -> None:
    async with node(tmp_path, "--name", "other.example.com") as stage:
        async with open_unix_channel(stage.registry / "other.example.com-reg.sock") as channel:
            registration = plugins.RegistrationStub(channel)
            info = await registration.get_info(plugins.InfoRequest(), timeout=10)
            assert (info.type, info.name, info.endpoint) == ("CSIPlugin", "other.example.com", str(stage.socket))
            assert info.supported_versions == ["1.0.0"]
            status = plugins.RegistrationStatus(plugin_registered=True)
            await registration.notify_registration_status(status, timeout=10)
        assert stage.calls() == [("GetInfo", "ok"), ("NotifyRegistrationStatus", "ok")]


def loops(folder: Path) -> list[str]:
    """Loop devices with files in there; other tests have some at the same time."""
    listing = ["losetup", "-l", "-n", "-O", "NAME,BACK-FILE"]
    found = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=30)
    # A device that is being set up or released may have no file.
    devices = [words for line in found.stdout.splitlines() if len(words := line.split()) >= 2]
    return [words[0] for words in devices if words[1].startswith(f"{folder}/")]


def release_loops(folder: Path) -> None:
    """Those that a failed test left."""
    for device in loops(folder):
        subprocess.run(["losetup", "-d", device], check=True, timeout=30)
