"""Subresources that the API server cannot answer by itself, as far as it gets without a node. More: tests/kubectl."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.raw_client import STRATEGIC, RawClient

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.server import ApiServer

POD = "/api/v1/namespaces/default/pods/web"
TWO = [{"name": "main", "image": "test/web:1"}, {"name": "other", "image": "test/web:1"}]
LOOK = {"name": "look", "image": "test/look:1"}


@pytest.mark.parametrize(
    ("node", "path", "code", "message"),
    [
        ("", f"{POD}/log?container=main", 400, "pod web does not have a host assigned"),
        ("gone", f"{POD}/log?container=main", 404, 'nodes "gone" not found'),
        ("a", f"{POD}/log?container=main", 500, "no address of the node a is known"),
        ("a", f"{POD}s/log", 404, 'pods "webs" not found'),
        ("a", "/api/v1/nodes/b/proxy/healthz", 404, 'nodes "b" not found'),
        ("a", "/api/v1/nodes/a/proxy", 500, "no address of the node a is known"),
    ],
)
async def test_a_node_that_cannot_be_asked(
    autojump_clock: MockClock, server: ApiServer, node: str, path: str, code: int, message: str
) -> None:
    server.admin.create(node_document("a"))
    server.admin.create(pod_document("web", node=node))
    answer = await RawClient.admin(server).get(path)
    assert answer.code == code
    assert message in answer.message


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "a container name must be specified for pod web, choose one of: [main other]"),
        ("?container=third", "container third is not valid for pod web"),
    ],
)
async def test_which_container_is_not_guessed(
    autojump_clock: MockClock, server: ApiServer, query: str, message: str
) -> None:
    node = node_document("a")
    node["status"] = {
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }
    server.admin.create(node)
    server.admin.create(pod_document("web", node="a", containers=TWO))
    answer = await RawClient.admin(server).get(f"{POD}/log{query}")
    assert (answer.code, answer.message) == (400, message)


async def test_agents_may_not_come_this_way(autojump_clock: MockClock, server: ApiServer) -> None:
    server.admin.create(node_document("a"))
    server.admin.create(pod_document("web", node="a"))
    client = RawClient.node(server, "a")
    assert (await client.get(f"{POD}/log")).code == 403
    assert (await client.get("/api/v1/nodes/a/proxy/pods")).code == 403
    assert (await client.patch(f"{POD}/ephemeralcontainers", {})).code == 403


async def test_ephemeral_containers_come_and_stay(autojump_clock: MockClock, server: ApiServer) -> None:
    before = server.admin.create(pod_document("web", node="a"))
    client = RawClient.admin(server)

    async def patch(**spec: object) -> tuple[int, list[str]]:
        answer = await client.patch(f"{POD}/ephemeralcontainers", {"spec": spec}, STRATEGIC)
        containers = server.admin.get("pods", "web")["spec"].get("ephemeralContainers", ())
        return answer.code, [container["image"] for container in containers]

    assert await patch(ephemeralContainers=[LOOK], hostname="changed") == (200, ["test/look:1"])
    after = server.admin.get("pods", "web")
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert "hostname" not in after["spec"]
    assert after["spec"]["ephemeralContainers"][0]["terminationMessagePolicy"] == "File"
    assert await patch(ephemeralContainers=[{**LOOK, "image": "test/other:1"}]) == (422, ["test/look:1"])
    more = {"name": "more", "image": "test/more:1"}
    assert await patch(ephemeralContainers=[more]) == (200, ["test/more:1", "test/look:1"])


async def test_a_resize_changes_amounts_of_cpu_and_memory_alone(autojump_clock: MockClock, server: ApiServer) -> None:
    resources = {"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}}
    containers = [{"name": "main", "image": "test/web:1", "resources": resources}]
    before = server.admin.create(pod_document("web", node="a", containers=containers))
    client = RawClient.admin(server)

    async def resize(resources: object, **fields: object) -> tuple[int, object]:
        spec = {"containers": [{"name": "main", "resources": resources, **fields}]}
        answer = await client.patch(f"{POD}/resize", {"spec": spec}, STRATEGIC)
        (container,) = server.admin.get("pods", "web")["spec"]["containers"]
        return answer.code, container["resources"]["requests"]

    bigger = {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    assert await resize({"requests": {"cpu": "2"}}, image="test/other:1") == (200, bigger)
    after = server.admin.get("pods", "web")
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert after["spec"]["containers"][0]["image"] == "test/web:1"
    assert await resize({"requests": {"ephemeral-storage": "2Gi"}}) == (422, bigger)
    assert await resize({"requests": {"cpu": None}}) == (422, bigger)
    guaranteed = {"cpu": "2", "memory": "1Gi"}
    assert await resize({"requests": guaranteed, "limits": guaranteed}) == (422, bigger), "another class"
    assert (await RawClient.node(server, "a").patch(f"{POD}/resize", {})).code == 403
