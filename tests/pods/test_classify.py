from __future__ import annotations

import attrs
import pytest

from tests.pods.factories import make_mirror, make_pod, runtime_status
from trikubelet.api import Container, Pod
from trikubelet.pods import classify


def with_source(source: str | None) -> Pod:
    pod = make_pod("1")
    annotations = {} if source is None else {classify.CONFIG_SOURCE_ANNOTATION: source}
    return attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, annotations=annotations))


def with_priority(priority: int | None, class_name: str = "") -> Pod:
    pod = make_pod("1")
    return attrs.evolve(pod, spec=attrs.evolve(pod.spec, priority=priority, priority_class_name=class_name))


@pytest.mark.parametrize(("source", "static"), [(None, False), ("api", False), ("file", True), ("http", True)])
def test_pods_of_files_and_urls_are_static(source: str | None, static: bool) -> None:
    assert classify.is_static_pod(with_source(source)) is static
    assert classify.pod_source(with_source(source)) == source


def test_a_mirror_pod_shows_one_version_of_one_static_pod() -> None:
    pod = make_pod("1", static=True)
    mirror = make_mirror(pod, "m")
    assert classify.is_mirror_pod(mirror)
    assert not classify.is_static_pod(mirror)
    assert not classify.is_mirror_pod(pod)
    assert classify.is_mirror_pod_of(mirror, pod)
    assert not classify.is_mirror_pod_of(mirror, make_pod("2", static=True))
    assert not classify.is_mirror_pod_of(mirror, make_pod("1", "other", static=True))
    assert not classify.is_mirror_pod_of(pod, pod)


@pytest.mark.parametrize(
    ("pod", "critical"),
    [
        (make_pod("1"), False),
        (make_pod("1", static=True), True),
        (make_mirror(make_pod("1", static=True), "m"), True),
        (with_priority(1_999_999_999), False),
        (with_priority(2_000_000_000), True),
        (with_priority(None), False),
    ],
)
def test_critical_pods(pod: Pod, critical: bool) -> None:
    assert classify.is_critical_pod(pod) is critical


def test_a_node_critical_pod_has_the_class_and_the_priority() -> None:
    assert classify.is_node_critical_pod(with_priority(2_000_001_000, "system-node-critical"))
    assert not classify.is_node_critical_pod(with_priority(2_000_000_000, "system-cluster-critical"))
    assert not classify.is_node_critical_pod(with_priority(1, "system-node-critical"))


def test_who_may_preempt_whom() -> None:
    assert classify.may_preempt(make_pod("1", static=True), make_pod("2"))
    assert not classify.may_preempt(make_pod("1"), make_pod("2"))
    assert classify.may_preempt(with_priority(2), with_priority(1))
    assert not classify.may_preempt(with_priority(1), with_priority(1))
    assert not classify.may_preempt(with_priority(1), with_priority(None))


def test_a_sidecar_is_an_init_container_that_is_always_restarted() -> None:
    pod = make_pod("1")
    sidecar = attrs.evolve(
        pod.spec, init_containers=(Container(name="a"), Container(name="b", restart_policy="Always"))
    )
    assert not classify.has_restartable_init_container(pod)
    assert classify.has_restartable_init_container(attrs.evolve(pod, spec=sidecar))


def test_nothing_runs_without_a_running_container_and_a_ready_sandbox() -> None:
    assert classify.nothing_runs(runtime_status("1"))
    assert not classify.nothing_runs(runtime_status("1", containers=True))
    assert not classify.nothing_runs(runtime_status("1", sandbox=True))
