"""Threads for paths that may never answer. Paths hang here for as long as a test wants."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from trikubelet.volumes.disk import MAX_THREADS, Disk

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
