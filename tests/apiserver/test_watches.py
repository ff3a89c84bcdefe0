"""Watches over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from tests.apiserver.builders import node_document, pod_document
from tests.apiserver.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.apiserver.server import ApiServer

PODS = "/api/v1/pods"
OF_NODE_A = {"fieldSelector": "spec.nodeName=a"}


async def take(events: AsyncIterator[dict[str, Any]], count: int) -> list[str]:
    """`ADDED web`, and so on."""
    found = []
    with trio.fail_after(5):
        for _ in range(count):
            event = await anext(events)
            found.append(f"{event['type']} {event['object']['metadata'].get('name', '')}".rstrip())
    return found


async def test_a_watch_from_a_list_misses_nothing(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    server.admin.create(pod_document("before"))
    version = (await client.get(PODS)).document["metadata"]["resourceVersion"]
    server.admin.create(pod_document("between"))
    async with client.watch(PODS, resourceVersion=version) as events:
        assert await take(events, 1) == ["ADDED between"]
        server.admin.patch("pods", "before", body={"metadata": {"labels": {"a": "b"}}})
        server.admin.delete("pods", "between")
        assert await take(events, 3) == ["MODIFIED before", "MODIFIED between", "DELETED between"]


async def test_a_watch_without_version_begins_with_what_is_there(autojump_clock: MockClock, server: ApiServer) -> None:
    server.admin.create(pod_document("web"))
    async with RawClient.admin(server).watch(PODS) as events:
        assert await take(events, 1) == ["ADDED web"]


async def test_entering_and_leaving_a_selector_are_an_addition_and_a_deletion(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    server.admin.create(pod_document("web"))
    client = RawClient.admin(server)
    async with client.watch(PODS, **OF_NODE_A) as events:
        server.admin.bind("web", "a")
        assert await take(events, 1) == ["ADDED web"]
    async with client.watch(PODS, labelSelector="app=web") as events:
        server.admin.patch("pods", "web", body={"metadata": {"labels": {"app": "web"}}})
        server.admin.patch("pods", "web", body={"metadata": {"labels": {"app": "other"}}})
        assert await take(events, 2) == ["ADDED web", "DELETED web"]


async def test_initial_events_end_with_an_annotated_bookmark(autojump_clock: MockClock, server: ApiServer) -> None:
    for name in ("p1", "p2"):
        server.admin.create(pod_document(name, node="a"))
    server.admin.create(pod_document("elsewhere", node="b"))
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with RawClient.admin(server).watch(PODS, **OF_NODE_A, **options) as events:
        assert await take(events, 2) == ["ADDED p1", "ADDED p2"]
        bookmark = await anext(events)
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert bookmark["object"]["metadata"]["resourceVersion"] == str(server.store.version)
        server.admin.create(pod_document("p3", node="a"))
        assert await take(events, 1) == ["ADDED p3"]


async def test_initial_events_need_a_match(autojump_clock: MockClock, server: ApiServer) -> None:
    answer = await RawClient.admin(server).get(PODS, watch="true", sendInitialEvents="true")
    assert answer.code == 422
    assert "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan" in answer.message


async def test_bookmarks_tell_the_version_of_quiet_times(autojump_clock: MockClock, server: ApiServer) -> None:
    async with RawClient.admin(server).watch(PODS, allowWatchBookmarks="true", timeoutSeconds="90") as events:
        server.admin.create(node_document("a"))
        bookmark = await anext(events)
        assert bookmark["object"]["metadata"]["resourceVersion"] == str(server.store.version)
        assert bookmark["object"]["kind"] == "Pod"


async def test_a_watch_ends_after_its_time(autojump_clock: MockClock, server: ApiServer) -> None:
    started = trio.current_time()
    async with RawClient.admin(server).watch(PODS, timeoutSeconds="300") as events:
        assert [event async for event in events] == []
    assert 300 <= trio.current_time() - started < 301


async def test_a_version_that_is_forgotten_is_answered_with_410(autojump_clock: MockClock, server: ApiServer) -> None:
    old = server.store.version
    server.admin.create(pod_document("web"))
    server.store.compact()
    answer = await RawClient.admin(server).get(PODS, watch="true", resourceVersion=str(old))
    assert (answer.code, answer.document["reason"]) == (410, "Expired")
    assert answer.message == f"too old resource version: {old} ({server.store.version})"


async def test_the_history_is_limited(autojump_clock: MockClock, server: ApiServer) -> None:
    old = server.store.version
    server.admin.create(pod_document("web"))
    for number in range(1001):
        server.admin.patch("pods", "web", body={"metadata": {"labels": {"n": str(number)}}})
    answer = await RawClient.admin(server).get(PODS, watch="true", resourceVersion=str(old))
    assert answer.code == 410


async def test_a_client_that_leaves_ends_its_watch(autojump_clock: MockClock, server: ApiServer) -> None:
    async with RawClient.admin(server).watch(PODS):
        await trio.sleep(0.1)
        assert len(server.watches.watches) == 1
    await trio.sleep(0.1)
    assert len(server.watches.watches) == 0


async def test_a_field_that_cannot_be_selected_by_is_refused(autojump_clock: MockClock, server: ApiServer) -> None:
    answer = await RawClient.admin(server).get(PODS, fieldSelector="spec.containers=x")
    assert (answer.code, answer.message) == (400, "field label not supported: spec.containers")


async def test_an_older_server_does_not_know_initial_events(autojump_clock: MockClock, server: ApiServer) -> None:
    server.admin.create(pod_document("web"))
    client = RawClient.admin(server)
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    server.watches.initial_events = "ignored"
    async with client.watch(PODS, **options) as events:
        assert await take(events, 1) == ["ADDED web"]
        with trio.move_on_after(10) as waiting:
            await anext(events)
        assert waiting.cancelled_caught
    server.watches.initial_events = "refused"
    refused = await client.get(PODS, watch="true", **options)
    assert (refused.code, "unless the WatchList feature gate is enabled" in refused.message) == (422, True)
