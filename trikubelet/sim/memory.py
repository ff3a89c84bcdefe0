"""What a node keeps on disk, kept in memory: volumes, log folders, hosts files, checkpoints.

Worker threads and a mock clock do not go together: the clock jumps while a thread works, by chance as it were.
So a simulated node has no threads and no disk, and its life does not depend on the machine it is computed on.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import trio

from trikubelet.allocation.store import AllocationStore
from trikubelet.broadcast import Broadcast
from trikubelet.runtime.logs.paths import pod_logs_directory
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.volumes.errors import VolumesNotReadyError
from trikubelet.volumes.model import MountedVolume, VolumeSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from trio_typing import TaskStatus

    from trikubelet.api import Container, Pod, Volume
    from trikubelet.runtime.options import RuntimeOptions
    from trikubelet.runtime.sandboxes.name_resolution import DNSSettings
    from trikubelet.volumes.model import VolumeUsage
    from trikubelet.volumes.waits import VolumeWait


class MemoryMounts:
    """Implements `volumes.interface.PodVolumes`: volumes that are only names, there as soon as they are asked for.

    `broken` holds volume names whose preparation fails.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broken: set[str] = set()
        self.pod_changes: Broadcast[str] = Broadcast()
        """No pod ever waits for a volume here."""
        self._mounted: dict[str, dict[str, MountedVolume]] = {}
        """By UID and name."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def of_pod(self, _uid: str, _nursery: trio.Nursery) -> AbstractContextManager[None]:
        return nullcontext()

    async def prepare(self, pod: Pod) -> None:
        await trio.lowlevel.checkpoint()
        if broken := [volume.name for volume in pod.spec.volumes if volume.name in self.broken]:
            raise VolumesNotReadyError(broken, cause="simulated: it cannot be prepared", timed_out=False)
        devices = {
            device.name
            for container in (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers)
            for device in container.volume_devices
        }
        self._mounted[pod.metadata.uid] = {
            volume.name: self._volume(pod, volume, block=volume.name in devices)
            for volume in pod.spec.volumes
            if volume.image is None
        }

    def refresh(self, pod: Pod) -> None:
        """What is only a name does not grow old."""

    async def release(self, uid: str) -> None:
        await trio.lowlevel.checkpoint()
        self._mounted.pop(uid, None)

    async def remove(self, uid: str) -> None:
        await self.release(uid)

    async def pod_uids(self) -> set[str]:
        await trio.lowlevel.checkpoint()
        return set(self._mounted)

    def waits(self, _uid: str) -> tuple[VolumeWait, ...]:
        return ()

    def mounted(self, pod: Pod, volume_name: str) -> MountedVolume | None:
        return self._mounted.get(pod.metadata.uid, {}).get(volume_name)

    def host_path(self, pod: Pod, volume_name: str) -> Path | None:
        volume = self.mounted(pod, volume_name)
        return None if volume is None else volume.path

    async def bind_subpath(self, pod: Pod, container: str, index: int, volume_name: str, sub_path: str) -> Path:
        await trio.lowlevel.checkpoint()
        volume = self.host_path(pod, volume_name)
        if volume is None:
            raise FileNotFoundError(f"simulated: there is no volume {volume_name!r}")
        return volume / sub_path

    def supplemental_groups(self, pod: Pod) -> tuple[int, ...]:
        return ()

    def in_use(self) -> tuple[str, ...] | None:
        return ()

    async def usage(self, uid: str) -> Mapping[str, VolumeUsage]:
        await trio.lowlevel.checkpoint()
        return {}

    def _volume(self, pod: Pod, volume: Volume, *, block: bool) -> MountedVolume:
        path = self.root / "pods" / pod.metadata.uid / volume.name
        sources = (volume.config_map, volume.secret, volume.downward_api, volume.projected)
        return MountedVolume(
            VolumeSpec(volume.name, volume.name, "simulated", volume, block=block),
            path=None if block else path,
            device=str(path) if block else None,
            read_only=any(source is not None for source in sources),
        )


class MemoryPodFiles(PodFiles):
    """The files of pods that are made by the runtime manager. Logs are folders without files."""

    def __init__(self, options: RuntimeOptions) -> None:
        super().__init__(options)
        self._log_folders: dict[str, None] = {}
        self._termination_files = 0

    def make_pod_logs_directory(self, pod: Pod) -> None:
        self._log_folders[pod_logs_directory(self._options.pod_logs_dir, pod).name] = None

    def make_container_logs_directory(self, pod: Pod, container: Container) -> None:
        self.make_pod_logs_directory(pod)

    def restart_count(self, pod: Pod, container: Container) -> int:
        return 0

    def write_hosts_file(self, pod: Pod, ips: Sequence[str]) -> Path:
        return self._options.pod_directory(pod.metadata.uid) / "etc-hosts"

    def make_termination_file(self, pod: Pod, container: Container) -> Path:
        self._termination_files += 1
        folder = self._options.pod_directory(pod.metadata.uid) / "containers" / container.name
        return folder / f"{self._termination_files:08x}"

    def resolver_settings(self, *, host_network: bool = True) -> DNSSettings | None:
        return None

    def link_log(self, pod: Pod, container_name: str, container_id: str, log_path: str) -> None:
        """There is no log to link to."""

    def read_tail(self, path: str, limit: int) -> bytes | None:
        return None

    async def remove_logs(self, log_path: str, symlink_name: str) -> None:
        await trio.lowlevel.checkpoint()

    def pod_log_directories(self) -> list[str]:
        return list(self._log_folders)

    async def remove_pod_logs(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        self._log_folders.pop(name, None)

    def dangling_symlinks(self) -> list[Path]:
        return []


def memory_allocations(checkpoints: MutableMapping[Path, str], path: Path) -> AllocationStore:
    """In the place of `AllocationStore.open`."""

    async def write(data: str) -> None:
        await trio.lowlevel.checkpoint()
        checkpoints[path] = data

    return AllocationStore.of(path, lambda: checkpoints.get(path), write)
