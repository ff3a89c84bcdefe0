"""A volume manager with the kinds of volumes that an agent has, and files and mounts that are real or not.

What comes from a cluster is given by the test. Work on files is done in place: no threads, so that it suits a mock
clock, and what happens in which order can be repeated.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.volumes.stage import NODE, FakeCredentials, FakeObjects, FakeStorage, InlineDisk
from trikubelet.agent import volumes as agent_volumes
from trikubelet.api import ConfigMap, Pod, Secret
from trikubelet.clock import SystemClock, WallClock
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.volume_objects import Token
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.attaching import Attaching
from trikubelet.volumes.csi.drivers import Drivers
from trikubelet.volumes.csi.kind import CSIKind
from trikubelet.volumes.kinds.protocol import Kinds
from trikubelet.volumes.manager import VolumeManager
from trikubelet.volumes.mount_labels import MountLabels
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime
    from pathlib import Path

    from trikubelet.kube_client.volume_objects import PodCredentials, WatchedObjects


@attrs.define(eq=False)
class KnownObjects(FakeObjects):
    """ConfigMaps and Secrets by name. `put` tells who shows them."""

    config_maps: dict[str, dict[str, str]] = attrs.field(factory=dict)
    secrets: dict[str, dict[str, bytes]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        super().__init__()

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        await trio.lowlevel.checkpoint()
        if name not in self.config_maps:
            raise ObjectError(f'configmap "{name}" not found', "not found")
        return ConfigMap(data=self.config_maps[name])

    async def secret(self, namespace: str, name: str) -> Secret:
        await trio.lowlevel.checkpoint()
        if name not in self.secrets:
            raise ObjectError(f'secret "{name}" not found', "not found")
        return Secret(data=self.secrets[name])

    def put(self, name: str, data: dict[str, str]) -> None:
        self.config_maps[name] = data
        self.change("configmaps", "default", name)


class OneToken(FakeCredentials):
    """The same token for everybody, at any time."""

    def __init__(self, token: str, renew_at: datetime) -> None:
        super().__init__()
        self._token = Token(token, renew_at, renew_at)

    async def token(self, pod: Pod, audiences: tuple[str, ...], seconds: int | None) -> Token:
        await trio.lowlevel.checkpoint()
        return self._token


@asynccontextmanager
async def running_manager(
    root: Path,
    *,
    objects: WatchedObjects,
    credentials: PodCredentials,
    storage: FakeStorage | None = None,
    drivers: Drivers | None = None,
    mounter: Mounter | None = None,
    clock: WallClock | None = None,
    recorder: EventRecorder | None = None,
    containers_gone: Callable[[str], bool] = lambda uid: True,
) -> AsyncIterator[VolumeManager]:
    """From its start to its end, which is sudden: nothing is taken down."""
    clock = clock or SystemClock()
    recorder = recorder or EventRecorder(clock)
    storage = storage or FakeStorage()
    common: dict[str, Any] = {
        "root": root,
        "recorder": recorder,
        "clock": clock,
        "rng": random.Random(1),
        "objects": objects,
        "storage": storage,
        "credentials": credentials,
        "mounter": mounter or Mounter(),
        "disk": InlineDisk(),
    }
    tools = agent_volumes.VolumeTools(**common, allocatable=dict, meter=VolumeMeter(clock))
    csi = CSIKind(
        **{name: value for name, value in common.items() if name != "objects"},
        node=NODE,
        drivers=drivers or Drivers(),
    )
    kinds = Kinds.of([*agent_volumes.node_kinds(tools), csi])
    attaching = Attaching(storage, node_name=NODE)
    manager = VolumeManager(
        **common,
        kinds=kinds,
        attaching=attaching,
        containers_gone=containers_gone,
        labels=MountLabels(),
        usage_period=0.0,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        yield manager
        nursery.cancel_scope.cancel()
