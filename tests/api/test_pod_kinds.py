from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.pods.factories import make_mirror, make_pod, runtime_status
from trikubelet.api import pod_kinds
from trikubelet.container.model import nothing_runs

if TYPE_CHECKING:
    from trikubelet.api import Pod


def with_source(source: str | None) -> Pod:
    pod = make_pod("1")
    annotations = {} if source is None else {pod_kinds.CONFIG_SOURCE_ANNOTATION: source}
    return attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, annotations=annotations))


def with_priority(priority: int | None) -> Pod:
    pod = make_pod("1")
    return attrs.evolve(pod, spec=attrs.evolve(pod.spec, priority=priority))


@pytest.mark.parametrize(("source", "static"), [(None, False), ("api", False), ("file", True), ("http", True)])
def test_pods_of_files_and_urls_are_static(source: str | None, static: bool) -> None:
    assert pod_kinds.is_static_pod(with_source(source)) is static
    assert pod_kinds.pod_source(with_source(source)) == source


def test_a_mirror_pod_is_no_static_pod() -> None:
    pod = make_pod("1", static=True)
    mirror = make_mirror(pod, "m")
    assert pod_kinds.is_mirror_pod(mirror)
    assert not pod_kinds.is_static_pod(mirror)
    assert not pod_kinds.is_mirror_pod(pod)


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
    assert pod_kinds.is_critical_pod(pod) is critical


def test_nothing_runs_without_a_running_container_and_a_ready_sandbox() -> None:
    assert nothing_runs(runtime_status("1"))
    assert not nothing_runs(runtime_status("1", containers=True))
    assert not nothing_runs(runtime_status("1", sandbox=True))
