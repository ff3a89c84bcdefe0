"""One lookup for all requests of the same at the same time.

Two hundred requests with one new token are one question to the API server. The lookup belongs to none of them: it goes
on when the first of them is cancelled, and is cancelled when the last one is. So there are never more lookups than
requests, and the limit on connections limits both. (Go's `singleflight`; the kubelet uses it for tokens only, and lets
abandoned lookups go on.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
import trio

from trikubelet.formats.values import define
from trikubelet.node_api.auth.reviews import ReviewError
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

log = get_logger("auth")


@define(eq=False)
class _Lookup(Generic[T]):
    key: bytes
    look_up: Callable[[], Awaitable[T]]
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    done: trio.Event = attrs.field(factory=trio.Event)
    waiting: int = 0
    result: list[T] = attrs.field(factory=list)
    """One value, or none."""
    failure: str = "it was cancelled"
    """Why there is no result."""


class SharedLookups(Generic[T]):
    """Lookups in progress, by what is looked up. `run` it; without that every lookup fails."""

    def __init__(self) -> None:
        self._running: dict[bytes, _Lookup[T]] = {}
        self._begin, self._begun = trio.open_memory_channel[_Lookup[T]](math.inf)
        self._open = False

    def __len__(self) -> int:
        return len(self._running)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the place where lookups run, until cancelled. Those in progress fail then."""
        self._open = True
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                await supervise(self._begin_lookups, nursery)
        finally:
            self._open = False
            for lookup in self._running.values():
                lookup.done.set()

    async def _begin_lookups(self, nursery: trio.Nursery) -> None:
        async for lookup in self._begun:
            nursery.start_soon(contain, self._carry_out, lookup)

    async def get(self, key: bytes, look_up: Callable[[], Awaitable[T]]) -> T:
        """What `look_up` returns, or what it returned to another call with the same key meanwhile.

        Raises ReviewError when it does, or fails otherwise. When cancelled, the lookup goes on for the others.
        """
        lookup = self._running.get(key)
        if lookup is None:
            if not self._open:
                raise ReviewError("the agent is starting or stopping, nothing can be asked of the API server")
            lookup = self._running[key] = _Lookup(key, look_up)
            self._begin.send_nowait(lookup)
        lookup.waiting += 1
        try:
            await lookup.done.wait()
        finally:
            lookup.waiting -= 1
            if not lookup.waiting:
                lookup.scope.cancel()
                self._forget(lookup)
        if lookup.result:
            return lookup.result[0]
        raise ReviewError(lookup.failure)

    async def _carry_out(self, lookup: _Lookup[T]) -> None:
        try:
            with lookup.scope:
                lookup.result.append(await lookup.look_up())
        except ReviewError as error:
            lookup.failure = error.message
        except Exception as error:
            log.error("a question to the API server failed unexpectedly", exc_info=error)
            lookup.failure = "it failed unexpectedly; the agent's log has the details"
        finally:
            self._forget(lookup)
            lookup.done.set()

    def _forget(self, lookup: _Lookup[T]) -> None:
        if self._running.get(lookup.key) is lookup:
            del self._running[lookup.key]
