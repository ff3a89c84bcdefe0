"""Waiting until a controller has attached a volume to this node (kubelet: `VerifyControllerAttachedVolume`,
`csiAttacher.WaitForAttach`).

The order protects data. The node says that it uses the volume (`node.status.volumesInUse`), and only when the API
server has that does the node rely on its being attached: from then on the controller will not detach it behind the
node's back. The controller attaches it and says so (`node.status.volumesAttached`). For a CSI volume the
VolumeAttachment then has what the driver wants to be handed when it stages the volume.

The node may read a VolumeAttachment by its name, but neither list nor watch them, so it is read when the node's status
says that there is something to read. Nothing here polls: both steps before that wake waiting tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.volumes.errors import TransientVolumeError

if TYPE_CHECKING:
    from trikubelet.api import CSIPersistentVolumeSource, VolumeAttachment
    from trikubelet.kube_client.volume_objects import StorageObjects
    from trikubelet.volumes.model import VolumeSpec

RESOURCE_EXHAUSTED: Final = 8
"""gRPC's code, in `status.attachError.errorCode`: the node can take no more volumes of the driver."""


@frozen
class Attached:
    """A volume that is attached."""

    device_path: str
    """As the node's status tells it; empty for most drivers."""
    attachment: str = ""
    """The VolumeAttachment's name; empty for what has none."""
    publish_context: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """What the driver's controller passes to its node part."""


def attachment_problem(attachment: VolumeAttachment, handle: str) -> str | None:
    """Why the volume cannot be used; None when it is attached (`verifyAttachmentStatus`)."""
    if attachment.metadata.deletion_timestamp is not None:
        return "volume attachment is being deleted"
    if attachment.status.attached:
        return None
    if attachment.status.attach_error is not None:
        return attachment.status.attach_error.message
    return f"volume {handle} is not attached for volume attachment {attachment.metadata.name}"


class Attaching:
    """Knows which volumes the node may rely on."""

    def __init__(self, storage: StorageObjects, *, node_name: str) -> None:
        self._storage = storage
        self._node_name = node_name
        self._reported: frozenset[str] = frozenset()
        self._reports: Broadcast[None] = Broadcast()

    def reported_in_use(self, names: tuple[str, ...]) -> None:
        """The API server has these in the node's `volumesInUse`."""
        if self._reported != frozenset(names):
            self._reported = frozenset(names)
            self._reports.send(None)

    def is_attached(self, unique_name: str) -> bool:
        """Whether the node's status says so, and the node has said that it uses the volume."""
        return unique_name in self._reported and unique_name in (self._storage.attached() or {})

    async def wait(self, spec: VolumeSpec, unique_name: str) -> Attached:
        """Return once the volume is attached and may be relied on; waits as long as that takes.

        Raises TransientVolumeError, in the kubelet's words, when the VolumeAttachment is not as the node's status says:
        try again later. Cancellable; nothing is left behind.
        """
        await trio.lowlevel.checkpoint()
        with self._storage.attached_changes.subscribe().also(self._reports) as changes:
            while not self.is_attached(unique_name):
                await changes.receive()
        device_path = (self._storage.attached() or {}).get(unique_name, "")
        source = _csi(spec)
        if source is None:
            return Attached(device_path)
        attachment = await self._attachment(spec, source)
        if (problem := attachment_problem(attachment, source.volume_handle)) is not None:
            raise TransientVolumeError(spec.name, problem)
        return Attached(device_path, attachment.metadata.name, attachment.status.attachment_metadata)

    async def exhausted(self, spec: VolumeSpec) -> bool:
        """Whether it is not attached because the node can take no more volumes of its driver, and the driver's object
        says that nodes look after their limits (`VerifyExhaustedResource`).

        Then a pod that needs it should be rejected, and the limit asked for anew (`CSIRegistration.update`). False when
        that is unknown.
        """
        source = _csi(spec)
        if source is None:
            return False
        try:
            driver = await self._storage.csi_driver(source.driver)
            if driver is None or not driver.spec.node_allocatable_update_period_seconds:
                return False
            attachment = await self._attachment(spec, source)
        except (ObjectError, TransientVolumeError):
            return False
        error = attachment.status.attach_error
        return error is not None and error.error_code == RESOURCE_EXHAUSTED

    async def _attachment(self, spec: VolumeSpec, source: CSIPersistentVolumeSource) -> VolumeAttachment:
        from trikubelet.volumes.csi.rules import attachment_name  # only in a cluster

        name = attachment_name(source.volume_handle, source.driver, self._node_name)
        try:
            return await self._storage.attachment(name)
        except ObjectError as error:
            problem = f"volume {source.volume_handle} has GET error for volume attachment {name}: {error}"
            raise TransientVolumeError(spec.name, problem) from error


def _csi(spec: VolumeSpec) -> CSIPersistentVolumeSource | None:
    return None if spec.persistent is None else spec.persistent.spec.csi
