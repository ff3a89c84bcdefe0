"""Which of a host's addresses become the node's (kubelet: `nodestatus.NodeAddress`, `validateNodeIP`).

`--node-ip` decides where it is given. Else the hostname is taken when it is an address, then what the name server says
of the node's name, then the address with which the host reaches the rest of the world. An agent by itself asks no name
server: nobody else has to find it, and a server that is silent would hold up its start. A cloud's own controller, where
there is one, knows better than all of these: what it once wrote stays.
"""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final

from trikubelet.api import NodeAddress
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

IPAddress = IPv4Address | IPv6Address
PROVIDED_NODE_IP: Final = "alpha.kubernetes.io/provided-node-ip"
"""Annotation that tells a cloud's controller what `--node-ip` says."""
_IPV4: Final = 4


@frozen
class HostAddresses:
    """What the host says of itself."""

    local: frozenset[IPAddress] = frozenset()
    """Addresses of its network interfaces."""
    preferred: tuple[IPAddress, ...] = ()
    """Those that others reach it by, the best first."""
    resolved: tuple[IPAddress, ...] = ()
    """What the name server says of the node's name."""
    problem: str | None = None
    """Why the host cannot be asked; what is above may be old then."""


@frozen(kw_only=True)
class AddressSettings:
    """What flags say of addresses."""

    node_name: str
    hostname: str
    node_ips: tuple[IPAddress, ...] = ()
    """At most two, of different families. `0.0.0.0` or `::` alone only chooses the family."""
    external_cloud: bool = False

    @property
    def specified(self) -> tuple[IPAddress, ...]:
        """Those that are addresses and not only a family."""
        return tuple(ip for ip in self.node_ips if not ip.is_unspecified)

    @property
    def needs_lookup(self) -> bool:
        """Whether the node's name has to be asked for at the name server."""
        return not self.specified and parse_address(self.hostname) is None

    @property
    def provided_node_ip(self) -> str | None:
        """The value of the annotation PROVIDED_NODE_IP; None: the node has none."""
        if not self.external_cloud or not self.specified:
            return None
        return ",".join(str(ip) for ip in self.specified)


class NodeAddressError(Exception):
    """The node's addresses are unknown; those that it has stay as they are."""


def node_addresses(
    settings: AddressSettings, host: HostAddresses, before: Sequence[NodeAddress]
) -> tuple[NodeAddress, ...]:
    """The node's addresses: one or two of type InternalIP, then the hostname. Raises NodeAddressError."""
    for label, ip in zip(("nodeIP", "secondaryNodeIP"), settings.specified, strict=False):
        if problem := node_ip_problem(ip, host.local):
            raise NodeAddressError(f"failed to validate {label}: {problem}")
    hostname = NodeAddress(type="Hostname", address=settings.hostname)
    if settings.external_cloud:
        if before:
            return tuple(before)
        if not settings.node_ips:
            return (hostname,)
    ips = settings.specified or (_chosen(settings, host),)
    return (*(NodeAddress(type="InternalIP", address=str(ip)) for ip in ips), hostname)


def _chosen(settings: AddressSettings, host: HostAddresses) -> IPAddress:
    """Without `--node-ip`."""
    if (ip := parse_address(settings.hostname)) is not None:
        return ip
    family = settings.node_ips[0].version if settings.node_ips else _IPV4
    resolved = [ip for ip in host.resolved if node_ip_problem(ip, host.local) is None]
    for candidates in (resolved, host.preferred):
        if candidates:
            return next((ip for ip in candidates if ip.version == family), candidates[0])
    problem = host.problem or "unable to select an IP from default routes."
    raise NodeAddressError(f"can't get ip address of node {settings.node_name}. error: {problem}")


def node_ip_problem(ip: IPAddress, local: Collection[IPAddress]) -> str | None:
    """Why an address cannot be that of a node with these network interfaces."""
    if ip.is_loopback:
        return "nodeIP can't be loopback address"
    if ip.is_multicast:
        return "nodeIP can't be a multicast address"
    if ip.is_link_local:
        return "nodeIP can't be a link-local unicast address"
    if ip.is_unspecified:
        return "nodeIP can't be an all zeros address"
    if ip not in local:
        return f'node IP: "{ip}" not found in the host\'s network interfaces'
    return None


def parse_node_ips(text: str) -> tuple[tuple[IPAddress, ...], tuple[str, ...]]:
    """What `--node-ip` says: the addresses, and the parts that are none and are ignored (and logged).

    Raises ValueError with the kubelet's words for more than one address that is no pair of both families.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    parsed = {part: parse_address(part) for part in parts}
    ips = tuple(ip for part in parts if (ip := parsed[part]) is not None)
    ignored = tuple(part for part in parts if parsed[part] is None)
    if len(ips) > 2 or (len(ips) == 2 and ips[0].version == ips[1].version):
        raise ValueError(f'bad --node-ip "{text}": must contain either a single IP or a dual-stack pair of IPs')
    if len(ips) == 2 and any(ip.is_unspecified for ip in ips):
        raise ValueError(f"bad --node-ip \"{text}\": dual-stack node IP cannot include '0.0.0.0' or '::'")
    return ips, ignored


def parse_address(text: str) -> IPAddress | None:
    """An address, leading zeros in IPv4 numbers and all; an IPv4 address that is written as IPv6 is IPv4."""
    try:
        parts = text.split(".")
        ip = ipaddress.ip_address(".".join(part.lstrip("0") or "0" for part in parts) if len(parts) == 4 else text)
    except ValueError:
        return None
    mapped: IPv4Address | None = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return mapped or ip
