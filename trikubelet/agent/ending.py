"""How `trikubelet run` is ended: the first SIGINT or SIGTERM asks, the second one insists.

A SIGHUP asks too where the agent has a terminal: that terminal has closed, or its ssh session is over. It never
insists, because a terminal that closes may send several. SIGQUIT insists at once. Every other signal that would kill
the process without a word is logged and does nothing; a service's SIGHUP, too. A signal that was ignored at the start
(`nohup`) stays ignored.

Signals are counted by their handler and not by a task, which would see them only while Trio's loop turns and the task
is not cancelled. The second signal cancels everything and sets an alarm, whose signal a moment later leaves without
unwinding. So no cleanup that waits, no thread that hangs in the kernel, no loop that hangs itself and nothing that
Python does at its exit keeps the process. An agent that was asked to end logs now and then what it is waiting for.
"""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.formats.values import define
from trikubelet.node_api.task_tree import task_tree
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import FrameType

log = get_logger("agent")

INSISTING: Final = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals whose second one ends the agent at once."""
ASKING: Final = INSISTING | {signal.SIGPWR, signal.SIGXCPU}
_KERNEL_S: Final = frozenset(
    {
        *(signal.SIGKILL, signal.SIGSTOP),
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP),
        *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
        *(signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH),
        *(signal.SIGPIPE, signal.SIGXFSZ),  # ignored by Python: they come back as errors
    }
)
"""Signals with a meaning of their own: faults of this process, job control, and those that kill nobody."""
HANDLED: Final = frozenset(signal.Signals) - _KERNEL_S
EXIT_SECOND_SIGNAL: Final = 130
ONE_SIGNAL: Final = 1.0
"""Seconds in which several signals count as one: a terminal and `timeout` both signal a whole group of processes."""
CLEANUP_TIMEOUT: Final = 1.0
"""Seconds between a second signal and the end by force."""
TOLD_EVERY: Final = 5.0
"""Seconds."""
_MOST_TASKS: Final = 20
_NURSERY: Final = "trio._core._run.Nursery"


@define(eq=False)
class Ending:
    """How far the agent is when it is asked to end."""

    asked: trio.Event = attrs.field(factory=trio.Event)
    insisted: bool = False
    runtime_started: bool = False
    """Before, there is nothing to end in order."""
    step: str = "starting"
    """What is being done, for the log."""
    progress: Callable[[], str] = lambda: ""
    """What it waits for, for people; empty when that is not known."""
    left_running: Callable[[], str] = lambda: ""
    """What runs on after a second signal, for people."""
    result: str = ""
    """How the pods are at the end, for people; empty where that is not known."""
    clock: Callable[[], float] = time.monotonic
    everything: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _signals: int = 0
    _signaled_at: float = -math.inf

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """While the block runs, signals end it. In the main thread only."""
        token = trio.lowlevel.current_trio_token()
        asking = ASKING | {signal.SIGHUP} if has_terminal() else ASKING

        def receive(number: int, _: FrameType | None) -> None:
            if number == signal.SIGQUIT:
                insist(number)
            elif number in asking:
                count(number)
            else:
                token.run_sync_soon(_tell_of_ignored, number, idempotent=True)

        def count(number: int) -> None:
            now = self.clock()
            if self._signals and (number not in INSISTING or now - self._signaled_at < ONE_SIGNAL):
                return
            self._signals, self._signaled_at = self._signals + 1, now
            if self._signals == 1:
                token.run_sync_soon(self._ask, number)
            else:
                insist(number)

        def insist(number: int) -> None:
            if not self.insisted:
                self.insisted = True
                _leave_soon()
                token.run_sync_soon(self._insist, number)

        taken = (number for number in HANDLED if number in INSISTING or signal.getsignal(number) == signal.SIG_DFL)
        before = {number: signal.signal(number, receive) for number in taken}
        try:
            yield
        finally:
            for number, handler in before.items():
                if number != signal.SIGALRM or not self.insisted:  # that of `_leave_soon` outlives this block
                    signal.signal(number, handler)

    def _ask(self, number: int) -> None:
        log.info("asked to end", signal=signal.Signals(number).name)
        self.ask()

    def ask(self) -> None:
        """As by the first signal."""
        self.asked.set()
        if not self.runtime_started:
            self.everything.cancel()

    def _insist(self, number: int) -> None:
        which = "asked to end at once" if number == signal.SIGQUIT else "second signal: ending at once"
        log.warning(which, signal=signal.Signals(number).name)
        if left := self.left_running():
            log.warning(left)
        self.everything.cancel()


def has_terminal() -> bool:
    """True if this process has a controlling terminal, which sends SIGHUP when it closes. A service has none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _tell_of_ignored(number: int) -> None:
    if number == signal.SIGHUP:
        log.info("SIGHUP reloads nothing: restart the agent to have it read its configuration again")
    else:
        log.info("ignored a signal that means nothing to the agent", signal=signal.Signals(number).name)


def _leave_soon() -> None:
    # The alarm outlives Trio's loop, and where Python has taken its handlers down it ends the process by itself.
    signal.signal(signal.SIGALRM, _leave)
    signal.setitimer(signal.ITIMER_REAL, CLEANUP_TIMEOUT)


def _leave(_: int, __: FrameType | None) -> None:
    os._exit(EXIT_SECOND_SIGNAL)


async def until_ended(run: Callable[[], Awaitable[int]], ending: Ending) -> int:
    """The exit code: that of `run`, 0 when it was cancelled by the first signal, EXIT_SECOND_SIGNAL by a second one.

    What `run` raises comes out in a group; after a second signal it is only logged. When cancelled, `run` is.
    """
    code = 0
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, _log_what_takes_long, ending)
            with ending.everything:
                code = await run()
            nursery.cancel_scope.cancel()
    except* Exception as group:
        if not ending.insisted:
            raise
        log.error("something failed while ending at once", exc_info=group)
    return EXIT_SECOND_SIGNAL if ending.insisted else code


async def _log_what_takes_long(ending: Ending) -> None:
    await ending.asked.wait()
    while True:
        await trio.sleep(TOLD_EVERY)
        log.info(ending.progress() or f"still {ending.step}")
        waits = list(dict.fromkeys(_waiting(task_tree())))
        log.debug("tasks that are left", tasks=len(waits), waits=waits[:_MOST_TASKS])


def _waiting(task: dict[str, Any]) -> Iterator[str]:
    """Where the tasks of ours wait, but for those that wait for others of them."""
    if "waits_at" in task and task["waits_at"] != task["waits_in"] and _NURSERY not in task["waits_in"]:
        yield f"{task['waits_at']} in {task['waits_in']}"
    for nursery in task.get("nurseries", ()):
        for child in nursery["tasks"]:
            yield from _waiting(child)
