"""Ports for programs that a test starts, which have to be told one."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from random import SystemRandom
from typing import Final

RANGE: Final = (20_000, 32_000)
"""Below those that the system gives to clients: between here and the program's start it would give one to somebody."""
_random = SystemRandom()


def free_ports(count: int) -> list[int]:
    """Numbers that nobody has now, at any address of this machine."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind(("", _random.randint(*RANGE)))
            except OSError:
                continue
            found.append(probe.getsockname()[1])
    return found


def free_port() -> int:
    """The same for one."""
    return free_ports(1)[0]
