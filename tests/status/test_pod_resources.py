"""The kubelet's `Test_generateAPIPodStatus` rows of pod-level resources as facts, and what the pod's cgroup adds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.status.builders import observed, pod, seen
from trikubelet.api import Container, Pod, PodStatus, Quantity, ResourceRequirements
from trikubelet.status.generate import generate_pod_status
from trikubelet.status.resources import with_pod_resources

ONE = {"cpu": "100m", "memory": "100Mi"}
TWO = {"cpu": "200m", "memory": "200Mi"}


def resources(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> ResourceRequirements:
    return ResourceRequirements(requests=amounts(requests), limits=amounts(limits))


def amounts(of: dict[str, str] | None) -> dict[str, Quantity]:
    return {name: Quantity(amount) for name, amount in (of or {}).items()}


def container(name: str, requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> Container:
    return Container(name=name, resources=resources(requests, limits))


def shown(of: Pod, phase: str) -> tuple[ResourceRequirements | None, dict[str, Quantity]]:
    status = with_pod_resources(of, PodStatus(phase=phase))
    return status.resources, status.allocated_resources


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
@pytest.mark.parametrize(
    ("containers", "init", "of_pod", "expected", "allocated"),
    [
        ([container("a", ONE, TWO)], [], resources(ONE, TWO), resources(ONE, TWO), ONE),
        ([container("a", TWO)], [container("i", ONE)], resources(TWO), resources(TWO), TWO),
        ([container("a"), container("b")], [], None, resources(), {}),
        (
            [container("a", {"cpu": "100m"})],
            [],
            resources({"cpu": "100m"}),
            resources({"cpu": "100m"}),
            {"cpu": "100m"},
        ),
        (
            [container("a", {"memory": "1Mi"})],
            [],
            resources({"memory": "1Mi"}),
            resources({"memory": "1Mi"}),
            {"memory": "1Mi"},
        ),
        (
            [container("a", {"cpu": "0", "memory": "0"})],
            [],
            resources({"cpu": "0", "memory": "0"}),
            resources({"cpu": "0", "memory": "0"}),
            {"cpu": "0", "memory": "0"},
        ),
    ],
)
def test_the_kubelets_rows(
    phase: str,
    containers: list[Container],
    init: list[Container],
    of_pod: ResourceRequirements | None,
    expected: ResourceRequirements,
    allocated: dict[str, str],
) -> None:
    of = pod(*containers, init=tuple(init), resources=of_pod)
    assert shown(of, phase) == (expected, amounts(allocated))


def test_a_pod_without_resources_of_its_own_shows_those_of_its_containers() -> None:
    of = pod(container("a", ONE, TWO), container("b", ONE, TWO))
    assert shown(of, "Running") == (resources(TWO, {"cpu": "400m", "memory": "400Mi"}), amounts(TWO))


@pytest.mark.parametrize(
    ("containers", "limits"),
    [
        ([container("a", ONE, TWO), container("b", ONE)], {}),
        ([container("a", ONE, TWO), container("b", ONE, {"cpu": "1"})], {"cpu": "1200m"}),
    ],
)
def test_a_running_pod_has_a_limit_only_when_all_in_it_have_one(
    containers: list[Container], limits: dict[str, str]
) -> None:
    now, _ = shown(pod(*containers), "Running")
    assert now is not None
    assert now.limits == amounts(limits)
    before, _ = shown(pod(*containers), "Pending")
    assert before is not None
    assert before.limits["cpu"] >= Quantity("200m")


def test_what_a_cgroup_does_not_enforce_is_not_shown_of_a_running_pod() -> None:
    wanted: dict[str, Any] = {"cpu": "1m", "memory": "1Gi", "ephemeral-storage": "1Gi", "example.com/gpu": "1"}
    of = pod(container("a", wanted))
    now, allocated = shown(of, "Running")
    assert now == resources({"memory": "1Gi"})
    assert allocated == amounts(wanted)
    assert shown(of, "Pending")[0] == resources(wanted)


def test_a_generated_status_has_them() -> None:
    of = pod(container("a", ONE))
    status = generate_pod_status(of, observed(seen("a")), previous=PodStatus(), waiting_reasons={})
    assert (status.resources, status.allocated_resources) == (resources(ONE), amounts(ONE))
