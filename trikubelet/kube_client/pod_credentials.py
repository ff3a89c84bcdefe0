"""Credentials of pods, and their trust anchors: tokens, certificates and trust bundles from the cluster.

Each has an owner that keeps it and renews it; here they speak the language of volumes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from trikubelet.broadcast import Broadcast
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.tokens import BoundPod, TokenError, TokenKey
from trikubelet.kube_client.volume_objects import Token

if TYPE_CHECKING:
    from trikubelet.api import ClusterTrustBundleProjection, Pod, PodCertificateProjection
    from trikubelet.broadcast import Subscription
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.pod_certificates import PodCertificates
    from trikubelet.kube_client.tokens import Tokens
    from trikubelet.kube_client.trust_bundles import TrustBundles
    from trikubelet.kube_client.volume_objects import CertificateAndKey

UNKNOWN_LIFE: Final = timedelta(hours=1)
"""Of a token whose end the API server did not say."""


class ClusterCredentials:
    """`trikubelet.kube_client.volume_objects.PodCredentials`."""

    def __init__(
        self,
        *,
        tokens: Tokens,
        trust_bundles: TrustBundles | None,
        certificates: PodCertificates | None = None,
        clock: WallClock,
    ) -> None:
        self._tokens = tokens
        self._trust_bundles = trust_bundles
        self._certificates = certificates
        self._clock = clock

    async def token(self, pod: Pod, audiences: tuple[str, ...], seconds: int | None) -> Token:
        """Bound to the pod, for its service account. Raises ObjectError. Cancellable."""
        metadata = pod.metadata
        key = TokenKey(
            metadata.namespace,
            pod.spec.service_account_name,
            audiences,
            expiration_seconds=seconds,
            bound=BoundPod(metadata.name, metadata.uid),
        )
        try:
            request = await self._tokens.get(key)
        except TokenError as error:
            raise ObjectError(error.message, "unavailable") from error
        expires = request.status.expiration_timestamp
        if expires is None:
            expires = self._clock.now() + UNKNOWN_LIFE
        return Token(request.status.token, expires=expires, renew_at=self._tokens.renew_at(key) or expires)

    def forget(self, uid: str) -> None:
        self._tokens.forget_pod(uid)
        if self._certificates is not None:
            self._certificates.forget(uid)

    async def trust_bundle(self, source: ClusterTrustBundleProjection) -> bytes:
        if self._trust_bundles is None:
            raise ObjectError("ClusterTrustBundle projection is switched off by its feature gate", "unavailable")
        return await self._trust_bundles.get(source)

    async def pod_certificate(
        self, pod: Pod, volume: str, index: int, source: PodCertificateProjection
    ) -> CertificateAndKey:
        if self._certificates is None:
            raise ObjectError("PodCertificate projection is not supported by this agent", "unavailable")
        return await self._certificates.certificate(pod, volume, index, source)

    def changes(self) -> Subscription[str]:
        changes = (Broadcast[str]() if self._trust_bundles is None else self._trust_bundles.changes).subscribe()
        return changes if self._certificates is None else changes.also(self._certificates.changes)
