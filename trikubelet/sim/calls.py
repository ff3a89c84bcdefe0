"""The way of one call through the simulated runtime: noted, delayed, perhaps failed, carried out.

The delay comes before the effect. A caller that gives up during it finds that nothing happened; what happens to callers
that give up later is what LOST_REPLY faults are for.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from trikubelet.formats.values import define
from trikubelet.sim.faults import ANY_RPC, Fault, FaultKind, FaultPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

MOMENT: Final = 0.001
"""Seconds of its effect that a call has before it is cut short."""

Delay = float | tuple[float, float]
"""Seconds, or the least and the most of them, drawn evenly."""


@define(eq=False)
class Call:
    """One call that the runtime got."""

    time: float
    """Trio time of its arrival."""
    rpc: str
    ids: tuple[str, ...]
    """What it was about: ids of sandboxes and containers, names in calls that create something, image references."""
    outcome: str = "in progress"
    """ok, cancelled, or the name of a gRPC status."""
    fault: FaultKind | None = None
    ended_at: float | None = None


class CallLog:
    """The latest calls in the order of their arrival, and how many of each kind there ever were."""

    def __init__(self, limit: int) -> None:
        self._calls: deque[Call] = deque(maxlen=limit)
        self._counts: Counter[str] = Counter()

    def add(self, call: Call) -> None:
        self._calls.append(call)
        self._counts[call.rpc] += 1

    def of(self, *rpcs: str, id: str = "") -> list[Call]:  # noqa: A002
        """Calls of these names (all, where none is given), about `id` where one is given."""
        return [call for call in self._calls if (not rpcs or call.rpc in rpcs) and (not id or id in call.ids)]

    def count(self, rpc: str) -> int:
        """How many calls of this name there were, forgotten ones too."""
        return self._counts[rpc]

    def total(self) -> int:
        return self._counts.total()

    def clear(self) -> None:
        """Forget the calls, not the counts."""
        self._calls.clear()


class CallDesk:
    """Receives every call of both services."""

    def __init__(self, faults: FaultPlan, restart: Callable[[float], None], *, log_limit: int) -> None:
        """`restart`: lets the runtime be away for so many seconds."""
        self.log = CallLog(log_limit)
        self.delays: dict[str, Delay] = {}
        """Delay per call name; "*" for all that have none of their own."""
        self._faults = faults
        self._restart = restart

    async def serve(self, rpc: str, ids: Sequence[str], effect: Callable[[], Awaitable[T]]) -> T:
        """Note the call, wait its delay, and carry it out, unless a fault says otherwise. Raises GRPCError."""
        call = Call(trio.current_time(), rpc, tuple(ids))
        self.log.add(call)
        try:
            reply = await self._carry_out(call, effect)
        except GRPCError as error:
            call.outcome = error.status.name
            raise
        except trio.Cancelled:
            call.outcome = "cancelled"
            raise
        finally:
            call.ended_at = trio.current_time()
        call.outcome = "ok"
        return reply

    async def _carry_out(self, call: Call, effect: Callable[[], Awaitable[T]]) -> T:
        fault = self._faults.draw(call.rpc)
        call.fault = fault.kind if fault else None
        await trio.sleep(self._delay(call.rpc))
        if fault is not None and fault.kind is FaultKind.HANG:
            await trio.sleep(fault.seconds)
        if fault is not None and fault.kind is FaultKind.ERROR:
            raise GRPCError(fault.status, fault.message)
        if fault is not None and fault.kind is FaultKind.RESTART:
            await self._end_in_restart(fault, effect)
        reply = await effect()
        if fault is not None and fault.kind is FaultKind.LOST_REPLY:
            raise GRPCError(fault.status, fault.message)
        return reply

    async def _end_in_restart(self, fault: Fault, effect: Callable[[], Awaitable[T]]) -> None:
        """Never returns: the connection ends, and the call with it."""
        if fault.when != "before":
            with suppress(GRPCError), trio.move_on_after(MOMENT if fault.when == "during" else math.inf):
                await effect()
        self._restart(fault.seconds)
        await trio.lowlevel.checkpoint()
        raise GRPCError(Status.UNAVAILABLE, "simulated: the runtime restarted")

    def _delay(self, rpc: str) -> float:
        delay = self.delays.get(rpc, self.delays.get(ANY_RPC, 0.0))
        if isinstance(delay, tuple):
            return self._faults.random(f"delay/{rpc}").uniform(*delay)
        return delay
