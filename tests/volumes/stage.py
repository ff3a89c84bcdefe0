"""A volume manager with everything around it faked: kinds, objects, the API server's part of storage. No threads."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import pytest
import trio

from tests.volumes.fake_kind import FakeKind
from tests.volumes.fake_mounter import FakeMounter
from trikubelet.api import (
    ClusterTrustBundleProjection,
    ConfigMap,
    CSIDriver,
    Node,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimCondition,
    Pod,
    PodCertificateProjection,
    Quantity,
    Secret,
    VolumeAttachment,
    from_dict,
    pod_from_dict,
)
from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.clock import TrioClock
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.storage_objects import failed_status
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.attaching import Attaching
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.kinds.protocol import Kinds
from trikubelet.volumes.manager import VolumeManager
from trikubelet.volumes.mount_labels import MountLabels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence

    from trikubelet.kube_client.volume_objects import CertificateAndKey, References, Token

T = TypeVar("T")

NODE = "node-1"
RESIZING = {"storage": "NodeResizeInProgress"}


class InlineDisk(Disk):
    """Does the work at once: threads and a mock clock do not go together."""

    async def run(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    async def run_foreign(self, where: Hashable, work: Callable[[], T], *, deadline: float = 120.0) -> T:
        return await self.run(work)

    async def walk_foreign(self, where: Hashable, work: Callable[[], T], *, deadline: float) -> T:
        return await self.run(work)


class FakeObjects:
    """`WatchedObjects`; a test tells of changes."""

    def __init__(self) -> None:
        self.changes: Broadcast[tuple[str, str, str]] = Broadcast()

    @contextmanager
    def references(self, _uid: str) -> Iterator[References]:
        yield self

    def follow(self, pod: Pod) -> None: ...

    def referring(self, plural: str, namespace: str, name: str) -> Sequence[str]:
        return ()

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        raise NotImplementedError

    async def secret(self, namespace: str, name: str) -> Secret:
        raise NotImplementedError

    def change(self, plural: str, namespace: str, name: str) -> None:
        self.changes.send((plural, namespace, name))


class FakeCredentials:
    """`PodCredentials`; a test tells of changes."""

    def __init__(self) -> None:
        self._changes: Broadcast[str] = Broadcast()
        self.forgotten: list[str] = []

    async def token(self, pod: Pod, audiences: tuple[str, ...], seconds: int | None) -> Token:
        raise NotImplementedError

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    async def trust_bundle(self, source: ClusterTrustBundleProjection) -> bytes:
        raise NotImplementedError

    async def pod_certificate(
        self, pod: Pod, volume: str, index: int, source: PodCertificateProjection
    ) -> CertificateAndKey:
        raise NotImplementedError

    def changes(self) -> Subscription[str]:
        return self._changes.subscribe()

    def change(self, uid: str) -> None:
        self._changes.send(uid)


class FakeStorage:
    """`StorageObjects`. What is not there is not found; `unavailable` makes everything fail."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.attachments: dict[str, VolumeAttachment] = {}
        self.secrets: dict[tuple[str, str], Secret] = {}
        self.drivers: dict[str, CSIDriver] = {}
        self.node_object = Node(metadata=ObjectMeta(name=NODE, labels={"zone": "a"}))
        self.unavailable = False
        self.attached_volumes: dict[str, str] | None = {}
        self.sizes: list[tuple[str, str]] = []
        """Names of claims, and what was told of their sizes."""
        self.reads = 0
        """How often a claim was asked for."""
        self.attached_changes: Broadcast[None] = Broadcast()
        self.csi_driver_changes: Broadcast[str] = Broadcast()

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        self.reads += 1
        return await self._found(self.claims, (namespace, name), f'persistentvolumeclaims "{name}" not found')

    async def volume(self, name: str) -> PersistentVolume:
        return await self._found(self.volumes, name, f'persistentvolumes "{name}" not found')

    async def attachment(self, name: str) -> VolumeAttachment:
        return await self._found(self.attachments, name, f'volumeattachments "{name}" not found')

    async def secret(self, namespace: str, name: str) -> Secret:
        return await self._found(self.secrets, (namespace, name), f'secrets "{name}" not found')

    async def csi_driver(self, name: str) -> CSIDriver | None:
        await trio.lowlevel.checkpoint()
        return self.known_csi_driver(name)

    def known_csi_driver(self, name: str) -> CSIDriver | None:
        if self.unavailable:
            raise ObjectError("no answer", "unavailable")
        return self.drivers.get(name)

    def attached(self) -> dict[str, str] | None:
        return self.attached_volumes

    async def node(self) -> Node:
        await trio.lowlevel.checkpoint()
        if self.unavailable:
            raise ObjectError("no answer", "unavailable")
        return self.node_object

    async def resizing(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        return await self._told(claim, "NodeResizeInProgress", allocated_resource_statuses=RESIZING)

    async def resized(self, claim: PersistentVolumeClaim, size: Quantity) -> PersistentVolumeClaim:
        done: dict[str, Any] = {"capacity": {"storage": size}, "conditions": (), "allocated_resource_statuses": {}}
        return await self._told(claim, str(size), **done)

    async def resize_failed(
        self, claim: PersistentVolumeClaim, problem: str, *, infeasible: bool, at: datetime
    ) -> PersistentVolumeClaim:
        failed = failed_status(claim.status, problem, infeasible=infeasible, at=at)
        conditions = tuple(from_dict(PersistentVolumeClaimCondition, one) for one in failed.get("conditions", ()))
        changes: dict[str, Any] = {"conditions": (*claim.status.conditions, *conditions)}
        if infeasible:
            changes["allocated_resource_statuses"] = {"storage": "NodeResizeInfeasible"}
        return await self._told(claim, "NodeResizeInfeasible" if infeasible else "NodeResizeError", **changes)

    async def _told(self, claim: PersistentVolumeClaim, what: str, **status: Any) -> PersistentVolumeClaim:
        await trio.lowlevel.checkpoint()
        if self.unavailable:
            raise ObjectError("no answer", "unavailable")
        changed = attrs.evolve(claim, status=attrs.evolve(claim.status, **status))
        if changed != claim:
            self.sizes.append((claim.metadata.name, what))
        self.claims[claim.metadata.namespace, claim.metadata.name] = changed
        return changed

    def attach(self, names: dict[str, str] | None) -> None:
        """The node's status says so."""
        self.attached_volumes = names
        self.attached_changes.send(None)

    def change_driver(self, name: str) -> None:
        self.csi_driver_changes.send(name)

    async def _found(self, known: dict[Any, T], key: object, problem: str) -> T:
        await trio.lowlevel.checkpoint()
        if self.unavailable:
            raise ObjectError("no answer", "unavailable")
        if key not in known:
            raise ObjectError(problem, "not found")
        return known[key]


@attrs.define
class Stage:
    """`kinds` survive a restart of the manager, as the disk does."""

    root: Path
    kinds: dict[str, FakeKind] = attrs.field(factory=dict)
    mounter: FakeMounter = attrs.field(factory=FakeMounter)
    storage: FakeStorage = attrs.field(factory=FakeStorage)
    objects: FakeObjects = attrs.field(factory=FakeObjects)
    credentials: FakeCredentials = attrs.field(factory=FakeCredentials)
    clock: TrioClock = attrs.field(factory=TrioClock)
    running_pods: set[str] = attrs.field(factory=set)
    """UIDs of pods that may have running containers."""
    usage_period: float = 0.0
    labels: MountLabels = attrs.field(factory=MountLabels)
    recorder: EventRecorder = attrs.field(init=False)
    manager: VolumeManager = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.recorder = EventRecorder(self.clock)

    def kind(self, plugin: str, **settings: Any) -> FakeKind:
        made = FakeKind(plugin=plugin, root=self.root, **settings)
        self.kinds[plugin] = made
        return made

    @asynccontextmanager
    async def running(self) -> AsyncIterator[VolumeManager]:
        """A manager, from its start to its end. The next one finds what is on disk."""
        self.manager = VolumeManager(
            root=self.root,
            kinds=Kinds.of(self.kinds.values()),
            mounter=self.mounter,
            disk=InlineDisk(),
            objects=self.objects,
            storage=self.storage,
            credentials=self.credentials,
            attaching=Attaching(self.storage, node_name=NODE),
            recorder=self.recorder,
            clock=self.clock,
            rng=random.Random(1),
            containers_gone=lambda uid: uid not in self.running_pods,
            labels=self.labels,
            usage_period=self.usage_period,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.manager.run)
            yield self.manager
            nursery.cancel_scope.cancel()

    def messages(self, uid: str, reason: str = "FailedMount") -> list[str]:
        """Texts of a pod's events, the one seen longest ago first."""
        return [event.message for event in self.recorder.events_of(uid) if event.reason == reason]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(trio.from_thread, "check_cancelled", lambda: None)  # there is no thread
    return Stage(tmp_path)


def pod(
    name: str = "web",
    *volumes: dict[str, Any],
    mounts: Iterable[str] | None = None,
    devices: Iterable[str] = (),
    **metadata: Any,
) -> Pod:
    """A pod whose one container mounts all of its volumes, or those named in `mounts`."""
    names = [volume["name"] for volume in volumes if volume["name"] not in devices] if mounts is None else mounts
    container = {
        "name": "main",
        "image": "image",
        "volumeMounts": [{"name": one, "mountPath": f"/{one}"} for one in names],
        "volumeDevices": [{"name": one, "devicePath": f"/dev/{one}"} for one in devices],
    }
    return pod_from_dict(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata},
            "spec": {"containers": [container], "volumes": list(volumes), "nodeName": NODE},
        }
    )


def empty_dir(name: str = "cache") -> dict[str, Any]:
    return {"name": name, "emptyDir": {}}


def config_map(name: str = "config", of: str = "settings") -> dict[str, Any]:
    return {"name": name, "configMap": {"name": of}}


def claimed(name: str = "data", claim: str = "claim") -> dict[str, Any]:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def add_claim(storage: FakeStorage, claim: str = "claim", volume: str = "pv-1", **changes: Any) -> None:
    """A claim bound to a volume of a CSI driver. `changes`: fields of the objects' specifications and status."""
    spec = {
        "csi": {"driver": "disks.example.com", "volumeHandle": volume},
        "capacity": {"storage": changes.pop("size", "1Gi")},
        "accessModes": changes.pop("access_modes", ["ReadWriteOnce"]),
        "claimRef": {"name": claim, "namespace": "default", "uid": changes.pop("bound_to", f"uid-{claim}")},
        "volumeMode": changes.pop("volume_mode", "Filesystem"),
        "mountOptions": changes.pop("mount_options", []),
        "nodeAffinity": changes.pop("node_affinity", None),
    }
    annotations = changes.pop("annotations", {})
    storage.volumes[volume] = from_dict(
        PersistentVolume,
        {
            "metadata": {"name": volume, "annotations": annotations},
            "spec": {key: value for key, value in spec.items() if value is not None},
        },
    )
    status = {"phase": changes.pop("phase", "Bound"), "capacity": {"storage": changes.pop("claimed_size", "1Gi")}}
    metadata = {"name": claim, "namespace": "default", "uid": f"uid-{claim}", **changes.pop("metadata", {})}
    storage.claims["default", claim] = from_dict(
        PersistentVolumeClaim,
        {
            "metadata": metadata,
            "spec": {"volumeName": changes.pop("volume_name", volume), "accessModes": spec["accessModes"]},
            "status": {**status, **changes.pop("status", {})},
        },
    )
    assert not changes, f"unknown: {changes}"


def at(seconds: float) -> datetime:
    """The date at a Trio time, by a `TrioClock` that was first asked at 0."""
    from datetime import UTC, timedelta

    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
