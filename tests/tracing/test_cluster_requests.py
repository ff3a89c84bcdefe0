"""Spans of requests to the API server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.kube_client.stage import Protocol, Script, event, pod, staged, status, stream_of
from trikubelet.agent.traced_cluster import TracedTransport
from trikubelet.clock import TrioClock
from trikubelet.http.messages import AnyResponse, Handler, Request, json_response
from trikubelet.kube_client.errors import ApiStatusError, ApiUnreachable
from trikubelet.kube_client.types import PODS
from trikubelet.tracing.context import parse_traceparent
from trikubelet.tracing.spans import Kind, Span, Tracer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.kube_client.client import HttpApiClient

both = pytest.mark.parametrize("protocol", ["h2", "http/1.1"])


@asynccontextmanager
async def traced(
    handler: Handler, spans: list[Span], protocol: Protocol = "h2", *, timeout: float = 30.0
) -> AsyncIterator[HttpApiClient]:
    tracer = Tracer(1_000_000, clock=TrioClock(), rng=Random(1), finish=spans.append)
    wrap = partial(TracedTransport, tracer=tracer)
    async with staged(handler, protocol, timeout=timeout, wrap=wrap) as (client, _):
        yield client


@both
async def test_a_request_is_told_of_as_by_the_kubelet(
    protocol: Protocol, autojump_clock: trio.testing.MockClock
) -> None:
    spans: list[Span] = []
    server = Script(json_response(pod()))
    async with traced(server, spans, protocol) as client:
        await client.get(PODS, "a", "ns")
    (span,) = spans
    assert (span.name, span.kind, span.error) == ("HTTP GET", Kind.CLIENT, None)
    assert span.attributes["http.request.method"] == "GET"
    assert str(span.attributes["url.full"]).endswith("/api/v1/namespaces/ns/pods/a")
    assert span.attributes["server.address"]
    assert span.attributes["http.response.status_code"] == 200
    told = parse_traceparent(server.last.headers["traceparent"])
    assert told is not None
    assert (told.trace_id, told.span_id, told.sampled) == (span.context.trace_id, span.context.span_id, True)


@both
async def test_a_refusal_is_an_error(protocol: Protocol, autojump_clock: trio.testing.MockClock) -> None:
    spans: list[Span] = []
    async with traced(Script(status(404, "NotFound")), spans, protocol) as client:
        with pytest.raises(ApiStatusError):
            await client.get(PODS, "a", "ns")
    (span,) = spans
    assert (span.attributes["http.response.status_code"], span.attributes["error.type"]) == (404, "404")
    assert span.error == ""


async def test_each_attempt_has_its_span(autojump_clock: trio.testing.MockClock) -> None:
    spans: list[Span] = []

    async def hang(_: Request) -> AnyResponse:
        await trio.sleep_forever()
        raise AssertionError

    async with traced(hang, spans, timeout=3) as client:
        with pytest.raises(ApiUnreachable):
            await client.get(PODS, "a", "ns")
    assert [span.error for span in spans] == ["cancelled"]


@both
async def test_a_watch_lasts_as_long_as_it_is_read(protocol: Protocol, autojump_clock: trio.testing.MockClock) -> None:
    spans: list[Span] = []
    server = Script(stream_of(event("ADDED", pod())))
    async with traced(server, spans, protocol) as client, client.watch(PODS, timeout=300) as events:
        async for _ in events:
            assert spans == []
            break
    (span,) = spans
    assert "watch=" in str(span.attributes["url.full"])
