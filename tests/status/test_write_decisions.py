"""What to write of a pod, as tables; facts from the kubelet's `TestReconcilePodStatus`, `TestDeletePodFinished` …"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import attrs
import pytest

from tests.status.builders import NOW, pod, running
from trikubelet.api import Pod, PodCondition, PodStatus, from_dict, to_dict
from trikubelet.api.pod_kinds import CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION
from trikubelet.kube_client.errors import ApiAnswerError, ApiError, ApiStatusError, ApiUnreachable, CredentialsError
from trikubelet.kube_client.types import Urgency
from trikubelet.status.manager import StatusChange
from trikubelet.status.write_decisions import (
    DeletePod,
    Failures,
    Fetch,
    LastAction,
    Later,
    NothingThere,
    ObjectGone,
    PatchStatus,
    Record,
    Retry,
    UpToDate,
    WriteAction,
    accepted,
    after_failure,
    missing_fields,
    newest,
    next_action,
    record_for,
    up_to_date,
)

READY = PodCondition(type="Ready", status="True")
OLD = PodStatus(phase="Pending")
NEW = PodStatus(phase="Running", conditions=(READY,), pod_ip="10.0.0.1")


def copy_of(status: PodStatus = OLD, version: str = "5", uid: str = "u", *, mirror: bool = False, **fields: Any) -> Pod:
    of = pod("a", status=status, **fields)
    annotations = {CONFIG_MIRROR_ANNOTATION: ""} if mirror else {}
    return attrs.evolve(
        of, metadata=attrs.evolve(of.metadata, uid=uid, resource_version=version, annotations=annotations)
    )


def change_to(status: PodStatus = NEW, *, finished: bool = False, static: bool = False) -> StatusChange:
    of = pod("a", static=static, status=status)
    return StatusChange(of, version=1, finished=finished, first_changed_at=0.0)


def decide(change: StatusChange, copy: Pod | None, record: Record | None = None, **more: Any) -> WriteAction:
    facts: dict[str, Any] = {"may_fetch": False, "may_run": False, "now": NOW, "time": 100.0} | more
    record = record_for(record or Record(), copy)
    return next_action(change, record, copy, **facts)


def written(change: StatusChange, reply: Pod, time: float = 0.0) -> Record:
    action = decide(change, copy_of())
    assert isinstance(action, PatchStatus)
    return accepted(Record("u"), action, reply, time)


def test_a_new_status_is_a_patch_of_what_differs() -> None:
    theirs = PodCondition(type="example.com/x", status="True")
    action = decide(change_to(), copy_of(attrs.evolve(OLD, conditions=(theirs,), nominated_node_name="n")))
    assert isinstance(action, PatchStatus)
    assert action.body == {
        "metadata": {"uid": "u"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "nominatedNodeName": None,
            "conditions": [{"type": "Ready", "status": "True"}],
            "$setElementOrder/conditions": [{"type": "example.com/x"}, {"type": "Ready"}],
        },
    }


@pytest.mark.parametrize(
    ("served", "ours", "finished", "urgency"),
    [
        (NEW, attrs.evolve(NEW, message="m"), False, Urgency.ORDINARY),
        (NEW, attrs.evolve(NEW, container_statuses=(running("a"),)), False, Urgency.ORDINARY),
        (NEW, attrs.evolve(NEW, message="m"), True, Urgency.URGENT),
        (OLD, attrs.evolve(OLD, phase="Running"), False, Urgency.URGENT),
        (OLD, attrs.evolve(OLD, pod_ip="10.0.0.1"), False, Urgency.URGENT),
        (OLD, attrs.evolve(OLD, conditions=(READY,)), False, Urgency.URGENT),
        (NEW, attrs.evolve(NEW, conditions=(attrs.evolve(READY, message="m"),)), False, Urgency.ORDINARY),
    ],
)
def test_what_others_wait_for_is_urgent(served: PodStatus, ours: PodStatus, finished: bool, urgency: Urgency) -> None:
    action = decide(change_to(ours, finished=finished), copy_of(served))
    assert isinstance(action, PatchStatus)
    assert action.urgency is urgency


def test_what_is_there_is_not_written() -> None:
    change, copy = change_to(), copy_of(NEW)
    action = decide(change, copy)
    assert action == UpToDate(copy, change)
    assert isinstance(action, UpToDate)
    record = up_to_date(Record("u"), action)
    assert decide(change, copy, record) == action
    assert up_to_date(record, action) is record


@pytest.mark.parametrize(
    ("change", "copy", "facts", "expected"),
    [
        (change_to(), None, {}, NothingThere()),
        (change_to(), None, {"may_fetch": True}, Fetch(change_to().pod)),
        (change_to(static=True), None, {"may_fetch": True}, NothingThere()),
        (change_to(), copy_of(uid="recreated"), {}, NothingThere()),
        (change_to(static=True), copy_of(uid="recreated"), {}, NothingThere()),
    ],
)
def test_nothing_is_written_to_what_is_not_there(
    change: StatusChange, copy: Pod | None, facts: dict[str, Any], expected: WriteAction
) -> None:
    assert decide(change, copy, **facts) == expected


def test_a_static_pod_is_written_to_its_mirror_pod() -> None:
    action = decide(change_to(static=True), copy_of(uid="m", mirror=True))
    assert isinstance(action, PatchStatus)
    assert action.body["metadata"] == {"uid": "m"}


def with_hash(change: StatusChange, text: str) -> StatusChange:
    metadata = attrs.evolve(
        change.pod.metadata, annotations={**change.pod.metadata.annotations, CONFIG_HASH_ANNOTATION: text}
    )
    return attrs.evolve(change, pod=attrs.evolve(change.pod, metadata=metadata))


def test_the_mirror_pod_of_another_version_does_not_get_this_ones_status() -> None:
    """As when one waits for the end of the other, or came right after it."""
    assert decide(with_hash(change_to(static=True), "new"), copy_of(uid="m", mirror=True)) == NothingThere()


def test_the_rejection_of_a_version_is_told_by_the_mirror_pod_that_is_there() -> None:
    rejected = attrs.evolve(with_hash(change_to(PodStatus(phase="Failed"), static=True), "new"), rejected=True)
    assert isinstance(decide(rejected, copy_of(uid="m", mirror=True)), PatchStatus)


def test_another_mirror_pod_has_nothing_yet() -> None:
    record = Record("m1", change=change_to(static=True), gone=True)
    assert record_for(record, copy_of(uid="m2", mirror=True)) == Record("m2")
    assert record_for(record, copy_of(uid="m1", mirror=True)) is record
    assert record_for(record, None) is record


def test_doubts_ask_for_a_new_copy_and_what_is_gone_for_nothing() -> None:
    copy = copy_of()
    assert decide(change_to(), copy, Record("u", unsure=True)) == Fetch(copy)
    assert decide(change_to(), copy, Record("u", gone=True)) == NothingThere()
    assert decide(change_to(), None, Record("u", gone=True), may_fetch=True) == NothingThere()


def test_a_question_that_is_asked_again_is_answered_as_before() -> None:
    change, copy, record = change_to(), copy_of(), Record("u")
    facts: dict[str, Any] = {"may_fetch": False, "may_run": False, "now": NOW, "time": 100.0}
    last = LastAction()
    action = last.next(change, record, copy, **facts)
    assert isinstance(action, PatchStatus)
    assert action == next_action(change, record, copy, **facts)
    assert last.next(change, record, copy, **facts | {"now": NOW + timedelta(milliseconds=9)}) is action
    later = NOW + timedelta(seconds=1)
    others: list[tuple[StatusChange, Record, Pod | None, dict[str, Any]]] = [
        (change_to(), record, copy, facts),
        (change, Record("u", gone=True), copy, facts),
        (change, record, copy_of(NEW), facts),
        (change, record, None, facts | {"may_fetch": True}),
        (change, record, copy, facts | {"may_run": True, "now": later}),
    ]
    for of, known, there, more in others:
        assert last.next(of, known, there, **more) == next_action(of, known, there, **more)
        assert last.next(of, known, there, **more) is not action


def test_what_is_to_wait_is_looked_at_again() -> None:
    change = change_to()
    record = written(change, copy_of(NEW, "6"), time=100.0)
    foreign = copy_of(OLD, "7")
    facts: dict[str, Any] = {"may_fetch": False, "may_run": False, "now": NOW}
    last = LastAction()
    assert last.next(change, record, foreign, **facts, time=101.0) == Later()
    assert isinstance(last.next(change, record, foreign, **facts, time=110.0), PatchStatus)


def test_an_end_is_held_back_while_something_may_run() -> None:
    ended = change_to(PodStatus(phase="Failed", reason="Evicted"))
    assert isinstance(decide(ended, copy_of(NEW), may_run=False), PatchStatus)
    action = decide(ended, copy_of(PodStatus(phase="Running", reason="r")), may_run=True)
    assert isinstance(action, UpToDate)


def test_what_the_server_made_of_a_write_is_no_change_of_somebody_else() -> None:
    change = change_to()
    dropped = attrs.evolve(NEW, pod_ip="")
    record = written(change, copy_of(dropped, "6"))
    for version in ("6", "7"):
        copy = copy_of(dropped, version)
        assert decide(change, copy, record) == UpToDate(copy, change)
    # Nor is it written again for a change that says the same.
    again = change_to()
    assert decide(again, copy_of(dropped, "7"), record) == UpToDate(copy_of(dropped, "7"), again)


def test_what_somebody_else_writes_is_undone_but_not_often() -> None:
    change = change_to()
    record = written(change, copy_of(NEW, "6"), time=100.0)
    theirs = copy_of(attrs.evolve(NEW, phase="Unknown"), "7")
    assert decide(change, theirs, record, time=109.0) == Later()
    assert isinstance(decide(change, theirs, record, time=110.0), PatchStatus)
    # A change of our own does not wait for that.
    assert isinstance(decide(change_to(attrs.evolve(NEW, message="m")), theirs, record, time=101.0), PatchStatus)


def test_conditions_and_claims_of_others_are_none_of_our_business() -> None:
    change = change_to()
    record = written(change, copy_of(NEW, "6"))
    theirs = PodCondition(type="example.com/x", status="True")
    copy = copy_of(attrs.evolve(NEW, conditions=(READY, theirs)), "7")
    assert decide(change, copy, record) == UpToDate(copy, change)


@pytest.mark.parametrize(
    ("deleted", "finished", "phase", "mirror", "expected"),
    [
        (True, True, "Failed", False, DeletePod),
        (True, True, "Failed", True, UpToDate),
        (True, False, "Failed", False, UpToDate),
        (False, True, "Failed", False, UpToDate),
        (True, True, "Running", False, PatchStatus),
    ],
)
def test_when_an_object_is_deleted(
    deleted: bool, finished: bool, phase: str, mirror: bool, expected: type[WriteAction]
) -> None:
    change = change_to(PodStatus(phase="Failed"), finished=finished, static=mirror)
    copy = copy_of(PodStatus(phase=phase), deleted=deleted, mirror=mirror)
    assert isinstance(decide(change, copy), expected)


def test_newer_copies_win_and_versions_are_numbers() -> None:
    nine, ten = copy_of(version="9"), copy_of(version="10")
    assert newest(nine, ten) is ten
    assert newest(ten, nine) is ten
    assert newest(None, nine) is nine
    assert newest(nine, None) is nine
    assert newest(None, None) is None
    assert newest(copy_of(version=""), nine) is nine


def test_fields_that_the_server_does_not_keep_are_found() -> None:
    sent = to_dict(attrs.evolve(NEW, observed_generation=3, container_statuses=(running("a", started=True),)))
    served = to_dict(from_dict(PodStatus, sent))
    assert missing_fields(sent, served) == frozenset()
    del served["observedGeneration"], served["containerStatuses"][0]["started"]
    assert missing_fields(sent, served) == {"status.observedGeneration", "status.containerStatuses.started"}


# --- Failures --------------------------------------------------------------------------------------------------------


def refused(code: int, reason: str = "", message: str = "", retry_after: float | None = None) -> ApiStatusError:
    return ApiStatusError("PATCH /x", code, reason, message, retry_after=retry_after)


PRECONDITION = "Precondition failed: UID in precondition: a, UID in object meta: b"


@pytest.mark.parametrize(
    ("error", "count", "expected"),
    [
        (refused(404, "NotFound"), 1, ObjectGone()),
        (refused(409, "Conflict", PRECONDITION), 1, ObjectGone()),
        (refused(409, "Conflict"), 1, Retry(0.0, fetch=True)),
        (refused(409, "Conflict"), 3, Retry(0.0, fetch=True)),
        (refused(409, "Conflict"), 4, Retry(0.1, fetch=True)),
        (refused(422, "Invalid"), 1, Retry(0.0, fetch=True, sooner_for_change=True)),
        (refused(422, "Invalid"), 2, Retry(60.0, fetch=True, sooner_for_change=True)),
        (refused(400, "BadRequest"), 2, Retry(60.0, fetch=True, sooner_for_change=True)),
        (refused(403, "Forbidden"), 1, Retry(10.0)),
        (refused(401, "Unauthorized"), 1, Retry(0.1)),
        (refused(429, retry_after=4), 1, Retry(4)),
        (refused(503, retry_after=1), 9, Retry(10.0, fetch=True)),
        (refused(500), 1, Retry(0.1, fetch=True)),
        (refused(500), 4, Retry(0.8, fetch=True)),
        (ApiUnreachable("PATCH /x", "refused", sent=False), 1, Retry(0.1)),
        (ApiUnreachable("PATCH /x", "reset", sent=True), 2, Retry(0.2, fetch=True)),
        (ApiUnreachable("PATCH /x", "reset", sent=True), 10_000, Retry(10.0, fetch=True)),
        (ApiAnswerError("PATCH /x", "no JSON"), 1, Retry(0.1, fetch=True)),
        (CredentialsError("PATCH /x", "no token"), 1, Retry(0.1)),
    ],
)
def test_what_follows_a_failure(error: ApiError, count: int, expected: Retry | ObjectGone) -> None:
    failures, remedy = Failures(), None
    for _ in range(count):
        failures, remedy = after_failure(error, failures)
    assert remedy == expected
    assert failures.count == (0 if isinstance(expected, ObjectGone) else count)
