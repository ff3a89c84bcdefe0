"""`local`: a folder or a device of this node as a persistent volume (kubelet: `local.go`).

A folder is bound into each pod's folder. A device that shall show its file system is mounted once for the node, after a
file system was made on it if there was nothing, and bound from there; one that shall be a device is mapped (`block`).

The folder is the node's: what is in it is never removed, and it may be on a share, so it gets the threads for those.
"""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from trikubelet.api import LocalVolumeSource, ObjectMeta, PersistentVolume, PersistentVolumeSpec
from trikubelet.formats.values import frozen
from trikubelet.telemetry.events import EventType
from trikubelet.volumes import layout
from trikubelet.volumes.desired import mount_options
from trikubelet.volumes.disk import FOREIGN_DEADLINE
from trikubelet.volumes.errors import FileSystemMismatchError, UncertainVolumeError, VolumeError
from trikubelet.volumes.folders import remove_folder, unmount_all
from trikubelet.volumes.fs_group import give_to_group
from trikubelet.volumes.kinds.block import DeviceMap, DeviceMapper
from trikubelet.volumes.kinds.file_systems import DEFAULT, format_and_mount, grow
from trikubelet.volumes.kinds.node_kind import NodeKind, as_volume_error, is_there
from trikubelet.volumes.model import MountedVolume, VolumeSpec
from trikubelet.volumes.sources import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import Quantity
    from trikubelet.linux.mounter import Mounter
    from trikubelet.telemetry.events import EventRecorder
    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.model import SetUpRequest, VolumeUsage
    from trikubelet.volumes.stats import VolumeMeter

T = TypeVar("T")

BIND_OPTIONS: Final = frozenset({"ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec"}) | {
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "diratime",
}
"""Mount options that a bind may have; others are for the device's own mount."""


class LocalKind(NodeKind):
    plugin = LOCAL
    staged = True
    takes_mount_options = True

    def __init__(
        self, *, root: Path, mounter: Mounter, disk: Disk, meter: VolumeMeter, recorder: EventRecorder
    ) -> None:
        super().__init__(root=root)
        self._mounter = mounter
        self._disk = disk
        self._meter = meter
        self._recorder = recorder
        self._devices = DeviceMapper(mounter, disk)
        self._mounts = layout.plugins_directory(self._root) / LOCAL / "mounts"
        self._maps = layout.plugins_directory(self._root) / layout.folder_of_plugin(LOCAL) / "volumeDevices"

    def unique_name(self, spec: VolumeSpec, uid: str) -> str:
        return f"{self.plugin}/{spec.inner_name}"

    async def stage(self, request: SetUpRequest) -> Path | None:
        """Where the volume's files are: its folder, or where its device is mounted. None for one that stays a device.

        When cancelled, a device may be mounted, and a file system half made.
        """
        spec = request.spec
        if spec.block:
            await trio.lowlevel.checkpoint()
            return None
        source = _source(spec)
        if await self._is_folder(spec.name, Path(source.path)):
            return Path(source.path)
        at = self._mounts / spec.inner_name
        with as_volume_error(spec.name, f"cannot make {at}"):
            if not await self._disk.run(partial(self._make_mount_point, at)):
                return at
        fs_type = source.fs_type or DEFAULT
        options = [*_mount_options(spec), *(["ro"] if spec.read_only else [])]
        try:
            await format_and_mount(spec.name, Path(source.path), at, fs_type, options)
        except VolumeError as error:
            # Absence is not reported before it is so.
            await self._unmount(spec.name, at)
            where = f"local: failed to mount device {source.path} at {at} (fstype: {fs_type})"
            kind: type[VolumeError] = VolumeError
            for narrower in (UncertainVolumeError, FileSystemMismatchError):
                kind = narrower if isinstance(error, narrower) else kind
            raise kind(spec.name, f"{where}, error {error.problem}") from error
        return at

    async def unstage(self, unique_name: str, spec: VolumeSpec) -> None:
        if spec.block:
            await self._devices.remove(spec.name, self._maps / spec.inner_name)
            return
        at = self._mounts / spec.inner_name
        with as_volume_error(spec.name, f"cannot look at {at}"):
            table = await self._disk.run(self._mounter.table)
        if table.at(at) is not None:
            plugins = layout.plugins_directory(self._root)
            others = [str(mount.point) for mount in table.references(at) if not mount.point.is_relative_to(plugins)]
            if others:
                problem = f'the device mount path "{at}" is still mounted by other references [{" ".join(others)}]'
                raise VolumeError(spec.name, problem)
        await self._unmount(spec.name, at)

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        """When cancelled, the volume may be bound; its files have their group then."""
        spec, uid = request.spec, request.pod.metadata.uid
        source = _source(spec)
        if spec.block:
            device = await self._devices.map(spec.name, Path(source.path), self._device_map(uid, spec.inner_name))
            return MountedVolume(spec, path=None, device=device, read_only=spec.read_only)
        files, path = request.staging_path or await self.stage(request), self.path(uid, spec.inner_name)
        assert files is not None
        mounted = MountedVolume(spec, path, read_only=spec.read_only, relabel=not spec.read_only)
        found = await self._foreign(spec.name, files, partial(self._inspect, files, path))
        if found.is_bound:
            return mounted
        await self._give(request, found)
        options = [option for option in _mount_options(spec) if option in BIND_OPTIONS]
        options += ["ro"] if spec.read_only else []
        try:
            await self._foreign(spec.name, files, partial(self._bind, found.files, path, options))
        except UncertainVolumeError:
            raise
        except VolumeError:
            await self.tear_down(uid, spec.inner_name)
            raise
        return mounted

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        if block:
            await self._devices.unmap(inner_name, self._device_map(uid, inner_name))
        else:
            await self._unmount(inner_name, self.path(uid, inner_name))

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        """The source is known only as far as it is needed to take the volume down: its device, if that is mounted."""
        path = self.path(uid, inner_name, block=block)
        device = ""
        if block:
            await trio.lowlevel.checkpoint()
            if not is_there(path):
                return None
        else:
            with as_volume_error(inner_name, f"cannot look at {path}"):
                table = await self._disk.run(self._mounter.table)
                if table.at(path) is None and not await self._disk.run(lambda: is_there(path)):
                    return None
            staged = table.at(self._mounts / inner_name)
            device = "" if staged is None else staged.source
        persistent = PersistentVolume(
            metadata=ObjectMeta(name=inner_name),
            spec=PersistentVolumeSpec(
                local=LocalVolumeSource(path=device), volume_mode="Block" if block else "Filesystem"
            ),
        )
        return VolumeSpec(inner_name, inner_name, self.plugin, persistent=persistent, block=block)

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        if mounted.device is not None:
            return await self._meter.device(mounted.spec.name, Path(mounted.device))
        assert mounted.path is not None
        return await self._meter.file_system(mounted.spec.name, mounted.path)

    async def expand(self, request: SetUpRequest, new_size: Quantity) -> None:
        """A folder has no size, and a device that stays one has no file system."""
        spec = request.spec
        device = Path(_source(spec).path)
        if not spec.block and not await self._is_folder(spec.name, device):
            await grow(spec.name, device, self._mounts / spec.inner_name)

    def _device_map(self, uid: str, inner_name: str) -> DeviceMap:
        return DeviceMap(self._maps / inner_name, uid, self.path(uid, inner_name, block=True))

    async def _is_folder(self, volume: str, path: Path) -> bool:
        """Whether the volume is a folder, else it is a device. Raises VolumeError when it is neither."""
        mode = await self._foreign(volume, path, lambda: path.stat().st_mode)
        if not stat.S_ISDIR(mode) and not stat.S_ISBLK(mode):
            raise VolumeError(volume, f"{path}: only directory and block device are supported")
        return stat.S_ISDIR(mode)

    async def _foreign(self, volume: str, path: Path, work: Callable[[], T]) -> T:
        try:
            with as_volume_error(volume, f"local volume {path}"):
                return await self._disk.run_foreign(path, work)
        except trio.TooSlowError:
            problem = f"local volume {path}: expected an answer within {FOREIGN_DEADLINE:.0f} s, got none"
            raise UncertainVolumeError(volume, problem) from None

    def _make_mount_point(self, at: Path) -> bool:
        """False when something is mounted there."""
        at.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        return not self._mounter.is_mount(at)

    def _inspect(self, files: Path, path: Path) -> _Found:
        table, pods = self._mounter.table(), layout.pods_directory(self._root)
        real = files.resolve(strict=True)
        others = [mount.point for mount in table.references(real) if mount.point.is_relative_to(pods)]
        return _Found(real, table.at(path) is not None, bool(others), real.stat().st_gid)

    async def _give(self, request: SetUpRequest, found: _Found) -> None:
        """Give the files to the fsGroup, unless another pod has them. Before they are bound: so a pod that finds them
        bound needs not ask whether that was done."""
        spec, group = request.spec, request.group
        if group is None:
            return
        if found.is_shared:
            if found.group != group:
                self._recorder.pod_event(
                    request.pod,
                    EventType.WARNING,
                    "AlreadyMountedVolume",
                    f"The requested fsGroup is {group}, but the volume {spec.inner_name} has GID {found.group}. "
                    "The volume may not be shareable.",
                )
            return
        if not spec.read_only:
            await give_to_group(self._disk, self._recorder, request, found.files, group)

    def _bind(self, files: Path, path: Path, options: list[str]) -> None:
        path.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        self._mounter.bind(files, path, options=options)

    async def _unmount(self, volume: str, at: Path) -> None:
        """Unmount what is there and remove the folder, which must be empty then. Raises VolumeError."""
        await self._foreign(volume, at, partial(self._unmount_and_remove, at))

    def _unmount_and_remove(self, at: Path) -> None:
        unmount_all(self._mounter, at)
        remove_folder(at)


@frozen
class _Found:
    """A volume before it is set up for a pod."""

    files: Path
    """Without links."""
    is_bound: bool
    """For this pod, by an earlier set-up."""
    is_shared: bool
    """Another pod has it."""
    group: int


def _source(spec: VolumeSpec) -> LocalVolumeSource:
    """Raises VolumeError for one without a path, or with one that climbs."""
    source = None if spec.persistent is None else spec.persistent.spec.local
    if source is None or not source.path:
        raise VolumeError(spec.name, "local volume source is nil or local path is not set")
    if ".." in Path(source.path).parts:
        raise VolumeError(spec.name, f"invalid path: {source.path} must not contain '..'")
    return attrs.evolve(source, path=str(Path("/") / source.path))


def _mount_options(spec: VolumeSpec) -> list[str]:
    return [] if spec.persistent is None else list(mount_options(spec.persistent))
