"""`emptyDir`: a folder that lives as long as its pod: on the node's disk, in memory, or of huge pages
(kubelet: `empty_dir.go`).

A folder on disk is a handful of calls on the agent's own disk, so it costs no thread. What pods leave in it may be
large, so it goes on a thread, unless there is nothing.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.api import EmptyDirVolumeSource, Quantity, QuantityError, Volume
from trikubelet.linux.trees import StillMountedError
from trikubelet.volumes import layout
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.folders import unmount_inside
from trikubelet.volumes.kinds.node_kind import NodeKind, as_volume_error, is_there
from trikubelet.volumes.kinds.wrapped_folder import WrappedFolder
from trikubelet.volumes.model import MountedVolume, VolumeSpec
from trikubelet.volumes.removal import remove_folder
from trikubelet.volumes.sources import EMPTY_DIR
from trikubelet.volumes.tmpfs_size import tmpfs_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trikubelet.api import Pod
    from trikubelet.linux.mount_table import Mount
    from trikubelet.linux.mounter import Mounter
    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.model import SetUpRequest, VolumeUsage
    from trikubelet.volumes.stats import VolumeMeter

MEMORY: Final = "Memory"
HUGE_PAGES: Final = "HugePages"
"""Of the one size that the pod asks for; `HugePages-2Mi` says which."""
HUGE_PAGES_OF: Final = "HugePages-"
_RESOURCE: Final = "hugepages-"
_MODE: Final = 0o1777
_SET_GROUP_ID: Final = 0o2000
_OWN: Final = ("tmpfs", "hugetlbfs")


class EmptyDirKind(NodeKind):
    plugin = EMPTY_DIR

    def __init__(
        self,
        *,
        root: Path,
        mounter: Mounter,
        disk: Disk,
        meter: VolumeMeter,
        allocatable: Callable[[], Mapping[str, Quantity]],
    ) -> None:
        """`allocatable`: what the node can give to pods."""
        super().__init__(root=root)
        self._mounter = mounter
        self._disk = disk
        self._meter = meter
        self._allocatable = allocatable

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        """When cancelled, what was begun is done to its end."""
        spec, pod = request.spec, request.pod
        volume = spec.volume
        source = EmptyDirVolumeSource() if volume is None or volume.empty_dir is None else volume.empty_dir
        folder = self._folder(pod.metadata.uid, spec.inner_name, in_memory=source.medium == MEMORY)
        with as_volume_error(spec.name, f"cannot make {folder.path}"):
            if source.medium == "":
                await trio.lowlevel.checkpoint()
                folder.make(group=request.group, size=None)
            elif source.medium == MEMORY:
                size = tmpfs_size(pod, source.size_limit, allocatable=self._allocatable())
                await self._disk.run(partial(folder.make, group=request.group, size=size))
            elif _is_huge_pages(source.medium):
                await self._disk.run(partial(self._make_of_huge_pages, request, source.medium, folder))
            else:
                raise VolumeError(spec.name, f'unknown storage medium "{source.medium}"')
        return MountedVolume(spec, folder.path, relabel=True)

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        folder = self._folder(uid, inner_name, in_memory=False)
        await trio.lowlevel.checkpoint()
        with as_volume_error(inner_name, f"cannot remove {folder.path}"):
            with contextlib.suppress(FileNotFoundError):
                folder.ready.unlink()
            with contextlib.suppress(FileNotFoundError):
                folder.ready.parent.rmdir()
            try:
                folder.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # something is in it, or it is a mount
                await self._disk.run(partial(self._remove, folder.path))

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        await trio.lowlevel.checkpoint()
        if not is_there(self.path(uid, inner_name)):
            return None
        return VolumeSpec(inner_name, inner_name, self.plugin, Volume(inner_name, empty_dir=EmptyDirVolumeSource()))

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        assert mounted.path is not None
        return await self._meter.tree(mounted.spec.name, mounted.path)

    def _folder(self, uid: str, inner_name: str, *, in_memory: bool) -> WrappedFolder:
        ready = layout.readiness_directory(self._root, uid, self.plugin, inner_name) / "ready"
        return WrappedFolder(self.path(uid, inner_name), ready, in_memory, self._mounter)

    def _make_of_huge_pages(self, request: SetUpRequest, medium: str, folder: WrappedFolder) -> None:
        """Blocks. Raises VolumeError and OSError."""
        spec, pod, path = request.spec, request.pod, folder.path
        path.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        mount = self._mounter.table().at(path)
        if mount is None:
            size = page_size(spec.name, medium, pod)
            mode = _MODE if request.group is None else _MODE | _SET_GROUP_ID
            with as_volume_error(spec.name, f"cannot mount huge pages of {size} on {path}"):
                self._mounter.hugetlbfs(path, size.value(), mode=mode, group=request.group)
        elif medium != HUGE_PAGES:
            wanted, found = _size_of(spec.name, medium, HUGE_PAGES_OF), _page_size_of(mount)
            if found != wanted:
                raise VolumeError(
                    spec.name,
                    f"pod {pod.metadata.uid}: mounted dir {path} pagesize '{found}' and requested medium size "
                    f"'{wanted}' differ",
                )
        folder.ready.parent.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        folder.ready.touch()

    def _remove(self, path: Path) -> None:
        """Blocks. In the place of the folder itself only a file system of ours is unmounted. Ends early, by
        trio.Cancelled, when the caller is cancelled while it waits for the thread."""
        mounts = [mount for mount in self._mounter.table().below(path) if mount.point == path]
        if any(mount.kind not in _OWN for mount in mounts):
            raise StillMountedError(str(path))
        unmount_inside(self._mounter, path)
        for _ in mounts:
            self._mounter.unmount(path)
        remove_folder(path, trio.from_thread.check_cancelled)


def page_size(volume: str, medium: str, pod: Pod) -> Quantity:
    """The size of the huge pages that a volume is to be made of: the pod must have asked for some of it
    (kubelet: `getPageSizeMountOption`). Raises VolumeError."""
    wanted = None if medium == HUGE_PAGES else _size_of(volume, medium, HUGE_PAGES_OF)
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    requests = [container.resources.requests for container in containers]
    if pod.spec.resources is not None:
        requests.append(pod.spec.resources.requests)
    names = {name for resources in requests for name in resources if name.startswith(_RESOURCE)}
    sizes = {_size_of(volume, name, _RESOURCE) for name in names}
    if wanted is not None:
        sizes &= {wanted}
    if len(sizes) > 1:
        raise VolumeError(volume, f"medium: {medium} can't be used if container requests multiple huge page sizes")
    if not sizes:
        problem = "hugePages storage requested, but there is no resource request for huge pages"
        raise VolumeError(volume, f"medium {medium}: {problem}")
    return sizes.pop()


def _is_huge_pages(medium: str) -> bool:
    return medium == HUGE_PAGES or medium.startswith(HUGE_PAGES_OF)


def _size_of(volume: str, name: str, prefix: str) -> Quantity:
    try:
        return Quantity(name.removeprefix(prefix))
    except QuantityError as error:
        raise VolumeError(volume, f"{name}: {error}") from error


def _page_size_of(mount: Mount) -> Quantity | None:
    """None when it is not of huge pages. The kernel writes `pagesize=2M`."""
    for option in mount.super_options:
        if mount.kind == "hugetlbfs" and option.startswith("pagesize="):
            return Quantity(f"{option.removeprefix('pagesize=')}i")
    return None
