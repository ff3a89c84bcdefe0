"""What is counted of probes."""

from __future__ import annotations

from trikubelet.api import ObjectMeta, Pod
from trikubelet.container.probe_results import ProbeResult
from trikubelet.probes.metrics import BUCKETS, ProbeMetrics, ProbeSamples
from trikubelet.probes.types import ProbeKey, ProbeKind

SUCCESS, FAILURE = ProbeResult.SUCCESS, ProbeResult.FAILURE


def pod(uid: str = "u") -> Pod:
    return Pod(metadata=ObjectMeta(name="web", namespace="shop", uid=uid))


def key(uid: str = "u", kind: ProbeKind = ProbeKind.LIVENESS) -> ProbeKey:
    return ProbeKey(uid, "c", kind)


def test_results_are_counted_with_the_kubelets_labels() -> None:
    metrics = ProbeMetrics()
    metrics.count(key(), pod(), SUCCESS, 0.1)
    metrics.count(key(), pod(), SUCCESS, 0.1)
    metrics.count(key(), pod(), FAILURE, None)
    metrics.count(key(kind=ProbeKind.STARTUP), pod(), ProbeResult.UNKNOWN, 0.1)
    totals = metrics.samples().totals
    assert totals[0].labels == {
        "probe_type": "Liveness",
        "result": "successful",
        "container": "c",
        "pod": "web",
        "namespace": "shop",
        "pod_uid": "u",
    }
    found = [(one.labels["probe_type"], one.labels["result"], one.value) for one in totals]
    assert found == [("Liveness", "successful", 2), ("Liveness", "failed", 1), ("Startup", "unknown", 1)]


def test_durations_fall_into_buckets_with_their_bounds_included() -> None:
    metrics = ProbeMetrics()
    for seconds in (0.001, 0.005, 0.0051, 1.0, 10.0, 11.0):
        metrics.count(key(), pod(), SUCCESS, seconds)
    (durations,) = metrics.samples().durations
    assert durations.labels == {"probe_type": "Liveness", "container": "c", "pod": "web", "namespace": "shop"}
    assert dict(zip((*BUCKETS, None), durations.buckets, strict=True)) == {
        0.005: 2,
        0.01: 3,
        0.025: 3,
        0.05: 3,
        0.1: 3,
        0.25: 3,
        0.5: 3,
        1.0: 4,
        2.5: 4,
        5.0: 4,
        10.0: 5,
        None: 6,
    }
    assert durations.count == 6
    assert durations.sum == 0.001 + 0.005 + 0.0051 + 1.0 + 10.0 + 11.0


def test_a_failure_has_no_duration() -> None:
    metrics = ProbeMetrics()
    metrics.count(key(), pod(), FAILURE, None)
    assert metrics.samples().durations == ()


def test_a_pod_and_its_successor_of_the_same_name_share_their_durations() -> None:
    metrics = ProbeMetrics()
    metrics.count(key("old"), pod("old"), SUCCESS, 0.5)
    metrics.count(key("new"), pod("new"), SUCCESS, 2.0)
    (durations,) = metrics.samples().durations
    assert (durations.count, durations.sum) == (2, 2.5)
    assert [one.labels["pod_uid"] for one in metrics.samples().totals] == ["old", "new"]


def test_a_worker_that_is_gone_leaves_nothing() -> None:
    metrics = ProbeMetrics()
    metrics.count(key(), pod(), SUCCESS, 0.5)
    metrics.drop(key())
    metrics.drop(key("unknown"))
    assert metrics.samples() == ProbeSamples((), ())
