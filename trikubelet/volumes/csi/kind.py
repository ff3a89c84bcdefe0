"""Volumes of CSI drivers, inline in a pod or behind a claim (kubelet: `csiPlugin`, `csiAttacher`, `csiMountMgr`).

Two calls make a volume: the driver stages it once for the node, if it can, and publishes it for each pod. Before each
of them, vol_data.json says what is about to be done; after its undoing, vol_data.json goes. A call whose outcome is not
known leaves everything as it is, and the volume uncertain: the caller tries again or undoes it.

Raw block volumes go the same way, with other paths (`block`).
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import CSIVolumeSource, Volume
from trikubelet.volumes.csi import paths, rules, vol_data
from trikubelet.volumes.csi.block import BlockVolumes
from trikubelet.volumes.csi.client import CSIError
from trikubelet.volumes.csi.context import CallContext
from trikubelet.volumes.csi.folders import Folders
from trikubelet.volumes.csi.found import persistent_spec, staged_volumes
from trikubelet.volumes.csi.rules import Capability
from trikubelet.volumes.csi.vol_data import VolumeData
from trikubelet.volumes.errors import (
    NotExpandedError,
    TransientVolumeError,
    UncertainVolumeError,
    VolumeError,
    uncertain,
)
from trikubelet.volumes.expansion import Refusal
from trikubelet.volumes.fs_group import give_to_group
from trikubelet.volumes.model import MountedVolume, VolumeSpec

if TYPE_CHECKING:
    import random
    from datetime import datetime
    from pathlib import Path

    from trikubelet.api import CSIDriver, Quantity
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.volume_objects import PodCredentials, StorageObjects
    from trikubelet.linux.mounter import Mounter
    from trikubelet.rpc.csi import v1
    from trikubelet.telemetry.events import EventRecorder
    from trikubelet.volumes.csi.client import NodeClient
    from trikubelet.volumes.csi.drivers import Drivers
    from trikubelet.volumes.csi.rules import Source
    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.model import SetUpRequest, VolumeUsage

REPUBLISH_PERIOD: Final = 60.0
REPUBLISH_JITTER: Final = 0.5
SOONEST: Final = 10.0
"""Seconds until a volume is published again at the earliest, be its tokens overdue."""
_SETTING_UP: Final = "mounter.SetUpAt"


class CSIKind:
    """All volumes of all drivers. Keeps nothing of them; calls for one volume must not overlap."""

    plugin: Final = paths.PLUGIN
    staged: Final = True
    takes_mount_options: Final = True
    grows_on_node: Final = True

    def __init__(
        self,
        *,
        root: Path,
        node: str,
        drivers: Drivers,
        disk: Disk,
        mounter: Mounter,
        storage: StorageObjects,
        credentials: PodCredentials,
        recorder: EventRecorder,
        clock: WallClock,
        rng: random.Random,
        selinux: bool = False,
    ) -> None:
        """Those ten are the collaborators of all its operations; the ones about drivers go on in a `CallContext`.

        `selinux`: whether the machine has it on.
        """
        self._root = root
        self._disk = disk
        self._folders = Folders(disk, mounter)
        self._recorder = recorder
        self._clock = clock
        self._rng = rng
        self._selinux = selinux
        self._context = CallContext(node, drivers, storage, credentials)
        self._block = BlockVolumes(root, self._folders, self._context)

    # What is known of a volume without its driver

    def refreshes(self, spec: VolumeSpec) -> bool:
        """Only for drivers that ask for it (`requiresRepublish`)."""
        try:
            driver = self._context.known_driver_object(spec.name, rules.source_of(spec).driver)
        except VolumeError:
            return False
        return rules.requires_republish(driver)

    def unique_name(self, spec: VolumeSpec, uid: str) -> str:
        return rules.unique_name(spec, uid)

    def path(self, uid: str, inner_name: str, *, block: bool = False) -> Path:
        if block:
            return paths.BlockPaths.of(self._root, uid, inner_name).link
        return paths.target(self._root, uid, inner_name)

    def attachable(self, spec: VolumeSpec) -> bool:
        if rules.is_inline(spec):
            return False
        return rules.requires_attach(self._context.known_driver_object(spec.name, rules.source_of(spec).driver))

    def takes_mount_label(self, spec: VolumeSpec) -> bool:
        return rules.takes_mount_label(self._context.known_driver_object(spec.name, rules.source_of(spec, "-").driver))

    # For the node

    async def stage(self, request: SetUpRequest) -> Path | None:
        """None for what is not staged: inline volumes, and those of drivers that cannot."""
        spec = request.spec
        if rules.is_inline(spec):
            return None
        source = rules.source_of(spec)
        doing = "attacher.MountDevice"
        async with self._context.client(spec.name, source.driver, doing, migrated=spec.migrated) as client:
            capabilities = await self._context.capabilities(spec.name, client, doing)
            if Capability.STAGE_UNSTAGE_VOLUME not in capabilities:
                return None
            driver = await self._context.driver_object(spec.name, source.driver)
            attached = await self._context.publish_context(spec.name, source, driver)
            secrets = await self._context.secret(spec.name, "NodeStageSecretRef", source.stage_secret)
            if spec.block:
                return await self._block.stage(request, source, client, capabilities, attached, secrets)
            at = self._staging(spec.name, source)
            data = VolumeData(source.driver, source.handle, label=request.label)
            await self._folders.write_down(spec.name, at, data, inside=True)
            group = request.group if Capability.VOLUME_MOUNT_GROUP in capabilities else None
            capability = rules.volume_capability(source, capabilities, group=group, label=request.label)
            try:
                await client.stage(
                    source.handle,
                    str(at),
                    capability,
                    publish_context=attached,
                    volume_context=source.attributes,
                    secrets=secrets,
                )
            except CSIError as error:
                if error.final and not request.reconstructed:
                    await self._folders.give_up(at)
                raise
            return at

    async def unstage(self, unique_name: str, spec: VolumeSpec) -> None:
        if rules.is_inline(spec):
            return
        source = rules.source_of(spec)
        if spec.block:
            await self._block.unstage(spec, source)
            return
        at = self._staging(spec.name, source)
        if not await self._folders.may_be_unstaged(spec.name, at):
            return
        doing = "attacher.UnmountDevice"
        async with self._context.client(spec.name, source.driver, doing, migrated=spec.migrated) as client:
            capabilities = await self._context.capabilities(spec.name, client, doing)
            if Capability.STAGE_UNSTAGE_VOLUME in capabilities:
                await client.unstage(source.handle, str(at))
        await self._folders.forget(spec.name, source.driver, at)

    async def staged_volumes(self) -> list[VolumeSpec]:
        """What an earlier agent staged, whether a pod uses it or not: the agent may have ended between the last pod's
        `tear_down` and `unstage`."""
        return await self._disk.run(partial(staged_volumes, self._root))

    # For a pod

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        spec, pod = request.spec, request.pod
        source = rules.source_of(spec, pod.metadata.uid, pod.metadata.namespace)
        async with self._context.client(spec.name, source.driver, _SETTING_UP, migrated=spec.migrated) as client:
            driver = await self._context.driver_object(spec.name, source.driver)
            if spec.block:
                mounted = await self._block.set_up(request, source, driver, client)
                return attrs.evolve(mounted, refresh_at=self._refresh_at(driver, None))
            rules.check_lifecycle(spec.name, driver, source)
            policy = rules.fs_group_policy(spec.name, driver)
            capabilities = await self._context.capabilities(spec.name, client, _SETTING_UP)
            by_driver = Capability.VOLUME_MOUNT_GROUP in capabilities
            renew_at = await self._publish(
                request,
                source,
                driver,
                client,
                rules.volume_capability(
                    source, capabilities, group=request.group if by_driver else None, label=request.label
                ),
                staged=Capability.STAGE_UNSTAGE_VOLUME in capabilities and not source.ephemeral,
            )
        relabel = await self._takes_labels(request)
        if request.group is not None and not by_driver and rules.takes_fs_group(source, policy, request.group):
            with uncertain(spec.name):
                await give_to_group(self._disk, self._recorder, request, request.path, request.group)
        refresh_at = self._refresh_at(driver, renew_at)
        return MountedVolume(
            spec,
            request.path,
            read_only=source.read_only,
            relabel=relabel and not source.read_only,
            refresh_at=refresh_at,
        )

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        if block:
            await self._block.tear_down(uid, inner_name)
            return
        target = self.path(uid, inner_name)
        data = await self._folders.load_or_clear(inner_name, target)
        if data is None:
            return
        async with self._context.client(inner_name, data.driver, "Unmounter.TearDownAt") as client:
            await client.unpublish(data.handle, str(target))
        await self._folders.forget(inner_name, data.driver, target)

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        if block:
            return await self._block.reconstruct(uid, inner_name)
        folder = self.path(uid, inner_name).parent

        def load() -> VolumeSpec | None:
            data = vol_data.load(folder)
            if data is None:
                if folder.exists():
                    raise VolumeError(inner_name, f"failed to open volume data file [{folder / paths.VOL_DATA}]")
                return None
            if data.ephemeral:
                name = data.spec_name or inner_name
                inline = Volume(name=name, csi=CSIVolumeSource(driver=data.driver))
                return VolumeSpec(name, inner_name, self.plugin, volume=inline)
            return persistent_spec(data, inner_name)

        return await self._folders.do(inner_name, load)

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        spec = mounted.spec
        uid = "" if mounted.path is None else paths.uid_of(self._root, mounted.path)
        source = rules.source_of(spec, uid)
        doing = "metricsCsi.GetMetrics"
        async with self._context.client(spec.name, source.driver, doing, migrated=spec.migrated) as client:
            capabilities = await self._context.capabilities(spec.name, client, doing)
            if Capability.GET_VOLUME_STATS not in capabilities:
                return None
            at, began = self._clock.now(), trio.current_time()
            path = mounted.device if mounted.path is None else mounted.path
            try:
                reply = await client.stats(source.handle, str(path))
            finally:
                self._context.drivers.measuring.observe((source.driver,), trio.current_time() - began)
        return rules.usage_of(spec.name, reply, at)

    async def expand(self, request: SetUpRequest, new_size: Quantity) -> None:
        """Called with the volume set up."""
        spec = request.spec
        source = rules.source_of(spec)
        doing = "Expander.NodeExpand"
        block = paths.BlockPaths.of(self._root, request.pod.metadata.uid, spec.inner_name) if spec.block else None
        async with self._context.client(spec.name, source.driver, doing, migrated=spec.migrated) as client:
            # Whatever fails once the driver is there, the claim is told.
            try:
                capabilities = await client.capabilities()
            except CSIError as error:
                problem = f"{doing} failed to check if node supports expansion : {error}"
                raise (VolumeError if error.final else UncertainVolumeError)(spec.name, problem) from None
            if Capability.EXPAND_VOLUME not in capabilities:
                problem = f"NodeExpand is not supported by the CSI driver {source.driver}"
                raise NotExpandedError(spec.name, problem, Refusal.UNSUPPORTED)
            try:
                secrets = await self._context.secret(spec.name, "NodeExpandSecretRef", source.expand_secret)
            except TransientVolumeError as error:
                raise VolumeError(spec.name, error.problem) from error
            staging = self._staging(spec.name, source) if block is None else block.staging
            try:
                await client.expand(
                    source.handle,
                    str(request.path if block is None else block.publish),
                    rules.volume_capability(source, capabilities, block=spec.block),
                    staging_path=str(staging) if Capability.STAGE_UNSTAGE_VOLUME in capabilities else "",
                    size=new_size.value(),
                    secrets=secrets,
                )
            except CSIError as error:
                raise error.for_expansion(spec.name) from None

    # Steps

    async def _publish(
        self,
        request: SetUpRequest,
        source: Source,
        driver: CSIDriver | None,
        client: NodeClient,
        capability: v1.VolumeCapability,
        *,
        staged: bool,
    ) -> datetime | None:
        """Returns when the first token that the driver got should be replaced."""
        spec, target = request.spec, request.path
        attached = await self._context.publish_context(spec.name, source, driver)
        publication = await self._context.publication(spec.name, request.pod, source, driver, with_tokens=True)
        node = self._context.node
        data = VolumeData(
            driver=source.driver,
            handle=source.handle,
            spec_name=spec.inner_name,
            node=node,
            lifecycle=source.lifecycle,
            attachment=rules.attachment_name(source.handle, source.driver, node),
            label=request.label,
        )
        await self._folders.write_down(spec.name, target, data)
        try:
            await client.publish(
                source.handle,
                str(target),
                capability,
                staging_path=str(self._staging(spec.name, source)) if staged else "",
                read_only=source.read_only,
                publish_context=attached,
                volume_context=publication.context,
                secrets=publication.secrets,
                tokens=publication.tokens,
            )
        except CSIError as error:
            # A pod may use what was published before.
            if error.final and not request.refresh and not request.reconstructed:
                await self._folders.give_up(target)
            raise
        return publication.renew_at

    async def _takes_labels(self, request: SetUpRequest) -> bool:
        """Whether files of the published volume can be given labels (kubelet: `GetSELinuxSupport`)."""
        if not self._selinux or request.label:
            return False
        problem = ""
        try:
            mount = await self._folders.do(request.spec.name, partial(self._folders.holder, request.path))
        except VolumeError as error:
            mount, problem = None, error.problem
        if mount is None:
            # It is published all the same, and has to be taken down.
            what = f"error checking for SELinux support: {problem or f'no mount holds {request.path}'}"
            raise UncertainVolumeError(request.spec.name, what)
        return "seclabel" in (*mount.options, *mount.super_options)

    def _refresh_at(self, driver: CSIDriver | None, renew_at: datetime | None) -> datetime | None:
        """`renew_at`: when the first token that the driver got should be replaced."""
        if not rules.requires_republish(driver):
            return None
        now = self._clock.now()
        period = REPUBLISH_PERIOD * (1 + REPUBLISH_JITTER * self._rng.random())
        due = now + timedelta(seconds=period)
        return due if renew_at is None else min(due, max(renew_at, now + timedelta(seconds=SOONEST)))

    def _staging(self, volume: str, source: Source) -> Path:
        try:
            return paths.staging(self._root, source.driver, source.handle)
        except ValueError as error:
            raise VolumeError(volume, str(error)) from error
