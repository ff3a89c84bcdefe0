"""Volumes whose content the agent writes itself: configMap, secret, downwardAPI and projected.

What they show is asked for first; then all work on files is done in one go on a thread: the folder or tmpfs, mount
points of other volumes inside, the content. Setting one up again is how it is refreshed, and writes nothing when
nothing changed. A volume that shows something keeps it whatever fails; one that could not get its first content is
taken down again.

Secrets, tokens and what a pod knows of itself are in memory only, not on a disk or in swap. ConfigMaps are on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import trio

from trikubelet.api import Quantity
from trikubelet.clock import WallClock
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.volume_objects import PodCredentials, WatchedObjects
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import layout
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.kinds.wrapped_folder import WrappedFolder
from trikubelet.volumes.model import MountedVolume, VolumeSpec
from trikubelet.volumes.payload.downward import downward_payload
from trikubelet.volumes.payload.files import Payload, PayloadError
from trikubelet.volumes.payload.nested import make_mount_points, nested_mount_points
from trikubelet.volumes.payload.objects import config_map_payload, secret_payload
from trikubelet.volumes.payload.ownership import set_owner
from trikubelet.volumes.payload.projected import Readers, certificate_payload, token_payload, trust_bundle_payload
from trikubelet.volumes.payload.writer import is_written, write_payload
from trikubelet.volumes.sources import CONFIG_MAP, DOWNWARD_API, PROJECTED, SECRET
from trikubelet.volumes.stats import VolumeMeter
from trikubelet.volumes.tmpfs_size import tmpfs_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from trikubelet.api import ClusterTrustBundleProjection, Volume, VolumeProjection
    from trikubelet.volumes.model import SetUpRequest, VolumeUsage

T = TypeVar("T")

log = get_logger("volumes")

RETRY_AFTER: Final = timedelta(seconds=60)


@frozen
class Content:
    """What a volume shall show, and when that has to be renewed."""

    payload: Payload
    refresh_at: datetime | None = None


@frozen(kw_only=True)
class ContentKind:
    """What the four have in common; each says in `_content` what is to be shown."""

    plugin: ClassVar[str]
    staged: ClassVar[bool] = False
    takes_mount_options: ClassVar[bool] = False
    grows_on_node: ClassVar[bool] = False
    in_memory: ClassVar[bool] = True

    root: Path
    mounter: Mounter
    disk: Disk
    meter: VolumeMeter
    clock: WallClock
    allocatable: Callable[[], Mapping[str, Quantity]]
    """What the node can give to pods."""

    def refreshes(self, spec: VolumeSpec) -> bool:
        return True

    def unique_name(self, spec: VolumeSpec, uid: str) -> str:
        return f"{self.plugin}/{uid}-{spec.inner_name}"

    def path(self, uid: str, inner_name: str, *, block: bool = False) -> Path:
        return layout.volume_directory(self.root, uid, self.plugin, inner_name)

    def attachable(self, spec: VolumeSpec) -> bool:
        return False

    def takes_mount_label(self, spec: VolumeSpec) -> bool:
        return False

    async def stage(self, request: SetUpRequest) -> Path | None:
        await trio.lowlevel.checkpoint()
        return None

    async def unstage(self, unique_name: str, spec: VolumeSpec) -> None:
        await trio.lowlevel.checkpoint()

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        """Raises VolumeError with the kubelet's text. When cancelled, work on files is waited for."""
        spec = request.spec
        try:
            content = await self._content(request)
            points = nested_mount_points(request.pod, spec.name)
            size = tmpfs_size(request.pod, allocatable=self.allocatable()) if self.in_memory else None
            now = self.clock.now()
            await self.disk.run(partial(self._place, request, content.payload, points, size, now))
        except (ObjectError, PayloadError) as error:
            raise VolumeError(spec.name, str(error)) from error
        except OSError as error:
            raise VolumeError(spec.name, f"cannot write {error.filename or request.path}: {error.strerror}") from error
        return MountedVolume(spec, request.path, read_only=True, relabel=True, refresh_at=content.refresh_at)

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        try:
            await self.disk.run(self._folder(uid, inner_name).remove)
        except OSError as error:
            raise VolumeError(inner_name, f"cannot remove {error.filename}: {error.strerror}") from error

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        path = self.path(uid, inner_name)
        if block or not await self.disk.run(path.is_dir):
            return None
        return VolumeSpec(inner_name, inner_name, self.plugin)

    async def staged_volumes(self) -> list[VolumeSpec]:
        await trio.lowlevel.checkpoint()
        return []

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        return None if mounted.path is None else await self.meter.tree(mounted.spec.name, mounted.path)

    async def expand(self, request: SetUpRequest, new_size: Quantity) -> None:
        await trio.lowlevel.checkpoint()
        raise VolumeError(request.spec.name, f"expected a volume that can grow, got one of {self.plugin}")

    async def _content(self, request: SetUpRequest) -> Content:
        """Raises ObjectError and PayloadError."""
        raise NotImplementedError

    def _folder(self, uid: str, inner_name: str) -> WrappedFolder:
        return WrappedFolder.of(self.root, uid, self.plugin, inner_name, in_memory=self.in_memory, mounter=self.mounter)

    def _place(
        self, request: SetUpRequest, payload: Payload, points: Sequence[str], size: int | None, now: datetime
    ) -> None:
        """On a thread. Raises PayloadError and OSError."""
        folder = self._folder(request.pod.metadata.uid, request.spec.inner_name)
        had_content = is_written(folder.path)
        try:
            folder.make(group=request.group, size=size)
            make_mount_points(folder.path, points)
            own = None if request.group is None else partial(_give, folder.path, request.group)
            write_payload(folder.path, payload, now=now, own=own)
        except (OSError, PayloadError):
            if not (had_content or request.refresh or request.reconstructed):
                with suppress(OSError):
                    folder.remove()
            raise


@frozen(kw_only=True)
class ConfigMapKind(ContentKind):
    plugin = CONFIG_MAP
    in_memory = False

    objects: WatchedObjects

    async def _content(self, request: SetUpRequest) -> Content:
        source = _source(request.spec, lambda volume: volume.config_map)
        optional = bool(source.optional)
        asked = self.objects.config_map(request.pod.metadata.namespace, source.name)
        found = await _unless_missing(asked, optional=optional)
        return Content(config_map_payload(found, source.items, default_mode=source.default_mode, optional=optional))


@frozen(kw_only=True)
class SecretKind(ContentKind):
    plugin = SECRET

    objects: WatchedObjects

    async def _content(self, request: SetUpRequest) -> Content:
        source = _source(request.spec, lambda volume: volume.secret)
        optional = bool(source.optional)
        asked = self.objects.secret(request.pod.metadata.namespace, source.secret_name)
        found = await _unless_missing(asked, optional=optional)
        return Content(secret_payload(found, source.items, default_mode=source.default_mode, optional=optional))


@frozen(kw_only=True)
class DownwardAPIKind(ContentKind):
    plugin = DOWNWARD_API

    async def _content(self, request: SetUpRequest) -> Content:
        await trio.lowlevel.checkpoint()
        source = _source(request.spec, lambda volume: volume.downward_api)
        given, mode = self.allocatable(), source.default_mode
        return Content(downward_payload(source.items, request.pod, default_mode=mode, allocatable=given))


@frozen(kw_only=True)
class ProjectedKind(ContentKind):
    """Several sources in one folder. `refresh_at` is when the first token or certificate is to be renewed; one whose
    renewal failed is asked for again after a minute."""

    plugin = PROJECTED

    objects: WatchedObjects
    credentials: PodCredentials

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        await super().tear_down(uid, inner_name, block=block)
        self.credentials.forget(uid)

    async def _content(self, request: SetUpRequest) -> Content:
        source = _source(request.spec, lambda volume: volume.projected)
        readers = Readers(source.default_mode, request.user, request.group)
        found: dict[int, Content] = {}
        problems: dict[int, str] = {}

        async def ask(index: int, part: VolumeProjection) -> None:
            try:
                found[index] = await self._part(request, index, part, readers)
            except PayloadError as error:
                problems[index] = str(error)
            except ObjectError as error:
                problems[index] = _in_projected(request.spec, error)

        async with trio.open_nursery() as nursery:
            for index, part in enumerate(source.sources):
                nursery.start_soon(ask, index, part)
        if problems:
            raise PayloadError.of(problems[index] for index in sorted(problems))
        payload: Payload = {}
        for index in sorted(found):
            payload |= found[index].payload
        return Content(payload, self._soonest(content.refresh_at for content in found.values()))

    async def _part(self, request: SetUpRequest, index: int, part: VolumeProjection, readers: Readers) -> Content:
        """Raises PayloadError and ObjectError."""
        pod, mode = request.pod, readers.default_mode
        namespace = pod.metadata.namespace
        if part.secret is not None:
            optional = bool(part.secret.optional)
            secret = await _unless_missing(self.objects.secret(namespace, part.secret.name), optional=optional)
            return Content(secret_payload(secret, part.secret.items, default_mode=mode, optional=optional))
        if part.config_map is not None:
            optional = bool(part.config_map.optional)
            found = await _unless_missing(self.objects.config_map(namespace, part.config_map.name), optional=optional)
            return Content(config_map_payload(found, part.config_map.items, default_mode=mode, optional=optional))
        if part.downward_api is not None:
            given = self.allocatable()
            return Content(downward_payload(part.downward_api.items, pod, default_mode=mode, allocatable=given))
        if (wanted := part.service_account_token) is not None:
            audiences = (wanted.audience,) if wanted.audience else ()
            token = await self.credentials.token(pod, audiences, wanted.expiration_seconds)
            return Content(token_payload(wanted, token, readers), token.renew_at)
        if part.cluster_trust_bundle is not None:
            return Content(await self._trust_bundle(part.cluster_trust_bundle, readers))
        if part.pod_certificate is not None:
            source = part.pod_certificate
            certificate = await self.credentials.pod_certificate(pod, request.spec.name, index, source)
            return Content(certificate_payload(source, certificate, readers), certificate.renew_at)
        return Content({})

    async def _trust_bundle(self, source: ClusterTrustBundleProjection, readers: Readers) -> Payload:
        if source.name is None and source.signer_name is None:
            raise PayloadError("ClusterTrustBundle projection requires either name or signerName to be set")
        return trust_bundle_payload(source, await self.credentials.trust_bundle(source), readers)

    def _soonest(self, times: Iterable[datetime | None]) -> datetime | None:
        soonest = min((time for time in times if time is not None), default=None)
        return None if soonest is None else max(soonest, self.clock.now() + RETRY_AFTER)


async def _unless_missing(asked: Awaitable[T], *, optional: bool) -> T | None:
    """What was asked for; None for an optional object that there is not. Raises ObjectError."""
    try:
        return await asked
    except ObjectError as error:
        if optional and error.problem == "not found":
            return None
        raise


def _in_projected(spec: VolumeSpec, error: ObjectError) -> str:
    if error.problem == "no client":
        return f"cannot setup projected volume {spec.name} because kube client is not configured"
    return str(error)


def _source(spec: VolumeSpec, of: Callable[[Volume], T | None]) -> T:
    """What the pod says of the volume. Raises PayloadError."""
    source = None if spec.volume is None else of(spec.volume)
    if source is None:
        raise PayloadError(f"expected the pod's volume with a source of {spec.plugin}, got none")
    return source


def _give(folder: Path, group: int) -> None:
    """To the pod's fsGroup, before the content is shown: it may read everything. On a thread. Raises OSError."""
    progress = set_owner(folder, group, read_only=True)
    if progress.first_failure is not None:
        problem = progress.first_failure.strerror
        log.warning("cannot give a volume to the fsGroup", path=str(folder), group=group, problem=problem)
