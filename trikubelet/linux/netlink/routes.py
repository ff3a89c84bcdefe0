"""Addresses and routes over rtnetlink."""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.linux.netlink.messages import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    MalformedMessageError,
    Request,
    attribute,
    decode_attributes,
    native32,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.linux.netlink.messages import Message

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface

_RTM_NEWADDR: Final = 20
_RTM_DELADDR: Final = 21
_RTM_GETADDR: Final = 22
_RTM_NEWROUTE: Final = 24
_RTM_DELROUTE: Final = 25
_RTM_GETROUTE: Final = 26

_FAMILIES: Final = {4: 2, 6: 10}
_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
_IFA_FLAGS: Final = 8
_IFA_F_NODAD: Final = 0x02
_IFA_F_NOPREFIXROUTE: Final = 0x200
_RTA_DST: Final = 1
_RTA_OIF: Final = 4
_RTA_GATEWAY: Final = 5
_RTA_TABLE: Final = 15
_RT_TABLE_MAIN: Final = 254
_RTPROT_BOOT: Final = 3
_RT_SCOPE_UNIVERSE: Final = 0
_RT_SCOPE_LINK: Final = 253
_RTN_UNICAST: Final = 1
_RTN_LOCAL: Final = 2
_RTM_F_CLONED: Final = 0x200

_ADDRESS_HEADER: Final = struct.Struct("=BBBBI")
_ROUTE_HEADER: Final = struct.Struct("=BBBBBBBBI")


@frozen
class AssignedAddress:
    """An address of a device."""

    link: int
    interface: Interface


@frozen
class Route:
    """A route to one place; `link` is 0 where it has several ways or none."""

    destination: Network
    link: int
    table: int


def add_address(link: int, interface: Interface, *, prefix_route: bool = True) -> Request:
    """Give a device an address; without `prefix_route` no route to its network comes with it.

    The kernel does not look whether somebody else has it (IPv6's duplicate address detection).
    """
    flags = _IFA_F_NODAD if interface.version == 6 else 0
    flags |= 0 if prefix_route else _IFA_F_NOPREFIXROUTE
    body = _address(link, interface) + native32(_IFA_FLAGS, flags)
    return Request(_RTM_NEWADDR, body, NLM_F_CREATE | NLM_F_EXCL, f"add address {interface}")


def delete_address(link: int, interface: Interface) -> Request:
    return Request(_RTM_DELADDR, _address(link, interface), about=f"delete address {interface}")


def add_link_route(link: int, destination: Network) -> Request:
    """A route to what is on this link. Refused with EEXIST where there is one to the same destination already."""
    body = _route(destination, _RT_SCOPE_LINK) + native32(_RTA_OIF, link)
    return Request(_RTM_NEWROUTE, body, NLM_F_CREATE | NLM_F_EXCL, f"add route to {destination}")


def delete_link_route(link: int, destination: Network) -> Request:
    body = _route(destination, _RT_SCOPE_LINK) + native32(_RTA_OIF, link)
    return Request(_RTM_DELROUTE, body, about=f"delete route to {destination}")


def add_default_route(link: int, gateway: Address) -> Request:
    everything = ipaddress.ip_network("0.0.0.0/0" if gateway.version == 4 else "::/0")
    body = _route(everything, _RT_SCOPE_UNIVERSE) + native32(_RTA_OIF, link) + attribute(_RTA_GATEWAY, gateway.packed)
    return Request(_RTM_NEWROUTE, body, NLM_F_CREATE | NLM_F_EXCL, f"add default route by {gateway}")


def find_route(address: Address) -> Request:
    """How a packet to this address would go."""
    header = _ROUTE_HEADER.pack(_FAMILIES[address.version], address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    return Request(_RTM_GETROUTE, header + attribute(_RTA_DST, address.packed), about=f"find route to {address}")


def list_addresses() -> Request:
    return Request(_RTM_GETADDR, _ADDRESS_HEADER.pack(0, 0, 0, 0, 0), about="list addresses")


def list_routes() -> Request:
    return Request(_RTM_GETROUTE, _ROUTE_HEADER.pack(0, 0, 0, 0, 0, 0, 0, 0, 0), about="list routes")


def decode_address(message: Message) -> AssignedAddress | None:
    """An address, or None for a message about something else. Raises MalformedMessageError."""
    if message.kind != _RTM_NEWADDR:
        return None
    family, length, _, _, link = unpack(_ADDRESS_HEADER.format, message.body)
    found = decode_attributes(message.body[_ADDRESS_HEADER.size :])
    # On a link between two ends IFA_ADDRESS is the other end.
    packed = found.get(_IFA_LOCAL, found.get(_IFA_ADDRESS))
    if packed is None or family not in _FAMILIES.values():
        return None
    try:
        return AssignedAddress(link, ipaddress.ip_interface((packed, length)))
    except ValueError as error:
        raise MalformedMessageError(f"address {packed.hex()}/{length}: {error}") from error


def decode_route(message: Message) -> Route | None:
    """A route that packets are sent by, or None for a message about anything else. Raises MalformedMessageError."""
    if message.kind != _RTM_NEWROUTE:
        return None
    family, length, _, _, table, _, _, kind, flags = unpack(_ROUTE_HEADER.format, message.body)
    if family not in _FAMILIES.values() or kind != _RTN_UNICAST or flags & _RTM_F_CLONED:
        return None
    found = decode_attributes(message.body[_ROUTE_HEADER.size :])
    if _RTA_TABLE in found:
        (table,) = unpack("=I", found[_RTA_TABLE])
    packed = found.get(_RTA_DST, bytes(4 if family == _FAMILIES[4] else 16))
    link = unpack("=I", found[_RTA_OIF])[0] if _RTA_OIF in found else 0
    try:
        return Route(ipaddress.ip_network((packed, length)), link, table)
    except ValueError as error:
        raise MalformedMessageError(f"route to {packed.hex()}/{length}: {error}") from error


def leads_here(answer: Sequence[Message]) -> bool:
    """Whether `find_route` found that an address is one of this namespace. Raises MalformedMessageError."""
    return any(unpack(_ROUTE_HEADER.format, each.body)[7] == _RTN_LOCAL for each in answer)


def _address(link: int, interface: Interface) -> bytes:
    header = _ADDRESS_HEADER.pack(_FAMILIES[interface.version], interface.network.prefixlen, 0, 0, link)
    packed = interface.ip.packed
    return header + attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)


def _route(destination: Network, scope: int) -> bytes:
    family, length = _FAMILIES[destination.version], destination.prefixlen
    header = _ROUTE_HEADER.pack(family, length, 0, 0, _RT_TABLE_MAIN, _RTPROT_BOOT, scope, _RTN_UNICAST, 0)
    return header + (attribute(_RTA_DST, destination.network_address.packed) if length else b"")
