"""Resources and ports of pods, and whether a node has enough left for one more (`NodeResourcesFit`, `NodePorts`). Pure.

Amounts are whole numbers here, as the scheduler counts and as users are told: thousandths of a CPU, bytes, pieces. What
counts is what pods request, not what they use. A pod also takes one of the pods that a node may have.

Two pods want the same port of the node when port and protocol are the same, on the same address or one of them on all
addresses. Init containers that end free theirs before others start; sidecars keep them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import Container, Pod, is_huge_page_resource, is_sidecar, pod_requests
from trikubelet.api.validate_resources import is_extended_resource, is_native_resource
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import Quantity

PODS: Final = "pods"
CPU: Final = "cpu"
_BASIC: Final = (CPU, "memory", "ephemeral-storage")
_DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io/"
_ATTACHABLE_VOLUMES: Final = "attachable-volumes-"
_ALL_ADDRESSES: Final = "0.0.0.0"


@frozen
class Insufficient:
    """There is not enough of one resource."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        """How much would have to become free."""
        return self.requested - (self.capacity - self.used)

    @property
    def reason(self) -> str:
        return f"OutOf{self.resource}"

    @property
    def message(self) -> str:
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}"
        )


@frozen
class Demand:
    """The resources and ports of one pod, or of several."""

    amounts: Mapping[str, int]
    ports: frozenset[HostPort]

    @classmethod
    def of(cls, pod: Pod) -> Demand:
        return cls({**amounts(pod_requests(pod)), PODS: 1}, host_ports(pod))


def amounts(resources: Mapping[str, Quantity]) -> dict[str, int]:
    """The resources that nodes run out of, in their units; others are left out. Fractions are rounded up."""
    return {
        name: amount.milli_value() if name == CPU else amount.value()
        for name, amount in resources.items()
        if name in _BASIC or name == PODS or _is_scalar(name)
    }


def together(demands: Iterable[Demand]) -> Demand:
    """What several pods take, as if they were one."""
    total: dict[str, int] = {}
    ports: set[HostPort] = set()
    for demand in demands:
        for name, amount in demand.amounts.items():
            total[name] = total.get(name, 0) + amount
        ports |= demand.ports
    return Demand(total, frozenset(ports))


def insufficient(
    wanted: Mapping[str, int], used: Mapping[str, int], allocatable: Mapping[str, Quantity]
) -> list[Insufficient]:
    """The resources that do not suffice: pods, cpu, memory, ephemeral-storage, then the others by name.

    Resources that a pod does not request are not looked at, even if there is too little of them.
    """
    capacity = amounts(allocatable)
    others = sorted(name for name in wanted if name != PODS and name not in _BASIC)
    return [
        Insufficient(name, wanted[name], used.get(name, 0), capacity.get(name, 0))
        for name in (PODS, *_BASIC, *others)
        if wanted.get(name, 0) > max(0, capacity.get(name, 0) - used.get(name, 0))
    ]


def without_foreign_resources(pod: Pod, allocatable: Collection[str]) -> Pod:
    """The pod without requests for extended resources that are not this node's to give.

    A cluster may give such resources itself, or through a resource claim: then the node does not know their names.
    """
    status = pod.status.extended_resource_claim_status
    claimed = () if status is None else {(one.container_name, one.resource_name) for one in status.request_mappings}

    def is_foreign(container: Container, name: str) -> bool:
        extended = is_extended_resource(name)
        if (extended or name.startswith(_DEVICE_CLASS)) and (container.name, name) in claimed:
            return True
        return extended and name not in allocatable

    def filtered(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(
            attrs.evolve(
                container,
                resources=attrs.evolve(
                    container.resources,
                    requests={
                        name: amount
                        for name, amount in container.resources.requests.items()
                        if not is_foreign(container, name)
                    },
                ),
            )
            for container in containers
        )

    spec = pod.spec
    if all(name in _BASIC for one in (*spec.containers, *spec.init_containers) for name in one.resources.requests):
        return pod
    containers, init_containers = filtered(spec.containers), filtered(spec.init_containers)
    return attrs.evolve(pod, spec=attrs.evolve(spec, containers=containers, init_containers=init_containers))


def _is_scalar(name: str) -> bool:
    """Whether it is counted beside the basic resources (`IsScalarResourceName`)."""
    if is_native_resource(name):
        return "/" in name or is_huge_page_resource(name) or name.startswith(_ATTACHABLE_VOLUMES)
    return is_extended_resource(name)


@frozen
class HostPort:
    """One port, as it is compared."""

    ip: str
    protocol: str
    port: int

    def conflicts_with(self, taken: Collection[str]) -> bool:
        """Whether it cannot be had. `taken`: addresses at which others hold this port of this protocol."""
        if self.ip == _ALL_ADDRESSES:
            return bool(taken)
        return self.ip in taken or _ALL_ADDRESSES in taken


def host_ports(pod: Pod) -> frozenset[HostPort]:
    """The ports that the pod holds while it runs. A container in the node's network holds what its `hostPort`s say."""
    sidecars = (container for container in pod.spec.init_containers if is_sidecar(container))
    return frozenset(
        HostPort(port.host_ip or _ALL_ADDRESSES, port.protocol or "TCP", port.host_port)
        for container in (*sidecars, *pod.spec.containers)
        for port in container.ports
        if port.host_port > 0
    )


def any_conflict(wanted: Iterable[HostPort], held: Iterable[HostPort]) -> bool:
    """Whether a wanted port cannot be had beside those that are held."""
    taken: dict[tuple[str, int], set[str]] = {}
    for port in held:
        taken.setdefault((port.protocol, port.port), set()).add(port.ip)
    return any(port.conflicts_with(taken.get((port.protocol, port.port), ())) for port in wanted)
