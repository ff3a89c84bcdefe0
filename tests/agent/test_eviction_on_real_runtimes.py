"""Pods that are evicted by whole agents, on real runtimes, from a real shortage.

In a cluster, since a node does not do without its static pods.
"""

from __future__ import annotations

import re
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.agent.real_node import NODE_NAME, NODES_NETWORK
from tests.patience import PATIENCE
from tests.volumes.real.served_cluster import served_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.private_cgroups import PrivateCgroups
    from tests.agent.real_node import RealNode
    from tests.apiserver.documents import Document
    from tests.volumes.real.served_cluster import ServedCluster

MIB: Final = 2**20
FOREVER: Final = "trap 'exit 7' TERM; while :; do sleep 0.1; done"
ENOUGH_DISK: Final = {"nodefs.available": "32Mi"}
ROUND: Final = 10.0
"""Seconds from one regular look at the node to the next."""


def create(cluster: ServedCluster, node: RealNode, name: str, script: str, **spec: Any) -> None:
    container = node.container(f"{script}\n{FOREVER}", **spec.pop("container", {}))
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "shared"]
    spec = {"nodeName": NODE_NAME, "dnsPolicy": "Default", "terminationGracePeriodSeconds": 30, **spec}
    cluster.create("Pod", name, spec={**spec, "containers": [container]})


def status(cluster: ServedCluster, name: str) -> Document:
    return dict((cluster.find("pods", name) or {}).get("status", {}))


def uid(cluster: ServedCluster, name: str) -> str:
    return str((cluster.find("pods", name) or {})["metadata"]["uid"])


def pressure(cluster: ServedCluster, type_: str) -> tuple[str, str]:
    """Status and reason of a condition of the node."""
    node = cluster.find("nodes", NODE_NAME) or {}
    (found,) = (one for one in node["status"]["conditions"] if one["type"] == type_)
    return found["status"], found["reason"]


def until(node: RealNode, cluster: ServedCluster, phase: str, *names: str) -> None:
    def reached() -> bool:
        return all(status(cluster, name).get("phase") == phase for name in names)

    node.until(reached, f"{names} are {phase}: {[status(cluster, name) for name in names]}", PATIENCE)


def evicted(cluster: ServedCluster) -> list[str]:
    """In their order."""
    events = cluster.do(lambda server: server.admin.list("events", "default"))
    events.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
    return [event["involvedObject"]["name"] for event in events if event["reason"] == "Evicted"]


def ended_for(node: RealNode, cluster: ServedCluster, name: str, message: str) -> None:
    """What is told in the end of a pod that was evicted."""
    told = status(cluster, name)
    assert (told["phase"], told["reason"]) == ("Failed", "Evicted"), told
    assert told["message"].startswith(message), told
    node.until(lambda: f"Evicted: {told['message']}" in cluster.messages(name), f"an event of {name}")
    for container in told["containerStatuses"]:
        assert container["state"].get("terminated", {}).get("exitCode") in (7, 137), container


@pytest.fixture
def small_disk(node: RealNode) -> Iterator[None]:
    """For the agent's folder."""
    node.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "small-disk", str(node.root)], check=True)
    yield
    if node.agent is not None:
        node.stop()
    node.until(lambda: subprocess.run(["umount", str(node.root)], check=False).returncode == 0, "its disk is free")


def test_who_fills_a_disk_or_a_volume_goes_and_who_is_chosen_goes_for_memory(node: RealNode, small_disk: None) -> None:
    with served_cluster() as cluster:
        kubeconfig = node.folder / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(cluster.kubeconfig(NODE_NAME))
        node.configure(evictionHard=ENOUGH_DISK, volumeStatsAggPeriod="1s")
        node.start(f"--kubeconfig={kubeconfig}", "--no-drain-on-exit", "--host-image", NODES_NETWORK)
        mounts: dict[str, Any] = {"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}
        limited: dict[str, Any] = {
            "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "2Mi"}}],
            "container": mounts,
        }
        unlimited = {"volumes": [{"name": "cache", "emptyDir": {}}], "container": mounts}
        requests = {"resources": {"requests": {"ephemeral-storage": "2Mi"}}}
        keeps = {**limited, "container": {**mounts, **requests}}
        create(cluster, node, "keeps", f"head -c {MIB} /dev/zero > /cache/file", priority=10, **keeps)
        create(cluster, node, "fills", "", priority=20, **limited)
        create(cluster, node, "grows", f"head -c {50 * MIB} /dev/zero > /cache/file", **unlimited)
        create(cluster, node, "less", "", priority=5)
        create(cluster, node, "critical", "", priority=2_000_001_000)
        until(node, cluster, "Failed", "grows")
        ended_for(node, cluster, "grows", "The node was low on resource: ephemeral-storage. Threshold quantity: 32Mi, ")
        node.until(lambda: pressure(cluster, "DiskPressure") == ("True", "KubeletHasDiskPressure"), "it is told")
        until(node, cluster, "Running", "keeps", "fills", "less", "critical")
        volume = node.root / "pods" / uid(cluster, "fills") / "volumes/kubernetes.io~empty-dir/cache"
        (volume / "file").write_bytes(bytes(3 * MIB))
        until(node, cluster, "Failed", "fills")
        ended_for(node, cluster, "fills", 'Usage of EmptyDir volume "cache" exceeds the limit "2Mi". ')
        assert evicted(cluster) == ["grows", "fills"]

        assert node.stop() == 0
        # So much is never free, not even where a cgroup of its own makes the machine look nearly unused.
        node.configure(evictionHard={"memory.available": str(machine_memory() - 16 * MIB)})
        node.start(f"--kubeconfig={kubeconfig}", "--drain-on-exit", "--host-image", NODES_NETWORK)
        until(node, cluster, "Failed", "less", "keeps")
        for name in ("less", "keeps"):
            ended_for(node, cluster, name, "The node was low on resource: memory. Threshold quantity: ")
        ended_for(node, cluster, "fills", "Usage of")
        assert evicted(cluster) == ["grows", "fills", "less", "keeps"], "one after the other, the less important first"
        create(cluster, node, "late", "")
        until(node, cluster, "Failed", "late")
        assert status(cluster, "late")["message"].endswith("The node had condition: [MemoryPressure]. ")
        assert status(cluster, "critical")["phase"] == "Running"
        told = ("True", "KubeletHasInsufficientMemory")
        node.until(lambda: pressure(cluster, "MemoryPressure") == told, "it is told")
        assert node.stop() == 0, node.told()


@pytest.mark.root
def test_who_takes_the_memory_of_all_pods_ends_since_the_kernel_rang(
    cgroups: PrivateCgroups, embedded_node: RealNode
) -> None:
    """Where pods may have little memory together, and cgroup v1 rings when there is little left of it."""
    node = embedded_node
    if "memory" not in cgroups.hierarchies.controllers:
        pytest.skip("cgroup v1 has no memory hierarchy here")
    with served_cluster() as cluster:
        kubeconfig = node.folder / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(cluster.kubeconfig(NODE_NAME))
        node.configure(
            **cgroups.fields,
            kubeReserved={"memory": str(machine_memory() - 128 * MIB)},
            evictionHard={"memory.available": "80Mi"},
            kernelMemcgNotification=True,
        )
        node.start(f"--kubeconfig={kubeconfig}", "--drain-on-exit", "--host-image", NODES_NETWORK)
        takes = f"until [ -e /told/go ]; do sleep 0.1; done; head -c {60 * MIB} /dev/zero > /dev/shm/held"
        waits: dict[str, Any] = {
            "volumes": [{"name": "told", "hostPath": {"path": str(node.shared)}}],
            "container": {"volumeMounts": [{"name": "told", "mountPath": "/told"}]},
        }
        create(cluster, node, "takes", takes, **waits)
        create(cluster, node, "less", "")
        until(node, cluster, "Running", "takes", "less")
        assert cgroups.file("memory", "kubepods", "memory.limit_in_bytes") == str(128 * MIB)
        node.until(lambda: told(node, "the node's file systems"), "the node has been measured")
        wait_for_early_moment(told(node, "the node's file systems")[0])
        (node.shared / "go").touch()
        until(node, cluster, "Failed", "takes")
        ended_for(node, cluster, "takes", "The node was low on resource: memory. Threshold quantity: 80Mi, ")
        assert status(cluster, "less")["phase"] == "Running"
        assert node.stop() == 0, node.told()

        alarms, shortages = told(node, "memory usage crossed a threshold"), told(node, "the node is low on a resource")
        assert alarms, "the kernel rang"
        assert alarms[0]["signal"] == shortages[0]["signal"] == "allocatableMemory.available"
        assert shortages[0]["ahead_of_period"], "no round that was due anyway"
        lines = node.log()
        assert lines.index(alarms[0]) < lines.index(shortages[0])


def machine_memory() -> int:
    """Bytes."""
    found = re.search(r"^MemTotal: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def wait_for_early_moment(first_round: dict[str, Any]) -> None:
    """Wait until the next regular look at the node is so far away that an alarm comes before it on a busy machine."""
    since = (time.time() - datetime.fromisoformat(first_round["timestamp"]).timestamp()) % ROUND
    if since > ROUND / 4:
        time.sleep(ROUND - since + 0.2)


def told(node: RealNode, event: str) -> list[dict[str, Any]]:
    """The lines of the agent's log with this text."""
    return [line for line in node.log() if line["event"] == event]
