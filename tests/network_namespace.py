"""A network namespace for a test, with nothing in it: a thread of its own is in it and does what has to be done there.

The test's own threads stay where they are, so nothing that a test does in it can reach the machine's network. It is
gone when the thread has ended and nothing holds it open.
"""

from __future__ import annotations

import ctypes
import os
import socket as sockets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import attrs

from trikubelet.linux.netlink.client import NETLINK_NETFILTER, NETLINK_ROUTE, NetlinkSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CLONE_NEWNET: Final = 0x40000000
P = ParamSpec("P")
T = TypeVar("T")


@attrs.frozen
class Namespace:
    """A namespace that a thread is in."""

    thread: ThreadPoolExecutor
    path: str

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in the namespace."""
        return self.thread.submit(function, *args, **kwargs).result()

    async def socket(self, family: int, kind: int, protocol: int = 0) -> sockets.socket:
        """What `trikubelet.embedded.network.model.NetworkNamespace` asks for."""
        opened = self.open_socket(family, kind, protocol)
        opened.setblocking(False)
        return opened

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> sockets.socket:
        return self.call(sockets.socket, family, kind, protocol)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of it."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def netlink(self, protocol: int = NETLINK_ROUTE) -> NetlinkSocket:
        return NetlinkSocket(self.open_socket(sockets.AF_NETLINK, sockets.SOCK_RAW, protocol))

    def netfilter(self) -> NetlinkSocket:
        return self.netlink(NETLINK_NETFILTER)


@contextmanager
def network_namespace() -> Iterator[Namespace]:
    """A namespace whose loopback device is not up yet. Needs root."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="network namespace") as thread:
        thread.submit(_leave).result()
        yield Namespace(thread, f"/proc/{os.getpid()}/task/{thread.submit(threading.get_native_id).result()}/ns/net")


def _leave() -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot make a network namespace: {os.strerror(code)}")
