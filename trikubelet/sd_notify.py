"""Talks to systemd: ready, stopping, and alive (`sd_notify(3)`), where the unit asks for it.

The service manager names a datagram socket in `NOTIFY_SOCKET` and, with `WatchdogSec=`, a period in `WATCHDOG_USEC`.
Without them every function here does nothing.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import trio

from trikubelet.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"

log = get_logger("sd-notify")


def notify(state: str, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Send a state such as `READY=1`; True when it was sent. Never blocks and never raises: a lost word is logged."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
            sender.connect(address)
            sender.send(state.encode())
    except OSError as error:
        log.warning("the service manager could not be told", state=state, reason=error.strerror)
        return False
    return True


def watchdog_period(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds within which the service manager wants to hear from this process, None when it does not ask."""
    try:
        if int(environ.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        period = int(environ.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return period / 1e6 if period > 0 else None


async def watchdog(healthy: Callable[[], bool] = lambda: True, *, environ: Mapping[str, str] = os.environ) -> None:
    """Tell the service manager twice a period that the agent lives, as long as `healthy` says so.

    Runs on the agent's own loop: a loop that hangs is not reported alive. Returns at once when nobody asks; else runs
    until cancelled.
    """
    period = watchdog_period(environ)
    if period is None:
        return
    while True:
        if healthy():
            notify("WATCHDOG=1", environ=environ)
        await trio.sleep(period / 2)
