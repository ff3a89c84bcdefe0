"""A `CSIKind` with a `FolderDriver` in memory, and a cluster that answers at once. No thread, no socket: it runs on a
mock clock."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import trio
import trio.testing

from tests.csi_driver import FolderDriver
from tests.volumes.fake_mounter import FakeMounter
from trikubelet.api import (
    CSIDriver,
    CSIDriverSpec,
    CSIPersistentVolumeSource,
    CSIVolumeSource,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
    Secret,
    Volume,
    VolumeAttachment,
    VolumeAttachmentStatus,
)
from trikubelet.clock import TrioClock
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.volume_objects import PodCredentials, StorageObjects, Token
from trikubelet.rpc.grpc import Channel, Server
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.csi.drivers import Driver, Drivers
from trikubelet.volumes.csi.kind import CSIKind
from trikubelet.volumes.csi.rules import attachment_name
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.model import MountedVolume, SetUpRequest, VolumeSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable, Mapping

NAME = "folder.example.com"
NODE = "node-1"
T = TypeVar("T")

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="uid-web"), spec=PodSpec(service_account_name="seller"))
OTHER_POD = attrs.evolve(POD, metadata=ObjectMeta(name="db", namespace="shop", uid="uid-db"))
EXPIRES = datetime(2026, 1, 1, 1, tzinfo=UTC)


class InlineDisk(Disk):
    """Does the work at once: threads and a mock clock do not go together."""

    async def run(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    async def run_foreign(self, where: Hashable, work: Callable[[], T], *, deadline: float = 0.0) -> T:
        return await self.run(work)

    async def walk_foreign(self, where: Hashable, work: Callable[[], T], *, deadline: float) -> T:
        return await self.run(work)


def csi_driver(**spec: Any) -> CSIDriver:
    """The driver's object; the API server's defaults but for `spec`."""
    defaults: dict[str, Any] = {
        "attach_required": True,
        "pod_info_on_mount": False,
        "volume_lifecycle_modes": ("Persistent",),
        "fs_group_policy": "ReadWriteOnceWithFSType",
        "requires_republish": False,
    }
    return CSIDriver(metadata=ObjectMeta(name=NAME), spec=CSIDriverSpec(**{**defaults, **spec}))


def persistent(
    *, block: bool = False, read_only: bool = False, spec: Mapping[str, Any] | None = None, **source: Any
) -> VolumeSpec:
    """The volume `data` of a pod, bound to `pv-1`."""
    csi = CSIPersistentVolumeSource(driver=NAME, volume_handle="vol/1", **source)
    defaults: dict[str, Any] = {"access_modes": ("ReadWriteOnce",)}
    volume = PersistentVolume(
        metadata=ObjectMeta(name="pv-1"), spec=PersistentVolumeSpec(csi=csi, **{**defaults, **(spec or {})})
    )
    plugin = "kubernetes.io/csi"
    return VolumeSpec("data", "pv-1", plugin, persistent=volume, block=block, read_only=read_only)


def inline(**source: Any) -> VolumeSpec:
    """The volume `own` of a pod."""
    volume = Volume(name="own", csi=CSIVolumeSource(driver=NAME, **source))
    return VolumeSpec("own", "own", "kubernetes.io/csi", volume=volume)


@attrs.define
class FakeCluster:
    """StorageObjects and PodCredentials, as far as CSI asks them."""

    drivers: dict[str, CSIDriver] = attrs.field(factory=dict)
    attachments: dict[str, VolumeAttachment] = attrs.field(factory=dict)
    secrets: dict[tuple[str, str], Secret] = attrs.field(factory=dict)
    token_life: timedelta = timedelta(hours=1)
    synced: bool = True
    tokens: bool = True

    def attach(self, handle: str = "vol/1", **metadata: str) -> None:
        name = attachment_name(handle, NAME, NODE)
        status = VolumeAttachmentStatus(attached=True, attachment_metadata=metadata)
        self.attachments[name] = VolumeAttachment(metadata=ObjectMeta(name=name), status=status)

    def add_secret(self, namespace: str, name: str, **data: bytes) -> None:
        self.secrets[namespace, name] = Secret(metadata=ObjectMeta(name=name, namespace=namespace), data=data)

    async def csi_driver(self, name: str) -> CSIDriver | None:
        return self.known_csi_driver(name)

    def known_csi_driver(self, name: str) -> CSIDriver | None:
        if not self.synced:
            raise ObjectError("csidrivers not yet synced", "unavailable")
        return self.drivers.get(name)

    async def attachment(self, name: str) -> VolumeAttachment:
        if name not in self.attachments:
            raise ObjectError(f'volumeattachments.storage.k8s.io "{name}" not found', "not found")
        return self.attachments[name]

    async def secret(self, namespace: str, name: str) -> Secret:
        if (namespace, name) not in self.secrets:
            raise ObjectError(f'secrets "{name}" not found', "not found")
        return self.secrets[namespace, name]

    async def token(self, pod: Pod, audiences: tuple[str, ...], seconds: int | None) -> Token:
        if not self.tokens:
            raise ObjectError("the API server is away", "unavailable")
        text = f"token-of-{pod.metadata.name}-for-{'-'.join(audiences)}-{seconds}"
        return Token(text, expires=EXPIRES, renew_at=EXPIRES - self.token_life * 0.2)


@attrs.define
class Stage:
    kind: CSIKind
    driver: FolderDriver
    drivers: Drivers
    cluster: FakeCluster
    mounter: FakeMounter
    recorder: EventRecorder
    clock: TrioClock
    root: Path

    def request(self, spec: VolumeSpec, pod: Pod = POD, **options: Any) -> SetUpRequest:
        path = self.kind.path(pod.metadata.uid, spec.inner_name, block=spec.block)
        return SetUpRequest(pod=pod, spec=spec, path=path, **options)

    async def set_up(self, spec: VolumeSpec, pod: Pod = POD, **options: Any) -> MountedVolume:
        """Stage it and set it up, as the manager does."""
        request = self.request(spec, pod, **options)
        staged = await self.kind.stage(request)
        return await self.kind.set_up(attrs.evolve(request, staging_path=staged))

    def left(self) -> list[str]:
        """What is below the root folder, but for folders that pods or drivers share."""
        shared = {
            "pods",
            "plugins",
            "plugins/kubernetes.io",
            "plugins/kubernetes.io/csi",
            f"plugins/kubernetes.io/csi/{NAME}",
        }
        return sorted(
            str(path)
            for path in (found.relative_to(self.root) for found in self.root.rglob("*"))
            if str(path) not in shared
        )


@asynccontextmanager
async def csi_stage(
    tmp_path: Path,
    *,
    disk: Disk | None = None,
    timeout: float = 120.0,
    register: bool = True,
    selinux: bool = False,
    **driver: Any,
) -> AsyncIterator[Stage]:
    """`driver`: options of the FolderDriver."""
    folder = FolderDriver(tmp_path / "storage", endpoint="/csi.sock", **driver)
    cluster = FakeCluster()
    mounter = FakeMounter()
    clock = TrioClock()
    recorder = EventRecorder(clock)
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    async with trio.open_nursery() as nursery:

        async def connect() -> trio.abc.Stream:
            near, far = trio.testing.memory_stream_pair()
            nursery.start_soon(Server(folder.services).serve_stream, far)
            return near

        drivers = Drivers(connect=lambda endpoint: Channel(connect, target=endpoint), timeout=timeout)
        if register:
            drivers.add(Driver(NAME, "/csi.sock", "1.0.0"))
        kind = CSIKind(
            root=root,
            node=NODE,
            drivers=drivers,
            disk=disk or InlineDisk(),
            mounter=mounter,
            storage=cast("StorageObjects", cluster),
            credentials=cast("PodCredentials", cluster),
            recorder=recorder,
            clock=clock,
            rng=random.Random(1),
            selinux=selinux,
        )
        yield Stage(kind, folder, drivers, cluster, mounter, recorder, clock, root)
        nursery.cancel_scope.cancel()
