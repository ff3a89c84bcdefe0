"""Pods and claims, as the API server has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trikubelet.api import ResourceClaimObject, from_dict, pod_from_dict

if TYPE_CHECKING:
    from trikubelet.api import Pod

NAMESPACE = "ns"
TOY = "toy.example.com"


def make_pod(uid: str, *claims: str, **spec: Any) -> Pod:
    """A pod that uses claims by their names; its container, too."""
    body = {
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": name} for name in claims]}}],
        "resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims],
        **spec,
    }
    return pod_from_dict({"metadata": {"name": f"pod-{uid}", "namespace": NAMESPACE, "uid": uid}, "spec": body})


def extended_pod(uid: str, claim: str, *, amount: str = "1", container: str = "main") -> Pod:
    """The scheduler took `example.com/gpu` of a container from a driver."""
    mapping = {"containerName": container, "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}
    resources = {"requests": {"example.com/gpu": amount}, "limits": {"example.com/gpu": amount}}
    return pod_from_dict(
        {
            "metadata": {"name": f"pod-{uid}", "namespace": NAMESPACE, "uid": uid},
            "spec": {
                "containers": [{"name": "main", "image": "x", "resources": resources}, {"name": "b", "image": "x"}]
            },
            "status": {
                "extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": [mapping]},
            },
        }
    )


def make_claim(
    name: str,
    *pods: str,
    drivers: tuple[str, ...] = (TOY,),
    uid: str = "",
    owner: dict[str, Any] | None = None,
    **status: Any,
) -> ResourceClaimObject:
    """Allocated, and reserved for pods with these UIDs."""
    results = [{"request": "r", "driver": driver, "pool": "pool", "device": "d"} for driver in drivers]
    metadata: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "uid": uid or f"{name}-uid"}
    if owner is not None:
        metadata["ownerReferences"] = [{"controller": True, **owner}]
    return from_dict(
        ResourceClaimObject,
        {
            "metadata": metadata,
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": f"pod-{pod}", "uid": pod} for pod in pods],
                **status,
            },
        },
    )
