"""A kind of volume without anything behind it: it keeps the truth of what is there, and fails or hangs as told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import trio

from trikubelet.api import Quantity
from trikubelet.volumes import layout
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.model import MountedVolume, SetUpRequest, VolumeSpec, VolumeUsage

Behaviour = Exception | float | trio.Event
"""What a call does: raise, take so many seconds, or wait for a test."""


async def _nothing_staged() -> list[VolumeSpec]:
    await trio.lowlevel.checkpoint()
    return []


@attrs.define(kw_only=True)
class FakeKind:
    """`mounts` and `staged_names` are what is there, whatever the manager believes."""

    plugin: str
    root: Path
    staged: bool = False
    takes_mount_options: bool = False
    grows_on_node: bool = True
    refreshing: bool = False
    labelling: bool = False
    attaching: bool | VolumeError = False
    refresh_at: Callable[[], datetime | None] = lambda: None
    block_device: str | None = None
    """What a volume is, instead of a folder."""

    behaviours: dict[str, list[Behaviour]] = attrs.field(factory=dict)
    """What the next calls do, by the name of the call, alone or with the volume's inner name: `set_up data`."""
    calls: list[str] = attrs.field(factory=list)
    requests: list[SetUpRequest] = attrs.field(factory=list)
    mounts: set[tuple[str, str]] = attrs.field(factory=set)
    """UIDs and inner names."""
    staged_names: set[str] = attrs.field(factory=set)
    running: Counter[str] = attrs.field(factory=Counter)
    """How many calls go on for a volume, by its inner name."""
    most_at_once: int = 0
    staged_volumes: Callable[[], Coroutine[Any, Any, list[VolumeSpec]]] = _nothing_staged
    left: dict[tuple[str, str], VolumeSpec | VolumeError | None] = attrs.field(factory=dict)
    """What `reconstruct` tells of what is on disk."""
    size: Quantity | None = None
    used: int = 0

    def refreshes(self, spec: VolumeSpec) -> bool:
        return self.refreshing

    def unique_name(self, spec: VolumeSpec, uid: str) -> str:
        return f"{self.plugin}/{spec.inner_name}" if self.staged else f"{self.plugin}/{uid}-{spec.inner_name}"

    def path(self, uid: str, inner_name: str, *, block: bool = False) -> Path:
        if block:
            return layout.device_link(self.root, uid, self.plugin, inner_name)
        return layout.volume_directory(self.root, uid, self.plugin, inner_name)

    def attachable(self, spec: VolumeSpec) -> bool:
        if isinstance(self.attaching, VolumeError):
            raise self.attaching
        return self.attaching

    def takes_mount_label(self, spec: VolumeSpec) -> bool:
        return self.labelling

    async def stage(self, request: SetUpRequest) -> Path | None:
        self.requests.append(request)
        name = request.spec.inner_name
        await self._call("stage", name)
        self.staged_names.add(name)
        return layout.plugins_directory(self.root) / name

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        self.requests.append(request)
        uid, spec = request.pod.metadata.uid, request.spec
        await self._call("refresh" if request.refresh else "set_up", spec.inner_name)
        assert not self.staged or spec.inner_name in self.staged_names, "set up before it was staged"
        self.mounts.add((uid, spec.inner_name))
        request.path.mkdir(parents=True, exist_ok=True)
        path = None if spec.block else request.path
        return MountedVolume(spec, path, device=self.block_device, refresh_at=self.refresh_at())

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        await self._call("tear_down", inner_name)
        self.mounts.discard((uid, inner_name))
        path = self.path(uid, inner_name, block=block)
        if path.exists():
            path.rmdir()

    async def unstage(self, unique_name: str, spec: VolumeSpec) -> None:
        await self._call("unstage", spec.inner_name)
        assert not any(name == spec.inner_name for _, name in self.mounts), "unstaged while a pod has it"
        self.staged_names.discard(spec.inner_name)

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        await trio.lowlevel.checkpoint()
        found = self.left.get((uid, inner_name), VolumeSpec(inner_name, inner_name, self.plugin, block=block))
        if isinstance(found, VolumeError):
            raise found
        return found

    async def usage(self, mounted: MountedVolume) -> VolumeUsage | None:
        await self._call("usage", mounted.spec.inner_name)
        return VolumeUsage(at=datetime.min, used=self.used)

    async def expand(self, request: SetUpRequest, new_size: Quantity) -> None:
        self.requests.append(request)
        await self._call("expand", request.spec.inner_name)
        self.size = new_size

    def count(self, call: str) -> int:
        """How often a call was begun: `set_up data`, or for all volumes `set_up`."""
        return sum(one == call or one.split()[0] == call for one in self.calls)

    async def _call(self, call: str, inner_name: str) -> None:
        self.calls.append(f"{call} {inner_name}")
        self.running[inner_name] += 1
        self.most_at_once = max(self.most_at_once, self.running[inner_name])
        try:
            await trio.lowlevel.checkpoint()
            behaviours = self.behaviours.get(f"{call} {inner_name}") or self.behaviours.get(call)
            match behaviours.pop(0) if behaviours else None:
                case None:
                    return
                case trio.Event() as event:
                    await event.wait()
                case Exception() as error:
                    raise error
                case seconds:
                    await trio.sleep(seconds)
        finally:
            self.running[inner_name] -= 1
