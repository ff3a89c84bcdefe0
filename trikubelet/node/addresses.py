"""The node's own addresses, read from the kernel without sending anything.

Python has no getifaddrs, and asking each interface for its address by ioctl shows one IPv4 address of each. So the
addresses come from a netlink dump, which is one message to the kernel and its answer, and the default routes from the
kernel's tables below /proc/net.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.node.address_choice import HostAddresses, IPAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

SIOCGIFADDR: Final = 0x8915
LOOPBACK: Final = "127.0.0.1"
_INTERFACE: Final = struct.Struct("16s16x")

_RTM_NEWADDR, _RTM_GETADDR, _NLMSG_ERROR, _NLMSG_DONE = 20, 22, 2, 3
_REQUEST_DUMP: Final = 0x1 | 0x300
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_MESSAGE: Final = struct.Struct("=IHHII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_RECEIVE_SIZE: Final = 65536
_IPV6_DEFAULT: Final = "0" * 32 + " 00 "
"""How a default route begins: to any address, by none of its bits."""
_ROUTE_UP: Final = 0x1
_SECONDS: Final = 1.0
"""How long the kernel may take to answer. It answers at once; this is so that nothing can hang here."""


@frozen
class InterfaceAddress:
    """One address of one network interface."""

    interface: str
    ip: IPAddress


def primary_address(route_table: Path = Path("/proc/net/route")) -> str:
    """The IPv4 address of the interface with the default route; of the first interface that has one; else loopback."""
    for name in (*_default_route_interfaces(route_table), *(name for _, name in socket.if_nameindex())):
        address = interface_address(name)
        if address is not None and not address.startswith("127."):
            return address
    return LOOPBACK


def interface_address(name: str) -> str | None:
    """The IPv4 address of a network interface, None when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, _INTERFACE.pack(name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def read_host_addresses(
    route_table: Path = Path("/proc/net/route"), ipv6_route_table: Path = Path("/proc/net/ipv6_route")
) -> HostAddresses:
    """What the kernel says of this host now. Raises OSError when it cannot be asked.

    The preferred addresses are those of interfaces with a default route, the best route first. A host whose routed
    interfaces have only link-local addresses has its own address on the loopback interface (RFC 5549).
    """
    found = interface_addresses()
    routed = dict.fromkeys((*_default_route_interfaces(route_table), *_ipv6_default_interfaces(ipv6_route_table)))
    interfaces = (*routed, "lo") if routed else tuple(dict.fromkeys(address.interface for address in found))
    preferred = [
        address.ip
        for interface in interfaces
        for address in found
        if address.interface == interface and _is_global(address.ip)
    ]
    return HostAddresses(local=frozenset(address.ip for address in found), preferred=tuple(preferred))


def interface_addresses() -> list[InterfaceAddress]:
    """All addresses of all interfaces, both families. Raises OSError when the kernel does not say."""
    names = dict(socket.if_nameindex())
    request = _MESSAGE.pack(_MESSAGE.size + _ADDRESS.size, _RTM_GETADDR, _REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.send(request + _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
        found: list[InterfaceAddress] = []
        while True:
            for kind, body in _messages(kernel.recv(_RECEIVE_SIZE)):
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, "the kernel does not tell the addresses of this host")
                if kind == _RTM_NEWADDR and (address := _address_in(body)) is not None:
                    index = _ADDRESS.unpack_from(body)[4]
                    found.append(InterfaceAddress(names.get(index, str(index)), address))


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _MESSAGE.size:
        length, kind = _MESSAGE.unpack_from(data)[:2]
        if not _MESSAGE.size <= length <= len(data):
            raise OSError(f"a message of the kernel says that it has {length} bytes; {len(data)} came")
        yield kind, data[_MESSAGE.size : length]
        data = data[_aligned(length) :]


def _address_in(body: bytes) -> IPAddress | None:
    """An interface's own address; on a point-to-point link `IFA_ADDRESS` is the other end's."""
    values: dict[int, bytes] = {}
    rest = body[_ADDRESS.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        values[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[max(_aligned(length), _ATTRIBUTE.size) :]
    packed = values.get(_IFA_LOCAL, values.get(_IFA_ADDRESS))
    return None if packed is None or len(packed) not in (4, 16) else ipaddress.ip_address(packed)


def _aligned(length: int) -> int:
    return length + 3 & ~3


def _is_global(ip: IPAddress) -> bool:
    """Whether others can reach it, in Go's sense: private addresses are global too."""
    return not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified)


def _default_route_interfaces(route_table: Path) -> list[str]:
    """By metric."""
    defaults = [
        (int(row[6]), row[0])
        for row in _rows(route_table)[1:]
        if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"
    ]
    return [name for _, name in sorted(defaults)]


def _ipv6_default_interfaces(route_table: Path) -> list[str]:
    """By metric. The kernel's own catch-all on `lo`, which refuses, is no route."""
    defaults = [
        (int(row[5], 16), row[9])
        for row in _rows(route_table, _IPV6_DEFAULT)
        if len(row) > 9 and int(row[8], 16) & _ROUTE_UP and row[9] != "lo"
    ]
    return [name for _, name in sorted(defaults)]


def _rows(route_table: Path, beginning: str = "") -> list[list[str]]:
    try:
        return [line.split() for line in route_table.read_text().splitlines() if line.startswith(beginning)]
    except OSError:
        return []
