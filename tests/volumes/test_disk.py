"""Threads for paths that may never answer. Paths hang here for as long as a test wants."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trikubelet.volumes import disk as module
from trikubelet.volumes.disk import MAX_THREADS, Disk, ForeignPaths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEAD = Path("/dead")
WELL = Path("/well")
SOON = 0.01


class Hang:
    """Work on a path that does not answer."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked = 0

    def __call__(self) -> None:
        self.asked += 1
        self.answer.wait()


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.answer.set()


@pytest.fixture
def running_clock() -> MockClock:
    """Goes as others do, and jumps when it is told to."""
    return MockClock(rate=1)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.001)


async def test_a_path_that_hangs_takes_one_thread_and_no_place_from_others(hang: Hang) -> None:
    disk = Disk()
    for _ in range(3 * MAX_THREADS):
        with pytest.raises(trio.TooSlowError):
            await disk.run_foreign(DEAD, hang, deadline=SOON)
    await until(lambda: hang.asked > 0)
    assert hang.asked == 1
    assert await disk.run_foreign(WELL, lambda: "here") == "here"


async def test_paths_that_hang_hold_up_no_other(hang: Hang) -> None:
    disk = Disk()
    for number in range(3 * MAX_THREADS):
        with pytest.raises(trio.TooSlowError):
            await disk.run_foreign(Path(f"/dead/{number}"), hang, deadline=SOON)
    assert await disk.run_foreign(WELL, lambda: "here") == "here"


async def test_a_path_that_answers_again_is_asked_again(hang: Hang) -> None:
    disk = Disk()
    with pytest.raises(trio.TooSlowError):
        await disk.run_foreign(DEAD, hang, deadline=SOON)
    hang.answer.set()
    assert await disk.run_foreign(DEAD, lambda: "back") == "back"


async def test_one_who_waits_for_an_earlier_question_gets_an_answer_of_his_own(hang: Hang) -> None:
    disk = Disk()
    answers: list[int] = []

    async def ask(number: int) -> None:
        answers.append(await disk.run_foreign(WELL, lambda: number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.run_foreign, WELL, hang)
        await until(lambda: hang.asked == 1)
        nursery.start_soon(ask, 1)
        nursery.start_soon(ask, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        hang.answer.set()
    assert sorted(answers) == [1, 2]


async def test_waiting_for_a_thread_does_not_count(hang: Hang) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        for number in range(MAX_THREADS):
            nursery.start_soon(disk.run_foreign, Path(f"/slow/{number}"), hang)
        await until(lambda: hang.asked == MAX_THREADS)
        late: list[str] = []

        async def ask() -> None:
            late.append(await disk.run_foreign(WELL, lambda: "here", deadline=60))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert late == []
        hang.answer.set()
    assert late == ["here"]


async def test_long_walks_take_no_thread_from_questions(hang: Hang) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        for number in range(MAX_THREADS):
            nursery.start_soon(lambda n: disk.walk_foreign(Path(f"/walk/{n}"), hang, deadline=60), number)
        await until(lambda: hang.asked == MAX_THREADS)
        assert await disk.run_foreign(WELL, lambda: "here") == "here"
        hang.answer.set()


async def test_cancelled_it_leaves_the_thread_behind(hang: Hang) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.run_foreign, DEAD, hang)
        await until(lambda: hang.asked == 1)
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.TooSlowError):
        await disk.run_foreign(DEAD, lambda: None, deadline=SOON)


async def test_paths_that_hang_make_room_long_before_their_deadline(hang: Hang) -> None:
    """As those of a share on which many volumes are."""
    paths = ForeignPaths(patience=SOON)
    async with trio.open_nursery() as nursery:
        for number in range(3 * MAX_THREADS):
            nursery.start_soon(paths.ask, Path(f"/dead/{number}"), hang, 600)
        await until(lambda: hang.asked == 3 * MAX_THREADS)
        with trio.fail_after(60):
            assert await paths.ask(WELL, lambda: "here", 600) == "here"
        hang.answer.set()
    asked = hang.asked
    hang.answer.clear()
    async with trio.open_nursery() as nursery:
        patient = ForeignPaths(patience=600)
        for number in range(3 * MAX_THREADS):
            nursery.start_soon(patient.ask, Path(f"/slow/{number}"), hang, 600)
        await until(lambda: hang.asked == asked + MAX_THREADS)
        await trio.testing.wait_all_tasks_blocked()
        assert hang.asked == asked + MAX_THREADS
        hang.answer.set()


async def test_after_paths_have_answered_again_as_few_are_asked_at_once_as_before(hang: Hang) -> None:
    paths = ForeignPaths(patience=SOON)
    async with trio.open_nursery() as nursery:
        for number in range(3 * MAX_THREADS):
            nursery.start_soon(paths.ask, Path(f"/dead/{number}"), hang, 600)
        await until(lambda: hang.asked == 3 * MAX_THREADS)
        hang.answer.set()
    assert paths._threads.total_tokens == MAX_THREADS
    assert paths._threads.borrowed_tokens == 0


async def test_threads_that_hang_are_bounded(hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HANGING", 3)
    paths = ForeignPaths(patience=SOON)
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(paths.ask, Path(f"/dead/{number}"), hang, 600)
        await until(lambda: hang.asked == MAX_THREADS + 3)
        await trio.sleep(10 * SOON)
        assert hang.asked == MAX_THREADS + 3
        hang.answer.set()
    assert hang.asked == 20


async def test_the_questions_of_others_take_nothing_of_the_deadline(running_clock: MockClock) -> None:
    """Each is answered in time, all together are not."""
    disk, turns = Disk(), [threading.Event() for _ in range(4)]
    asked: list[int] = []

    def work(number: int) -> None:
        asked.append(number)
        turns[number].wait()

    async def ask(number: int) -> None:
        await disk.run_foreign(WELL, lambda: work(number), deadline=100)

    try:
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(ask, number)
            for done in range(4):
                await until(lambda: len(asked) > done)  # noqa: B023
                running_clock.jump(60)
                turns[asked[done]].set()
    finally:
        for turn in turns:
            turn.set()
    assert sorted(asked) == [0, 1, 2, 3]


async def test_one_who_is_cancelled_before_his_thread_begins_leaves_his_path_free() -> None:
    disk = Disk()
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk.run_foreign(WELL, lambda: "never")
    with trio.move_on_after(0):
        await disk.run_foreign(WELL, lambda: "never")
    assert await disk.run_foreign(WELL, lambda: "here", deadline=60) == "here"
