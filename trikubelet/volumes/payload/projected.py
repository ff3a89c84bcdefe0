"""What only projected volumes have: credentials as files. Pure (kubelet: `projectedVolumeMounter.collectData`).

Tokens, trust anchors and certificates are credentials, so they get a narrower mode where their reader is known:
0600 of the pod's user. With an fsGroup the volume's ownership makes 0640 of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.volumes.payload.files import PayloadFile, mode_of_files

if TYPE_CHECKING:
    from trikubelet.api import ClusterTrustBundleProjection, PodCertificateProjection, ServiceAccountTokenProjection
    from trikubelet.kube_client.volume_objects import CertificateAndKey, Token
    from trikubelet.volumes.payload.files import Payload

PRIVATE_MODE: Final = 0o600


@frozen
class Readers:
    """The user and group that read the volume's credentials."""

    default_mode: int | None
    user: int | None
    group: int | None

    def file(self, data: bytes) -> PayloadFile:
        """Raises PayloadError."""
        mode = mode_of_files(self.default_mode)
        return PayloadFile(data, mode if self.user is None and self.group is None else PRIVATE_MODE, self.user)


def token_payload(source: ServiceAccountTokenProjection, token: Token, readers: Readers) -> Payload:
    """Raises PayloadError."""
    return {source.path: readers.file(token.token.encode())}


def trust_bundle_payload(source: ClusterTrustBundleProjection, anchors: bytes, readers: Readers) -> Payload:
    """`anchors`: PEM. Raises PayloadError."""
    return {source.path: readers.file(anchors)}


def certificate_payload(source: PodCertificateProjection, found: CertificateAndKey, readers: Readers) -> Payload:
    """The key and the chain, in one file or in two. Raises PayloadError."""
    files = {
        source.credential_bundle_path: found.key + found.chain,
        source.key_path: found.key,
        source.certificate_chain_path: found.chain,
    }
    return {path: readers.file(data) for path, data in files.items() if path}
