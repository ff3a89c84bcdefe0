"""What the API server knows of pods' storage: claims, persistent volumes, attachments, CSI drivers.

An agent may read the claims, volumes and attachments of its own pods one by one, and no lists of them, so they are
asked for each time, which is seldom: when a pod starts. CSIDrivers are watched, all of them, since they are few and
decide how each volume of a driver is treated. What is attached to the node, the node's own object tells, which is
watched anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.api import PersistentVolumeClaimCondition, to_dict
from trikubelet.broadcast import Broadcast
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.object_getter import ObjectError, look_up, object_error
from trikubelet.kube_client.types import CLAIMS, PERSISTENT_VOLUMES, SECRETS, VOLUME_ATTACHMENTS, PatchType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from trikubelet.api import (
        CSIDriver,
        Node,
        PersistentVolume,
        PersistentVolumeClaim,
        PersistentVolumeClaimStatus,
        Quantity,
        Secret,
        VolumeAttachment,
    )
    from trikubelet.kube_client.store import Store
    from trikubelet.kube_client.types import ApiClient

FIRST_SYNC_SECONDS: Final = 2.0
"""How long a caller waits for what has not been read yet."""
ATTEMPTS: Final = 3
"""To write a status that somebody else writes at the same time."""

STORAGE: Final = "storage"
"""The resource that a volume's size is."""
RESIZING: Final = "NodeResizeInProgress"
INFEASIBLE: Final = "NodeResizeInfeasible"
RESIZE_ERROR: Final = "NodeResizeError"
RESIZE_CONDITIONS: Final = frozenset({"FileSystemResizePending", "Resizing", "ControllerResizeError", RESIZE_ERROR})


class ClusterStorage:
    """`trikubelet.kube_client.volume_objects.StorageObjects`. The stores are kept current by others."""

    def __init__(self, client: ApiClient, node_name: str, *, nodes: Store[Node], csi_drivers: Store[CSIDriver]) -> None:
        self._client = client
        self._node_name = node_name
        self._nodes = nodes
        self._csi_drivers = csi_drivers
        self.csi_driver_changes: Broadcast[str] = Broadcast()
        self.attached_changes: Broadcast[None] = Broadcast()
        nodes.subscribe(self._node_changed)
        csi_drivers.subscribe(self._driver_changed)

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        """As the server has it now."""
        return await look_up(self._client, CLAIMS, name, namespace)

    async def volume(self, name: str) -> PersistentVolume:
        """As the server has it now. It refuses while no claim of a pod of this node is bound to the volume."""
        return await look_up(self._client, PERSISTENT_VOLUMES, name)

    async def attachment(self, name: str) -> VolumeAttachment:
        """As the server has it now. It refuses one of another node, and one that is not there."""
        return await look_up(self._client, VOLUME_ATTACHMENTS, name)

    async def secret(self, namespace: str, name: str) -> Secret:
        """As the server has it now: credentials for a volume, which no pod refers to itself. It refuses while no
        persistent volume of a pod of this node does."""
        return await look_up(self._client, SECRETS, name, namespace)

    async def csi_driver(self, name: str) -> CSIDriver | None:
        """Raises ObjectError when nothing is known after a moment. Cancellable."""
        await _soon(self._csi_drivers)
        return self.known_csi_driver(name)

    def known_csi_driver(self, name: str) -> CSIDriver | None:
        if not self._csi_drivers.synced:
            raise ObjectError("CSIDrivers have not yet been read", "unavailable")
        return self._csi_drivers.get(name)

    def attached(self) -> Mapping[str, str] | None:
        node = self._nodes.get(self._node_name)
        return None if node is None else {one.name: one.device_path for one in node.status.volumes_attached}

    async def node(self) -> Node:
        """Raises ObjectError while it is not known. Cancellable."""
        await _soon(self._nodes)
        node = self._nodes.get(self._node_name)
        if node is None:
            problem = "not found" if self._nodes.synced else "has not yet been read"
            raise ObjectError(f'node "{self._node_name}" {problem}', "unavailable")
        return node

    async def resizing(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """Kubelet: `MarkNodeExpansionInProgress`. Raises ObjectError, also when the claim's status is not what it was.
        Cancellable; to write it again does no harm."""
        if claim.status.allocated_resource_statuses.get(STORAGE) == RESIZING:
            return claim
        return await self._write(claim, lambda status: {"allocatedResourceStatuses": {STORAGE: RESIZING}}, tries=1)

    async def resized(self, claim: PersistentVolumeClaim, size: Quantity) -> PersistentVolumeClaim:
        """Write the size and take back what was said about the resizing (kubelet: `MarkFSResizeFinished`).

        Cancellable; whether it was written is then unknown, and it does no harm to do it again.
        """
        return await self._write(claim, lambda status: resized_status(status, size), tries=ATTEMPTS)

    async def resize_failed(
        self, claim: PersistentVolumeClaim, problem: str, *, infeasible: bool, at: datetime
    ) -> PersistentVolumeClaim:
        """Kubelet: `MarkNodeExpansionInfeasible`, `MarkNodeExpansionFailedCondition`: whatever else has changed."""
        changes = failed_status(claim.status, problem, infeasible=infeasible, at=at)
        if not changes:
            return claim
        namespace, name = claim.metadata.namespace, claim.metadata.name
        body = {"metadata": {"uid": claim.metadata.uid}, "status": changes}
        try:
            return await self._client.patch(CLAIMS, name, namespace, PatchType.STRATEGIC, body, subresource="status")
        except ApiError as error:
            raise object_error(error) from error

    async def _write(
        self,
        claim: PersistentVolumeClaim,
        changes: Callable[[PersistentVolumeClaimStatus], dict[str, Any]],
        *,
        tries: int,
    ) -> PersistentVolumeClaim:
        """Into the status that the claim has; into a newer one when it has changed meanwhile. Raises ObjectError."""
        namespace, name = claim.metadata.namespace, claim.metadata.name
        while True:
            body = {
                "metadata": {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version},
                "status": changes(claim.status),
            }
            tries -= 1
            try:
                return await self._client.patch(CLAIMS, name, namespace, PatchType.MERGE, body, subresource="status")
            except ApiError as error:
                again = isinstance(error, ApiStatusError) and error.conflict and not error.uid_differs
                if not again or not tries:
                    raise object_error(error) from error
                claim = await self.claim(namespace, name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        name = next(node.metadata.name for node in (new, old) if node is not None)
        before = None if old is None else old.status.volumes_attached
        after = None if new is None else new.status.volumes_attached
        if name == self._node_name and before != after:
            self.attached_changes.send(None)

    def _driver_changed(self, old: CSIDriver | None, new: CSIDriver | None) -> None:
        self.csi_driver_changes.send(next(driver.metadata.name for driver in (new, old) if driver is not None))


def resized_status(status: PersistentVolumeClaimStatus, size: Quantity) -> dict[str, Any]:
    """What a merge patch says of a claim whose file system has taken its size."""
    kept = [to_dict(one) for one in status.conditions if one.type not in RESIZE_CONDITIONS]
    changes: dict[str, Any] = {"capacity": {STORAGE: str(size)}}
    if len(kept) != len(status.conditions):
        changes["conditions"] = kept or None
    if STORAGE in status.allocated_resource_statuses:
        others = len(status.allocated_resource_statuses) > 1
        changes["allocatedResourceStatuses"] = {STORAGE: None} if others else None
    return changes


def failed_status(
    status: PersistentVolumeClaimStatus, problem: str, *, infeasible: bool, at: datetime
) -> dict[str, Any]:
    """What a strategic patch says of a claim whose file system has not grown; empty when all of it is said already.
    The first reason stays."""
    changes: dict[str, Any] = {}
    if not any(one.type == RESIZE_ERROR and one.status == "True" for one in status.conditions):
        message = f"failed to expand pvc with {problem}"
        condition = PersistentVolumeClaimCondition(RESIZE_ERROR, "True", last_transition_time=at, message=message)
        changes["conditions"] = [to_dict(condition)]
    if infeasible and status.allocated_resource_statuses.get(STORAGE) != INFEASIBLE:
        changes["allocatedResourceStatuses"] = {STORAGE: INFEASIBLE}
    return changes


async def _soon(store: Store[Any]) -> None:
    if not store.synced:
        with trio.move_on_after(FIRST_SYNC_SECONDS):
            await store.wait_synced()
