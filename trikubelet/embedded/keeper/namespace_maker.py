"""The process that goes into other namespaces for the keeper, which never leaves its own.

It makes the namespaces of pods, and sockets in their networks, and hands over the descriptors. A fork for each of these
costs 2 ms. So one process does them all, one after the other, and goes back to the keeper's namespaces after each.
Where it may not go back, which is in a user namespace, it ends instead, and so it does with the keeper; then the next
request has another one forked.

It is forked for the first request, so an agent that has no pods has one process less.

Pods on the machine's network all get the same: an IPC namespace, and a mount namespace for their shared memory. When
one has got its own, those of the next are made ahead, and their descriptors wait in the socket.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import struct

from trikubelet.embedded.keeper import linux, protocol, rootfs
from trikubelet.embedded.keeper.cgroups import write_file
from trikubelet.embedded.keeper.log import words_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.context import Machine
    from trikubelet.embedded.keeper.event_loop import EventLoop
    from trikubelet.embedded.keeper.forker import Forker

NETLINK_ROUTE = (socket.AF_NETLINK, socket.SOCK_RAW, 0)
_FLAGS = {
    "uts": linux.CLONE_NEWUTS,
    "ipc": linux.CLONE_NEWIPC,
    "mnt": linux.CLONE_NEWNS,
    "net": linux.CLONE_NEWNET,
}
_USUAL = ["ipc", "mnt"]
AHEAD_AFTER = 0.05
"""Seconds in which a pod has come so far that making namespaces for the next one takes no CPU away from it."""
_LARGEST_MESSAGE = 64 * 1024
_MADE = b"made"
_ANSWERS_WITHIN = 5.0
"""Seconds. It asks the kernel alone, but the kernel may be long about a network namespace."""
_SHARED_MEMORY_OPTIONS = "mode=1777,size=65536k"
# Not in the socket module; `struct ifreq` with its flags.
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("16sh22x")


class NamespaceMaker:
    """The keeper's end. Each method waits for the answer, which takes less than a fork."""

    def __init__(self, loop: EventLoop, forker: Forker, *, stays: bool) -> None:
        """`stays`: the process may go back to the keeper's namespaces, and does not end with its first answer."""
        self._loop = loop
        self._forker = forker
        self._stays = stays
        self._ahead = False
        """Whether an answer waits, or is about to: the usual namespaces of a pod that is yet to come."""
        self._ready: list[int] = []
        """Those, when they had to be received because of another pod."""
        self._channel: socket.socket | None = None
        self._pid = 0
        self._pidfd = -1

    def make(self, names: list[str], hostname: str, sysctls: dict[str, str]) -> list[int]:
        """Descriptors of new namespaces, of those in `_FLAGS` that are named, in that order. Raises OSError.

        The root of a mount namespace is an empty file system in memory. With a network comes one descriptor more, of a
        netlink socket in there, for who sets it up.
        """
        is_usual = names == _USUAL and not sysctls
        made = self._take_ahead() if is_usual else []
        if not made:
            made = self._ask({"names": names, "hostname": hostname, "sysctls": sysctls})
        if is_usual and self._stays:
            self._loop.after(AHEAD_AFTER, self._make_ahead)
        return made

    def _make_ahead(self) -> None:
        if self._channel is not None and not self._ahead and not self._ready:
            request = {"names": _USUAL, "hostname": "", "sysctls": {}}
            try:
                self._channel.send(json.dumps(request).encode())
            except OSError:
                return  # it has ended, of which the loop hears
            self._ahead = True

    def _take_ahead(self) -> list[int]:
        """What was made ahead; nothing if there is none, or it could not be made."""
        self._receive_ahead()
        made, self._ready = self._ready, []
        return made

    def _receive_ahead(self) -> None:
        if self._channel is not None and self._ahead:
            answer, made = self._receive(self._channel)
            self._ready = made if answer == _MADE else []

    def open_socket(self, network: int, family: int, kind: int, protocol: int) -> int:
        """The descriptor of a new socket in a network namespace, not blocking. Raises OSError."""
        (made,) = self._ask({"socket": [family, kind, protocol]}, network)
        return made

    def _ask(self, request: dict[str, Any], *descriptors: int) -> list[int]:
        """One that ended after an earlier request, or was killed, is replaced."""
        self._receive_ahead()  # answers come in order
        payload = json.dumps(request).encode()
        answer, made = self._exchange(payload, descriptors)
        if not answer:
            answer, made = self._exchange(payload, descriptors)
        if answer != _MADE:
            raise OSError(0, answer.decode() or "the process that makes namespaces ended without an answer")
        return made

    def _exchange(self, payload: bytes, descriptors: tuple[int, ...]) -> tuple[bytes, list[int]]:
        """No answer from one that has ended."""
        if self._channel is None:
            self._channel = self._start()
        try:
            socket.send_fds(self._channel, [payload], descriptors)
        except ConnectionError:
            self._end()
            return b"", []
        return self._receive(self._channel)

    def _receive(self, channel: socket.socket) -> tuple[bytes, list[int]]:
        self._ahead = False
        try:
            answer, made = protocol.receive(channel, _LARGEST_MESSAGE)
        except ConnectionError:
            answer, made = b"", []
        except TimeoutError:
            self._end()
            raise OSError(0, "the process that makes namespaces did not answer") from None
        if not answer:
            self._end()
        return answer, made

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._pid, self._pidfd = self._forker.fork("namespace maker", theirs)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(_ANSWERS_WITHIN)
        self._loop.watch(self._pidfd, self._ended)
        return ours

    def close(self) -> None:
        """End the process: it is in the keeper's cgroup, which is to be deleted."""
        if self._channel is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._forget()

    def _end(self) -> None:
        self._forget()
        self._forker.end(self._pid)

    def _ended(self, _events: int) -> None:
        if os.waitpid(self._pid, os.WNOHANG)[0]:
            self._forget()

    def _forget(self) -> None:
        assert self._channel is not None
        self._channel.close()
        self._channel, self._ahead = None, False
        self._loop.forget(self._pidfd)
        os.close(self._pidfd)


def serve(channel: socket.socket, machine: Machine) -> NoReturn:
    """In the forked process: until the keeper is gone, or there is no way back into its namespaces."""
    try:
        linux.set_name("trikube-maker")
        own = [(os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag) for name, flag in _FLAGS.items()]
        while True:
            payload, descriptors = protocol.receive(channel, _LARGEST_MESSAGE)
            if not payload:
                break
            try:
                made = _made(json.loads(payload), descriptors, machine.root)
            except OSError as error:
                channel.send(words_of(error).encode(errors="backslashreplace"))
            else:
                socket.send_fds(channel, [_MADE], made)
                descriptors += made
            for descriptor in descriptors:
                os.close(descriptor)
            for descriptor, flag in own:
                linux.setns(descriptor, flag)
    finally:
        os._exit(0)


def _made(request: dict[str, Any], descriptors: list[int], folder: str) -> list[int]:
    if "socket" in request:
        linux.setns(descriptors[0], linux.CLONE_NEWNET)
        return [open_socket(*request["socket"])]
    return _namespaces(request["names"], request["hostname"], request["sysctls"], folder)


def _namespaces(names: list[str], hostname: str, sysctls: dict[str, str], folder: str) -> list[int]:
    """New ones, which this process is in then; the root of a mount namespace is mounted over `folder` on the way."""
    linux.unshare(sum(_FLAGS[name] for name in names))
    if "uts" in names:
        linux.set_hostname(hostname)
    if "net" in names:
        _bring_loopback_up()
    for name, value in sysctls.items():
        try:
            write_file("/proc/sys/" + name.replace(".", "/"), value)
        except FileNotFoundError:
            raise OSError(errno.ENOENT, f"sysctl {name}: expected one that this kernel has, for such a pod") from None
        except OSError as error:
            raise OSError(error.errno, f"sysctl {name}: {error.strerror}") from None
    made: list[int] = []
    try:
        for name in names:
            made.append(os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
        if "net" in names:
            made.append(open_socket(*NETLINK_ROUTE))
        if "mnt" in names:
            rootfs.enter_new_root(folder, "tmpfs", rootfs.QUIET, _SHARED_MEMORY_OPTIONS)
    except OSError:
        protocol.close(made)
        raise
    return made


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", _IFF_UP))


def open_socket(family: int, kind: int, protocol: int) -> int:
    """The descriptor of a new socket in this process's network, not blocking. Raises OSError."""
    return socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol).detach()
