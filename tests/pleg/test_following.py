"""Pods that are inspected by the ids of what they hold: when that is so, and that nothing of a pod is missed by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pytest
import structlog
import trio

from tests.examples import examples
from trikubelet.container.model import (
    ContainerID,
    ContainerState,
    ContainerStatus,
    PodRuntimeStatus,
    RunningPod,
    RuntimeContainer,
    SandboxStatus,
    contents,
)
from trikubelet.pleg.pleg import Pleg
from trikubelet.pleg.relist import Relist
from trikubelet.runtime.observe import Observer
from trikubelet.sim.life import LifeOptions, ProgrammedLife
from trikubelet.sim.node import run_deterministically

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trio.testing import MockClock

    from trikubelet.sim.machine import Change

MINUTES: Final = examples(30)
RUNNING, EXITED = ContainerState.RUNNING, ContainerState.EXITED


@attrs.define
class OnePod:
    """A runtime that holds one pod, `a`, and keeps by what it was inspected: ids, or None for lists."""

    containers: dict[str, ContainerState] = attrs.field(factory=dict)
    sandboxes: list[str] = attrs.field(factory=list)
    asked: list[set[str] | None] = attrs.field(factory=list)
    error: Exception | None = None
    delay: float = 0.0

    async def get_pods(self, *, all: bool = False) -> list[RunningPod]:  # noqa: A002
        await trio.lowlevel.checkpoint()
        states = {**self.containers, **dict.fromkeys(self.sandboxes, RUNNING)}
        listed = tuple(RuntimeContainer(ContainerID("test", one), one, state) for one, state in states.items())
        return [RunningPod("a", "a", "default", containers=listed)] if listed else []

    async def get_pod_status(
        self, uid: str, name: str, namespace: str, contents: Mapping[str, str] | None = None
    ) -> PodRuntimeStatus:
        self.asked.append(None if contents is None else set(contents))
        await trio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        seen = self.containers if contents is None else {one: self.containers[one] for one in contents if one in "cde"}
        return PodRuntimeStatus(
            uid,
            name,
            namespace,
            container_statuses=tuple(
                ContainerStatus(ContainerID("test", one), one, state, pod_sandbox_id="s") for one, state in seen.items()
            ),
            sandbox_statuses=tuple(SandboxStatus(one, 0, True) for one in self.sandboxes),
        )


@attrs.define
class Stage:
    runtime: OnePod
    pleg: Pleg

    def start(self, *containers: str, told: bool = True) -> None:
        """A worker starts containers, with a sandbox before the first one; `told`: every call was answered."""
        with self.pleg.acting("a") as action:
            made = dict.fromkeys(containers, "s")
            if not self.runtime.sandboxes:
                self.runtime.sandboxes.append("s")
                made["s"] = "s"
            self.runtime.containers.update(dict.fromkeys(containers, RUNNING))
            action.made = made if told else None

    async def look(self) -> PodRuntimeStatus:
        try:
            return await self.pleg.cache.get_newer_than("a", trio.current_time())
        finally:
            await trio.sleep(0.001)  # so that the next look asks for something newer


@pytest.fixture
async def stage(autojump_clock: MockClock, nursery: trio.Nursery) -> Stage:
    runtime = OnePod()
    pleg = Pleg(runtime)

    async def drain() -> None:
        async for _ in pleg.events:
            pass

    nursery.start_soon(drain)
    await nursery.start(pleg.run)
    return Stage(runtime, pleg)


async def test_a_pod_that_the_agent_alone_made_is_asked_for_by_ids(autojump_clock: MockClock, stage: Stage) -> None:
    stage.start("c")
    assert contents(await stage.look()) == {"s": "s", "c": "s"}
    await trio.sleep(1)
    stage.start("d")
    assert contents(await stage.look()) == {"s": "s", "c": "s", "d": "s"}
    await trio.sleep(1)
    stage.pleg.container_ended("a", "c")
    await trio.sleep(1)
    assert stage.runtime.asked == [{"s", "c"}, {"s", "c", "d"}, {"s", "c", "d"}]


async def test_a_pod_that_was_there_before_is_listed(autojump_clock: MockClock, stage: Stage) -> None:
    stage.runtime.sandboxes.append("s")
    stage.runtime.containers["c"] = RUNNING
    await stage.look()
    stage.start("d")
    await stage.look()
    assert stage.runtime.asked == [None, None]


@pytest.mark.parametrize("how", ["not told", "cancelled", "raised"])
async def test_a_pod_is_listed_for_ever_after_an_action_that_may_have_made_more(
    autojump_clock: MockClock, stage: Stage, how: str
) -> None:
    stage.start("c")
    await stage.look()
    if how == "not told":
        stage.start("d", told=False)
    elif how == "cancelled":
        with trio.move_on_after(1), stage.pleg.acting("a"):
            stage.runtime.containers["d"] = RUNNING
            await trio.sleep(2)
    else:
        stage.runtime.containers["d"] = RUNNING
        with pytest.raises(ValueError, match="no answer"), stage.pleg.acting("a"):
            raise ValueError("no answer")
    assert set(contents(await stage.look())) == {"s", "c", "d"}
    await trio.sleep(1)
    stage.start("e")
    await stage.look()
    await trio.sleep(1)
    stage.pleg.container_ended("a", "e")
    await trio.sleep(1)
    assert stage.runtime.asked == [{"s", "c"}, None, None, None]


async def test_a_pod_is_listed_after_an_inspection_that_failed(autojump_clock: MockClock, stage: Stage) -> None:
    stage.start("c")
    stage.runtime.error = ValueError("away")
    with pytest.raises(ValueError, match="away"):
        await stage.look()
    stage.runtime.error = None
    await stage.look()
    assert stage.runtime.asked == [{"s", "c"}, None]


@pytest.mark.parametrize(("container", "asked"), [("d", {"s", "c", "d"}), ("foreign", None), ("", None)])
async def test_what_sources_say_meanwhile_makes_a_list_when_the_agent_did_not_make_it(
    autojump_clock: MockClock, stage: Stage, container: str, asked: set[str] | None
) -> None:
    stage.start("c")
    await stage.look()
    await trio.sleep(1)
    with stage.pleg.acting("a") as action:
        stage.pleg.inspect_soon("a", trio.current_time(), container)
        stage.runtime.containers["d"] = RUNNING
        action.made = {"d": "s"}
    await trio.sleep(1)
    assert stage.runtime.asked == [{"s", "c"}, asked]


@pytest.mark.parametrize("delay", [0.0, 0.5])
async def test_an_unknown_container_is_looked_for_though_the_pod_was_looked_at_since(
    autojump_clock: MockClock, stage: Stage, delay: float
) -> None:
    """By its ids: so it was not seen. `delay`: the inspection is under way."""
    stage.start("c")
    await stage.look()
    await trio.sleep(1)
    happened_at = trio.current_time()
    stage.runtime.containers["d"] = RUNNING
    stage.runtime.delay = delay
    stage.pleg.container_ended("a", "c")
    await trio.sleep(0.1)
    stage.pleg.inspect_soon("a", happened_at, "d")
    await trio.sleep(2)
    assert stage.runtime.asked == [{"s", "c"}, {"s", "c"}, None]
    assert set(contents(stage.pleg.cache.get("a"))) == {"s", "c", "d"}


async def test_a_relist_that_finds_another_container_has_the_pod_listed(
    autojump_clock: MockClock, stage: Stage, nursery: trio.Nursery
) -> None:
    stage.start("c")
    await stage.look()
    await trio.sleep(1)
    stage.runtime.containers["foreign"] = RUNNING
    await nursery.start(Relist(stage.pleg, stage.runtime, lambda: True).run)
    await trio.sleep(0.1)
    assert stage.runtime.asked == [{"s", "c"}, None]
    assert set(contents(stage.pleg.cache.get("a"))) == {"s", "c", "foreign"}


async def test_a_reader_beside_an_action_sees_what_it_has_made_so_far(autojump_clock: MockClock, stage: Stage) -> None:
    stage.start("c")
    await stage.look()
    await trio.sleep(1)
    with stage.pleg.acting("a") as action:
        stage.runtime.containers["d"] = RUNNING
        await trio.sleep(1)
        assert set(contents(await stage.look())) == {"s", "c", "d"}
        action.made = {"d": "s"}
    await stage.look()
    assert stage.runtime.asked == [{"s", "c"}, None, {"s", "c", "d"}]


async def test_what_is_removed_while_the_pod_is_inspected_does_not_stay(
    autojump_clock: MockClock, stage: Stage
) -> None:
    stage.start("c", "d")
    stage.runtime.containers["c"] = EXITED
    await stage.look()
    await trio.sleep(1)
    stage.runtime.delay = 0.5
    stage.pleg.container_ended("a", "d")
    await trio.sleep(0.1)
    del stage.runtime.containers["c"]
    stage.pleg.container_removed("a", "c", trio.current_time())
    stage.runtime.containers.setdefault("c", EXITED)  # as one that is remembered, and not asked for
    await trio.sleep(0.4)
    del stage.runtime.containers["c"]
    await trio.sleep(2)
    assert stage.runtime.asked == [{"s", "c", "d"}, {"s", "c", "d"}, None]
    assert set(contents(stage.pleg.cache.get("a"))) == {"s", "d"}


async def test_nothing_is_kept_of_a_pod_that_is_gone(autojump_clock: MockClock, stage: Stage) -> None:
    stage.start("c")
    await stage.look()
    stage.runtime.containers["c"] = EXITED
    stage.runtime.sandboxes.clear()
    await trio.sleep(1)
    stage.pleg.inspect_soon("a")
    await trio.sleep(1)
    stage.pleg.container_removed("a", "c", trio.current_time())
    assert contents(stage.pleg.cache.get("a")) == {}
    assert not stage.pleg._followed
    assert not stage.pleg._made


@pytest.mark.parametrize("events", [True, False])
def test_over_a_life_with_faults_nothing_of_a_pod_is_missed_or_made_up(
    events: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each inspection by ids is compared with what the simulated runtime truly holds. Beside the weather's faults, one
    call in ten that makes something does so without an answer."""
    life = ProgrammedLife(LifeOptions(pods=10, hours=MINUTES / 60, seed=23, faults=True, mean_pod_hours=0.05))
    life.sim.events.supported = events
    compared = 0
    wrong: list[tuple[float, str, set[str], set[str]]] = []
    inspect = Observer.pod_status

    rng = life.random("lost replies")

    def lose_replies(_change: Change) -> None:
        if rng.random() < 1 / 10:
            life.sim.faults.lose_next_reply(rng.choice(["RunPodSandbox", "CreateContainer", "StartContainer"]))

    life.sim.machine.observers.append(lose_replies)

    def truth(uid: str) -> set[str]:
        machine = life.sim.machine
        sandboxes = [one for one in machine.sandboxes.values() if one.config.metadata.uid == uid]
        return {one.id for one in sandboxes} | {inner for one in sandboxes for inner in one.containers}

    async def compare(
        self: Observer, runtime: str, uid: str, name: str, namespace: str, known: Mapping[str, str] | None = None
    ) -> PodRuntimeStatus:
        nonlocal compared
        before = truth(uid)
        status = await inspect(self, runtime, uid, name, namespace, known)
        if known is not None:
            compared += 1
            seen = set(contents(status))
            missed, made_up = (before & truth(uid)) - seen, seen - (before | truth(uid))
            if missed or made_up:
                wrong.append((trio.current_time(), uid, missed, made_up))
        return status

    monkeypatch.setattr(Observer, "pod_status", compare)
    with structlog.testing.capture_logs():
        run_deterministically(life.run, seed=23)
    assert wrong == []
    assert compared > 20
