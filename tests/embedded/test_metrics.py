"""CRI's metrics: every descriptor has values, with as many labels as it names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio

from tests.patience import PATIENCE
from trikubelet.embedded import metric_readings
from trikubelet.embedded.metric_readings import read_container, read_network
from trikubelet.embedded.metrics import LABELS, METRICS
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Node

V2 = {
    "cpu.stat": "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 7\nnr_throttled 2\n"
    "throttled_usec 1500000\n",
    "memory.current": "4096000\n",
    "memory.stat": "anon 1000\nfile 3000\nkernel 500\nfile_mapped 10\nactive_file 20\ninactive_file 30\npgfault 40\n"
    "pgmajfault 50\n",
    "memory.peak": "5000000\n",
    "memory.low": "0\n",
    "memory.swap.current": "60\n",
    "memory.events": "low 0\noom 1\noom_kill 1\n",
    "pids.current": "3\n",
    "pids.max": "max\n",
    "hugetlb.2MB.current": "2097152\n",
    "io.stat": "8:0 rbytes=100 wbytes=200 rios=1 wios=2 dbytes=0 dios=0\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=4000000\nfull avg10=0.00 total=2000000\n",
}
V1 = {
    "cpuacct.stat": f"user {3 * os.sysconf('SC_CLK_TCK')}\nsystem {2 * os.sysconf('SC_CLK_TCK')}\n",
    "cpuacct.usage": "5000000000\n",
    "cpu.stat": "nr_periods 7\nnr_throttled 2\nthrottled_time 1500000000\n",
    "memory.usage_in_bytes": "4096000\n",
    "memory.stat": "total_cache 3000\ntotal_rss 1000\ntotal_mapped_file 10\ntotal_swap 60\ntotal_active_file 20\n"
    "total_inactive_file 30\ntotal_pgfault 40\ntotal_pgmajfault 50\n",
    "memory.kmem.usage_in_bytes": "500\n",
    "memory.failcnt": "0\n",
    "memory.max_usage_in_bytes": "5000000\n",
    "memory.soft_limit_in_bytes": "9223372036854771712\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "pids.current": "3\n",
    "pids.max": "max\n",
    "hugetlb.2MB.usage_in_bytes": "2097152\n",
}
SAME = {
    "container_cpu_usage_seconds_total": 5,
    "container_cpu_user_seconds_total": 3,
    "container_cpu_system_seconds_total": 2,
    "container_cpu_cfs_periods_total": 7,
    "container_cpu_cfs_throttled_periods_total": 2,
    "container_cpu_cfs_throttled_seconds_total": 1,
    "container_memory_usage_bytes": 4096000,
    "container_memory_working_set_bytes": 4095970,
    "container_memory_rss": 1000,
    "container_memory_cache": 3000,
    "container_memory_mapped_file": 10,
    "container_memory_swap": 60,
    "container_memory_kernel_usage": 500,
    "container_memory_failcnt": 0,
    "container_memory_max_usage_bytes": 5000000,
    "container_memory_total_active_file_bytes": 20,
    "container_memory_total_inactive_file_bytes": 30,
    "container_oom_events_total": 1,
    "container_spec_memory_reservation_limit_bytes": 0,
    "container_threads": 3,
    "container_threads_max": 0,
    "container_hugetlb_usage_bytes": 2097152,
}


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_of_cgroups_tell_the_same(tmp_path: Path, version: int) -> None:
    for name, text in (V1 if version == 1 else V2).items():
        (tmp_path / name).write_text(text)
    controllers = ("cpu", "cpuacct", "memory", "pids", "hugetlb") if version == 1 else ()
    cgroup = {
        "unified": None if version == 1 else str(tmp_path),
        "controllers": dict.fromkeys(controllers, str(tmp_path)),
    }
    readings = read_container(os.getpid(), cgroup)
    values = {name: value for name, labels, value in readings if labels in ((), ("total",), ("2MB",))}
    assert SAME.items() <= values.items()
    assert ("container_memory_failures_total", ("pgmajfault", "hierarchy"), 50) in readings
    if version == 2:
        device = metric_readings.device_name(os.makedev(8, 0))
        assert ("container_fs_writes_bytes_total", (device,), 200) in readings
        assert ("container_blkio_device_usage_total", (device, "8", "0", "Read"), 100) in readings
        assert values["container_pressure_cpu_waiting_seconds_total"] == 4
        assert values["container_pressure_cpu_stalled_seconds_total"] == 2
    for name, labels, _ in readings:
        assert len(labels) == len(METRICS[name][1]), name


def test_the_machines_network_is_no_pods() -> None:
    assert read_network(os.getpid()) == []


@pytest.mark.root
async def test_a_pod_and_its_containers_have_metrics(node: Node) -> None:
    limits = v1.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=2**26
    )
    sandbox = await node.sandbox()
    container = await node.launch(sandbox, ["sleep", "1000"], resources=limits)
    await node.create(sandbox, ["true"])
    described = (await node.cri.list_metric_descriptors(v1.ListMetricDescriptorsRequest())).descriptors
    labels = {one.name: one.label_keys for one in described}
    assert all(one.help for one in described)

    async def measure() -> dict[str, int]:
        (pod,) = (await node.cri.list_pod_sandbox_metrics(v1.ListPodSandboxMetricsRequest())).pod_metrics
        assert pod.pod_sandbox_id == sandbox
        (measured,) = pod.container_metrics
        assert measured.container_id == container
        values = {}
        for metric in measured.metrics:
            found = dict(zip(labels[metric.name], metric.label_values, strict=True))
            assert [found[name] for name in LABELS if name != "id"] == [
                "c1",
                "localhost/host:latest",
                container,
                "default",
                "pod",
            ]
            values[metric.name] = metric.value.value
        return values

    with trio.fail_after(PATIENCE):
        # One more while it loads its C library.
        while (values := await measure())["container_file_descriptors"] != 3:
            await trio.sleep(0.01)
    assert values["container_spec_cpu_quota"] == 50_000
    assert values["container_spec_memory_limit_bytes"] == 2**26
    assert values["container_processes"] == 1
    assert values["container_fs_limit_bytes"] > values["container_fs_usage_bytes"]
    assert values["container_start_time_seconds"] > 0
    parts = [part async for part in node.cri.stream_pod_sandbox_metrics(v1.StreamPodSandboxMetricsRequest())]
    assert [one.pod_sandbox_id for part in parts for one in part.pod_sandbox_metrics] == [sandbox]
