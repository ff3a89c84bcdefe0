"""What devices there are, and which containers have them (kubelet: `ManagerImpl`'s maps, `podDevices`). Without I/O or
clock.

A resource is *listed* once its plugin has listed its devices, or when it was so before the agent started. From then on
it is the node's, until its plugin has been away for five minutes. A plugin that ends before it has listed anything
leaves the node with 0 of its resource for as long. A device is taken while a container has it, and while a plugin is
asked to give it to one (a reservation).

The caller that changes the book notifies others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.node.devices.choice import Pick, Request, Stock, containers_in_order, device_limits, open_pick, picked
from trikubelet.node.devices.choice import reusable as reusable_by
from trikubelet.node.devices.model import DeviceResources, Grant, Needs, PluginDevice

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.node.devices.model import Grants

STOP_GRACE: Final = 300.0
"""Seconds that a resource stays after its plugin has ended (`endpointStopGracePeriod`)."""


@attrs.define(eq=False)
class _Resource:
    """A resource that a plugin has, had, or is about to have."""

    listed: bool = False
    devices: dict[str, PluginDevice] = attrs.field(factory=dict)
    """As the plugin reported last. They stay when it ends: containers still have them."""
    healthy: set[str] = attrs.field(factory=set)
    """Their ids; none without a plugin."""
    counted: bool = False
    """The node has it, be it with 0 devices."""
    reported: bool = False
    """`devices` comes from a plugin of this agent's time."""
    stopped_at: float | None = None
    """When the plugin ended, in seconds; None while there is one."""
    gone: bool = False


@attrs.frozen(eq=False)
class _Reservation:
    resource: str
    devices: Collection[str]


class DeviceBook:
    """The book. Times are seconds of one clock that only grows."""

    def __init__(self) -> None:
        self._resources: dict[str, _Resource] = {}
        self._grants: dict[str, dict[str, dict[str, Grant]]] = {}
        self._reservations: set[_Reservation] = set()

    # Plugins.

    def restore(self, resources: Iterable[str], grants: Mapping[str, Grants], now: float) -> None:
        """What was known before the agent started: each resource has 0 devices until its plugin is there."""
        for name in resources:
            self._resources[name] = _Resource(listed=True, counted=True, stopped_at=now)
        for uid, containers in grants.items():
            self._grants[uid] = {name: dict(granted) for name, granted in containers.items()}

    def connected(self, resource: str) -> None:
        """A plugin is there, the first or another one. What its predecessor reported holds until it sends a list."""
        known = self._resources.setdefault(resource, _Resource())
        known.stopped_at = None

    def receive(self, resource: str, devices: Iterable[PluginDevice]) -> frozenset[str]:
        """All devices of a resource, by its plugin. Returns the UIDs of pods that have a device whose health is another
        one now. Of two devices with the same id the later one counts."""
        known = self._resources.setdefault(resource, _Resource())
        before = {device: self.is_healthy(resource, device) for device in self._granted(resource)}
        known.devices = {device.id: device for device in devices}
        known.healthy = {device.id for device in known.devices.values() if device.healthy}
        known.listed, known.counted, known.reported, known.gone = True, True, True, False
        changed = {device for device, healthy in before.items() if self.is_healthy(resource, device) != healthy}
        return self._owners(resource, changed)

    def stopped(self, resource: str, now: float) -> None:
        """Its plugin has ended: nothing of it can be given out any more (`markResourceUnhealthy`)."""
        known = self._resources[resource]
        known.healthy.clear()
        known.counted, known.gone, known.stopped_at = True, False, now

    def next_end(self) -> float | None:
        """When the next resource will be gone, if no plugin comes for it."""
        times = [known.stopped_at for known in self._resources.values() if known.stopped_at is not None]
        return min(times) + STOP_GRACE if times else None

    def end_stopped(self, now: float) -> list[str]:
        """Let the resources go whose plugins have been away for long enough; returns their names."""
        ended = [
            name
            for name, known in self._resources.items()
            if known.stopped_at is not None and now >= known.stopped_at + STOP_GRACE
        ]
        for name in ended:
            known = self._resources[name]
            known.listed, known.counted, known.stopped_at, known.gone = False, False, None, True
        return ended

    # Containers.

    def pick(self, pod: Pod, container: Container, resource: str, amount: int) -> Pick | None:
        """What a container can get of a resource. See `open_pick`."""
        request = Request(pod.metadata.uid, container.name, resource, amount)
        return open_pick(request, self._stock(pod, container, resource))

    def wanted(self, pod: Pod, container: Container) -> dict[str, int]:
        """How much a container asks for of the resources that are plugins'."""
        limits = device_limits(pod, container)
        return {resource: amount for resource, amount in limits.items() if self.knows(resource)}

    def wants_devices(self, pod: Pod) -> bool:
        """Whether any container asks for what is plugins' business."""
        return any(any(self.wanted(pod, container).values()) for container in containers_in_order(pod))

    @contextmanager
    def reserved(self, resource: str, devices: Collection[str]) -> Iterator[None]:
        """Reserve these devices."""
        reservation = _Reservation(resource, devices)
        self._reservations.add(reservation)
        try:
            yield
        finally:
            self._reservations.remove(reservation)

    def give(self, uid: str, container: str, resource: str, devices: Iterable[str], needs: Needs) -> None:
        """A container has these devices from now on."""
        listed = self._resources[resource].devices if resource in self._resources else {}
        nodes = {device: listed[device].numa_nodes if device in listed else () for device in devices}
        self._grants.setdefault(uid, {}).setdefault(container, {})[resource] = Grant(nodes, needs)

    def take_back(self, uid: str, container: str, resource: str) -> None:
        """What `give` gave, if it is still there."""
        containers = self._grants.get(uid, {})
        containers.get(container, {}).pop(resource, None)
        if container in containers and not containers[container]:
            del containers[container]
        if uid in self._grants and not containers:
            del self._grants[uid]

    def keep_only(self, uids: Collection[str]) -> None:
        """All other pods have ended."""
        for uid in self._grants.keys() - set(uids):
            del self._grants[uid]

    def forget(self, uid: str) -> None:
        self._grants.pop(uid, None)

    def rehearsed(self, pod: Pod, *, runs_already: Collection[str]) -> DeviceBook:
        """The book as it might be after the pod was given what it asks for, if plugins prefer nothing. Raises
        AllocationError. `runs_already`: containers of the pod that need nothing."""
        uid = pod.metadata.uid
        copy = DeviceBook()
        copy._resources, copy._reservations, copy._grants = self._resources, self._reservations, dict(self._grants)
        copy._grants[uid] = {name: dict(granted) for name, granted in self._grants.get(uid, {}).items()}
        for container in containers_in_order(pod):
            if container.name in runs_already:
                continue
            for resource, amount in self.wanted(pod, container).items():
                pick = copy.pick(pod, container, resource, amount)
                if pick is not None:
                    copy.give(uid, container.name, resource, picked(pick), Needs())
        return copy

    # What is asked.

    def knows(self, resource: str) -> bool:
        """Whether a resource is plugins' business (`isDevicePluginResource`)."""
        known = self._resources.get(resource)
        return (known is not None and known.listed) or self._is_granted(resource)

    def is_gone(self, resource: str) -> bool:
        known = self._resources.get(resource)
        return known is None or known.gone

    def listed(self) -> list[str]:
        return sorted(name for name, known in self._resources.items() if known.listed)

    def resources(self) -> DeviceResources:
        """What the node has (`GetCapacity`)."""
        counted = {name: known for name, known in sorted(self._resources.items()) if known.counted}
        return DeviceResources(
            {name: len(known.devices) if known.listed else 0 for name, known in counted.items()},
            {name: len(known.healthy) for name, known in counted.items()},
            frozenset(name for name, known in self._resources.items() if known.gone),
        )

    def grants(self) -> Mapping[str, Grants]:
        """By the pods' UIDs. A view: it changes."""
        return self._grants

    def granted_to(self, uid: str) -> Grants:
        """What the pod has. A view: it changes."""
        return self._grants.get(uid, {})

    def taken(self) -> dict[str, int]:
        """How many devices are taken, by resource."""
        resources = {resource for granted in self._all() for resource in granted}
        resources |= {reservation.resource for reservation in self._reservations}
        return {resource: len(self._taken(resource)) for resource in sorted(resources)}

    def is_healthy(self, resource: str, device: str) -> bool:
        """How a device does, as its plugin reported last. One that its plugin lists no more is not healthy. Before the
        plugin has sent a list, all are."""
        known = self._resources.get(resource)
        if known is None or not known.reported:
            return True
        return device in known.devices and known.devices[device].healthy

    def healthy_devices(self) -> Iterator[tuple[str, PluginDevice]]:
        """With their resources, all that can be given out, or have been."""
        for name, known in sorted(self._resources.items()):
            if known.listed:
                for device in sorted(known.healthy):
                    yield name, known.devices[device]

    def _stock(self, pod: Pod, container: Container, resource: str) -> Stock:
        known = self._resources.get(resource, _Resource())
        pods = self._grants.get(pod.metadata.uid, {})
        held = {name: granted[resource].devices.keys() for name, granted in pods.items() if resource in granted}
        return Stock(
            registered=known.listed,
            healthy=known.healthy,
            taken=self._taken(resource),
            reusable=reusable_by(pod, container.name, held),
            had=held.get(container.name),
        )

    def _all(self) -> Iterator[dict[str, Grant]]:
        for containers in self._grants.values():
            yield from containers.values()

    def _is_granted(self, resource: str) -> bool:
        return any(resource in granted for granted in self._all())

    def _granted(self, resource: str) -> set[str]:
        return {device for granted in self._all() if resource in granted for device in granted[resource].devices}

    def _taken(self, resource: str) -> set[str]:
        reserved = (one.devices for one in self._reservations if one.resource == resource)
        return self._granted(resource).union(*reserved)

    def _owners(self, resource: str, devices: set[str]) -> frozenset[str]:
        return frozenset(
            uid
            for uid, containers in self._grants.items()
            if any(
                not devices.isdisjoint(granted[resource].devices)
                for granted in containers.values()
                if resource in granted
            )
        )
