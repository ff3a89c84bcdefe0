"""Backoffs, grace periods and the reasons of waiting containers."""

from __future__ import annotations

import attrs
import pytest

from trikubelet.api import Container, ObjectMeta, Pod, PodSpec, Probe
from trikubelet.runtime.backoff import KeyedBackoff
from trikubelet.runtime.kill import termination_grace_period
from trikubelet.runtime.plan import KillReason
from trikubelet.runtime.results import MAX_ENTRIES, SyncAction, SyncResult, WaitingReasons


def test_waits_double_from_ten_seconds_to_five_minutes() -> None:
    backoff = KeyedBackoff.for_containers()
    waits = []
    now = 0.0
    for _ in range(7):
        backoff.advance("key", now, now)
        waits.append(backoff.wait_of("key"))
        now += waits[-1]
    assert waits == [10, 20, 40, 80, 160, 300, 300]


def test_a_container_waits_from_its_end_on() -> None:
    backoff = KeyedBackoff.for_containers()
    backoff.advance("key", 0, 0)
    assert backoff.in_backoff_since("key", 5, 14.9)
    assert not backoff.in_backoff_since("key", 5, 15)


def test_a_container_that_ran_for_more_than_ten_minutes_starts_over() -> None:
    backoff = KeyedBackoff.for_containers()
    backoff.advance("key", 0, 0)
    backoff.advance("key", 0, 10)
    assert not backoff.in_backoff_since("key", 611, 611)
    backoff.advance("key", 611, 611)
    assert backoff.wait_of("key") == 10


def test_ten_minutes_reset_a_container_whatever_the_maximum_is() -> None:
    backoff = KeyedBackoff.for_containers(maximum=30)
    backoff.advance("key", 0, 0)
    backoff.advance("key", 100, 100)
    assert backoff.wait_of("key") == 20


def test_a_maximum_below_ten_seconds_is_the_first_wait() -> None:
    backoff = KeyedBackoff.for_containers(maximum=1)
    backoff.advance("key", 0, 0)
    assert backoff.wait_of("key") == 1


def test_image_waits_run_from_the_failure_and_reset_after_twice_the_maximum() -> None:
    backoff = KeyedBackoff.for_images()
    backoff.advance("key", 100, 100)
    assert backoff.in_backoff_since_update("key", 109.9)
    assert not backoff.in_backoff_since_update("key", 110)
    assert backoff.expires_at("key") == 110
    backoff.advance("key", 701, 701)
    assert backoff.wait_of("key") == 10


def test_unknown_keys_do_not_wait() -> None:
    backoff = KeyedBackoff.for_images()
    assert not backoff.in_backoff_since("key", 0, 0)
    assert not backoff.in_backoff_since_update("key", 0)
    assert backoff.wait_of("key") == 0


def test_collecting_forgets_expired_keys_only() -> None:
    backoff = KeyedBackoff.for_containers()
    backoff.advance("old", 0, 0)
    backoff.advance("new", 500, 500)
    backoff.collect(700)
    assert len(backoff) == 1
    assert backoff.wait_of("new") == 10
    backoff.reset("new")
    assert len(backoff) == 0


SHORT, MEDIUM, LONG = 10, 20, 30


def pod_of(container: Container, grace: int | None) -> Pod:
    return Pod(spec=PodSpec(containers=(container,), termination_grace_period_seconds=grace))


def with_probes(*, startup: int | None = None, liveness: int | None = None) -> Container:
    return Container(
        name="foo",
        startup_probe=None if startup is None else Probe(termination_grace_period_seconds=startup),
        liveness_probe=None if liveness is None else Probe(termination_grace_period_seconds=liveness),
    )


@pytest.mark.parametrize(
    ("container", "grace", "reason", "expected"),
    [
        (with_probes(), None, KillReason.UNKNOWN, 2),
        (with_probes(), LONG, KillReason.UNKNOWN, LONG),
        (with_probes(liveness=SHORT), LONG, KillReason.LIVENESS_PROBE, SHORT),
        (with_probes(startup=SHORT), LONG, KillReason.STARTUP_PROBE, SHORT),
        (with_probes(startup=LONG), SHORT, KillReason.STARTUP_PROBE, LONG),
        (with_probes(liveness=LONG), SHORT, KillReason.LIVENESS_PROBE, LONG),
        (with_probes(liveness=SHORT), LONG, KillReason.UNKNOWN, LONG),
        (with_probes(startup=SHORT), LONG, KillReason.UNKNOWN, LONG),
        (with_probes(startup=SHORT, liveness=MEDIUM), LONG, KillReason.UNKNOWN, LONG),
        (with_probes(startup=SHORT, liveness=MEDIUM), LONG, KillReason.STARTUP_PROBE, SHORT),
        (with_probes(startup=SHORT, liveness=MEDIUM), LONG, KillReason.LIVENESS_PROBE, MEDIUM),
    ],
)
def test_grace_periods_are_the_kubelets(
    container: Container, grace: int | None, reason: KillReason, expected: int
) -> None:
    assert termination_grace_period(pod_of(container, grace), container, reason) == expected


def test_a_deleted_pods_grace_period_wins() -> None:
    container = with_probes(liveness=SHORT)
    pod = attrs.evolve(pod_of(container, LONG), metadata=ObjectMeta(deletion_grace_period_seconds=7))
    assert termination_grace_period(pod, container, KillReason.LIVENESS_PROBE) == 7


def start_of(container: str, reason: str = "", message: str = "") -> SyncResult:
    return SyncResult(SyncAction.START_CONTAINER, container, reason, message)


def test_the_reason_of_a_failed_start_stays_until_a_start_succeeds() -> None:
    reasons = WaitingReasons()
    reasons.record("uid", start_of("web", "ErrImagePull", "no"))
    reasons.record("uid", start_of("web", "ImagePullBackOff", "wait"))
    reasons.record("other", start_of("web", "CrashLoopBackOff", "back-off"))
    assert reasons.of_pod("uid") == {"web": ("ImagePullBackOff", "wait")}
    reasons.record("uid", start_of("web"))
    assert reasons.of_pod("uid") == {}
    assert reasons.of_pod("other") != {}


def test_the_oldest_reasons_go_when_there_are_too_many() -> None:
    reasons = WaitingReasons()
    for number in range(MAX_ENTRIES + 1):
        reasons.record(str(number), start_of("web", "ErrImagePull", "no"))
    assert reasons.of_pod("0") == {}
    assert reasons.of_pod(str(MAX_ENTRIES)) != {}
