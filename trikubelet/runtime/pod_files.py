"""The files that containers need on the host: log directories, the hosts file, termination files.

What is made and read here is tiny and on local disk, so it is done at once: a trip to a worker thread costs more than
the work, and would let a mock clock jump while the thread runs. Removing can take long and goes to a thread.

Other agents on the machine may keep their pods' logs in the same place, and only they know which of their pods are
gone. So a hidden file in each pod's log directory names its owner: the agent's root directory. What has another
mark, or none (a Go kubelet's), is never removed.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.cgroups.ownership import is_same_mark, owner_mark
from trikubelet.linux.resolver import RESOLV_CONF, resolv_conf_for_pods
from trikubelet.linux.safe_path import walk
from trikubelet.linux.trees import remove_tree
from trikubelet.runtime.logs.paths import (
    container_logs_directory,
    legacy_symlink_name,
    pod_logs_directory,
    restart_count_from_log_names,
)
from trikubelet.runtime.logs.rotation import LogLocks
from trikubelet.runtime.sandboxes.name_resolution import (
    MAX_RESOLV_CONF,
    DNSSettings,
    host_network_hosts_file,
    managed_hosts_file,
    parse_resolv_conf,
    pod_hostname_and_domain,
)
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Container, Pod
    from trikubelet.runtime.options import RuntimeOptions

log = get_logger("runtime")

NODE_HOSTS_FILE: Final = Path("/etc/hosts")
OWNER_FILE: Final = ".trikubelet"
"""In a pod's log directory: the root directory of the agent that it belongs to."""
_THREADS: Final = 4


class PodFiles:
    """Makes, reads and removes the files of pods. Every method raises OSError."""

    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options
        self._owner = owner_mark(options.root_dir)
        self._earlier = {name for name in _names(options.earlier_logs_dir) if self._is_own(self._earlier_dir / name)}
        """Names of this agent's folders in the log folder of an older version."""
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._volume_limiter = trio.CapacityLimiter(_THREADS)
        self.log_locks = LogLocks()
        """Shared with the rotation of logs."""

    @property
    def _earlier_dir(self) -> Path:
        return self._options.earlier_logs_dir or self._options.pod_logs_dir

    def logs_directory(self, name: str) -> Path:
        """The folder of a pod's logs by its name. Those of an older version's pods stay where that made them."""
        return (self._earlier_dir if name in self._earlier else self._options.pod_logs_dir) / name

    def logs_dir_of(self, pod: Pod) -> Path:
        """The folder that holds the folder of the pod's logs."""
        return self._pod_logs_directory(pod).parent

    def _pod_logs_directory(self, pod: Pod) -> Path:
        return self.logs_directory(pod_logs_directory(self._options.pod_logs_dir, pod).name)

    def make_pod_logs_directory(self, pod: Pod) -> None:
        directory = self._pod_logs_directory(pod)
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        mark = directory / OWNER_FILE
        if not self._is_own(directory) and not (self._options.alone and mark.exists()):
            mark.write_bytes(os.fsencode(self._owner))

    def make_container_logs_directory(self, pod: Pod, container: Container) -> None:
        self.make_pod_logs_directory(pod)
        directory = container_logs_directory(self.logs_dir_of(pod), pod, container.name)
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)

    def restart_count(self, pod: Pod, container: Container) -> int:
        """The restart count for a container that the runtime does not know, from the logs it left behind."""
        directory = container_logs_directory(self.logs_dir_of(pod), pod, container.name)
        if not directory.exists():
            return 0
        with os.scandir(directory) as entries:
            return restart_count_from_log_names(entry.name for entry in entries if not entry.is_dir())

    def write_hosts_file(self, pod: Pod, ips: Sequence[str]) -> Path:
        """Bring the pod's hosts file up to date, in place, since running containers have it mounted."""
        path = self._options.pod_directory(pod.metadata.uid) / "etc-hosts"
        if pod.spec.host_network:
            text = host_network_hosts_file(NODE_HOSTS_FILE.read_text(errors="replace"), pod.spec.host_aliases)
        else:
            hostname, domain = pod_hostname_and_domain(pod, self._options.cluster_domain)
            text = managed_hosts_file(ips, hostname, domain, pod.spec.host_aliases)
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
        return path

    def make_termination_file(self, pod: Pod, container: Container) -> Path:
        """An empty file that any user may write to, one for each run of the container."""
        directory = self._options.pod_directory(pod.metadata.uid) / "containers" / container.name
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        path = directory / os.urandom(4).hex()
        path.touch()
        path.chmod(0o666)
        return path

    def resolver_settings(self, *, host_network: bool = True) -> DNSSettings | None:
        """The node's resolv.conf; None when pods are not to have it.

        A pod with a network of its own cannot reach a name server of the machine's loopback: it gets those that
        systemd-resolved asks, unless the configuration names a file.
        """
        path = self._options.resolver_config
        if path is None:
            return None
        if path == RESOLV_CONF and not host_network:
            path = resolv_conf_for_pods(path)
        with path.open("rb") as file:
            return parse_resolv_conf(file.read(MAX_RESOLV_CONF).decode(errors="replace"))

    def link_log(self, pod: Pod, container_name: str, container_id: str, log_path: str) -> None:
        """Make the link that log collectors look for, when the log is there. A start does not fail for want of it."""
        directory = self._options.legacy_log_symlinks_dir
        target = self._pod_logs_directory(pod) / log_path
        if directory is None or not target.exists():
            return
        link = directory / legacy_symlink_name(container_id, container_name, pod.metadata.name, pod.metadata.namespace)
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        except OSError as error:
            log.warning("could not link a container's log", link=str(link), target=str(target), problem=str(error))

    def read_tail(self, path: str, limit: int) -> bytes | None:
        """At most the last `limit` bytes of a regular file; None when there is no such file.

        The file is the container's to write: it must not be able to make the agent wait or follow a link.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{path} is no regular file")
            file.seek(max(0, status.st_size - limit))
            return file.read(limit)

    async def read_in_volume(self, volume: Path, path: str, limit: int) -> bytes:
        """A regular file of at most `limit` bytes, by its path in a volume.

        The containers that own the volume cannot lead the agent out of it: a path that leads out is a ValueError. What
        they mounted there may never answer, so a thread waits for it, and is left behind when this is cancelled.
        """
        return await trio.to_thread.run_sync(
            _read_inside, volume, path, limit, limiter=self._volume_limiter, abandon_on_cancel=True
        )

    async def remove_logs(self, log_path: str, symlink_name: str) -> None:
        """Remove a container's log, its rotated logs, and the link to it. Not cancelled half way."""
        async with self.log_locks.removal(log_path):
            await self._remove_logs(log_path, symlink_name)

    async def _remove_logs(self, log_path: str, symlink_name: str) -> None:
        current = Path(log_path)
        directory = current.parent
        names = _siblings(directory) if log_path else []
        paths = [directory / name for name in names if name.startswith(current.name)]
        if self._options.legacy_log_symlinks_dir is not None:
            link = self._options.legacy_log_symlinks_dir / symlink_name
            paths += [link] if symlink_name in _siblings(link.parent) else []

        def remove() -> None:
            for path in paths:
                path.unlink(missing_ok=True)

        if paths:
            await trio.to_thread.run_sync(remove, limiter=self._limiter)

    def pod_log_directories(self) -> list[str]:
        """The names of the directories of pods' logs that belong to this agent."""
        base = self._options.pod_logs_dir
        return [*(name for name in _siblings(base) if self._is_own(base / name)), *self._earlier]

    async def remove_pod_logs(self, name: str) -> None:
        """Remove a directory of pod logs with all that is in it, however deep. Not cancelled half way."""
        await trio.to_thread.run_sync(remove_tree, self.logs_directory(name), limiter=self._limiter)
        self._earlier.discard(name)

    def dangling_symlinks(self) -> list[Path]:
        """This agent's links to containers' logs that lead nowhere.

        In a cluster, links into pods' log folders that are gone count too, whoever made them, as for the kubelet.
        """
        directory = self._options.legacy_log_symlinks_dir
        if directory is None:
            return []
        links = (directory / name for name in _siblings(directory) if name.endswith(".log"))
        return [link for link in links if not link.exists() and self._is_own_link(link)]

    def _is_own(self, directory: Path) -> bool:
        try:
            return is_same_mark(os.fsdecode((directory / OWNER_FILE).read_bytes()), self._owner)
        except OSError:
            return False

    def _is_own_link(self, link: Path) -> bool:
        """True if a link is to the logs of a pod of this agent. Of a folder that is gone, its place tells whose it was.

        The log folder below the root folder is this agent's alone. That of the options is the node's in a cluster.
        """
        try:
            directory = link.readlink().parent.parent
        except OSError:
            return False
        if directory.is_dir():
            return self._is_own(directory)
        base, options = self._options.pod_logs_dir, self._options
        return not options.alone or (directory.parent == base and base.is_relative_to(options.root_dir))


def _names(directory: Path | None) -> list[str]:
    """The names in a folder that may be unreadable: then nothing in it is this agent's."""
    try:
        return [] if directory is None else _siblings(directory)
    except OSError:
        return []


def _siblings(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - names only
    except FileNotFoundError:
        return []


def _read_inside(volume: Path, path: str, limit: int) -> bytes:
    top = os.open(volume, os.O_PATH | os.O_CLOEXEC)  # the volume itself may be behind a link of the node
    try:
        found = walk(top, path, make=False)
    finally:
        os.close(top)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", path)
        # Through its descriptor: what was looked at is what is read, whatever the path leads to by now.
        with open(f"/proc/self/fd/{found}", "rb") as file:  # noqa: PTH123 - a Path would say nothing more
            content = file.read(limit + 1)
    finally:
        os.close(found)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", path)
    return content
