"""An end counts when a source told of it and the runtime agrees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio
from grpclib.const import Status

from trikubelet.pleg.exits import ExitTracker
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from trio.testing import MockClock

RUNNING, EXITED = v1.ContainerState.CONTAINER_RUNNING, v1.ContainerState.CONTAINER_EXITED


@attrs.define
class SlowToKnow:
    """A runtime that shows the end of every container `at` some time."""

    at: float = 0.0
    before: v1.ContainerState = RUNNING
    error: Exception | None = None
    looks: int = 0

    async def container_status(self, container_id: str) -> v1.ContainerStatusResponse:
        self.looks += 1
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        state = self.before if trio.current_time() < self.at else EXITED
        return v1.ContainerStatusResponse(status=v1.ContainerStatus(id=container_id, state=state))


def ends(runtime: SlowToKnow) -> ExitTracker:
    return ExitTracker(cast("Any", runtime))


async def ended_after(watched: ExitTracker, delay: float) -> float | None:
    began = trio.current_time()
    with trio.move_on_after(delay):
        await watched.until_ended("pod", "c")
        return trio.current_time() - began
    return None


async def test_what_nobody_tells_of_is_looked_at_now_and_then(autojump_clock: MockClock) -> None:
    runtime = SlowToKnow(at=12)
    assert await ended_after(ends(runtime), 100) == pytest.approx(15)
    assert runtime.looks == 3


@pytest.mark.parametrize("state", [v1.ContainerState.CONTAINER_CREATED, v1.ContainerState.CONTAINER_UNKNOWN])
async def test_what_may_run_yet_has_not_ended(autojump_clock: MockClock, state: v1.ContainerState) -> None:
    assert await ended_after(ends(SlowToKnow(at=1000, before=state)), 100) is None


async def test_who_waits_no_longer_leaves_nothing(autojump_clock: MockClock) -> None:
    watched = ends(SlowToKnow(at=1000))
    for _ in range(3):
        assert await ended_after(watched, 1) is None
    assert watched.waiting == 0


@pytest.mark.parametrize("told_at", [0.0, 2.0])
async def test_the_runtime_has_to_agree(autojump_clock: MockClock, nursery: trio.Nursery, told_at: float) -> None:
    runtime = SlowToKnow(at=2.5)
    watched = ends(runtime)

    async def tell() -> None:
        await trio.sleep(told_at)
        watched.record("c")

    nursery.start_soon(tell)
    seconds = await ended_after(watched, 100)
    assert seconds == pytest.approx(2.5, abs=0.1)
    assert runtime.looks < 40


async def test_what_was_told_before_counts(autojump_clock: MockClock) -> None:
    watched = ends(SlowToKnow())
    watched.record("c")
    assert await ended_after(watched, 1) == 0


async def test_a_container_that_is_gone_has_ended(autojump_clock: MockClock) -> None:
    watched = ends(SlowToKnow(error=CRIError("ContainerStatus", Status.NOT_FOUND, "no such container")))
    watched.record("c")
    assert await ended_after(watched, 1) == 0


async def test_a_runtime_that_is_away_is_asked_until_it_answers(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = SlowToKnow(error=CRIError("ContainerStatus", Status.UNAVAILABLE, "connection lost"))
    watched = ends(runtime)
    watched.record("c")

    async def come_back() -> None:
        await trio.sleep(3)
        runtime.error = None

    nursery.start_soon(come_back)
    seconds = await ended_after(watched, 100)
    assert seconds == pytest.approx(3, abs=0.15)


async def test_the_runtime_is_asked_when_it_usually_knows(autojump_clock: MockClock) -> None:
    runtime = SlowToKnow()
    watched = ends(runtime)
    for number in range(20):
        runtime.at, runtime.looks = trio.current_time() + 0.06, 0
        watched.record(f"c{number}")
        began = trio.current_time()
        await watched.until_ended("pod", f"c{number}")
        assert trio.current_time() - began < 0.08
        await trio.sleep(1)
    assert runtime.looks <= 4


async def test_who_learns_it_otherwise_asks_rarely_and_says_nothing_of_the_lag(autojump_clock: MockClock) -> None:
    runtime = SlowToKnow(at=2.3)
    watched = ends(runtime)
    watched.record("slow")
    await watched.until_ended("pod", "slow", delay=0.5)
    assert trio.current_time() == pytest.approx(2.5, abs=0.05)
    assert runtime.looks == 5
    watched.record("c")
    runtime.at = trio.current_time() + 0.06
    assert await ended_after(watched, 100) == pytest.approx(0.06, abs=0.01), "the lag is not thought to be two seconds"


async def test_a_runtime_that_was_slow_once_is_not_thought_slow_for_ever(autojump_clock: MockClock) -> None:
    runtime = SlowToKnow(at=30)
    watched = ends(runtime)
    watched.record("hung")
    await watched.until_ended("pod", "hung")
    waits = []
    for number in range(20):
        watched.record(f"c{number}")
        began = trio.current_time()
        await watched.until_ended("pod", f"c{number}")
        waits.append(trio.current_time() - began)
    assert waits[0] < 0.3
    assert waits[-1] < 0.05


async def test_who_will_hear_it_anyway_does_not_ask_for_a_while(autojump_clock: MockClock) -> None:
    runtime = SlowToKnow(at=0.1)
    watched = ends(runtime)
    watched.record("c")
    with trio.move_on_after(0.49):
        await watched.until_ended("pod", "c", delay=0.5)
    assert runtime.looks == 0
    await watched.until_ended("pod", "c", delay=0.5)
    assert runtime.looks == 1
