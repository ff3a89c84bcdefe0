"""Spans of requests to the node's API."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
import trio

from trikubelet.clock import TrioClock
from trikubelet.http.messages import (
    AnyResponse,
    HTTPError,
    Peer,
    Request,
    Response,
    StreamResponse,
    Takeover,
    UpgradeResponse,
    Writer,
)
from trikubelet.http.routing import Router
from trikubelet.tracing.context import SpanContext
from trikubelet.tracing.requests import traced
from trikubelet.tracing.spans import CURRENT, Kind, Span, Tracer

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALLER = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True, "a=b,c=d", remote=True)
LOGS = "/containerLogs/{namespace}/{pod}/{container}"


class Stage:
    """Routes whose requests are spans."""

    def __init__(self, per_million: int = 1_000_000, *, public: bool = False) -> None:
        self.spans: list[Span] = []
        self.inside: list[SpanContext | None] = []
        """What handlers were in, when they were."""
        self.tracer = Tracer(per_million, clock=TrioClock(), rng=Random(1), finish=self.spans.append)
        router = Router()
        for pattern, handler in (
            (LOGS, self.stream),
            ("/pods", self.whole),
            ("/bad", self.refuse),
            ("/broken", self.fail),
            ("/exec/{namespace}/{pod}/{uid}/{container}", self.upgrade),
        ):
            router.add("GET", pattern, handler)
        self.handler = traced(router, self.tracer, public=public)

    def note(self) -> None:
        current = CURRENT.get()
        self.inside.append(None if current is None else current.open_span())

    async def whole(self, _: Request) -> AnyResponse:
        self.note()
        return Response(b"{}")

    async def stream(self, _: Request) -> AnyResponse:
        async def produce(writer: Writer) -> None:
            self.note()
            await writer.write(b"x")

        return StreamResponse(produce)

    async def upgrade(self, _: Request) -> AnyResponse:
        async def handle(_: Takeover) -> None:
            self.note()

        return UpgradeResponse(handle)

    async def refuse(self, _: Request) -> AnyResponse:
        async with trio.open_nursery():
            raise HTTPError(404, "no such pod")

    async def fail(self, _: Request) -> AnyResponse:
        raise ValueError("a bug")

    async def ask(self, path: str, **fields: Any) -> AnyResponse:
        return await self.handler(Request("GET", path, **fields))


class Discards:
    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_request_is_told_of_as_by_the_kubelet() -> None:
    stage = Stage()
    await stage.ask(
        "/pods",
        headers={"host": "node1:10250", "user-agent": "curl/8", "x-forwarded-for": "192.0.2.7, 10.0.0.1"},
        peer=Peer("192.0.2.1:4711", encrypted=True),
    )
    (span,) = stage.spans
    assert (span.name, span.kind, span.parent, span.error) == ("/pods", Kind.SERVER, None, None)
    assert span.attributes == {
        "server.address": "kubelet",
        "http.request.method": "GET",
        "url.scheme": "https",
        "server.port": 10250,
        "network.peer.address": "192.0.2.1",
        "network.peer.port": 4711,
        "user_agent.original": "curl/8",
        "client.address": "192.0.2.7",
        "url.path": "/pods",
        "network.protocol.version": "1.1",
        "http.route": "/pods",
        "http.response.status_code": 200,
    }
    assert stage.inside == [span.context]


async def test_what_a_command_is_asked_with_is_not_told() -> None:
    stage = Stage()
    path = "/exec/ns/pod/uid/main"
    response = await stage.ask(path, target=f"{path}?command=secret", query={"command": ["secret"]})
    assert isinstance(response, UpgradeResponse)
    await response.handle(None)  # type: ignore[arg-type]
    (span,) = stage.spans
    assert "secret" not in str(span)


@pytest.mark.parametrize(
    ("address", "peer", "port"),
    [("192.0.2.1:80", "192.0.2.1", 80), ("[2001:db8::1]:80", "2001:db8::1", 80), ("", None, None), ("[", None, None)],
)
async def test_who_asks(address: str, peer: str | None, port: int | None) -> None:
    stage = Stage()
    await stage.ask("/pods", peer=Peer(address))
    (span,) = stage.spans
    found = span.attributes
    assert (found.get("network.peer.address"), found.get("network.peer.port")) == (peer, port)
    assert found.get("client.address") == peer


async def test_the_route_is_named_as_the_kubelet_names_it() -> None:
    stage = Stage()
    response = await stage.ask("/containerLogs/ns/pod%20x/main")
    assert stage.spans == [], "it is not sent yet"
    assert isinstance(response, StreamResponse)
    await response.produce(Discards())
    (span,) = stage.spans
    assert span.name == span.attributes["http.route"] == "/containerLogs/{podNamespace}/{podID}/{containerName}"
    assert span.attributes["url.path"] == "/containerLogs/ns/pod x/main"
    assert stage.inside == [span.context]
    assert CURRENT.get() is None


async def test_a_request_without_a_route() -> None:
    stage = Stage()
    with pytest.raises(HTTPError):
        await stage.handler(Request("BREW", "/coffee"))
    (span,) = stage.spans
    assert span.name == "BREW"
    assert (span.attributes["http.request.method"], span.attributes["http.request.method_original"]) == ("GET", "BREW")
    assert span.attributes["http.response.status_code"] == 404
    assert span.error is None, "it is the client's mistake"


async def test_a_connection_that_is_taken_over_lasts() -> None:
    stage = Stage()
    response = await stage.ask("/exec/ns/pod/uid/main")
    assert stage.spans == []
    assert isinstance(response, UpgradeResponse)
    await response.handle(None)  # type: ignore[arg-type]
    (span,) = stage.spans
    assert stage.inside == [span.context]


async def test_what_a_handler_raises() -> None:
    stage = Stage()
    with pytest.raises((HTTPError, ExceptionGroup)):
        await stage.ask("/bad")
    with pytest.raises(ValueError, match="a bug"):
        await stage.ask("/broken")
    refused, failed = stage.spans
    assert (refused.attributes["http.response.status_code"], refused.error) == (404, None)
    assert (failed.attributes["http.response.status_code"], failed.error) == (500, "a bug")


HEADERS = {"headers": {"traceparent": TRACEPARENT}, "raw_headers": (("tracestate", "a=b"), ("tracestate", "c=d"))}


async def test_a_request_continues_the_trace_that_it_comes_from() -> None:
    stage = Stage(per_million=0)
    await stage.ask("/pods")
    assert stage.spans == []
    await stage.ask("/pods", **HEADERS)
    (span,) = stage.spans
    assert span.parent == CALLER
    assert (span.context.trace_id, span.context.state) == (CALLER.trace_id, "a=b,c=d")


@pytest.mark.parametrize("per_million", [0, 1_000_000])
async def test_nobody_makes_the_node_record_who_need_not_say_who_he_is(per_million: int) -> None:
    stage = Stage(per_million, public=True)
    await stage.ask("/pods", **HEADERS)
    if not per_million:
        assert stage.spans == []
        return
    (span,) = stage.spans
    assert span.parent is None
    assert span.context.trace_id != CALLER.trace_id
    assert list(span.links) == [CALLER]


async def test_each_request_has_a_span_of_its_own() -> None:
    """Connections are kept, and their tasks with them."""
    stage = Stage()
    for _ in range(3):
        await stage.ask("/pods")
    assert {span.parent for span in stage.spans} == {None}
    assert len({attrs.astuple(span.context) for span in stage.spans}) == 3
