"""What goes wrong on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.apiserver.builders import pod_document
from tests.apiserver.raw_client import RawClient

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.apiserver.server import ApiServer

PODS = "/api/v1/namespaces/default/pods"


async def test_every_third_request_fails(autojump_clock: MockClock, server: ApiServer) -> None:
    server.faults.fail(500, every=3)
    client = RawClient.admin(server)
    assert [(await client.get(PODS)).code for _ in range(6)] == [200, 200, 500, 200, 200, 500]
    server.faults.clear()
    assert [(await client.get(PODS)).code for _ in range(3)] == [200, 200, 200]


async def test_a_fault_meets_only_what_is_selected(autojump_clock: MockClock, server: ApiServer) -> None:
    server.faults.on(verb="create", resource="pods").fail(500, times=1)
    server.faults.when(lambda call: call.name == "web").too_many(retry_after=7)
    client = RawClient.admin(server)
    assert (await client.get(PODS)).code == 200
    assert (await client.post(PODS, pod_document("web"))).code == 500
    assert (await client.post(PODS, pod_document("web"))).code == 201
    throttled = await client.get(f"{PODS}/web")
    assert throttled.code == 429
    assert throttled.headers["retry-after"] == "7"
    assert throttled.document["details"]["retryAfterSeconds"] == 7


async def test_an_answer_comes_late(autojump_clock: MockClock, server: ApiServer) -> None:
    server.faults.delay(20.0)
    started = trio.current_time()
    await RawClient.admin(server).get(PODS)
    assert trio.current_time() - started >= 20.0


async def test_a_lost_reply_is_a_write_that_happened(autojump_clock: MockClock, server: ApiServer) -> None:
    server.faults.on(verb="create").lose_reply(times=1)
    client = RawClient.admin(server)
    with pytest.raises(trio.BrokenResourceError):
        await client.post(PODS, pod_document("web"))
    assert (await client.post(PODS, pod_document("web"))).code == 409
    assert [answered.code for answered in server.calls] == [0, 409]


async def test_a_lost_request_is_a_write_that_did_not_happen(autojump_clock: MockClock, server: ApiServer) -> None:
    server.faults.lose_request(times=1)
    client = RawClient.admin(server)
    with pytest.raises(trio.BrokenResourceError):
        await client.post(PODS, pod_document("web"))
    assert (await client.post(PODS, pod_document("web"))).code == 201


async def test_an_outage_breaks_connections_and_refuses_new_ones(autojump_clock: MockClock, server: ApiServer) -> None:
    client = RawClient.admin(server)
    async with client.watch(PODS) as events:
        server.faults.unreachable()
        with pytest.raises(trio.BrokenResourceError):
            await anext(events)
    with pytest.raises(ConnectionRefusedError):
        await client.get(PODS)
    server.faults.back()
    assert (await client.get(PODS)).code == 200


async def test_watches_expire_with_an_event(autojump_clock: MockClock, server: ApiServer) -> None:
    version = server.store.version
    async with RawClient.admin(server).watch(PODS, resourceVersion=str(version)) as events:
        server.admin.create(pod_document("web"))
        server.faults.expire_watches()
        told = [event async for event in events]
    assert [event["type"] for event in told] == ["ADDED", "ERROR"]
    assert told[1]["object"]["code"] == 410
    assert told[1]["object"]["reason"] == "Expired"


async def test_watches_are_held_back_and_tell_everything_later(autojump_clock: MockClock, server: ApiServer) -> None:
    async with RawClient.admin(server).watch(PODS, resourceVersion="0") as events:
        await trio.sleep(0.1)
        server.faults.hold_watches()
        server.admin.create(pod_document("web"))
        with trio.move_on_after(60) as waiting:
            await anext(events)
        assert waiting.cancelled_caught
    async with RawClient.admin(server).watch(PODS, resourceVersion="0") as events:
        server.faults.release_watches()
        assert (await anext(events))["type"] == "ADDED"


async def test_a_share_of_requests_fails_the_same_way_with_the_same_seed(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    server.faults.fail(500, share=0.5)
    client = RawClient.admin(server)
    codes = [(await client.get(PODS)).code for _ in range(20)]
    assert 4 < codes.count(500) < 16


async def test_a_server_on_a_port_refuses_connections_during_an_outage() -> None:
    from tests.apiserver.server import open_api_server
    from trikubelet.clock import SystemClock

    async with open_api_server(SystemClock()) as server, trio.open_nursery() as nursery:
        port = await nursery.start(server.serve_tcp)
        (await trio.open_tcp_stream("127.0.0.1", port)).socket.close()
        server.faults.unreachable()
        with trio.fail_after(5):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                except OSError:
                    break
                await stream.aclose()
        server.faults.back()
        with trio.fail_after(5):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                except OSError:
                    await trio.sleep(0.01)
                    continue
                await stream.aclose()
                break
        nursery.cancel_scope.cancel()
