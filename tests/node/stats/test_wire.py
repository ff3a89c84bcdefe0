"""The summary's JSON."""

from __future__ import annotations

import json

from trikubelet.node.stats.model import (
    ContainerStats,
    CpuStats,
    FsStats,
    InterfaceStats,
    IoStats,
    MemoryStats,
    NetworkStats,
    NodeStats,
    PodRef,
    PodStats,
    ProcessStats,
    PsiData,
    PsiStats,
    PvcRef,
    RlimitStats,
    RuntimeStats,
    Summary,
    SwapStats,
    VolumeStats,
)
from trikubelet.node.stats.wire import summary_dict, summary_json

AT = 1_767_225_600_999_999_999
TIME = "2026-01-01T00:00:00Z"
PSI = PsiStats(some=PsiData(total=5, avg10=0.5))
PSI_JSON = {
    "full": {"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0},
    "some": {"total": 5, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0},
}


def test_everything_has_the_kubelets_name() -> None:
    cpu = CpuStats(time=AT, usage_nano_cores=1, usage_core_nano_seconds=2, psi=PSI)
    memory = MemoryStats(
        time=AT,
        available_bytes=1,
        usage_bytes=2,
        working_set_bytes=3,
        rss_bytes=4,
        page_faults=5,
        major_page_faults=6,
    )
    fs = FsStats(time=AT, available_bytes=1, capacity_bytes=2, used_bytes=3, inodes_free=4, inodes=5, inodes_used=6)
    swap = SwapStats(time=AT, swap_available_bytes=1, swap_usage_bytes=0)
    container = ContainerStats(
        name="c", start_time=AT, cpu=cpu, memory=memory, io=IoStats(time=AT, psi=PSI), rootfs=fs, logs=fs, swap=swap
    )
    eth0 = InterfaceStats(name="eth0", rx_bytes=1, rx_errors=2, tx_bytes=3, tx_errors=4)
    network = NetworkStats(time=AT, name="eth0", rx_bytes=1, rx_errors=2, tx_bytes=3, tx_errors=4, interfaces=(eth0,))
    pod = PodStats(
        pod_ref=PodRef(name="p", namespace="ns", uid="u"),
        start_time=AT,
        containers=(container,),
        network=network,
        volume=(VolumeStats(time=AT, name="v", used_bytes=1, pvc_ref=PvcRef(name="claim", namespace="ns")),),
        ephemeral_storage=fs,
        process_stats=ProcessStats(process_count=3),
    )
    node = NodeStats(
        node_name="n",
        system_containers=(ContainerStats(name="kubelet"),),
        start_time=AT,
        fs=fs,
        runtime=RuntimeStats(image_fs=fs, container_fs=fs),
        rlimit=RlimitStats(time=AT, maxpid=10, curproc=5),
    )
    fs_json = {
        "time": TIME,
        "availableBytes": 1,
        "capacityBytes": 2,
        "usedBytes": 3,
        "inodesFree": 4,
        "inodes": 5,
        "inodesUsed": 6,
    }
    eth0_json = {"name": "eth0", "rxBytes": 1, "rxErrors": 2, "txBytes": 3, "txErrors": 4}
    assert json.loads(summary_json(Summary(node=node, pods=(pod,), problems=("not on the wire",)))) == {
        "node": {
            "nodeName": "n",
            "systemContainers": [{"name": "kubelet", "startTime": None}],
            "startTime": TIME,
            "fs": fs_json,
            "runtime": {"imageFs": fs_json, "containerFs": fs_json},
            "rlimit": {"time": TIME, "maxpid": 10, "curproc": 5},
        },
        "pods": [
            {
                "podRef": {"name": "p", "namespace": "ns", "uid": "u"},
                "startTime": TIME,
                "containers": [
                    {
                        "name": "c",
                        "startTime": TIME,
                        "cpu": {"time": TIME, "usageNanoCores": 1, "usageCoreNanoSeconds": 2, "psi": PSI_JSON},
                        "memory": {
                            "time": TIME,
                            "availableBytes": 1,
                            "usageBytes": 2,
                            "workingSetBytes": 3,
                            "rssBytes": 4,
                            "pageFaults": 5,
                            "majorPageFaults": 6,
                        },
                        "io": {"time": TIME, "psi": PSI_JSON},
                        "rootfs": fs_json,
                        "logs": fs_json,
                        "swap": {"time": TIME, "swapAvailableBytes": 1, "swapUsageBytes": 0},
                    }
                ],
                "network": {"time": TIME, **eth0_json, "interfaces": [eth0_json]},
                "volume": [{"time": TIME, "name": "v", "usedBytes": 1, "pvcRef": {"name": "claim", "namespace": "ns"}}],
                "ephemeral-storage": fs_json,
                "process_stats": {"process_count": 3},
            }
        ],
    }


def test_what_is_not_known_is_not_there_but_for_times_and_containers() -> None:
    pod = PodStats(pod_ref=PodRef(name="p", namespace="ns", uid="u"), network=NetworkStats(time=AT))
    summary = Summary(node=NodeStats(node_name="n"), pods=(pod,))
    assert summary_dict(summary) == {
        "node": {"nodeName": "n", "startTime": None},
        "pods": [
            {
                "podRef": {"name": "p", "namespace": "ns", "uid": "u"},
                "startTime": None,
                "containers": [],
                "network": {"time": TIME, "name": ""},
            }
        ],
    }
    assert json.loads(summary_json(Summary(node=NodeStats(node_name="n"))))["pods"] == []
