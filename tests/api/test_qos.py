"""Who is spared when the node runs out: the kubelet's quality of service classes."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.api import pod_from_dict, qos_class


def resources(requests: str = "", limits: str = "") -> dict[str, Any]:
    """Each as `cpu/memory`; a missing part is left out."""

    def read(text: str) -> dict[str, str]:
        return {name: amount for name, amount in zip(("cpu", "memory"), text.split("/"), strict=False) if amount}

    return {"requests": read(requests), "limits": read(limits)}


def one(requests: str = "", limits: str = "") -> dict[str, Any]:
    return {"name": "c", "resources": resources(requests, limits)}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [one()]}, "BestEffort"),
        ({"containers": [one("0/0")]}, "BestEffort"),
        ({"containers": [one("1/1Gi", "1/1Gi")]}, "Guaranteed"),
        ({"containers": [one("1000m/1024Mi", "1/1Gi")]}, "Guaranteed"),
        ({"containers": [one("1/1Gi", "1/1Gi"), one()]}, "Burstable"),
        ({"containers": [one("1/1Gi", "2/1Gi")]}, "Burstable"),
        ({"containers": [one(limits="1/")]}, "Burstable"),
        ({"containers": [one("1/1Gi", "1/1Gi")], "initContainers": [one("1/")]}, "Burstable"),
        ({"containers": [one("1/1Gi", "1/1Gi")], "ephemeralContainers": [one("1/")]}, "Guaranteed"),
        ({"containers": [one()], "resources": resources("1/", "2/")}, "Burstable"),
        ({"containers": [one()], "resources": resources("1/1Gi", "1/1Gi")}, "Guaranteed"),
    ],
)
def test_the_class_follows_from_requests_and_limits(spec: dict[str, Any], expected: str) -> None:
    assert qos_class(pod_from_dict({"spec": spec})) == expected


def test_a_class_that_the_status_tells_is_not_computed_anew() -> None:
    assert qos_class(pod_from_dict({"spec": {"containers": [one()]}, "status": {"qosClass": "Guaranteed"}})) == (
        "Guaranteed"
    )
