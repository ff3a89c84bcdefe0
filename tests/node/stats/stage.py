"""A node of files with a simulated runtime, and a provider of statistics on both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.node.stats.fake_runtime import FakeRuntime, container_of, sandbox_of
from tests.node.stats.node_files import NodeFiles
from trikubelet.api import Pod
from trikubelet.clock import TrioClock
from trikubelet.node.stats.provider import StatsProvider, StatsView
from trikubelet.volumes.model import VolumeUsage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.node.stats.measure import Meter
    from trikubelet.rpc.cri import v1


@attrs.define
class FakeView:
    """What a `StatsView` tells."""

    node_name: str = "node-1"
    wanted: list[Pod] = attrs.field(factory=list)
    usage: dict[str, dict[str, VolumeUsage]] = attrs.field(factory=dict)
    hangs: bool = False

    def given(self) -> StatsView:
        return StatsView(self.node_name, self.pods, self.volume_usage)

    def pods(self) -> Sequence[Pod]:
        return self.wanted

    async def volume_usage(self, uid: str) -> Mapping[str, VolumeUsage]:
        if self.hangs:
            await trio.sleep_forever()
        return self.usage.get(uid, {})


@attrs.define
class Stage:
    """`pod` makes a pod whose containers have groups, processes 100, 101 … and nothing else."""

    files: NodeFiles
    runtime: FakeRuntime = attrs.field(factory=FakeRuntime)
    view: FakeView = attrs.field(factory=FakeView)
    clock: TrioClock = attrs.field(factory=TrioClock)
    next_pid: int = 100

    def provider(self, meter: Meter | None = None, **options: Any) -> StatsProvider:
        meter = meter or self.files.meter()
        return StatsProvider(self.view.given(), self.runtime, self.runtime, meter, clock=self.clock, **options)

    def pod(self, name: str, *containers: str, groups: bool = True) -> v1.PodSandbox:
        sandbox = sandbox_of(name)
        self.runtime.sandboxes.append(sandbox)
        for container in containers:
            entry = container_of(sandbox, container)
            self.runtime.containers.append(entry)
            if groups:
                self.group(f"/kubepods/pod{sandbox.metadata.uid}/{entry.id}")
        return sandbox

    def group(self, path: str, *, cpu: int = 1_000_000_000, memory: int = 1_000_000, **files: object) -> None:
        self.files.group(path, cpu=cpu, memory=memory, pid=self.next_pid, **files)
        self.next_pid += 1
