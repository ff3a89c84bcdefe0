"""Keeps a fault in one task from ending the others: the agent's tasks are begun again, as its pods' lives are.

A fault is an exception that nobody thought of: a mistake of the agent, or an answer of a plugin, a driver, a webhook
or a runtime that brings one to light. In a nursery it would cancel everything beside it, and in the end the agent. So

 - a task that goes on for as long as the agent does runs under `supervise`: its fault is logged and counted, and it is
   begun again after a while;
 - a task for one connection, request or operation runs under `contain`: its fault ends just that one;
 - a part whose own body hands work to tasks waits for that work under `supervise` too, for a fault in the body of a
   nursery cancels all that is in there.

What is begun again has to find what it needs: it subscribes outside of the supervised part or anew at its beginning,
and a value that it took and has not dealt with stays where the next attempt looks first.

What still ends the agent: an exception before a part tells that it has started, since a part that never ran cannot be
relied on later; and what is no `Exception`: cancellation and KeyboardInterrupt. So whatever a part asks of strangers
before it has started (a driver, the runtime, what lies on the disk) it asks under `contain`, or expects any exception.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from trikubelet.backoff import Backoff
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from trio_typing import TaskStatus

    from trikubelet.broadcast import Inbox
    from trikubelet.telemetry.metrics import Counts

log = get_logger("supervision")

T = TypeVar("T")

FAULTS: Final = Backoff(first=1.0, longest=60.0)
"""Between a fault and the next beginning. What ran for longer than the longest of them has recovered."""

faults: Final[Counts] = Counter()
"""Of this process since its start, by the name of the task's function."""


class _Start:
    """What runs, and the wish of who started it to be told when it has started; None where nobody waits for that."""

    def __init__(self, run: Callable[..., Awaitable[object]], status: TaskStatus[Any] | None) -> None:
        self._run = run
        self._status = status
        self._told = False

    async def attempt(self) -> None:
        if self._status is None:
            await self._run()
        else:
            await self._run(task_status=trio.TASK_STATUS_IGNORED if self._told else self)

    def started(self, value: Any = None) -> None:
        """As of a `trio.TaskStatus`."""
        assert self._status is not None
        self._told = True
        self._status.started(value)

    def takes(self, fault: Exception) -> bool:
        """Raises the fault when somebody still waits for the start."""
        if self._status is not None and not self._told:
            raise fault
        return True


async def supervise(
    run: Callable[..., Awaitable[object]], *arguments: Any, task_status: TaskStatus[Any] | None = None
) -> None:
    """Run until it returns or is cancelled, and after a fault again: `nursery.start_soon(supervise, part.run)`.

    With `nursery.start`, what it raises before it has started is raised to who starts it.
    """
    _take_name(run, supervise)
    start = _Start(partial(run, *arguments), task_status)
    await begin_again(start.attempt, lambda fault: start.takes(fault) and _begins_again(run, fault))


async def contain(
    run: Callable[..., Awaitable[object]], *arguments: Any, task_status: TaskStatus[Any] | None = None
) -> None:
    """Run once, for one operation: `nursery.start_soon(contain, serve, connection)`. Its fault is its end.

    With `nursery.start` as `supervise`.
    """
    _take_name(run, contain)
    start = _Start(partial(run, *arguments), task_status)

    def end(fault: Exception) -> None:
        start.takes(fault)
        _tell(run, fault, "a task failed")

    with _faults_to(end):
        await start.attempt()


async def follow(changes: Inbox[T], handle: Callable[[T], object]) -> None:
    """A task: `handle` each value in turn, until cancelled. A value that brings a fault is not handled again."""

    async def handle_each() -> None:
        async for value in changes:
            handle(value)

    _take_name(handle, follow)
    with changes:
        await begin_again(handle_each, partial(_begins_again, handle))


async def begin_again(run: Callable[[], Awaitable[object]], on_fault: Callable[[Exception], bool]) -> None:
    """Run until it returns, and after a fault again, later each time.

    `on_fault` tells of the fault, and says whether it shall be begun again; what it raises is raised.
    """
    failures = 0
    while True:
        began = trio.current_time()
        again = False

        def told(fault: Exception) -> None:
            nonlocal again
            again = on_fault(fault)

        with _faults_to(told):
            await run()
        if not again:
            return
        failures = 1 if trio.current_time() - began > FAULTS.longest else failures + 1
        await trio.sleep(FAULTS.delay(failures))


@contextmanager
def _faults_to(tell: Callable[[Exception], None]) -> Iterator[None]:
    """Around what may be at fault. A cancellation that came with a fault goes on."""
    try:
        yield
    except BaseExceptionGroup as group:
        fault, rest = group.split(Exception)
        if fault is not None:
            tell(fault)
        if rest is not None:
            raise rest from None
    except Exception as error:  # noqa: BLE001 - told
        tell(error)


def _begins_again(run: Callable[..., object], fault: Exception) -> bool:
    _tell(run, fault, "a task failed, and is begun again")
    return True


def _tell(run: Callable[..., object], fault: Exception, what: str) -> None:
    name = _function(run).__qualname__
    faults[name,] += 1
    log.error(what, task=name, error=repr(fault), exc_info=fault)


def _take_name(run: Callable[..., object], supervisor: Callable[..., object]) -> None:
    """The task that was begun with the supervisor is called as if it ran without it."""
    task = trio.lowlevel.current_task()
    if task.name == _full_name(supervisor):
        task.name = _full_name(run)


def _full_name(run: Callable[..., object]) -> str:
    function = _function(run)
    return f"{function.__module__}.{function.__qualname__}"


def _function(run: Any) -> Any:
    while isinstance(run, partial):
        run = run.func
    return run if hasattr(run, "__qualname__") else type(run)
