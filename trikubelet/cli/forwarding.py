"""Listening sockets whose connections go to ports of a pod. Imports Trio: import it when needed.

Every local connection gets a connection to the agent of its own. kubectl carries all of them in one; then a client that
does not read what it asked for stops the others, since SPDY as Kubernetes uses it has no flow control of its own, and
whatever ends the one ends them all.
"""

from __future__ import annotations

import errno
import ipaddress
import os
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.cli.agent_stream import connect, first_of, stream_errors
from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo
from trikubelet.formats.values import frozen
from trikubelet.http.streaming.client import open_port_forward

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

MOST_CONNECTIONS: Final = 200
"""At once; more wait."""
_NO_SUCH_ADDRESS: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""The machine has no IPv6, say: nobody expects to be served there."""


@frozen
class ListenAddress:
    """`optional`: one of several will do (127.0.0.1 and ::1 for localhost)."""

    host: str
    optional: bool = False


def listen_addresses(text: str) -> list[ListenAddress]:
    """What `--address` means. Raises CommandError."""
    found: dict[str, ListenAddress] = {}
    for address in filter(None, text.split(",")):
        if address == "localhost":
            for host in ("127.0.0.1", "::1"):
                found.setdefault(host, ListenAddress(host, optional=True))
            continue
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise CommandError(f"{address} is not a valid IP") from None
        found[address] = ListenAddress(address)
    if not found:
        raise CommandError("you must specify at least 1 address")
    return list(found.values())


class Forwarding:
    """Ports of this machine and of a pod. `pairs`: local (0: any that is free) and remote."""

    def __init__(
        self, socket: Path, path: str, addresses: Sequence[ListenAddress], pairs: Sequence[tuple[int, int]]
    ) -> None:
        self._socket = socket
        self._path = path
        self._addresses = addresses
        self._pairs = pairs
        self._limit = trio.CapacityLimiter(MOST_CONNECTIONS)

    async def run(self, ending: Iterable[int]) -> int:
        """Forward until one of these signals comes; returns it. Raises CommandError when it cannot begin."""
        with trio.open_signal_receiver(*ending) as signals:
            return await self._run(signals)

    async def _run(self, signals: AsyncIterator[int]) -> int:
        ended_by = 0
        listeners: list[tuple[trio.SocketListener, int]] = []
        try:
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    nonlocal ended_by
                    async for number in signals:
                        ended_by = number
                        nursery.cancel_scope.cancel()

                nursery.start_soon(wait)
                with stream_errors(self._socket):
                    # Whether the pod can be reached at all is reported now, not at the first connection.
                    async with open_port_forward(await connect(self._socket), self._path):
                        pass
                listeners += await self._listen()
                for listener, port in listeners:
                    nursery.start_soon(self._serve, listener, port)
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        finally:
            for listener, _ in listeners:
                await trio.aclose_forcefully(listener)
        return ended_by

    async def _listen(self) -> list[tuple[trio.SocketListener, int]]:
        """Listeners with the pod's ports, each told. Raises CommandError when a port has none."""
        listeners = []
        for local, remote in self._pairs:
            problems: list[str] = []
            taken: list[str] = []
            port = local
            for address in self._addresses:
                try:
                    [listener] = await trio.open_tcp_listeners(port, host=address.host)
                except OSError as error:
                    problem = f"{_join(address.host, port)}: {_reason(error)}"
                    if not address.optional:
                        raise CommandError(f"unable to listen on {problem}") from None
                    problems.append(problem)
                    if error.errno not in _NO_SUCH_ADDRESS:
                        taken.append(problem)
                    continue
                port = listener.socket.getsockname()[1]
                listeners.append((listener, remote))
                echo(f"Forwarding from {_join(address.host, port)} -> {remote}")
            if len(problems) == len(self._addresses):
                raise CommandError(f"unable to listen on {', '.join(problems)}")
            for problem in taken:
                echo(f"Warning: not listening on {problem}", err=True)
        return listeners

    async def _serve(self, listener: trio.SocketListener, port: int) -> None:
        async def handle(local: trio.SocketStream) -> None:
            number = local.socket.getsockname()[1]
            echo(f"Handling connection for {number}")
            try:
                async with self._limit:
                    problem = await self._forward(local, port)
            except CommandError as error:
                problem = error.message
            if problem:
                echo(f"an error occurred forwarding {number} -> {port}: {problem.strip()}", err=True)

        await trio.serve_listeners(handle, [listener])

    async def _forward(self, local: trio.SocketStream, port: int) -> str:
        with stream_errors(self._socket):
            async with open_port_forward(await connect(self._socket), self._path) as forwarder:
                with trio.CancelScope() as scope:
                    return await forwarder.forward(_Local(local, scope), port)
        return ""


class _Local(trio.abc.HalfCloseableStream):
    """A local connection that ends everything when its client has reset it: the rest has no reader."""

    def __init__(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        self._stream = stream
        self._scope = scope

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except trio.BrokenResourceError:
            self._scope.cancel()
            raise

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "something else listens there"
    return os.strerror(error.errno) if error.errno else str(error)
