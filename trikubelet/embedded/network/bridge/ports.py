"""Host ports: which ports of the machine lead to which pod, and whether another pod has them already."""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING, Final

from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.values import frozen
from trikubelet.linux.netlink.nftables import Element, joined
from trikubelet.linux.netlink.routes import Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trikubelet.embedded.network.model import PodNetworkSpec, PortMapping

PROTOCOLS: Final = {"tcp": 6, "udp": 17, "sctp": 132}
_PORTS: Final = range(1, 65536)


@frozen(kw_only=True)
class Binding:
    """A port of the machine that leads to a pod, for one family of addresses."""

    owner: str
    """The pod, as people know it."""
    protocol: str
    host_ip: Address | None
    """None: every address of the machine."""
    host_port: int
    target: Address
    target_port: int

    @property
    def map_name(self) -> str:
        """The map that it is in."""
        return map_name(self.target.version, addressed=self.host_ip is not None)

    def element(self) -> Element:
        """Its entry in that map. The key is [host address,] protocol, port; the value is address, port."""
        host = () if self.host_ip is None else (self.host_ip.packed,)
        key = joined(*host, bytes([PROTOCOLS[self.protocol]]), struct.pack("!H", self.host_port))
        return Element(key, joined(self.target.packed, struct.pack("!H", self.target_port)), self.owner)


def map_name(version: int, *, addressed: bool) -> str:
    return f"{'address' if addressed else 'host'}-ports{version}"


def bindings(spec: PodNetworkSpec, addresses: Sequence[Address]) -> tuple[Binding, ...]:
    """What a pod's host ports come to, with these addresses of the pod.

    A `hostIP` of a family that the pod has no address of comes to nothing. Raises NetworkError for what is no port.
    """
    made = []
    for port in spec.ports:
        family, host_ip = _host_ip(spec, port)
        if port.protocol not in PROTOCOLS or port.host_port not in _PORTS or port.container_port not in _PORTS:
            raise NetworkError(
                f"pod {_owner(spec)}: cannot map host port {port.host_port} to {port.container_port} by "
                f"{port.protocol!r}: expected ports of 1 to 65535 and one of {', '.join(PROTOCOLS)}"
            )
        made += [
            Binding(
                owner=_owner(spec),
                protocol=port.protocol,
                host_ip=host_ip,
                host_port=port.host_port,
                target=address,
                target_port=port.container_port,
            )
            for address in addresses
            if family in (None, address.version)
        ]
    return tuple(made)


def conflict(wanted: Iterable[Binding], taken: Iterable[Binding]) -> str:
    """Why these cannot be had beside those, or nothing."""
    others: dict[tuple[str, int, int], list[Binding]] = {}
    for each in taken:
        others.setdefault((each.protocol, each.target.version, each.host_port), []).append(each)
    for each in wanted:
        for other in others.get((each.protocol, each.target.version, each.host_port), ()):
            if each.host_ip is None or other.host_ip is None or each.host_ip == other.host_ip:
                at = "" if other.host_ip is None else f" of {other.host_ip}"
                return f"host port {each.host_port}/{each.protocol}{at} leads to pod {other.owner} already"
        others.setdefault((each.protocol, each.target.version, each.host_port), []).append(each)
    return ""


def _host_ip(spec: PodNetworkSpec, port: PortMapping) -> tuple[int | None, Address | None]:
    """The family that a mapping is for, or None for both, and the one address that it is for, or None for all."""
    if not port.host_ip:
        return None, None
    try:
        address = ipaddress.ip_address(port.host_ip)
    except ValueError as error:
        raise NetworkError(f"pod {_owner(spec)}: hostIP of host port {port.host_port}: {error}") from error
    return address.version, None if address.is_unspecified else address


def _owner(spec: PodNetworkSpec) -> str:
    return f"{spec.namespace}/{spec.name}"
