"""Inspections, the cache and relists on a mock clock, with a runtime that a test scripts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from trikubelet.broadcast import Broadcast
from trikubelet.container.model import (
    ContainerID,
    ContainerState,
    ContainerStatus,
    PodRuntimeStatus,
    RunningPod,
    RuntimeContainer,
    SandboxStatus,
)
from trikubelet.pleg.lifecycle import LifecycleEventType, PodLifecycleEvent
from trikubelet.pleg.pleg import Pleg
from trikubelet.pleg.relist import LONGEST_PERIOD, PERIOD_ALONE, RELIST_TIMEOUT, UNHEALTHY_AFTER, Relist
from trikubelet.supervision import follow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trio.testing import MockClock


@attrs.define
class ScriptedRuntime:
    """Containers by pod UID; every call takes `delay`, or fails with `error`."""

    pods: dict[str, dict[str, ContainerState]] = attrs.field(factory=dict)
    delay: float = 0.0
    list_delay: float = 0.0
    error: Exception | None = None
    lists: int = 0
    inspections: list[str] = attrs.field(factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def get_pods(self, *, all: bool = False) -> list[RunningPod]:  # noqa: A002
        self.lists += 1
        await trio.sleep(self.list_delay)
        if self.error is not None:
            raise self.error
        return [
            RunningPod(
                uid=uid,
                name=uid,
                namespace="default",
                containers=tuple(
                    RuntimeContainer(ContainerID("test", name), name, state) for name, state in containers.items()
                ),
            )
            for uid, containers in self.pods.items()
        ]

    async def get_pod_status(
        self, uid: str, name: str, namespace: str, contents: Mapping[str, str] | None = None
    ) -> PodRuntimeStatus:
        self.inspections.append(uid)
        began = trio.current_time()
        seen = dict(self.pods.get(uid, {}))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await trio.sleep(self.delay)
        finally:
            self.in_flight -= 1
        if self.error is not None:
            raise self.error
        return PodRuntimeStatus(
            uid=uid,
            name=uid,
            namespace="default",
            container_statuses=tuple(
                ContainerStatus(ContainerID("test", container), container, state) for container, state in seen.items()
            ),
            observed_at=began,
        )


async def drain(pleg: Pleg) -> None:
    async for _ in pleg.events:
        pass


def states(status: PodRuntimeStatus) -> dict[str, ContainerState]:
    return {container.name: container.state for container in status.container_statuses}


async def test_a_reader_who_needs_news_gets_an_inspection_at_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, delay=0.01)
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    asked = trio.current_time()
    status = await pleg.cache.get_newer_than("a", asked)
    assert states(status) == {"c": ContainerState.RUNNING}
    assert trio.current_time() - asked == pytest.approx(0.01)


async def test_without_demand_who_needs_news_waits_for_the_next_second(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """As with a kubelet whose gate PLEGOnDemandRelist is off."""
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, delay=0.01)
    pleg = Pleg(runtime, on_demand=False)
    began = trio.current_time()
    await nursery.start(pleg.run)
    nursery.start_soon(drain, pleg)
    await trio.sleep(0.3)
    with pleg.acting("a"):
        pass
    assert pleg.is_busy_with("a")
    await pleg.cache.get_newer_than("a", trio.current_time())
    assert trio.current_time() - began == pytest.approx(1.01)
    assert runtime.inspections == ["a"]
    await trio.testing.wait_all_tasks_blocked()
    assert not pleg.is_busy_with("a")
    pleg.inspect_soon("a")  # a source tells
    await trio.sleep(0.02)
    assert runtime.inspections == ["a", "a"]


async def test_readers_of_one_pod_share_an_inspection(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, delay=0.01)
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    asked = trio.current_time()
    async with trio.open_nursery() as readers:
        for _ in range(50):
            readers.start_soon(pleg.cache.get_newer_than, "a", asked)
    assert runtime.inspections == ["a"]


async def test_a_request_during_an_inspection_makes_one_more(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, delay=1)
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    pleg.inspect_soon("a")
    await trio.sleep(0.5)
    runtime.pods["a"]["c"] = ContainerState.EXITED
    pleg.inspect_soon("a")
    pleg.inspect_soon("a")
    status = await pleg.cache.get_newer_than("a", trio.current_time())
    assert states(status) == {"c": ContainerState.EXITED}
    assert runtime.inspections == ["a", "a"]
    assert runtime.most_in_flight == 1


async def test_what_happened_before_an_inspection_began_needs_no_second_one(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, delay=1)
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    await trio.sleep(10)
    pleg.inspect_soon("a", 9)
    await trio.sleep(0.5)
    pleg.inspect_soon("a", 10)  # in flight since then
    await trio.sleep(1)
    pleg.inspect_soon("a", 10)  # over
    await trio.sleep(2)
    assert runtime.inspections == ["a"]
    pleg.inspect_soon("a", 10.1)
    await trio.sleep(0.5)
    pleg.inspect_soon("a", 13.9)
    await trio.sleep(5)
    assert runtime.inspections == ["a", "a", "a"]


async def test_what_happened_before_a_failed_inspection_needs_another(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime(error=OSError("no runtime"))
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    await trio.sleep(1)
    for _ in range(2):
        pleg.inspect_soon("a", 0.5)
        await trio.sleep(1)
    assert runtime.inspections == ["a", "a"]


async def test_while_a_worker_acts_only_readers_make_inspections(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}})
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    with pleg.acting("a"):
        pleg.inspect_soon("a")
        await trio.sleep(1)
        assert runtime.inspections == []
        await pleg.cache.get_newer_than("a", trio.current_time())
        assert runtime.inspections == ["a"]
        pleg.inspect_soon("a")
    await trio.sleep(1)
    assert runtime.inspections == ["a", "a"]
    with pleg.acting("a") as action:
        action.changed = False
    await trio.sleep(1)
    assert runtime.inspections == ["a", "a"], "nobody spoke of it, and nothing was changed"
    with pleg.acting("a"):
        pass
    await trio.sleep(1)
    assert runtime.inspections == ["a", "a", "a"], "what was done has to be seen"


async def test_an_end_is_looked_for_until_the_runtime_knows_it_and_not_while_a_worker_acts(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, delay=0.01)
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)

    async def act() -> None:
        with pleg.acting("a"):
            await trio.sleep(3)
            assert runtime.inspections == []

    async def end() -> None:
        await trio.sleep(3.1)
        runtime.pods["a"]["c"] = ContainerState.EXITED

    nursery.start_soon(act)
    nursery.start_soon(end)
    await trio.testing.wait_all_tasks_blocked()
    await pleg.until_runtime_knows_end("a", "c")
    assert trio.current_time() == pytest.approx(3.15, abs=0.05)
    assert states(pleg.cache.get("a")) == {"c": ContainerState.EXITED}


async def test_an_end_that_the_inspection_in_flight_sees_makes_no_other(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.EXITED, "d": ContainerState.RUNNING}}, delay=1)
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    pleg.inspect_soon("a")
    await trio.sleep(0.5)
    pleg.container_ended("a", "c")
    await trio.sleep(2)
    pleg.container_ended("a", "c")  # told again, by another source
    await trio.sleep(2)
    assert runtime.inspections == ["a"]
    pleg.inspect_soon("a")
    await trio.sleep(0.5)
    runtime.pods["a"]["d"] = ContainerState.EXITED  # too late for this inspection
    pleg.container_ended("a", "d")
    await trio.sleep(2)
    assert runtime.inspections == ["a"] * 3
    assert states(pleg.cache.get("a")) == {"c": ContainerState.EXITED, "d": ContainerState.EXITED}
    pleg.container_ended("a", "born and ended since")
    await trio.sleep(2)
    assert runtime.inspections == ["a"] * 4


async def test_an_end_heard_of_during_an_inspection_that_fails_is_looked_for_again(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.EXITED}}, delay=1, error=OSError("away"))
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    pleg.inspect_soon("a")
    await trio.sleep(0.5)
    pleg.container_ended("a", "c")
    await trio.sleep(1)
    runtime.error = None
    await trio.sleep(2)
    assert states(pleg.cache.get("a")) == {"c": ContainerState.EXITED}


async def test_the_removal_of_what_had_ended_needs_no_inspection(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.EXITED, "d": ContainerState.RUNNING}})
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    await pleg.cache.get_newer_than("a", 0)
    assert len(await pleg.events.receive()) == 2
    assert pleg.cache.pod_of("c") == "a"
    pleg.container_removed("a", "c", 0)
    assert states(pleg.cache.get("a")) == {"d": ContainerState.RUNNING}
    assert await pleg.events.receive() == [PodLifecycleEvent("a", LifecycleEventType.CONTAINER_REMOVED, "c")]
    assert pleg.cache.pod_of("c") is None
    assert runtime.inspections == ["a"]
    del runtime.pods["a"]
    await trio.sleep(1)
    pleg.container_removed("a", "d", 1)
    assert [event.type for event in await pleg.events.receive()] == [
        LifecycleEventType.CONTAINER_DIED,
        LifecycleEventType.CONTAINER_REMOVED,
    ]
    assert runtime.inspections == ["a", "a"]


async def test_a_removal_during_an_inspection_is_looked_at_afterwards(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.EXITED}})
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    await pleg.cache.get_newer_than("a", 0)
    runtime.delay = 1
    pleg.inspect_soon("a")
    await trio.sleep(0.5)
    del runtime.pods["a"]
    pleg.container_removed("a", "c", trio.current_time())
    await trio.sleep(3)
    assert states(pleg.cache.get("a")) == {}


async def test_a_cancelled_reader_disturbs_no_other(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, delay=1)
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    with trio.move_on_after(0.1):
        await pleg.cache.get_newer_than("a", trio.current_time())
    with trio.fail_after(2):
        await pleg.cache.get_newer_than("a", 0)
    assert runtime.inspections == ["a"]


async def test_a_failed_inspection_reaches_the_reader_and_is_asked_again_by_the_next_relist(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}})
    pleg = Pleg(runtime)
    relist = Relist(pleg, runtime, lambda: False)
    await nursery.start(pleg.run)
    await nursery.start(relist.run)
    await trio.sleep(0.5)
    runtime.error = OSError("the runtime is away")
    with pytest.raises(OSError, match="is away"):
        await pleg.cache.get_newer_than("a", trio.current_time())
    runtime.error = None
    await trio.sleep(2 * PERIOD_ALONE)
    assert states(pleg.cache.get("a")) == {"c": ContainerState.RUNNING}


async def test_events_come_in_order_after_the_cache_knows_and_none_is_lost_to_a_slow_reader(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    uids = [f"pod-{number}" for number in range(200)]
    runtime = ScriptedRuntime({uid: {"c": ContainerState.RUNNING} for uid in uids})
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    for uid in uids:
        pleg.inspect_soon(uid)
    await trio.sleep(1)
    started: list[str] = []
    while len(started) < len(uids):
        events = await pleg.events.receive()
        for event in events:
            assert event.type is LifecycleEventType.CONTAINER_STARTED
            assert states(pleg.cache.get(event.uid)) == {"c": ContainerState.RUNNING}
            started.append(event.uid)
        await trio.sleep(0.01)
    assert sorted(started) == sorted(uids)


async def test_a_relist_finds_a_death_and_a_removal_that_nobody_told_of(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}})
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    await nursery.start(Relist(pleg, runtime, lambda: False).run)
    assert await pleg.events.receive() == [PodLifecycleEvent("a", LifecycleEventType.CONTAINER_STARTED, "c")]
    runtime.pods["a"]["c"] = ContainerState.EXITED
    assert await pleg.events.receive() == [PodLifecycleEvent("a", LifecycleEventType.CONTAINER_DIED, "c")]
    del runtime.pods["a"]
    assert await pleg.events.receive() == [PodLifecycleEvent("a", LifecycleEventType.CONTAINER_REMOVED, "c")]
    await trio.sleep(2 * PERIOD_ALONE)
    assert pleg.cache.statistics().pods == 0


async def test_a_pod_that_ran_before_the_agent_is_never_taken_for_absent(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, list_delay=5)
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    nursery.start_soon(Relist(pleg, runtime, lambda: False).run)
    assert states(await pleg.cache.get_newer_than("a", 0)) == {"c": ContainerState.RUNNING}


async def test_a_pod_that_no_list_held_needs_no_inspection(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    runtime = ScriptedRuntime()
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    await nursery.start(Relist(pleg, runtime, lambda: False).run)
    assert states(await pleg.cache.get_newer_than("new", 0)) == {}
    assert runtime.inspections == []


async def test_news_of_a_pod_that_is_not_there_take_one_inspection(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime()
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    await nursery.start(Relist(pleg, runtime, lambda: False).run)
    await trio.sleep(0.5)
    assert states(await pleg.cache.get_newer_than("absent", trio.current_time())) == {}
    assert runtime.inspections == ["absent"]
    await trio.sleep(10)
    assert runtime.inspections == ["absent"]
    assert pleg.cache.statistics().pods == 0


async def test_a_hanging_list_makes_pleg_unhealthy_and_recovers(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime()
    pleg = Pleg(runtime)
    relist = Relist(pleg, runtime, lambda: False)
    assert relist.unhealthy_reason() == "pleg has yet to be successful"
    await nursery.start(pleg.run)
    await nursery.start(relist.run)
    assert relist.unhealthy_reason() is None
    runtime.list_delay = 1e6
    await trio.sleep(UNHEALTHY_AFTER + 2)
    reason = relist.unhealthy_reason()
    assert reason is not None
    assert "threshold is 180s" in reason
    runtime.list_delay = 0
    await trio.sleep(2 * RELIST_TIMEOUT)
    assert relist.unhealthy_reason() is None


async def test_healthy_event_sources_slow_the_relists_down(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}})
    healthy = True
    pleg = Pleg(runtime)
    relist = Relist(pleg, runtime, lambda: healthy)
    nursery.start_soon(drain, pleg)
    await nursery.start(pleg.run)
    await nursery.start(relist.run)
    await trio.sleep(300)
    assert runtime.lists == pytest.approx(6 + 4, abs=1), "after 1, 2, 4 … 60 s, then once a minute"
    lists = runtime.lists
    runtime.pods["a"]["c"] = ContainerState.EXITED  # no source told of it
    await trio.sleep(LONGEST_PERIOD + 5)
    assert states(pleg.cache.get("a")) == {"c": ContainerState.EXITED}
    assert runtime.lists >= lists + 2, "after a miss they come often again"
    healthy = False
    relist.relist_soon()
    lists = runtime.lists
    await trio.sleep(10.5)
    assert runtime.lists >= lists + 10


async def test_what_a_worker_is_about_to_look_at_is_no_miss(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    runtime = ScriptedRuntime({"a": {}})
    pleg = Pleg(runtime)
    relist = Relist(pleg, runtime, lambda: True)
    nursery.start_soon(drain, pleg)
    await nursery.start(pleg.run)
    await nursery.start(relist.run)
    with pleg.acting("a"):
        for number in range(100):
            runtime.pods["a"][f"c{number}"] = ContainerState.RUNNING
            await trio.sleep(1)
    assert runtime.lists < 10


async def test_relists_that_are_switched_off_come_only_when_needed(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}})
    pleg = Pleg(runtime)
    relist = Relist(pleg, runtime, lambda: False, periodic=False)
    nursery.start_soon(drain, pleg)
    await nursery.start(pleg.run)
    await nursery.start(relist.run)
    await trio.sleep(10_000)
    assert runtime.lists == 1
    assert relist.unhealthy_reason() is None
    runtime.error = OSError("away")
    relist.relist_soon()
    await trio.sleep(UNHEALTHY_AFTER - 5)
    assert runtime.lists > UNHEALTHY_AFTER / 2
    assert relist.unhealthy_reason() is None
    await trio.sleep(10)
    assert relist.unhealthy_reason() is not None
    runtime.error = None
    await trio.sleep(5)
    assert relist.unhealthy_reason() is None


async def test_who_waits_for_the_runtime_is_told_when_lists_work_again(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime()
    told: list[float] = []
    pleg = Pleg(runtime)
    recovered: Broadcast[None] = Broadcast()
    relist = Relist(pleg, runtime, lambda: False, recovered)
    nursery.start_soon(follow, recovered.subscribe(), lambda _: told.append(trio.current_time()))
    await nursery.start(pleg.run)
    await nursery.start(relist.run)
    runtime.error = OSError("connection lost")
    await trio.sleep(3.5)
    runtime.error = None
    await trio.sleep(5)
    assert told == [pytest.approx(4, abs=0.1)]


async def test_what_relied_on_an_inspection_that_failed_makes_another(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    runtime = ScriptedRuntime({"a": {"c": ContainerState.RUNNING}}, delay=1, error=OSError("internal"))
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    pleg.inspect_soon("a")
    await trio.sleep(0.5)
    pleg.inspect_soon("a", 0)
    await trio.sleep(0.7)
    runtime.error = None
    await trio.sleep(5)
    assert runtime.inspections == ["a", "a"]
    status = pleg.cache.last_seen("a")
    assert status is not None
    assert states(status) == {"c": ContainerState.RUNNING}


@attrs.define
class OneSandbox(ScriptedRuntime):
    """Each pod has one sandbox, with an address as long as it is ready."""

    ready: bool = True

    async def get_pod_status(
        self, uid: str, name: str, namespace: str, contents: Mapping[str, str] | None = None
    ) -> PodRuntimeStatus:
        status = await super().get_pod_status(uid, name, namespace, contents)
        sandbox = SandboxStatus(id="s", attempt=0, ready=self.ready, created_at=datetime(2026, 1, 1, tzinfo=UTC))
        return attrs.evolve(status, ips=("10.0.0.1",) if self.ready else (), sandbox_statuses=(sandbox,))


async def test_a_pod_that_has_ended_keeps_its_addresses(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    runtime = OneSandbox({"a": {"c": ContainerState.EXITED}})
    pleg = Pleg(runtime)
    await nursery.start(pleg.run)
    nursery.start_soon(drain, pleg)
    assert (await pleg.cache.get_newer_than("a", trio.current_time())).ips == ("10.0.0.1",)
    runtime.ready = False
    await trio.sleep(1)
    assert (await pleg.cache.get_newer_than("a", trio.current_time())).ips == ("10.0.0.1",)
    assert (await pleg.cache.get_newer_than("b", trio.current_time())).ips == (), "of another nothing was ever seen"
    nursery.cancel_scope.cancel()
