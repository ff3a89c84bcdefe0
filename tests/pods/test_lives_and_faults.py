"""A life takes a moment to be over, and may fail in the middle. What is asked for in that moment is not lost."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from tests.pods.factories import CREATE, KILL, UPDATE, make_pod, request, running, runtime_status
from trikubelet.clock import TrioClock
from trikubelet.pods.phases import Syncing
from trikubelet.pods.types import PodSyncReport
from trikubelet.pods.workers import PodWorkers
from trikubelet.telemetry.events import EventRecorder, EventType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus, RunningPod
    from trikubelet.pods.types import Kill, SyncPodType

Behaviour = Callable[[trio.Nursery], Awaitable[object]]


class Cache:
    def get(self, uid: str) -> PodRuntimeStatus:
        return runtime_status(uid)

    async def get_newer_than(self, uid: str, _min_time: float) -> PodRuntimeStatus:
        await trio.lowlevel.checkpoint()
        return runtime_status(uid)


@attrs.define
class Pods:
    """What is done to pods, in words; `behaviours` decide how, by word and UID."""

    done: list[tuple[str, str]] = attrs.field(factory=list)
    behaviours: dict[tuple[str, str], Behaviour] = attrs.field(factory=dict)

    def of(self, uid: str) -> list[str]:
        return [what for what, whose in self.done if whose == uid]

    @contextmanager
    def open_pod(self, uid: str, nursery: trio.Nursery) -> Iterator[Syncer]:
        yield Syncer(uid, nursery, self)


@attrs.frozen
class Syncer:
    uid: str
    nursery: trio.Nursery
    pods: Pods

    async def _do(self, what: str) -> None:
        self.pods.done.append((what, self.uid))
        behaviour = self.pods.behaviours.get((what, self.uid))
        if behaviour is not None:
            await behaviour(self.nursery)

    async def sync_pod(
        self, _type: SyncPodType, _pod: Pod, _mirror: Pod | None, _of: PodRuntimeStatus
    ) -> PodSyncReport:
        await self._do("sync")
        return PodSyncReport(trio.current_time())

    async def sync_terminating_pod(
        self, _pod: Pod, _status: PodRuntimeStatus, _kill: Callable[[], Kill]
    ) -> PodSyncReport:
        await self._do("terminate")
        return PodSyncReport(trio.current_time())

    async def sync_terminating_runtime_pod(self, _running_pod: RunningPod, _kill: Kill) -> None:
        await self._do("terminate runtime pod")

    def shorten_grace(self, deadline: float) -> None:
        self.pods.done.append((f"until {deadline:g}", self.uid))

    async def sync_terminated_pod(self, _pod: Pod, _status: PodRuntimeStatus) -> None:
        await self._do("clean up")


@asynccontextmanager
async def running_workers() -> AsyncIterator[tuple[PodWorkers, Pods]]:
    pods = Pods()
    workers = PodWorkers(pods.open_pod, Cache(), recorder=EventRecorder(TrioClock()))
    async with trio.open_nursery() as nursery:
        await nursery.start(workers.run)
        yield workers, pods
        nursery.cancel_scope.cancel()


async def leave_slowly(nursery: trio.Nursery) -> None:
    """Something runs for the pod that takes a second to be cancelled."""

    async def stay() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    nursery.start_soon(stay)
    await trio.testing.wait_all_tasks_blocked()


async def leave_with_an_error(nursery: trio.Nursery) -> None:
    """Something runs for the pod that fails when it is cancelled, a second later."""

    async def stay() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            raise RuntimeError("too late")

    nursery.start_soon(stay)
    await trio.testing.wait_all_tasks_blocked()


async def sleep_long(_nursery: trio.Nursery) -> None:
    await trio.sleep(5)


def fail_beside(after: float, times: int = 1) -> Behaviour:
    """A work goes on for ten seconds, unless what was begun beside it fails before."""
    failed = 0

    async def fail() -> None:
        nonlocal failed
        await trio.sleep(after)
        failed += 1
        raise RuntimeError("nobody thought of this")

    async def act(nursery: trio.Nursery) -> None:
        if failed < times:
            nursery.start_soon(fail)
        await trio.sleep(10)

    return act


async def test_a_pod_that_comes_while_one_of_its_uid_is_about_to_be_over_has_a_life_of_its_own(
    autojump_clock: MockClock,
) -> None:
    async with running_workers() as (workers, pods):
        pods.behaviours["terminate runtime pod", "1"] = leave_slowly
        workers.update_pod(request(KILL, running_pod=running("1")))
        await trio.sleep(0.5)
        assert workers.states.phase("1") is None, "its end was seen, and yet something of it is still there"
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(5)
        assert pods.of("1") == ["terminate runtime pod", "sync"]
        assert isinstance(workers.states.phase("1"), Syncing)
        assert workers.statistics().tasks == 1


async def test_who_kills_such_a_pod_waits_for_its_own_end(autojump_clock: MockClock) -> None:
    async with running_workers() as (workers, pods):
        pods.behaviours["terminate runtime pod", "1"] = leave_slowly
        pods.behaviours["terminate", "1"] = sleep_long
        workers.update_pod(request(KILL, running_pod=running("1")))
        await trio.sleep(0.5)
        began = trio.current_time()
        await workers.kill_pod(make_pod("1"))
        assert trio.current_time() == began + 5


async def test_a_fault_of_a_life_that_was_forgotten_does_not_touch_the_next_one_of_its_uid(
    autojump_clock: MockClock,
) -> None:
    async with running_workers() as (workers, pods):
        pods.behaviours["terminate runtime pod", "1"] = leave_with_an_error
        workers.update_pod(request(KILL, running_pod=running("1")))
        await trio.sleep(0.5)
        pods.behaviours["sync", "1"] = sleep_long
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(2)
        phase = workers.states.phase("1")
        assert isinstance(phase, Syncing)
        assert phase.in_flight
        await trio.sleep(10)
        assert pods.of("1") == ["terminate runtime pod", "sync"]


# --- The scope of a life ---------------------------------------------------------------------------------------------


async def test_what_runs_for_a_pod_is_gone_with_its_life(autojump_clock: MockClock) -> None:
    async with running_workers() as (workers, pods):
        pods.behaviours["sync", "1"] = leave_slowly
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(1)
        workers.update_pod(request(KILL, make_pod("1")))
        await trio.sleep(2)
        assert pods.of("1") == ["sync", "terminate", "clean up"]
        assert workers.statistics().tasks == 0


async def test_a_pod_forgotten_while_it_waits_has_no_life_any_more(autojump_clock: MockClock) -> None:
    async with running_workers() as (workers, pods):
        for uid in ("1", "2"):
            workers.update_pod(request(CREATE, make_pod(uid, static=True)))
        await trio.sleep(1)
        tasks = trio.lowlevel.current_statistics().tasks_living
        over = workers.finished.subscribe()
        workers.sync_known_pods([make_pod("1", static=True)])
        with trio.fail_after(10):
            assert await over.receive() == "2"
        assert workers.states.phase("2") is None
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks - 1
        assert pods.of("2") == []


async def test_a_kill_that_is_hastened_is_told_by_when_and_not_cancelled(autojump_clock: MockClock) -> None:
    async with running_workers() as (workers, pods):
        pods.behaviours["terminate", "1"] = sleep_long
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(1)
        workers.update_pod(request(KILL, make_pod("1")))
        await trio.sleep(1)
        hastened_at = trio.current_time()
        workers.update_pod(request(KILL, make_pod("1"), kill={"grace_period_override": 2}))
        await trio.sleep(10)
        assert pods.of("1") == ["sync", "terminate", f"until {hastened_at + 2:g}", "clean up"]
        assert workers.statistics().cancellations == 0


async def test_a_sync_is_called_off_and_a_killer_waits_for_the_kill_alone(autojump_clock: MockClock) -> None:
    async with running_workers() as (workers, pods):
        pods.behaviours |= dict.fromkeys([("sync", "1"), ("terminate", "1"), ("clean up", "1")], sleep_long)
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(1)
        began = trio.current_time()
        await workers.kill_pod(make_pod("1"))
        assert trio.current_time() == began + 5
        await trio.testing.wait_all_tasks_blocked()
        assert pods.of("1") == ["sync", "terminate", "clean up"]
        assert workers.statistics().in_flight == 1, "the cleanup goes on"


# --- Faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["sync", "terminate", "clean up"])
async def test_a_fault_has_the_work_done_again_after_a_second(autojump_clock: MockClock, what: str) -> None:
    async with running_workers() as (workers, pods):
        pods.behaviours[what, "1"] = fail_beside(3)
        for uid in ("1", "2"):
            workers.update_pod(request(CREATE, make_pod(uid)))
        await trio.sleep(30)
        for uid in ("1", "2"):
            workers.update_pod(request(KILL, make_pod(uid)))
        await trio.sleep(30)
        expected = ["sync", "terminate", "clean up"]
        assert pods.of("2") == expected
        expected.insert(expected.index(what), what)
        assert pods.of("1") == expected
        assert workers.statistics().tasks == 0


async def test_a_fault_is_told_by_an_event(autojump_clock: MockClock) -> None:
    async with running_workers() as (workers, pods):
        pods.behaviours["sync", "1"] = fail_beside(3)
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(20)
        assert workers._recorder is not None
        [event] = workers._recorder.events_of("1")
        assert (event.type, event.reason) == (EventType.WARNING, "FailedSync")
        assert "nobody thought of this" in event.message


async def test_a_life_that_fails_each_time_begins_again_less_and_less_often(autojump_clock: MockClock) -> None:
    async with running_workers() as (workers, pods):
        begun: list[float] = []
        fail = fail_beside(1, times=100)

        async def note(nursery: trio.Nursery) -> None:
            begun.append(trio.current_time())
            await fail(nursery)

        pods.behaviours["sync", "1"] = note
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(300)
        pauses = [later - earlier - 1 for earlier, later in itertools.pairwise(begun)]
        assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60])


async def test_a_kill_during_a_fault_waits_for_the_end(autojump_clock: MockClock) -> None:
    async with running_workers() as (workers, pods):
        began = trio.current_time()
        pods.behaviours["sync", "1"] = fail_beside(1)
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(1.5)
        await workers.kill_pod(make_pod("1"))
        assert trio.current_time() == began + 2
        await trio.testing.wait_all_tasks_blocked()
        works = [what for what in pods.of("1") if not what.startswith("until")]
        assert works == ["sync", "terminate", "clean up"]


async def test_a_request_that_the_machine_refuses_is_told_and_hurts_nobody(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_workers() as (workers, pods):
        workers.update_pod(request(CREATE, make_pod("1")))
        await trio.sleep(1)
        with monkeypatch.context() as patch:
            patch.setattr(workers._registry, "update_pod", lambda *_: 1 / 0)
            workers.update_pod(request(UPDATE, make_pod("1")))
            workers.update_pod(request(UPDATE, make_pod("unknown")))
        await trio.sleep(1.5)
        assert pods.of("1") == ["sync", "sync"], "it is looked at again"
        assert workers.statistics().tasks == 1
