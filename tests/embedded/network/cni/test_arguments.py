"""What plugins are told of a pod."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trikubelet.embedded.network.cni.arguments import capability_arguments, cni_arguments
from trikubelet.embedded.network.cni.documents import CniDataError
from trikubelet.embedded.network.model import PodNetworkSpec, PortMapping

POD = PodNetworkSpec(sandbox_id="5a", namespace="default", name="web-0", uid="uid-1")


def test_every_plugin_is_told_whose_sandbox_it_is() -> None:
    assert dict(cni_arguments(POD)) == {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": "default",
        "K8S_POD_NAME": "web-0",
        "K8S_POD_INFRA_CONTAINER_ID": "5a",
        "K8S_POD_UID": "uid-1",
    }


@pytest.mark.parametrize(
    "changes", [{"name": "a;IP=10.0.0.1"}, {"uid": "a=b"}, {"namespace": "a\0b"}, {"sandbox_id": "a/b"}, {"name": "\n"}]
)
def test_a_name_that_would_add_arguments_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CniDataError):
        cni_arguments(attrs.evolve(POD, **changes))


def test_what_a_pod_does_not_have_is_not_said() -> None:
    assert capability_arguments(POD) == {}


def test_capabilities_are_as_the_conventions_name_them() -> None:
    annotations = {"kubernetes.io/ingress-bandwidth": "10M", "a": "b"}
    pod = attrs.evolve(
        POD,
        ports=(
            PortMapping(host_port=8080, container_port=80),
            PortMapping(host_port=53, container_port=53, protocol="UDP", host_ip="127.0.0.1"),
            PortMapping(host_port=0, container_port=9),
        ),
        annotations=annotations,
        cgroup_parent="/kubepods/pod1",
    )
    assert capability_arguments(pod) == {
        "portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
            {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"},
        ],
        "bandwidth": {"ingressRate": 10_000_000, "ingressBurst": 2**32 - 1},
        "cgroupPath": "/kubepods/pod1",
        "io.kubernetes.cri.pod-annotations": annotations,
    }


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1k", 1000),
        ("1P", 10**15),
        ("1.5Mi", 1572864),
        ("1e6", 10**6),
        ("2500000m", 2500),
        ("1000.1", 1001),
        (".5M", 500_000),
    ],
)
def test_bandwidth_is_a_quantity(text: str, bits: int) -> None:
    pod = attrs.evolve(POD, annotations={"kubernetes.io/egress-bandwidth": text})
    told: dict[str, Any] = capability_arguments(pod)
    assert told["bandwidth"] == {"egressRate": bits, "egressBurst": 2**32 - 1}


@pytest.mark.parametrize("text", ["", "fast", "999", "2P", "-1M", "1e99", "1e999999999", "10 M", "1" * 99, "1Q", "٣M"])
def test_a_bandwidth_that_is_none_or_unreasonable_is_refused(text: str) -> None:
    with pytest.raises(CniDataError, match="annotation kubernetes"):
        capability_arguments(attrs.evolve(POD, annotations={"kubernetes.io/ingress-bandwidth": text}))
