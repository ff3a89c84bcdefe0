"""Objects over the wire: what a client sends, what is kept, what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.apiserver.builders import pod_document
from tests.apiserver.raw_client import JSON_PATCH, STRATEGIC, RawClient

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.server import ApiServer

PODS = "/api/v1/namespaces/default/pods"


async def test_a_created_object_gets_an_identity_and_can_be_read(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    created = await client.post(PODS, pod_document("web"))
    assert created.code == 201
    metadata = created.document["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert metadata["generation"] == 1
    assert int(metadata["resourceVersion"]) == server.store.version
    read = await client.get(f"{PODS}/web")
    assert read.code == 200
    assert read.document == created.document
    assert created.document["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert created.document["spec"]["restartPolicy"] == "Always"


async def test_refusals_have_the_words_that_clients_know(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    missing = await client.get(f"{PODS}/web")
    assert (missing.code, missing.message) == (404, 'pods "web" not found')
    assert missing.document["details"] == {"name": "web", "kind": "pods"}
    await client.post(PODS, pod_document("web"))
    again = await client.post(PODS, pod_document("web"))
    assert (again.code, again.message) == (409, 'pods "web" already exists')
    assert again.document["reason"] == "AlreadyExists"
    invalid = await client.post(PODS, pod_document("web2", restartPolicy="Sometimes"))
    assert invalid.code == 422
    assert invalid.document["details"]["causes"][0]["field"] == "spec.restartPolicy"
    nowhere = await client.post("/api/v1/namespaces/nowhere/pods", pod_document("web", namespace="nowhere"))
    assert (nowhere.code, nowhere.message) == (404, 'namespaces "nowhere" not found')
    unknown = await client.get("/api/v1/namespaces/default/poods")
    assert (unknown.code, unknown.message) == (404, "the server could not find the requested resource")


async def test_generated_names_end_in_five_letters(autojump_clock: MockClock, server: ApiServer) -> None:
    document = pod_document("web")
    document["metadata"] = {"generateName": "web-"}
    created = await RawClient.admin(server).post(PODS, document)
    assert len(created.document["metadata"]["name"]) == len("web-") + 5


async def test_an_update_of_an_old_version_is_a_conflict(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    first = (await client.post(PODS, pod_document("web"))).document
    await client.patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}})
    late = await client.put(f"{PODS}/web", first)
    assert late.code == 409
    assert late.message == (
        'Operation cannot be fulfilled on pods "web": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_an_update_that_changes_nothing_is_no_new_version(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    created = (await client.post(PODS, pod_document("web"))).document
    version = server.store.version
    same = await client.patch(f"{PODS}/web", {"metadata": {"name": "web"}})
    assert same.document == created
    assert server.store.version == version


async def test_a_uid_in_a_patch_is_a_precondition(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    created = (await client.post(PODS, pod_document("web"))).document
    status: dict[str, dict[str, str]] = {"metadata": {"uid": "other"}, "status": {"phase": "Running"}}
    refused = await client.patch(f"{PODS}/web/status", status, STRATEGIC)
    assert refused.code == 422
    assert refused.message == 'Pod "web" is invalid: metadata.uid: Invalid value: "other": field is immutable'
    status["metadata"]["uid"] = created["metadata"]["uid"]
    assert (await client.patch(f"{PODS}/web/status", status, STRATEGIC)).code == 200


async def test_a_uid_in_an_update_is_a_precondition(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    created = (await client.post(PODS, pod_document("web"))).document
    right = created["metadata"]["uid"]
    created["metadata"] |= {"uid": "other", "resourceVersion": ""}
    refused = await client.put(f"{PODS}/web", created)
    assert refused.code == 409
    assert f"Precondition failed: UID in precondition: other, UID in object meta: {right}" in refused.message


async def test_the_status_and_the_rest_are_written_separately(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    await client.post(PODS, pod_document("web"))
    both = {"metadata": {"labels": {"a": "b"}}, "spec": {"activeDeadlineSeconds": 5}, "status": {"phase": "Running"}}
    main = (await client.patch(f"{PODS}/web", both)).document
    assert main["status"]["phase"] == "Pending"
    assert main["metadata"]["generation"] == 2
    both["spec"] = {"activeDeadlineSeconds": 9}
    status = (await client.patch(f"{PODS}/web/status", both)).document
    assert status["status"]["phase"] == "Running"
    assert status["spec"]["activeDeadlineSeconds"] == 5
    assert status["metadata"]["generation"] == 2


async def test_a_status_patch_cannot_touch_owners_and_keeps_observed_generations(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    client = RawClient.admin(server)
    await client.post(PODS, pod_document("web"))
    ready = {"type": "Ready", "status": "True", "observedGeneration": 1}
    await client.patch(f"{PODS}/web/status", {"status": {"observedGeneration": 1, "conditions": [ready]}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
    unready = {"observedGeneration": None, "conditions": [{"type": "Ready", "status": "False"}]}
    old_client = {"metadata": {"ownerReferences": [owner]}, "status": unready}
    pod = (await client.patch(f"{PODS}/web/status", old_client)).document
    assert "ownerReferences" not in pod["metadata"]
    assert pod["status"]["observedGeneration"] == 1
    assert pod["status"]["conditions"] == [{"type": "Ready", "status": "False", "observedGeneration": 1}]


async def test_a_container_that_ended_for_good_cannot_run_again(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    await client.post(PODS, pod_document("job", restartPolicy="Never"))
    ended = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
    assert (await client.patch(f"{PODS}/job/status", {"status": ended})).code == 200
    running = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    refused = await client.patch(f"{PODS}/job/status", {"status": running})
    assert refused.code == 422
    assert "may not be transitioned to non-terminated state" in refused.message


async def test_the_three_kinds_of_patch(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    await client.post(PODS, pod_document("web"))
    await client.patch(f"{PODS}/web", [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}], JSON_PATCH)
    await client.patch(f"{PODS}/web", {"metadata": {"labels": {"c": "d"}}})
    condition = {"type": "Ready", "status": "True"}
    path = f"{PODS}/web/status"
    await client.patch(path, {"status": {"conditions": [condition]}}, STRATEGIC)
    pod = (await client.patch(path, {"status": {"conditions": [{**condition, "type": "X"}]}}, STRATEGIC)).document
    assert pod["metadata"]["labels"] == {"a": "b", "c": "d"}
    assert {c["type"] for c in pod["status"]["conditions"]} == {"Ready", "X"}
    failed = await client.patch(f"{PODS}/web", [{"op": "test", "path": "/metadata/name", "value": "x"}], JSON_PATCH)
    assert failed.code == 422
    other = await client.patch(f"{PODS}/web", {}, "text/plain")
    assert other.code == 415


async def test_a_binding_schedules_a_pod_once(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    await client.post(PODS, pod_document("web"))
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"}, "target": {"name": "a"}}
    assert (await client.post(f"{PODS}/web/binding", binding)).code == 201
    pod = (await client.get(f"{PODS}/web")).document
    assert pod["spec"]["nodeName"] == "a"
    assert [(c["type"], c["status"]) for c in pod["status"]["conditions"]] == [("PodScheduled", "True")]
    again = await client.post(f"{PODS}/web/binding", binding)
    assert again.code == 409
    assert 'pod web is already assigned to node "a"' in again.message


async def test_lists_come_in_pages_of_one_version(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    for number in range(5):
        server.admin.create(pod_document(f"p{number}"))
    first = (await client.get(PODS, limit="2")).document
    assert [item["metadata"]["name"] for item in first["items"]] == ["p0", "p1"]
    assert "kind" not in first["items"][0]
    assert first["metadata"]["remainingItemCount"] == 3
    server.admin.delete("pods", "p3")
    rest = (await client.get(PODS, limit="10", **{"continue": first["metadata"]["continue"]})).document
    assert [item["metadata"]["name"] for item in rest["items"]] == ["p2", "p3", "p4"]
    assert rest["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
    server.store.compact()
    late = await client.get(PODS, **{"continue": first["metadata"]["continue"]})
    assert (late.code, late.document["reason"]) == (410, "Expired")


async def test_a_version_from_the_future_is_too_large(autojump_clock: MockClock, server: ApiServer) -> None:
    answer = await RawClient.admin(server).get(PODS, resourceVersion="99999", resourceVersionMatch="NotOlderThan")
    assert answer.code == 504
    assert answer.document["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_an_older_server_drops_fields_silently(autojump_clock: MockClock, server: ApiServer) -> None:
    server.registry.unknown_fields["Pod"] = ("status.observedGeneration", "status.conditions.observedGeneration")
    client = RawClient.admin(server)
    await client.post(PODS, pod_document("web"))
    condition = {"type": "Ready", "status": "True", "observedGeneration": 1}
    status = {"status": {"observedGeneration": 1, "conditions": [condition]}}
    pod = (await client.patch(f"{PODS}/web/status", status, STRATEGIC)).document
    assert "observedGeneration" not in pod["status"]
    assert pod["status"]["conditions"] == [{"type": "Ready", "status": "True"}]
