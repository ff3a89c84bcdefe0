"""flexVolume drivers in the part of an agent that cares for volumes: pods wait for them, and outlive them."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.patience import PATIENCE
from tests.volumes.flex.double import NAME, SUCCESS, DriverDouble
from tests.volumes.set_ups import mounts_below
from tests.volumes.stage import pod
from trikubelet.agent.plugins import AgentPlugins
from trikubelet.agent.volumes import VolumeParts
from trikubelet.clock import SystemClock
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.decisions import Action, Done, Operation
from trikubelet.volumes.desired import Wanted, resolve_now
from trikubelet.volumes.errors import VolumesNotReadyError
from trikubelet.volumes.model import MountedVolume
from trikubelet.volumes.mount_labels import MountLabels
from trikubelet.volumes.tracked_volumes import TrackedVolumes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trikubelet.volumes.manager import VolumeManager

pytestmark = pytest.mark.root

WEB = pod("web", {"name": "data", "flexVolume": {"driver": NAME}})
UID = WEB.metadata.uid


@asynccontextmanager
async def agent(tmp_path: Path) -> AsyncIterator[VolumeManager]:
    clock = SystemClock()
    root = tmp_path / "agent"
    root.mkdir(exist_ok=True)
    parts = VolumeParts(
        root,
        cluster=None,
        plugins=AgentPlugins(root, random.Random(1)),
        allocatable=dict,
        recorder=EventRecorder(clock),
        clock=clock,
        rng=random.Random(1),
        containers_gone=lambda uid: True,
        usage_period=0.0,
        labels=MountLabels(),
        plugin_dir=str(tmp_path / "exec"),
    )
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(parts.run)
            yield parts.manager
            nursery.cancel_scope.cancel()


def mounting(double: DriverDouble) -> DriverDouble:
    double.does("mount", f"mount -t tmpfs flex \"$2\" && echo '{SUCCESS}'")
    double.does("unmount", f"umount \"$2\" && echo '{SUCCESS}'")
    return double


async def test_a_pod_gets_its_volume_when_the_driver_comes(tmp_path: Path) -> None:
    (tmp_path / "exec").mkdir()
    async with agent(tmp_path) as manager:
        with pytest.raises(VolumesNotReadyError, match="put its flexVolume driver into volumePluginDir"):
            await manager.prepare(WEB)
        with manager.pod_changes.subscribe() as news:
            mounting(DriverDouble(tmp_path / "exec")).install(attach=False)
            assert await news.receive() == UID
        await manager.prepare(WEB)
        path = manager.host_path(WEB, "data")
        assert path == tmp_path / "agent/pods/uid-web/volumes/vendor~disks/data"
        assert [mount.point for mount in mounts_below(tmp_path)] == [path]
        await manager.release(UID)
    assert mounts_below(tmp_path) == []
    assert list((tmp_path / "agent/pods").iterdir()) == []


async def test_a_pod_that_ends_waits_for_its_driver_to_come_back(tmp_path: Path) -> None:
    double = mounting(DriverDouble(tmp_path / "exec")).install(attach=False)
    async with agent(tmp_path) as manager:
        await manager.prepare(WEB)
        away = tmp_path / "away"
        double.program.rename(away)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.release, UID)
            await trio.testing.wait_all_tasks_blocked()
            assert mounts_below(tmp_path) != []
            away.rename(double.program)
    assert mounts_below(tmp_path) == []


async def test_what_an_earlier_agent_mounted_is_known_and_undone(tmp_path: Path) -> None:
    double = mounting(DriverDouble(tmp_path / "exec")).install(attach=False)
    async with agent(tmp_path) as manager:
        await manager.prepare(WEB)
    double.calls()
    async with agent(tmp_path) as manager:
        assert manager.reconstructed == 1
        await manager.prepare(WEB)
        assert [call[0] for call in double.calls()] == ["init"], "it is mounted"
    async with agent(tmp_path) as manager:
        await manager.remove(UID)
    assert mounts_below(tmp_path) == []
    assert list((tmp_path / "agent/pods").iterdir()) == []


def test_what_a_driver_is_needed_for_is_known_as_long_as_something_is_there() -> None:
    spec = resolve_now(WEB).specs["data"]
    tracked = TrackedVolumes()
    tracked.want("one", UID, Wanted(pod=WEB, spec=spec, names=("data",)))
    assert [volume.name for volume in tracked.of_driver(NAME)] == ["one"]
    operation = Operation(action=Action.SET_UP, name="one", uid=UID, spec=spec)
    tracked.begin(operation)
    tracked.finish(operation, Done(mounted=MountedVolume(spec, None)), 0.0)
    tracked.release(UID)
    assert [volume.name for volume in tracked.of_driver(NAME)] == ["one"]
    assert tracked.of_driver("other") == ()
