"""Counts of block devices: by the scheduler's files in v1, by `io.stat` in v2, and of a disk as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.node.stats.block_io import BYTES, COST, MERGED, QUEUED, REQUESTS, SERVICE_TIME, read_devices, read_disk
from trikubelet.node.stats.cgroup_places import CgroupPlace

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("io_service_time", "io_merged", "io_queued", "io_serviced", "io_service_bytes")
TABLES = (SERVICE_TIME, MERGED, QUEUED, REQUESTS, BYTES)


def v1(folder: Path, *patterns: str, names: tuple[str, ...] = NAMES, first: int = 1) -> CgroupPlace:
    """A group with files in which each number differs from all others."""
    for pattern in patterns:
        for name in names:
            lines = f"8:0 Read {first}\n8:0 Write {first + 1}\n8:0 Total {2 * first + 1}\n"
            (folder / pattern.format(name)).write_text(f"{lines}Total {2 * first + 1}\n")
            first += 10
    return CgroupPlace("/c", None, {"blkio": str(folder)})


@pytest.mark.parametrize("scheduler", ["blkio.bfq.{}_recursive", "blkio.{}_recursive"])
def test_v1_tells_times_merges_and_queues_where_the_scheduler_counts_them(tmp_path: Path, scheduler: str) -> None:
    (device,) = read_devices(v1(tmp_path, scheduler))
    assert device.device == "8:0"
    assert list(device.counts) == list(TABLES)
    assert [device.counts[table]["Read"] for table in TABLES] == [1, 11, 21, 31, 41]
    assert [device.counts[table]["Total"] for table in TABLES] == [3, 23, 43, 63, 83]


@pytest.mark.parametrize("pattern", ["blkio.bfq.{}_recursive", "blkio.throttle.{}_recursive", "blkio.throttle.{}"])
def test_v1_tells_bytes_and_requests_on_any_disk(tmp_path: Path, pattern: str) -> None:
    (device,) = read_devices(v1(tmp_path, pattern, names=("io_serviced", "io_service_bytes")))
    assert device.counts == {
        REQUESTS: {"Read": 1, "Write": 2, "Total": 3},
        BYTES: {"Read": 11, "Write": 12, "Total": 23},
    }


def test_a_scheduler_without_disks_leaves_the_word_to_the_throttle(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"blkio.bfq.{name}_recursive").write_text("Total 0\n")
    place = v1(tmp_path, "blkio.throttle.{}_recursive", "blkio.throttle.{}", names=("io_serviced", "io_service_bytes"))
    (device,) = read_devices(place)
    assert device.counts[BYTES]["Read"] == 11


def test_v2_tells_bytes_requests_and_costs(tmp_path: Path) -> None:
    (tmp_path / "io.stat").write_text(
        "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6 cost.usage=7 cost.wait=8 cost.indebt=9 cost.indelay=10\n"
        "\n8:0 rbytes=11 wbytes=x\n7:0 \n"
    )
    first, second = read_devices(CgroupPlace("/c", str(tmp_path)))
    assert (first.device, second.device) == ("254:0", "8:0")
    assert first.counts[BYTES] == {"Read": 1, "Write": 2}
    assert first.counts[REQUESTS] == {"Read": 3, "Write": 4}
    assert first.counts[COST] == {"usage": 7, "wait": 8, "indebt": 9, "indelay": 10}
    assert second.counts == {BYTES: {"Read": 11}}


def test_a_disk_is_told_by_its_numbers(tmp_path: Path) -> None:
    (tmp_path / "diskstats").write_text(
        "   8  0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13\n   8 1 sda1 21 22 23 24 25 26 27 28 29 30 31\n 8 2 sda2 1\n"
    )
    disk = read_disk(tmp_path, "8:1")
    assert disk is not None
    assert (disk.reads, disk.sectors_read, disk.write_time, disk.in_progress) == (21, 23, 28, 29)
    assert (disk.io_time, disk.weighted_io_time) == (30, 31)
    assert read_disk(tmp_path, "8:2") is None, "its line is not whole"
    assert read_disk(tmp_path, "0:33") is None, "an overlay is no disk"
