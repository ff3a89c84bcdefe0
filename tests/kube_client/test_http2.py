from __future__ import annotations

import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
import trustme
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset, WindowUpdated
from hyperframe.frame import GoAwayFrame, RstStreamFrame

from tests.apiserver.http2 import serve_http2
from tests.kube_client.stage import Script, StageAccess, event, pod, staged, stream_of
from tests.rpc.grpc.peer import Peer
from trikubelet.http.messages import AnyResponse, Request, StreamResponse, Writer, json_response
from trikubelet.kube_client.client import HttpApiClient, open_client
from trikubelet.kube_client.errors import ApiUnreachable
from trikubelet.kube_client.types import PODS, PatchType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from trio.testing import MockClock

REPLY = [(":status", "200"), ("content-type", "application/json")]
BODY = json.dumps(pod()).encode()


class PeerAccess:
    """Connects to plain h2, which does what the test does."""

    server = "https://api.test"
    user_agent = "t"

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self._new = trio.Event()

    async def connect(self) -> tuple[trio.abc.Stream, str]:
        ours, theirs = trio.testing.memory_stream_pair()
        peer = Peer(theirs, client_side=False)
        await peer.start()
        self.peers.append(peer)
        self._new.set()
        return ours, "h2"

    async def peer(self, number: int = 0) -> Peer:
        while len(self.peers) <= number:
            await self._new.wait()
            self._new = trio.Event()
        return self.peers[number]

    async def headers(self) -> Mapping[str, str]:
        return {}

    def rejected(self, headers: Mapping[str, str]) -> None: ...

    def on_change(self, listener: Callable[[], None]) -> None: ...


@asynccontextmanager
async def against_peer() -> AsyncIterator[tuple[HttpApiClient, PeerAccess, trio.Nursery]]:
    access = PeerAccess()
    async with open_client(access) as client, trio.open_nursery() as nursery:
        yield client, access, nursery
        nursery.cancel_scope.cancel()


async def patch(client: HttpApiClient) -> None:
    await client.patch(PODS, "a", "ns", PatchType.MERGE, {"x": 1})


async def reply(peer: Peer, stream_id: int) -> None:
    peer.h2.send_headers(stream_id, REPLY)
    peer.h2.send_data(stream_id, BODY, end_stream=True)
    await peer.flush()


async def test_a_request_is_what_plain_http2_understands(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):
        nursery.start_soon(patch, client)
        peer = await access.peer()
        asked = await peer.expect(RequestReceived)
        headers = dict(asked.headers)
        assert headers[b":method"] == b"PATCH"
        assert headers[b":scheme"] == b"https"
        assert headers[b":authority"] == b"api.test"
        assert headers[b":path"] == b"/api/v1/namespaces/ns/pods/a"
        assert b"host" not in headers
        assert (await peer.expect(DataReceived)).data == b'{"x":1}'
        await peer.expect(StreamEnded)
        await reply(peer, asked.stream_id)
        await trio.testing.wait_all_tasks_blocked()
        assert client.statistics().streams == 0
        assert client.health.reachable


async def test_a_cancelled_request_is_reset(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):

        async def impatient() -> None:
            with trio.move_on_after(1):
                await patch(client)

        nursery.start_soon(impatient)
        peer = await access.peer()
        asked = await peer.expect(RequestReceived)
        assert (await peer.expect(StreamReset)).stream_id == asked.stream_id
        assert client.health.reachable


async def test_a_watch_that_is_left_is_reset(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):

        async def watch_one() -> None:
            async with client.watch(PODS, timeout=300) as events:
                await anext(events)

        nursery.start_soon(watch_one)
        peer = await access.peer()
        asked = await peer.expect(RequestReceived)
        peer.h2.send_headers(asked.stream_id, REPLY)
        peer.h2.send_data(asked.stream_id, event("ADDED", pod()))
        await peer.flush()
        assert (await peer.expect(StreamReset)).stream_id == asked.stream_id


async def test_requests_that_the_server_did_not_look_at_are_sent_again_even_writes(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):
        nursery.start_soon(patch, client)
        peer = await access.peer()
        first = await peer.expect(RequestReceived)
        await peer.send_frame(RstStreamFrame(first.stream_id, error_code=7))
        second = await peer.expect(RequestReceived)
        await peer.send_frame(GoAwayFrame(0, last_stream_id=first.stream_id))
        other = await access.peer(1)
        third = await other.expect(RequestReceived)
        assert dict(third.headers)[b":method"] == b"PATCH"
        assert second.stream_id != first.stream_id
        await reply(other, third.stream_id)
        await trio.testing.wait_all_tasks_blocked()
        assert client.health.reachable
        assert client.statistics().streams == 0


async def test_refusals_have_an_end(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):

        @nursery.start_soon
        async def refuse() -> None:
            peer = await access.peer()
            while True:
                asked = await peer.expect(RequestReceived)
                await peer.send_frame(RstStreamFrame(asked.stream_id, error_code=7))

        with pytest.raises(ApiUnreachable, match="REFUSED_STREAM") as caught:
            await patch(client)
        assert not caught.value.sent


async def test_a_connection_that_goes_away_finishes_what_it_took(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):
        nursery.start_soon(patch, client)
        peer = await access.peer()
        first = await peer.expect(RequestReceived)
        await peer.expect(StreamEnded)
        await peer.send_frame(GoAwayFrame(0, last_stream_id=first.stream_id))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(patch, client)
        other = await access.peer(1)
        second = await other.expect(RequestReceived)
        await other.expect(StreamEnded)
        await reply(peer, first.stream_id)
        await reply(other, second.stream_id)
        await trio.testing.wait_all_tasks_blocked()
        assert client.health.reachable
        assert client.statistics().connections == 1


async def test_a_peer_that_does_not_answer_a_ping_is_given_up(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):
        ended: list[float] = []

        @nursery.start_soon
        async def watch() -> None:
            start = trio.current_time()
            with pytest.raises(ApiUnreachable, match="no answer to a ping within 15 s"):
                async with client.watch(PODS, timeout=3000) as events:
                    await anext(events)
            ended.append(trio.current_time() - start)

        peer = await access.peer()
        asked = await peer.expect(RequestReceived)
        peer.h2.send_headers(asked.stream_id, REPLY)
        await peer.flush()
        await trio.sleep(100)
        assert ended == [pytest.approx(45)]
        assert not client.health.reachable


async def test_a_silent_watch_stays_open_while_the_peer_answers_pings(autojump_clock: MockClock) -> None:
    async def quiet(request: Request) -> AnyResponse:
        async def produce(writer: Writer) -> None:
            await writer.write(b"")
            await trio.sleep(1000)
            await writer.write(event("ADDED", pod()))

        return StreamResponse(produce)

    async with staged(quiet) as (client, access), client.watch(PODS, timeout=2000) as events:
        assert (await anext(events)).type == "ADDED"
        assert access.connects == 1


async def test_abandoned_streams_do_not_use_up_the_connection(autojump_clock: MockClock) -> None:
    """What the watches leave unread, or arrives after they were reset, is twice the connection's window."""
    pieces = (event("ADDED", pod()) + b" " * 2**15, b" " * 2**15)

    async def serve(request: Request) -> AnyResponse:
        return stream_of(*pieces, forever=True) if "watch" in request.query else json_response(pod())

    async with staged(serve) as (client, access):

        async def abandon(times: int) -> None:
            for _ in range(times):
                async with client.watch(PODS, timeout=300) as events:
                    await anext(events)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(abandon, 200)
        await client.get(PODS, "a", "ns")
        assert access.connects == 1
        assert client.statistics().streams == 0


async def test_hundreds_of_watches_need_few_connections(autojump_clock: MockClock) -> None:
    async def serve(request: Request) -> AnyResponse:
        return stream_of(event("ADDED", pod()), forever=True) if "watch" in request.query else json_response(pod())

    async with staged(serve, max_streams=100) as (client, access):
        told = 0
        all_told = trio.Event()

        async def watch() -> None:
            nonlocal told
            async with client.watch(PODS, timeout=300) as events:
                await anext(events)
                told += 1
                if told == 300:
                    all_told.set()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(watch)
            await all_told.wait()
            assert access.connects == 3
            await client.get(PODS, "a", "ns")
            assert access.connects == 4
            nursery.cancel_scope.cancel()
        assert client.statistics().streams == 0


async def test_a_watch_that_nobody_reads_holds_up_only_itself(autojump_clock: MockClock) -> None:
    async def serve(request: Request) -> AnyResponse:
        return stream_of(*[b" " * 2**20] * 20, forever=True) if "watch" in request.query else json_response(pod())

    async with staged(serve) as (client, _), client.watch(PODS, timeout=300):
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            await client.get(PODS, "a", "ns")


async def test_a_large_body_waits_for_the_servers_window(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):
        body = {"x": "y" * 100_000}
        nursery.start_soon(client.patch, PODS, "a", "ns", PatchType.MERGE, body)
        peer = await access.peer()
        asked = await peer.expect(RequestReceived)
        received = 0
        while received < 65_535:
            received += len((await peer.expect(DataReceived)).data)
        await trio.testing.wait_all_tasks_blocked()
        peer.h2.increment_flow_control_window(100_000)
        peer.h2.increment_flow_control_window(100_000, asked.stream_id)
        await peer.flush()
        while received < 100_008:
            received += len((await peer.expect(DataReceived)).data)
        assert received == 100_008


async def test_what_is_read_is_granted_back(autojump_clock: MockClock) -> None:
    async with against_peer() as (client, access, nursery):

        async def watch() -> None:
            async with client.watch(PODS, timeout=300) as events:
                await anext(events)

        nursery.start_soon(watch)
        peer = await access.peer()
        asked = await peer.expect(RequestReceived)
        peer.h2.send_headers(asked.stream_id, REPLY)
        for _ in range(200):
            peer.h2.send_data(asked.stream_id, b"\n" * 2**14)
        await peer.flush()
        assert (await peer.expect(WindowUpdated)).delta > 0


async def test_a_server_that_speaks_something_else_is_told_of(autojump_clock: MockClock) -> None:
    class Wrong(PeerAccess):
        async def connect(self) -> tuple[trio.abc.Stream, str]:
            ours, theirs = trio.testing.memory_stream_pair()
            await theirs.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return ours, "h2"

    async with open_client(Wrong()) as client:
        with pytest.raises(ApiUnreachable, match="does not speak HTTP/2") as caught:
            await patch(client)
    assert not caught.value.sent


async def test_a_server_that_says_nothing_is_given_up(autojump_clock: MockClock) -> None:
    class Mute(PeerAccess):
        async def connect(self) -> tuple[trio.abc.Stream, str]:
            return trio.testing.memory_stream_pair()[0], "h2"

    async with open_client(Mute()) as client:
        with pytest.raises(ApiUnreachable, match="not say a word of HTTP/2 within 10 s"):
            await patch(client)


async def test_calls_that_wait_for_one_connection_share_the_attempt(autojump_clock: MockClock) -> None:
    async with staged(Script(json_response(pod()))) as (client, access), trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(patch, client)
        await trio.testing.wait_all_tasks_blocked()
        assert access.connects == 1


async def test_it_goes_over_tls(autojump_clock: MockClock) -> None:
    ca = trustme.CA()
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours = ssl.create_default_context()
    ca.issue_cert("api.test").configure_cert(theirs)
    ca.configure_trust(ours)
    for context in (ours, theirs):
        context.set_alpn_protocols(["h2"])

    class Tls(StageAccess):
        async def connect(self) -> tuple[trio.abc.Stream, str]:
            near, far = trio.testing.memory_stream_pair()
            server = trio.SSLStream(far, theirs, server_side=True, https_compatible=True)
            nursery.start_soon(serve_http2, server, self._handler)
            stream = trio.SSLStream(near, ours, server_hostname="api.test", https_compatible=True)
            await stream.do_handshake()
            return stream, stream.selected_alpn_protocol() or ""

    async def serve(request: Request) -> AnyResponse:
        return stream_of(event("ADDED", pod()), forever=True) if "watch" in request.query else json_response(pod())

    async with trio.open_nursery() as nursery:
        async with open_client(Tls(nursery, serve, "h2", 250)) as client, client.watch(PODS, timeout=300) as events:
            assert (await anext(events)).type == "ADDED"
            async with trio.open_nursery() as calls:
                for _ in range(20):
                    calls.start_soon(patch, client)
            assert client.statistics().protocol == "HTTP/2"
        nursery.cancel_scope.cancel()
