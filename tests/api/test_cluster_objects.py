"""Objects as an API server sends them, and as it expects them."""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from trikubelet.api import (
    APIObject,
    BoundObjectReference,
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestSpec,
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    DeleteOptions,
    KubernetesObject,
    ObjectMeta,
    Preconditions,
    RuntimeClass,
    Service,
    ServicePort,
    ServiceSpec,
    Status,
    StatusCause,
    StatusDetails,
    TokenRequest,
    TokenRequestSpec,
    TokenRequestStatus,
    VolumeNodeResources,
    from_dict,
    to_dict,
)


def test_a_service_is_read_and_written_back_with_what_has_no_name_here() -> None:
    wire: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "redis", "namespace": "prod", "resourceVersion": "7"},
        "spec": {
            "clusterIP": "10.0.0.11",
            "clusterIPs": ["10.0.0.11"],
            "ports": [{"name": "main", "protocol": "TCP", "port": 6379, "targetPort": "redis", "nodePort": 30001}],
            "selector": {"app": "redis"},
            "sessionAffinity": "None",
            "type": "NodePort",
        },
        "status": {"loadBalancer": {}},
    }
    service = from_dict(Service, wire)
    assert service.spec == ServiceSpec(
        cluster_ip="10.0.0.11",
        cluster_ips=("10.0.0.11",),
        ports=(ServicePort(name="main", protocol="TCP", port=6379, target_port="redis", node_port=30001),),
        type="NodePort",
        unknown_fields={"selector": {"app": "redis"}, "sessionAffinity": "None"},
    )
    assert service.unknown_fields == {"status": {"loadBalancer": {}}}
    written = to_dict(service)
    assert from_dict(Service, written) == service
    assert written["spec"] == wire["spec"]


def test_a_runtime_class_keeps_its_overhead_unread() -> None:
    wire = {"metadata": {"name": "gvisor"}, "handler": "runsc", "overhead": {"podFixed": {"cpu": "250m"}}}
    runtime_class = from_dict(RuntimeClass, wire)
    assert runtime_class.handler == "runsc"
    assert runtime_class.unknown_fields == {"overhead": {"podFixed": {"cpu": "250m"}}}


@pytest.mark.parametrize(
    ("obj", "wire"),
    [
        pytest.param(
            CSINode(metadata=ObjectMeta(name="a")),
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSINode",
                "metadata": {"name": "a"},
                "spec": {"drivers": []},
            },
            id="the list of drivers is written although it is empty",
        ),
        pytest.param(
            CSINodeSpec(drivers=(CSINodeDriver("nfs", "id-1", ("zone",), VolumeNodeResources(count=0)),)),
            {"drivers": [{"name": "nfs", "nodeID": "id-1", "topologyKeys": ["zone"], "allocatable": {"count": 0}}]},
            id="no volumes at all is a limit",
        ),
        pytest.param(
            TokenRequestSpec(audiences=("vault",), bound_object_ref=BoundObjectReference("Pod", "v1", "web", "u1")),
            {
                "audiences": ["vault"],
                "expirationSeconds": None,
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": "u1"},
            },
            id="the server chooses how long a token lives",
        ),
        pytest.param(
            DeleteOptions(grace_period_seconds=0, preconditions=Preconditions(uid="u1")),
            {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": "u1"}},
            id="grace period zero is written",
        ),
        pytest.param(
            DeleteOptions(), {"apiVersion": "v1", "kind": "DeleteOptions"}, id="no grace period: the object's own"
        ),
        pytest.param(
            CertificateSigningRequestSpec(
                b"PEM", "kubernetes.io/kubelet-serving", usages=("digital signature", "server auth")
            ),
            {
                "request": base64.b64encode(b"PEM").decode(),
                "signerName": "kubernetes.io/kubelet-serving",
                "usages": ["digital signature", "server auth"],
            },
            id="a signing request",
        ),
    ],
)
def test_an_object_is_written_as_the_server_expects_it(obj: APIObject, wire: dict[str, Any]) -> None:
    assert to_dict(obj) == wire
    assert from_dict(type(obj), wire) == obj


def test_an_approved_signing_request_brings_its_certificate() -> None:
    approved = {
        "type": "Approved",
        "status": "True",
        "reason": "AutoApproved",
        "lastUpdateTime": "2026-01-31T12:00:00Z",
    }
    request = from_dict(
        CertificateSigningRequest,
        {
            "metadata": {"name": "csr-x", "uid": "u"},
            "spec": {"request": "UEVN", "signerName": "s", "username": "system:node:a", "groups": ["system:nodes"]},
            "status": {"conditions": [approved], "certificate": base64.b64encode(b"chain").decode()},
        },
    )
    assert request.spec.request == b"PEM"
    assert request.status.certificate == b"chain"
    time = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert request.status.conditions == (
        CertificateSigningRequestCondition("Approved", "True", "AutoApproved", last_update_time=time),
    )


def test_a_token_is_not_shown() -> None:
    request = TokenRequest(status=TokenRequestStatus(token="eyJhbGciOi"))
    assert "eyJ" not in repr(request)
    assert to_dict(request)["status"]["token"] == "eyJhbGciOi"


def test_a_refusal_names_the_object_and_its_causes() -> None:
    status = from_dict(
        Status,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": 'Pod "x" is invalid: spec.nodeName: Forbidden: may not be changed',
            "reason": "Invalid",
            "details": {
                "name": "x",
                "kind": "Pod",
                "causes": [
                    {"reason": "FieldValueForbidden", "message": "may not be changed", "field": "spec.nodeName"}
                ],
            },
            "code": 422,
        },
    )
    assert status.code == 422
    cause = StatusCause("FieldValueForbidden", "may not be changed", "spec.nodeName")
    assert status.details == StatusDetails(name="x", kind="Pod", causes=(cause,))


def kinds() -> list[type[KubernetesObject]]:
    """Those that modules define. Python also lists a class that its decorator has replaced, until it is collected."""
    return [
        cls
        for cls in KubernetesObject.__subclasses__()
        if getattr(sys.modules[cls.__module__], cls.__name__, None) is cls
    ]


@pytest.mark.parametrize("cls", kinds(), ids=lambda cls: cls.__name__)
def test_a_whole_object_says_what_it_is(cls: type[KubernetesObject]) -> None:
    obj = cls(metadata=ObjectMeta(name="a"))
    assert obj.kind == cls.__name__.removesuffix("Object"), "ResourceClaim is what a container says, too"
    assert obj.api_version
    assert obj.metadata.name == "a"
