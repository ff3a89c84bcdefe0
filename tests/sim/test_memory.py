"""What a simulated node keeps of pods' volumes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trikubelet.api import Pod, pod_from_dict
from trikubelet.sim.memory import MemoryMounts
from trikubelet.volumes.errors import VolumesNotReadyError

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.volumes.interface import PodVolumes


def pod() -> Pod:
    return pod_from_dict(
        {
            "metadata": {"name": "web", "uid": "uid-1"},
            "spec": {
                "containers": [
                    {"name": "main", "image": "x", "volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}]}
                ],
                "volumes": [
                    {"name": "work", "emptyDir": {}},
                    {"name": "settings", "configMap": {"name": "settings"}},
                    {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
                    {"name": "models", "image": {"reference": "models:1"}},
                ],
            },
        }
    )


async def test_volumes_are_there_from_the_preparation_to_the_release(autojump_clock: MockClock) -> None:
    volumes: PodVolumes = MemoryMounts(Path("/simulated"))
    assert volumes.mounted(pod(), "work") is None
    await volumes.prepare(pod())
    assert volumes.host_path(pod(), "work") == Path("/simulated/pods/uid-1/work")
    assert await volumes.bind_subpath(pod(), "main", 0, "work", "a/b") == Path("/simulated/pods/uid-1/work/a/b")
    assert volumes.mounted(pod(), "models") is None
    assert await volumes.pod_uids() == {"uid-1"}
    await volumes.release("uid-1")
    assert volumes.host_path(pod(), "work") is None
    assert await volumes.pod_uids() == set()


async def test_what_is_mounted_says_how(autojump_clock: MockClock) -> None:
    volumes: PodVolumes = MemoryMounts(Path("/simulated"))
    await volumes.prepare(pod())
    found = {name: volumes.mounted(pod(), name) for name in ("work", "settings", "disk")}
    assert {name: (one.read_only, one.device) for name, one in found.items() if one is not None} == {
        "work": (False, None),
        "settings": (True, None),
        "disk": (False, "/simulated/pods/uid-1/disk"),
    }


async def test_a_broken_volume_is_named(autojump_clock: MockClock) -> None:
    volumes = MemoryMounts(Path("/simulated"))
    volumes.broken = {"work"}
    with pytest.raises(VolumesNotReadyError, match=r"unmounted volumes=\[work\]"):
        await volumes.prepare(pod())
    with pytest.raises(FileNotFoundError):
        await volumes.bind_subpath(pod(), "main", 0, "work", "a")
