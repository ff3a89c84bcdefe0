"""Spans, and the tracer that makes them.

A span is begun and ended by the task that does the work; nothing here waits or fails. A span of a trace that is not
recorded keeps its ids, so that others who are asked meanwhile know not to record either, and nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs
import trio

from trikubelet.formats.values import define, frozen
from trikubelet.tracing.context import SpanContext, is_sampled

if TYPE_CHECKING:
    from random import Random

    from trikubelet.clock import WallClock

Value: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, Value]

LONGEST_TEXT: Final = 4096
"""Characters of an attribute: what a stranger sends is not to fill the queue."""
MOST_EVENTS: Final = 128
"""Of one span: a stream of the runtime's has no end."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Kind(enum.IntEnum):
    """OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


@frozen
class SpanEvent:
    """Something that happened in a span. `at` is in nanoseconds since 1970."""

    at: int
    name: str
    attributes: Attributes


class Enclosing(Protocol):
    """What a task may be in."""

    @property
    def context(self) -> SpanContext: ...

    def open_span(self) -> SpanContext | None:
        """The span itself, or the nearest one around it, that has not ended yet."""
        ...


CURRENT: Final[ContextVar[Enclosing | None]] = ContextVar("span", default=None)
"""What this task is in."""


@define(eq=False)
class Span:
    """Something that takes time. Times in nanoseconds since 1970."""

    context: SpanContext
    name: str
    scope: str
    """Which part of the agent tells of it."""
    kind: Kind
    began: float
    """Trio time."""
    began_at: int
    parent: SpanContext | None
    around: Enclosing | None
    attributes: dict[str, Value]
    links: Sequence[SpanContext]
    _finish: Callable[[Span], None]
    events: list[SpanEvent] = attrs.field(factory=list)
    ended_at: int | None = None
    error: str | None = None
    """Why it failed; None when it did not."""

    @property
    def recording(self) -> bool:
        return self.context.sampled and self.ended_at is None

    def open_span(self) -> SpanContext | None:
        """Implements `Enclosing`."""
        if self.ended_at is None:
            return self.context
        return None if self.around is None else self.around.open_span()

    def set(self, name: str, value: Value) -> None:
        if self.recording:
            self.attributes[name] = _cut(value)

    def add_event(self, name: str, attributes: Attributes) -> None:
        if self.recording and len(self.events) < MOST_EVENTS:
            kept = {key: _cut(value) for key, value in attributes.items()}
            self.events.append(SpanEvent(self._at(trio.current_time()), name, kept))

    def fail(self, error: BaseException) -> None:
        """It fails by this. One that was called off says so, and nothing else happened."""
        if isinstance(error, trio.Cancelled):
            self.fail_with("cancelled")
            return
        facts = {"exception.type": type(error).__name__, "exception.message": str(error)}
        self.add_event("exception", facts)
        self.fail_with(str(error) or type(error).__name__)

    def fail_with(self, message: str) -> None:
        if self.recording:
            self.error = message[:LONGEST_TEXT]

    def end(self, at: float | None = None) -> None:
        """End it, now or at that Trio time. Twice does no harm."""
        if self.ended_at is None:
            self.ended_at = self._at(max(trio.current_time() if at is None else at, self.began))
            if self.context.sampled:
                self._finish(self)

    def _at(self, when: float) -> int:
        return self.began_at + round((when - self.began) * 1e9)


class Tracer:
    """Makes spans. `finish` gets each recorded one when it has ended; it must not wait."""

    def __init__(self, per_million: int, *, clock: WallClock, rng: Random, finish: Callable[[Span], None]) -> None:
        """`per_million`: how many of a million traces that begin here are recorded."""
        self.per_million = per_million
        self._clock = clock
        self._rng = rng
        self._finish = finish

    def start(
        self,
        name: str,
        *,
        scope: str,
        kind: Kind = Kind.INTERNAL,
        attributes: Attributes | None = None,
        since: float | None = None,
        context: SpanContext | None = None,
        parent: SpanContext | None = None,
        alone: bool = False,
        links: Sequence[SpanContext] = (),
    ) -> Span:
        """Begin a span in what this task is in.

        `since`: Trio time, by default now. `context`: its ids, when they are known beforehand. `parent`: the span to
        continue instead. `alone`: it begins a trace of its own, whatever the task is in.
        """
        around = None if alone or parent is not None else CURRENT.get()
        parent = parent if around is None else around.open_span()
        if around is not None and parent is None and context is None:
            links = (*links, around.context)
        now = trio.current_time()
        began = now if since is None else min(since, now)
        chosen = context or self._context(parent)
        recorded = {key: _cut(value) for key, value in (attributes or {}).items()} if chosen.sampled else {}
        began_at = max(self._nanoseconds() - round((now - began) * 1e9), 0)  # the wire has no time before 1970
        return Span(chosen, name, scope, kind, began, began_at, parent, around, recorded, links, self._finish)

    @contextmanager
    def span(self, name: str, *, scope: str, attributes: Attributes | None = None) -> Iterator[Span]:
        """A span around the block, which is what its task is in meanwhile. What the block raises is its failure."""
        with within(self.start(name, scope=scope, attributes=attributes)) as span:
            yield span

    def _context(self, parent: SpanContext | None) -> SpanContext:
        span_id = self._rng.getrandbits(64) or 1
        if parent is not None:
            return SpanContext(parent.trace_id, span_id, parent.sampled, parent.state)
        trace_id = self._rng.getrandbits(128) or 1
        return SpanContext(trace_id, span_id, is_sampled(trace_id, self.per_million))

    def _nanoseconds(self) -> int:
        return (self._clock.now() - _EPOCH) // _MICROSECOND * 1000


@contextmanager
def within(span: Span) -> Iterator[Span]:
    """The block is in the span, which ends with it."""
    token = CURRENT.set(span)
    try:
        yield span
    except BaseException as error:
        span.fail(error)
        raise
    finally:
        CURRENT.reset(token)
        span.end()


def _cut(value: Value) -> Value:
    return value[:LONGEST_TEXT] if isinstance(value, str) and len(value) > LONGEST_TEXT else value
