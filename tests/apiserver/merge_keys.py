"""Which lists a strategic merge patch merges, and by which key; every other list is replaced as a whole.

Facts from the `patchStrategy` and `patchMergeKey` tags of `k8s.io/api`. Notable for what is missing: container
statuses, taints, tolerations and images are replaced.
"""

from __future__ import annotations

from typing import Final

PRIMITIVE: Final = ""
"""Instead of a key: a list of strings that is merged as a set."""

_CONTAINER: Final = {
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
_METADATA: Final = {"metadata.ownerReferences": "uid", "metadata.finalizers": PRIMITIVE}
_POD: Final = {
    "spec.volumes": "name",
    "spec.imagePullSecrets": "name",
    "spec.hostAliases": "ip",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.resourceClaims": "name",
    "spec.schedulingGates": "name",
    "status.conditions": "type",
    "status.hostIPs": "ip",
    "status.podIPs": "ip",
    "status.resourceClaimStatuses": "name",
    **{f"spec.{which}": "name" for which in ("containers", "initContainers", "ephemeralContainers")},
    **{
        f"spec.{which}.{field}": key
        for which in ("containers", "initContainers", "ephemeralContainers")
        for field, key in _CONTAINER.items()
    },
}
_BY_KIND: Final[dict[str, dict[str, str]]] = {
    "Pod": _POD,
    "Node": {"status.conditions": "type", "status.addresses": "type", "spec.podCIDRs": PRIMITIVE},
    "Service": {"spec.ports": "port", "status.conditions": "type"},
    "ServiceAccount": {"secrets": "name"},
    "Namespace": {"status.conditions": "type"},
    "CSINode": {"spec.drivers": "name"},
    "PersistentVolumeClaim": {"status.conditions": "type"},
}


def merge_keys(kind: str) -> dict[str, str]:
    """Path of each merged list (without indices) → its key, or PRIMITIVE."""
    return {**_METADATA, **_BY_KIND.get(kind, {})}
