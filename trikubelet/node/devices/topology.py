"""On which NUMA nodes a pod's devices could be: what plugins have to offer the topology manager (kubelet:
`devicemanager/topology_hints.go`). Pure.

Plugins pick only once the whole pod is agreed on (`manager.py`). Until then each container takes what it would get if
plugins preferred nothing, in a copy of the book: so the next container's hints leave that out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.admission.types import AllocationError as DeviceError
from trikubelet.allocation.demands import all_containers, at_once
from trikubelet.allocation.topology.hints import AllocationError, TopologyHint, node_sets
from trikubelet.formats.cpu_list import set_of
from trikubelet.formats.values import frozen
from trikubelet.node.devices.book import DeviceBook

if TYPE_CHECKING:
    from collections.abc import Set

    from trikubelet.allocation.topology.hints import Hints
    from trikubelet.api import Container, Pod
    from trikubelet.node.devices.model import Grants, PluginDevice

Affinities = Mapping[str, Mapping[str, int]]
"""The NUMA nodes that were agreed on, a set, by the pod's UID and the container's name."""

NO_AFFINITIES: Final[Affinities] = {}

_Hints = Sequence[TopologyHint] | None


@frozen
class DeviceOffers:
    """Made by `DeviceManager.offers` for one pod. See `allocation.topology.admit.ResourceManager`."""

    _book: DeviceBook
    """Nobody changes it."""
    _numa_nodes: tuple[int, ...]
    """The machine's."""
    _running: frozenset[str] = frozenset()
    """Containers of the pod that have their devices, although that need not be known."""
    affinities: Affinities = NO_AFFINITIES

    def is_settled(self, pod: Pod, container: Container) -> bool:
        """Whether the container has as many devices as it asks for, or asks for none."""
        granted = self._book.granted_to(pod.metadata.uid).get(container.name, {})
        return container.name in self._running or all(
            resource in granted and len(granted[resource].devices) == amount
            for resource, amount in self._wanted(pod, container).items()
        )

    def hints(self, pod: Pod, container: Container) -> Hints:
        """Where the container's devices could be: nowhere if there are too few, anywhere if their plugin does not tell
        where they are. For a container that has them already, where they are."""
        if container.name in self._running:
            return {}
        return {
            resource: self._container_hints(pod, container, resource, amount)
            for resource, amount in self._wanted(pod, container).items()
        }

    def pod_hints(self, pod: Pod) -> Hints:
        """Where the devices of all containers of the pod could be. See `hints`."""
        return {resource: self._pod_hints(pod, resource, amount) for resource, amount in self._pod_wants(pod).items()}

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> DeviceOffers:
        """Raises AllocationError, in the words of the device manager."""
        if container.name in self._running:
            return self
        book, uid = self._book.copy(), pod.metadata.uid
        try:
            book.rehearse(pod, container, hint.nodes)
        except DeviceError as error:
            raise AllocationError(str(error)) from error
        affinities = self.affinities
        if hint.nodes is not None and self._wanted(pod, container):
            affinities = {**affinities, uid: {**affinities.get(uid, {}), container.name: hint.nodes}}
        return attrs.evolve(self, book=book, affinities=affinities)

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> DeviceOffers:
        """Devices are containers', also in a pod with resources of its own. Raises AllocationError."""
        after = self
        for container in all_containers(pod):
            after = after.allocate(pod, container, hint)
        return after

    def picked(self, uid: str) -> Grants:
        """What the pod would have if plugins preferred nothing."""
        return self._book.granted_to(uid)

    def _wanted(self, pod: Pod, container: Container) -> dict[str, int]:
        return {resource: amount for resource, amount in self._book.wanted(pod, container).items() if amount}

    def _pod_wants(self, pod: Pod) -> dict[str, int]:
        """At the same time. Containers that run need nothing."""
        return at_once(pod, lambda one: {} if one.name in self._running else self._wanted(pod, one))

    def _container_hints(self, pod: Pod, container: Container, resource: str, amount: int) -> _Hints:
        stock = self._book.stock(pod, container, resource)
        reusable = set(stock.healthy).intersection(stock.reusable)
        return self._possible(resource, set(stock.had or ()), reusable, amount)

    def _pod_hints(self, pod: Pod, resource: str, amount: int) -> _Hints:
        had = {
            device
            for container, granted in self._book.granted_to(pod.metadata.uid).items()
            if resource in granted and container not in self._running
            for device in granted[resource].devices
        }
        return self._possible(resource, had, frozenset(), amount)

    def _possible(self, resource: str, had: Set[str], reusable: Set[str], amount: int) -> _Hints:
        devices = self._book.devices(resource)
        if not any(device.numa_nodes for device in devices.values()):
            return None
        if had:
            return possible(devices, self._numa_nodes, had, frozenset(), amount) if len(had) == amount else []
        return possible(devices, self._numa_nodes, self._book.free(resource), reusable, amount)


def possible(
    devices: Mapping[str, PluginDevice], machine: Sequence[int], free: Set[str], reusable: Set[str], amount: int
) -> list[TopologyHint]:
    """All sets of NUMA nodes that have enough of the free and the reusable devices, and all of the latter.

    `machine`: its nodes. Those without such a device are left out: with them there would be far more sets. Devices
    that are somewhere else are of no use.
    """
    places = {
        id_: set_of(number for number in machine if number in device.numa_nodes) for id_, device in devices.items()
    }
    anywhere = reduce(int.__or__, places.values(), 0)
    all_places = Counter(places.values())
    usable = Counter(places[device] for device in (*free, *reusable) if device in places)
    needed = {places[device] for device in reusable if places.get(device)}
    hosts = [number for number in machine if anywhere >> number & 1] or machine
    narrowest = len(hosts)
    found = []
    for chosen in map(set_of, node_sets(hosts)):
        if _count(all_places, chosen) >= amount:
            narrowest = min(narrowest, chosen.bit_count())
        if all(place & chosen for place in needed) and _count(usable, chosen) >= amount:
            found.append(chosen)
    return [TopologyHint(chosen, chosen.bit_count() == narrowest) for chosen in found]


def _count(places: Counter[int], nodes: int) -> int:
    """How many devices are on any of these nodes."""
    return sum(number for place, number in places.items() if place & nodes)
