"""Pods' cgroups as the kernel shows them, on both runtimes, below a cgroup root of the test's own."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from tests.agent.private_cgroups import PrivateCgroups
    from tests.agent.real_node import RealNode

UNTIL_TERM = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
MI = 1024 * 1024
SHARES = {
    1: ("cpu.shares", {"guaranteed": "512", "burstable": "102", "besteffort": "2"}),
    2: ("cpu.weight", {"guaranteed": "20", "burstable": "4", "besteffort": "1"}),
}
"""By the cgroups' version: the kernel's file, and what it says for each class."""


def resources(requests: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    return {"requests": requests, "limits": limits}


def test_the_cgroups_of_three_classes_live_as_long_as_their_pods(cgroups: PrivateCgroups, node: RealNode) -> None:
    node.configure(**cgroups.fields, podPidsLimit=500)
    wanted: dict[str, list[dict[str, Any]]] = {
        "guaranteed": [
            resources({}, {"cpu": "250m", "memory": "64Mi"}),
            resources({}, {"cpu": "250m", "memory": "32Mi"}),
        ],
        "burstable": [resources({"cpu": "100m", "memory": "16Mi"}, {"memory": "128Mi"})],
        "besteffort": [{}],
    }
    for name, asked in wanted.items():
        containers = [node.container(UNTIL_TERM, f"{name}-{number}", resources=one) for number, one in enumerate(asked)]
        node.run(name, *containers, terminationGracePeriodSeconds=1)
    node.start("--no-drain-on-exit")
    groups = {
        name: f"{tier}/pod{node.until_running(name).metadata.uid}"
        for name, tier in (
            ("guaranteed", "kubepods"),
            ("burstable", "kubepods/burstable"),
            ("besteffort", "kubepods/besteffort"),
        )
    }
    assert cgroups.pods() == set(groups.values())
    seen = {name: cgroups.read(group) for name, group in groups.items()}
    limits = {name: (one.cpu_quota, one.memory_limit) for name, one in seen.items()}
    assert limits == {"guaranteed": (50_000, 96 * MI), "burstable": (-1, 128 * MI), "besteffort": (-1, -1)}
    share, shares = SHARES[cgroups.hierarchies.version]
    assert {name: cgroups.file("cpu", group, share) for name, group in groups.items()} == shares
    assert {cgroups.file("pids", group, "pids.max") for group in groups.values()} == {"500"}
    for name in ("burstable", "besteffort"):
        assert cgroups.file("cpu", f"kubepods/{name}", share) == shares[name]
    for name, group in groups.items():
        for number in range(len(wanted[name])):
            assert cgroups.holds(node.until_process(f"{name}-{number}"), group)
    warned = any("cgroup v1" in line["event"] and "deprecated" in line["event"] for line in node.log())
    assert warned == (cgroups.hierarchies.version == 1)

    # Statistics find the groups where they are.
    summary = json.loads(node.cli("stats", "-o", "json").stdout)
    used = {one["podRef"]["uid"]: one["memory"]["usageBytes"] for one in summary["pods"]}
    assert used.keys() == {group.rpartition("/pod")[2] for group in groups.values()}
    assert min(used.values()) > 0

    # What an agent that was killed has left: a pod that nobody wants any more, and a group that nobody knows.
    node.stop(signal.SIGKILL)
    node.delete("besteffort")
    foreign = "kubepods/burstable/pod111-222"
    with (
        cgroups.leftover("kubepods/burstable/podabc-123", node.root) as process,
        cgroups.leftover(foreign) as stranger,
    ):
        node.start()
        node.until(lambda: process.poll() is not None, "what is left in a group is killed")
        node.until(lambda: cgroups.pods() == {groups["guaranteed"], groups["burstable"], foreign}, "orphans are gone")
        assert stranger.poll() is None
    trio.run(cgroups.driver.remove, (cgroups.root, *foreign.split("/")))
    assert not node.status("guaranteed", "guaranteed-0").restart_count
    node.delete("burstable")
    node.until(lambda: cgroups.pods() == {groups["guaranteed"]}, "the group goes with its pod")
    node.until(lambda: cgroups.read("kubepods/burstable").cpu_shares == 2, "the class follows")
    assert node.stop() == 0
    assert cgroups.pods() == set()
