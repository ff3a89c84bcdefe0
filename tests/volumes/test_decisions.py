"""What is done next for a volume (kubelet: `reconciler_test.go`, `operation_generator_test.go`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.volumes.stage import pod
from trikubelet.api import PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Quantity
from trikubelet.volumes.actual import ActualVolume, PodMount
from trikubelet.volumes.decisions import (
    Action,
    Certainty,
    Done,
    Failed,
    Operation,
    Outcome,
    Step,
    VolumeContext,
    after,
    next_step,
    still_useful,
)
from trikubelet.volumes.desired import Obstacle, Wanted
from trikubelet.volumes.expansion import Expansion
from trikubelet.volumes.model import MountedVolume, Presence, VolumeSpec
from trikubelet.volumes.retries import DELAYS, RetryDelay, after_failure

NAME = "kubernetes.io/csi/pv-1"
SPEC = VolumeSpec("data", "pv-1", "kubernetes.io/csi", persistent=PersistentVolume())
ABSENT, UNCERTAIN, PRESENT = Presence.ABSENT, Presence.UNCERTAIN, Presence.PRESENT


def wanted(uid: str = "a", **changes: Any) -> Wanted:
    return Wanted(pod=pod(uid), spec=changes.pop("spec", SPEC), names=("data",), **changes)


def mount(presence: Presence = PRESENT, **changes: Any) -> PodMount:
    mounted = MountedVolume(SPEC, Path("/x")) if presence is PRESENT else None
    return PodMount(presence=presence, spec=SPEC, mounted=mounted, **changes)


def actual(staged: Presence = ABSENT, **mounts: PodMount) -> ActualVolume:
    return ActualVolume(staged=staged, staged_spec=None if staged is ABSENT else SPEC, mounts=mounts)


def step(now: float = 0.0, **situation: Any) -> Step:
    return next_step(VolumeContext(name=NAME, **situation), now)


def action(now: float = 0.0, **situation: Any) -> tuple[Action, str] | None:
    operation = step(now, **situation).operation
    return None if operation is None else (operation.action, operation.uid)


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        ({}, None),
        ({"wanted": {"a": wanted()}}, (Action.SET_UP, "a")),
        ({"wanted": {"a": wanted()}, "actual": actual(a=mount())}, None),
        ({"wanted": {"a": wanted()}, "actual": actual(a=mount(UNCERTAIN))}, (Action.SET_UP, "a")),
        ({"wanted": {"a": wanted(staged=True)}}, (Action.STAGE, "a")),
        ({"wanted": {"a": wanted(staged=True)}, "actual": actual(UNCERTAIN)}, (Action.STAGE, "a")),
        ({"wanted": {"a": wanted(staged=True)}, "actual": actual(PRESENT)}, (Action.SET_UP, "a")),
        ({"wanted": {"a": wanted(staged=True, attachable=True)}}, (Action.ATTACH, "a")),
        (
            {"wanted": {"a": wanted(staged=True, attachable=True)}, "actual": ActualVolume(attached=True)},
            (Action.STAGE, "a"),
        ),
        # What an ended pod has goes first, but only when it is known to have ended.
        ({"actual": actual(a=mount())}, None),
        ({"actual": actual(a=mount()), "released": {"a"}}, (Action.TEAR_DOWN, "a")),
        ({"actual": actual(a=mount(UNCERTAIN)), "released": {"a"}}, (Action.TEAR_DOWN, "a")),
        (
            {"actual": actual(PRESENT, a=mount()), "released": {"a"}, "wanted": {"b": wanted("b", staged=True)}},
            (Action.TEAR_DOWN, "a"),
        ),
        ({"wanted": {"a": wanted()}, "actual": actual(a=mount()), "released": {"a"}}, None),
        # Staging is undone after the last pod, wanted or there.
        ({"actual": actual(PRESENT)}, (Action.UNSTAGE, "")),
        ({"actual": actual(UNCERTAIN)}, (Action.UNSTAGE, "")),
        ({"actual": actual(PRESENT), "may_unstage": False}, None),
        ({"actual": actual(PRESENT, a=mount())}, None),
        # Who waits comes before those whose content is old.
        (
            {"wanted": {"a": wanted(request=1), "b": wanted("b")}, "actual": actual(a=mount())},
            (Action.SET_UP, "b"),
        ),
        ({"wanted": {"a": wanted(request=1)}, "actual": actual(a=mount())}, (Action.REFRESH, "a")),
        ({"wanted": {"a": wanted(request=1)}, "actual": actual(a=mount(shown=1))}, None),
        ({"wanted": {"a": wanted()}, "actual": actual(a=mount(refresh_due=0.0))}, (Action.REFRESH, "a")),
    ],
)
def test_the_next_operation(situation: dict[str, Any], expected: tuple[Action, str] | None) -> None:
    assert action(**situation) == expected


def test_a_renewal_that_is_not_due_is_a_time_to_wake_up() -> None:
    found = step(wanted={"a": wanted()}, actual=actual(a=mount(refresh_due=50.0)))

    assert (found.operation, found.wake_at) == (None, 50.0)


def test_an_operation_in_backoff_waits_and_others_do_not() -> None:
    two = {"a": wanted(), "b": wanted("b")}
    one_waits = {"a": RetryDelay(Action.SET_UP, 1.0, 10.0)}
    both_wait = {**one_waits, "b": RetryDelay(Action.SET_UP, 1.0, 7.0)}

    assert action(wanted=two, retries=one_waits) == (Action.SET_UP, "b")
    assert step(wanted=two, retries=both_wait) == Step(None, 7.0)
    assert action(10.0, wanted={"a": wanted()}, retries=one_waits) == (Action.SET_UP, "a")
    other = {"a": RetryDelay(Action.TEAR_DOWN, 1.0, 10.0)}
    assert action(wanted={"a": wanted()}, retries=other) == (Action.SET_UP, "a")


def test_staging_that_failed_for_one_pod_is_not_tried_for_the_next_at_once() -> None:
    two = {"a": wanted(staged=True), "b": wanted("b", staged=True)}

    assert step(wanted=two, retries={"": RetryDelay(Action.STAGE, 1.0, 7.0)}) == Step(None, 7.0)


@pytest.mark.parametrize(("block", "step_name"), [(False, "SetUp"), (True, "SetUpDevice")])
@pytest.mark.parametrize("presence", [PRESENT, UNCERTAIN])
def test_an_exclusive_volume_that_another_pod_has_or_may_have_is_an_obstacle(
    block: bool, step_name: str, presence: Presence
) -> None:
    volume = PersistentVolume(spec=PersistentVolumeSpec(access_modes=("ReadWriteOncePod",)))
    spec = attrs.evolve(SPEC, persistent=volume, block=block)
    alone = step(wanted={"a": wanted(spec=spec)}).operation
    second = step(wanted={"a": wanted(spec=spec)}, actual=actual(b=mount(presence))).operation

    assert alone is not None
    assert second is not None
    assert alone.obstacle is None
    assert second.obstacle == Obstacle(
        step_name, "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    )


def test_an_obstacle_is_told_instead_of_staging_but_after_attaching() -> None:
    obstacle = Obstacle("NodeAffinity check", "no")
    one = wanted(staged=True, attachable=True, obstacle=obstacle)
    found = step(wanted={"a": one}, actual=ActualVolume(attached=True)).operation

    assert action(wanted={"a": one}) == (Action.ATTACH, "a")
    assert found is not None
    assert (found.action, found.obstacle) == (Action.SET_UP, obstacle)


@pytest.mark.parametrize(
    ("has", "should", "grows"),
    [("1Gi", "2Gi", True), ("2Gi", "2Gi", False), ("2Gi", "1Gi", False), (None, "2Gi", False), ("1Gi", None, False)],
)
def test_a_volume_that_is_too_small_grows(has: str | None, should: str | None, grows: bool) -> None:
    size = None if should is None else Quantity(should)
    there = attrs.evolve(actual(a=mount()), size=None if has is None else Quantity(has))
    first = step(wanted={"a": wanted(size=size)}, actual=attrs.evolve(there, mounts={})).operation

    assert action(wanted={"a": wanted(size=size)}, actual=there) == ((Action.EXPAND, "a") if grows else None)
    assert first is not None
    assert first.grow is grows
    # Where its driver does not let it while it is in use, each set-up tries, and nothing in between.
    stays = attrs.evolve(there, stays=True)
    assert action(wanted={"a": wanted(size=size)}, actual=stays) is None
    fresh = step(wanted={"a": wanted(size=size)}, actual=attrs.evolve(stays, mounts={}, refused=True)).operation
    assert fresh is not None
    assert (fresh.grow, fresh.refused) == (grows, True)


@pytest.mark.parametrize("action", [Action.SET_UP, Action.EXPAND])
@pytest.mark.parametrize("failed", [True, False])
def test_what_came_of_growing_is_kept_with_the_volume(action: Action, failed: bool) -> None:
    before = attrs.evolve(actual(a=mount()), size=Quantity("1Gi"))
    found = Expansion(claim=PersistentVolumeClaim(), size=None if failed else Quantity("2Gi"), refused=failed)
    outcome: Outcome = Failed(Certainty.UNCERTAIN, "no", expansion=found) if failed else Done(expansion=found)
    operation = Operation(action=action, name=NAME, uid="a", spec=SPEC, wanted=wanted())
    now = after(before, operation, outcome)
    assert (now.size, now.stays, now.refused) == (Quantity("1Gi" if failed else "2Gi"), False, failed)
    refused = attrs.evolve(before, stays=True)
    assert after(refused, Operation(action=Action.TEAR_DOWN, name=NAME, uid="a", spec=SPEC), Done()).stays is False


FINAL_FAILURE = Failed(Certainty.FINAL, "no")
UNCERTAIN_FAILURE = Failed(Certainty.UNCERTAIN, "no")
TRANSIENT_FAILURE = Failed(Certainty.TRANSIENT, "no")


@pytest.mark.parametrize(
    ("before", "outcome", "presence"),
    [
        (None, Done(), PRESENT),
        (None, FINAL_FAILURE, ABSENT),
        (None, UNCERTAIN_FAILURE, UNCERTAIN),
        (None, TRANSIENT_FAILURE, ABSENT),
        (mount(UNCERTAIN), Done(), PRESENT),
        (mount(UNCERTAIN), FINAL_FAILURE, ABSENT),
        (mount(UNCERTAIN), UNCERTAIN_FAILURE, UNCERTAIN),
        (mount(UNCERTAIN), TRANSIENT_FAILURE, UNCERTAIN),
        (mount(UNCERTAIN, inherited=True), FINAL_FAILURE, UNCERTAIN),
        (mount(UNCERTAIN, inherited=True), UNCERTAIN_FAILURE, UNCERTAIN),
        (mount(UNCERTAIN, inherited=True), TRANSIENT_FAILURE, UNCERTAIN),
    ],
)
def test_what_is_there_after_a_volume_was_set_up(before: PodMount | None, outcome: Outcome, presence: Presence) -> None:
    there = actual() if before is None else actual(a=before)
    operation = Operation(action=Action.SET_UP, name=NAME, uid="a", spec=SPEC, wanted=wanted())
    found = after(there, operation, outcome).mounts.get("a")

    assert (ABSENT if found is None else found.presence) is presence
    assert found is None or found.inherited is (before is not None and before.inherited and presence is UNCERTAIN)


@pytest.mark.parametrize(
    ("before", "inherited", "outcome", "presence"),
    [
        (ABSENT, False, Done(), PRESENT),
        (ABSENT, False, FINAL_FAILURE, ABSENT),
        (ABSENT, False, UNCERTAIN_FAILURE, UNCERTAIN),
        (ABSENT, False, TRANSIENT_FAILURE, ABSENT),
        (UNCERTAIN, False, FINAL_FAILURE, ABSENT),
        (UNCERTAIN, True, FINAL_FAILURE, UNCERTAIN),
        (UNCERTAIN, False, TRANSIENT_FAILURE, UNCERTAIN),
        (UNCERTAIN, True, Done(), PRESENT),
    ],
)
def test_what_is_there_after_a_volume_was_staged(
    before: Presence, inherited: bool, outcome: Outcome, presence: Presence
) -> None:
    there = attrs.evolve(actual(before), staging_inherited=inherited)
    operation = Operation(action=Action.STAGE, name=NAME, uid="a", spec=SPEC, wanted=wanted())
    found = after(there, operation, outcome)

    assert found.staged is presence
    assert (found.staged_spec is None) is (presence is ABSENT)


@pytest.mark.parametrize("outcome", [FINAL_FAILURE, UNCERTAIN_FAILURE, TRANSIENT_FAILURE])
def test_a_volume_that_could_not_be_renewed_stays(outcome: Failed) -> None:
    there = actual(a=mount(shown=3))
    operation = Operation(action=Action.REFRESH, name=NAME, uid="a", spec=SPEC, wanted=wanted(request=4))

    assert after(there, operation, outcome) == there


@pytest.mark.parametrize("outcome", [FINAL_FAILURE, UNCERTAIN_FAILURE, TRANSIENT_FAILURE])
def test_what_could_not_be_taken_down_is_uncertain_whatever_happens_then(outcome: Failed) -> None:
    down = Operation(action=Action.TEAR_DOWN, name=NAME, uid="a", spec=SPEC)
    up = Operation(action=Action.SET_UP, name=NAME, uid="a", spec=SPEC, wanted=wanted())
    left = after(after(actual(a=mount()), down, outcome), up, FINAL_FAILURE)

    assert left.mounts["a"].presence is UNCERTAIN
    unstage = Operation(action=Action.UNSTAGE, name=NAME, spec=SPEC)
    assert after(actual(PRESENT), unstage, outcome).staged is UNCERTAIN


def test_operations_for_pods_that_went_are_of_no_use() -> None:
    def operation(action: Action) -> Operation:
        return Operation(action=action, name=NAME, uid="a", spec=SPEC)

    others = {"b": wanted("b")}
    assert still_useful(operation(Action.STAGE), others)
    assert not still_useful(operation(Action.STAGE), {})
    assert not still_useful(operation(Action.SET_UP), others)
    assert still_useful(operation(Action.SET_UP), {"a": wanted()})
    assert still_useful(operation(Action.TEAR_DOWN), {})


def test_backoffs_double_up_to_a_limit_and_start_afresh_for_another_operation() -> None:
    delays, backoff = [], None
    for _ in range(12):
        backoff = after_failure(backoff, Action.SET_UP, 100.0)
        delays.append(backoff.delay)

    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122, 122, 122]
    assert backoff is not None
    assert backoff.until == 100 + DELAYS.longest
    assert after_failure(backoff, Action.TEAR_DOWN, 100.0).delay == DELAYS.first
