"""Objects about pods' certificates (`certificates.k8s.io/v1beta1`): trust anchors, and requests."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attrs import field

from trikubelet.api.meta import Condition, KubernetesObject, ObjectMeta
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32, wire
from trikubelet.formats.values import frozen

POD_CERTIFICATE_ISSUED: Final = "Issued"
POD_CERTIFICATE_DENIED: Final = "Denied"
POD_CERTIFICATE_FAILED: Final = "Failed"


@frozen(repr=False)
class ClusterTrustBundleSpec(APIObject):
    """Trust anchors (PEM), of a signer or, without a signer's name, of anyone."""

    signer_name: str = ""
    trust_bundle: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class ClusterTrustBundle(KubernetesObject):
    """Trust anchors of the cluster."""

    api_version: str = "certificates.k8s.io/v1beta1"
    kind: str = "ClusterTrustBundle"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: ClusterTrustBundleSpec = field(factory=ClusterTrustBundleSpec)


@frozen(repr=False)
class PodCertificateRequestSpec(APIObject):
    """The node and pod that ask, and the signer. `stub_pkcs10_request` is DER: the key and the proof that it is had.

    The API server fills `pkix_public_key` and `proof_of_possession` for signers that still read them.
    """

    signer_name: str = field(default="", metadata=REQUIRED)
    pod_name: str = field(default="", metadata=REQUIRED)
    pod_uid: str = field(default="", metadata=wire("podUID", required=True))
    service_account_name: str = field(default="", metadata=REQUIRED)
    service_account_uid: str = field(default="", metadata=wire("serviceAccountUID", required=True))
    node_name: str = field(default="", metadata=REQUIRED)
    node_uid: str = field(default="", metadata=wire("nodeUID", required=True))
    max_expiration_seconds: Int32 | None = None
    pkix_public_key: bytes = field(default=b"", metadata=wire("pkixPublicKey"))
    proof_of_possession: bytes = b""
    stub_pkcs10_request: bytes = field(default=b"", metadata=wire("stubPKCS10Request", required=True))
    unverified_user_annotations: dict[str, str] = field(default=EMPTY)


@frozen(repr=False)
class PodCertificateRequestStatus(APIObject):
    """The decision (one condition of type Issued, Denied or Failed), and the chain (PEM, the pod's own first)."""

    conditions: tuple[Condition, ...] = ()
    certificate_chain: str = ""
    not_before: datetime | None = None
    begin_refresh_at: datetime | None = None
    not_after: datetime | None = None


@frozen(repr=False)
class PodCertificateRequest(KubernetesObject):
    """A node's request for a certificate of one of its pods. It is never changed, and soon cleaned away."""

    api_version: str = "certificates.k8s.io/v1beta1"
    kind: str = "PodCertificateRequest"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: PodCertificateRequestSpec = field(factory=PodCertificateRequestSpec)
    status: PodCertificateRequestStatus = field(factory=PodCertificateRequestStatus)
