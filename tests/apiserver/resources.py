"""The table of what the server serves: names, and which fields a selector may ask for.

The table is the server's own and not the agent's: a wrong path in the agent is to be seen here as a 404.
"""

from __future__ import annotations

from typing import Final

import attrs

from tests.apiserver.documents import Document, dig


@attrs.frozen(eq=False)
class ResourceInfo:
    """One resource."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    status: bool = False
    """There is a subresource `status`, and writes to the object itself leave the status alone."""
    subresources: tuple[str, ...] = ()
    """Others: `binding`, `token`."""
    short_names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """For field selectors, besides metadata.name and metadata.namespace."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_kind(self) -> str:
        """As messages about invalid objects name it: `Lease.coordination.k8s.io`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def singular(self) -> str:
        return self.kind.lower()

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        parts += [f"namespaces/{namespace}"] if namespace and self.namespaced else []
        return "/".join([*parts, self.plural, *(part for part in (name, subresource) if part)])

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


_POD_FIELDS: Final = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
)
_EVENT_FIELDS: Final = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
_STORAGE: Final = "storage.k8s.io"
_CERTIFICATES: Final = "certificates.k8s.io"

NAMESPACES: Final = ResourceInfo(
    "", "v1", "namespaces", "Namespace", False, status=True, short_names=("ns",), fields=("status.phase",)
)
NODES: Final = ResourceInfo(
    "", "v1", "nodes", "Node", False, True, ("proxy",), short_names=("no",), fields=("spec.unschedulable",)
)
PODS: Final = ResourceInfo(
    "",
    "v1",
    "pods",
    "Pod",
    True,
    True,
    ("binding", "eviction", "ephemeralcontainers", "resize", "log", "exec", "attach", "portforward"),
    short_names=("po",),
    fields=_POD_FIELDS,
)
OF_THE_NODE: Final = ("log", "exec", "attach", "portforward", "proxy")
"""Subresources that only the node can answer."""
EVENTS: Final = ResourceInfo("", "v1", "events", "Event", True, short_names=("ev",), fields=_EVENT_FIELDS)
SERVICES: Final = ResourceInfo(
    "", "v1", "services", "Service", True, True, short_names=("svc",), fields=("spec.clusterIP", "spec.type")
)
SECRETS: Final = ResourceInfo("", "v1", "secrets", "Secret", True, fields=("type",))
CONFIG_MAPS: Final = ResourceInfo("", "v1", "configmaps", "ConfigMap", True, short_names=("cm",))
SERVICE_ACCOUNTS: Final = ResourceInfo(
    "", "v1", "serviceaccounts", "ServiceAccount", True, False, ("token",), short_names=("sa",)
)
VOLUME_CLAIMS: Final = ResourceInfo("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, True)
VOLUMES: Final = ResourceInfo("", "v1", "persistentvolumes", "PersistentVolume", False, True)
LEASES: Final = ResourceInfo("coordination.k8s.io", "v1", "leases", "Lease", True)
RUNTIME_CLASSES: Final = ResourceInfo("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False)
CSI_NODES: Final = ResourceInfo(_STORAGE, "v1", "csinodes", "CSINode", False)
CSI_DRIVERS: Final = ResourceInfo(_STORAGE, "v1", "csidrivers", "CSIDriver", False)
VOLUME_ATTACHMENTS: Final = ResourceInfo(_STORAGE, "v1", "volumeattachments", "VolumeAttachment", False, True)
SIGNING_REQUESTS: Final = ResourceInfo(
    _CERTIFICATES,
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    False,
    True,
    ("approval",),
    short_names=("csr",),
    fields=("spec.signerName",),
)
TRUST_BUNDLES: Final = ResourceInfo(
    _CERTIFICATES, "v1beta1", "clustertrustbundles", "ClusterTrustBundle", False, fields=("spec.signerName",)
)
POD_CERTIFICATE_REQUESTS: Final = ResourceInfo(
    _CERTIFICATES,
    "v1beta1",
    "podcertificaterequests",
    "PodCertificateRequest",
    True,
    True,
    fields=("spec.signerName", "spec.podName", "spec.nodeName"),
)
RESOURCE_CLAIMS: Final = ResourceInfo("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, True)
RESOURCE_SLICES: Final = ResourceInfo(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, fields=("spec.nodeName", "spec.driver")
)

TOKEN_REVIEWS: Final = ResourceInfo("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False)
ACCESS_REVIEWS: Final = ResourceInfo("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False)

RESOURCES: Final = (
    NAMESPACES,
    NODES,
    PODS,
    EVENTS,
    SERVICES,
    SECRETS,
    CONFIG_MAPS,
    SERVICE_ACCOUNTS,
    VOLUME_CLAIMS,
    VOLUMES,
    LEASES,
    RUNTIME_CLASSES,
    CSI_NODES,
    CSI_DRIVERS,
    VOLUME_ATTACHMENTS,
    SIGNING_REQUESTS,
    TRUST_BUNDLES,
    POD_CERTIFICATE_REQUESTS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    TOKEN_REVIEWS,
    ACCESS_REVIEWS,
)
_BY_PATH: Final = {(info.group, info.version, info.plural): info for info in RESOURCES}
_BY_NAME: Final = {name: info for info in RESOURCES for name in (info.plural, info.kind, str(info))}


def find_resource(group: str, version: str, plural: str) -> ResourceInfo | None:
    return _BY_PATH.get((group, version, plural))


def resource_named(name: str) -> ResourceInfo:
    """The resource for `pods`, `Pod` or `leases.coordination.k8s.io`. Raises KeyError."""
    return _BY_NAME[name]


def field_value(info: ResourceInfo, document: Document, label: str) -> str | None:
    """What a field selector compares; None for a field that cannot be selected by."""
    if label == "metadata.name" or (label == "metadata.namespace" and info.namespaced):
        return str(dig(document, *label.split(".")) or "")
    if label not in info.fields:
        return None
    if label == "source" and info is EVENTS:
        return str(dig(document, "source", "component") or document.get("reportingComponent") or "")
    value = dig(document, *label.split("."))
    if value is None and label in ("spec.unschedulable", "spec.hostNetwork"):
        return "false"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value or "")
