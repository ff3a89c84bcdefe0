"""Objects that only a node with an API server meets: what it looks up for its pods, asks for, and is answered with.

Only fields that the agent reads or writes have names here. The others travel in `unknown_fields`, so that an object
that is read and written back loses nothing.
"""

from __future__ import annotations

from datetime import datetime

from attrs import field

from trikubelet.api.meta import KubernetesObject, ListMeta, ObjectMeta
from trikubelet.api.schema import REQUIRED, APIObject, Int32, wire
from trikubelet.formats.values import frozen


@frozen(repr=False)
class ServicePort(APIObject):
    """A port of a service, and where its traffic goes on the pods."""

    name: str = ""
    protocol: str = ""
    app_protocol: str | None = None
    port: Int32 = field(default=0, metadata=REQUIRED)
    target_port: int | str = 0
    node_port: Int32 = 0


@frozen(repr=False)
class ServiceSpec(APIObject):
    """Addresses and ports of a service; the address `None` is a headless service's."""

    cluster_ip: str = field(default="", metadata=wire("clusterIP"))
    cluster_ips: tuple[str, ...] = field(default=(), metadata=wire("clusterIPs"))
    ports: tuple[ServicePort, ...] = ()
    type: str = ""


@frozen(repr=False)
class Service(KubernetesObject):
    """A name and an address for a set of pods."""

    api_version: str = "v1"
    kind: str = "Service"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: ServiceSpec = field(factory=ServiceSpec)


@frozen(repr=False)
class RuntimeClass(KubernetesObject):
    """A name for one of the runtime's handlers (`node.k8s.io/v1`). Its overhead is in the pods that use it."""

    api_version: str = "node.k8s.io/v1"
    kind: str = "RuntimeClass"
    metadata: ObjectMeta = field(default=ObjectMeta())
    handler: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class VolumeNodeResources(APIObject):
    """How many volumes of a driver fit on a node; None: no limit is known."""

    count: Int32 | None = None


@frozen(repr=False)
class CSINodeDriver(APIObject):
    """A volume driver that is installed on a node."""

    name: str = field(default="", metadata=REQUIRED)
    node_id: str = field(default="", metadata=wire("nodeID", required=True))
    topology_keys: tuple[str, ...] = field(default=(), metadata=REQUIRED)
    allocatable: VolumeNodeResources | None = None


@frozen(repr=False)
class CSINodeSpec(APIObject):
    """The volume drivers of a node; the API server insists on the list even when it is empty."""

    drivers: tuple[CSINodeDriver, ...] = field(default=(), metadata=REQUIRED)


@frozen(repr=False)
class CSINode(KubernetesObject):
    """A node's volume drivers (`storage.k8s.io/v1`); it has the node's name."""

    api_version: str = "storage.k8s.io/v1"
    kind: str = "CSINode"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: CSINodeSpec = field(factory=CSINodeSpec)


@frozen(repr=False)
class CertificateSigningRequestSpec(APIObject):
    """The request (PEM), the signer and the usages; the API server adds the requesting user."""

    request: bytes = field(default=b"", metadata=REQUIRED)
    signer_name: str = field(default="", metadata=REQUIRED)
    expiration_seconds: Int32 | None = None
    usages: tuple[str, ...] = ()
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()


@frozen(repr=False)
class CertificateSigningRequestCondition(APIObject):
    """A decision about a request: `Approved`, `Denied` or `Failed`."""

    type: str = field(default="", metadata=REQUIRED)
    status: str = field(default="", metadata=REQUIRED)
    reason: str = ""
    message: str = ""
    last_update_time: datetime | None = None
    last_transition_time: datetime | None = None


@frozen(repr=False)
class CertificateSigningRequestStatus(APIObject):
    """The decisions, and the certificate chain (PEM) once it is issued."""

    conditions: tuple[CertificateSigningRequestCondition, ...] = ()
    certificate: bytes = b""


@frozen(repr=False)
class CertificateSigningRequest(KubernetesObject):
    """A request for a certificate (`certificates.k8s.io/v1`)."""

    api_version: str = "certificates.k8s.io/v1"
    kind: str = "CertificateSigningRequest"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: CertificateSigningRequestSpec = field(factory=CertificateSigningRequestSpec)
    status: CertificateSigningRequestStatus = field(factory=CertificateSigningRequestStatus)


@frozen(repr=False)
class ServiceAccount(KubernetesObject):
    """An identity for pods; the agent reads its annotations for credential plugins."""

    api_version: str = "v1"
    kind: str = "ServiceAccount"
    metadata: ObjectMeta = field(default=ObjectMeta())


@frozen(repr=False)
class BoundObjectReference(APIObject):
    """The object that a token is bound to: it is void when that is gone."""

    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


@frozen(repr=False)
class TokenRequestSpec(APIObject):
    """The token's audiences and duration; without `expiration_seconds` the API server chooses an hour."""

    audiences: tuple[str, ...] = field(default=(), metadata=REQUIRED)
    expiration_seconds: int | None = field(default=None, metadata=REQUIRED)
    bound_object_ref: BoundObjectReference | None = field(default=None, metadata=REQUIRED)


@frozen(repr=False)
class TokenRequestStatus(APIObject):
    """The token, which is not shown in logs, and when it ends."""

    token: str = field(default="", repr=False, metadata=REQUIRED)
    expiration_timestamp: datetime | None = field(default=None, metadata=REQUIRED)


@frozen(repr=False)
class TokenRequest(KubernetesObject):
    """Asks for a token of a service account (`authentication.k8s.io/v1`): created at serviceaccounts/NAME/token."""

    api_version: str = "authentication.k8s.io/v1"
    kind: str = "TokenRequest"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: TokenRequestSpec = field(factory=TokenRequestSpec)
    status: TokenRequestStatus = field(factory=TokenRequestStatus)


@frozen(repr=False)
class Preconditions(APIObject):
    """What has to be true of an object for its deletion to happen."""

    uid: str | None = None
    resource_version: str | None = None


@frozen(repr=False)
class DeleteOptions(APIObject):
    """The body of a DELETE. No grace period: the object's own; 0: at once."""

    api_version: str = "v1"
    kind: str = "DeleteOptions"
    grace_period_seconds: int | None = None
    preconditions: Preconditions | None = None
    propagation_policy: str | None = None


@frozen(repr=False)
class StatusCause(APIObject):
    """One of several reasons for a refusal; `field` is a path such as `spec.containers[0].image`."""

    reason: str = ""
    message: str = ""
    field: str = ""


@frozen(repr=False)
class StatusDetails(APIObject):
    """Which object a refusal is about, and why in detail. `kind` is usually the resource: `pods`."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: Int32 = 0


@frozen(repr=False)
class Status(APIObject):
    """What an API server answers when it has no object to answer with (`meta/v1`)."""

    api_version: str = "v1"
    kind: str = "Status"
    metadata: ListMeta = field(default=ListMeta())
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: Int32 = 0
