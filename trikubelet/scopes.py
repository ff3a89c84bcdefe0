"""Background tasks behind an `async with`, without wrapping what its body raises; and what nurseries wrapped."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trio_typing import TaskStatus

E = TypeVar("E", bound=BaseException)


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
        errors = [error for error in group.exceptions if not isinstance(error, trio.Cancelled)]
        if len(errors) != 1:
            raise
        raise errors[0] from errors[0].__cause__


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
