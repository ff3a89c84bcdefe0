"""The lives of pods on a mock clock, with syncers and a cache that do what the test says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from tests.pods.factories import CREATE, KILL, SYNC, UPDATE, make_mirror, make_pod, request, running, runtime_status
from trikubelet.api import Pod
from trikubelet.clock import TrioClock
from trikubelet.pods.phases import Syncing, Terminating, WaitingToStart
from trikubelet.pods.retry import BackoffError, NetworkNotReadyError
from trikubelet.pods.statistics import LATENCY_BOUNDS
from trikubelet.pods.types import Kill, KillPod, PodStatusFn, PodSyncReport, SyncPodType
from trikubelet.pods.workers import KillTimeoutError, PodWorkers
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.container.model import PodRuntimeStatus, RunningPod
    from trikubelet.pods.types import DesiredPod

Behaviour = Callable[[], Awaitable[object]]


class FakeCache:
    """Every status is fresh, unless told otherwise."""

    def __init__(self) -> None:
        self.statuses: dict[str, PodRuntimeStatus] = {}
        self.error: Exception | None = None
        self.asked: list[tuple[str, float]] = []
        self.hangs = False

    def get(self, uid: str) -> PodRuntimeStatus:
        if self.error is not None:
            raise self.error
        return self.statuses.get(uid, runtime_status(uid))

    async def get_newer_than(self, uid: str, min_time: float) -> PodRuntimeStatus:
        self.asked.append((uid, min_time))
        if self.hangs:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return self.get(uid)


@attrs.define
class FakeSyncers:
    """Notes every call of every pod's syncer with its time; behaviours decide what a call does."""

    opened: list[tuple[str, trio.Nursery]] = attrs.field(factory=list)
    closed: list[str] = attrs.field(factory=list)
    calls: list[tuple[float, str, str, object]] = attrs.field(factory=list)
    cancelled: list[tuple[float, str, str]] = attrs.field(factory=list)
    behaviours: dict[tuple[str, str], Behaviour] = attrs.field(factory=dict)
    shortened: list[tuple[float, str, float]] = attrs.field(factory=list)
    """When which pod was told that its grace period ends by when."""
    mirror_pods: list[Pod | None] = attrs.field(factory=list)
    status_fns: list[PodStatusFn | None] = attrs.field(factory=list)
    idle: bool = False
    """Syncs find nothing to do."""
    looking: float = 0.0
    """Seconds between a kill and the sight of its effect."""

    def of(self, uid: str) -> list[tuple[float, str, object]]:
        return [(time, call, detail) for time, call, called, detail in self.calls if called == uid]

    def kinds(self, uid: str) -> list[str]:
        return [call for _, call, _ in self.of(uid)]

    @contextmanager
    def open_pod(self, uid: str, nursery: trio.Nursery) -> Iterator[FakeSyncer]:
        self.opened.append((uid, nursery))
        try:
            yield FakeSyncer(uid, self)
        finally:
            self.closed.append(uid)

    async def call(self, call: str, uid: str, detail: object) -> object:
        self.calls.append((trio.current_time(), call, uid, detail))
        behaviour = self.behaviours.get((call, uid))
        try:
            return None if behaviour is None else await behaviour()
        except trio.Cancelled:
            self.cancelled.append((trio.current_time(), call, uid))
            raise


@attrs.frozen
class FakeSyncer:
    """That of one pod, which must not be given to another."""

    uid: str
    all: FakeSyncers

    async def sync_pod(
        self, update_type: SyncPodType, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus
    ) -> PodSyncReport:
        assert pod.metadata.uid == self.uid
        self.all.mirror_pods.append(mirror_pod)
        terminal = await self.all.call("sync", self.uid, update_type.value)
        return PodSyncReport(None if self.all.idle else trio.current_time(), terminal=bool(terminal))

    async def sync_terminating_pod(self, pod: Pod, status: PodRuntimeStatus, kill: Callable[[], Kill]) -> PodSyncReport:
        assert pod.metadata.uid == self.uid
        await self.all.call("terminate", self.uid, kill().grace_period)
        self.all.status_fns.append(kill().status_fn)
        killed_at = trio.current_time()
        await trio.sleep(self.all.looking)
        return PodSyncReport(killed_at)

    async def sync_terminating_runtime_pod(self, running_pod: RunningPod, kill: Kill) -> None:
        assert running_pod.uid == self.uid
        await self.all.call("terminate runtime pod", self.uid, None)

    def shorten_grace(self, deadline: float) -> None:
        self.all.shortened.append((trio.current_time(), self.uid, deadline))

    async def sync_terminated_pod(self, pod: Pod, status: PodRuntimeStatus) -> None:
        assert pod.metadata.uid == self.uid
        await self.all.call("clean up", self.uid, None)


class NoJitter(random.Random):
    def random(self) -> float:
        return 0.0


@attrs.define
class Node:
    workers: PodWorkers
    syncer: FakeSyncers
    cache: FakeCache
    recorder: EventRecorder
    finished: list[str]
    nursery: trio.Nursery


@asynccontextmanager
async def node_with(desired: DesiredPod | None = None, rng: random.Random | None = None) -> AsyncIterator[Node]:
    syncer, cache, recorder = FakeSyncers(), FakeCache(), EventRecorder(TrioClock())
    finished: list[str] = []
    workers = PodWorkers(
        syncer.open_pod,
        cache,
        recorder=recorder,
        rng=rng or NoJitter(),
        desired=desired,
    )

    async def collect_finished(*, task_status: trio.TaskStatus[None]) -> None:
        with workers.finished.subscribe() as subscription:
            task_status.started()
            async for uid in subscription:
                finished.append(uid)

    async with trio.open_nursery() as nursery:
        await nursery.start(collect_finished)
        await nursery.start(workers.run)
        yield Node(workers, syncer, cache, recorder, finished, nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def node(autojump_clock: MockClock) -> AsyncIterator[Node]:
    async with node_with() as node:
        yield node


def kill_of(pod: Pod, **options: Any) -> KillPod:
    return KillPod(pod=pod, start_time=trio.current_time(), **options)


def sleeping(seconds: float) -> Behaviour:
    async def sleep() -> None:
        await trio.sleep(seconds)

    return sleep


def raising(*errors: Exception) -> Behaviour:
    """Raises each error once, then succeeds."""
    left = list(errors)

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        if left:
            raise left.pop(0)

    return fail


def returning(value: object) -> Behaviour:
    async def give() -> object:
        await trio.lowlevel.checkpoint()
        return value

    return give


# --- The life of a pod -----------------------------------------------------------------------------------------------


async def test_a_pod_is_synced_at_once_and_again_every_minute(node: Node, autojump_clock: MockClock) -> None:
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(121)
    assert node.syncer.of("1") == [(0, "sync", "create"), (60, "sync", "sync"), (120, "sync", "sync")]


async def test_a_sync_sees_a_status_newer_than_the_last_action(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["sync", "1"] = sleeping(3)
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(70)
    assert node.cache.asked[0][1] < 0
    assert node.cache.asked[1] == ("1", 3)


async def test_a_sync_that_did_nothing_makes_no_observation_old(node: Node, autojump_clock: MockClock) -> None:
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(30)
    node.syncer.idle = True
    await trio.sleep(200)
    assert [min_time for _, min_time in node.cache.asked[1:]] == [0, 0, 0]


async def test_a_sync_that_failed_makes_observations_old(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.idle = True
    node.syncer.behaviours["sync", "1"] = raising(OSError("no"))
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(15)
    assert [min_time for _, min_time in node.cache.asked] == [-float("inf"), 0]


async def test_a_pod_that_has_run_its_course_is_ended_and_cleaned_up_without_delay(
    node: Node, autojump_clock: MockClock
) -> None:
    node.syncer.behaviours["sync", "1"] = returning(True)
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.testing.wait_all_tasks_blocked()
    assert node.syncer.of("1") == [(0, "sync", "create"), (0, "terminate", 30), (0, "clean up", None)]
    assert node.finished == ["1"]
    assert node.workers.statistics().tasks == 0


async def test_what_the_kill_saw_of_its_own_effect_is_new_enough_for_the_cleanup(
    node: Node, autojump_clock: MockClock
) -> None:
    node.syncer.behaviours["sync", "1"] = returning(True)
    node.syncer.looking = 2
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(5)
    assert node.finished == ["1"]
    assert node.cache.asked[-1] == ("1", 0)


async def test_a_delete_cancels_the_sync_in_flight_and_ends_the_pod(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["sync", "1"] = sleeping(1000)
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(5)
    node.workers.update_pod(request(UPDATE, make_pod("1", deletion_grace=4)))
    await trio.sleep(1)
    assert node.syncer.cancelled == [(5, "sync", "1")]
    assert node.syncer.of("1")[1:] == [(5, "terminate", 4), (5, "clean up", None)]
    assert node.workers.statistics().cancellations == 1


async def test_a_shorter_grace_hastens_the_kill_and_cancels_nothing(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["terminate", "1"] = sleeping(30)
    pod = make_pod("1")
    node.workers.update_pod(request(CREATE, pod))
    await trio.sleep(1)
    node.workers.update_pod(request(KILL, pod))
    await trio.sleep(2)
    node.workers.update_pod(kill_of(pod, grace_period_override=5))
    await trio.sleep(40)
    assert node.syncer.of("1")[1:] == [(1, "terminate", 30), (31, "clean up", None)]
    assert node.syncer.shortened == [(3, "1", 8)]
    assert node.syncer.cancelled == []


async def test_a_longer_grace_leaves_the_kill_alone(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["terminate", "1"] = sleeping(10)
    pod = make_pod("1", grace=10)
    node.workers.update_pod(request(KILL, pod))
    await trio.sleep(2)
    node.workers.update_pod(kill_of(pod, grace_period_override=60))
    await trio.sleep(20)
    assert node.syncer.of("1") == [(0, "terminate", 10), (10, "clean up", None)]
    assert {deadline for _, _, deadline in node.syncer.shortened} <= {10}
    assert node.syncer.cancelled == []


async def test_a_cancelled_wait_for_a_status_counts_as_cancelled_work(node: Node, autojump_clock: MockClock) -> None:
    node.cache.hangs = True
    pod = make_pod("1")
    node.workers.update_pod(request(CREATE, pod))
    await trio.sleep(1)
    node.cache.hangs = False
    node.workers.update_pod(request(KILL, pod))
    await trio.sleep(1)
    assert node.syncer.kinds("1") == ["terminate", "clean up"]


@pytest.mark.parametrize("second", [0, 3], ids=["before the kill begins", "while it goes on"])
async def test_the_status_function_that_counts_is_the_last_one_that_was_asked_for(
    node: Node, autojump_clock: MockClock, second: float
) -> None:
    pod = make_pod("1")
    node.syncer.behaviours["terminate", "1"] = sleeping(5)
    node.workers.update_pod(kill_of(pod, pod_status_fn=lambda status: status))
    await trio.sleep(second)

    def newest(status: object) -> object:
        return status

    node.workers.update_pod(kill_of(pod, pod_status_fn=newest, grace_period_override=3))
    await trio.sleep(10)
    assert node.syncer.status_fns == [newest]
    assert node.syncer.kinds("1") == ["terminate", "clean up"]


async def test_a_pod_created_anew_with_its_uid_starts_after_housekeeping_forgot_the_first(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod("1", static=True)
    node.syncer.behaviours["terminate", "1"] = sleeping(7)
    node.workers.update_pod(request(CREATE, pod))
    await trio.sleep(1)
    node.workers.update_pod(request(KILL, pod))
    node.workers.update_pod(request(CREATE, pod))
    assert set(node.workers.sync_known_pods([pod])) == {"1"}
    await trio.sleep(10)
    assert node.finished == ["1"]
    assert node.workers.sync_known_pods([pod]) == {}
    node.workers.update_pod(request(CREATE, pod))
    await trio.sleep(1)
    assert node.syncer.kinds("1") == ["sync", "terminate", "clean up", "sync"]


async def test_a_pod_forgotten_and_created_anew_in_one_go_has_one_worker(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["sync", "1"] = sleeping(5)
    node.workers.update_pod(request(CREATE, make_pod("1")))
    node.workers.sync_known_pods([])
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(1)
    node.workers.update_pod(request(KILL, make_pod("1")))
    await trio.sleep(1)
    assert node.syncer.cancelled == [(1, "sync", "1")]
    assert node.syncer.kinds("1") == ["sync", "terminate", "clean up"]


async def test_the_next_static_pod_starts_the_moment_the_one_before_it_is_done(
    node: Node, autojump_clock: MockClock
) -> None:
    first, second = make_pod("1", static=True), make_pod("2", static=True)
    node.syncer.behaviours["terminate", "1"] = sleeping(3)
    node.syncer.behaviours["clean up", "1"] = sleeping(1)
    node.workers.update_pod(request(CREATE, first))
    node.workers.update_pod(request(CREATE, second))
    await trio.sleep(100)
    assert isinstance(node.workers.states.phase("2"), WaitingToStart)
    node.workers.update_pod(request(KILL, first))
    await trio.sleep(10)
    assert node.syncer.of("2") == [(104, "sync", "create")]


async def test_a_runtime_pod_is_ended_without_asking_the_cache_and_forgotten(
    node: Node, autojump_clock: MockClock
) -> None:
    node.workers.update_pod(request(KILL, running_pod=running("1")))
    await trio.testing.wait_all_tasks_blocked()
    assert node.syncer.of("1") == [(0, "terminate runtime pod", None)]
    assert node.cache.asked == []
    assert node.workers.states.phase("1") is None


async def test_a_terminal_pod_of_which_nothing_runs_is_only_cleaned_up(node: Node, autojump_clock: MockClock) -> None:
    node.workers.update_pod(request(CREATE, make_pod("1", phase="Succeeded")))
    node.cache.error = OSError("the cache knows nothing")
    node.workers.update_pod(request(CREATE, make_pod("2", phase="Succeeded")))
    node.cache.error = None
    await trio.testing.wait_all_tasks_blocked()
    assert node.syncer.kinds("1") == ["clean up"]
    assert node.syncer.kinds("2") == ["terminate", "clean up"]


async def test_a_pod_nobody_wants_is_ended(node: Node, autojump_clock: MockClock) -> None:
    wanted, unwanted = make_pod("1", "wanted"), make_pod("2", "unwanted")
    for pod in (wanted, unwanted):
        node.workers.update_pod(request(CREATE, pod))
    await trio.sleep(1)
    node.workers.sync_known_pods([wanted])
    await trio.sleep(1)
    assert node.syncer.kinds("1") == ["sync"]
    assert node.syncer.kinds("2") == ["sync", "terminate", "clean up"]
    assert set(node.workers.sync_known_pods([wanted])) == {"1"}


async def test_pods_that_came_before_the_workers_run_are_not_lost(autojump_clock: MockClock) -> None:
    syncer = FakeSyncers()
    workers = PodWorkers(syncer.open_pod, FakeCache())
    workers.update_pod(request(CREATE, make_pod("1")))
    async with trio.open_nursery() as nursery:
        await nursery.start(workers.run)
        await trio.testing.wait_all_tasks_blocked()
        assert syncer.kinds("1") == ["sync"]
        nursery.cancel_scope.cancel()


# --- Retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "second"),
    [
        (ValueError("anything"), 10),
        (NetworkNotReadyError("no plugin"), 1),
        (ExceptionGroup("two", [ValueError("one"), NetworkNotReadyError("no plugin")]), 1),
        (BackoffError("crash loop", retry_at=25), 25),
        (BackoffError("crash loop", retry_at=-5), 0),
        (BackoffError("crash loop", retry_at=500), 60),
        (ExceptionGroup("two", [BackoffError("a", retry_at=40), BackoffError("b", retry_at=20)]), 20),
    ],
    ids=str,
)
async def test_a_failed_sync_is_tried_again_when_its_error_says(
    node: Node, autojump_clock: MockClock, error: Exception, second: float
) -> None:
    node.syncer.behaviours["sync", "1"] = raising(error)
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(61)
    assert [time for time, _, _ in node.syncer.of("1")][:2] == [0, second]
    assert node.workers.statistics().failures == 1


async def test_every_interval_gets_up_to_half_of_itself_on_top(autojump_clock: MockClock) -> None:
    async with node_with(rng=random.Random(7)) as node:
        for number in range(40):
            node.workers.update_pod(request(CREATE, make_pod(str(number), f"pod-{number}")))
        await trio.sleep(91)
        seconds = [node.syncer.of(str(number))[1][0] for number in range(40)]
    assert all(60 <= each <= 90 for each in seconds)
    assert max(seconds) - min(seconds) > 15


async def test_a_failed_kill_is_tried_again_until_it_succeeds(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod("1")
    node.syncer.behaviours["terminate", "1"] = raising(OSError("no"), OSError("no"))
    node.syncer.behaviours["clean up", "1"] = raising(OSError("no"))
    node.workers.update_pod(request(KILL, pod))
    await trio.sleep(31)
    assert [(time, call) for time, call, _ in node.syncer.of("1")] == [
        (0, "terminate"),
        (10, "terminate"),
        (20, "terminate"),
        (20, "clean up"),
        (30, "clean up"),
    ]


async def test_a_failed_kill_of_a_runtime_pod_is_tried_again(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["terminate runtime pod", "1"] = raising(OSError("no"))
    node.workers.update_pod(request(KILL, running_pod=running("1")))
    await trio.sleep(11)
    assert node.syncer.kinds("1") == ["terminate runtime pod"] * 2
    assert node.workers.states.phase("1") is None


async def test_an_update_during_the_backoff_is_taken_at_once(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["sync", "1"] = raising(OSError("no"))
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(4)
    node.workers.update_pod(request(UPDATE, make_pod("1")))
    await trio.sleep(50)
    assert node.syncer.of("1") == [(0, "sync", "create"), (4, "sync", "update")]


async def test_a_status_that_cannot_be_determined_is_an_event_and_a_retry(
    node: Node, autojump_clock: MockClock
) -> None:
    node.cache.error = OSError("the runtime is away")
    pod = make_pod("1")
    node.workers.update_pod(request(CREATE, pod))
    await trio.sleep(1)
    events = [(event.reason, event.message) for event in node.recorder.events_of("1")]
    assert events == [("FailedSync", "error determining status: the runtime is away")]
    node.cache.error = None
    await trio.sleep(10)
    assert node.syncer.of("1") == [(10, "sync", "sync")]


async def test_a_status_that_never_comes_is_given_up_after_two_minutes(node: Node, autojump_clock: MockClock) -> None:
    node.cache.hangs = True
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(121)
    assert node.workers.statistics().failures == 1


async def test_looking_again_uses_the_pod_as_it_is_wanted_now(autojump_clock: MockClock) -> None:
    pod = make_pod("1", static=True)
    wanted: dict[str, tuple[Pod, Pod | None]] = {}
    async with node_with(desired=wanted.get) as node:
        wanted["1"] = (pod, None)
        mirror = make_mirror(pod, "mirror")
        node.workers.update_pod(request(CREATE, pod, mirror_pod=mirror))
        await trio.sleep(61)
        assert node.syncer.mirror_pods == [mirror, None]
        del wanted["1"]
        await trio.sleep(60)
        assert node.syncer.mirror_pods == [mirror, None, mirror], "nobody wants it: the last version again"


# --- Isolation, drain and end ----------------------------------------------------------------------------------------


async def test_an_exception_in_one_worker_reaches_no_other(node: Node, autojump_clock: MockClock) -> None:
    async def fail_in_a_nursery() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raising(ValueError("a")))
            nursery.start_soon(raising(KeyError("b")))

    node.syncer.behaviours["sync", "1"] = fail_in_a_nursery
    node.workers.update_pod(request(CREATE, make_pod("1", "bad")))
    node.workers.update_pod(request(CREATE, make_pod("2", "good")))
    await trio.sleep(61)
    assert node.syncer.kinds("2") == ["sync", "sync"]
    assert len(node.syncer.kinds("1")) == 7


async def test_ending_the_workers_cancels_what_is_in_flight_and_kills_no_pod(
    autojump_clock: MockClock,
) -> None:
    async def fail_while_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("cleanup went wrong")

    async with node_with() as node:
        node.syncer.behaviours["sync", "1"] = sleeping(1000)

        async def in_a_nursery() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail_while_cancelled)
                nursery.start_soon(trio.sleep_forever)

        node.syncer.behaviours["sync", "2"] = in_a_nursery
        node.workers.update_pod(request(CREATE, make_pod("1", "one")))
        node.workers.update_pod(request(CREATE, make_pod("2", "two")))
        node.workers.update_pod(request(CREATE, make_pod("idle", "idle")))
        await trio.sleep(1)
        assert node.workers.statistics().in_flight == 2
    assert (1, "sync", "1") in node.syncer.cancelled
    assert node.syncer.kinds("1") == ["sync"]
    node.workers.update_pod(request(KILL, make_pod("1", "one")))
    node.workers.update_pod(request(KILL, make_pod("idle", "idle")))
    node.workers.update_pod(request(CREATE, make_pod("3", "three")))
    await trio.sleep(100)
    assert [node.syncer.kinds(uid) for uid in ("1", "idle", "3")] == [["sync"], ["sync"], []]


async def test_a_drain_ends_every_pod_and_starts_no_more(node: Node, autojump_clock: MockClock) -> None:
    waiting, first = make_pod("w", static=True), make_pod("s", static=True)
    node.syncer.behaviours["terminate", "s"] = sleeping(20)
    for pod in (first, waiting, make_pod("1", "api"), make_pod("2", "dying", deletion_grace=9)):
        node.workers.update_pod(request(CREATE, pod))
    node.workers.update_pod(request(KILL, running_pod=running("o", "orphan")))
    node.syncer.behaviours["sync", "1"] = sleeping(1000)
    await trio.sleep(1)
    before = trio.current_time()
    assert await node.workers.drain(60) == frozenset()
    assert trio.current_time() - before == 20
    assert node.syncer.kinds("w") == []
    assert node.syncer.kinds("1") == ["sync", "terminate", "clean up"]
    assert node.syncer.kinds("2") == ["terminate", "clean up"]
    assert node.workers.statistics().tasks == 0
    node.workers.update_pod(request(CREATE, make_pod("late", "late")))
    await trio.sleep(1)
    assert node.syncer.kinds("late") == []


async def test_a_drain_is_bounded_and_names_who_did_not_end(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["terminate", "1"] = sleeping(1000)
    node.workers.update_pod(request(CREATE, make_pod("1", "stubborn")))
    node.workers.update_pod(request(CREATE, make_pod("2", "meek")))
    await trio.sleep(1)
    assert await node.workers.drain(30) == {"1"}
    assert trio.current_time() == 31


async def test_a_drain_can_shorten_every_grace(node: Node, autojump_clock: MockClock) -> None:
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.sleep(1)
    await node.workers.drain(30, grace_period_override=2)
    assert (1, "terminate", 2) in node.syncer.of("1")


async def test_a_killer_waits_until_the_containers_have_ended_and_not_for_the_cleanup(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod("1")
    node.syncer.behaviours["terminate", "1"] = sleeping(3)
    node.syncer.behaviours["clean up", "1"] = sleeping(50)
    node.workers.update_pod(request(CREATE, pod))
    await trio.sleep(1)
    await node.workers.kill_pod(pod, evict=True, grace_period_override=0)
    assert trio.current_time() == 4
    assert node.workers.states.should_pod_content_be_removed("1")
    assert node.syncer.of("1")[1] == (1, "terminate", 1)


@pytest.mark.parametrize(("override", "seconds"), [(None, 45), (2, 10), (20, 30)])
async def test_a_killer_does_not_wait_for_ever(
    node: Node, autojump_clock: MockClock, override: int | None, seconds: float
) -> None:
    pod = make_pod("1", grace=30)
    node.syncer.behaviours["terminate", "1"] = sleeping(1000)
    node.workers.update_pod(request(CREATE, pod))
    with pytest.raises(KillTimeoutError) as info:
        await node.workers.kill_pod(pod, grace_period_override=override)
    assert (info.value.seconds, info.value.uid) == (seconds, "1")
    assert trio.current_time() == seconds
    assert {event.reason for event in node.recorder.events_of("1")} <= {"ExceededGracePeriod", "StuckTerminating"}
    assert "ExceededGracePeriod" in {event.reason for event in node.recorder.events_of("1")}
    assert isinstance(node.workers.states.phase("1"), Terminating)


async def test_a_killer_of_an_unknown_pod_is_not_kept_waiting_by_a_drain(node: Node, autojump_clock: MockClock) -> None:
    await node.workers.drain(1)
    await node.workers.kill_pod(make_pod("1"))
    assert trio.current_time() < 1


async def test_statistics_count_phases_works_and_latencies(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["sync", "1"] = sleeping(2)
    node.workers.update_pod(request(CREATE, make_pod("1", "one"), start_time=-1))
    node.workers.update_pod(request(CREATE, make_pod("2", "two")))
    node.workers.update_pod(request(KILL, make_pod("2", "two")))
    await trio.sleep(1)
    statistics = node.workers.statistics()
    assert (statistics.syncing, statistics.finished, statistics.in_flight, statistics.tasks) == (1, 1, 1, 1)
    assert statistics.works == {"SyncPod": 1, "TerminatePod": 1, "CleanUpPod": 1}
    await trio.sleep(2)
    latencies = node.workers.statistics().latencies
    assert (latencies["create"].count, latencies["create"].seconds) == (1, 3)
    assert dict(zip(LATENCY_BOUNDS, latencies["create"].at_most, strict=True))[2.5] == 0
    assert dict(zip(LATENCY_BOUNDS, latencies["create"].at_most, strict=True))[5.0] == 1
    assert latencies["kill"].count == 1
    assert isinstance(node.workers.states.phase("1"), Syncing)


async def test_a_thousand_updates_at_once_cost_at_most_two_syncs(node: Node, autojump_clock: MockClock) -> None:
    node.syncer.behaviours["sync", "1"] = sleeping(1)
    node.workers.update_pod(request(CREATE, make_pod("1")))
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(1000):
        node.workers.update_pod(request(SYNC, make_pod("1")))
    await trio.sleep(10)
    assert node.syncer.kinds("1") == ["sync", "sync"]
