"""Opening TCP connections to pods, and giving their ports back: for hooks and probes.

`trio.open_tcp_stream` would do, but for three things. A node opens hundreds of these connections a second, nearly all
to a number and on this machine, where the handshake is over before anybody could wait for it: that takes a fifth of
its time. It resolves names in the threads that all of the agent shares: a name server that is gone would hold up
everything else that needs one. And the side that closes a connection first keeps its port for a minute (TIME-WAIT),
so probes alone could use up a node's ports; `close_quietly` leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
"""As the socket module has it."""

_HEAD_START: Final = 0.3
"""Seconds that an address of a name has before the next one is tried beside it, as in Go's dialer."""
_MOST_ATTEMPTS: Final = 3
_MOST_LOOKUPS: Final = 16
"""At a time. An abandoned lookup still counts, until the system gives up."""
_NOT_AT_ALL: Final = -1
"""TCP_LINGER2, seconds to wait for the other side's end after our own: closing is one step for the kernel then. A
shutdown and a close with SO_LINGER at zero are two, and a server that is woken by the first is faster than the second:
its end finds us without a socket, and that keeps the port."""
_IN_PROGRESS: Final = (errno.EINPROGRESS, errno.EALREADY)
_NO_SUCH_NAME: Final = (socket.EAI_NONAME, socket.EAI_NODATA)

_Enter = Callable[[str], Awaitable[socket.socket] | None]
_enter: trio.lowlevel.RunVar[_Enter | None] = trio.lowlevel.RunVar("networks_apart", None)
_lookups: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("lookups_for_pods")


@contextmanager
def networks_apart(enter: _Enter) -> Iterator[None]:
    """In the body, and in this run of Trio: `enter(host)` makes the sockets that connect to addresses in networks to
    which this machine has no way, pods' behind pasta. It returns None for all other addresses, and raises OSError."""
    before = _enter.get()
    _enter.set(enter)
    try:
        yield
    finally:
        _enter.set(before)


async def connect_tcp(host: str, port: int) -> trio.SocketStream:
    """As `connect_socket`; a stream."""
    return trio.SocketStream(trio.socket.from_stdlib_socket(await connect_socket(host, port)))


async def connect_socket(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket. `host` is an address or a name, and `port` one that exists.

    It has no deadline but the system's (two minutes and more). Raises OSError, `gaierror` for a name that leads
    nowhere. Cancelling leaves nothing behind but, for a name, a thread that waits for its answer.
    """
    address = _numeric(host, port)
    return await (_any_of(await _resolved(host, port)) if address is None else _reach(*address))


def close_quietly(connection: trio.SocketStream | socket.socket) -> None:
    """Close at once, without waiting for the other side, and give the port back. Twice does no harm.

    The other side sees an orderly end, and a reset only if it goes on sending. (The kubelet has SO_LINGER at a
    second: that blocks closing for as long, and keeps the port all the same.)
    """
    sock = connection.socket if isinstance(connection, trio.SocketStream) else connection
    # Where the other side has closed first, it is the one to keep its port.
    with suppress(OSError):
        if not _has_ended(sock.fileno()):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, _NOT_AT_ALL)
    sock.close()


def dial_problem(host: str, port: int, error: OSError) -> str:
    """Why there is no connection, as Go says it: users know these texts from events."""
    if isinstance(error, socket.gaierror):
        reason = "no such host" if error.errno in _NO_SUCH_NAME else str(error.strerror).lower()
        return f"dial tcp: lookup {host}: {reason}"
    return f"dial tcp {host_and_port(host, port)}: connect: {errno_text(error)}"


def dial_timeout(host: str, port: int) -> str:
    """`dial_problem` for a connection that took too long."""
    return f"dial tcp {host_and_port(host, port)}: i/o timeout"


def host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def errno_text(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _numeric(host: str, port: int) -> tuple[int, Address] | None:
    """Family and socket address of a number, None for a name."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        canonical = socket.inet_ntop(family, socket.inet_pton(family, host))
    except (OSError, ValueError):
        return None
    return family, (canonical, port) if family == socket.AF_INET else (canonical, port, 0, 0)


async def _resolved(host: str, port: int) -> list[tuple[int, Address]]:
    """In the order of preference, at least one."""
    try:
        limiter = _lookups.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_MOST_LOOKUPS)
        _lookups.set(limiter)
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = await trio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=limiter)
    except ValueError as error:  # it cannot even be written as a name
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    return [(family, address) for family, _, _, _, address in found]


async def _any_of(addresses: list[tuple[int, Address]]) -> socket.socket:
    """Whichever answers first, with a head start for those in front. Raises the first one's OSError."""
    connected: list[socket.socket] = []
    problems: dict[int, OSError] = {}

    async def attempt(index: int, over: trio.Event) -> None:
        try:
            connected.append(await _reach(*addresses[index]))
            nursery.cancel_scope.cancel()
        except OSError as error:
            problems[index] = error
        over.set()

    try:
        async with trio.open_nursery() as nursery:
            for index in range(len(addresses)):
                over = trio.Event()
                nursery.start_soon(attempt, index, over)
                with trio.move_on_after(_HEAD_START):
                    await over.wait()
    except BaseException:
        for sock in connected:
            close_quietly(sock)
        raise
    if not connected:
        raise problems[0]
    for sock in connected[1:]:
        close_quietly(sock)
    return connected[0]


async def _reach(family: int, address: Address) -> socket.socket:
    for _ in range(_MOST_ATTEMPTS):
        entered = enter(str(address[0])) if (enter := _enter.get()) is not None else None
        sock = _new_socket(family) if entered is None else await entered
        try:
            await _connect(sock, address)
            if not _is_connected_to_itself(sock, address):
                return sock
        except BaseException:
            sock.close()
            raise
        close_quietly(sock)
    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _new_socket(family: int) -> socket.socket:
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


async def _connect(sock: socket.socket, address: Address) -> None:
    problem = sock.connect_ex(address)
    await trio.lowlevel.checkpoint()
    # Asking again costs less than waiting for the socket, and mostly gets the answer.
    while problem in _IN_PROGRESS and (problem := sock.connect_ex(address)) in _IN_PROGRESS:
        await trio.lowlevel.wait_writable(sock)
    if problem:
        raise OSError(problem, os.strerror(problem))


def _is_connected_to_itself(sock: socket.socket, address: Address) -> bool:
    """TCP allows it, and it happens on a port without a listener that the system gives to clients: by chance the
    socket got that very port. Go's dialer tries again, too."""
    return bool(sock.getsockname()[:2] == address[:2])


def _has_ended(descriptor: int) -> bool:
    """The other side has closed, and all it sent was read."""
    try:
        return os.read(descriptor, 1) == b""
    except BlockingIOError:
        return False
