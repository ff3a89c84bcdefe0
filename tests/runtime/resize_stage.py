"""A node whose manager resizes pods, with a cgroup that is only a value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.allocation.store import ACTUATED_FILE
from trikubelet.api import Quantity, ResourceRequirements
from trikubelet.cgroups.errors import CgroupError
from trikubelet.cgroups.settings import (
    CgroupOptions,
    CgroupReading,
    CgroupSettings,
    pod_settings,
)
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.runtime.actuated import ActuatedResources
from trikubelet.runtime.context import RuntimeContext
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.resize import (
    MeasuredByRuntime,
    Resizing,
)
from trikubelet.sim.memory import memory_allocations

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.cgroups.names import CgroupName
    from trikubelet.runtime.results import PodSyncResult
    from trikubelet.sim.machine import Container as SimulatedContainer

MIB = 2**20


@attrs.define
class FakeCgroups:
    """One pod's cgroup, that says what it was set to."""

    settings: CgroupSettings
    written: list[CgroupSettings] = attrs.field(factory=list)
    used: int = 0
    refuses: CgroupError | None = None

    async def read(self, pod: Pod) -> CgroupReading | None:
        return CgroupReading(
            cpu_shares=self.settings.cpu_shares,
            cpu_quota=self.settings.cpu_quota,
            cpu_period=self.settings.cpu_period,
            memory_limit=self.settings.memory,
            memory_usage=self.used,
        )

    async def set(self, pod: Pod, settings: CgroupSettings) -> None:
        self.written.append(settings)
        if self.refuses is not None:
            raise self.refuses
        said = {name: value for name, value in attrs.asdict(settings).items() if value}
        self.settings = attrs.evolve(self.settings, **said)

    async def exists(self, pod: Pod) -> bool:
        return True

    async def ensure(self, pod: Pod) -> bool:
        return False

    async def release(self, uid: str) -> None:
        pass

    async def found(self) -> dict[str, CgroupName]:
        return {}

    async def throttle(self, uid: str) -> None:
        pass

    def parent_of(self, pod: Pod) -> str:
        return ""

    def pods_changed(self) -> None:
        pass


ACTUATED = Path("/simulated") / ACTUATED_FILE


@attrs.define
class Stage:
    """A node whose manager resizes pods, with one pod's cgroup."""

    node: Node
    disk: dict[Path, str]
    """What the file of actuated resources says."""
    cgroups: FakeCgroups
    manager: RuntimeManager

    @classmethod
    def on(cls, node: Node, pod: Pod, disk: dict[Path, str] | None = None) -> Stage:
        disk = {} if disk is None else disk
        client = RuntimeClient(node.channel)
        cgroups = FakeCgroups(pod_settings(pod, CgroupOptions()))
        actuated = ActuatedResources(memory_allocations(disk, ACTUATED))
        resizing = Resizing(actuated, cgroups, CgroupOptions(), MeasuredByRuntime(client, cgroups))
        manager = RuntimeManager(
            client,
            ImageClient(node.channel),
            RuntimeContext(
                recorder=node.recorder, clock=node.clock, options=node.options, mounts=node.mounts, resizing=resizing
            ),
        )
        manager.runtime_name = "simulated"
        return cls(node, disk, cgroups, manager)

    def killed(self) -> Stage:
        """Another agent, after this one was killed."""
        again = Stage.on(self.node, make_pod(), dict(self.disk))
        again.cgroups.settings = self.cgroups.settings
        return again

    def on_disk(self) -> dict[str, Any]:
        """What is written of the pod's containers."""
        if ACTUATED not in self.disk:
            return {}
        entries: dict[str, Any] = json.loads(self.disk[ACTUATED])["entries"]
        return dict(entries["uid-web"]["ContainerResources"])

    async def sync(self, pod: Pod) -> PodSyncResult:
        self.node.sim.calls.clear()
        return await self.node.sync_with(self.manager, pod)

    def told(self) -> list[str]:
        """What the runtime was told since the last sync began, without what was asked."""
        spoken = ("UpdatePodSandboxResources", "UpdateContainerResources", "StopContainer", "StartContainer")
        return [call.rpc for call in self.node.sim.calls.of(*spoken)]

    async def is_in_progress(self, pod: Pod) -> bool:
        return self.manager.is_resize_in_progress(pod, await self.node.status(pod))

    def running(self, name: str) -> SimulatedContainer:
        return next(one for one in self.node.sim.running_containers() if one.name == name)

    def limits(self, name: str) -> tuple[int, int]:
        """Quota in microseconds, memory in MiB."""
        container = self.running(name)
        linux = container.config.linux.resources if container.resources is None else container.resources.linux
        return linux.cpu_quota, linux.memory_limit_in_bytes // MIB


def sized(name: str, cpu: str, memory: str, **fields: Any) -> Container:
    amounts = {"cpu": Quantity(cpu), "memory": Quantity(memory)}
    return make_container(name, resources=ResourceRequirements(requests=amounts, limits=amounts), **fields)
