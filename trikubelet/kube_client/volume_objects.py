"""What volumes need of a cluster. `kube_client` implements it; an agent without a cluster has `NoCluster…`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

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
    from trikubelet.broadcast import Broadcast, Subscription

# Every question raises `kube_client.object_getter.ObjectError` with the kubelet's text.


class References(Protocol):
    """What one pod refers to."""

    def follow(self, pod: Pod) -> None:
        """The pod may start: what it refers to is read from now on. Idempotent; a newer pod replaces its references."""
        ...


class WatchedObjects(Protocol):
    """ConfigMaps and Secrets that pods refer to, kept fresh while they do
    (kubelet: `configMapAndSecretChangeDetectionStrategy`)."""

    def references(self, uid: str) -> AbstractContextManager[References]:
        """What a pod refers to, for as long as something of it may need that."""
        ...

    def referring(self, plural: str, namespace: str, name: str) -> Sequence[str]:
        """UIDs of the pods that refer to an object."""
        ...

    async def config_map(self, namespace: str, name: str) -> ConfigMap: ...

    async def secret(self, namespace: str, name: str) -> Secret: ...

    @property
    def changes(self) -> Broadcast[tuple[str, str, str]]:
        """ "configmaps" or "secrets", namespace and name of what came, changed or went."""
        ...


class StorageObjects(Protocol):
    """Claims, persistent volumes and what controllers do for them."""

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim: ...

    async def volume(self, name: str) -> PersistentVolume: ...

    async def attachment(self, name: str) -> VolumeAttachment: ...

    async def secret(self, namespace: str, name: str) -> Secret:
        """As the server has it now: no pod refers to the Secrets of persistent volumes."""
        ...

    async def csi_driver(self, name: str) -> CSIDriver | None:
        """None when there is none. Waits a moment for the first list."""
        ...

    def known_csi_driver(self, name: str) -> CSIDriver | None:
        """As known now. Raises ObjectError while nothing is known yet."""
        ...

    @property
    def csi_driver_changes(self) -> Broadcast[str]:
        """Names of driver objects that came, changed or went."""
        ...

    def attached(self) -> Mapping[str, str] | None:
        """Unique name to device path (`node.status.volumesAttached`); None while the node is not known."""
        ...

    @property
    def attached_changes(self) -> Broadcast[None]:
        """`attached` changed."""
        ...

    async def node(self) -> Node: ...

    # How the growth of a file system goes, in the claim's status. Each returns the claim as it is then.

    async def resizing(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """It has begun."""
        ...

    async def resized(self, claim: PersistentVolumeClaim, size: Quantity) -> PersistentVolumeClaim:
        """It has taken its size (`status.capacity`)."""
        ...

    async def resize_failed(
        self, claim: PersistentVolumeClaim, problem: str, *, infeasible: bool, at: datetime
    ) -> PersistentVolumeClaim:
        """It has not. `infeasible`: this size is not to be had, so that another one may be asked for."""
        ...


@frozen
class Token:
    """A service account token."""

    token: str = attrs.field(repr=False)
    expires: datetime
    renew_at: datetime


@frozen
class CertificateAndKey:
    """Of a pod certificate: PEM."""

    chain: bytes
    key: bytes = attrs.field(repr=False)
    renew_at: datetime | None = None


class PodCredentials(Protocol):
    """Credentials of pods."""

    async def token(self, pod: Pod, audiences: tuple[str, ...], seconds: int | None) -> Token:
        """A token for a pod; the valid one when it cannot be renewed."""
        ...

    def forget(self, uid: str) -> None:
        """The pod has ended."""
        ...

    async def trust_bundle(self, source: ClusterTrustBundleProjection) -> bytes:
        """PEM."""
        ...

    async def pod_certificate(
        self, pod: Pod, volume: str, index: int, source: PodCertificateProjection
    ) -> CertificateAndKey:
        """`index`: which of the volume's sources it is."""
        ...

    def changes(self) -> Subscription[str]:
        """UIDs of pods whose certificate changed, "" for all pods."""
        ...
