"""Which devices a container gets, or why it gets none (kubelet: `devicesToAllocate`). Pure.

A container that was given devices keeps them. What it lacks it takes first from devices that init containers of its pod
have used up. Then come the free ones: those on the NUMA nodes that were agreed on before those on others, and these
before those of which nobody knows where they are. Of those that are as good as each other the ones that the plugin
prefers are taken first, then the others in the order of their ids: the kubelet takes any, here the same question has
the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.admission.types import AllocationError
from trikubelet.api import is_sidecar
from trikubelet.formats.values import frozen
from trikubelet.node.devices.model import PluginDevice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Container, Pod


@frozen
class Request:
    """A container asks for devices of one resource."""

    uid: str
    """The pod's."""
    container: str
    resource: str
    amount: int
    nodes: int | None = None
    """The NUMA nodes that were agreed on, a set; None if it does not matter."""


@frozen
class Stock:
    """What there is of the resource."""

    registered: bool
    """Its plugin has listed its devices. It need not be there any more."""
    healthy: Collection[str] = frozenset()
    taken: Collection[str] = frozenset()
    """By any container of any pod."""
    reusable: Collection[str] = frozenset()
    """Devices of this pod that its init containers have used up."""
    had: Collection[str] | None = None
    """What the container has already; None when it was never given any."""
    devices: Mapping[str, PluginDevice] = attrs.field(factory=dict)
    """All, as the plugin lists them."""

    def nodes_of(self, device: str) -> tuple[int, ...]:
        """Empty where nobody knows. What a plugin says need not be a number of this machine's, or be one at all."""
        return self.devices[device].numa_nodes if device in self.devices else ()


@frozen
class Pick:
    """What a container can get."""

    certain: tuple[str, ...]
    """These it gets in any case."""
    free: tuple[str, ...]
    """And of these the rest, if the plugin prefers none the first ones."""
    missing: int
    """How many more than the certain ones."""

    @property
    def selectable(self) -> tuple[str, ...]:
        """What the plugin may choose from."""
        return tuple(sorted({*self.free, *self.certain}))


def containers_in_order(pod: Pod) -> Iterator[Container]:
    """As devices are given out: init containers first, as they stand."""
    yield from pod.spec.init_containers
    yield from pod.spec.containers


def device_limits(pod: Pod, container: Container) -> dict[str, int]:
    """How many pieces of each resource a container asks for, in its own order; other resources are among them.

    Devices cannot be overcommitted, so requests are limits. What the scheduler has made a ResourceClaim of comes from
    there (KEP-5004).
    """
    status = pod.status.extended_resource_claim_status
    claimed = () if status is None else {(one.container_name, one.resource_name) for one in status.request_mappings}
    return {
        resource: amount.value()
        for resource, amount in container.resources.limits.items()
        if (container.name, resource) not in claimed
    }


def reusable(pod: Pod, container: str, held: Mapping[str, Collection[str]]) -> frozenset[str]:
    """The devices that a container can have though another container of its pod has them: those of init containers that
    end before it begins. `held`: by container, what the pod's have of one resource."""
    ending = {one.name for one in pod.spec.init_containers if not is_sidecar(one)}
    kept: set[str] = set()
    left: set[str] = set()
    for name, ids in held.items():
        if name != container:
            (left if name in ending else kept).update(ids)
    return frozenset(left - kept)


def open_pick(request: Request, stock: Stock) -> Pick | None:
    """What a container can get; None when it needs nothing. Raises AllocationError."""
    had, resource = stock.had, request.resource
    if had is not None and len(had) != request.amount:
        raise AllocationError(
            f'pod "{request.uid}" container "{request.container}" changed request for resource "{resource}" '
            f"from {len(had)} to {request.amount}"
        )
    if request.amount == 0:
        return None
    if not stock.registered:
        raise AllocationError(f"cannot allocate unregistered device {resource}")
    healthy = set(stock.healthy)
    if not healthy:
        raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
    if had is not None:
        if not healthy.issuperset(had):
            raise AllocationError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        return None
    far = partial(_distance, stock, request.nodes)
    reused = sorted(healthy.intersection(stock.reusable), key=far)[: request.amount]
    missing = request.amount - len(reused)
    free = sorted(healthy.difference(stock.taken), key=far)
    if len(free) < missing:
        raise AllocationError(
            f"requested number of devices unavailable for {resource}. Requested: {missing}, Available: {len(free)}"
        )
    aligned = sum(1 for device in free if far(device)[0] == _ON_THE_NODES)
    if missing < aligned:
        return Pick(tuple(reused), tuple(free[:aligned]), missing)
    return Pick((*reused, *free[:aligned]), tuple(free[aligned:]), missing - aligned)


def picked(pick: Pick, preferred: Collection[str] = ()) -> tuple[str, ...]:
    """The devices that a container gets. The plugin may prefer too few, too many, or what is not to be had."""
    wanted = set(preferred)
    in_order = sorted(pick.free, key=lambda device: device not in wanted)
    return tuple(sorted((*pick.certain, *in_order[: pick.missing])))


def is_on(nodes: int, numa_nodes: Iterable[int]) -> bool:
    """Whether any of these numbers, as a plugin has them, is in the set of nodes."""
    return any(number >= 0 and nodes >> number & 1 for number in numa_nodes)


_ON_THE_NODES: Final = 0
_ELSEWHERE: Final = 1
_ANYWHERE: Final = 2


def _distance(stock: Stock, nodes: int | None, device: str) -> tuple[int, str]:
    """The less, the better for a container that is to have devices of these nodes (kubelet: `filterByAffinity`)."""
    own = stock.nodes_of(device)
    if nodes is None or not own:
        return _ANYWHERE, device
    return _ON_THE_NODES if is_on(nodes, own) else _ELSEWHERE, device
