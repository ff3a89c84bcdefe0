from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cluster.steps import FLOOR, OURS, Batch, Measurements, PodTimes, Step, aims, steps_shown
from trikubelet.api import pod_from_dict

RUNNING = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
ENDED = {"name": "main", "state": {"terminated": {"exitCode": 0}}}


def shown(event: str = "MODIFIED", *, deleted: bool = False, **status: Any) -> frozenset[Step]:
    metadata: dict[str, Any] = {"name": "pod", "namespace": "default"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return steps_shown(event, pod_from_dict({"metadata": metadata, "spec": {}, "status": status}))


def ready(value: str) -> list[dict[str, str]]:
    return [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": value}]


def test_a_new_pod_shows_nothing() -> None:
    assert shown("ADDED", conditions=[{"type": "PodScheduled", "status": "True"}]) == set()


def test_a_pod_with_a_start_time_has_been_reported_on() -> None:
    assert shown(startTime="2026-01-01T00:00:00Z") == {Step.REPORTED}


@pytest.mark.parametrize(("value", "steps"), [("False", set()), ("True", {Step.READY})])
def test_only_the_condition_ready_makes_a_pod_ready(value: str, steps: set[Step]) -> None:
    assert shown(conditions=ready(value)) == steps


def test_a_deleted_pod_has_ended_when_all_its_containers_have() -> None:
    assert shown(deleted=True, containerStatuses=[ENDED, ENDED]) == {Step.ENDED}
    assert shown(deleted=True, containerStatuses=[ENDED, RUNNING]) == set()
    assert shown(deleted=True) == set()


def test_a_crash_is_no_end() -> None:
    assert shown(containerStatuses=[ENDED]) == set()


def test_a_pod_is_gone_when_its_object_is() -> None:
    assert shown("DELETED", deleted=True, containerStatuses=[ENDED]) == {Step.ENDED, Step.GONE}


def pod(ready_after: float, gone_after: float, *, created: float = 100.0, deleted: float = 200.0) -> PodTimes:
    times = PodTimes("pod", created, deleted)
    times.note(Step.READY, created + ready_after)
    times.note(Step.GONE, deleted + gone_after)
    return times


def measured(**batches: list[Batch]) -> Measurements:
    """By who: `ours`, and bare clients by any other name."""
    found = Measurements()
    for who, all_of_them in batches.items():
        for batch in all_of_them:
            found.add(OURS if who == "ours" else f"{FLOOR}, {who}", batch)
    return found


def test_each_step_counts_from_what_was_asked_and_its_first_time_counts() -> None:
    times = pod(1.0, 2.0)
    times.note(Step.READY, 1000.0)
    assert times.after(Step.READY) == 1.0
    assert times.after(Step.GONE) == 2.0
    assert times.after(Step.REPORTED) is None


def test_a_batch_is_done_with_its_last_pod_and_begins_with_the_first_that_was_asked() -> None:
    batch = Batch([pod(1.0, 2.0), pod(3.0, 1.0, created=100.5)])
    assert batch.last(Step.READY) == 3.5
    assert batch.last(Step.GONE) == 2.0
    assert batch.last(Step.ENDED) is None


def test_a_batch_of_which_not_all_pods_got_there_has_no_last_one() -> None:
    assert Batch([pod(1.0, 2.0), PodTimes("other", 100.0, 200.0)]).last(Step.READY) is None


def test_the_floor_of_each_step_is_the_bare_client_that_was_there_first() -> None:
    found = measured(ours=[Batch([pod(0.5, 0.5)])], few=[Batch([pod(1.0, 4.0)])], many=[Batch([pod(2.0, 3.0)])])
    assert found.floor(Step.READY) == f"{FLOOR}, few"
    assert found.floor(Step.GONE) == f"{FLOOR}, many"
    assert found.floor(Step.ENDED) is None


def test_of_one_pod_the_seconds_beyond_the_floor_count() -> None:
    found = measured(
        ours=[Batch([pod(1.05, 2.0)]), Batch([pod(1.05, 2.08)]), Batch([pod(1.5, 2.08)])],
        bare=[Batch([pod(1.0, 2.0)])],
    )
    results = aims("embedded", 1, found)
    assert [result.value for result in results] == pytest.approx([0.05, 0.5, 0.08, 0.08])
    assert [result.met for result in results] == [True, False, True, True]


def test_of_many_pods_the_last_counts_as_often_as_the_floors_last() -> None:
    found = measured(ours=[Batch([pod(1.0, 1.0), pod(2.4, 3.0)])], bare=[Batch([pod(1.0, 1.0), pod(2.0, 2.0)])])
    results = aims("containerd", 2, found)
    assert [result.value for result in results] == pytest.approx([1.2, 1.5])
    assert [result.met for result in results] == [True, False]
    assert aims("embedded", 2, found) == []


def test_without_a_floor_there_are_no_aims() -> None:
    assert aims("containerd", 1, measured(ours=[Batch([pod(1.0, 1.0)])])) == []


def test_the_agents_cpu_is_shared_by_all_pods_of_all_batches() -> None:
    found = measured(bare=[Batch([pod(1.0, 1.0)])])
    assert found.nodes == []
    found.add(OURS, Batch([pod(1.0, 1.0)], cpu=0.2))
    found.add(OURS, Batch([pod(1.0, 1.0), pod(1.0, 1.0)], cpu=0.4))
    assert found.nodes == [OURS]
    assert found.cpu_per_pod(OURS) == pytest.approx(0.2)
