"""One CRI call: a request, a deadline, and failures turned into `CRIError`.

The deadline travels to the runtime as `grpc-timeout`, and the channel keeps it on this side too, so that a runtime
that ignores it, or a connection that swallowed the request, cannot hold a worker. Cancelling the caller cancels the
call, and the runtime is told (RST_STREAM).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import trio
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from trikubelet.rpc.cri.errors import CRIError
from trikubelet.telemetry.metrics import Counts, Histograms, exponential_bounds

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextlib import AbstractAsyncContextManager

DEFAULT_TIMEOUT: Final = 120.0
"""Seconds that a runtime has for an ordinary call (KubeletConfiguration: runtimeRequestTimeout)."""

DURATION_BOUNDS: Final = exponential_bounds(0.005, 2.5, 14)
"""Seconds: upper bounds of the durations' buckets, as the kubelet's."""

Reply = TypeVar("Reply")
Reply_co = TypeVar("Reply_co", covariant=True)


class CallChannel(Protocol):
    """What the clients need of a gRPC channel: grpclib's `request`, as betterproto's stubs use it. It ends a call at
    its deadline, whatever the other side does."""

    def request(
        self,
        name: str,
        cardinality: Cardinality,
        request_type: Any,
        reply_type: Any,
        *,
        timeout: float | None = None,
        deadline: Any = None,
        metadata: Any = None,
    ) -> AbstractAsyncContextManager[Any]: ...


class StubMethod(Protocol[Reply_co]):
    """A unary method of a generated stub."""

    def __call__(self, request: Any, /, *, timeout: float | None) -> Awaitable[Reply_co]: ...


class CallMetrics:
    """What a client counts of its calls, by the call's name (kubelet: `instrumented_services.go`)."""

    def __init__(self) -> None:
        self.durations = Histograms(DURATION_BOUNDS)
        """Seconds, of failures too."""
        self.errors: Counts = Counter()
        """Calls that failed or were given up."""
        self._under_way: dict[object, tuple[str, float]] = {}

    def began(self, rpc: str) -> object:
        """A call begins; what it gives is to be handed to `ended`."""
        token = object()
        self._under_way[token] = rpc, trio.current_time()
        return token

    @property
    def under_way(self) -> tuple[tuple[str, float], ...]:
        """The calls that have not been answered yet, with the Trio time at which each began, the oldest first."""
        return tuple(self._under_way.values())

    def ended(self, token: object, *, failed: bool) -> None:
        """A call ended just now."""
        rpc, began = self._under_way.pop(token)
        self.durations.observe((rpc,), trio.current_time() - began)
        if failed:
            self.errors[(rpc,)] += 1


async def call(
    rpc: str, method: StubMethod[Reply], request: object, *, timeout: float | None, metrics: CallMetrics
) -> Reply:
    """Call `method`, at most `timeout` seconds long (None: as long as it takes). Raises CRIError."""
    token, failed = metrics.began(rpc), True
    try:
        reply = await method(request, timeout=timeout)
        failed = False
    except GRPCError as error:
        raise CRIError(rpc, error.status, error.message or "the runtime gave no message") from error
    finally:
        metrics.ended(token, failed=failed)
    return reply


async def call_raw(
    rpc: str,
    channel: CallChannel,
    route: str,
    request: object,
    reply_type: type[Reply],
    *,
    timeout: float,
    metrics: CallMetrics,
) -> Reply:
    """As `call`, but the reply is read as `reply_type` instead of the generated message."""

    async def exchange(request: Any, /, *, timeout: float | None) -> Reply:
        async with channel.request(
            route, Cardinality.UNARY_UNARY, type(request), reply_type, timeout=timeout
        ) as stream:
            await stream.send_message(request, end=True)
            reply: Reply | None = await stream.recv_message()
        if reply is None:
            raise GRPCError(Status.INTERNAL, "the runtime ended the call without a reply")
        return reply

    return await call(rpc, exchange, request, timeout=timeout, metrics=metrics)


def malformed(rpc: str, expected: str) -> CRIError:
    """The error for a reply that lacks what every runtime must fill in."""
    return CRIError(rpc, Status.UNKNOWN, f"the runtime's reply is incomplete: {expected}")
