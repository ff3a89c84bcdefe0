"""What the manager does beside deciding: it writes, and has other pods end for critical ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from tests.allocation.situations import simple_pod
from tests.allocation.stage import Stage
from trikubelet.allocation.metrics import PODS_REMOVED
from trikubelet.allocation.store import ALLOCATED_FILE, AllocationStore
from trikubelet.api import PodSecurityContext
from trikubelet.api.pod_kinds import SYSTEM_CRITICAL_PRIORITY
from trikubelet.linux.checkpoint import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import Pod

CRITICAL = SYSTEM_CRITICAL_PRIORITY
STRICT = PodSecurityContext(supplemental_groups_policy="Strict")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def in_file(stage: Stage) -> set[str]:
    return set(AllocationStore.open(stage.folder / ALLOCATED_FILE).uids())


async def until_written(stage: Stage) -> None:
    while not stage.store.is_durable:
        await trio.sleep(0.01)


async def test_what_pods_are_admitted_with_is_written_without_anybody_waiting(stage: Stage) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(stage.manager.run, stage.make_room)
        stage.add(simple_pod("pod1"), simple_pod("pod2"))
        assert not stage.store.is_durable
        with trio.fail_after(60):
            await until_written(stage)
        nursery.cancel_scope.cancel()
    assert in_file(stage) == {"pod1", "pod2"}


async def test_who_waits_for_a_granted_resize_finds_it_on_the_disk(stage: Stage) -> None:
    stage.add(simple_pod("pod1"))
    stage.change(simple_pod("pod1", "2"))
    await stage.manager.durable()
    stage.restart()
    assert stage.manager.allocated(simple_pod("pod1")).spec == simple_pod("pod1", "2").spec


async def test_an_agent_that_ends_writes_what_is_not_written_yet(stage: Stage) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(stage.manager.run, stage.make_room)
        stage.add(simple_pod("pod1"))
        nursery.cancel_scope.cancel()
    assert in_file(stage) == {"pod1"}


async def test_a_write_that_fails_keeps_a_resize_from_being_done_and_is_tried_again(
    stage: Stage, autojump_clock: MockClock
) -> None:
    path = stage.folder / ALLOCATED_FILE
    path.mkdir()
    stage.add(simple_pod("pod1"))
    async with trio.open_nursery() as nursery:
        await nursery.start(stage.manager.run, stage.make_room)
        stage.change(simple_pod("pod1", "2"))
        with pytest.raises(CheckpointError):
            await stage.manager.durable()
        await trio.sleep(100)
        assert not stage.store.is_durable
        path.rmdir()
        await trio.sleep(31)
        await stage.manager.durable()
        nursery.cancel_scope.cancel()
    assert in_file(stage) == {"pod1"}


@attrs.define(eq=False)
class Crowded(Stage):
    """A node on which others have to end for a critical pod, and take their time."""

    ended_for: list[tuple[str, list[str], str]] = attrs.field(factory=list)
    may_end: trio.Event = attrs.field(factory=trio.Event)
    fails: bool = False

    async def make_room(self, preemptor: Pod, victims: Sequence[Pod], resource: str) -> None:
        self.ended_for.append((preemptor.metadata.uid, [victim.metadata.uid for victim in victims], resource))
        assert all(victim is self.pods[victim.metadata.uid] for victim in victims), "by their specs"
        await self.may_end.wait()
        if self.fails:
            return
        for victim in victims:
            self.pods.pop(victim.metadata.uid, None)
            await self.manager.release(victim.metadata.uid)


async def crowded(tmp_path: Path, nursery: trio.Nursery) -> Crowded:
    stage = Crowded(tmp_path)
    await nursery.start(stage.manager.run, stage.make_room)
    stage.add(simple_pod("critical", priority=CRITICAL), simple_pod("small"), simple_pod("big", "2"))
    return stage


async def test_others_end_for_the_resize_of_a_critical_pod(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        stage = await crowded(tmp_path, nursery)
        # The one that ends wants something else too: it ends as what it is, not as what it has.
        stage.change(simple_pod("small", "5"))
        assert stage.change(simple_pod("critical", "2", priority=CRITICAL)) == []
        await trio.testing.wait_all_tasks_blocked()
        assert stage.ended_for == [("critical", ["small"], "cpu")]
        assert stage.conditions("critical") == []

        stage.manager.room_appeared(PODS_REMOVED)
        stage.retry()
        await trio.testing.wait_all_tasks_blocked()
        assert len(stage.ended_for) == 1, "asked only once"

        stage.may_end.set()
        await trio.testing.wait_all_tasks_blocked()
        assert stage.retry() == ["critical"]
        assert stage.conditions("critical") == [("InProgress", "", "", 0)]
        nursery.cancel_scope.cancel()


async def test_a_critical_pod_for_which_nobody_ended_in_time_is_asked_about_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        stage = await crowded(tmp_path, nursery)
        stage.fails = True
        stage.change(simple_pod("critical", "2", priority=CRITICAL))
        stage.may_end.set()
        for _ in range(100):
            await trio.sleep(0.1)
            stage.retry()
        asked = stage.ended_for
        assert asked == [("critical", ["small"], "cpu")] * len(asked)
        assert 5 <= len(asked) <= 10, "about once a second"
        nursery.cancel_scope.cancel()


async def test_a_resize_that_is_taken_back_while_others_end_is_not_granted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        stage = await crowded(tmp_path, nursery)
        stage.change(simple_pod("critical", "2", priority=CRITICAL))
        await trio.testing.wait_all_tasks_blocked()
        stage.change(simple_pod("critical", priority=CRITICAL))
        stage.may_end.set()
        await trio.testing.wait_all_tasks_blocked()
        assert stage.retry() == []
        assert stage.conditions("critical") == []
        nursery.cancel_scope.cancel()


async def test_a_critical_pod_that_even_an_empty_node_has_no_room_for_waits(tmp_path: Path) -> None:
    stage = Crowded(tmp_path)
    stage.add(simple_pod("critical", priority=CRITICAL), simple_pod("small"))
    assert stage.change(simple_pod("critical", "5", priority=CRITICAL)) == ["critical"]
    assert stage.conditions("critical")[0][1] == "Deferred"
    assert list(stage.manager.waiting) == ["critical"]


async def test_while_the_runtime_is_silent_a_resize_waits_without_a_word(tmp_path: Path) -> None:
    silent = Stage(tmp_path, admission={"abilities": lambda: None})
    pod = simple_pod("pod1", security_context=STRICT)
    silent.add(pod)
    assert silent.change(simple_pod("pod1", "2", security_context=STRICT)) == []
    assert silent.conditions("pod1") == []
    assert list(silent.manager.waiting) == ["pod1"]
