"""The volumes of one flexVolume driver.

With a driver that can attach, a volume is mounted for the node first (`mountdevice`), once a controller has attached
it, and then for each pod. What the driver says that it does not support, is done here, as the kubelet does it: a device
is mounted, a mount bound or unmounted. What is mounted where, is read from the mount table only.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from trikubelet.api import FlexPersistentVolumeSource, FlexVolumeSource, Volume
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.volumes import layout
from trikubelet.volumes.errors import TransientVolumeError, UncertainVolumeError, VolumeError, uncertain
from trikubelet.volumes.flex.answers import NotSupportedError, options, pod_options
from trikubelet.volumes.folders import names_in, remove_folder, unmount_all
from trikubelet.volumes.fs_group import try_to_give_to_group
from trikubelet.volumes.kinds.file_systems import DEFAULT, format_and_mount, grow
from trikubelet.volumes.kinds.node_kind import NodeKind, as_volume_error
from trikubelet.volumes.model import MountedVolume, VolumeSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trikubelet.api import Quantity
    from trikubelet.volumes.flex.driver import FlexDriver
    from trikubelet.volumes.flex.tools import FlexTools
    from trikubelet.volumes.model import SetUpRequest, VolumeUsage

T = TypeVar("T")

FLEX: Final = "kubernetes.io/flexvolume"
PATH_DEADLINE: Final = 60.0
"""Seconds for a call on a path where the driver may have mounted something."""


class FlexKind(NodeKind):
    def __init__(self, driver: FlexDriver, tools: FlexTools) -> None:
        super().__init__(root=tools.root)
        self.plugin = driver.name
        self.staged = driver.capabilities.attach
        self.grows_on_node = driver.capabilities.requires_fs_resize
        self._driver = driver
        self._tools = tools
        self._mounts = layout.plugins_directory(self._root).joinpath(FLEX, *driver.name.split("/"), "mounts")

    def unique_name(self, spec: VolumeSpec, uid: str) -> str:
        """A driver that can attach has one volume of a name on the node, whichever pods it is in: by that name a
        controller attaches it."""
        return f"{self.plugin}/{spec.inner_name}" if self.staged else super().unique_name(spec, uid)

    def attachable(self, spec: VolumeSpec) -> bool:
        return self._driver.capabilities.attach and self._tools.controller_attaches

    # For the node

    async def stage(self, request: SetUpRequest) -> Path | None:
        spec, name = request.spec, request.spec.name
        told = self._options(spec)
        try:
            device = (await self._driver.call(name, "waitforattach", request.device_path, told)).device
        except NotSupportedError:
            device = request.device_path
        at = self._mounts / spec.inner_name
        if not await self._make_mount_point(name, at):
            return at
        try:
            await self._mount_device(spec, device, at, told)
        except UncertainVolumeError:
            raise
        except VolumeError as error:
            await self._give_up(name, at, error)
        return at

    async def unstage(self, unique_name: str, spec: VolumeSpec) -> None:
        if self.staged:
            await self._undo(spec.name, "unmountdevice", self._mounts / spec.inner_name, only_mounted=True)

    async def staged_volumes(self) -> list[VolumeSpec]:
        if not self.staged:
            return []
        return [self._spec(name) for name in await self._tools.disk.run(partial(names_in, self._mounts))]

    # For a pod

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        spec, path = request.spec, request.path
        read_only = _is_read_only(spec)
        relabel = self._driver.capabilities.selinux_relabel and not read_only
        mounted = MountedVolume(spec, path, read_only=read_only, relabel=relabel)
        if not await self._make_mount_point(spec.name, path):
            return mounted
        try:
            await self._mount(request)
        except UncertainVolumeError:
            raise
        except VolumeError as error:
            await self._give_up(spec.name, path, error)
        if request.group is not None and not mounted.read_only and self._driver.capabilities.fs_group:
            with uncertain(spec.name):
                await try_to_give_to_group(self._tools.disk, self._tools.recorder, request, request.path, request.group)
        return mounted

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        await self._undo(inner_name, "unmount", self.path(uid, inner_name), only_mounted=False)

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        path = self.path(uid, inner_name)
        return self._spec(inner_name) if await self._is_listed(inner_name, path) else None

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        if not self._driver.capabilities.supports_metrics or mounted.path is None:
            await trio.lowlevel.checkpoint()
            return None
        return await self._tools.meter.file_system(mounted.spec.name, mounted.path)

    async def expand(self, request: SetUpRequest, new_size: Quantity) -> None:
        spec = request.spec
        claimed = None if spec.claim is None else spec.claim.status.capacity.get("storage")
        old_size = new_size if claimed is None else claimed
        at = self._mounts / spec.inner_name if self.staged else request.path
        sizes = (str(new_size.value()), str(old_size.value()))
        try:
            device = request.device_path
            await self._driver.call(spec.name, "expandfs", self._options(spec), device, str(at), *sizes)
        except NotSupportedError:
            mount = (await self._tools.disk.run(self._tools.mounter.table)).at(at)
            if not device and mount is None:
                raise VolumeError(spec.name, f"expected a device at {at}, whose file system could grow") from None
            await grow(spec.name, Path(device or ("" if mount is None else mount.source)), at)

    # Steps

    async def _mount_device(self, spec: VolumeSpec, device: str, at: Path, told: str) -> None:
        try:
            await self._driver.call(spec.name, "mountdevice", str(at), device, told)
        except NotSupportedError:
            if device:
                mode = "ro" if _is_read_only(spec) else "rw"
                await format_and_mount(spec.name, Path(device), at, _source(spec).fs_type or DEFAULT, [mode])

    async def _mount(self, request: SetUpRequest) -> None:
        spec, pod, path = request.spec, request.pod, request.path
        secret = await self._secret(spec, pod.metadata.namespace)
        told = self._options(spec, pod_options(pod, request.group, secret))
        try:
            await self._driver.call(spec.name, "mount", str(path), told, secrets=_hidden(secret))
        except NotSupportedError:
            files = request.staging_path
            if files is None:
                problem = f"flexVolume driver {self.plugin}: expected that it mounts volumes, or devices at least"
                raise VolumeError(spec.name, problem) from None
            await self._ask(spec.name, path, partial(self._tools.mounter.bind, files, path))

    def _options(self, spec: VolumeSpec, more: Mapping[str, str] | None = None) -> str:
        return options(_source(spec), spec.inner_name, read_only=_is_read_only(spec), more=more or {})

    def _spec(self, name: str) -> VolumeSpec:
        """As far as its folder tells, which is enough to undo it."""
        source = FlexVolumeSource(driver=self.plugin)
        return VolumeSpec(name, name, self.plugin, volume=Volume(name=name, flex_volume=source))

    async def _secret(self, spec: VolumeSpec, namespace: str) -> Mapping[str, bytes]:
        """Of the type that is named after the driver: others are not its business."""
        reference = _source(spec).secret_ref
        if reference is None:
            return {}
        namespace = getattr(reference, "namespace", "") or namespace
        where = f"couldn't get secret {namespace}/{reference.name} err"
        try:
            secret = await self._tools.storage.secret(namespace, reference.name)
        except ObjectError as error:
            raise TransientVolumeError(spec.name, f"{where}: {error}") from error
        if secret.type != self.plugin:
            raise VolumeError(spec.name, f"{where}: cannot get secret of type {self.plugin}")
        return secret.data

    async def _make_mount_point(self, volume: str, at: Path) -> bool:
        """False when something is mounted there."""

        def work() -> bool:
            if self._tools.mounter.table().at(at) is not None:
                return False
            at.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
            return True

        with as_volume_error(volume, f"cannot make {at}"):
            return await self._tools.disk.run(work)

    async def _give_up(self, volume: str, at: Path, error: VolumeError) -> None:
        """Raises the error, as an uncertain one if something is there all the same."""

        def work() -> bool:
            if self._tools.mounter.table().at(at) is not None:
                return False
            with suppress(FileNotFoundError):
                at.rmdir()
            return True

        try:
            gone = await self._tools.disk.run(work)
        except OSError:  # it holds something: that is the driver's
            gone = False
        raise error if gone else UncertainVolumeError(volume, error.problem) from error

    async def _undo(self, volume: str, command: str, at: Path, *, only_mounted: bool) -> None:
        """Have the driver unmount, and remove the folder, which must be empty then."""
        if not await self._is_listed(volume, at):
            return
        with as_volume_error(volume, f"cannot look at {at}"):
            is_mounted = (await self._tools.disk.run(self._tools.mounter.table)).at(at) is not None
        if is_mounted or not only_mounted:
            try:
                await self._driver.call(volume, command, str(at))
            except NotSupportedError:
                await self._ask(volume, at, partial(unmount_all, self._tools.mounter, at))
        await self._ask(volume, at, partial(remove_folder, at))

    async def _is_listed(self, volume: str, path: Path) -> bool:
        with as_volume_error(volume, f"cannot list {path.parent}"):
            return path.name in await self._tools.disk.run(partial(names_in, path.parent))

    async def _ask(self, volume: str, path: Path, work: Callable[[], T]) -> T:
        try:
            with as_volume_error(volume, f"cannot change {path}"):
                return await self._tools.disk.run_foreign(path, work, deadline=PATH_DEADLINE)
        except trio.TooSlowError:
            problem = f"{path}: expected an answer within {PATH_DEADLINE:.0f} s, got none"
            raise UncertainVolumeError(volume, problem) from None


def _source(spec: VolumeSpec) -> FlexVolumeSource | FlexPersistentVolumeSource:
    persistent = None if spec.persistent is None else spec.persistent.spec.flex_volume
    inline = None if spec.persistent is not None or spec.volume is None else spec.volume.flex_volume
    source = persistent or inline
    if source is None:
        raise VolumeError(spec.name, "not a flex volume")
    if spec.block:
        raise VolumeError(spec.name, "flexVolume drivers have no volumes of volumeMode Block")
    return source


def _is_read_only(spec: VolumeSpec) -> bool:
    """For a pod's own volume its source says it, for a persistent volume the claim."""
    inline = None if spec.persistent is not None or spec.volume is None else spec.volume.flex_volume
    return spec.read_only or (inline is not None and inline.read_only)


def _hidden(secret: Mapping[str, bytes]) -> list[str]:
    """As the driver may repeat it."""
    texts = (value.decode(errors="replace") for value in secret.values())
    return [*texts, *(base64.b64encode(value).decode() for value in secret.values())]
