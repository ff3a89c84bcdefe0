"""A node with a simulated runtime, and a runtime manager connected to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from trikubelet.api import Container, ObjectMeta, Pod, PodSpec
from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.clock import TrioClock
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import Channel
from trikubelet.runtime.containers.life import PodContainers
from trikubelet.runtime.context import RuntimeContext
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.sim import SimulatedRuntime
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.model import MountedVolume, VolumeSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.cgroups.interface import PodCgroups
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus
    from trikubelet.runtime.results import PodSyncResult


class FakeMounts:
    """Volumes by name, for every pod."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: dict[str, Path] = {}
        self.devices: dict[str, str] = {}
        self.read_only: set[str] = set()
        """Names of volumes that nobody may write to."""
        self.relabelled: set[str] = set()
        self.groups: tuple[int, ...] = ()
        self.bound: list[tuple[str, int, str, str]] = []
        """The sub paths that were asked for: container, index, volume, path."""

    def mounted(self, pod: Pod, volume_name: str) -> MountedVolume | None:
        if volume_name not in self.paths and volume_name not in self.devices:
            return None
        spec = VolumeSpec(volume_name, volume_name, "kubernetes.io/fake")
        path, device = self.paths.get(volume_name), self.devices.get(volume_name)
        read_only, relabel = volume_name in self.read_only, volume_name in self.relabelled
        return MountedVolume(spec, path, device, read_only=read_only, relabel=relabel)

    def host_path(self, pod: Pod, volume_name: str) -> Path | None:
        return self.paths.get(volume_name)

    async def bind_subpath(self, pod: Pod, container: str, index: int, volume_name: str, sub_path: str) -> Path:
        await trio.lowlevel.checkpoint()
        self.bound.append((container, index, volume_name, sub_path))
        if sub_path == "escape":
            raise OSError("it leads out of the volume")
        return self.paths[volume_name] / sub_path

    def supplemental_groups(self, pod: Pod) -> tuple[int, ...]:
        return self.groups


@attrs.define
class Node:
    """What a test plays with: the simulated runtime, one manager, and what they said."""

    sim: SimulatedRuntime
    channel: Channel
    clock: TrioClock
    recorder: EventRecorder
    options: RuntimeOptions
    mounts: FakeMounts
    manager: RuntimeManager
    nursery: trio.Nursery
    """What runs for the containers of all pods runs in here."""
    _containers: dict[str, PodContainers] = attrs.field(factory=dict)

    def containers(self, pod: Pod) -> PodContainers:
        """Of the pod's life with this manager."""
        uid = pod.metadata.uid
        if uid not in self._containers:
            self._containers[uid] = self.manager.containers_of_pod(self.nursery)
        return self._containers[uid]

    async def sync_with(
        self, manager: RuntimeManager, pod: Pod, status: PodRuntimeStatus | None = None
    ) -> PodSyncResult:
        """One sync by another manager."""
        status = status or await self.status(pod)
        return await manager.sync_pod(pod, status, manager.containers_of_pod(self.nursery))

    def another_manager(self, *, cgroups: PodCgroups = NoPodCgroups(), **changes: Any) -> RuntimeManager:  # noqa: B008
        """The manager of an agent that was started again, perhaps with other options."""
        manager = RuntimeManager(
            RuntimeClient(self.channel),
            ImageClient(self.channel),
            RuntimeContext(
                recorder=self.recorder,
                clock=self.clock,
                options=attrs.evolve(self.options, **changes),
                mounts=self.mounts,
                cgroups=cgroups,
            ),
        )
        manager.runtime_name = "simulated"
        return manager

    async def status(self, pod: Pod) -> PodRuntimeStatus:
        return await self.manager.get_pod_status(pod.metadata.uid, pod.metadata.name, pod.metadata.namespace)

    async def sync(self, pod: Pod, **more: Any) -> PodSyncResult:
        """One sync on a fresh status."""
        return await self.manager.sync_pod(pod, await self.status(pod), self.containers(pod), **more)

    async def settle(self, pod: Pod, seconds: float) -> None:
        """Sync every second for a while."""
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await self.sync(pod)
            await trio.sleep(1)

    async def seen(self, pod: Pod, container: str) -> ContainerStatus:
        status = (await self.status(pod)).find_container(container)
        assert status is not None
        return status

    async def kill(self, pod: Pod, grace_override: int | None = None) -> None:
        running = (await self.status(pod)).as_running_pod("simulated")
        deadline = None if grace_override is None else trio.current_time() + grace_override
        await self.manager.kill_pod(running, pod, self.containers(pod), deadline=deadline)

    def said(self, pod: Pod) -> list[tuple[str, str]]:
        """The events of a pod: reason and message."""
        return [(event.reason, event.message) for event in self.recorder.events_of(pod.metadata.uid)]

    def starts(self, container: str) -> list[float]:
        """When a container was started, in Trio time."""
        return [run.started_at for run in self.sim.started(container)]


def make_pod(*containers: Container, name: str = "web", **spec: Any) -> Pod:
    spec.setdefault("restart_policy", "Always")
    spec.setdefault("termination_grace_period_seconds", 30)
    spec.setdefault("dns_policy", "Default")
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PodSpec(containers=containers or (make_container(),), **spec),
    )


def make_container(name: str = "main", **fields: Any) -> Container:
    fields.setdefault("image", "busybox")
    fields.setdefault("image_pull_policy", "IfNotPresent")
    return Container(name=name, **fields)


@pytest.fixture
async def node(autojump_clock: MockClock, tmp_path: Path) -> AsyncIterator[Node]:
    clock = TrioClock()
    sim = SimulatedRuntime(seed=1, clock=clock)
    recorder = EventRecorder(clock)
    options = RuntimeOptions(
        root_dir=tmp_path / "root",
        machine=MachineFacts(8 * 2**30),
        pod_logs_dir=tmp_path / "logs",
        host_ips=("192.168.0.1",),
        resolver_config=None,
    )
    mounts = FakeMounts(tmp_path)
    async with sim.connect() as channel:
        manager = RuntimeManager(
            RuntimeClient(channel),
            ImageClient(channel),
            RuntimeContext(recorder=recorder, clock=clock, options=options, mounts=mounts),
        )
        await manager.connect()
        async with trio.open_nursery() as nursery:
            yield Node(sim, channel, clock, recorder, options, mounts, manager, nursery)
            nursery.cancel_scope.cancel()
