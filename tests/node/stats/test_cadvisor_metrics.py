"""`/metrics/cadvisor`, `machine_…` and what `/metrics` says of claims and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.node.stats.fake_runtime import stats_of
from tests.node.stats.node_files import PRESSURE, NodeFiles
from tests.node.stats.stage import Stage
from trikubelet.api import pod_from_dict
from trikubelet.linux.machine import Machine
from trikubelet.node.stats.disk import device_of
from trikubelet.node.stats.exposition import text_of
from trikubelet.node.stats.machine_info import MachineInfo
from trikubelet.node.stats.measure import Measured, Meter

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.node.stats.open_files import OpenFiles

    Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(NodeFiles(tmp_path))


def _parse(text: bytes) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def _labels(**labels: str) -> frozenset[tuple[str, str]]:
    usual = dict.fromkeys(("container", "id", "image", "name", "namespace", "pod"), "")
    return frozenset({**usual, **labels}.items())


async def test_containers_have_cadvisors_names_and_labels(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("web", "main")
    path = f"/kubepods/podweb-uid/{sandbox.id}-main"
    stage.group(
        path, cpu=3_000_000_000, memory=1000, cpu__pressure=PRESSURE, pids__current="4", memory__events="oom_kill 2"
    )
    stage.files.write(f"cgroup{path}/cpu.max", "50000 100000")
    stage.files.write(
        f"cgroup{path}/cpu.stat",
        "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\nnr_periods 9\nnr_bursts 3\nburst_usec 500000\n",
    )
    stage.files.write(f"cgroup{path}/io.stat", "8:0 rbytes=10 wbytes=20 rios=1 wios=2\n")
    (stage.files.root / "sys/dev/block/8:0").symlink_to("../../devices/pci/block/sda")
    stage.runtime.stats = [stats_of(f"{sandbox.id}-main")]
    found = _parse(await stage.provider().cadvisor_text())
    who = {
        "container": "main",
        "id": path,
        "image": "example/image:1",
        "name": f"{sandbox.id}-main",
        "namespace": "ns",
        "pod": "web",
    }
    for name, value, more in (
        ("container_cpu_usage_seconds_total", 3, {"cpu": "total"}),
        ("container_cpu_user_seconds_total", 2, {}),
        ("container_cpu_system_seconds_total", 1, {}),
        ("container_cpu_cfs_periods_total", 9, {}),
        ("container_cpu_cfs_burst_periods_total", 3, {}),
        ("container_cpu_cfs_burst_seconds_total", 0.5, {}),
        ("container_memory_usage_bytes", 1000, {}),
        ("container_memory_working_set_bytes", 900, {}),
        ("container_memory_rss", 500, {}),
        ("container_memory_cache", 5, {}),
        ("container_memory_failures_total", 3, {"failure_type": "pgfault", "scope": "container"}),
        ("container_oom_events_total", 2, {}),
        ("container_fs_reads_bytes_total", 10, {"device": "/dev/sda"}),
        ("container_fs_writes_total", 2, {"device": "/dev/sda"}),
        ("container_processes", 1, {}),
        ("container_threads", 4, {}),
        ("container_pressure_cpu_waiting_seconds_total", 2, {}),
        ("container_pressure_cpu_stalled_seconds_total", 1, {}),
        ("container_spec_cpu_quota", 50000, {}),
        ("container_spec_memory_limit_bytes", 0, {}),
        ("container_start_time_seconds", 2, {}),
    ):
        assert found[name, _labels(**who, **more)] == value, name
    usage = [
        value
        for (name, labels), value in found.items()
        if name == "container_fs_usage_bytes" and ("pod", "web") in labels
    ]
    assert usage == [8192]


async def test_disks_descriptors_and_reservations_are_told(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("web", "main")
    path, pid = f"/kubepods/podweb-uid/{sandbox.id}-main", stage.next_pid - 1
    stage.files.write(f"cgroup{path}/memory.min", "4096\n")
    stage.files.write(f"cgroup{path}/io.stat", "8:0 rbytes=10 wbytes=20 rios=1 wios=2 cost.wait=2500000\n")
    (stage.files.root / "sys/dev/block/8:0").symlink_to("../../devices/pci/block/sda")
    stage.files.write(f"proc/{pid}/limits", "Max open files            1024       4096       files\n")
    stage.files.write(f"proc/{pid}/fd/0", "")
    (stage.files.proc / str(pid) / "fd/1").symlink_to("socket:[7]")
    found = _parse(await stage.provider().cadvisor_text())
    who = {
        "container": "main",
        "id": path,
        "image": "example/image:1",
        "name": f"{sandbox.id}-main",
        "namespace": "ns",
        "pod": "web",
    }
    numbers = {"device": "/dev/sda", "major": "8", "minor": "0"}
    for name, value, more in (
        ("container_blkio_device_usage_total", 10, {**numbers, "operation": "Read"}),
        ("container_blkio_device_usage_total", 20, {**numbers, "operation": "Write"}),
        ("container_fs_io_cost_wait_seconds_total", 2.5, {"device": "/dev/sda"}),
        ("container_file_descriptors", 2, {}),
        ("container_sockets", 1, {}),
        ("container_ulimits_soft", 1024, {"ulimit": "max_open_files"}),
        ("container_spec_memory_reservation_limit_bytes", 4096, {}),
    ):
        assert found[name, _labels(**who, **more)] == value, name
    assert ("container_fs_io_current", _labels(**who, device="/dev/sda")) not in found, "v2 has no queues"


async def test_times_merges_and_queues_are_told_where_the_scheduler_counts_them(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    stage = Stage(NodeFiles(tmp_path, "v1"))
    stage.pod("web", "main")
    stage.files.group("/kubepods/podweb-uid")
    for name, number in {
        "io_service_time": 3_000_000_000,
        "io_merged": 2,
        "io_queued": 1,
        "io_serviced": 5,
        "io_service_bytes": 6,
    }.items():
        text = f"8:0 Read {number}\n8:0 Write {number * 10}\n8:0 Total {number * 11}\n"
        stage.files.write(f"cgroup/blkio/kubepods/podweb-uid/blkio.bfq.{name}_recursive", text)
    found = _parse(await stage.provider().cadvisor_text())
    for name, value in {
        "read_seconds": 3,
        "write_seconds": 30,
        "io_time_seconds": 33,
        "reads_merged": 2,
        "writes_merged": 20,
        "reads": 5,
        "writes_bytes": 60,
    }.items():
        labels = _labels(id="/kubepods/podweb-uid", namespace="ns", pod="web", device="8:0")
        assert found[f"container_fs_{name}_total", labels] == value, name
    labels = _labels(id="/kubepods/podweb-uid", namespace="ns", pod="web", device="8:0")
    assert found["container_fs_io_current", labels] == 11


async def test_the_disk_of_the_node_counts_for_the_machine(stage: Stage, mock_clock: MockClock) -> None:
    device = device_of(stage.files.root / "agent")
    major, _, minor = device.partition(":")
    (stage.files.root / f"sys/dev/block/{device}").symlink_to("../../devices/pci/block/sda/sda1")
    stage.files.write("proc/diskstats", f"{major} {minor} sda1 1 2 3 4000 5 6 7 8000 9 10000 11000\n")
    found = _parse(await stage.provider().cadvisor_text())
    for name, value in {
        "reads_total": 1,
        "reads_merged_total": 2,
        "sector_reads_total": 3,
        "read_seconds_total": 4,
        "writes_total": 5,
        "writes_merged_total": 6,
        "sector_writes_total": 7,
        "write_seconds_total": 8,
        "io_current": 9,
        "io_time_seconds_total": 10,
        "io_time_weighted_seconds_total": 11,
    }.items():
        assert found[f"container_fs_{name}", _labels(id="/", device="/dev/sda1")] == value, name


@pytest.mark.parametrize(
    ("burstable", "best_effort"),
    [
        ("/kubepods/burstable", "/kubepods/besteffort"),
        ("/kubepods.slice/kubepods-burstable.slice", "/kubepods.slice/kubepods-besteffort.slice"),
    ],
)
async def test_the_groups_of_classes_have_series(
    stage: Stage, mock_clock: MockClock, burstable: str, best_effort: str
) -> None:
    stage.files.group(burstable, memory=1000)
    stage.files.group(best_effort, memory=2000)
    found = _parse(await stage.provider().cadvisor_text())
    assert found["container_memory_working_set_bytes", _labels(id=burstable)] == 900
    assert found["container_memory_working_set_bytes", _labels(id=best_effort)] == 1800


async def test_the_summary_does_not_look_at_descriptors(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main")
    (stage.files.proc / str(stage.next_pid - 1) / "fd").mkdir()
    looked = []

    class Watched(Meter):
        def open_files(self, measured: Measured) -> dict[str, OpenFiles]:
            looked.append(measured)
            return super().open_files(measured)

    provider = stage.provider(Watched(stage.files.paths))
    await provider.summary()
    assert not looked
    await provider.cadvisor_text()
    assert looked


async def test_traffic_belongs_to_the_pods_sandbox(stage: Stage, mock_clock: MockClock) -> None:
    sandbox = stage.pod("web", "main")
    stage.group(f"/kubepods/podweb-uid/{sandbox.id}")
    found = _parse(await stage.provider().cadvisor_text())
    who = {"id": f"/kubepods/podweb-uid/{sandbox.id}", "name": sandbox.id, "namespace": "ns", "pod": "web"}
    assert found["container_network_receive_bytes_total", _labels(**who, interface="eth0")] == 1000
    assert found["container_network_transmit_packets_dropped_total", _labels(**who, interface="eth0")] == 4
    assert found["container_network_receive_bytes_total", _labels(id="/", interface="wlan0")] == 50
    assert ("container_memory_rss", _labels(**who)) in found


async def test_use_has_its_time_and_counters_need_no_ending(stage: Stage, mock_clock: MockClock) -> None:
    stage.pod("web", "main")
    stage.files.group("/kubepods/podweb-uid", memory__events="max 5\n")
    text = (await stage.provider().cadvisor_text()).decode()
    lines = [line for line in text.splitlines() if line.startswith("container_memory_working_set_bytes")]
    assert lines
    assert all(line.endswith(" 1767225600000") for line in lines)
    assert "# TYPE container_memory_failcnt counter\n" in text
    assert 'container_memory_failcnt{container="",id="/kubepods/podweb-uid",' in text


async def test_something_that_is_missing_is_told(stage: Stage, mock_clock: MockClock) -> None:
    provider = stage.provider()
    assert _parse(await provider.cadvisor_text())["container_scrape_error", frozenset()] == 0
    stage.runtime.failing.add("ImageFsInfo")
    mock_clock.jump(1)
    assert _parse(await provider.cadvisor_text())["container_scrape_error", frozenset()] == 1


def test_cores_and_sockets_are_counted_where_the_kernel_tells(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    machine = Machine(cpus=8, memory=5, swap=6, boot_id="b", machine_id="m", system_uuid="s", kernel_version="6.1")
    assert MachineInfo.of(machine, files.proc).physical_cores == 8
    files.write(
        "proc/cpuinfo",
        "\n".join(f"processor : {index}\nphysical id : {index // 4}\ncore id\t: {index % 2}\n" for index in range(8)),
    )
    info = MachineInfo.of(machine, files.proc)
    assert (info.cores, info.physical_cores, info.sockets, info.memory, info.swap) == (8, 4, 2, 5, 6)


async def test_the_machine_is_told(stage: Stage, mock_clock: MockClock) -> None:
    machine = MachineInfo(cores=4, physical_cores=2, sockets=1, memory=5, boot_id="b", machine_id="m", system_uuid="s")
    found = _parse(await stage.provider(machine=machine).cadvisor_text())
    labels = frozenset({"boot_id": "b", "machine_id": "m", "system_uuid": "s"}.items())
    assert found["machine_cpu_cores", labels] == 4
    assert found["machine_memory_bytes", labels] == 5


async def test_logs_are_told(stage: Stage, mock_clock: MockClock) -> None:
    for name in ("a", "b"):
        stage.pod(name, "main")
        stage.files.write(f"logs/ns_{name}_{name}-uid/main/0.log", "x")
        spec = {
            "containers": [{"name": "main", "image": "i"}],
        }
        meta = {"name": name, "namespace": "ns", "uid": f"{name}-uid"}
        stage.view.wanted.append(pod_from_dict({"metadata": meta, "spec": spec}))
    found = _parse(text_of(await stage.provider().log_samples()))
    logs = [labels for name, labels in found if name == "kubelet_container_log_filesystem_used_bytes"]
    assert [dict(labels)["pod"] for labels in logs] == ["a", "b"]
