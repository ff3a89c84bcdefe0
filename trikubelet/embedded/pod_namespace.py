"""A pod's network namespace, as those who set the pod's network up see it (`network.model.NetworkNamespace`)."""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.embedded.keeper_client import KeeperClient, KeeperError, KeeperLostError
from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@frozen
class KeeperNamespace:
    """The keeper holds the namespace; here a descriptor of it is open for as long as somebody works on it."""

    path: str
    """Of this process's descriptor."""
    _keeper: KeeperClient
    _sandbox_id: str

    async def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket in it, not blocking. Raises NetworkError."""
        return await make_socket(self._keeper, self._sandbox_id, family, kind, protocol)


@asynccontextmanager
async def open_namespace(keeper: KeeperClient, sandbox_id: str) -> AsyncIterator[KeeperNamespace]:
    """The namespace of a pod that the keeper holds. Raises KeeperError, KeeperLostError, trio.TooSlowError."""
    _, descriptor = await keeper.request_descriptor("namespace", sandbox=sandbox_id)
    if descriptor is None:
        raise KeeperError("namespace", "internal", "the keeper sent no namespace")
    try:
        yield KeeperNamespace(f"/proc/{os.getpid()}/fd/{descriptor}", keeper, sandbox_id)
    finally:
        os.close(descriptor)


async def start_helper(keeper: KeeperClient, sandbox_id: str, argv: Sequence[str], output: int) -> int:
    """Have the keeper run a program for a pod's network. Returns a pidfd, to be closed. Raises NetworkError."""
    try:
        _, process = await keeper.request_descriptor("helper", [output], sandbox=sandbox_id, argv=list(argv))
    except (KeeperError, KeeperLostError, trio.TooSlowError) as error:
        raise NetworkError(str(error) or "no answer from the keeper") from error
    if process is None:
        raise NetworkError("the keeper sent no process")
    return process


async def make_socket(
    keeper: KeeperClient, sandbox_id: str, family: int, kind: int, protocol: int = 0
) -> socket.socket:
    """A socket in a pod's network, not blocking. Raises NetworkError."""
    try:
        _, descriptor = await keeper.request_descriptor(
            "socket", sandbox=sandbox_id, family=family, kind=kind, protocol=protocol
        )
    except (KeeperError, KeeperLostError, trio.TooSlowError) as error:
        raise NetworkError(
            f"socket in the pod's network: {str(error) or 'the keeper did not answer in time'}"
        ) from error
    if descriptor is None:
        raise NetworkError("socket in the pod's network: the keeper sent none")
    made = socket.socket(fileno=descriptor)
    made.setblocking(False)
    return made
