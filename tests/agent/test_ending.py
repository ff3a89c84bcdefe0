from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.captured_logs import capture_logs
from tests.forked import fork
from tests.hanging_ends import HANGING
from trikubelet.agent import ending
from trikubelet.agent.ending import EXIT_SECOND_SIGNAL, ONE_SIGNAL, TOLD_EVERY, Ending, until_ended
from trikubelet.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import NoReturn

    from trio.testing import MockClock

PATIENCE = 60.0


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """That the process was about to leave by force, instead of it."""
    event = trio.Event()
    monkeypatch.setattr(ending, "_leave_soon", event.set)
    return event


async def send(number: signal.Signals = signal.SIGTERM) -> None:
    signal.raise_signal(number)
    await trio.testing.wait_all_tasks_blocked()


async def ended_by(
    run: Callable[[Ending], Awaitable[int]], signals: int, *, runtime_started: bool = True
) -> tuple[Ending, int]:
    """How it ends when so many signals are sent, with time between them."""
    asked = Ending(runtime_started=runtime_started, clock=itertools.count(0, ONE_SIGNAL).__next__)
    codes: list[int] = []

    async def until() -> None:
        codes.append(await until_ended(lambda: run(asked), asked))

    with asked.by_signals(), trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(signals):
                await send()
    return asked, codes[0]


async def orderly(asked: Ending) -> int:
    await asked.asked.wait()
    await trio.sleep(3)
    return 7


async def stubborn(_: Ending) -> int:
    await trio.sleep_forever()


async def test_the_first_signal_asks_and_what_runs_says_how_it_ended(
    left: trio.Event, autojump_clock: MockClock
) -> None:
    asked, code = await ended_by(orderly, 1)
    assert code == 7
    assert not asked.insisted
    assert not left.is_set()


async def test_without_a_runtime_the_first_signal_ends_everything(left: trio.Event) -> None:
    _, code = await ended_by(stubborn, 1, runtime_started=False)
    assert code == 0
    assert not left.is_set()


async def test_signals_that_come_together_are_one(left: trio.Event, autojump_clock: MockClock) -> None:
    asked = Ending(runtime_started=True)
    with asked.by_signals():
        await send(signal.SIGINT)
        await send(signal.SIGTERM)
        assert asked.asked.is_set()
        assert not asked.insisted


@pytest.mark.parametrize("signals", [2, 3])
async def test_the_second_signal_cancels_everything_and_leaves_by_force_if_need_be(
    signals: int, left: trio.Event
) -> None:
    _, code = await ended_by(stubborn, signals)
    assert code == EXIT_SECOND_SIGNAL
    assert left.is_set()


@pytest.mark.parametrize("runtime_started", [True, False])
async def test_a_cleanup_that_hangs_keeps_nobody_from_the_second_signal(
    runtime_started: bool, left: trio.Event
) -> None:
    async def hangs(_: Ending) -> int:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await left.wait()

    _, code = await ended_by(hangs, 2, runtime_started=runtime_started)
    assert code == EXIT_SECOND_SIGNAL


async def fails(_: Ending) -> NoReturn:
    try:
        await trio.sleep_forever()
    finally:
        raise OSError("the runtime is away")


@pytest.fixture
def usual_signals(left: trio.Event) -> Iterator[None]:
    """Those that these tests send are as in a process that a shell has started, whatever started this one."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
async def test_a_terminal_that_closes_asks_and_never_insists(
    left: trio.Event, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(ending, "has_terminal", lambda: True)
    asked = Ending(runtime_started=True, clock=itertools.count(0, ONE_SIGNAL).__next__)
    with asked.by_signals():
        await send(signal.SIGHUP)
        assert asked.asked.is_set()
        await send(signal.SIGHUP)
        assert not asked.insisted
        await send(signal.SIGINT)
        assert asked.insisted


@pytest.mark.usefixtures("usual_signals")
async def test_a_service_reloads_nothing_and_says_so(left: trio.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "has_terminal", lambda: False)
    monkeypatch.setattr(logs, "_thresholds", logs._Thresholds(level=0))
    asked = Ending(runtime_started=True)
    with capture_logs() as lines, asked.by_signals():
        await send(signal.SIGHUP)
    assert not asked.asked.is_set()
    assert [line["event"] for line in lines] == [
        "SIGHUP reloads nothing: restart the agent to have it read its configuration again"
    ]


@pytest.mark.usefixtures("usual_signals")
async def test_a_signal_that_is_ignored_at_the_start_stays_ignored(
    left: trio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "has_terminal", lambda: True)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    asked = Ending(runtime_started=True)
    with asked.by_signals():
        await send(signal.SIGHUP)
        await send(signal.SIGQUIT)
    assert not asked.asked.is_set()
    assert not asked.insisted


@pytest.mark.usefixtures("usual_signals")
async def test_a_quit_ends_at_once(left: trio.Event) -> None:
    asked = Ending(runtime_started=True)
    with asked.by_signals():
        await send(signal.SIGQUIT)
    assert asked.insisted
    assert asked.everything.cancel_called
    assert left.is_set()


MEANINGLESS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO)


@pytest.mark.parametrize("number", MEANINGLESS, ids=lambda number: number.name)
async def test_no_other_signal_kills_without_a_word(
    number: signal.Signals, left: trio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_thresholds", logs._Thresholds(level=0))
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with capture_logs() as lines, Ending(runtime_started=True).by_signals():
            await send(number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert [line["signal"] for line in lines] == [number.name]


async def test_what_fails_while_a_second_signal_ends_it_changes_no_exit_code(left: trio.Event) -> None:
    with capture_logs() as lines:
        _, code = await ended_by(fails, 2)
    assert code == EXIT_SECOND_SIGNAL
    assert [line["log_level"] for line in lines if "exc_info" in line] == ["error"]


async def test_what_fails_otherwise_comes_out(left: trio.Event) -> None:
    with pytest.RaisesGroup(pytest.RaisesGroup(OSError)):
        await ended_by(fails, 1, runtime_started=False)


async def test_handlers_are_as_before_afterwards(left: trio.Event) -> None:
    before = [signal.getsignal(number) for number in ending.HANDLED]
    with Ending().by_signals():
        assert [signal.getsignal(number) for number in ending.HANDLED] != before
    assert [signal.getsignal(number) for number in ending.HANDLED] == before


async def test_an_end_that_takes_long_tells_what_it_is_at(
    left: trio.Event, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(asked: Ending) -> int:
        await asked.asked.wait()
        asked.step = "ending the moon"
        await trio.sleep(1.5 * TOLD_EVERY)
        asked.progress = lambda: "waiting for web: 3 s of 30 s grace"
        await trio.sleep(TOLD_EVERY)
        return 0

    monkeypatch.setattr(logs, "_thresholds", logs._Thresholds(level=0))
    with capture_logs() as lines:
        await ended_by(slow, 1)
    told = [line["event"] for line in lines if line["log_level"] == "info"]
    assert told == ["asked to end", "still ending the moon", "waiting for web: 3 s of 30 s grace"]
    [[wait], _] = [line["waits"] for line in lines if line["log_level"] == "debug"]
    assert ".slow:" in wait


@pytest.mark.parametrize("what", HANGING)
def test_a_second_signal_ends_a_process_whatever_hangs(what: str) -> None:
    reading, writing = os.pipe()
    try:
        process = fork("tests.hanging_ends", [what], stdout=writing, stderr=writing)
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as told:
        assert told.readline() == b"ready\n"
        # Two different ones: the kernel may make one of two that are the same.
        process.send_signal(signal.SIGINT)
        time.sleep(3 * ONE_SIGNAL)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(PATIENCE) == EXIT_SECOND_SIGNAL, told.read()
        finally:
            process.kill()
