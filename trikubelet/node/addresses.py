"""The node's own addresses, read from the kernel without sending anything."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path
from typing import Final

SIOCGIFADDR: Final = 0x8915
LOOPBACK: Final = "127.0.0.1"
_INTERFACE: Final = struct.Struct("16s16x")


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


def _default_route_interfaces(route_table: Path) -> list[str]:
    try:
        lines = route_table.read_text().splitlines()[1:]
    except OSError:
        return []
    fields = [line.split() for line in lines]
    defaults = [
        (int(row[6]), row[0]) for row in fields if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"
    ]
    return [name for _, name in sorted(defaults)]
