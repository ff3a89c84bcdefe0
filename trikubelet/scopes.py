"""Background tasks behind an `async with`, without wrapping what its body raises."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trio_typing import TaskStatus


class Run(Protocol):
    """Tells when it has started, and runs until it is cancelled."""

    async def __call__(self, *, task_status: TaskStatus[None]) -> None: ...


@contextmanager
def body_errors() -> Iterator[None]:
    """Around a nursery whose own tasks never raise: what comes out is what its body raised, not a group of it.

    So whoever writes `async with` around a connection can catch errors by their type.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__


@asynccontextmanager
async def running(run: Run) -> AsyncIterator[trio.CancelScope]:
    """The block begins when `run` has started, and `run` is cancelled when it ends. Yields the scope around both.

    Cancelled before the block begins, it leaves nothing behind.
    """
    with body_errors():
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            yield nursery.cancel_scope
            nursery.cancel_scope.cancel()
