"""What devices there are, and which containers have them (kubelet: `ManagerImpl`'s maps, `podDevices`). Without I/O or
clock.

A resource is *listed* once its plugin has listed its devices, or when it was so before the agent started. From then on
it is the node's, until its plugin has been away for five minutes. A plugin that ends before it has listed anything
leaves the node with 0 of its resource for as long. A device is taken while a container has it, and while a plugin is
asked to give it to one (a reservation). For others it is also taken while it is promised to a container: NUMA nodes
have been agreed on that have it, and its plugin will be asked.

The caller that changes the book notifies others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.node.devices.choice import Pick, Request, Stock, containers_in_order, device_limits, open_pick, picked
from trikubelet.node.devices.choice import reusable as reusable_by
from trikubelet.node.devices.model import DeviceResources, Grant, Needs, PluginDevice

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.node.devices.model import Grants

STOP_GRACE: Final = 300.0
"""Seconds that a resource stays after its plugin has ended (`endpointStopGracePeriod`)."""


@frozen(eq=False)
class _Resource:
    """A resource that a plugin has, had, or is about to have."""

    listed: bool = False
    devices: Mapping[str, PluginDevice] = attrs.field(factory=dict)
    """As the plugin reported last. They stay when it ends: containers still have them."""
    healthy: frozenset[str] = frozenset()
    """Their ids; none without a plugin."""
    counted: bool = False
    """The node has it, be it with 0 devices."""
    reported: bool = False
    """`devices` comes from a plugin of this agent's time."""
    stopped_at: float | None = None
    """When the plugin ended, in seconds; None while there is one."""
    gone: bool = False


_UNKNOWN: Final = _Resource()


@frozen(eq=False)
class _Reservation:
    resource: str
    devices: Collection[str]


class DeviceBook:
    """The book. Times are seconds of one clock that only grows."""

    def __init__(self) -> None:
        self._resources: dict[str, _Resource] = {}
        self._grants: dict[str, Grants] = {}
        self._reservations: set[_Reservation] = set()
        self._promises: dict[str, Grants] = {}
        """What pods are to have. In the end they may get others instead."""

    # Plugins.

    def restore(self, resources: Iterable[str], grants: Mapping[str, Grants], now: float) -> None:
        """What was known before the agent started: each resource has 0 devices until its plugin is there."""
        for name in resources:
            self._resources[name] = _Resource(listed=True, counted=True, stopped_at=now)
        self._grants.update(grants)

    def connected(self, resource: str) -> None:
        """A plugin is there, the first or another one. What its predecessor reported holds until it sends a list."""
        self._resources[resource] = attrs.evolve(self._known(resource), stopped_at=None)

    def receive(self, resource: str, devices: Iterable[PluginDevice]) -> frozenset[str]:
        """All devices of a resource, by its plugin. Returns the UIDs of pods that have a device whose health is another
        one now. Of two devices with the same id the later one counts."""
        before = {device: self.is_healthy(resource, device) for device in self._granted(resource)}
        by_id = {device.id: device for device in devices}
        self._resources[resource] = _Resource(
            listed=True,
            devices=by_id,
            healthy=frozenset(device.id for device in by_id.values() if device.healthy),
            counted=True,
            reported=True,
            stopped_at=self._known(resource).stopped_at,
        )
        changed = {device for device, healthy in before.items() if self.is_healthy(resource, device) != healthy}
        return self._owners(resource, changed)

    def stopped(self, resource: str, now: float) -> None:
        """Its plugin has ended: nothing of it can be given out any more (`markResourceUnhealthy`)."""
        known = self._resources[resource]
        self._resources[resource] = attrs.evolve(known, healthy=frozenset(), counted=True, gone=False, stopped_at=now)

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
            self._resources[name] = attrs.evolve(known, listed=False, counted=False, stopped_at=None, gone=True)
        return ended

    # Containers.

    def pick(self, pod: Pod, container: Container, resource: str, amount: int, nodes: int | None = None) -> Pick | None:
        """What a container can get of a resource, best on these NUMA nodes. See `open_pick`."""
        request = Request(pod.metadata.uid, container.name, resource, amount, nodes)
        return open_pick(request, self.stock(pod, container, resource))

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

    def promise(self, uid: str, grants: Grants) -> None:
        """Let nobody else have these devices."""
        self._promises[uid] = grants

    def end_promise(self, uid: str) -> None:
        """The pod has devices, or will never get any."""
        self._promises.pop(uid, None)

    def give(self, uid: str, container: str, resource: str, devices: Iterable[str], needs: Needs) -> None:
        """A container has these devices from now on."""
        listed = self._known(resource).devices
        nodes = {device: listed[device].numa_nodes if device in listed else () for device in devices}
        containers = self._grants.get(uid, {})
        granted = {**containers.get(container, {}), resource: Grant(nodes, needs)}
        self._grants[uid] = {**containers, container: granted}
        if uid in self._promises:
            self._promises[uid] = _without(self._promises[uid], container, resource)

    def take_back(self, uid: str, container: str, resource: str) -> None:
        """What `give` gave, if it is still there."""
        left = _without(self._grants.get(uid, {}), container, resource)
        if left:
            self._grants[uid] = left
        else:
            self._grants.pop(uid, None)

    def keep_only(self, wanted: Callable[[str], bool]) -> None:
        """All other pods have ended."""
        for uid in self._grants.keys() | self._promises.keys():
            if not wanted(uid):
                self.forget(uid)

    def forget(self, uid: str) -> None:
        self._grants.pop(uid, None)
        self._promises.pop(uid, None)

    def copy(self) -> DeviceBook:
        """One that changes on its own."""
        copy = DeviceBook()
        copy._resources, copy._grants = dict(self._resources), dict(self._grants)
        copy._reservations, copy._promises = set(self._reservations), dict(self._promises)
        return copy

    def rehearse(self, pod: Pod, container: Container, nodes: int | None = None) -> None:
        """Give a container what it might get if plugins prefer nothing. Raises AllocationError."""
        for resource, amount in self.wanted(pod, container).items():
            pick = self.pick(pod, container, resource, amount, nodes)
            if pick is not None:
                self.give(pod.metadata.uid, container.name, resource, picked(pick), Needs())

    def rehearsed(self, pod: Pod, *, runs_already: Collection[str]) -> DeviceBook:
        """The book as it might be after the pod was given what it asks for, if plugins prefer nothing. Raises
        AllocationError. `runs_already`: containers of the pod that need nothing."""
        copy = self.copy()
        copy.end_promise(pod.metadata.uid)
        for container in containers_in_order(pod):
            if container.name not in runs_already:
                copy.rehearse(pod, container)
        return copy

    # What is asked.

    def knows(self, resource: str) -> bool:
        """Whether a resource is plugins' business (`isDevicePluginResource`)."""
        known = self._resources.get(resource)
        return (known is not None and known.listed) or self._is_granted(resource)

    def is_gone(self, resource: str) -> bool:
        known = self._resources.get(resource)
        return known is None or known.gone

    def devices(self, resource: str) -> Mapping[str, PluginDevice]:
        """By id, as the plugin reported them last."""
        return self._known(resource).devices

    def free(self, resource: str) -> frozenset[str]:
        """Ids of those that can be given to a pod that was promised none."""
        return self._known(resource).healthy.difference(self._taken(resource), self._promised(resource))

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

    def has_owners(self) -> bool:
        """Whether any pod has devices, or was promised some."""
        return bool(self._grants or self._promises)

    def grants(self) -> Mapping[str, Grants]:
        """By the pods' UIDs. A view: it changes, but what a pod has in it does not."""
        return self._grants

    def granted_to(self, uid: str) -> Grants:
        """What the pod has now."""
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

    def stock(self, pod: Pod, container: Container, resource: str) -> Stock:
        """What there is of a resource for a container."""
        known, pods = self._known(resource), self._grants.get(pod.metadata.uid, {})
        held = {name: granted[resource].devices.keys() for name, granted in pods.items() if resource in granted}
        return Stock(
            registered=known.listed,
            healthy=known.healthy,
            taken=self._taken(resource) | self._promised(resource, pod.metadata.uid, container.name),
            reusable=reusable_by(pod, container.name, held),
            had=held.get(container.name),
            devices=known.devices,
        )

    def _known(self, resource: str) -> _Resource:
        return self._resources.get(resource, _UNKNOWN)

    def _all(self) -> Iterator[Mapping[str, Grant]]:
        for containers in self._grants.values():
            yield from containers.values()

    def _is_granted(self, resource: str) -> bool:
        return any(resource in granted for granted in self._all())

    def _granted(self, resource: str) -> set[str]:
        return {device for granted in self._all() if resource in granted for device in granted[resource].devices}

    def _taken(self, resource: str) -> set[str]:
        reserved = (one.devices for one in self._reservations if one.resource == resource)
        return self._granted(resource).union(*reserved)

    def _promised(self, resource: str, uid: str = "", container: str = "") -> set[str]:
        """To others than this container of this pod. It may share its own with init containers."""
        own = self._promises.get(uid, {}).get(container, {})
        everybodys = (
            granted[resource].devices
            for containers in self._promises.values()
            for granted in containers.values()
            if resource in granted
        )
        return set[str]().union(*everybodys).difference(own[resource].devices if resource in own else ())

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


def _without(grants: Grants, container: str, resource: str) -> Grants:
    """Without what the container has of the resource; no container is left with nothing."""
    left = {name: grant for name, grant in grants.get(container, {}).items() if name != resource}
    others = {name: granted for name, granted in grants.items() if name != container}
    return {**others, container: left} if left else others
