"""The messages between agent and keeper: JSON objects on a SEQPACKET unix socket, one datagram each.

    agent → keeper   {"id": 7, "op": "start", …}                      descriptors may ride along
    keeper → agent   {"id": 7, "ok": {…}} or {"id": 7, "error": {"kind": …, "message": …}}      or along with the answer
    keeper → agent   {"event": "exited", "container": …, …}           unasked, to every connection

A message too long for a datagram travels in a memfd, whose descriptor is the last one attached. Texts that are not
UTF-8 (environment, paths) use surrogate escapes. `server.py` has the operations and their fields.

Agent and keeper may be of different releases, since a keeper outlives the agent that started it. So the first request
is `hello`, with the oldest and the newest version of the protocol that the agent speaks, and the answer has the one
that is spoken from then on: the newest that both know. What is added without a new version is a feature, and the answer
names those that the keeper has. A version is given up only when no keeper of the release before speaks it alone.

    1    the first; its keepers know no other, and no features
    2    agreed on by both ends
"""

from __future__ import annotations

import array
import errno
import functools
import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

    Message: TypeAlias = dict[str, Any]

VERSION = 2
OLDEST = 1
POD_NETWORK = "pod-network"
"""A feature: network namespaces of pods, `namespace`, and sockets of any kind."""
CREATE = "create"
"""A feature: the operation `create`."""
APART = "apart"
"""A feature: until its exec a container's process knows of no other pod, and keeps none waiting."""
LARGEST_DATAGRAM = 64 * 1024
MOST_DESCRIPTORS = 8
SOCKET_NAME = "keeper.sock"
IDENTITY_NAME = "keeper.json"
_IN_MEMFD = b'{"memfd":true}'
_INLINE_LIMIT = 48 * 1024
_BLOCK = 64 * 1024


class ProtocolError(Exception):
    """A datagram that is no message."""


def agreed(oldest: int, newest: int) -> int | None:
    """The version to speak with another that knows `oldest` to `newest`; None when there is none."""
    version = min(newest, VERSION)
    return version if version >= max(oldest, OLDEST) else None


def encode(message: Message) -> tuple[bytes, int | None]:
    """The datagram, and the descriptor that must be attached last (the caller closes it after sending).

    Raises OSError, with nothing left behind.
    """
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) <= _INLINE_LIMIT:
        return payload, None
    descriptor = os.memfd_create("trikubelet-message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(payload)
    except OSError:
        os.close(descriptor)
        raise
    return _IN_MEMFD, descriptor


def decode(payload: bytes, descriptors: list[int]) -> Message:
    """Parse a datagram. Takes the memfd off `descriptors`, if one carries the message. Raises ProtocolError."""
    if payload == _IN_MEMFD:
        if not descriptors:
            raise ProtocolError("a long message came without its memfd")
        with os.fdopen(descriptors.pop(), "rb") as file:
            file.seek(0)
            payload = file.read()
    try:
        message = json.loads(payload)
    except ValueError as error:
        raise ProtocolError(f"expected a JSON object, got {payload[:80]!r}: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"expected a JSON object, got {payload[:80]!r}")
    return message


def ancillary(descriptors: list[int]) -> list[tuple[int, int, bytes]]:
    """The control message that passes `descriptors`."""
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]


def passed_descriptors(control: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a datagram. They are close-on-exec when received with MSG_CMSG_CLOEXEC."""
    found = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def receive(channel: socket.socket, largest: int) -> tuple[bytes, list[int]]:
    """A datagram and its descriptors, close-on-exec: `socket.recv_fds` of Python 3.11 passes over its flags.

    Raises OSError, also when descriptors are missing; the others are closed then.
    """
    payload, control, flags, _ = channel.recvmsg(largest, _MUCH_CONTROL_SPACE, socket.MSG_CMSG_CLOEXEC)
    descriptors = passed_descriptors(control)
    if flags & socket.MSG_CTRUNC:
        close(descriptors)
        raise too_many_open_files()
    return payload, descriptors


def too_many_open_files() -> OSError:
    """The error of a process that was sent descriptors (MSG_CTRUNC says so) and could not take all of them."""
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


_MUCH_CONTROL_SPACE = socket.CMSG_SPACE(32 * array.array("i").itemsize)
CONTROL_SPACE = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)


def read_bytes(path: str) -> bytes:
    """A kernel file as a whole, without the cost of Python's file objects."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, _BLOCK)
        while block := os.read(descriptor, _BLOCK):
            content += block
        return content
    finally:
        os.close(descriptor)


def process_start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid it names one process for good. None: no such."""
    try:
        fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@functools.cache
def boot_id() -> str:
    """Names this boot of the machine; pids of another one mean nothing."""
    try:
        return read_bytes("/proc/sys/kernel/random/boot_id").decode().strip()
    except OSError:
        return ""
