"""The part of an agent that has to do with devices of plugins (`trikubelet.node.devices`).

It is there on every node with a disk: a plugin may come at any time. A simulated node has none, and answers that it has
no devices.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.admission.types import AllocationError
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.broadcast import Broadcast
from trikubelet.container.errors import ContainerConfigError
from trikubelet.container.model import ContainerState
from trikubelet.node.devices.model import DeviceResources
from trikubelet.node.devices.topology import NO_AFFINITIES, DeviceOffers
from trikubelet.rpc.grpc import SocketInUseError
from trikubelet.runtime.containers.container import no_extras
from trikubelet.status.container_statuses import no_resource_health

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trio_typing import TaskStatus

    from trikubelet.agent.options import AgentOptions
    from trikubelet.agent.overrides import Overrides
    from trikubelet.agent.plugins import AgentPlugins
    from trikubelet.allocation.topology.admit import ResourceManager
    from trikubelet.api import Container, Pod, Quantity
    from trikubelet.node.devices.manager import DeviceManager
    from trikubelet.pleg.cache import PodStatusCache
    from trikubelet.pods.manager import DesiredPods
    from trikubelet.runtime.containers.container import ContainerExtras
    from trikubelet.status.container_statuses import ResourceHealthOf

HEALTH_GATE: Final = "ResourceHealthStatus"
NO_RESOURCES: Final = DeviceResources()


class DeviceFolderError(Exception):
    """Device plugins cannot be served. The text says why, and what to do."""


class NodeDevices:
    """What the agent's other parts ask. Each answers as the method of `DeviceManager` of the same name."""

    def __init__(self, manager: DeviceManager | None, *, tells_health: bool = True) -> None:
        self.manager = manager
        self._tells_health = tells_health
        self.health_changed: Broadcast[str] = Broadcast()
        """UIDs of pods whose `health` has changed."""
        if manager is not None and tells_health:
            self.health_changed = manager.health_changed

    async def run(self, cache: PodStatusCache, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Raises SocketInUseError and DeviceFolderError, perhaps in a group."""

        def runs(uid: str, container: str) -> bool:
            seen = cache.last_seen(uid)
            found = None if seen is None else seen.find_container(container)
            return found is not None and found.state is ContainerState.RUNNING

        if self.manager is None:
            task_status.started()
            return
        try:
            await self.manager.run(runs, task_status=task_status)
        except* SocketInUseError:
            raise
        except* OSError as group:
            problem = "; ".join(str(error) for error in group.exceptions)
            raise DeviceFolderError(
                f"device plugins cannot be served: {problem}: make device-plugins in the root folder a folder that the "
                "agent can write, or give another --root-dir"
            ) from group

    def problem(self, pod: Pod) -> str | None:
        return None if self.manager is None else self.manager.problem(pod)

    def allocatable_for(self, pod: Pod, allocatable: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
        return allocatable if self.manager is None else self.manager.allocatable_for(pod, allocatable)

    def lacking(self, pod: Pod) -> frozenset[str]:
        return frozenset() if self.manager is None else self.manager.lacking(pod)

    def offers(self, pod: Pod) -> ResourceManager:
        return NothingToGive() if self.manager is None else self.manager.offers(pod)

    def promise(self, pod: Pod, agreed: ResourceManager) -> None:
        if self.manager is not None and isinstance(agreed, DeviceOffers):
            self.manager.promise(pod, agreed)

    async def allocate(self, pod: Pod, agreed: ResourceManager | None) -> None:
        if self.manager is not None:
            affinities = agreed.affinities if isinstance(agreed, DeviceOffers) else NO_AFFINITIES
            await self.manager.allocate(pod, affinities)

    async def extras(self, pod: Pod, container: Container) -> ContainerExtras:
        """Raises ContainerConfigError: the container cannot be started now."""
        if self.manager is None:
            return await no_extras(pod, container)
        try:
            return await self.manager.extras(pod, container)
        except AllocationError as error:
            raise ContainerConfigError(str(error)) from None

    def resources(self) -> DeviceResources:
        return NO_RESOURCES if self.manager is None else self.manager.resources()

    @property
    def registration_problem(self) -> str | None:
        return None if self.manager is None else self.manager.registration_problem

    @property
    def reset_extended(self) -> bool:
        return self.manager is not None and self.manager.reset_extended

    def health(self, uid: str) -> ResourceHealthOf:
        if self.manager is None or not self._tells_health:
            return no_resource_health
        return self.manager.health(uid)


def node_devices(
    options: AgentOptions,
    overrides: Overrides,
    pods: DesiredPods,
    needed: Callable[[str], bool],
    plugins: AgentPlugins,
    changed: Broadcast[None],
    numa_nodes: Sequence[int] = (),
) -> NodeDevices:
    """The devices of an agent's node. `changed` is sent to when they change.

    `needed`: of a pod's UID, see `Agent.may_run`."""
    if not overrides.grants_devices:
        return NodeDevices(None)
    from trikubelet.node.devices.endpoint import MOST_FROM_PLUGIN
    from trikubelet.node.devices.manager import DeviceManager
    from trikubelet.node.devices.server import FOLDER, PLUGIN_TYPE
    from trikubelet.rpc.grpc import open_unix_channel

    manager = DeviceManager(
        options.root_dir / FOLDER,
        needed=needed,
        sources_ready=pods.sources_ready,
        connect=overrides.connect_plugins or partial(open_unix_channel, max_message_size=MOST_FROM_PLUGIN),
        changed=changed,
        numa_nodes=numa_nodes,
    )
    if not overrides.diskless:
        plugins.add_handler(PLUGIN_TYPE, manager.plugin_handler)
    return NodeDevices(manager, tells_health=options.configuration.enabled(HEALTH_GATE))
