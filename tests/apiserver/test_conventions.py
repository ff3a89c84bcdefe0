"""What any API server does, as far as an agent relies on it.

These tests hold the test server to what a real one does: with `--apiserver-kubeconfig FILE` they run on that. They
write to a namespace of their own, to a node that no agent serves, and leave nothing behind.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.raw_client import JSON_PATCH, MERGE, STRATEGIC, RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.api_conventions

PATIENCE = 30.0


@asynccontextmanager
async def place(api: RawClient) -> AsyncIterator[tuple[str, str]]:
    """A namespace of the test's own (the path of its pods) and a node of its own (its name)."""
    namespace = await api.post("/api/v1/namespaces", {"metadata": {"generateName": "conventions-"}})
    assert namespace.code == 201, namespace.message
    name = namespace.document["metadata"]["name"]
    node = await api.post("/api/v1/nodes", node_document(f"node-of-{name}"))
    assert node.code == 201, node.message
    pods = f"/api/v1/namespaces/{name}/pods"
    try:
        with trio.fail_after(PATIENCE):
            yield pods, f"node-of-{name}"
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
            for pod in (await api.get(pods)).document["items"]:
                await api.delete(f"{pods}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
            await api.delete(f"/api/v1/nodes/node-of-{name}")
            await api.delete(f"/api/v1/namespaces/{name}")


def pod(pods: str, name: str, node: str = "", **spec: Any) -> dict[str, Any]:
    return pod_document(name, node=node, namespace=pods.split("/")[4], automountServiceAccountToken=False, **spec)


async def kinds(events: AsyncIterator[dict[str, Any]], until: str) -> list[str]:
    """Types of events up to the first of type `until`."""
    found = []
    async for event in events:
        found.append(event["type"])
        if event["type"] == until:
            return found
    return found


async def test_a_version_grows_with_every_change_and_only_then(api: RawClient) -> None:
    async with place(api) as (pods, _):
        created = (await api.post(pods, pod(pods, "web"))).document
        first = int(created["metadata"]["resourceVersion"])
        same = await api.patch(f"{pods}/web", {"metadata": {"name": "web"}})
        assert int(same.document["metadata"]["resourceVersion"]) == first
        changed = await api.patch(f"{pods}/web", {"metadata": {"labels": {"a": "b"}}})
        assert int(changed.document["metadata"]["resourceVersion"]) > first


async def test_a_new_pod_is_pending_and_has_a_generation(api: RawClient) -> None:
    async with place(api) as (pods, _):
        document = {**pod(pods, "web"), "status": {"phase": "Running"}}
        created = (await api.post(pods, document)).document
        assert created["status"]["phase"] == "Pending"
        assert created["status"]["qosClass"] == "BestEffort"
        assert created["metadata"]["generation"] == 1
        assert created["spec"]["terminationGracePeriodSeconds"] == 30


async def test_the_status_is_written_apart(api: RawClient) -> None:
    async with place(api) as (pods, node):
        await api.post(pods, pod(pods, "web", node))
        both = {"spec": {"activeDeadlineSeconds": 5}, "status": {"message": "hello"}}
        answer = (await api.patch(f"{pods}/web/status", both)).document
        assert answer["status"]["message"] == "hello"
        assert "activeDeadlineSeconds" not in answer["spec"]
        answer = (await api.patch(f"{pods}/web", {"status": {"message": "other"}})).document
        assert answer["status"]["message"] == "hello"


async def test_strategic_patches_merge_conditions_and_replace_container_statuses(api: RawClient) -> None:
    async with place(api) as (pods, node):
        await api.post(pods, pod(pods, "web", node))
        path = f"{pods}/web/status"

        def status(**fields: Any) -> dict[str, Any]:
            return {"status": fields}

        one, two = {"type": "example.com/one", "status": "True"}, {"type": "example.com/two", "status": "True"}
        await api.patch(path, status(conditions=[one]), STRATEGIC)
        await api.patch(path, status(conditions=[two]), STRATEGIC)
        order = [{"type": two["type"]}, {"type": one["type"]}]
        ordered = {"$setElementOrder/conditions": order, "conditions": [{**one, "status": "False"}]}
        answer = (await api.patch(path, status(**ordered), STRATEGIC)).document
        found = [(c["type"], c["status"]) for c in answer["status"]["conditions"] if c["type"].startswith("example")]
        assert found == [("example.com/two", "True"), ("example.com/one", "False")]
        drop = {"$patch": "delete", "type": one["type"]}
        answer = (await api.patch(path, status(conditions=[drop]), STRATEGIC)).document
        assert one["type"] not in [c["type"] for c in answer["status"]["conditions"]]
        container = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
        await api.patch(path, status(containerStatuses=[container]), STRATEGIC)
        other = {**container, "name": "other"}
        answer = (await api.patch(path, status(containerStatuses=[other]), STRATEGIC)).document
        assert [c["name"] for c in answer["status"]["containerStatuses"]] == ["other"]


async def test_json_and_merge_patches(api: RawClient) -> None:
    async with place(api) as (pods, _):
        await api.post(pods, pod(pods, "web"))
        path = f"{pods}/web"
        add = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
        assert (await api.patch(path, add, JSON_PATCH)).document["metadata"]["labels"] == {"a": "b"}
        merged = await api.patch(path, {"metadata": {"labels": {"a": None, "c": "d"}}}, MERGE)
        assert merged.document["metadata"]["labels"] == {"c": "d"}
        failing = [{"op": "test", "path": "/metadata/name", "value": "other"}]
        assert (await api.patch(path, failing, JSON_PATCH)).code == 422


async def test_preconditions_of_patches_updates_and_deletions(api: RawClient) -> None:
    async with place(api) as (pods, node):
        created = (await api.post(pods, pod(pods, "web", node))).document
        path = f"{pods}/web"
        other = "00000000-0000-4000-8000-000000000000"
        patched = await api.patch(f"{path}/status", {"metadata": {"uid": other}, "status": {"message": "x"}}, STRATEGIC)
        assert patched.code == 422
        assert patched.document["details"]["causes"][0]["field"] == "metadata.uid"
        put = {**created, "metadata": {**created["metadata"], "uid": other}}
        assert (await api.put(path, put)).code == 409
        deleted = await api.delete(path, {"preconditions": {"uid": other}})
        assert deleted.code == 409
        assert "the UID in the precondition" in deleted.message
        await api.patch(path, {"metadata": {"labels": {"a": "b"}}})
        stale = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"], "labels": {"c": "d"}}}
        refused = await api.patch(path, stale)
        assert (refused.code, refused.document["reason"]) == (409, "Conflict")


async def test_a_graceful_deletion_has_two_steps(api: RawClient) -> None:
    async with place(api) as (pods, node):
        created = (await api.post(pods, pod(pods, "web", node))).document
        version = created["metadata"]["resourceVersion"]
        async with api.watch(pods, resourceVersion=version) as events:
            marked = (await api.delete(f"{pods}/web", {"gracePeriodSeconds": 600})).document
            assert marked["metadata"]["deletionGracePeriodSeconds"] == 600
            assert marked["metadata"]["generation"] == 2
            shorter = (await api.delete(f"{pods}/web", {"gracePeriodSeconds": 300})).document
            assert shorter["metadata"]["deletionGracePeriodSeconds"] == 300
            longer = (await api.delete(f"{pods}/web", {"gracePeriodSeconds": 900})).document
            assert longer["metadata"]["deletionGracePeriodSeconds"] == 300
            await api.delete(f"{pods}/web", {"gracePeriodSeconds": 0})
            assert await kinds(events, "DELETED") == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
        assert (await api.get(f"{pods}/web")).code == 404


async def test_a_terminal_pod_goes_at_once(api: RawClient) -> None:
    async with place(api) as (pods, node):
        await api.post(pods, pod(pods, "job", node))
        await api.patch(f"{pods}/job/status", {"status": {"phase": "Failed"}})
        await api.delete(f"{pods}/job")
        assert (await api.get(f"{pods}/job")).code == 404


async def test_a_watch_by_node_tells_of_pods_that_are_bound_to_it(api: RawClient) -> None:
    async with place(api) as (pods, node):
        unbound = pod(pods, "web", schedulerName="nobody")
        version = (await api.post(pods, unbound)).document["metadata"]["resourceVersion"]
        async with api.watch(pods, resourceVersion=version, fieldSelector=f"spec.nodeName={node}") as events:
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"}}
            bound = await api.post(f"{pods}/web/binding", {**binding, "target": {"kind": "Node", "name": node}})
            assert bound.code == 201
            event = await anext(events)
            assert event["type"] == "ADDED"
            condition = event["object"]["status"]["conditions"][0]
            assert (condition["type"], condition["status"]) == ("PodScheduled", "True")


async def test_initial_events_come_before_an_annotated_bookmark(api: RawClient) -> None:
    async with place(api) as (pods, _):
        for name in ("a", "b"):
            await api.post(pods, pod(pods, name, schedulerName="nobody"))
        options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
        async with api.watch(pods, **options) as events:
            assert await kinds(events, "BOOKMARK") == ["ADDED", "ADDED", "BOOKMARK"]


async def test_a_list_comes_in_pages(api: RawClient) -> None:
    async with place(api) as (pods, _):
        for number in range(3):
            await api.post(pods, pod(pods, f"p{number}", schedulerName="nobody"))
        page = (await api.get(pods, limit="2")).document
        assert len(page["items"]) == 2
        assert page["metadata"]["remainingItemCount"] == 1
        await api.delete(f"{pods}/p2", {"gracePeriodSeconds": 0})
        rest = (await api.get(pods, limit="2", **{"continue": page["metadata"]["continue"]})).document
        assert [item["metadata"]["name"] for item in rest["items"]] == ["p2"]
        assert rest["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({"labelSelector": "app=web"}, ["a"]),
        ({"labelSelector": "app!=web"}, ["b", "c"]),
        ({"labelSelector": "app in (web,db)"}, ["a", "b"]),
        ({"labelSelector": "app notin (web)"}, ["b", "c"]),
        ({"labelSelector": "!app"}, ["c"]),
        ({"labelSelector": "app,tier=back"}, ["b"]),
        ({"fieldSelector": "metadata.name!=a"}, ["b", "c"]),
        ({"fieldSelector": "metadata.name=b,status.phase=Pending"}, ["b"]),
        ({"fieldSelector": "spec.nodeName=nowhere"}, []),
    ],
)
async def test_selectors(api: RawClient, selector: dict[str, str], names: list[str]) -> None:
    async with place(api) as (pods, _):
        labels = {"a": {"app": "web"}, "b": {"app": "db", "tier": "back"}, "c": {}}
        for name, found in labels.items():
            document = pod(pods, name, schedulerName="nobody")
            document["metadata"]["labels"] = found
            await api.post(pods, document)
        listed = (await api.get(pods, **selector)).document["items"]
        assert [item["metadata"]["name"] for item in listed] == names


@pytest.mark.parametrize(
    ("path", "query", "code", "message"),
    [
        ("/pods/none", {}, 404, 'pods "none" not found'),
        ("/pods", {"fieldSelector": "spec.x=y"}, 400, "field label not supported: spec.x"),
        ("/pods", {"watch": "1", "sendInitialEvents": "true"}, 422, "sendInitialEvents requires setting"),
        ("/nothing", {}, 404, "the server could not find the requested resource"),
    ],
)
async def test_refusals(api: RawClient, path: str, query: dict[str, str], code: int, message: str) -> None:
    answer = await api.get(f"/api/v1/namespaces/default{path}", **query)
    assert answer.code == code
    assert message in answer.message


async def test_a_lease_is_replaced_by_its_last_version_only(api: RawClient) -> None:
    async with place(api) as (pods, _):
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{pods.split('/')[4]}/leases"
        spec = {"holderIdentity": "a", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}
        created = await api.post(leases, {"metadata": {"name": "a"}, "spec": spec})
        assert created.code == 201
        renewed = {**created.document, "spec": {**spec, "renewTime": "2026-01-01T00:00:10.000000Z"}}
        assert (await api.put(f"{leases}/a", renewed)).code == 200
        assert (await api.put(f"{leases}/a", renewed)).code == 409
