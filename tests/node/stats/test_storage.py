"""Volumes, and what a pod uses of the node's disk."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trikubelet.api import pod_from_dict
from trikubelet.node.stats.model import ContainerStats, FsStats, PvcRef, VolumeStats
from trikubelet.node.stats.storage import ephemeral_storage, pod_volume_stats
from trikubelet.volumes.model import VolumeUsage

AT = datetime(2026, 1, 1, tzinfo=UTC)
NANOSECONDS = int(AT.timestamp()) * 1_000_000_000
USAGE = VolumeUsage(at=AT, used=1, capacity=2, available=3, inodes=4, inodes_used=5, inodes_free=6)
POD = pod_from_dict(
    {
        "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "settings", "configMap": {"name": "x"}},
                {"name": "password", "secret": {"secretName": "x"}},
                {"name": "claimed", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
                {"name": "unmeasured", "emptyDir": {}},
            ],
        },
    }
)
MEASURED = ("scratch", "memory", "settings", "password", "claimed", "own")


def test_only_what_is_on_the_nodes_own_disk_counts_as_ephemeral() -> None:
    stats = pod_volume_stats(POD, dict.fromkeys(MEASURED, USAGE))
    assert [volume.name for volume in stats.ephemeral] == ["scratch", "settings"]
    assert [volume.name for volume in stats.persistent] == ["memory", "password", "claimed", "own"]


@pytest.mark.parametrize(
    ("name", "claim"),
    [("claimed", PvcRef(name="data", namespace="ns")), ("own", PvcRef(name="web-own", namespace="ns"))],
)
def test_a_claims_volume_names_the_claim(name: str, claim: PvcRef) -> None:
    (volume,) = pod_volume_stats(POD, {name: USAGE}).persistent
    assert volume == VolumeStats(
        time=NANOSECONDS,
        name=name,
        pvc_ref=claim,
        used_bytes=1,
        capacity_bytes=2,
        available_bytes=3,
        inodes=4,
        inodes_used=5,
        inodes_free=6,
    )


def test_what_a_volume_does_not_tell_is_zero() -> None:
    """A block device knows its size alone."""
    (volume,) = pod_volume_stats(POD, {"claimed": VolumeUsage(at=AT, capacity=9)}).persistent
    assert (volume.capacity_bytes, volume.used_bytes, volume.inodes, volume.available_bytes) == (9, 0, 0, 0)


def test_ephemeral_storage_is_all_that_is_used_and_what_the_node_has() -> None:
    node = FsStats(time=5, available_bytes=10, capacity_bytes=20, inodes_free=30, inodes=40, used_bytes=999)
    containers = [
        ContainerStats(
            name="a",
            rootfs=FsStats(time=9, used_bytes=1, inodes_used=2),
            logs=FsStats(time=3, used_bytes=4, inodes_used=8),
        ),
        ContainerStats(name="b", rootfs=FsStats(time=1, used_bytes=16)),
    ]
    volumes = [VolumeStats(time=2, name="v", used_bytes=32, inodes_used=64)]
    pod_files = [FsStats(time=2, used_bytes=128, inodes_used=256), None]
    assert ephemeral_storage(node, containers, volumes, pod_files) == FsStats(
        time=9,
        available_bytes=10,
        capacity_bytes=20,
        inodes_free=30,
        inodes=40,
        used_bytes=1 + 4 + 16 + 32 + 128,
        inodes_used=2 + 8 + 64 + 256,
    )


def test_ephemeral_storage_of_a_pod_of_which_nothing_is_known_has_no_use() -> None:
    node = FsStats(time=5, capacity_bytes=20)
    assert ephemeral_storage(node, [], [], []) == node
