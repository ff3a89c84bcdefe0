"""Ports of the node that pods want for themselves (scheduler: `NodePorts`). Pure.

Two pods are in each other's way when they want the same port of the same protocol, on the same address or one of them
on all addresses. Init containers that end make way for others before these start; sidecars stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import is_sidecar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Pod

_ALL_ADDRESSES: Final = "0.0.0.0"


@attrs.frozen
class HostPort:
    """One port, as it is compared."""

    ip: str
    protocol: str
    port: int

    def conflicts_with(self, other: HostPort) -> bool:
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.ip == other.ip or _ALL_ADDRESSES in (self.ip, other.ip)


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
    taken: dict[tuple[str, int], list[HostPort]] = {}
    for port in held:
        taken.setdefault((port.protocol, port.port), []).append(port)
    return any(port.conflicts_with(other) for port in wanted for other in taken.get((port.protocol, port.port), ()))
