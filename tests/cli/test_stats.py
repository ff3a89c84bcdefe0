"""`trikubelet stats`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.cli.conftest import StandInAgent, run_command
from tests.cli.test_top import LARGE, summary, usage

if TYPE_CHECKING:
    from pathlib import Path

PSI = {"some": {"avg10": 12.5, "avg60": 0.0, "avg300": 0.0, "total": 1}}
FULL: dict[str, Any] = {
    "node": {
        "nodeName": "node",
        "startTime": "2026-01-01T00:00:00Z",
        "cpu": {"time": None, "usageNanoCores": 1_500_000_000, "psi": PSI},
        "memory": {"workingSetBytes": 2**30, "availableBytes": 3 * 2**30},
        "swap": {"swapUsageBytes": 2**20, "swapAvailableBytes": 2**20},
        "fs": {"usedBytes": 5 * 2**30, "availableBytes": 2**30, "capacityBytes": 10 * 2**30},
        "runtime": {"imageFs": {"usedBytes": 2**20, "availableBytes": 2**30, "capacityBytes": 2**31}},
        "network": {"name": "eth0", "rxBytes": 2048, "txBytes": 1024},
        "rlimit": {"curproc": 120, "maxpid": 32768},
        "systemContainers": [{"name": "kubelet", **usage(3_000_000, 50 * 2**20)}],
    },
    "pods": [
        {
            "podRef": {"name": "web", "namespace": "default", "uid": "1"},
            **usage(20_000_000, 3 * 2**20),
            "ephemeral-storage": {"usedBytes": 4096},
            "process_stats": {"process_count": 3},
            "network": {"rxBytes": 10, "txBytes": 20},
            "swap": {"swapUsageBytes": 0},
            "volume": [{"name": "data", "usedBytes": 2**20, "capacityBytes": 2**30, "inodesUsed": 7}],
        },
        {"podRef": {"name": "bare", "namespace": "default", "uid": "2"}, "containers": []},
    ],
}


def test_everything_that_is_known_is_shown(agent: StandInAgent) -> None:
    agent.will_answer("GET /stats/summary", FULL)
    outcome = run_command("stats", "--root-dir", agent.root_dir)
    assert outcome.code == 0
    assert [" ".join(line.split()) for line in outcome.out.splitlines()] == [
        "Node: node",
        "Booted: 2026-01-01T00:00:00Z",
        "CPU: 1500m",
        "Memory: 1.0GiB of 4.0GiB (25%)",
        "Swap: 1.0MiB of 2.0MiB (50%)",
        "Disk: 5.0GiB used, 1.0GiB of 10.0GiB free",
        "Images: 1.0MiB used, 1.0GiB of 2.0GiB free",
        "Network: 2.0KiB received, 1.0KiB sent (eth0)",
        "Tasks: 120 of 32768",
        "Pressure: cpu 12.5% (some, last 10 s)",
        "Group kubelet: 3m, 50.0MiB",
        "",
        "NAMESPACE NAME CPU MEMORY SWAP DISK RECEIVED SENT PROCESSES",
        "default bare " + " ".join(["<unknown>"] * 7),
        "default web 20m 3.0MiB 0B 4.0KiB 10B 20B 3",
        "",
        "NAMESPACE POD VOLUME USED CAPACITY INODES",
        "default web data 1.0MiB 1.0GiB 7",
    ]


def test_what_is_not_known_is_no_error(agent: StandInAgent) -> None:
    agent.will_answer("GET /stats/summary", {"node": {"nodeName": "node"}, "pods": []})
    outcome = run_command("stats", "--root-dir", agent.root_dir)
    assert [line.split() for line in outcome.out.splitlines()] == [
        ["Node:", "node"],
        ["CPU:", "<unknown>"],
        ["Memory:", "<unknown>"],
    ]


def test_json_is_the_agents(agent: StandInAgent) -> None:
    agent.will_answer("GET /stats/summary", summary(LARGE))
    outcome = run_command("stats", "-o", "json", "--root-dir", agent.root_dir)
    assert json.loads(outcome.out) == summary(LARGE)


def test_without_an_agent_there_is_one_sentence(root_dir: Path) -> None:
    assert run_command("stats", "--root-dir", root_dir).err.startswith("no agent answers on ")
