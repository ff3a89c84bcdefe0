"""What a reported status becomes: times, and the ways that it never goes."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.status.builders import NOW, ended, pod, running, sidecar, waiting, with_rule
from trikubelet.api import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodCondition,
    PodResourceClaimStatus,
    PodStatus,
)
from trikubelet.status.merge import (
    IllegalTransitionError,
    may_be_deleted,
    merge_for_server,
    next_status,
    normalized,
    says_the_same,
)

A, X = "a", "x"
LATER = NOW + timedelta(minutes=1)


def ready(status: str, **fields: object) -> PodCondition:
    return PodCondition(type="Ready", status=status, **fields)  # type: ignore[arg-type]


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    old = PodStatus(conditions=(ready("True", last_transition_time=NOW),))
    same = next_status(pod(A), old, PodStatus(conditions=(ready("True", reason="new"),)), LATER)
    assert same.conditions[0].last_transition_time == NOW
    other = next_status(pod(A), old, PodStatus(conditions=(ready("False"),)), LATER)
    assert other.conditions[0].last_transition_time == LATER


def test_conditions_of_others_keep_their_times() -> None:
    theirs = PodCondition(type="example.com/x", status="True", last_transition_time=NOW)
    assert next_status(pod(A), PodStatus(), PodStatus(conditions=(theirs,)), LATER).conditions == (theirs,)


def test_the_start_time_is_set_once() -> None:
    first = next_status(pod(A), PodStatus(), PodStatus(), NOW)
    assert first.start_time == NOW
    assert next_status(pod(A), first, PodStatus(start_time=LATER), LATER).start_time == NOW


def test_the_observed_generation_never_goes_back() -> None:
    merged = next_status(pod(A), PodStatus(observed_generation=5), PodStatus(observed_generation=4), NOW)
    assert merged.observed_generation == 5


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
def test_an_ended_pod_stays_in_its_phase_with_its_reason(phase: str) -> None:
    old = PodStatus(phase="Failed", reason="Evicted", message="too much")
    merged = next_status(pod(A), old, PodStatus(phase=phase, reason="other"), NOW)
    assert (merged.phase, merged.reason, merged.message) == ("Failed", "Evicted", "too much")


def check(of: Pod, old: ContainerStatus, new: ContainerStatus, *, init: bool = False) -> None:
    field = "init_container_statuses" if init else "container_statuses"
    next_status(of, PodStatus(**{field: (old,)}), PodStatus(**{field: (new,)}), NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "code"),
    [
        (pod(A, restart="Never"), 0),
        (pod(A, restart="Never"), 1),
        (pod(A, restart="OnFailure"), 0),
        (pod(Container(name=A, restart_policy="Never"), restart="OnFailure"), 0),
    ],
)
@pytest.mark.parametrize("new", [running(A), waiting(A), ContainerStatus(name=A)])
def test_a_container_that_has_ended_for_good_does_not_go_on(of: Pod, code: int, new: ContainerStatus) -> None:
    with pytest.raises(IllegalTransitionError, match="terminated container a attempted illegal transition"):
        check(of, ended(A, code), new)


@pytest.mark.parametrize(
    ("of", "code"),
    [
        (pod(A), 0),
        (pod(A, restart="OnFailure"), 1),
        (pod(Container(name=A, restart_policy="Always"), restart="Never"), 0),
        (pod(with_rule(A, action="Restart"), restart="Never"), 42),
        (pod(A, with_rule("b"), restart="Never"), 0),
    ],
)
def test_a_container_that_may_be_restarted_goes_on(of: Pod, code: int) -> None:
    check(of, ended(A, code), running(A))


def test_an_ended_container_may_vanish_or_end_again() -> None:
    of = pod(A, restart="Never")
    check(of, ended(A), ended(A, 1))
    next_status(of, PodStatus(container_statuses=(ended(A),)), PodStatus(), NOW)


def test_an_init_container_that_has_ended_for_good_does_not_go_on_but_a_sidecar_does() -> None:
    with pytest.raises(IllegalTransitionError, match="terminated init container x"):
        check(pod(A, init=(X,), restart="Never"), ended(X, 1), running(X), init=True)
    check(pod(A, init=(sidecar(X),), restart="Never"), ended(X, 1), running(X), init=True)
    check(pod(A, init=(X,), restart="OnFailure"), ended(X, 1), running(X), init=True)


def test_times_are_cut_to_seconds_and_containers_are_put_in_order() -> None:
    moment = NOW + timedelta(microseconds=7)
    end = ContainerState(terminated=ContainerStateTerminated(started_at=moment, finished_at=moment))
    status = PodStatus(
        start_time=moment,
        conditions=(ready("True", last_transition_time=moment, last_probe_time=moment),),
        container_statuses=(ContainerStatus(name="z", state=end, last_state=end), running("b")),
        init_container_statuses=(running("i"), running("h")),
    )
    clean = normalized(pod("b", "z", init=("h", "i")), status)
    assert clean.start_time == NOW
    assert (clean.conditions[0].last_transition_time, clean.conditions[0].last_probe_time) == (NOW, NOW)
    assert [one.name for one in clean.container_statuses] == ["b", "z"]
    assert [one.name for one in clean.init_container_statuses] == ["h", "i"]
    for state in (clean.container_statuses[1].state, clean.container_statuses[1].last_state):
        assert state.terminated is not None
        assert (state.terminated.started_at, state.terminated.finished_at) == (NOW, NOW)


@pytest.mark.parametrize(("containers", "limit"), [(1, 12288), (2, 6144), (24, 512), (48, 256)])
def test_termination_messages_share_twelve_kibibytes(containers: int, limit: int) -> None:
    names = [f"c{index:02}" for index in range(containers)]
    end = ContainerState(terminated=ContainerStateTerminated(message="é" * 10000))
    statuses = tuple(ContainerStatus(name=name, state=end) for name in names)
    clean = normalized(pod(*names), PodStatus(container_statuses=statuses))
    for one in clean.container_statuses:
        assert one.state.terminated is not None
        assert len(one.state.terminated.message.encode()) == limit


@given(st.text(max_size=60), st.integers(1, 3))
def test_normalizing_twice_changes_nothing(message: str, count: int) -> None:
    end = ContainerState(terminated=ContainerStateTerminated(message=message * 500, finished_at=NOW))
    of = pod(*[f"c{index}" for index in range(count)])
    once = normalized(of, PodStatus(container_statuses=(ContainerStatus(name="c0", state=end),)))
    assert normalized(of, once) == once


def test_what_is_normal_already_stays_the_same_object() -> None:
    running_since = ContainerState(running=ContainerStateRunning(started_at=NOW))
    normal = PodStatus(
        start_time=NOW,
        conditions=(ready("True", last_transition_time=NOW),),
        container_statuses=(ContainerStatus(name="a", state=running_since), ContainerStatus(name="b")),
    )
    assert normalized(pod("a", "b"), normal) is normal
    late = attrs.evolve(normal, start_time=NOW + timedelta(microseconds=1))
    assert normalized(pod("a", "b"), late) == normal
    assert normalized(pod("a", "b"), late).container_statuses is normal.container_statuses
    turned = attrs.evolve(normal, container_statuses=normal.container_statuses[::-1])
    assert normalized(pod("a", "b"), turned) == normal


def test_statuses_say_the_same_when_only_times_and_others_conditions_differ() -> None:
    claims = (PodResourceClaimStatus(name="c"),)
    theirs = PodCondition(type="x", status="True")
    old = PodStatus(phase="Running", conditions=(ready("True", last_transition_time=NOW), theirs))
    new = PodStatus(
        phase="Running", conditions=(ready("True", last_transition_time=LATER),), resource_claim_statuses=claims
    )
    assert says_the_same(old, new)
    assert not says_the_same(old, attrs.evolve(new, phase="Pending"))
    assert not says_the_same(old, attrs.evolve(new, conditions=(ready("True", message="m"),)))
    assert not says_the_same(old, attrs.evolve(new, conditions=()))


def test_the_server_keeps_the_conditions_and_claims_of_others() -> None:
    theirs = PodCondition(type="x", status="True")
    claims = (PodResourceClaimStatus(name="c"),)
    served = PodStatus(phase="Pending", conditions=(theirs, ready("False")), resource_claim_statuses=claims)
    ours = PodStatus(phase="Running", conditions=(ready("True"), PodCondition(type="x", status="False")))
    merged = merge_for_server(pod(A), served, ours, NOW, may_run=False)
    assert merged.conditions == (theirs, ready("True"))
    assert (merged.phase, merged.resource_claim_statuses) == ("Running", claims)


def test_the_server_hears_of_the_end_when_nothing_runs_any_more() -> None:
    served = PodStatus(phase="Running", conditions=(ready("True", last_transition_time=NOW),))
    disruption = PodCondition(type="DisruptionTarget", status="True")
    ours = PodStatus(phase="Failed", reason="Evicted", conditions=(ready("True"), disruption))
    early = merge_for_server(pod(A), served, ours, LATER, may_run=True)
    assert (early.phase, early.reason, early.conditions) == ("Running", "", (ready("True"),))
    late = merge_for_server(pod(A), served, ours, LATER, may_run=False)
    assert (late.phase, late.reason) == ("Failed", "Evicted")
    assert [(one.type, one.status, one.last_transition_time) for one in late.conditions] == [
        ("Ready", "False", LATER),
        ("DisruptionTarget", "True", LATER),
        ("ContainersReady", "False", LATER),
    ]


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
@pytest.mark.parametrize("deleted", [True, False])
def test_an_object_goes_when_it_was_deleted_has_ended_and_is_released(
    deleted: bool, phase: str, mirror: bool, finished: bool
) -> None:
    of = pod(A, deleted=deleted, status=PodStatus(phase=phase))
    expected = deleted and phase == "Succeeded" and finished and not mirror
    assert may_be_deleted(of, finished=finished, mirror=mirror) is expected


SERVED = (ready("True"), PodCondition(type="PodScheduled", status="True"))
BY_KUBELET = PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
BY_EVICTION_API = PodCondition(type="DisruptionTarget", status="True", reason="EvictedByEvictionAPI")
NOT_READY = ready("False", reason="PodFailed")
NOT_ALL_READY = PodCondition(type="ContainersReady", status="False", reason="PodFailed")


@pytest.mark.parametrize(
    ("may_run", "served", "phase", "ours", "expected_phase", "expected"),
    [
        (False, SERVED, "Running", SERVED, "Running", SERVED),
        (False, SERVED, "Failed", (*SERVED, BY_KUBELET), "Failed", (NOT_READY, SERVED[1], BY_KUBELET, NOT_ALL_READY)),
        (True, SERVED, "Failed", (*SERVED, BY_KUBELET), "Running", SERVED),
        (False, (*SERVED, BY_KUBELET), "Running", SERVED, "Running", (*SERVED, BY_KUBELET)),
        (
            False,
            (*SERVED, BY_EVICTION_API),
            "Failed",
            (*SERVED, BY_KUBELET),
            "Failed",
            (NOT_READY, SERVED[1], BY_KUBELET, NOT_ALL_READY),
        ),
        (
            False,
            (*SERVED, BY_EVICTION_API),
            "Running",
            (*SERVED, BY_KUBELET),
            "Running",
            (BY_EVICTION_API, *SERVED),
        ),
        (True, (*SERVED, BY_EVICTION_API), "Failed", (*SERVED, BY_KUBELET), "Running", (BY_EVICTION_API, *SERVED)),
    ],
)
def test_the_kubelets_table_of_disruptions(
    may_run: bool,
    served: tuple[PodCondition, ...],
    phase: str,
    ours: tuple[PodCondition, ...],
    expected_phase: str,
    expected: tuple[PodCondition, ...],
) -> None:
    before = PodStatus(phase="Running", message="Message", conditions=served)
    new = PodStatus(phase=phase, message="Message", conditions=ours)
    merged = merge_for_server(pod(A), before, new, NOW, may_run=may_run)
    assert (merged.phase, merged.message) == (expected_phase, "Message")
    bare = [attrs.evolve(condition, last_transition_time=None) for condition in merged.conditions]
    assert sorted(map(repr, bare)) == sorted(map(repr, expected))
