"""`nfs`: a share, mounted by the helper of the node, for pods and as a persistent volume (kubelet: `nfs.go`).

A share that is away blocks every call on it, and the call cannot be interrupted. So nothing here looks at a folder
where a share may be: whether it is mounted is read from the mount table, and it is unmounted without being asked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.api import NFSVolumeSource, Volume
from trikubelet.linux.trees import StillMountedError
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import layout
from trikubelet.volumes.desired import mount_options
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError
from trikubelet.volumes.folders import is_listed, remove_folder
from trikubelet.volumes.kinds.node_kind import NodeKind, as_volume_error
from trikubelet.volumes.kinds.programs import run_program
from trikubelet.volumes.model import MountedVolume, VolumeSpec
from trikubelet.volumes.sources import NFS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trikubelet.linux.mounter import Mounter
    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.model import SetUpRequest, VolumeUsage
    from trikubelet.volumes.stats import VolumeMeter

log = get_logger("volumes")

HELPER: Final = "mount.nfs"
PACKAGE: Final = "nfs-common or nfs-utils"
MOUNT_DEADLINE: Final = 150.0
"""Seconds. The helper itself tries for two minutes."""
UNMOUNT_DEADLINE: Final = 60.0
"""Seconds, until it is unmounted by force."""
CLEANUP_DEADLINE: Final = 150.0


class NFSKind(NodeKind):
    plugin = NFS
    takes_mount_options = True

    def __init__(self, *, root: Path, mounter: Mounter, disk: Disk, meter: VolumeMeter) -> None:
        super().__init__(root=root)
        self._mounter = mounter
        self._disk = disk
        self._meter = meter

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        """When cancelled, the helper is ended; it may have mounted the share before."""
        spec, path = request.spec, self.path(request.pod.metadata.uid, request.spec.inner_name)
        source, read_only = _source(spec)
        mounted = MountedVolume(spec, path, read_only=read_only)
        with as_volume_error(spec.name, f"cannot make {path}"):
            if not await self._disk.run(partial(self._make_folder, path)):
                return mounted
        options = set(() if spec.persistent is None else mount_options(spec.persistent))
        if read_only:
            options.add("ro")
        try:
            await self._mount(spec.name, source, path, sorted(options))
        except VolumeError:
            # Absence is not reported before it is so.
            await self._clean_up(request.pod.metadata.uid, spec)
            raise
        return mounted

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        path = self.path(uid, inner_name)
        with as_volume_error(inner_name, f"cannot unmount {path}"):
            mounts = await self._disk.run(lambda: self._mounter.table().below(path))
            points = [mount.point for mount in mounts]
            if points and path not in points:
                raise StillMountedError(str(points[0]))
            for _ in range(points.count(path)):  # what is mounted inside goes along
                await self._unmount(inner_name, path)
        with as_volume_error(inner_name, f"cannot remove {path}"):
            await self._disk.run(partial(remove_folder, path))

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        path = self.path(uid, inner_name)
        with as_volume_error(inner_name, f"cannot list {path.parent}"):
            if not await self._disk.run(partial(is_listed, path)):
                return None
        return VolumeSpec(inner_name, inner_name, self.plugin, Volume(inner_name, nfs=NFSVolumeSource()))

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        assert mounted.path is not None
        return await self._meter.file_system(mounted.spec.name, mounted.path)

    def _make_folder(self, path: Path) -> bool:
        """Make the folder to mount on; False when the share is mounted there."""
        if self._mounter.table().at(path) is not None:
            return False
        path.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        return True

    async def _mount(self, volume: str, source: NFSVolumeSource, path: Path, options: Sequence[str]) -> None:
        share = f"{f'[{source.server}]' if ':' in source.server else source.server}:{source.path}"
        arguments = [share, str(path), *(["-o", ",".join(options)] if options else [])]
        ended = await run_program(volume, HELPER, arguments, package=PACKAGE, deadline=MOUNT_DEADLINE)
        if ended.code != 0:
            raise VolumeError(volume, f"mounting {share} failed: {HELPER} ended with {ended.code}: {ended.output}")

    async def _clean_up(self, uid: str, spec: VolumeSpec) -> None:
        """Raises UncertainVolumeError when the share may be mounted now."""
        try:
            with trio.fail_after(CLEANUP_DEADLINE):
                await self.tear_down(uid, spec.inner_name)
        except (VolumeError, trio.TooSlowError) as error:
            raise UncertainVolumeError(spec.name, f"cannot clean up after a mount that failed: {error}") from error

    async def _unmount(self, volume: str, path: Path) -> None:
        for force in (False, True):
            unmount = partial(self._mounter.unmount, path, force=force)
            try:
                # By force is a question of its own: it makes the other one return.
                await self._disk.run_foreign((path, force), unmount, deadline=UNMOUNT_DEADLINE)
            except trio.TooSlowError:
                log.warning("share is not unmounted in time", path=str(path), forced=force)
            else:
                return
        problem = f"expected {path} to be unmounted within {2 * UNMOUNT_DEADLINE:.0f} s, it is not: its server is away"
        raise UncertainVolumeError(volume, problem)


def _source(spec: VolumeSpec) -> tuple[NFSVolumeSource, bool]:
    """The share, and whether it is read-only: for a persistent volume its claim says that, not its source."""
    if spec.persistent is not None and spec.persistent.spec.nfs is not None:
        return spec.persistent.spec.nfs, spec.read_only
    if spec.persistent is None and spec.volume is not None and spec.volume.nfs is not None:
        return spec.volume.nfs, spec.volume.nfs.read_only or spec.read_only
    raise VolumeError(spec.name, "expected an nfs volume, got one without a share")
