"""Doing something for as long as a container lives.

Whoever waits for something that only a living container can do (a hook, a stop, its turn to be stopped) need not wait
on when the container is known to have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Ended(Protocol):
    """Waits for the end of a container."""

    async def __call__(self, pod_uid: str, container_id: str, /, *, delay: float = 0.0) -> None:
        """Return when the container is known to have ended; if that is never known, do not.

        Not having been seen yet is not to have ended. It must not raise. `delay`: seconds that the answer may come
        late, since the caller has another way to learn it.
        """
        ...


async def until_ended(
    ended: Ended | None,
    pod_uid: str,
    container_id: str,
    work: Callable[[], Awaitable[T]],
    *,
    delay: float = 0.0,
) -> T | None:
    """What `work` returns, or None when the container ended first: then `work` is cancelled.

    `work` tells of problems by what it returns; what it raises comes out in an exception group.
    """
    if ended is None:
        return await work()
    done: T | None = None

    async def watch() -> None:
        await ended(pod_uid, container_id, delay=delay)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        done = await work()
        nursery.cancel_scope.cancel()
    return done
