"""What a pod needs as a whole: sums beside each other, maxima one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.api import Quantity, aggregate_container_requests, pod_from_dict, pod_limits, pod_requests


def one(name: str, cpu: str, *, sidecar: bool = False) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}
    return {**container, "restartPolicy": "Always"} if sidecar else container


@pytest.mark.parametrize(
    ("init", "regular", "expected"),
    [
        ([], [one("a", "1"), one("b", "2")], "3"),
        ([one("i", "5")], [one("a", "1"), one("b", "2")], "5"),
        ([one("i", "2"), one("j", "1")], [one("a", "1")], "2"),
        # A sidecar runs beside the containers and beside the init containers after it.
        ([one("s", "1", sidecar=True)], [one("a", "1")], "2"),
        ([one("s", "1", sidecar=True), one("i", "5")], [one("a", "1")], "6"),
        ([one("i", "5"), one("s", "1", sidecar=True)], [one("a", "1")], "5"),
        ([one("i", "5"), one("s", "2", sidecar=True), one("j", "4")], [one("a", "1")], "6"),
    ],
)
def test_requests_of_containers_add_up(init: list[Any], regular: list[Any], expected: str) -> None:
    pod = pod_from_dict({"spec": {"initContainers": init, "containers": regular}})
    assert aggregate_container_requests(pod) == {"cpu": Quantity(expected)}


def test_overhead_comes_on_top_of_requests_and_of_limits_that_exist() -> None:
    pod = pod_from_dict({"spec": {"containers": [one("a", "1")], "overhead": {"cpu": "250m", "memory": "1Mi"}}})
    assert pod_requests(pod) == {"cpu": Quantity("1250m"), "memory": Quantity("1Mi")}
    assert pod_limits(pod) == {"cpu": Quantity("1250m")}
    assert pod_requests(pod, overhead=False) == pod_limits(pod, overhead=False) == {"cpu": Quantity("1")}


def test_pod_level_resources_win_over_the_containers() -> None:
    spec = {"containers": [one("a", "1")], "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}}
    pod = pod_from_dict({"spec": spec})
    assert pod_requests(pod) == {"cpu": Quantity("3")}
    assert pod_limits(pod) == {"cpu": Quantity("4")}
