"""Which objects a pod refers to: its node's agent may read those and no others, and a mirror pod may have none.

Through its claims a pod refers to persistent volumes too, and through those to secrets of any namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.apiserver.documents import Document, dig, items

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTAINER_LISTS: Final = ("containers", "initContainers", "ephemeralContainers")
_HARMLESS_VOLUMES: Final = frozenset(
    [
        "name",
        "awsElasticBlockStore",
        "azureDisk",
        "cephfs",
        "cinder",
        "downwardAPI",
        "emptyDir",
        "fc",
        "flexVolume",
        "flocker",
        "gcePersistentDisk",
        "gitRepo",
        "hostPath",
        "image",
        "iscsi",
        "nfs",
        "photonPersistentDisk",
        "portworxVolume",
        "quobyte",
        "rbd",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    ]
)
_REFERRING_VOLUMES: Final = {
    "configMap": "configmaps (via configmap volumes)",
    "secret": "secrets (via secret volumes)",
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistentVolumeClaim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "azureFile": "secrets (via azureFile volumes)",
}
_REFERRING_SOURCES: Final = {
    "configMap": "configmaps (via projected volumes)",
    "secret": "secrets (via projected volumes)",
    "serviceAccountToken": "serviceaccounts (via projected volumes)",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
}


def _environment(pod: Document) -> Iterator[Document]:
    for field in _CONTAINER_LISTS:
        for container in items(pod, "spec", field):
            yield from items(container, "envFrom")
            for variable in items(container, "env"):
                yield variable.get("valueFrom") or {}


def _sources(pod: Document) -> Iterator[Document]:
    for volume in items(pod, "spec", "volumes"):
        yield from items(volume, "projected", "sources")


def _names(*found: Any) -> set[str]:
    return {str(name) for name in found if name}


def secret_names(pod: Document) -> set[str]:
    """By pull secrets, environment and volumes."""
    names = {str(secret.get("name")) for secret in items(pod, "spec", "imagePullSecrets") if secret.get("name")}
    for place in _environment(pod):
        names |= _names(dig(place, "secretRef", "name"), dig(place, "secretKeyRef", "name"))
    for volume in items(pod, "spec", "volumes"):
        names |= _names(dig(volume, "secret", "secretName"), dig(volume, "azureFile", "secretName"))
        for kind in ("cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"):
            names |= _names(dig(volume, kind, "secretRef", "name"))
        names |= _names(dig(volume, "csi", "nodePublishSecretRef", "name"))
    for source in _sources(pod):
        names |= _names(dig(source, "secret", "name"))
    return names


def config_map_names(pod: Document) -> set[str]:
    """By environment and volumes."""
    names = set()
    for place in _environment(pod):
        names |= _names(dig(place, "configMapRef", "name"), dig(place, "configMapKeyRef", "name"))
    for volume in items(pod, "spec", "volumes"):
        names |= _names(dig(volume, "configMap", "name"))
    for source in _sources(pod):
        names |= _names(dig(source, "configMap", "name"))
    return names


def claim_names(pod: Document) -> set[str]:
    """Of persistent volume claims, those made for ephemeral volumes included."""
    names = set()
    for volume in items(pod, "spec", "volumes"):
        names |= _names(dig(volume, "persistentVolumeClaim", "claimName"))
        if volume.get("ephemeral"):
            names.add(f"{dig(pod, 'metadata', 'name')}-{volume.get('name')}")
    return names


def resource_claim_names(pod: Document) -> set[str]:
    """Of resource claims: those that it names, and those that were made for it."""
    names = _names(*(claim.get("resourceClaimName") for claim in items(pod, "spec", "resourceClaims")))
    names |= _names(*(status.get("resourceClaimName") for status in items(pod, "status", "resourceClaimStatuses")))
    return names | _names(dig(pod, "status", "extendedResourceClaimStatus", "resourceClaimName"))


def secrets_of_volume(volume: Document) -> set[tuple[str, str]]:
    """Namespaces and names of the secrets that a node needs to mount a persistent volume. Those for attaching and
    growing it are for controllers only."""
    claim = str(dig(volume, "spec", "claimRef", "namespace") or "")
    references = [
        dig(volume, "spec", "csi", field)
        for field in ("nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef")
    ]
    for kind in ("cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"):
        references.append(dig(volume, "spec", kind, "secretRef"))
    azure = dig(volume, "spec", "azureFile") or {}
    references.append({"name": azure.get("secretName"), "namespace": azure.get("secretNamespace")})
    return {(str(one.get("namespace") or claim), str(one["name"])) for one in references if one and one.get("name")}


def csi_drivers(pod: Document) -> set[str]:
    """Of its inline volumes."""
    return _names(*(dig(volume, "csi", "driver") for volume in items(pod, "spec", "volumes")))


def service_account_names(pod: Document) -> set[str]:
    return _names(dig(pod, "spec", "serviceAccountName"))


def audiences(pod: Document) -> set[str]:
    """For which the pod's volumes want tokens; the empty one stands for the server's own."""
    found = (source.get("serviceAccountToken") for source in _sources(pod))
    return {str(token.get("audience") or "") for token in found if token is not None}


def first_reference(pod: Document) -> str:
    """What of the API the pod refers to, in the server's words; empty for a pod that can live without."""
    if dig(pod, "spec", "serviceAccountName"):
        return "serviceaccounts"
    environment = list(_environment(pod))
    if items(pod, "spec", "imagePullSecrets") or any("secretRef" in e or "secretKeyRef" in e for e in environment):
        return "secrets"
    if any("configMapRef" in e or "configMapKeyRef" in e for e in environment):
        return "configmaps"
    if items(pod, "spec", "resourceClaims"):
        return "resourceclaims"
    for volume in items(pod, "spec", "volumes"):
        for kind in volume:
            if kind in _REFERRING_VOLUMES:
                return _REFERRING_VOLUMES[kind]
        for source in items(volume, "projected", "sources"):
            for kind in source:
                if kind in _REFERRING_SOURCES:
                    return _REFERRING_SOURCES[kind]
        if not _HARMLESS_VOLUMES.issuperset(set(volume) - {"projected"}):
            return f"unknown volume type for volume {volume.get('name')!r}"
    return ""
