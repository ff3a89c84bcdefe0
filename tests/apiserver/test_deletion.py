"""Deletion: at once, with grace, and held up by finalizers (facts from `registry/rest/delete_test.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.raw_client import RawClient

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.server import ApiServer

PODS = "/api/v1/namespaces/default/pods"


def changes(server: ApiServer) -> list[str]:
    """What a watcher of pods would be told from now on, as words."""
    told: list[str] = []

    class Watcher:
        def deliver(self, change: Any) -> None:
            grace = change.new["metadata"].get("deletionGracePeriodSeconds")
            told.append(change.type if grace is None else f"{change.type} {grace}")

    from tests.apiserver.resources import PODS as PODS_INFO

    server.store.subscribe(PODS_INFO, Watcher(), None)
    return told


async def test_a_scheduled_pod_is_first_marked_and_then_removed_by_its_agent(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    client = RawClient.admin(server)
    server.admin.create(pod_document("web", node="a"))
    told = changes(server)
    answer = await client.delete(f"{PODS}/web")
    assert answer.code == 200
    metadata = answer.document["metadata"]
    assert metadata["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    assert metadata["deletionGracePeriodSeconds"] == 30
    assert metadata["generation"] == 2
    done = await client.delete(f"{PODS}/web", {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
    assert done.code == 200
    assert (await client.get(f"{PODS}/web")).code == 404
    assert told == ["MODIFIED 30", "MODIFIED 0", "DELETED 0"]


async def test_nobody_waits_for_a_pod_without_node_or_with_a_terminal_phase(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    client = RawClient.admin(server)
    server.admin.create(pod_document("unscheduled"))
    server.admin.create(pod_document("failed", node="a"))
    server.admin.patch("pods", "failed", body={"status": {"phase": "Failed"}}, subresource="status")
    for name in ("unscheduled", "failed"):
        await client.delete(f"{PODS}/{name}")
        assert server.admin.find("pods", name) is None


@pytest.mark.parametrize(
    ("asked", "after", "grace", "deadline"),
    [
        (None, 0.0, 30, "00:00:30"),
        (30, 0.0, 30, "00:00:30"),
        (60, 0.0, 30, "00:00:30"),
        (10, 0.0, 10, "00:00:10"),
        (10, 5.0, 10, "00:00:10"),
        (10, 20.0, 1, "00:00:20"),
        (-5, 0.0, 1, "00:00:01"),
    ],
)
async def test_a_second_deletion_can_only_shorten_the_grace(
    autojump_clock: MockClock, server: ApiServer, asked: int | None, after: float, grace: int, deadline: str
) -> None:
    server.clock.now()
    server.admin.create(pod_document("web", node="a"))
    server.admin.delete("pods", "web")
    await trio.sleep(after)
    server.admin.delete("pods", "web", grace=asked)
    metadata = server.admin.get("pods", "web")["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == grace
    assert metadata["deletionTimestamp"] == f"2026-01-01T{deadline}Z"
    assert metadata["generation"] == 2


async def test_grace_zero_removes_at_once_also_while_a_deletion_is_pending(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    server.admin.create(pod_document("web", node="a"))
    server.admin.delete("pods", "web")
    server.admin.delete("pods", "web", grace=0)
    assert server.admin.find("pods", "web") is None


async def test_a_deletion_of_another_uid_is_a_conflict(autojump_clock: MockClock, server: ApiServer) -> None:
    server.admin.create(pod_document("web", node="a"))
    uid = server.admin.get("pods", "web")["metadata"]["uid"]
    answer = await RawClient.admin(server).delete(f"{PODS}/web", {"preconditions": {"uid": "other"}})
    assert answer.code == 409
    assert answer.message == (
        f'Operation cannot be fulfilled on Pod "web": the UID in the precondition (other) does not match the UID in '
        f"record ({uid}). The object might have been deleted and then recreated"
    )


async def test_finalizers_keep_an_object_until_the_last_is_gone(autojump_clock: MockClock, server: ApiServer) -> None:
    document = node_document("a", finalizers=["x/y"])
    server.admin.create(document)
    server.admin.delete("nodes", "a")
    assert server.admin.get("nodes", "a")["metadata"]["deletionGracePeriodSeconds"] == 0
    server.admin.patch("nodes", "a", body={"metadata": {"finalizers": None}})
    assert server.admin.find("nodes", "a") is None


async def test_a_pod_with_finalizers_outlives_its_agent(autojump_clock: MockClock, server: ApiServer) -> None:
    pod = pod_document("web", node="a")
    pod["metadata"]["finalizers"] = ["x/y"]
    server.admin.create(pod)
    server.admin.delete("pods", "web")
    server.admin.delete("pods", "web", grace=0)
    assert server.admin.get("pods", "web")["metadata"]["deletionGracePeriodSeconds"] == 0
    server.admin.patch("pods", "web", body={"metadata": {"finalizers": None}})
    assert server.admin.find("pods", "web") is None


async def test_a_deletion_that_is_no_pods_answers_with_a_status(autojump_clock: MockClock, server: ApiServer) -> None:
    server.admin.create(node_document("a"))
    answer = await RawClient.admin(server).delete("/api/v1/nodes/a")
    assert answer.document["status"] == "Success"
    assert answer.document["details"]["name"] == "a"
    gone = await RawClient.admin(server).delete("/api/v1/nodes/a")
    assert (gone.code, gone.message) == (404, 'nodes "a" not found')


async def test_a_namespace_that_is_being_deleted_takes_nothing_new(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    server.admin.ensure_namespace("team")
    server.admin.delete("namespaces", "team")
    assert server.admin.get("namespaces", "team")["status"]["phase"] == "Terminating"
    refused = await RawClient.admin(server).post("/api/v1/namespaces/team/pods", pod_document("web", namespace="team"))
    assert refused.code == 403
    assert refused.document["details"]["causes"][0]["reason"] == "NamespaceTerminating"
