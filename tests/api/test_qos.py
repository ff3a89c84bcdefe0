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


def sidecar(requests: str = "", limits: str = "") -> dict[str, Any]:
    return {**one(requests, limits), "restartPolicy": "Always"}


def huge_pages(amount: str) -> dict[str, Any]:
    asked = {"cpu": "0", "memory": "0", "hugepages-2Mi": amount}
    return {"name": "c", "resources": {"requests": asked, "limits": asked}}


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
        # The kubelet's own cases.
        ({"containers": [one("100m/100Mi", "100m/100Mi"), one("100m/100Mi", "100m/100Mi")]}, "Guaranteed"),
        ({"containers": [one(), one()]}, "BestEffort"),
        ({"containers": [one(), one("1", "2")]}, "Burstable"),
        ({"containers": [one(), one("10m/100Mi", "10m/100Mi")]}, "Burstable"),
        ({"containers": [one("/100Mi", "/100Mi")]}, "Burstable"),
        ({"containers": [one("100m/100Mi")]}, "Burstable"),
        ({"containers": [one("1/100Mi", "2/100Mi"), one("100m/100Mi", "100m/100Mi")]}, "Burstable"),
        ({"containers": [one("100m/100Mi", "200m/200Mi"), one("100m/100Mi")]}, "Burstable"),
        ({"containers": [one("0/0", "100m/200Mi")]}, "Burstable"),
        ({"containers": [huge_pages("1Gi")]}, "BestEffort"),
        ({"containers": [one()], "initContainers": [one("10m/100Mi", "100m/200Mi")]}, "Burstable"),
        ({"containers": [one("3m/10Mi", "5m/20Mi")], "resources": resources("10m/1Gi", "10m/1Gi")}, "Guaranteed"),
        ({"containers": [one()], "resources": resources("10m/10Mi", "20m/50Mi")}, "Burstable"),
        ({"containers": [one("5m/10Mi", "5m/10Mi")], "resources": resources("10m/10Mi", "20m/50Mi")}, "Burstable"),
        ({"containers": [one("5m/10Mi")], "resources": resources("10m/10Mi")}, "Burstable"),
        (
            {"containers": [one("5m/10Mi"), one("5m/10Mi", "5m/10Mi")], "resources": resources("10m/10Mi", "5m")},
            "Burstable",
        ),
        # A sidecar counts as any container; what a pod as a whole cannot ask for does not stand for its containers.
        ({"containers": [one("1/1Gi", "1/1Gi")], "initContainers": [sidecar()]}, "Burstable"),
        ({"containers": [one("1/1Gi", "1/1Gi")], "initContainers": [sidecar("1/1Gi", "1/1Gi")]}, "Guaranteed"),
        ({"containers": [one("1")], "resources": {}}, "Burstable"),
        ({"containers": [one("1")], "resources": {"requests": {"example.com/card": "1"}}}, "Burstable"),
    ],
)
def test_the_class_follows_from_requests_and_limits(spec: dict[str, Any], expected: str) -> None:
    assert qos_class(pod_from_dict({"spec": spec})) == expected


def test_a_class_that_the_status_tells_is_not_computed_anew() -> None:
    assert qos_class(pod_from_dict({"spec": {"containers": [one()]}, "status": {"qosClass": "Guaranteed"}})) == (
        "Guaranteed"
    )
