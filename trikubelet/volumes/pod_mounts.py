"""The owner of what is on disk for each pod: its folders and volumes.

Preparing is idempotent and free the second time, since every sync asks for it. The few folders of a pod are on the
agent's own disk and made at once; whatever may take long goes to threads: the removal of what containers left behind,
mounts, and looking at paths of the node, which may be on a share that never answers and so get threads of their own.
A pod's folder is never removed through a mount or a link.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.logs import get_logger
from trikubelet.volumes import layout
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.host_path import prepare_host_path
from trikubelet.volumes.mount_table import mount_tmpfs, mounts_below, unmount
from trikubelet.volumes.removal import StillMountedError, remove_folder
from trikubelet.volumes.safe_path import resolve_in_volume

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume

log = get_logger("volumes")

EMPTY_DIR_MODE: Final = 0o777
SET_GROUP_ID: Final = 0o2000
MAX_THREADS: Final = 4
HOST_PATH_DEADLINE: Final = 120.0


class PodMounts:
    """Prepared volumes by pod UID. Only this class makes or removes folders below `<root>/pods`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prepared: dict[str, dict[str, Path]] = {}
        self._own_threads = trio.CapacityLimiter(MAX_THREADS)
        self._removals: dict[str, trio.Event] = {}
        self._host_threads = trio.CapacityLimiter(MAX_THREADS)

    async def prepare(self, pod: Pod) -> None:
        """Make the pod's folders and volumes, if that has not been done. Raises VolumeError.

        When cancelled, the next call finds what has been made and makes the rest. The look at a path of the node is
        abandoned then, a mount is waited for.
        """
        uid = pod.metadata.uid
        await self._removed(uid)
        if uid in self._prepared:
            return
        try:
            for folder in ("volumes", "plugins", "containers"):
                path = layout.pod_directory(self._root, uid) / folder
                path.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise VolumeError("*", f"cannot make the pod's folders: {error}") from error
        self._prepared[uid] = {
            volume.name: await self._prepare_volume(pod, volume)
            for volume in pod.spec.volumes
            if volume.image is None  # the runtime's own business
        }

    def host_path(self, pod: Pod, volume_name: str) -> Path | None:
        """The prepared volume's path; None when the pod has no such volume or it is not ready."""
        return self._prepared.get(pod.metadata.uid, {}).get(volume_name)

    def resolve_subpath(self, volume: Path, sub_path: str) -> Path:
        """A path in a volume that cannot lead out of it, made when it is missing. Raises OSError or ValueError."""
        return resolve_in_volume(volume, sub_path)

    async def remove(self, uid: str) -> None:
        """Unmount and remove all that is on disk for a pod; fine when there is nothing.

        Raises StillMountedError when something is mounted there that is not ours to unmount, and OSError for what
        cannot be removed. When cancelled, the next call goes on with the rest. A second call meanwhile only waits.
        """
        if uid in self._removals:
            await self._removed(uid)
            return
        self._prepared.pop(uid, None)
        try:
            folder = layout.pod_directory(self._root.resolve(), uid)
        except ValueError:
            return  # `prepare` refused it
        if not folder.exists():
            return
        done = self._removals[uid] = trio.Event()
        try:
            await trio.to_thread.run_sync(_remove, folder, limiter=self._own_threads)
        finally:
            del self._removals[uid]
            done.set()

    async def pod_uids(self) -> set[str]:
        """The UIDs of all pods that have a folder."""
        await trio.lowlevel.checkpoint()
        try:
            with os.scandir(layout.pods_directory(self._root)) as entries:
                return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        except FileNotFoundError:
            return set()

    async def _removed(self, uid: str) -> None:
        """Wait until nobody removes the pod's folder: another pod may have come with its UID."""
        await trio.lowlevel.checkpoint()
        while uid in self._removals:
            await self._removals[uid].wait()

    async def _prepare_volume(self, pod: Pod, volume: Volume) -> Path:
        if volume.host_path is not None:
            return await self._prepare_host_path(volume.name, volume.host_path)
        if volume.empty_dir is not None:
            return await self._prepare_empty_dir(pod, volume.name, volume.empty_dir)
        raise VolumeError(
            volume.name, f"this agent cannot provide {_kind(volume)} volumes yet, only emptyDir and hostPath"
        )

    async def _prepare_host_path(self, name: str, source: HostPathVolumeSource) -> Path:
        try:
            with trio.fail_after(HOST_PATH_DEADLINE):
                return await trio.to_thread.run_sync(
                    prepare_host_path, name, source, limiter=self._host_threads, abandon_on_cancel=True
                )
        except trio.TooSlowError:
            raise VolumeError(
                name,
                f"hostPath {source.path}: expected an answer of its file system within {HOST_PATH_DEADLINE:.0f} s, "
                "got none: see whether a network share there is away",
            ) from None

    async def _prepare_empty_dir(self, pod: Pod, name: str, source: EmptyDirVolumeSource) -> Path:
        path = layout.volumes_directory(self._root, pod.metadata.uid, layout.EMPTY_DIR) / name
        if source.medium not in ("", "Memory"):
            raise VolumeError(name, f"this agent cannot provide emptyDir on medium {source.medium!r} yet")
        group = None if pod.spec.security_context is None else pod.spec.security_context.fs_group
        try:
            if not path.exists():
                _make_shared_folder(path, group)
            if source.medium == "Memory" and not path.is_mount():
                await self._mount_memory(pod, path, source, group)
        except OSError as error:
            raise VolumeError(name, f"cannot make {path}: {error.strerror}") from error
        return path

    async def _mount_memory(self, pod: Pod, path: Path, source: EmptyDirVolumeSource, group: int | None) -> None:
        from trikubelet.volumes.tmpfs_size import tmpfs_size

        mount = partial(mount_tmpfs, path, size=tmpfs_size(pod, source), mode=_mode(group), group=group)
        try:
            await trio.to_thread.run_sync(mount, limiter=self._own_threads)
        except PermissionError:
            # Without root a pod still runs; its data are on disk then, which `trikubelet check` says too.
            log.warning("no permission to mount a tmpfs: the volume is kept on disk", path=str(path))


def _remove(folder: Path) -> None:
    """Ends early, by trio.Cancelled, when who waits for the thread is cancelled."""
    for point, kind in mounts_below(folder):
        if kind != "tmpfs" or point.parent != folder / "volumes" / layout.EMPTY_DIR:
            raise StillMountedError(str(point))
        unmount(point)
    remove_folder(folder, trio.from_thread.check_cancelled)


def _mode(group: int | None) -> int:
    """Everybody may write; with a group, what is made inside belongs to it too."""
    return EMPTY_DIR_MODE if group is None else EMPTY_DIR_MODE | SET_GROUP_ID


def _make_shared_folder(path: Path, group: int | None) -> None:
    """Make a folder that everybody may write to, under another name first: it is there complete or not at all."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
    if group is not None:
        try:
            os.chown(unfinished, -1, group)
        except OSError as error:
            # Without root only groups of our own can be given; everybody may write there anyway.
            log.warning("cannot give the volume to the fsGroup", path=str(path), group=group, problem=error.strerror)
    unfinished.chmod(_mode(group))
    unfinished.rename(path)


def _kind(volume: Volume) -> str:
    """The wire name of the volume's source: the one field besides the name that is set."""
    from trikubelet.api import to_dict

    return next((key for key in to_dict(volume) if key != "name"), "unknown")
