"""TCP keep-alive, for connections on which nothing may be said for hours. The periods are those of Go's clients."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import trio

IDLE: Final = 15
"""Seconds without a packet before the first probe."""
INTERVAL: Final = 15
"""Seconds between probes."""
PROBES: Final = 9
"""So many without an answer end the connection."""


def keep_alive(stream: trio.SocketStream) -> None:
    """Have the kernel find out when the other side is gone. Sockets that are no TCP are left alone."""
    if stream.socket.family not in (socket.AF_INET, socket.AF_INET6):
        return
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
