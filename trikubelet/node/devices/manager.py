"""The device manager (kubelet: `devicemanager.ManagerImpl`): the book, the plugins, and the questions of others.

The callers, in the order of a pod's life:

    admission       `problem`: would the pod get its devices? `allocatable_for`: as many as are taken are always enough
    admitting       `offers`: on which NUMA nodes they could be; `promise`: no other pod gets what was agreed on
                    `lacking`, then `allocate`: plugins are asked, and it is written down; the pod is held
    runtime         `extras`: what a container is started with, each time that it is
    status          `health`
    node            `resources`, `reset_extended`
    pod resources   `devices`, `allocatable_devices`, `forget_ended`

All but `allocate` and `extras` answer at once. A pod's devices are free when it is not needed any more: that is looked
at whenever somebody wants devices. Only of a pod that is deleted while a plugin hangs somebody has to tell (`forget`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.admission.types import AllocationError
from trikubelet.api import Quantity, ResourceHealth, ResourceStatus
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.node.devices.book import DeviceBook
from trikubelet.node.devices.checkpoint import FILE, DeviceCheckpoint, Remembered
from trikubelet.node.devices.choice import containers_in_order
from trikubelet.node.devices.connections import PluginConnections
from trikubelet.node.devices.extras import NO_EXTRAS, container_extras
from trikubelet.node.devices.giving import DeviceGiver
from trikubelet.node.devices.metrics import DeviceMetrics
from trikubelet.node.devices.model import HEALTHY, UNHEALTHY
from trikubelet.node.devices.server import DevicePluginHandler, RegistrationServer
from trikubelet.node.devices.topology import NO_AFFINITIES, DeviceOffers
from trikubelet.node.podresources.providers import Device
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from trio_typing import TaskStatus

    from trikubelet.api import Container, Pod
    from trikubelet.node.devices.model import DeviceResources, PluginDevice
    from trikubelet.node.devices.topology import Affinities
    from trikubelet.rpc.grpc import Channel
    from trikubelet.runtime.containers.container import ContainerExtras

    ResourceHealthOf = Callable[[str], tuple[ResourceStatus, ...]]
    """How the devices of a container do, by its name."""

log = get_logger("devices")


def no_devices(_: str) -> tuple[ResourceStatus, ...]:
    """The health of a pod without devices."""
    return ()


def _runs_never(_uid: str, _container: str) -> bool:
    return False


@frozen
class ResourceStatistics:
    """What a debugger wants to see of a resource."""

    resource: str
    socket: str
    """Of its plugin; empty where there is none."""
    capacity: int
    healthy: int
    taken: int


class DeviceManager:
    """Also a `node.podresources.providers.Devices`."""

    def __init__(
        self,
        folder: Path,
        *,
        needed: Callable[[str], bool],
        sources_ready: Callable[[], bool],
        connect: Callable[[Path], AbstractAsyncContextManager[Channel]] = open_unix_channel,
        changed: Broadcast[None] | None = None,
        numa_nodes: Sequence[int] = (),
    ) -> None:
        """`folder`: for device plugins. `needed`: whether a pod, by its UID, is wanted here and has not ended, or
        something of it may still run. `sources_ready`: whether all that are wanted are known. `changed` is sent when
        `resources` are others. `numa_nodes`: the machine's, for `offers`."""
        self.metrics = DeviceMetrics()
        self._needed = needed
        self._sources_ready = sources_ready
        self._numa_nodes = tuple(numa_nodes)
        self._runs: Callable[[str, str], bool] = _runs_never
        self._book = DeviceBook()
        self._checkpoint = DeviceCheckpoint(folder / FILE, self._known)
        self._connections = PluginConnections(self, connect)
        self._giver = DeviceGiver(self._book, self._connections, self._checkpoint.file, self.metrics)
        self._server = RegistrationServer(folder, self._connections, self.metrics)
        self._allocating: dict[str, set[trio.CancelScope]] = {}
        """Calls of `allocate` under way, by the pod's UID."""
        self._stops: Broadcast[None] = Broadcast()
        """A resource's time has begun to run."""
        self._resources = self._book.resources()
        self.changed = Broadcast[None]() if changed is None else changed
        self.health_changed: Broadcast[str] = Broadcast()
        """UIDs of pods whose `health` is another one."""

    @property
    def plugin_handler(self) -> DevicePluginHandler:
        """For the registrar of plugins."""
        return DevicePluginHandler(self._connections)

    async def run(
        self,
        runs: Callable[[str, str], bool] = _runs_never,
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Take plugins until cancelled; then they are left. Started when what was written down is known, and plugins
        can register. Raises `SocketInUseError` where another agent serves plugins, OSError for the folder.

        `runs`: whether a container, by the pod's UID and its name, runs; asked only while the sources are not ready.
        """
        self._runs = runs
        await self._server.prepare()
        self._remember()
        self._notify_if_changed()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._checkpoint.file.run)
            nursery.start_soon(supervise, self._end_stopped)
            await nursery.start(self._connections.run)
            await nursery.start(self._server.run)
            task_status.started()

    @property
    def registration_problem(self) -> str | None:
        """Why no plugin can register."""
        return self._server.problem

    # Admission.

    def problem(self, pod: Pod) -> str | None:
        """Why the pod cannot get the devices that it asks for, in the words of the kubelet's Allocate; None when it
        can, as far as that is known without asking plugins."""
        try:
            self._rehearse(pod)
        except AllocationError as error:
            return str(error)
        return None

    def allocatable_for(self, pod: Pod, allocatable: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
        """What the node has for a pod to be admitted, `allocatable` being what its object says: as many devices as are
        given out, this pod's counted, are there, whatever it says (kubelet: `sanitizeNodeAllocatable`)."""
        try:
            book = self._rehearse(pod)
        except AllocationError:
            return allocatable
        if book is None:
            return allocatable
        least = {resource: Quantity(number) for resource, number in book.taken().items()}
        zero = Quantity(0)
        return {**allocatable, **{name: max(number, allocatable.get(name, zero)) for name, number in least.items()}}

    def offers(self, pod: Pod) -> DeviceOffers:
        """Where the devices are that the pod could have as things are now, for the topology manager to agree with."""
        self._forget_ended(pod.metadata.uid)
        book = self._book.copy()
        book.end_promise(pod.metadata.uid)
        return DeviceOffers(book, self._numa_nodes, frozenset(self._running(pod)))

    def promise(self, pod: Pod, agreed: DeviceOffers) -> None:
        """Keep what was agreed on for the pod, until `allocate` is done with it or it has ended.

        `agreed`: the pod's `offers` after that. To be called before anybody else's offers are made.
        """
        self._book.promise(pod.metadata.uid, agreed.picked(pod.metadata.uid))

    def lacking(self, pod: Pod) -> frozenset[str]:
        """Resources of which `allocate` has to give the pod something."""
        granted, running = self._book.granted_to(pod.metadata.uid), self._running(pod)
        return frozenset(
            resource
            for container in containers_in_order(pod)
            if container.name not in running
            for resource, amount in self._book.wanted(pod, container).items()
            if amount and resource not in granted.get(container.name, {})
        )

    async def allocate(self, pod: Pod, affinities: Affinities = NO_AFFINITIES) -> None:
        """Give a pod the devices that it asks for: all or none. On the disk when it returns.

        `affinities`: those of the `offers` that were agreed on. Devices of these NUMA nodes come first, also before
        those that the plugin prefers; where they do not suffice, others are given.

        Raises AllocationError, also when the pod is forgotten meanwhile. Takes at most a minute for each question to a
        plugin. Cancelling it leaves the pod without what it did not have before.
        """
        uid = pod.metadata.uid
        self._forget_ended(uid)
        scope = trio.CancelScope()
        scopes = self._allocating.setdefault(uid, set())
        scopes.add(scope)
        try:
            with scope:
                running = self._running(pod)
                lacking = [one for one in containers_in_order(pod) if one.name not in running]
                await self._giver.give(pod, lacking, affinities.get(uid, {}))
        finally:
            scopes.remove(scope)
            if not scopes:
                self._allocating.pop(uid, None)
                self._book.end_promise(uid)
        if scope.cancelled_caught:
            raise AllocationError(f'pod "{uid}" is not wanted any more')

    def forget(self, uid: str) -> None:
        """The pod is gone: its devices are free, and plugins that are asked for it are asked no more."""
        for scope in self._allocating.get(uid, ()):
            scope.cancel()
        self._book.forget(uid)

    # Starting containers.

    async def extras(self, pod: Pod, container: Container) -> ContainerExtras:
        """What a container is started with for its devices; plugins that want to prepare them do.

        Raises AllocationError: the container cannot be started now. A container whose devices are unknown is given
        others, if its pod is needed.
        """
        uid = pod.metadata.uid
        wanted = [resource for resource, amount in self._book.wanted(pod, container).items() if amount]
        if not wanted:
            return NO_EXTRAS
        granted = self._book.granted_to(uid).get(container.name, {})
        if any(resource not in granted for resource in wanted) and self._needed(uid):
            log.info("devices are allocated again", pod=pod.full_name, container=container.name)
            await self._giver.give(pod, [container])
        for resource in wanted:
            await self._giver.prepare(uid, container.name, resource)
        extras, conflicts = container_extras(self._book.granted_to(uid).get(container.name, {}))
        for conflict in conflicts:
            log.error(
                "device plugins want different things",
                pod=pod.full_name,
                container=container.name,
                **attrs.asdict(conflict),
            )
        return extras

    # What others ask.

    @property
    def reset_extended(self) -> bool:
        """Whether the node is new, so that what its object says of devices is of another machine (kubelet:
        `ShouldResetExtendedResourceCapacity`). To be asked once `run` has started."""
        return not self._checkpoint.exists

    def resources(self) -> DeviceResources:
        """The same object until something changes."""
        return self._resources

    def health(self, uid: str) -> ResourceHealthOf:
        """How the devices of the pod's containers do (KEP-4680)."""
        granted = self._book.granted_to(uid)
        if not granted:
            return no_devices

        def of_container(container: str) -> tuple[ResourceStatus, ...]:
            return tuple(
                ResourceStatus(
                    name=resource,
                    resources=tuple(
                        ResourceHealth(
                            resource_id=device,
                            health=HEALTHY if self._book.is_healthy(resource, device) else UNHEALTHY,
                        )
                        for device in sorted(grant.devices)
                    ),
                )
                for resource, grant in sorted(granted.get(container, {}).items())
            )

        return of_container

    def forget_ended(self) -> None:
        """Free the devices of all pods that are not needed, once the sources have told of all."""
        self._forget_ended()

    def devices(self, uid: str, container: str) -> Iterator[Device]:
        """What a container has."""
        for resource, grant in sorted(self._book.granted_to(uid).get(container, {}).items()):
            for device, nodes in sorted(grant.devices.items()):
                yield Device(resource, device, nodes)

    def allocatable_devices(self) -> Iterator[Device]:
        """All that are healthy, also those that a container has."""
        for resource, device in self._book.healthy_devices():
            yield Device(resource, device.id, device.numa_nodes)

    def statistics(self) -> list[ResourceStatistics]:
        resources, taken = self._resources, self._book.taken()
        return [
            ResourceStatistics(
                resource=name,
                socket="" if (plugin := self._connections.get(name)) is None or plugin.stopped else str(plugin.socket),
                capacity=number,
                healthy=resources.allocatable[name],
                taken=taken.get(name, 0),
            )
            for name, number in resources.capacity.items()
        ]

    # What the connections tell.

    def plugin_connected(self, resource: str) -> None:
        self._book.connected(resource)

    def plugin_listed(self, resource: str, devices: Sequence[PluginDevice]) -> None:
        pods = self._book.receive(resource, devices)
        self._notify_if_changed()
        for uid in sorted(pods):
            self.health_changed.send(uid)

    def plugin_ended(self, resource: str) -> None:
        self._book.stopped(resource, trio.current_time())
        self._stops.send(None)
        self._notify_if_changed()

    # The work.

    def _remember(self) -> None:
        try:
            remembered = self._checkpoint.read()
        except CheckpointError as error:
            log.error("which containers have which devices is not known any more", error=str(error))
            return
        self._book.restore(remembered.resources, remembered.grants, trio.current_time())

    def _known(self) -> Remembered:
        return Remembered(tuple(self._book.listed()), dict(self._book.grants()))

    def _notify_if_changed(self) -> None:
        resources = self._book.resources()
        if resources == self._resources:
            return
        if resources.capacity.keys() != self._resources.capacity.keys():
            self._checkpoint.file.changed()
        self._resources = resources
        self.changed.send(None)

    async def _end_stopped(self) -> None:
        while True:
            end = self._book.next_end()
            with trio.CancelScope(deadline=math.inf if end is None else end):
                await self._stops.wait()
            for resource in self._book.end_stopped(trio.current_time()):
                log.info("device plugin has not come back, its resource is gone", resource=resource)
                self._connections.forget(resource)
            self._notify_if_changed()

    def _forget_ended(self, but: str = "") -> None:
        """`but`: the UID of a pod that may not be known yet."""
        if self._book.has_owners() and self._sources_ready():
            self._book.keep_only(lambda uid: uid == but or self._needed(uid))

    def _rehearse(self, pod: Pod) -> DeviceBook | None:
        """None for a pod that asks for no devices. Raises AllocationError."""
        if not self._book.wants_devices(pod):
            return None
        self._forget_ended(pod.metadata.uid)
        return self._book.rehearsed(pod, runs_already=self._running(pod))

    def _running(self, pod: Pod) -> set[str]:
        """Containers that need nothing: the agent has just started, and they run. Then they have their devices, also
        those that it does not remember, and those whose plugin has not come back yet."""
        if self._sources_ready():
            return set()
        return {one.name for one in containers_in_order(pod) if self._runs(pod.metadata.uid, one.name)}
