"""What volumes on SCSI disks have in common: mounted once for the node, bound or mapped for each pod, and found again.

How a disk appears and disappears is up to a subclass. Once it is written down that a disk is about to be used, whatever
fails leaves the volume uncertain: so it is tried again or taken down, never forgotten.
"""

from __future__ import annotations

import abc
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from trikubelet.api import ObjectMeta, PersistentVolume, PersistentVolumeSpec, from_dict
from trikubelet.volumes import layout
from trikubelet.volumes.desired import mount_options
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError, uncertain
from trikubelet.volumes.folders import is_listed, remove_folder, unmount_all
from trikubelet.volumes.fs_group import try_to_give_to_group
from trikubelet.volumes.kinds.block import DeviceMap, DeviceMapper
from trikubelet.volumes.kinds.file_systems import DEFAULT, format_and_mount
from trikubelet.volumes.kinds.local import BIND_OPTIONS
from trikubelet.volumes.kinds.node_kind import NodeKind, as_volume_error, is_there
from trikubelet.volumes.kinds.programs import run_program
from trikubelet.volumes.model import MountedVolume, VolumeSpec
from trikubelet.volumes.mount_labels import mount_option
from trikubelet.volumes.scsi.host import ScsiHost
from trikubelet.volumes.scsi.records import DiskRecords, ScsiDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trikubelet.linux.mounter import Mounter
    from trikubelet.telemetry.events import EventRecorder
    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.model import SetUpRequest, VolumeUsage
    from trikubelet.volumes.stats import VolumeMeter

T = TypeVar("T")

UNMOUNT_DEADLINE: Final = 60.0
HOST_DEADLINE: Final = 60.0
"""Seconds: for the kernel to look for a disk, or to let it go."""
MULTIPATH: Final = "multipath"


class ScsiKind(NodeKind, abc.ABC):
    staged = True
    takes_mount_options = True
    source_field: str
    """Of a persistent volume."""
    kubelets_record = ""
    """The name of a file below the mount, or in the map folder: from this the kubelet knows how to let go of the disk,
    should it take over the node."""

    def __init__(
        self,
        *,
        root: Path,
        mounter: Mounter,
        disk: Disk,
        meter: VolumeMeter,
        recorder: EventRecorder,
        attached_by_controller: bool,
        host: ScsiHost | None = None,
    ) -> None:
        """`attached_by_controller`: a controller says when the node may use a disk, though it does nothing to it."""
        super().__init__(root=root)
        self._mounter = mounter
        self._disk = disk
        self._meter = meter
        self._recorder = recorder
        self._attached_by_controller = attached_by_controller
        self._host = ScsiHost() if host is None else host
        self._devices = DeviceMapper(mounter, disk)
        self._records = DiskRecords(layout.plugins_directory(self._root) / self.plugin)

    # What a subclass knows

    @abc.abstractmethod
    def disk_of(self, spec: VolumeSpec) -> ScsiDisk:
        """Raises VolumeError."""

    @abc.abstractmethod
    async def appear(self, request: SetUpRequest, disk: ScsiDisk) -> Path:
        """Make the disk appear, and return its device; idempotent. Raises VolumeError."""

    @abc.abstractmethod
    async def disappear(self, volume: str, disk: ScsiDisk) -> None:
        """Take the disk, which nothing of this agent uses, away from the node; idempotent. Raises VolumeError."""

    # For the node

    def attachable(self, spec: VolumeSpec) -> bool:
        return self._attached_by_controller

    def takes_mount_label(self, spec: VolumeSpec) -> bool:
        return True

    def unique_name(self, spec: VolumeSpec, uid: str) -> str:
        return f"{self.plugin}/{self.disk_of(spec).name}"

    async def stage(self, request: SetUpRequest) -> Path | None:
        """Where the file system is mounted, or the device. When cancelled, the disk may be there and mounted."""
        spec = request.spec
        disk = self.disk_of(spec)
        at = self.place(spec.name, disk)
        with self.written_down(spec.name, f"cannot write down that disk {disk.name} is about to be used"):
            mounted = not disk.block and (await self._disk.run(self._mounter.table)).at(at) is not None
            await self._disk.run(partial(self._records.write, disk))
        if mounted:
            return at
        with uncertain(spec.name):
            device = await self.appear(request, disk)
            if disk.block:
                return device
            with as_volume_error(spec.name, f"cannot make {at}"):
                await self._disk.run(partial(_make_folder, at))
            options = [*_mount_options(spec), *(["ro"] if spec.read_only or _is_read_only(spec) else [])]
            options += [mount_option(request.label)] if request.label else []
            await format_and_mount(spec.name, device, at, str(disk.source.get("fsType") or DEFAULT), options)
        return at

    async def unstage(self, unique_name: str, spec: VolumeSpec) -> None:
        disk = self.disk_of(spec)
        at = self.place(spec.name, disk)
        if disk.block:
            await self._devices.remove(spec.name, at, record=self.kubelets_record)
        else:
            await self._check_unused(spec.name, at)
            await self._unmount(spec.name, at, partial(self._forget_mount_point, at))
        with self.written_down(spec.name, f"cannot look at the record of disk {disk.name}"):
            recorded = await self._disk.run(partial(self._records.load, disk))
        if recorded is not None:
            await self.disappear(spec.name, recorded)
            with self.written_down(spec.name, f"cannot remove the record of disk {disk.name}"):
                await self._disk.run(partial(self._records.remove, disk))

    async def staged_volumes(self) -> list[VolumeSpec]:
        return [self._spec(disk) for disk in await self._disk.run(self._records.all)]

    # For a pod

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        spec, uid = request.spec, request.pod.metadata.uid
        read_only = spec.read_only or _is_read_only(spec)
        staged = request.staging_path or await self.stage(request)
        assert staged is not None
        if spec.block:
            places = self._device_map(self.disk_of(spec), uid, spec.inner_name)
            device = await self._devices.map(spec.name, staged, places)
            return MountedVolume(spec, path=None, device=device, read_only=read_only)
        path = self.path(uid, spec.inner_name)
        mounted = MountedVolume(spec, path, read_only=read_only, relabel=not read_only and not request.label)
        with as_volume_error(spec.name, f"cannot look at {path}"):
            if (await self._disk.run(self._mounter.table)).at(path) is not None:
                return mounted
        if request.group is not None and not read_only:
            # Before it is bound, so that a pod that finds it bound needs not ask whether that was done.
            await try_to_give_to_group(self._disk, self._recorder, request, staged, request.group)
        options = [option for option in _mount_options(spec) if option in BIND_OPTIONS]
        options += ["ro"] if read_only else []
        try:
            await self._foreign(spec.name, staged, partial(self._bind, staged, path, options))
        except UncertainVolumeError:
            raise
        except VolumeError:
            await self.tear_down(uid, spec.inner_name)
            raise
        return mounted

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        if not block:
            path = self.path(uid, inner_name)
            await self._unmount(inner_name, path, partial(remove_folder, path))
            return
        link = self.path(uid, inner_name, block=True)
        with as_volume_error(inner_name, f"cannot look for the device of {link}"):
            disks = await self._disk.run(partial(self._mapped, uid, inner_name))
        for disk in disks:
            await self._devices.unmap(inner_name, self._device_map(disk, uid, inner_name))
        with as_volume_error(inner_name, f"cannot remove {link}"):
            await self._disk.run(partial(link.unlink, missing_ok=True))

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        path = self.path(uid, inner_name, block=block)
        find = self._mapped if block else self._mounted
        with as_volume_error(inner_name, f"cannot look at {path}"):
            if not await self._disk.run(partial(is_listed, path)):
                return None
            found = await self._disk.run(partial(find, uid, inner_name))
        if len(found) != 1:
            raise VolumeError(inner_name, f"couldn't fetch globalPDPath: {len(found)} disks may be the one at {path}")
        return self._spec(found[0], inner_name)

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        if mounted.device is not None:
            return await self._meter.device(mounted.spec.name, Path(mounted.device))
        assert mounted.path is not None
        return await self._meter.file_system(mounted.spec.name, mounted.path)

    # Steps, for subclasses too

    def place(self, volume: str, disk: ScsiDisk) -> Path:
        try:
            return self._records.place(disk)
        except ValueError as error:
            raise VolumeError(volume, str(error)) from error

    async def others(self, volume: str, disk: ScsiDisk) -> list[ScsiDisk]:
        """All other disks of this kind that may be in use."""
        with as_volume_error(volume, "cannot look at the records of disks"):
            known = await self._disk.run(self._records.all)
        return [one for one in known if (one.folder, one.block) != (disk.folder, disk.block)]

    @contextmanager
    def written_down(self, volume: str, failed: str) -> Iterator[None]:
        with as_volume_error(volume, failed):
            try:
                yield
            except ValueError as error:
                raise VolumeError(volume, f"{failed}: {error}") from error

    async def ask_host(self, volume: str, what: str, work: Callable[[], T]) -> T:
        """Do what waits for the network that the disk is on. Raises VolumeError."""
        try:
            with as_volume_error(volume, what):
                return await self._disk.run_foreign((self.plugin, what), work, deadline=HOST_DEADLINE)
        except trio.TooSlowError:
            raise UncertainVolumeError(volume, f"{what}: it did not end within {HOST_DEADLINE:.0f} s") from None

    async def flush_multipath(self, volume: str, device: Path) -> None:
        """Let go of the disks below a multipath device. Raises VolumeError."""
        ended = await run_program(
            volume, MULTIPATH, ["-f", str(device)], package="multipath-tools", deadline=HOST_DEADLINE
        )
        if ended.code != 0:
            raise VolumeError(volume, f"failed to flush multipath device {device}: {ended.output} ({ended.code})")

    async def delete_device(self, volume: str, device: Path) -> None:
        """Have the kernel forget a disk. Raises VolumeError."""
        await self.ask_host(volume, f"deleting {device}", partial(self._host.delete, device))

    def _spec(self, disk: ScsiDisk, inner_name: str = "") -> VolumeSpec:
        name = inner_name or disk.volume
        source = from_dict(PersistentVolumeSpec, {self.source_field: dict(disk.source)})
        persistent = PersistentVolume(metadata=ObjectMeta(name=name), spec=source)
        return VolumeSpec(name, name, self.plugin, persistent=persistent, block=disk.block)

    def _device_map(self, disk: ScsiDisk, uid: str, inner_name: str) -> DeviceMap:
        return DeviceMap(self.place(inner_name, disk), uid, self.path(uid, inner_name, block=True))

    def _mapped(self, uid: str, inner_name: str) -> list[ScsiDisk]:
        """The disk that is mapped for a pod. Several pods may use a disk by volumes of different names."""
        link = self.path(uid, inner_name, block=True)
        used = [disk for disk in self._records.all() if disk.block and is_there(self._records.place(disk) / uid)]
        device = _number(link)
        return [
            disk
            for disk in used
            if disk.volume == inner_name or (device and device == _number(self._records.place(disk) / uid))
        ]

    def _mounted(self, uid: str, inner_name: str) -> list[ScsiDisk]:
        """The disk that is bound into a pod's folder, or else those of this name."""
        disks = [disk for disk in self._records.all() if not disk.block]
        table, path = self._mounter.table(), self.path(uid, inner_name)
        shown = {mount.point for mount in table.references(path)} if table.at(path) is not None else set()
        return [disk for disk in disks if self._records.place(disk) in shown] or [
            disk for disk in disks if disk.volume == inner_name and not shown
        ]

    def _forget_mount_point(self, at: Path) -> None:
        if self.kubelets_record:
            (at / self.kubelets_record).unlink(missing_ok=True)
        remove_folder(at)

    async def _check_unused(self, volume: str, at: Path) -> None:
        with as_volume_error(volume, f"cannot look at {at}"):
            table = await self._disk.run(self._mounter.table)
        plugins = layout.plugins_directory(self._root)
        mounts = table.references(at) if table.at(at) is not None else []
        others = [str(mount.point) for mount in mounts if not mount.point.is_relative_to(plugins)]
        if others:
            problem = f'the device mount path "{at}" is still mounted by other references [{" ".join(others)}]'
            raise VolumeError(volume, problem)

    def _bind(self, files: Path, path: Path, options: list[str]) -> None:
        _make_folder(path)
        self._mounter.bind(files, path, options=options)

    async def _unmount(self, volume: str, at: Path, then: Callable[[], None]) -> None:
        def work() -> None:
            unmount_all(self._mounter, at)
            then()

        await self._foreign(volume, at, work)

    async def _foreign(self, volume: str, path: Path, work: Callable[[], T]) -> T:
        try:
            with as_volume_error(volume, f"cannot change {path}"):
                return await self._disk.run_foreign(path, work, deadline=UNMOUNT_DEADLINE)
        except trio.TooSlowError:
            problem = f"{path}: expected an answer within {UNMOUNT_DEADLINE:.0f} s, got none: the disk is away"
            raise UncertainVolumeError(volume, problem) from None


def _is_read_only(spec: VolumeSpec) -> bool:
    """For a pod's own volume its source says it, for a persistent volume the claim."""
    volume: Any = spec.volume if spec.persistent is None else None
    return volume is not None and any(source is not None and source.read_only for source in (volume.iscsi, volume.fc))


def _mount_options(spec: VolumeSpec) -> list[str]:
    return [] if spec.persistent is None else list(mount_options(spec.persistent))


def _make_folder(path: Path) -> None:
    path.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)


def _number(path: Path) -> int:
    """Of a device; 0 for none."""
    with suppress(OSError):
        return path.stat().st_rdev
    return 0
