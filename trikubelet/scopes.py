"""Background tasks behind an `async with`, without wrapping what its body raises; what nurseries wrapped; and work that
may take long, beside the event loop."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, TypeVarTuple

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from trio_typing import TaskStatus

E = TypeVar("E", bound=BaseException)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

LARGE: Final = 128 * 1024
"""Bytes from which on what a stranger wrote is taken apart in a thread."""


class Run(Protocol):
    """Tells when it has started, and runs until it is cancelled."""

    async def __call__(self, *, task_status: TaskStatus[None]) -> None: ...


@contextmanager
def body_errors() -> Iterator[None]:
    """Around a nursery whose own tasks never raise: what comes out is what its body raised, not a group of it.

    So code in an `async with` around a connection can catch errors by their type, also when it is cancelled at
    the same moment: that he is cancelled, the next checkpoint tells him again.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        _, others = group.split(trio.Cancelled)  # which a task's own nursery has wrapped too
        if others is None or len(others.exceptions) != 1:
            raise
        error = others.exceptions[0]
        raise error from error.__cause__


def leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    """The errors in a group and in the groups in it."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


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


async def off_loop(limiter: trio.CapacityLimiter, size: int, work: Callable[[*Ts], R], *arguments: *Ts) -> R:
    """What pure `work` on so many bytes returns or raises. Cancelled, it goes on in its thread.

    An object of the API server may have a megabyte and a half, and tens of thousands of entries, and so may the list of
    a device plugin; to take it apart would keep the event loop for a second. As a rule there are a few kilobytes, and a
    thread would only cost.
    """
    if size < LARGE:
        return work(*arguments)
    return await trio.to_thread.run_sync(work, *arguments, limiter=limiter, abandon_on_cancel=True)
