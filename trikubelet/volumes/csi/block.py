"""Raw block volumes of CSI drivers (kubelet: `csiBlockMapper`, `MapBlockVolume`, `UnmapBlockVolume`).

A driver publishes a device as a node, a bind of one, or a link. We bind it to a place of our own, where it stays
whatever the driver does, and make a link in the pod's folder, by which the volume is found after a restart. So the link
comes first and goes last. vol_data.json is one for all pods of the volume and goes with its staging.

The kubelet also holds the device open, by a loop device, since a device's name may come to mean another device. A bind
of the node has its numbers, not its name; nothing is left to hold.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trikubelet.formats.values import frozen
from trikubelet.volumes.csi import rules, vol_data
from trikubelet.volumes.csi.client import CSIError
from trikubelet.volumes.csi.context import CallContext
from trikubelet.volumes.csi.folders import Folders
from trikubelet.volumes.csi.found import persistent_spec
from trikubelet.volumes.csi.paths import BlockPaths
from trikubelet.volumes.csi.rules import Capability
from trikubelet.volumes.csi.vol_data import VolumeData, VolumeDataError
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError
from trikubelet.volumes.model import MountedVolume

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import CSIDriver
    from trikubelet.volumes.csi.client import Capabilities, NodeClient
    from trikubelet.volumes.csi.rules import Source
    from trikubelet.volumes.model import SetUpRequest, VolumeSpec


@frozen
class BlockVolumes:
    """What `CSIKind` does for volumes with `volumeMode: Block`."""

    root: Path
    folders: Folders
    context: CallContext

    async def stage(
        self,
        request: SetUpRequest,
        source: Source,
        client: NodeClient,
        capabilities: Capabilities,
        attached: Mapping[str, str],
        secrets: Mapping[str, str],
    ) -> Path:
        """For a driver that can. Raises CSIError and VolumeError."""
        spec = request.spec
        at = self._paths(request.pod.metadata.uid, spec.inner_name)
        await self._write_down(spec, at, source, at.staging)
        try:
            await client.stage(
                source.handle,
                str(at.staging),
                rules.volume_capability(source, capabilities, block=True),
                publish_context=attached,
                volume_context=source.attributes,
                secrets=secrets,
            )
        except CSIError as error:
            if error.final and not request.reconstructed:
                await self.folders.do(spec.name, partial(_remove_if_unused, at))
            raise
        return at.staging

    async def unstage(self, spec: VolumeSpec, source: Source) -> None:
        # Only the paths that all pods share are used.
        at = self._paths("-", spec.inner_name)
        if not await self.folders.do(spec.name, partial(_may_be_unstaged, spec.name, at)):
            return
        doing = "blockMapper.TearDownDevice"
        async with self.context.client(spec.name, source.driver, doing, migrated=spec.migrated) as client:
            capabilities = await self.context.capabilities(spec.name, client, doing)
            if Capability.STAGE_UNSTAGE_VOLUME in capabilities and await self.folders.do(spec.name, at.staging.exists):
                await client.unstage(source.handle, str(at.staging))
        await self.folders.do(spec.name, partial(self._clear_volume, spec.name, at))

    async def set_up(
        self, request: SetUpRequest, source: Source, driver: CSIDriver | None, client: NodeClient
    ) -> MountedVolume:
        spec, uid = request.spec, request.pod.metadata.uid
        at = self._paths(uid, spec.inner_name)
        capabilities = await self.context.capabilities(spec.name, client, "blockMapper.MapPodDevice")
        attached = await self.context.publish_context(spec.name, source, driver)
        publication = await self.context.publication(spec.name, request.pod, source, driver, with_tokens=False)
        await self._write_down(spec, at, source, at.publish.parent)
        await self.folders.do(spec.name, partial(_link, at))
        try:
            await client.publish(
                source.handle,
                str(at.publish),
                rules.volume_capability(source, capabilities, block=True),
                staging_path=str(at.staging) if Capability.STAGE_UNSTAGE_VOLUME in capabilities else "",
                read_only=source.read_only,
                publish_context=attached,
                volume_context=publication.context,
                secrets=publication.secrets,
            )
        except CSIError as error:
            if error.final and not request.refresh and not request.reconstructed:
                await self.folders.do(spec.name, partial(self._clear_pod, spec.name, at))
            raise
        await self.folders.do(spec.name, partial(self._map, spec.name, source.driver, at))
        return MountedVolume(spec, None, device=str(at.publish), read_only=source.read_only)

    async def tear_down(self, uid: str, inner_name: str) -> None:
        at = self._paths(uid, inner_name)
        data = await self.folders.do(inner_name, partial(self._unmap, at))
        if data is not None:
            doing = "blockMapper.UnmapPodDevice"
            async with self.context.client(inner_name, data.driver, doing) as client:
                await client.unpublish(data.handle, str(at.publish))
        await self.folders.do(inner_name, partial(self._clear_pod, inner_name, at))

    async def reconstruct(self, uid: str, inner_name: str) -> VolumeSpec | None:
        at = self._paths(uid, inner_name)

        def load() -> VolumeSpec | None:
            if not os.path.lexists(at.link):
                return None
            data = vol_data.load(at.data)
            if data is None:
                raise VolumeError(inner_name, f"failed to open volume data file in [{at.data}]")
            return persistent_spec(data, inner_name, block=True)

        return await self.folders.do(inner_name, load)

    async def _write_down(self, spec: VolumeSpec, at: BlockPaths, source: Source, folder: Path) -> None:
        node = self.context.node
        attachment = rules.attachment_name(source.handle, source.driver, node)
        data = VolumeData(source.driver, source.handle, spec_name=spec.inner_name, node=node, attachment=attachment)

        def work() -> None:
            vol_data.make_folder(at.data)
            vol_data.save(at.data, data)
            vol_data.make_folder(folder)

        await self.folders.do(spec.name, work)

    def _paths(self, uid: str, name: str) -> BlockPaths:
        try:
            return BlockPaths.of(self.root, uid, name)
        except ValueError as error:
            raise VolumeError(name, str(error)) from error

    # On threads

    def _map(self, volume: str, driver: str, at: BlockPaths) -> None:
        try:
            device = at.publish.resolve(strict=True)
        except FileNotFoundError as error:
            what = f"expected driver {driver} to publish a device, got nothing at {at.publish}"
            raise UncertainVolumeError(volume, what) from error
        if device.is_dir():
            raise UncertainVolumeError(volume, f"expected driver {driver} to publish a device, got a folder")
        if vol_data.is_mounted(self.folders.mounter, at.mapped):
            return
        vol_data.make_folder(at.mapped.parent)
        at.mapped.touch(mode=0o640)
        self.folders.mounter.bind(device, at.mapped)

    def _unmap(self, at: BlockPaths) -> VolumeData | None:
        """What to ask the driver to undo; None when there is nothing, or that is unknown."""
        self.folders.mounter.unmount(at.mapped)
        at.mapped.unlink(missing_ok=True)
        if not any(os.path.lexists(path) for path in (at.link, at.publish)):
            return None
        try:
            data = vol_data.load(at.data)
        except VolumeDataError:
            data = None
        if data is None:
            self.folders.mounter.unmount(at.publish)
        return data

    def _clear_pod(self, volume: str, at: BlockPaths) -> None:
        if vol_data.is_mounted(self.folders.mounter, at.publish):
            raise VolumeError(volume, f"expected the driver to unpublish {at.publish}, which still is a mount")
        vol_data.remove_target(at.publish)
        vol_data.remove_if_empty(at.publish.parent)
        at.link.unlink(missing_ok=True)

    def _clear_volume(self, volume: str, at: BlockPaths) -> None:
        if vol_data.is_mounted(self.folders.mounter, at.staging):
            raise VolumeError(volume, f"expected the driver to unstage {at.staging}, which still is a mount")
        # Drivers leave links and empty files there (kubelet: `unstageVolumeForBlock` removes them).
        vol_data.remove_leftovers(at.staging)
        _remove_if_unused(at)


def _link(at: BlockPaths) -> None:
    vol_data.make_folder(at.link.parent)
    if os.path.lexists(at.link):
        if at.link.is_symlink() and at.link.readlink() == at.publish:
            return
        at.link.unlink()
    at.link.symlink_to(at.publish)


def _may_be_unstaged(volume: str, at: BlockPaths) -> bool:
    """False when there is nothing of it. Raises VolumeError while pods use it."""
    users = {
        path.name for folder in (at.publish.parent, at.mapped.parent) if folder.is_dir() for path in folder.iterdir()
    }
    if users:
        what = f'the device "{at.staging}" is still referenced from other Pods [{" ".join(sorted(users))}]'
        raise VolumeError(volume, what)
    return at.data.exists() or at.staging.exists()


def _remove_if_unused(at: BlockPaths) -> None:
    """What is there for all pods of a volume."""
    for folder in (at.staging, at.publish.parent, at.mapped.parent):
        vol_data.remove_folder(folder)
    vol_data.forget(at.data)
    vol_data.remove_folder(at.data.parent)
