"""The volume manager alone, in this process: `prepare` and `release` of pods whose objects are in memory already.

What is left out is what others take: the API server to tell of objects, the runtime to mount what was made.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import trio

from benchmarks.volumes.kinds import NAMESPACE, TOKEN_SECONDS, Kind, config_map, secret, with_volumes
from trikubelet.api import ConfigMap, Pod, Quantity, Secret, pod_from_dict, set_pod_defaults
from trikubelet.clock import SystemClock, WallClock
from trikubelet.kube_client.volume_objects import Token
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.attaching import Attaching
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.kinds.content import ConfigMapKind, DownwardAPIKind, ProjectedKind, SecretKind
from trikubelet.volumes.kinds.empty_dir import EmptyDirKind
from trikubelet.volumes.kinds.host_path import HostPathKind
from trikubelet.volumes.kinds.protocol import Kinds
from trikubelet.volumes.manager import VolumeManager
from trikubelet.volumes.mount_labels import MountLabels
from trikubelet.volumes.no_cluster import NoClusterCredentials, NoClusterObjects, NoClusterStorage
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ALLOCATABLE = {"memory": Quantity("8Gi"), "cpu": Quantity("2")}


class KnownObjects(NoClusterObjects):
    """Everything that is asked for is there."""

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        await trio.lowlevel.checkpoint()
        return config_map(int(name.rpartition("-")[2]))

    async def secret(self, namespace: str, name: str) -> Secret:
        await trio.lowlevel.checkpoint()
        return secret(int(name.rpartition("-")[2]))


class KnownCredentials(NoClusterCredentials):
    """A token for whoever asks."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock

    async def token(self, pod: Pod, audiences: tuple[str, ...], seconds: int | None) -> Token:
        await trio.lowlevel.checkpoint()
        expires = self._clock.now() + timedelta(seconds=TOKEN_SECONDS)
        return Token("token", expires, expires)


@attrs.frozen
class Prepared:
    """Seconds that one pod took."""

    prepare: float
    release: float


@asynccontextmanager
async def manager_on(root: Path) -> AsyncIterator[VolumeManager]:
    """A volume manager that runs."""
    clock = SystemClock()
    manager = _manager(root, clock)
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        yield manager
        nursery.cancel_scope.cancel()


async def time_prepare(manager: VolumeManager, name: str, kind: Kind, count: int) -> Prepared:
    """One pod that never runs. Nothing is left of it."""
    pod = _pod(name, kind, count)
    began = trio.current_time()
    await manager.prepare(pod)
    prepared = trio.current_time()
    await manager.release(pod.metadata.uid)
    return Prepared(prepared - began, trio.current_time() - prepared)


def _pod(name: str, kind: Kind, count: int) -> Pod:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "none"}], "serviceAccountName": "default"}
    with_volumes(spec, kind, count)
    metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {"app": "benchmark"}}
    return set_pod_defaults(pod_from_dict({"metadata": metadata, "spec": spec}))


def _manager(root: Path, clock: WallClock) -> VolumeManager:
    mounter, disk, meter = Mounter(), Disk(), VolumeMeter(clock)
    objects, storage, credentials = KnownObjects(), NoClusterStorage(), KnownCredentials(clock)
    common: dict[str, Any] = {
        "root": root,
        "mounter": mounter,
        "disk": disk,
        "meter": meter,
        "allocatable": lambda: ALLOCATABLE,
    }
    kinds = Kinds.of(
        [
            HostPathKind(root=root, disk=disk),
            EmptyDirKind(**common),
            DownwardAPIKind(clock=clock, **common),
            ConfigMapKind(clock=clock, objects=objects, **common),
            SecretKind(clock=clock, objects=objects, **common),
            ProjectedKind(clock=clock, objects=objects, credentials=credentials, **common),
        ]
    )
    return VolumeManager(
        root=root,
        kinds=kinds,
        mounter=mounter,
        disk=disk,
        objects=objects,
        storage=storage,
        credentials=credentials,
        attaching=Attaching(storage, node_name=""),
        recorder=EventRecorder(clock),
        clock=clock,
        rng=random.Random(0),
        containers_gone=lambda uid: True,
        labels=MountLabels(),
        usage_period=0,
    )
