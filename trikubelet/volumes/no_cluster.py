"""What volumes get from an agent without a cluster: the kubelet's errors in standalone mode.

Volumes that need nothing of a cluster never ask. Static pods are checked before they come here, so most of these texts
are for pods that try.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, NoReturn

from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.kube_client.object_getter import ObjectError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from trikubelet.api import (
        ClusterTrustBundleProjection,
        ConfigMap,
        CSIDriver,
        Node,
        PersistentVolume,
        PersistentVolumeClaim,
        Pod,
        PodCertificateProjection,
        Quantity,
        Secret,
        VolumeAttachment,
    )
    from trikubelet.kube_client.volume_objects import CertificateAndKey, Token

STANDALONE: Final = "not supported due to running kubelet in standalone mode"


def _refuse(message: str = STANDALONE) -> NoReturn:
    raise ObjectError(message, "no client")


class NoReferences:
    """`References` where there is nothing to refer to."""

    def follow(self, pod: Pod) -> None:
        """Nothing is read."""


class NoClusterObjects:
    """`WatchedObjects` where there are none."""

    def __init__(self) -> None:
        self.changes: Broadcast[tuple[str, str, str]] = Broadcast()
        """Nothing changes."""

    def references(self, _uid: str) -> AbstractContextManager[NoReferences]:
        """Nothing is read."""
        return nullcontext(NoReferences())

    def referring(self, _plural: str, _namespace: str, _name: str) -> Sequence[str]:
        return ()

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        _refuse()

    async def secret(self, namespace: str, name: str) -> Secret:
        _refuse()


class NoClusterStorage:
    """`StorageObjects` where there are none. CSI drivers can be used all the same, as those without an object."""

    def __init__(self) -> None:
        self.csi_driver_changes: Broadcast[str] = Broadcast()
        self.attached_changes: Broadcast[None] = Broadcast()
        """Nothing changes."""

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        _refuse()

    async def volume(self, name: str) -> PersistentVolume:
        _refuse()

    async def attachment(self, name: str) -> VolumeAttachment:
        _refuse()

    async def secret(self, namespace: str, name: str) -> Secret:
        _refuse()

    async def csi_driver(self, name: str) -> CSIDriver | None:
        return None

    def known_csi_driver(self, name: str) -> CSIDriver | None:
        return None

    def attached(self) -> Mapping[str, str] | None:
        """Nothing is attached, and that is known."""
        return {}

    async def node(self) -> Node:
        _refuse()

    async def resizing(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        _refuse()

    async def resized(self, claim: PersistentVolumeClaim, size: Quantity) -> PersistentVolumeClaim:
        _refuse()

    async def resize_failed(
        self, claim: PersistentVolumeClaim, problem: str, *, infeasible: bool, at: datetime
    ) -> PersistentVolumeClaim:
        _refuse()


class NoClusterCredentials:
    """`PodCredentials` without any."""

    async def token(self, pod: Pod, audiences: tuple[str, ...], seconds: int | None) -> Token:
        _refuse("cannot use TokenManager when kubelet is in standalone mode")

    def forget(self, uid: str) -> None:
        """Nothing is known."""

    async def trust_bundle(self, source: ClusterTrustBundleProjection) -> bytes:
        _refuse("ClusterTrustBundle projection is not supported in static kubelet mode")

    async def pod_certificate(
        self, pod: Pod, volume: str, index: int, source: PodCertificateProjection
    ) -> CertificateAndKey:
        _refuse("PodCertificate projection is not supported in static kubelet mode")

    def changes(self) -> Subscription[str]:
        """Nothing changes."""
        return Subscription(None)
