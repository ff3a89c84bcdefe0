"""A claim that grows on a node whose driver hangs, refuses and gives in, while agents are killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.real_node import RealNode
from tests.volumes.real.joined_node import JoinedNode, joined_node, mounts
from tests.volumes.real.served_cluster import served_cluster
from tests.volumes.real.test_storage import claimed, csi

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLAIM = "data-claim"
OLD, NEW = "16Mi", "32Mi"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[JoinedNode]:
    """Agents of its own, since they are killed."""
    with served_cluster() as cluster, joined_node(RealNode(tmp_path, "localhost/host"), cluster) as joined:
        yield joined


def ask(node: JoinedNode, size: str) -> None:
    """What a controller says that has made the volume larger."""
    status = {"allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    capacity = {"spec": {"capacity": {"storage": size}}}
    requests = {"spec": {"resources": {"requests": {"storage": size}}}}
    patch = node.cluster.do
    patch(lambda server: server.admin.patch("persistentvolumes", "data", "", body=capacity))
    patch(lambda server: server.admin.patch("persistentvolumeclaims", CLAIM, body=requests))
    patch(
        lambda server: server.admin.patch(
            "persistentvolumeclaims", CLAIM, body={"status": status}, subresource="status"
        )
    )


def claim(node: JoinedNode) -> tuple[str, str, list[str]]:
    """Its size, how far it is, and what its conditions say."""
    status: dict[str, Any] = (node.cluster.find("persistentvolumeclaims", CLAIM) or {})["status"]
    state = (status.get("allocatedResourceStatuses") or {}).get("storage", "")
    return status["capacity"]["storage"], state, [one["message"] for one in status.get("conditions") or ()]


def calls(node: JoinedNode, rpc: str) -> list[str]:
    """How they ended."""
    made = [json.loads(line) for line in node.calls()]
    return [call["outcome"] for call in made if call["call"] == rpc]


@pytest.mark.root
def test_a_claim_grows_while_its_driver_refuses_and_agents_are_killed(node: JoinedNode) -> None:
    volume = claimed(node, "data", csi=csi("data"))
    node.until(lambda: claim_is_bound(node), "the claim is bound")
    ask(node, NEW)
    node.fault(NodeExpandVolume={"kind": "hang"})
    node.start("web", node.container("see /data", volumeMounts=mounts(("data", "/data"))), volumes=[volume])
    node.until(lambda: claim(node)[1] == "NodeResizeInProgress", "it grows", "web")
    node.fault(NodeExpandVolume={"kind": "error", "status": "OUT_OF_RANGE", "message": "no room"})
    node.kill_agent()

    node.seen("web")
    why = "Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = no room"
    assert claim(node) == (OLD, "NodeResizeInfeasible", [f"failed to expand pvc with {why}"])
    assert f'FailedMount: MountVolume.Setup failed while expanding volume for volume "data" : {why}' in (
        node.cluster.messages("web")
    )
    refusals, publications = len(calls(node, "NodeExpandVolume")), len(calls(node, "NodePublishVolume"))
    before = started(node)

    node.fault()
    node.kill_agent()
    node.until(lambda: len(calls(node, "NodePublishVolume")) > publications, "the agent has taken the pod up", "web")
    assert (claim(node)[:2], len(calls(node, "NodeExpandVolume"))) == ((OLD, "NodeResizeInfeasible"), refusals)
    ask(node, NEW)
    node.kill_agent()
    node.until(lambda: claim(node) == (NEW, "", []), f"it has grown: {claim(node)}", "web")
    assert calls(node, "NodeExpandVolume")[-1] == "ok"
    done = 'FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "data"'
    for about in ("web", CLAIM):
        node.until(
            lambda about=about: any(line.startswith(done) for line in node.cluster.messages(about)), f"{about} is told"
        )
    assert started(node) == before
    node.end("web")


def claim_is_bound(node: JoinedNode) -> bool:
    found = node.cluster.find("persistentvolumeclaims", CLAIM) or {}
    return (found.get("status") or {}).get("phase") == "Bound"


def started(node: JoinedNode) -> tuple[str, int]:
    """Which container runs, and how often it was restarted."""
    [status] = (node.pod("web") or {})["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]
