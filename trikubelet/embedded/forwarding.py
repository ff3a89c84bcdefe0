"""Port-forward: bytes between a client's stream and a port of a pod.

As containerd does, a port is tried at 127.0.0.1 first and at ::1 then, one after the other. Unlike there, either side
may end its direction and go on with the other: a client that has sent its request waits for the answer as long as it
likes. Once the pod has ended its direction the client is expected to follow.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.keeper_client import KeeperClient, KeeperError, KeeperLostError

if TYPE_CHECKING:
    from trikubelet.http.streaming.port_forward import ForwardedPort

_BLOCK: Final = 64 * 1024
_CONNECT_DEADLINE: Final = 30.0
_AFTER_THE_POD: Final = 1.0
"""Seconds for each block that a client still sends to a pod that has ended its direction. Clients see only by our end
that the pod has ended: older kubectls, and clients that come by WebSocket. containerd has one second for all."""
_FAMILIES: Final = ((4, "127.0.0.1", "127.0.0.1"), (6, "::1", "[::1]"))


class ForwardError(Exception):
    """A connection to a pod's port that was refused or broke, in containerd's words."""


async def forward(
    keeper: KeeperClient, sandbox_id: str, forwarded: ForwardedPort, *, own_network: bool = False
) -> None:
    """Serve one connection of a client, to its end. Raises nothing of either side's doing.

    `own_network`: the pod has its own, which is what a problem is about then.
    """
    try:
        async with await _connect(keeper, sandbox_id, forwarded.port) as connection:
            await _copy_both_ways(connection, forwarded)
        problem = ""
    except ForwardError as error:
        problem = (
            f"error forwarding port {forwarded.port} to pod {sandbox_id}, uid : "
            f'failed to execute portforward in network namespace "{sandbox_id if own_network else "host"}": {error}'
        )
    await forwarded.finish(problem)


async def _connect(keeper: KeeperClient, sandbox_id: str, port: int) -> trio.SocketStream:
    """Raises ForwardError."""
    failures: list[str] = []
    for family, address, shown in _FAMILIES:
        where = f"dial tcp{family} {shown}:{port}"
        try:
            with trio.fail_after(_CONNECT_DEADLINE):
                return await _connect_once(keeper, sandbox_id, family, address, port)
        except trio.TooSlowError:
            failures.append(f"{where}: i/o timeout")
        except OSError as error:
            failures.append(f"{where}: connect: {os.strerror(error.errno or 0).lower()}")
        except (KeeperError, KeeperLostError) as error:
            failures.append(f"{where}: {error}")
    raise ForwardError(
        f'failed to connect to localhost:{port} inside namespace "{sandbox_id}", IPv4: {failures[0]} IPv6 {failures[1]}'
    )


async def _connect_once(
    keeper: KeeperClient, sandbox_id: str, family: int, address: str, port: int
) -> trio.SocketStream:
    """A connection by a socket that the keeper made in the pod's network, wherever this process is."""
    _, descriptor = await keeper.request_descriptor("socket", sandbox=sandbox_id, family=family)
    if descriptor is None:
        raise KeeperError("socket", "internal", "the keeper made no socket")
    connection = trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor))
    try:
        await connection.connect((address, port))
    except BaseException:
        connection.close()
        raise
    return trio.SocketStream(connection)


async def _copy_both_ways(connection: trio.SocketStream, forwarded: ForwardedPort) -> None:
    """Until both directions have ended, or the pod has broken off. Raises ForwardError for a reset by the pod."""
    failure: ForwardError | None = None
    async with trio.open_nursery() as nursery:
        from_client = _FromClient(connection, forwarded, nursery.cancel_scope)
        nursery.start_soon(from_client.run)
        try:
            await _copy_to_client(connection, forwarded)
        except ForwardError as error:
            failure = error
            nursery.cancel_scope.cancel()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            nursery.cancel_scope.cancel()  # the client is gone
        else:
            from_client.end_soon()
    if failure is not None:
        raise failure


async def _copy_to_client(connection: trio.SocketStream, forwarded: ForwardedPort) -> None:
    while True:
        try:
            block = await connection.receive_some(_BLOCK)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ForwardError(f"read from port {forwarded.port}: {_cause(error)}") from None
        if not block:
            await forwarded.data.send_eof()
            return
        await forwarded.data.send_all(block)


class _FromClient:
    """The direction towards the pod."""

    def __init__(self, connection: trio.SocketStream, forwarded: ForwardedPort, both_ways: trio.CancelScope) -> None:
        self._connection = connection
        self._forwarded = forwarded
        self._both_ways = both_ways
        self._scope = trio.CancelScope()
        self._timeout = float("inf")

    def end_soon(self) -> None:
        """The pod sends no more: the client has little time for each further block."""
        self._timeout = _AFTER_THE_POD
        self._scope.deadline = trio.current_time() + self._timeout

    async def run(self) -> None:
        with self._scope:
            while block := await self._next_block():
                try:
                    await self._connection.send_all(block)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # the pod reads no more: whether it broke off, the other direction tells
                self._scope.deadline = trio.current_time() + self._timeout
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._connection.send_eof()

    async def _next_block(self) -> bytes:
        try:
            return bytes(await self._forwarded.data.receive_some(_BLOCK))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._both_ways.cancel()  # the client is gone
            return b""


def _cause(error: Exception) -> str:
    cause = error.__cause__
    return os.strerror(cause.errno or 0).lower() if isinstance(cause, OSError) else str(error)
