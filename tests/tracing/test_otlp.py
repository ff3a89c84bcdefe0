"""What goes over the wire: read back by generated messages, which share nothing with what writes it."""

from __future__ import annotations

from typing import Any

import betterproto
from hypothesis import given
from hypothesis import strategies as st

from tests.tracing.collector import plain
from trikubelet.rpc.otlp.v1 import (
    ExportTraceServiceRequest,
    SpanEvent,
    SpanSpanKind,
    StatusStatusCode,
)
from trikubelet.rpc.otlp.v1 import Span as Message
from trikubelet.tracing import spans
from trikubelet.tracing.context import SpanContext
from trikubelet.tracing.otlp import encode_span, resource_spans
from trikubelet.tracing.spans import Kind, Span

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
values = st.one_of(
    texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=True)
)
attributes = st.dictionaries(texts, values, max_size=4)
times = st.integers(0, 2**64 - 1)
contexts = st.builds(
    SpanContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans(), texts, st.booleans()
)
events = st.builds(spans.SpanEvent, times, texts, attributes)


@st.composite
def ended(draw: st.DrawFn) -> Span:
    return Span(
        context=draw(contexts),
        name=draw(texts),
        scope=draw(texts),
        kind=draw(st.sampled_from(Kind)),
        began=0.0,
        began_at=draw(times),
        parent=draw(st.none() | contexts),
        around=None,
        attributes=draw(attributes),
        links=draw(st.lists(contexts, max_size=3)),
        finish=lambda _: None,
        events=draw(st.lists(events, max_size=3)),
        ended_at=draw(times),
        error=draw(st.none() | texts),
    )


@given(ended())
def test_every_field_arrives(span: Span) -> None:
    read = Message().parse(encode_span(span))
    assert int.from_bytes(read.trace_id) == span.context.trace_id
    assert int.from_bytes(read.span_id) == span.context.span_id
    assert (len(read.trace_id), len(read.span_id)) == (16, 8)
    assert read.trace_state == span.context.state
    assert read.parent_span_id == (b"" if span.parent is None else span.parent.span_id.to_bytes(8))
    assert (read.name, read.kind) == (span.name, SpanSpanKind(span.kind))
    assert (read.start_time_unix_nano, read.end_time_unix_nano) == (span.began_at, span.ended_at)
    assert typed(plain(read.attributes)) == typed(span.attributes)
    assert [said(event) for event in read.events] == [(one.at, one.name, typed(one.attributes)) for one in span.events]
    assert [(int.from_bytes(one.trace_id), int.from_bytes(one.span_id), one.trace_state) for one in read.links] == [
        (one.trace_id, one.span_id, one.state) for one in span.links
    ]
    assert [one.flags for one in read.links] == [flags(one.sampled, one.remote) for one in span.links]
    assert read.flags == flags(span.context.sampled, span.parent is not None and span.parent.remote)
    assert read.status.message == (span.error or "")
    assert (read.status.code == StatusStatusCode.STATUS_CODE_ERROR) == (span.error is not None)


def said(event: SpanEvent) -> tuple[int, str, Any]:
    return event.time_unix_nano, event.name, typed(plain(event.attributes))


def typed(given: Any) -> dict[str, tuple[type, Any]]:
    """`True` is not 1 here."""
    return {key: (type(value), value) for key, value in given.items()}


def flags(sampled: bool, remote: bool) -> int:
    return sampled | 0x100 | (0x200 if remote else 0)


@given(st.lists(ended(), max_size=4), attributes)
def test_a_request_has_all_spans_by_their_scope(given: list[Span], resource: dict[str, Any]) -> None:
    by_scope: dict[str, list[bytes]] = {}
    for span in given:
        by_scope.setdefault(span.scope, []).append(encode_span(span))
    (read,) = ExportTraceServiceRequest().parse(resource_spans(resource, by_scope)).resource_spans
    assert typed(plain(read.resource.attributes)) == typed(resource)
    assert {one.scope.name: len(one.spans) for one in read.scope_spans} == {
        scope: len(encoded) for scope, encoded in by_scope.items()
    }


def test_names_on_the_wire_are_the_published_ones() -> None:
    """By the messages that the repository has: nothing is sent that they do not know."""
    span = Span(
        SpanContext(1, 2, True, "s"), "n", "c", Kind.CLIENT, 0.0, 1, SpanContext(3, 4, True, remote=True), None,
        {"k": "v"}, [SpanContext(5, 6, True)], lambda _: None, [spans.SpanEvent(1, "e", {"k": 1})], 2, "error",
    )  # fmt: skip
    read = Message().parse(encode_span(span))
    for message in (read, read.status, read.attributes[0], read.attributes[0].value, read.events[0], read.links[0]):
        assert message._unknown_fields == b""
        assert isinstance(message, betterproto.Message)
