"""What a node keeps on disk, kept in memory: volumes, log folders, hosts files.

Worker threads and a mock clock do not go together: the clock jumps while a thread works, by chance as it were.
So a simulated node has no threads and no disk, and its life does not depend on the machine it is computed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.runtime.log_paths import pod_logs_directory
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.volumes import PodMounts, VolumeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trikubelet.api import Container, Pod
    from trikubelet.runtime.dns import DNSSettings
    from trikubelet.runtime.options import RuntimeOptions


class MemoryMounts(PodMounts):
    """Volumes that are only names. `broken` holds volume names whose preparation fails."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.broken: set[str] = set()
        self._paths: dict[str, dict[str, Path]] = {}

    async def prepare(self, pod: Pod) -> None:
        await trio.lowlevel.checkpoint()
        for volume in pod.spec.volumes:
            if volume.name in self.broken:
                raise VolumeError(volume.name, "simulated: the volume cannot be prepared")
        uid = pod.metadata.uid
        self._paths[uid] = {
            volume.name: self.root / "pods" / uid / volume.name for volume in pod.spec.volumes if volume.image is None
        }

    def host_path(self, pod: Pod, volume_name: str) -> Path | None:
        return self._paths.get(pod.metadata.uid, {}).get(volume_name)

    def resolve_subpath(self, volume: Path, sub_path: str) -> Path:
        return volume / sub_path

    async def remove(self, uid: str) -> None:
        await trio.lowlevel.checkpoint()
        self._paths.pop(uid, None)

    async def pod_uids(self) -> set[str]:
        await trio.lowlevel.checkpoint()
        return set(self._paths)


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

    def resolver_settings(self) -> DNSSettings | None:
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
