"""What comes back from a forked process, before it is believed.

A container that may trace (`SYS_PTRACE`) can take the sockets of a process in its PID namespace that is on its way to
exec, or of a reaper, and write what it likes. It can then lie about its own end, as it could by ending; no more.
"""

from __future__ import annotations

import json
import os
import sys

from trikubelet.embedded.keeper.reaper import STATUS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


PID_SIZE = 4
LONGEST_REASON = 1024


def read_report(data: bytes, descriptors: int) -> dict[str, Any] | None:
    """A message of `child.py` that came with so many descriptors; None for anything else."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    if message.keys() == {"error"}:
        return message if isinstance(message["error"], str) else None
    if message.keys() == {"terminal"}:
        return message if descriptors == 1 else None
    if message.keys() != {"uid", "gid", "groups"} or not isinstance(message["groups"], list):
        return None
    ids = [message["uid"], message["gid"], *message["groups"]]
    return message if all(type(one) is int and 0 <= one < 1 << 32 for one in ids) else None


def read_birth(data: bytes) -> tuple[int, str]:
    """What a process says of the one that it has forked: its pid, or 0 and why there is none."""
    pid, _, why = data.decode(errors="replace").partition(" ")
    if pid.isascii() and pid.isdigit() and int(pid) > 0:
        return int(pid), ""
    return 0, why or "the process that forks said nothing of it"


def read_sibling(data: bytes) -> tuple[int, str]:
    """The same of a process in between: the pid as the kernel writes it, then why there is none."""
    pid = int.from_bytes(data[:PID_SIZE], sys.byteorder, signed=True)
    if pid > 0:
        return pid, ""
    return 0, data[PID_SIZE:].rstrip(b"\0").decode(errors="replace") or "the process in between ended without an answer"


def read_status(data: bytes) -> int | None:
    """A wait status of the reaper's that says how the command ended; None for anything else."""
    if len(data) != STATUS.size:
        return None
    status: int = STATUS.unpack(data)[0]
    return status if os.WIFEXITED(status) or os.WIFSIGNALED(status) else None
