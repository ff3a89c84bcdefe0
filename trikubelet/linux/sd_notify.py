"""Talks to systemd: ready, stopping, and alive (`sd_notify(3)`), where the unit asks for it. It also keeps descriptors
for the next process of the service, where the unit has a `FileDescriptorStoreMax=`.

The service manager names a datagram socket in `NOTIFY_SOCKET` and, with `WatchdogSec=`, a period in `WATCHDOG_USEC`.
Without them every function here does nothing.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import trio

from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

READY = "READY=1"
STOPPING = "STOPPING=1"
_FIRST_KEPT = 3
"""The lowest descriptor that a service manager passes on."""

log = get_logger("sd-notify")


def notify(state: str, *, descriptors: Sequence[int] = (), environ: Mapping[str, str] = os.environ) -> bool:
    """Send a state such as `READY=1`; True when it was sent. Never blocks and never raises: a lost word is logged."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
            sender.connect(address)
            if descriptors:
                socket.send_fds(sender, [state.encode()], descriptors)
            else:
                sender.send(state.encode())
    except OSError as error:
        log.warning("the service manager could not be told", state=state, reason=error.strerror)
        return False
    return True


def keep(name: str, descriptor: int, *, environ: Mapping[str, str] = os.environ) -> None:
    """Have the service manager keep a descriptor for the next process, beside those that it keeps under this name."""
    notify(f"FDSTORE=1\nFDNAME={name}", descriptors=(descriptor,), environ=environ)


def forget(name: str, *, environ: Mapping[str, str] = os.environ) -> None:
    """Have it close all that it keeps under this name."""
    notify(f"FDSTOREREMOVE=1\nFDNAME={name}", environ=environ)


def kept(name: str, *, environ: Mapping[str, str] = os.environ) -> list[int]:
    """The descriptors that an earlier process had it keep under this name; they are the caller's now. No program that
    this process starts gets them (`sd_listen_fds_with_names(3)`)."""
    try:
        if int(environ.get("LISTEN_PID", "0")) != os.getpid():
            return []
        count = int(environ.get("LISTEN_FDS", "0"))
    except ValueError:
        return []
    found = []
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    for number, of in zip(range(_FIRST_KEPT, _FIRST_KEPT + count), names, strict=False):
        if of == name:
            try:
                os.set_inheritable(number, False)
            except OSError as error:
                log.warning(
                    "the service manager names a descriptor that is not there", name=name, reason=error.strerror
                )
                continue
            found.append(number)
    return found


def watchdog_period(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds within which the service manager expects a message of this process, None without a watchdog."""
    try:
        if int(environ.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        period = int(environ.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return period / 1e6 if period > 0 else None


async def watchdog(healthy: Callable[[], bool] = lambda: True, *, environ: Mapping[str, str] = os.environ) -> None:
    """Send the service manager a sign of life twice a period, as long as `healthy` is true.

    Runs on the agent's own loop: a loop that hangs is not reported alive. Returns at once when no watchdog is set; else
    runs until cancelled.
    """
    period = watchdog_period(environ)
    if period is None:
        return
    while True:
        if healthy():
            notify("WATCHDOG=1", environ=environ)
        await trio.sleep(period / 2)
