"""Pods that are evicted by whole agents, on real runtimes, from a real shortage.

In a cluster, since a node does not do without its static pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.agent.real_node import NODE_NAME, PATIENCE
from tests.volumes.real.served_cluster import served_cluster

if TYPE_CHECKING:
    from tests.agent.real_node import RealNode
    from tests.apiserver.documents import Document
    from tests.volumes.real.served_cluster import ServedCluster

MIB: Final = 2**20
FOREVER: Final = "trap 'exit 7' TERM; while :; do sleep 0.1; done"
NEVER_ENOUGH: Final = {"memory.available": "99%"}
"""Of no machine is so much memory free. Pods that request none are offered what remains."""


def create(cluster: ServedCluster, node: RealNode, name: str, script: str, **spec: Any) -> None:
    container = node.container(f"{script}\n{FOREVER}", **spec.pop("container", {}))
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "shared"]
    spec = {"nodeName": NODE_NAME, "dnsPolicy": "Default", "terminationGracePeriodSeconds": 30, **spec}
    cluster.create("Pod", name, spec={**spec, "containers": [container]})


def status(cluster: ServedCluster, name: str) -> Document:
    return dict((cluster.find("pods", name) or {}).get("status", {}))


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
        assert container["state"]["terminated"]["exitCode"] in (7, 137), told


def test_who_fills_its_volume_goes_and_who_is_chosen_goes_for_the_nodes_memory(node: RealNode) -> None:
    with served_cluster() as cluster:
        kubeconfig = node.folder / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(cluster.kubeconfig(NODE_NAME))
        node.configure(volumeStatsAggPeriod="1s", nodeStatusUpdateFrequency="1s")
        node.start(f"--kubeconfig={kubeconfig}", "--no-drain-on-exit")
        mounts = {"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}
        for name, size in (("keeps", 1), ("fills", 3)):
            volume = {"name": "cache", "emptyDir": {"sizeLimit": "2Mi"}}
            script = f"head -c {size * MIB} /dev/zero > /cache/file"
            create(cluster, node, name, script, volumes=[volume], container=mounts, priority=10)
        create(cluster, node, "less", "", priority=-5)
        create(cluster, node, "critical", "", priority=2_000_001_000)
        until(node, cluster, "Running", "keeps", "less", "critical")
        until(node, cluster, "Failed", "fills")
        ended_for(node, cluster, "fills", 'Usage of EmptyDir volume "cache" exceeds the limit "2Mi". ')
        assert evicted(cluster) == ["fills"]

        assert node.stop() == 0
        node.configure(evictionHard=NEVER_ENOUGH)
        node.start(f"--kubeconfig={kubeconfig}", "--drain-on-exit")
        until(node, cluster, "Failed", "less", "keeps")
        for name in ("less", "keeps"):
            ended_for(node, cluster, name, "The node was low on resource: memory. Threshold quantity: ")
        ended_for(node, cluster, "fills", "Usage of")
        assert evicted(cluster) == ["fills", "less", "keeps"], "one after the other, the less important first"
        create(cluster, node, "late", "")
        until(node, cluster, "Failed", "late")
        assert status(cluster, "late")["message"].endswith("The node had condition: [MemoryPressure]. ")
        assert status(cluster, "critical")["phase"] == "Running"
        found = cluster.find("nodes", NODE_NAME) or {}
        (condition,) = (one for one in found["status"]["conditions"] if one["type"] == "MemoryPressure")
        assert (condition["status"], condition["reason"]) == ("True", "KubeletHasInsufficientMemory")
        assert node.stop() == 0, node.told()
