"""How spans begin and end, what they lie in, and what they say."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
import trio
import trio.testing

from trikubelet.clock import TrioClock
from trikubelet.tracing.context import SpanContext
from trikubelet.tracing.spans import CURRENT, LONGEST_TEXT, MOST_EVENTS, Span, Tracer, within

EPOCH = 1_767_225_600 * 10**9
CALLER = SpanContext(7, 8, True, "a=b", remote=True)
QUIET = SpanContext(7, 8, False, remote=True)


class Stage:
    """A tracer, and the spans that it has finished."""

    def __init__(self, per_million: int = 1_000_000) -> None:
        self.spans: list[Span] = []
        self.tracer = Tracer(per_million, clock=TrioClock(), rng=Random(1), finish=self.spans.append)

    def start(self, name: str, parent: SpanContext | None = None) -> Span:
        return self.tracer.start(name, scope="test", parent=parent)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_spans_nest_as_blocks_do(autojump_clock: trio.testing.MockClock, stage: Stage) -> None:
    with stage.tracer.span("outer", scope="test") as outer:
        await trio.sleep(1)
        with stage.tracer.span("inner", scope="test", attributes={"a": 1}) as inner:
            await trio.sleep(2)
        sibling = stage.start("sibling")
    sibling.end()
    assert stage.names == ["inner", "outer", "sibling"]
    assert inner.parent == sibling.parent == outer.context
    assert outer.parent is None
    assert len({span.context.trace_id for span in stage.spans}) == 1
    assert len({span.context.span_id for span in stage.spans}) == 3
    assert (outer.began_at, outer.ended_at) == (EPOCH, EPOCH + 3 * 10**9)
    assert (inner.began_at, inner.ended_at) == (EPOCH + 10**9, EPOCH + 3 * 10**9)
    assert inner.attributes == {"a": 1}
    assert CURRENT.get() is None


async def test_tasks_are_in_the_span_that_starts_them(stage: Stage) -> None:
    async def child() -> None:
        with stage.tracer.span("child", scope="test"):
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        with stage.tracer.span("parent", scope="test") as parent:
            nursery.start_soon(child)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(child)
    inside, alone = (span for span in stage.spans if span.name == "child")
    assert inside.parent == parent.context
    assert alone.parent is None


async def test_what_outlives_its_span_belongs_to_the_next_one_around_it(stage: Stage) -> None:
    outer, inner = stage.start("outer"), None
    with within(outer):
        inner = stage.start("inner")
        CURRENT.set(inner)
        inner.end()
        assert stage.start("after").parent == outer.context
        outer.end()
        alone = stage.start("long after")
        assert alone.parent is None
        assert alone.context.trace_id != outer.context.trace_id
        assert alone.links == (inner.context,)


@pytest.mark.parametrize("sampled", [False, True])
async def test_a_request_decides_whether_its_trace_is_recorded(sampled: bool) -> None:
    stage = Stage(per_million=0 if sampled else 1_000_000)
    caller = CALLER if sampled else QUIET
    span = stage.start("served", parent=caller)
    with within(span):
        child = stage.start("child")
        child.end()
    assert {one.context.trace_id for one in (span, child)} == {7}
    assert span.parent == caller
    assert span.context.state == child.context.state == caller.state
    assert not span.context.remote
    assert stage.names == (["child", "served"] if sampled else [])


async def test_what_is_not_recorded_keeps_its_ids_only() -> None:
    stage = Stage(per_million=0)
    with stage.tracer.span("quiet", scope="test", attributes={"a": 1}) as span:
        span.set("b", 2)
        span.add_event("c", {})
        span.fail(ValueError("x"))
    assert span.context.traceparent.endswith("-00")
    assert (span.attributes, span.events, span.error, stage.spans) == ({}, [], None, [])


async def test_one_trace_of_many(stage: Stage) -> None:
    few = Stage(per_million=250_000)
    for _ in range(2000):
        few.start("one").end()
    assert 400 < len(few.spans) < 600


async def test_a_failure_is_told(stage: Stage) -> None:
    with pytest.raises(ValueError, match="went wrong"), stage.tracer.span("fails", scope="test"):
        raise ValueError("it went wrong")
    (span,) = stage.spans
    assert span.error == "it went wrong"
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes == {"exception.type": "ValueError", "exception.message": "it went wrong"}


async def test_what_is_called_off_says_so(stage: Stage) -> None:
    with trio.move_on_after(0), stage.tracer.span("waits", scope="test"):
        await trio.sleep_forever()
    (span,) = stage.spans
    assert span.error == "cancelled"
    assert span.events == []


async def test_it_ends_once(autojump_clock: trio.testing.MockClock, stage: Stage) -> None:
    span = stage.start("one")
    await trio.sleep(5)
    span.end(at=span.began + 1)
    span.end()
    span.set("late", 1)
    assert stage.spans == [span]
    assert span.ended_at == EPOCH + 10**9
    assert span.attributes == {}


async def test_it_may_have_begun_before_it_was_told_of(autojump_clock: trio.testing.MockClock, stage: Stage) -> None:
    began = trio.current_time()
    stage.start("first").end()
    await trio.sleep(3)
    span = stage.tracer.start("late", scope="test", since=began)
    span.end(at=began - 10)
    assert span.began_at == span.ended_at == EPOCH


async def test_a_machine_whose_clock_is_wrong(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await trio.sleep(100)
    clock = TrioClock(datetime(1970, 1, 1, tzinfo=UTC))
    tracer = Tracer(1_000_000, clock=clock, rng=Random(1), finish=lambda _: None)
    span = tracer.start("old", scope="test", since=began)
    span.end()
    assert (span.began_at, span.ended_at) == (0, 100 * 10**9)


async def test_what_strangers_say_is_cut(stage: Stage) -> None:
    span = stage.tracer.start("long", scope="test", attributes={"a": "x" * 10**6})
    span.set("b", "y" * 10**6)
    for _ in range(10 * MOST_EVENTS):
        span.add_event("message", {"c": "z" * 10**6})
    span.fail_with("e" * 10**6)
    assert {len(str(value)) for value in span.attributes.values()} == {LONGEST_TEXT}
    assert len(span.events) == MOST_EVENTS
    assert len(str(span.events[0].attributes["c"])) == len(span.error or "") == LONGEST_TEXT
