"""Ending pods to make room for a critical one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import trio

from tests.pods.factories import make_pod
from trikubelet.api import PodCondition, PodStatus
from trikubelet.clock import TrioClock
from trikubelet.pods.preempting import Preempting, preempted_status
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.telemetry.events import EventRecorder, EventType

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.pods.types import PodStatusFn

CRITICAL = make_pod("critical", static=True)


@attrs.define
class Killer:
    """Pods end after as many seconds as their grace period says."""

    stuck: frozenset[str] = frozenset()
    ended: dict[str, float] = attrs.field(factory=dict)
    statuses: dict[str, PodStatus] = attrs.field(factory=dict)
    evicts: list[bool] = attrs.field(factory=list)

    async def kill_pod(
        self,
        pod: Pod,
        *,
        asked_by: str,
        evict: bool = False,
        grace_period_override: int | None = None,
        pod_status_fn: PodStatusFn | None = None,
    ) -> None:
        assert asked_by.startswith("preempted to make room for ")
        assert grace_period_override is None
        assert pod_status_fn is not None
        self.evicts.append(evict)
        uid = pod.metadata.uid
        self.statuses[uid] = pod_status_fn(PodStatus(phase="Running"))
        await trio.sleep(pod.spec.termination_grace_period_seconds or 0)
        if uid in self.stuck:
            raise KillTimeoutError(pod.full_name, uid, 1)
        self.ended[uid] = trio.current_time()


def recorder() -> EventRecorder:
    return EventRecorder(TrioClock(datetime(2026, 1, 1, tzinfo=UTC)))


async def test_all_end_at_the_same_time_each_with_its_own_grace(autojump_clock: MockClock) -> None:
    killer, events = Killer(), recorder()
    victims = [make_pod("a", grace=30), make_pod("b", grace=5)]
    begun = trio.current_time()
    await Preempting(killer, events).make_room(CRITICAL, victims)
    assert {uid: at - begun for uid, at in killer.ended.items()} == {"a": 30, "b": 5}
    assert killer.evicts == [True, True]
    for uid in ("a", "b"):
        [event] = events.events_of(uid)
        assert (event.type, event.reason) == (EventType.WARNING, "Preempting")
        assert event.message == "Preempted in order to admit critical pod"
        assert killer.statuses[uid].phase == "Failed"
        assert killer.statuses[uid].reason == "Preempting"


async def test_a_pod_that_does_not_end_in_time_hinders_nobody(autojump_clock: MockClock) -> None:
    killer = Killer(stuck=frozenset({"a"}))
    preempting = Preempting(killer, recorder())
    await preempting.make_room(CRITICAL, [make_pod("a", grace=1), make_pod("b", grace=5)], "memory")
    assert set(killer.ended) == {"b"}
    assert preempting.ended == {("memory",): 1}


async def test_pods_are_counted_by_what_there_was_too_little_of_if_that_is_known(autojump_clock: MockClock) -> None:
    preempting = Preempting(Killer(), recorder())
    for resource in ("cpu", "cpu", "example.com/made-up", ""):
        await preempting.make_room(CRITICAL, [make_pod("a")], resource)
    assert preempting.ended == {("cpu",): 2, ("other",): 1, ("",): 1}


def test_the_status_says_why_and_that_others_were_disturbed() -> None:
    ready, old = PodCondition(type="Ready", status="True"), PodCondition(type="DisruptionTarget", status="False")
    status = preempted_status(PodStatus(phase="Running", conditions=(old, ready)), 7)
    assert (status.phase, status.reason) == ("Failed", "Preempting")
    assert status.message == "Preempted in order to admit critical pod"
    assert status.conditions == (
        ready,
        PodCondition(
            type="DisruptionTarget",
            status="True",
            observed_generation=7,
            reason="TerminationByKubelet",
            message="Pod was preempted by Kubelet to accommodate a critical pod.",
        ),
    )
