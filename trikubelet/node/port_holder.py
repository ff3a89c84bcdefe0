"""Which process listens on a TCP port of this machine, and whether it is an agent.

`/proc/net/tcp` names the inode of each listening socket, and `/proc/PID/fd` the processes that have it open. An agent
is known by its root folder's lock file, which it has open for as long as it runs. Without root the files of other
users' processes cannot be read, so that only the user is known.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LOCK_FILE: Final = "trikubelet.lock"
"""In the root folder of each agent."""
_PROC: Final = Path("/proc")
_LISTEN: Final = "0A"


@frozen
class Holder:
    """A process, as far as this user may know it."""

    pid: int | None
    """None for another user's."""
    name: str
    root_dir: str | None = None
    """The root folder of an agent."""

    def __str__(self) -> str:
        if self.pid is None:
            return self.name
        if self.root_dir is not None:
            return f"the agent with pid {self.pid} and root folder {self.root_dir}"
        return f"{self.name} with pid {self.pid}"


def port_holder(address: str, number: int) -> Holder | None:
    """Return the process whose socket keeps this process from listening there, if anything is known of it.

    Looks through all processes, which takes long on a large machine.
    """
    bound = ipaddress.ip_address(address)
    # A socket that was inherited has several; the agent, or the oldest, is the one to end.
    found = sorted(
        _processes(dict(_listening(bound, number))), key=lambda holder: (holder.root_dir is None, holder.pid)
    )
    if found:
        return found[0]
    users = {_user(uid) for _, uid in _listening(bound, number)}  # once more: it may have ended meanwhile
    return Holder(None, f"a process of the user {users.pop()}") if len(users) == 1 else None


def is_listened_on(number: int) -> bool:
    """True if a process listens on the TCP port of any address of this machine."""
    return any(True for _ in _listening(ipaddress.IPv6Address(0), number))


def _listening(address: ipaddress.IPv4Address | ipaddress.IPv6Address, number: int) -> Iterator[tuple[str, int]]:
    """Inode and user of each socket that listens on the port, on this address or on all of them."""
    for table in ("tcp", "tcp6"):
        lines: list[str] = []
        with suppress(OSError):
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        for line in lines:
            fields = line.split()
            host, _, port = fields[1].partition(":")
            if fields[3] != _LISTEN or int(port, 16) != number:
                continue
            bound = _address(host)
            if address == bound or address.is_unspecified or bound.is_unspecified:
                yield fields[9], int(fields[7])


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Words of 32 bits in the machine's order become an address; an IPv4 address in an IPv6 one is what it is."""
    words = (int(text[start : start + 8], 16) for start in range(0, len(text), 8))
    found = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return getattr(found, "ipv4_mapped", None) or found


def _processes(inodes: dict[str, int]) -> Iterator[Holder]:
    """Processes that have one of the sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    if not wanted:
        return
    for entry in os.scandir(_PROC):
        if not entry.name.isdecimal():
            continue
        links = set(open_files(entry.path))
        if links.isdisjoint(wanted):
            continue
        with suppress(OSError):  # it has just ended
            name = Path(entry.path, "comm").read_text().strip()
            yield Holder(int(entry.name), name, locked_root_dir(links))


def locked_root_dir(files: Iterable[str]) -> str | None:
    """Return the root folder whose lock is among the files that a process has open; None if it is no agent."""
    return next((file.removesuffix(f"/{LOCK_FILE}") for file in files if file.endswith(f"/{LOCK_FILE}")), None)


def open_files(process: str) -> Iterator[str]:
    """Yield what a process has open, by its folder in /proc; nothing of another user's."""
    with suppress(OSError):  # another user's, or it has ended
        for entry in os.scandir(f"{process}/fd"):
            with suppress(OSError):
                yield os.readlink(entry.path)  # noqa: PTH115 - a tenth of the time of Path


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
