"""Doing something for as long as a container lives.

Whoever waits for something that only a living container can do (a hook, a stop, its turn to be stopped) need not wait
on when the container is known to have ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

Ended = Callable[[str, str], Awaitable[None]]
"""Returns when the container (pod UID, container id) is known to have ended; for ever if that is never known.

Not having been seen yet is not to have ended. It must not raise.
"""

T = TypeVar("T")


async def until_ended(
    ended: Ended | None, pod_uid: str, container_id: str, work: Callable[[], Awaitable[T]]
) -> T | None:
    """What `work` returns, or None when the container ended first: then `work` is cancelled.

    `work` tells of problems by what it returns; what it raises comes out in an exception group.
    """
    if ended is None:
        return await work()
    done: T | None = None

    async def watch() -> None:
        await ended(pod_uid, container_id)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        done = await work()
        nursery.cancel_scope.cancel()
    return done
