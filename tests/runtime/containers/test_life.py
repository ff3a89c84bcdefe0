"""The ends of a pod's containers: who asks, how often, with how much time, and what is left afterwards."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio
import trio.testing

from trikubelet.api import Container, ExecAction, Lifecycle, LifecycleHandler, ObjectMeta, Pod, PodSpec
from trikubelet.clock import TrioClock
from trikubelet.container.model import ContainerID, ContainerState, PodRuntimeStatus, RunningPod, RuntimeContainer
from trikubelet.runtime.containers.life import PodContainers
from trikubelet.runtime.kill import Grace, Killer
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock


@attrs.define
class FakeRuntime:
    """Containers ignore their signal, so they end when their time is over; and each answer comes when it was due."""

    stops: list[tuple[float, str, int]] = attrs.field(factory=list)
    hang: frozenset[str] = frozenset()
    """Of these no stop is ever answered, and none ends."""

    async def stop_container(self, container_id: str, seconds: int) -> None:
        self.stops.append((trio.current_time(), container_id, seconds))
        await trio.sleep(math.inf if container_id in self.hang else seconds)

    async def stop_pod_sandbox(self, _sandbox_id: str) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define
class FakeHooks:
    """Each takes a very long time."""

    begun: list[str] = attrs.field(factory=list)
    cut: list[float] = attrs.field(factory=list)

    async def run(self, container_id: str, *_: object) -> None:
        self.begun.append(container_id)
        try:
            await trio.sleep_forever()
        finally:
            self.cut.append(trio.current_time())


@attrs.define
class FakeProbes:
    probed: frozenset[str] = frozenset()
    running: set[str] = attrs.field(factory=set)

    def has(self, container: str) -> bool:
        return container in self.probed

    async def run(self, container: str) -> None:
        self.running.add(container)
        try:
            await trio.sleep_forever()
        finally:
            self.running.discard(container)

    def stop_liveness_and_startup(self, container: str) -> None: ...


@attrs.define
class Stage:
    runtime: FakeRuntime
    hooks: FakeHooks
    probes: FakeProbes
    recorder: EventRecorder
    containers: PodContainers
    nursery: trio.Nursery
    """Where the kills of a test run."""
    ended_at: dict[str, float] = attrs.field(factory=dict)
    began: float = attrs.field(factory=trio.current_time)

    def kill(self, pod: Pod, seconds: float, name: str = "main") -> None:
        """Begin to end a container, which has so many seconds."""

        async def end() -> None:
            deadline = trio.current_time() + seconds
            assert not (await self.containers.kill_container(pod, name, name, deadline=deadline)).failed
            self.ended_at[name] = trio.current_time() - self.began

        self.nursery.start_soon(end)

    def asked(self) -> list[tuple[float, int]]:
        """When and with how many seconds the runtime was asked to stop something."""
        return [(round(at - self.began, 1), seconds) for at, _, seconds in self.runtime.stops]


@asynccontextmanager
async def stage_with(*, probed: str = "", hang: str = "") -> AsyncIterator[Stage]:
    runtime, hooks = FakeRuntime(hang=frozenset({hang})), FakeHooks()
    recorder, probes = EventRecorder(TrioClock()), FakeProbes(frozenset({probed}))
    killer = Killer(cast("Any", runtime), recorder, cast("Any", hooks))
    async with trio.open_nursery() as life, trio.open_nursery() as kills:
        yield Stage(runtime, hooks, probes, recorder, PodContainers(life, killer, probes), kills)
        kills.cancel_scope.cancel()
        life.cancel_scope.cancel()


def container(name: str, *, hook: bool = False, **fields: Any) -> Container:
    handler = LifecycleHandler(exec=ExecAction(command=("drain",)))
    return Container(name=name, image="i", lifecycle=Lifecycle(pre_stop=handler) if hook else None, **fields)


def pod_of(*containers: Container, init_containers: tuple[Container, ...] = ()) -> Pod:
    spec = PodSpec(containers=containers, init_containers=init_containers, termination_grace_period_seconds=30)
    return Pod(metadata=ObjectMeta(uid="u", name="web", namespace="ns"), spec=spec)


POD = pod_of(container("main"))
WITH_HOOK = pod_of(container("main", hook=True))


def running(*names: str) -> RunningPod:
    containers = tuple(
        RuntimeContainer(id=ContainerID("test", name), name=name, state=ContainerState.RUNNING) for name in names
    )
    return RunningPod(uid="u", name="web", namespace="ns", containers=containers)


async def test_less_time_reaches_the_stop_that_is_under_way_and_its_answer_is_enough(autojump_clock: MockClock) -> None:
    async with stage_with() as stage:
        stage.kill(POD, 30)
        await trio.sleep(5)
        stage.containers.shorten_grace(trio.current_time() + 4)
        await trio.sleep(100)
        assert stage.asked() == [(0, 30), (5, 4)]
        assert stage.ended_at == {"main": 9}


async def test_more_time_changes_nothing(autojump_clock: MockClock) -> None:
    async with stage_with() as stage:
        stage.kill(POD, 10)
        await trio.sleep(5)
        stage.containers.shorten_grace(trio.current_time() + 60)
        stage.kill(POD, 60)
        await trio.sleep(100)
        assert stage.asked() == [(0, 10)]
        assert stage.ended_at == {"main": 10}


@pytest.mark.parametrize("later", [None, 60])
async def test_less_time_counts_for_what_begins_later(autojump_clock: MockClock, later: float | None) -> None:
    async with stage_with() as stage:
        stage.containers.shorten_grace(trio.current_time() + 10)
        if later is not None:
            stage.containers.shorten_grace(trio.current_time() + later)
        await trio.sleep(3)
        stage.kill(POD, 30)
        await trio.sleep(100)
        assert stage.asked() == [(3, 7)]


async def test_who_asks_for_an_end_that_is_under_way_joins_and_hastens_it(autojump_clock: MockClock) -> None:
    async with stage_with() as stage:
        stage.kill(WITH_HOOK, 30)
        await trio.sleep(3)
        stage.kill(WITH_HOOK, 5)
        await trio.sleep(100)
        assert stage.hooks.begun == ["main"]
        assert stage.asked() == [(8, 2)]
        assert [at - stage.began for at in stage.hooks.cut] == [10], "it ends with its container"
        assert [event.reason for event in stage.recorder.events_of("u")] == ["Killing"]
        assert stage.ended_at == {"main": 10}


async def test_without_any_time_no_hook_is_begun(autojump_clock: MockClock) -> None:
    async with stage_with() as stage:
        stage.kill(WITH_HOOK, 0)
        await trio.sleep(100)
        assert stage.hooks.begun == []
        assert stage.asked() == [(0, 2)]


async def test_a_container_that_is_seen_to_have_ended_is_not_stopped_any_longer(autojump_clock: MockClock) -> None:
    async with stage_with(hang="main") as stage:
        stage.kill(POD, 30)
        await trio.sleep(5)
        stage.containers.follow(PodRuntimeStatus(uid="u", name="web", namespace="ns"))
        await trio.sleep(100)
        assert stage.ended_at == {"main": 5}


async def test_the_probes_of_a_container_end_with_it_and_nothing_is_kept_of_it(autojump_clock: MockClock) -> None:
    async with stage_with(probed="main") as stage:
        stage.kill(POD, 10)
        await trio.sleep(5)
        assert stage.probes.running == {"main"}
        await trio.sleep(10)
        assert stage.probes.running == set()
        stage.kill(POD, 10)
        await trio.sleep(100)
        assert stage.asked() == [(0, 10), (15, 10)], "it is one that nobody knows"


async def test_a_turn_that_never_comes_is_not_waited_for_beyond_the_grace(autojump_clock: MockClock) -> None:
    pod = pod_of(container("main"), init_containers=(container("side", restart_policy="Always"),))
    async with stage_with(hang="main") as stage:
        deadline = trio.current_time() + 10
        stage.nursery.start_soon(stage.containers.kill_pod, running("main", "side"), pod, deadline)
        await trio.sleep(100)
        asked = [(at - stage.began, name, seconds) for at, name, seconds in stage.runtime.stops]
        assert asked == [(0, "main", 10), (10, "side", 2)]


async def test_a_grace_period_ends_earlier_and_never_later(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    grace = Grace(began + 10)
    with grace.limit() as limit:
        grace.shorten(began + 20)
        assert (grace.deadline, limit.deadline) == (began + 10, began + 10)
        grace.shorten(began + 5)
        assert (grace.deadline, limit.deadline) == (began + 5, began + 5)
        await trio.sleep(100)
    assert limit.cancelled_caught
    assert trio.current_time() == began + 5
