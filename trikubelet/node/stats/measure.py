"""Everything that is read from files for one collection, in one go on one thread.

One thread and one hop, since five hundred pods are some ten thousand small files: a hop for each would cost more than
the reading, and the event loop would do nothing else. Python lets other threads in while the kernel answers.

What is read belongs to one moment for the reader, but not for the counters: reading takes some hundred milliseconds.
So each reading has a time of its own, the time at which the collection began and what has passed since.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.cgroups.names import paths_of_all_pods, paths_of_tiers
from trikubelet.formats.values import frozen
from trikubelet.node.stats.block_io import DiskStats, read_disk
from trikubelet.node.stats.cgroup_files import CgroupReading, read_cgroup
from trikubelet.node.stats.cgroup_places import CgroupPlace, CgroupPlaces, pod_group
from trikubelet.node.stats.disk import (
    device_name,
    device_of,
    read_file_system,
    read_node_file_system,
    usage_of_file,
    usage_of_files,
)
from trikubelet.node.stats.model import FsStats, RlimitStats
from trikubelet.node.stats.open_files import OpenFiles, read_open_files
from trikubelet.node.stats.proc_files import (
    NetworkReading,
    boot_time,
    has_own_network,
    read_machine,
    read_network,
    read_rlimit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trikubelet.node.stats.choice import MeasuredPod

KUBELET: Final = "kubelet"
RUNTIME: Final = "runtime"
MISC: Final = "misc"
PODS: Final = "pods"


@frozen(kw_only=True)
class NodePaths:
    """Where things are on the node."""

    root_dir: Path
    """The agent's: pods' folders, and the file system that counts as the node's."""
    pod_logs_dir: Path
    earlier_logs_dir: Path | None = None
    """Where the logs of an older version's pods are."""
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    kubelet_cgroup: str = ""
    """`kubeletCgroups`; empty: the agent's own, if it has one to itself."""
    runtime_cgroup: str = ""
    """`--runtime-cgroups`; empty: not measured, as the next."""
    system_cgroup: str = ""
    """`systemCgroups`"""
    cgroup_root: str = "/"
    """`cgroupRoot`: the pods' group lies there."""


@frozen(kw_only=True)
class Measured:
    """What was read. Containers' groups are known by container id, pods' by `pod_group`, the node's daemons by name."""

    at: int
    machine: CgroupReading
    groups: Mapping[str, CgroupReading]
    daemons: Mapping[str, CgroupReading]
    tiers: tuple[CgroupReading, ...] = ()
    """The groups of classes of pods, but for the Guaranteed ones, which lie right in the group of all."""
    boot_time: int | None = None
    network: NetworkReading | None = None
    rlimit: RlimitStats | None = None
    node_fs: FsStats | None = None
    node_fs_device: str = ""
    node_disk: DiskStats | None = None
    """Of that device, where it is one."""
    networks: Mapping[str, NetworkReading] = attrs.field(factory=dict)
    """By sandbox id."""
    container_logs: Mapping[str, FsStats] = attrs.field(factory=dict)
    """By container id."""
    pod_files: Mapping[str, tuple[FsStats | None, ...]] = attrs.field(factory=dict)
    """By UID: the pod's own logs and /etc/hosts."""
    file_systems: Mapping[str, FsStats] = attrs.field(factory=dict)
    """By the path that was asked for."""
    devices: Mapping[str, str] = attrs.field(factory=dict)
    """Names of block devices by `major:minor`, and of those with file systems by path."""


class Meter:
    """Reads files. All methods block; one at a time."""

    def __init__(self, paths: NodePaths, stopwatch: Callable[[], float] = time.perf_counter) -> None:
        """`stopwatch` gives seconds; its differences show when in a collection something was read."""
        self._paths = paths
        self._stopwatch = stopwatch
        self._places = CgroupPlaces(paths.proc)

    def measure(self, pods: Iterable[MeasuredPod], at: int, *, full: bool, disks: Iterable[str] = ()) -> Measured:
        """`at`: now, in nanoseconds since 1970. `full`: everything, else processors, memory and swap only.
        `disks`: paths whose file systems shall be read."""
        pods, begun = tuple(pods), self._stopwatch()

        def now() -> int:
            return at + int((self._stopwatch() - begun) * 1_000_000_000)

        machine = read_machine(self._paths.proc, self._places, now(), full=full)
        groups = self._groups(pods, now, full=full)
        measured = Measured(
            at=at,
            machine=machine,
            groups=groups,
            daemons=self._daemons(now, full=full),
            boot_time=boot_time(self._paths.proc),
        )
        return self._rest(measured, pods, now, disks) if full else measured

    def measure_node(self, at: int, disks: Iterable[str] = (), pods: Iterable[MeasuredPod] = ()) -> Measured:
        """What a node may run out of: memory, also that of all pods, disks and processes; and these pods' files."""
        paths, of_pods = self._paths, self._pods_place()
        file_systems, devices = self._disks(disks, at)
        logs, files = self._files(tuple(pods), at)
        return Measured(
            at=at,
            machine=read_machine(paths.proc, self._places, at, full=False),
            groups={},
            daemons={} if of_pods is None else {PODS: read_cgroup(of_pods, at, full=False, processes=False)},
            rlimit=read_rlimit(paths.proc, at),
            node_fs=read_node_file_system(paths.root_dir, at),
            node_fs_device=self._device(device_of(paths.root_dir)),
            container_logs=logs,
            pod_files=files,
            file_systems=file_systems,
            devices=devices,
        )

    def open_files(self, measured: Measured) -> dict[str, OpenFiles]:
        """What the measured groups' processes have open now, by the names of the groups."""
        return read_open_files(self._paths.proc, {name: group.pids for name, group in measured.groups.items()})

    def _rest(
        self, measured: Measured, pods: tuple[MeasuredPod, ...], now: Callable[[], int], disks: Iterable[str]
    ) -> Measured:
        proc, root_dir = self._paths.proc, self._paths.root_dir
        node_fs = read_node_file_system(root_dir, now())
        logs, files = self._files(pods, now()) if node_fs is not None else ({}, {})
        file_systems, devices = self._disks(disks, now())
        tiers = tuple(self._tiers(now))
        for group in (measured.machine, *measured.daemons.values(), *tiers, *measured.groups.values()):
            for device in group.devices:
                if device.device not in devices:
                    devices[device.device] = self._device(device.device)
        return attrs.evolve(
            measured,
            tiers=tiers,
            network=read_network(proc, 1, now()) or read_network(proc, "self", now()),
            rlimit=read_rlimit(proc, now()),
            node_fs=node_fs,
            node_fs_device=self._device(device_of(root_dir)),
            node_disk=read_disk(proc, device_of(root_dir)),
            networks=self._networks(pods, measured.groups, now),
            container_logs=logs,
            pod_files=files,
            file_systems=file_systems,
            devices=devices,
        )

    def _disks(self, paths: Iterable[str], at: int) -> tuple[dict[str, FsStats], dict[str, str]]:
        """The file systems at these paths, and the names of their devices; without those that cannot be read."""
        found = {path: fs for path in paths if (fs := read_file_system(path, at)) is not None}
        return found, {path: self._device(device_of(path)) for path in found}

    def _groups(self, pods: tuple[MeasuredPod, ...], now: Callable[[], int], *, full: bool) -> dict[str, CgroupReading]:
        if not self._places.usable:
            return {}
        names = {name for pod in pods for name in _names(pod)}
        self._places.locate(names)
        found = {}
        for name in names:
            place = self._places.find(name)
            reading = None if place is None else read_cgroup(place, now(), full=full, processes=not _is_pod(name))
            if reading is None:
                continue
            if reading.cpu is None and reading.memory is None:
                self._places.lost(name)
            else:
                found[name] = reading
        return found

    def _daemons(self, now: Callable[[], int], *, full: bool) -> dict[str, CgroupReading]:
        found: dict[str, CgroupReading] = {}
        for name, place in self._daemon_places():
            if place is not None and name not in found:
                found[name] = read_cgroup(place, now(), full=full, processes=False)
        return found

    def _daemon_places(self) -> Iterable[tuple[str, CgroupPlace | None]]:
        paths = self._paths
        own = self._places.at(paths.kubelet_cgroup) if paths.kubelet_cgroup else self._places.own()
        yield KUBELET, own
        for name, path in ((RUNTIME, paths.runtime_cgroup), (MISC, paths.system_cgroup)):
            yield name, self._places.at(path) if path else None
        yield PODS, self._pods_place()

    def _pods_place(self) -> CgroupPlace | None:
        """The group of all pods, with either driver."""
        return next(filter(None, map(self._places.at, paths_of_all_pods(self._paths.cgroup_root))), None)

    def _tiers(self, now: Callable[[], int]) -> Iterable[CgroupReading]:
        """With the one driver or the other."""
        for place in filter(None, map(self._places.at, paths_of_tiers(self._paths.cgroup_root))):
            yield read_cgroup(place, now(), full=True, processes=False)

    def _networks(
        self, pods: tuple[MeasuredPod, ...], groups: Mapping[str, CgroupReading], now: Callable[[], int]
    ) -> dict[str, NetworkReading]:
        """By any process of the pod: all of its containers are in one network."""
        found = {}
        for pod in pods:
            ids = (pod.sandbox_id, *(container.id for container in pod.containers))
            pid = next((groups[name].pids[0] for name in ids if name in groups and groups[name].pids), None)
            if pid is None or not has_own_network(self._paths.proc, pid):
                continue
            network = read_network(self._paths.proc, pid, now())
            if network is not None:
                found[pod.sandbox_id] = network
        return found

    def _files(
        self, pods: tuple[MeasuredPod, ...], at: int
    ) -> tuple[dict[str, FsStats], dict[str, tuple[FsStats | None, ...]]]:
        """Containers' logs by id, and pods' own files by UID."""
        on = read_file_system(self._paths.root_dir, at)
        if on is None:
            return {}, {}
        logs: dict[str, FsStats] = {}
        files: dict[str, tuple[FsStats | None, ...]] = {}
        for pod in pods:
            folder = self._logs(f"{pod.namespace}_{pod.name}_{pod.uid}")
            hosts = f"{self._paths.root_dir}/pods/{pod.uid}/etc-hosts"
            files[pod.uid] = (usage_of_files(folder, on), usage_of_file(hosts, on))
            for container in pod.containers:
                used = usage_of_files(f"{folder}/{container.name}", on)
                if used is not None:
                    logs[container.id] = used
        return logs, files

    def _logs(self, name: str) -> str:
        """The folder of a pod's logs, by its name."""
        folder, earlier = self._paths.pod_logs_dir / name, self._paths.earlier_logs_dir
        return str(folder if earlier is None or folder.is_dir() else earlier / name)

    def _device(self, number: str) -> str:
        return device_name(self._paths.sys, number) if number else ""


def _names(pod: MeasuredPod) -> Iterable[str]:
    yield pod_group(pod.uid)
    yield pod.sandbox_id
    for container in pod.containers:
        yield container.id


def _is_pod(name: str) -> bool:
    return name.startswith(pod_group(""))
