"""Pods that arrive, wait for a resize, get it and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.allocation.situations import (
    amounts,
    container,
    make_pod,
    of_generation,
    quantities,
    requirements,
    resized,
    simple_pod,
)
from tests.allocation.stage import Stage
from trikubelet.allocation.metrics import PODS_ADDED, PODS_REMOVED
from trikubelet.allocation.model import PodAllocation, ResizeGates, allocation_of, with_allocation

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import ResourceRequirements

CPU_FULL = "Node didn't have enough resource: cpu"
IN_PROGRESS = ("InProgress", "", "", 0)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


# Arriving


def test_a_new_pod_has_what_it_asks_for_without_overhead(stage: Stage) -> None:
    pod = simple_pod("pod1", pod_level=requirements(amounts("1", "1Gi")), overhead=quantities(amounts("100m", "200Mi")))
    assert stage.manager.allocated(pod) is pod
    stage.add(pod)
    requests = requirements(amounts("1", "1Gi"))
    assert stage.store.get("pod1") == PodAllocation({"c1": requests}, requests)
    assert not stage.wakes


def test_a_pod_that_is_not_admitted_is_given_nothing(stage: Stage) -> None:
    stage.manager.allocated(simple_pod("pod1"))
    assert not stage.store.uids()


def test_a_pod_that_comes_back_as_it_was_keeps_what_it_has(stage: Stage) -> None:
    stage.allocate(simple_pod("pod1"))
    stage.allocate(simple_pod("pod2"))
    had = stage.store.get("pod1")
    stage.add(simple_pod("pod1"))
    assert stage.store.get("pod1") is had
    assert set(stage.store.uids()) == {"pod1", "pod2"}
    assert not stage.wakes


@pytest.mark.parametrize("whole", [None, requirements(amounts("1", "1Gi"))])
def test_a_pod_that_comes_back_with_other_wishes_is_judged_by_what_it_has(
    stage: Stage, whole: ResourceRequirements | None
) -> None:
    small, large = simple_pod("pod1", pod_level=whole), simple_pod("pod1", "2", "2Gi")
    stage.allocate(small)
    assert stage.manager.allocated(large) == small
    stage.add(large)
    assert stage.store.get("pod1") == allocation_of(small)
    assert list(stage.manager.waiting) == ["pod1"]


def test_resizes_of_pods_that_arrive_together_are_judged_when_all_are_there(stage: Stage) -> None:
    stage.allocate(simple_pod("pod1"))
    stage.allocate(simple_pod("pod2", "3"))
    stage.add(simple_pod("pod1", "2"), simple_pod("pod2", "3"))
    assert stage.wakes == 1
    assert stage.retry() == ["pod1"]
    assert stage.conditions("pod1")[0][1] == "Deferred"


def test_before_all_pods_are_known_no_resize_is_judged(stage: Stage) -> None:
    stage.ready = False
    stage.add(simple_pod("pod1"))
    assert stage.change(simple_pod("pod1", "2")) == []
    assert stage.conditions("pod1") == []
    stage.ready = True
    stage.manager.room_appeared(PODS_ADDED)
    assert stage.retry() == ["pod1"]


# Waiting


def test_a_deferred_resize_is_granted_when_another_pod_ends(stage: Stage) -> None:
    stage.add(simple_pod("pod1"), simple_pod("pod2", "3"))
    stage.change(simple_pod("pod1", "2"))
    assert stage.conditions("pod1")[0][1] == "Deferred"
    assert stage.end("pod2") == ["pod1"]
    assert stage.conditions("pod1") == [IN_PROGRESS]
    assert stage.manager.counts.deferred_accepted == {("pod_terminated",): 1}


def test_a_deferred_resize_is_granted_when_another_pod_is_removed(stage: Stage) -> None:
    stage.add(simple_pod("pod1"), simple_pod("pod2", "3"))
    stage.change(simple_pod("pod1", "2"))
    del stage.pods["pod2"]
    stage.manager.removed("pod2")
    assert stage.retry() == ["pod1"]
    assert stage.store.get("pod2") is None
    assert stage.manager.counts.deferred_accepted == {("pods_removed",): 1}


def test_a_deferred_resize_is_granted_at_once_when_another_pod_asks_for_less(stage: Stage) -> None:
    stage.add(simple_pod("pod1"), simple_pod("pod2", "3"))
    stage.change(simple_pod("pod1", "2"))
    assert stage.change(simple_pod("pod2", "2")) == ["pod2", "pod1"]
    assert stage.manager.counts.deferred_accepted == {("pod_updated",): 1}


def test_room_that_comes_with_a_later_resize_is_used_in_the_same_round(stage: Stage) -> None:
    stage.add(simple_pod("pod1", memory="1Gi"), simple_pod("pod2", "1", "3Gi"))
    stage.change(simple_pod("pod1", memory="2Gi"))
    assert stage.conditions("pod1")[0][1] == "Deferred"
    # It asks for more of one and less of the other, so it is not preferred, and comes after the one that waits.
    assert stage.change(simple_pod("pod2", "2", "1Gi")) == ["pod2", "pod1"]
    assert stage.conditions("pod1") == [IN_PROGRESS]


def test_a_resize_that_was_never_deferred_is_not_counted_as_such(stage: Stage) -> None:
    stage.add(simple_pod("pod1"))
    stage.change(simple_pod("pod1", "2"))
    assert not stage.manager.counts.deferred_accepted


def test_an_unknown_cause_of_room_is_counted_under_one_name(stage: Stage) -> None:
    stage.add(simple_pod("pod1"), simple_pod("pod2", "3"))
    stage.change(simple_pod("pod1", "2"))
    del stage.pods["pod2"]
    stage.manager.room_appeared("the node has grown")
    stage.retry()
    assert stage.manager.counts.deferred_accepted == {("other",): 1}


def test_the_prior_of_two_that_wait_gets_the_room(stage: Stage) -> None:
    stage.add(simple_pod("first", priority=1), simple_pod("prior", priority=2), simple_pod("big", "2"))
    stage.change(simple_pod("first", "2500m", priority=1))
    stage.clock.go_on()
    stage.change(simple_pod("prior", "2500m", priority=2))
    assert "prior" in stage.end("big")
    assert stage.conditions("prior") == [IN_PROGRESS]
    assert stage.conditions("first")[0][1] == "Deferred"


def test_who_has_waited_longest_of_equals_gets_the_room(stage: Stage) -> None:
    stage.add(simple_pod("a"), simple_pod("b"), simple_pod("big", "2"))
    stage.change(simple_pod("b", "2500m"))
    stage.clock.go_on()
    stage.change(simple_pod("a", "2500m"))
    assert "b" in stage.end("big")
    assert stage.conditions("b") == [IN_PROGRESS]
    assert stage.conditions("a")[0][1] == "Deferred"


def test_the_loop_is_woken_once_for_many_changes_and_not_when_nobody_waits(stage: Stage) -> None:
    stage.add(simple_pod("pod1"), simple_pod("pod2", "3"))
    for _ in range(3):
        stage.manager.room_appeared(PODS_REMOVED)
    assert stage.wakes == 0
    stage.change(simple_pod("pod1", "2"))
    for _ in range(3):
        stage.manager.room_appeared(PODS_REMOVED)
    assert stage.wakes == 1
    stage.retry()
    stage.manager.room_appeared(PODS_REMOVED)
    assert stage.wakes == 1


def test_an_infeasible_resize_waits_for_nothing_until_the_spec_changes(tmp_path: Path) -> None:
    stage = Stage(tmp_path, gates=ResizeGates(pod_level=False))
    before = simple_pod("pod1", pod_level=requirements(amounts("1")))
    stage.add(before)
    stage.change(resized(before, pod=requirements(amounts("2"))))
    stage.manager.room_appeared(PODS_REMOVED)
    assert stage.wakes == 0
    labelled = attrs.evolve(stage.pods["pod1"], metadata=attrs.evolve(before.metadata, labels={"a": "b"}))
    assert stage.change(labelled) == []
    assert stage.manager.counts.infeasible == {("plr_feature_gate_off",): 1}
    stage.change(before)
    assert stage.conditions("pod1") == []


@pytest.mark.parametrize("deferred", [True, False])
def test_a_pod_that_ends_is_not_resized(stage: Stage, deferred: bool) -> None:
    stage.add(simple_pod("pod1"))
    wanted = simple_pod("pod1", "5" if deferred else "2")
    stage.change(wanted)
    stage.release("pod1")
    assert stage.manager.conditions("pod1") == ()
    assert not stage.manager.waiting
    assert stage.manager.statistics().in_progress == 0


def test_a_pod_that_is_being_deleted_gets_no_more_room(stage: Stage) -> None:
    stage.add(simple_pod("pod1"), simple_pod("pod2", "3"))
    stage.change(simple_pod("pod1", "2"))
    pod = stage.pods["pod1"]
    stage.pods["pod1"] = attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, deletion_timestamp=stage.clock.now()))
    assert stage.end("pod2") == []
    assert stage.manager.allocated(pod).spec == simple_pod("pod1").spec
    assert not stage.manager.waiting


# Syncing


def test_a_resize_is_complete_when_the_runtime_has_followed(stage: Stage) -> None:
    stage.add(simple_pod("pod1"))
    stage.change(simple_pod("pod1", "2", generation=7))
    stage.heard()
    pod = stage.manager.allocated(of_generation(8, stage.pods["pod1"]))
    before = stage.manager.conditions("pod1")
    assert not stage.manager.synced(pod, in_progress=True)
    assert stage.manager.conditions("pod1") is before
    assert stage.manager.synced(pod, in_progress=False)
    assert stage.conditions("pod1") == []
    assert [event[: event.index("{")] for event in stage.heard()] == ["Normal ResizeCompleted Pod resize completed: "]
    assert not stage.manager.synced(pod, in_progress=False)
    assert not stage.heard()


def test_a_resize_that_fails_says_so_once_and_until_it_succeeds(stage: Stage) -> None:
    stage.add(simple_pod("pod1"))
    stage.change(simple_pod("pod1", "2", generation=7))
    stage.heard()
    pod = stage.manager.allocated(stage.pods["pod1"])
    assert stage.manager.synced(pod, in_progress=True, error="the runtime says no")
    assert not stage.manager.synced(pod, in_progress=True, error="the runtime says no")
    assert not stage.manager.synced(pod, in_progress=True)
    assert stage.conditions("pod1") == [("InProgress", "Error", "the runtime says no", 7)]
    [event] = stage.heard()
    assert event.startswith("Warning ResizeError Pod resize error: ")
    assert event.endswith('"generation":7,"error":"the runtime says no"}')
    assert stage.manager.synced(pod, in_progress=False)
    assert stage.conditions("pod1") == []


def test_what_a_sync_found_of_an_older_allocation_says_nothing_of_the_newer(stage: Stage) -> None:
    stage.add(simple_pod("pod1"))
    of_the_sync = stage.manager.allocated(stage.pods["pod1"])
    stage.change(simple_pod("pod1", "2"))
    stage.heard()
    assert not stage.manager.synced(of_the_sync, in_progress=False)
    assert stage.conditions("pod1") == [IN_PROGRESS]
    assert not stage.heard()


def test_a_runtime_that_does_less_than_was_allocated_is_a_resize_in_progress(stage: Stage) -> None:
    """As after an agent died between granting and doing."""
    stage.add(simple_pod("pod1", generation=3))
    assert stage.manager.synced(stage.pods["pod1"], in_progress=True)
    assert stage.conditions("pod1") == [("InProgress", "", "", 3)]
    assert stage.manager.statistics().in_progress == 1


# Objects


def test_while_nothing_changes_the_allocated_pod_is_the_same_object(stage: Stage) -> None:
    stage.add(simple_pod("pod1"), simple_pod("pod2", "3"))
    wanted = simple_pod("pod1", "2")
    stage.change(wanted)
    has = stage.manager.allocated(wanted)
    assert has is not wanted
    assert stage.manager.allocated(wanted) is has
    stage.manager.room_appeared(PODS_REMOVED)
    stage.retry()
    assert stage.manager.allocated(wanted) is has
    newer = of_generation(2, wanted)
    assert stage.manager.allocated(newer).metadata.generation == 2
    stage.end("pod2")
    assert stage.manager.allocated(wanted) is wanted


def test_a_pod_that_asks_for_what_it_has_is_what_is_worked_with(stage: Stage) -> None:
    pod = simple_pod("pod1")
    stage.add(pod)
    assert stage.manager.allocated(pod) is pod
    newer = of_generation(2, pod)
    assert stage.manager.allocated(newer) is newer


def test_of_a_pod_that_has_gone_nothing_is_left(stage: Stage) -> None:
    stage.add(simple_pod("pod1"), simple_pod("pod2", "2"), simple_pod("pod3", "1m"))
    stage.change(simple_pod("pod2", "5"))
    stage.change(simple_pod("pod1", "1m"))
    stage.manager.removed("pod1")
    stage.manager.keep_only({"pod3"})
    assert set(stage.store.uids()) == {"pod3"}
    assert not stage.manager.waiting
    assert stage.manager.conditions("pod1") == stage.manager.conditions("pod2") == ()


def test_an_allocation_of_another_agent_for_a_pod_with_other_containers_is_completed(stage: Stage) -> None:
    pod = make_pod("pod1", container("c1", amounts("1")), container("c2", amounts("1")))
    stage.store.set("pod1", PodAllocation({"c1": requirements(amounts("1"))}))
    stage.add(pod)
    assert stage.store.get("pod1") == allocation_of(pod)
    assert with_allocation(pod, allocation_of(pod)) is pod
