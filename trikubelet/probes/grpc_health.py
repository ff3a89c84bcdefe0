"""Asking a server in a pod by gRPC's health checking protocol (kubelet: pkg/probe/grpc).

Each probe has a channel, so a connection, of its own. A port that refuses, or that something else than HTTP/2 listens
on, is tried again until the probe's time is up: that is what Go's blocking dial does, so a server that comes up within
the timeout of its first probe passes it. Whatever goes wrong is the container's failure, never an error of asking.

There is no TLS, and the address is the pod's own: the API has no field for either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from grpclib import GRPCError, Status

from trikubelet.backoff import Backoff
from trikubelet.container.messages import describe_duration
from trikubelet.formats.go_quote import go_quote
from trikubelet.http.client.connect import close_quietly, connect_tcp, host_and_port
from trikubelet.http.client.request import KUBERNETES_VERSION
from trikubelet.probes.types import Outcome, ProbeAnswer
from trikubelet.rpc.grpc import Channel
from trikubelet.rpc.grpc.metadata import USER_AGENT
from trikubelet.rpc.health.v1 import HealthCheckRequest, HealthCheckResponseServingStatus, HealthStub
from trikubelet.rpc.status_text import status_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trikubelet.api import GRPCAction
    from trikubelet.probes.types import ProbeTarget
    from trikubelet.rpc.health.v1 import HealthCheckResponse

    Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]

_RETRY_EVERY: Final = 1.0
"""Seconds between attempts to connect."""
_NO_BACKOFF: Final = Backoff(first=0.0, longest=0.0)
"""We wait ourselves: the channel would fail calls meanwhile."""
_MOST_ANSWER: Final = 64 * 1024
"""Bytes. Two would do; a container that sends millions of them, each a field, must not keep the event loop."""
_USER_AGENT: Final = f"kube-probe/{KUBERNETES_VERSION} {USER_AGENT}"


class _QuietStream(trio.abc.Stream):
    """A TCP connection whose end leaves no port in TIME-WAIT."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        close_quietly(self._stream)
        await trio.lowlevel.checkpoint()


async def _connect_quietly(host: str, port: int) -> trio.abc.Stream:
    return _QuietStream(await connect_tcp(host, port))


async def ask_grpc(
    target: ProbeTarget, action: GRPCAction, timeout: float, *, connect: Connect = _connect_quietly
) -> ProbeAnswer:
    """Ask the health service of the target's pod; `timeout` seconds for all of it. Never an error, never raises.

    `connect(host, port)` opens the connection, or raises OSError. Cancelling closes it at once.
    """
    host = target.pod_ip
    address = host_and_port(host, action.port)
    deadline = trio.current_time() + timeout
    channel = Channel(
        lambda: connect(host, action.port),
        authority=address,
        max_message_size=_MOST_ANSWER,
        connect_timeout=timeout,
        backoff=_NO_BACKOFF,
        target=address,
        user_agent=_USER_AGENT,
    )
    async with channel:
        if not await _connected(channel, deadline):
            where = f"{go_quote(address)} within {describe_duration(timeout)}"
            return _failure(f"timeout: failed to connect service {where}: context deadline exceeded")
        request = HealthCheckRequest(service=action.service or "")
        try:
            reply = await HealthStub(channel).check(request, timeout=deadline - trio.current_time())
        except GRPCError as error:
            return _failure(_problem(error, timeout))
    state = _state(reply)
    if state != HealthCheckResponseServingStatus.SERVING.name:
        return _failure(f"service unhealthy (responded with {go_quote(state)})")
    return ProbeAnswer(Outcome.SUCCESS, "service healthy")


async def _connected(channel: Channel, deadline: float) -> bool:
    """Wait until the channel has a connection to something that speaks HTTP/2; False at the deadline."""
    with trio.CancelScope(deadline=deadline):
        while True:
            try:
                await channel.wait_for_connection()
            except GRPCError:
                await trio.sleep(_RETRY_EVERY)
            else:
                return True
    return False


def _problem(error: GRPCError, timeout: float) -> str:
    message = error.message or ""
    match error.status:
        case Status.UNIMPLEMENTED:
            return f"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        case Status.DEADLINE_EXCEEDED:
            return f"timeout: health rpc did not complete within {describe_duration(timeout)}"
        case status:
            return f"error: health rpc probe failed: {status_text(status, message)}"


def _state(reply: HealthCheckResponse) -> str:
    """What the server says, by name, or by number where that has none."""
    status = reply.status
    return status.name or str(status.value)


def _failure(output: str) -> ProbeAnswer:
    return ProbeAnswer(Outcome.FAILURE, output)
