from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.kube_client.stage import Script, event, pod, staged, stream_of
from trikubelet.http.messages import AnyResponse, Request, json_response
from trikubelet.kube_client.errors import ApiUnreachable
from trikubelet.kube_client.types import PODS, PatchType

if TYPE_CHECKING:
    from trio.testing import MockClock


async def serve(request: Request) -> AnyResponse:
    return stream_of(event("ADDED", pod()), forever=True) if "watch" in request.query else json_response(pod())


async def test_requests_follow_each_other_on_one_connection(autojump_clock: MockClock) -> None:
    async with staged(serve, "http/1.1") as (client, access):
        for _ in range(5):
            await client.get(PODS, "a", "ns")
        assert access.connects == 1
        assert client.statistics().protocol == "HTTP/1.1"


async def test_a_watch_has_a_connection_of_its_own_and_closes_it(autojump_clock: MockClock) -> None:
    async with staged(serve, "http/1.1") as (client, access):
        async with client.watch(PODS, timeout=300) as events:
            assert (await anext(events)).type == "ADDED"
            await client.get(PODS, "a", "ns")
            await client.get(PODS, "a", "ns")
            assert access.connects == 2
        await trio.testing.wait_all_tasks_blocked()
        assert len(access.connections) == 1


@pytest.mark.filterwarnings("error")
async def test_a_watch_that_is_cancelled_closes_its_connection(autojump_clock: MockClock) -> None:
    async with staged(serve, "http/1.1") as (client, access):
        with trio.move_on_after(1):
            async with client.watch(PODS, timeout=300) as events:
                async for _ in events:
                    pass
        await trio.testing.wait_all_tasks_blocked()
        assert access.connections == []


async def test_requests_at_the_same_time_have_connections_each_and_some_are_kept(autojump_clock: MockClock) -> None:
    async def slow(request: Request) -> AnyResponse:
        await trio.sleep(1)
        return json_response(pod())

    async with staged(slow, "http/1.1") as (client, access):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(client.get, PODS, "a", "ns")
        await trio.testing.wait_all_tasks_blocked()
        assert access.connects == 50
        assert 0 < len(access.connections) <= 33


async def test_a_connection_that_the_server_has_closed_is_replaced(autojump_clock: MockClock) -> None:
    async with staged(serve, "http/1.1") as (client, access):
        await client.get(PODS, "a", "ns")
        access.cut_all()
        await trio.testing.wait_all_tasks_blocked()
        await client.get(PODS, "a", "ns")
        assert access.connects == 2


async def test_a_server_that_changes_to_http2_is_met_in_http2(autojump_clock: MockClock) -> None:
    async with staged(serve, "http/1.1") as (client, access):
        await client.get(PODS, "a", "ns")
        access.protocol = "h2"
        access.cut_all()
        await trio.testing.wait_all_tasks_blocked()
        await client.get(PODS, "a", "ns")
        assert client.statistics().protocol == "HTTP/2"


async def test_a_refused_connection_is_no_sent_request(autojump_clock: MockClock) -> None:
    async with staged(Script(json_response(pod())), "http/1.1") as (client, access):
        await client.get(PODS, "a", "ns")
        access.reachable = False
        client.drop_connections()
        with pytest.raises(ApiUnreachable, match="Connection refused") as caught:
            await client.patch(PODS, "a", "ns", PatchType.MERGE, {})
        assert not caught.value.sent
