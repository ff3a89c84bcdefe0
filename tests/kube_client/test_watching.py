from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.kube_client.stage import Protocol, Script, event, pod, staged, status, stream_of
from trikubelet.http.messages import AnyResponse, Request, Response, StreamResponse, Writer
from trikubelet.kube_client.errors import ApiAnswerError, ApiStatusError, ApiUnreachable
from trikubelet.kube_client.types import PODS, Undecodable
from trikubelet.kube_client.watching import LineReader

if TYPE_CHECKING:
    from trio.testing import MockClock

both = pytest.mark.parametrize("protocol", ["h2", "http/1.1"])


# Lines.


@given(lines=st.lists(st.binary(min_size=1).map(lambda data: b"x" + data.replace(b"\n", b" "))), data=st.data())
def test_lines_come_out_however_the_bytes_arrive(lines: list[bytes], data: st.DataObject) -> None:
    rest = b"\n".join(lines) + (b"\n" if lines else b"")
    reader = LineReader()
    found = []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        reader.feed(rest[:size])
        rest = rest[size:]
        while (line := reader.next_line()) is not None:
            found.append(line)
    assert found == lines
    assert not reader.mid_line


def test_blank_lines_are_nothing() -> None:
    reader = LineReader()
    reader.feed(b"\n\r\n  \na\n\n ")
    assert reader.next_line() == b"a"
    assert reader.next_line() is None
    assert not reader.mid_line
    reader.feed(b"b")
    assert reader.mid_line


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    reader = LineReader(limit=10)
    reader.feed(b"1234567890")
    assert reader.next_line() is None
    reader.feed(b"1")
    with pytest.raises(ValueError, match="more than 10 bytes"):
        reader.next_line()


# Events.


@both
async def test_a_watch_asks_for_bookmarks_and_tells_changes(protocol: Protocol, autojump_clock: MockClock) -> None:
    server = Script(
        stream_of(
            event("ADDED", pod(managedFields=[{"manager": 1}])),
            event("MODIFIED", pod(resourceVersion="8")) + event("DELETED", pod(resourceVersion="9"))[:20],
            event("DELETED", pod(resourceVersion="9"))[20:],
            event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "10"}}),
        )
    )
    async with (
        staged(server, protocol) as (client, _),
        client.watch(PODS, "ns", field_selector="spec.nodeName=n", resource_version="7", timeout=300.7) as events,
    ):
        told = [(event.type, event.object.metadata.resource_version) async for event in events]
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert told == [("ADDED", "7"), ("MODIFIED", "8"), ("DELETED", "9"), ("BOOKMARK", "10")]
    assert server.last.path == "/api/v1/namespaces/ns/pods"
    assert server.last.query == {
        "watch": ["true"],
        "allowWatchBookmarks": ["true"],
        "fieldSelector": ["spec.nodeName=n"],
        "resourceVersion": ["7"],
        "timeoutSeconds": ["300"],
    }
    assert server.last.headers["accept-encoding"] == "identity"


async def test_initial_events_end_with_a_bookmark_that_says_so(autojump_clock: MockClock) -> None:
    metadata = {"resourceVersion": "10", "annotations": {"k8s.io/initial-events-end": "true"}}
    server = Script(stream_of(event("ADDED", pod()), event("BOOKMARK", {"kind": "Pod", "metadata": metadata})))
    async with (
        staged(server) as (client, _),
        client.watch(PODS, send_initial_events=True, timeout=300) as events,
    ):
        assert [event.initial_events_end async for event in events] == [False, True]
    assert server.last.query["sendInitialEvents"] == ["true"]
    assert server.last.query["resourceVersionMatch"] == ["NotOlderThan"]


async def test_a_server_that_refuses_a_watch_is_an_error_on_entering(autojump_clock: MockClock) -> None:
    async with staged(Script(status(410, "Expired", "too old resource version: 1 (5)"))) as (client, _):
        with pytest.raises(ApiStatusError) as caught:
            async with client.watch(PODS, resource_version="1", timeout=300):
                raise AssertionError
        assert caught.value.expired


async def test_a_server_that_does_not_answer_a_watch_is_given_up_at_the_deadline(autojump_clock: MockClock) -> None:
    async def hang(request: Request) -> AnyResponse:
        await trio.sleep_forever()
        raise AssertionError

    async with staged(hang, timeout=7) as (client, _):
        start = trio.current_time()
        with pytest.raises(ApiUnreachable, match="no answer within 7 s"):
            async with client.watch(PODS, timeout=300):
                raise AssertionError
        assert trio.current_time() - start == pytest.approx(7)


async def test_an_error_event_ends_the_watch_with_what_it_says(autojump_clock: MockClock) -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (5)"}
    async with (
        staged(Script(stream_of(event("ADDED", pod()), event("ERROR", gone), event("ADDED", pod())))) as (client, _),
        client.watch(PODS, timeout=300) as events,
    ):
        await anext(events)
        with pytest.raises(ApiStatusError, match="too old resource version") as caught:
            await anext(events)
        assert caught.value.expired
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_what_is_no_change_of_this_kind_is_skipped(autojump_clock: MockClock) -> None:
    lines = [
        event("RENAMED", pod("x")),
        event("ADDED", {"kind": "Secret", "metadata": {"name": "y"}}),
        event("ADDED", pod("z")),
    ]
    async with staged(Script(stream_of(*lines))) as (client, _), client.watch(PODS, timeout=300) as events:
        assert [event.object.metadata.name async for event in events] == ["z"]


async def test_an_object_that_cannot_be_read_does_not_end_the_watch(autojump_clock: MockClock) -> None:
    broken = pod("broken", generation="many")
    async with (
        staged(Script(stream_of(event("MODIFIED", broken), event("ADDED", pod("z"))))) as (client, _),
        client.watch(PODS, timeout=300) as events,
    ):
        first = await anext(events)
        assert isinstance(first.object, Undecodable)
        assert (first.object.metadata.name, first.object.metadata.uid) == ("broken", "uid-broken")
        assert first.object.problems[0].path == "metadata.generation"
        assert (await anext(events)).object.metadata.name == "z"


@pytest.mark.parametrize("line", [b"<html>\n", b"[]\n", b'{"type": 1}\n', json.dumps(pod()).encode() + b"\n"])
async def test_what_is_no_watch_is_an_error(line: bytes, autojump_clock: MockClock) -> None:
    async with staged(Script(stream_of(line))) as (client, _), client.watch(PODS, timeout=300) as events:
        with pytest.raises(ApiAnswerError):
            await anext(events)
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@both
async def test_a_watch_whose_connection_breaks_is_lost(protocol: Protocol, autojump_clock: MockClock) -> None:
    async with (
        staged(Script(stream_of(event("ADDED", pod()), forever=True)), protocol) as (client, access),
        client.watch(PODS, timeout=300) as events,
    ):
        await anext(events)
        access.cut_all()
        with pytest.raises(ApiUnreachable):
            await anext(events)
        assert not client.health.reachable


@both
async def test_half_an_event_is_a_lost_connection(protocol: Protocol, autojump_clock: MockClock) -> None:
    async with (
        staged(Script(stream_of(event("ADDED", pod())[:30])), protocol) as (client, _),
        client.watch(PODS, timeout=300) as events,
    ):
        with pytest.raises(ApiUnreachable, match="in the middle of an event"):
            await anext(events)


@both
async def test_a_watch_that_the_server_does_not_end_is_left(protocol: Protocol, autojump_clock: MockClock) -> None:
    async with (
        staged(Script(stream_of(event("ADDED", pod()), forever=True)), protocol) as (client, _),
        client.watch(PODS, timeout=300) as events,
    ):
        start = trio.current_time()
        assert [event.type async for event in events] == ["ADDED"]
        assert trio.current_time() - start == pytest.approx(310, abs=1)
        assert client.health.reachable


@both
async def test_a_cancelled_wait_for_an_event_loses_none(protocol: Protocol, autojump_clock: MockClock) -> None:
    async def produce(writer: Writer) -> None:
        await writer.write(event("ADDED", pod("a"))[:10])
        await trio.sleep(10)
        await writer.write(event("ADDED", pod("a"))[10:])

    async with (
        staged(Script(StreamResponse(produce)), protocol) as (client, _),
        client.watch(PODS, timeout=300) as events,
    ):
        if protocol == "h2":
            with trio.move_on_after(5) as scope:
                await anext(events)
            assert scope.cancelled_caught
        assert (await anext(events)).object.metadata.name == "a"


async def test_an_event_that_never_ends_is_refused(autojump_clock: MockClock) -> None:
    async with (
        staged(Script(stream_of(*[b"x" * 2**20] * 9))) as (client, _),
        client.watch(PODS, timeout=300) as events,
    ):
        with pytest.raises(ApiAnswerError, match="more than 8388608 bytes"):
            await anext(events)


async def test_a_page_of_a_proxy_is_no_watch(autojump_clock: MockClock) -> None:
    answer: Any = Response(b"<html>login</html>", content_type="text/html")
    async with staged(Script(answer)) as (client, _), client.watch(PODS, timeout=300) as events:
        with pytest.raises(ApiUnreachable, match="in the middle of an event"):
            await anext(events)
