"""A collector of traces: a gRPC server of this project's own, which keeps the spans that it is sent.

It reads them by the generated messages, which know nothing of how the agent writes them.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import betterproto
import trio
from grpclib import GRPCError, Status

from trikubelet.rpc.grpc import Channel, Server, UnixStream
from trikubelet.rpc.otlp.v1 import (
    AnyValue,
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
    KeyValue,
    Span,
    TraceServiceBase,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from grpclib.const import Handler


@attrs.frozen
class Collected:
    """A span as its collector sees it."""

    scope: str
    resource: dict[str, Any]
    span: Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent(self) -> str:
        """Empty for the first span of a trace."""
        return self.span.parent_span_id.hex()

    @property
    def trace(self) -> str:
        return self.span.trace_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return plain(self.span.attributes)

    @property
    def began(self) -> float:
        """Seconds."""
        return self.span.start_time_unix_nano / 1e9

    @property
    def ended(self) -> float:
        return self.span.end_time_unix_nano / 1e9


class Unread(ExportTraceServiceRequest):
    """One of which nobody looks what is in it."""

    @classmethod
    def FromString(cls, data: bytes) -> Unread:
        return cls()


@attrs.define
class Collector(TraceServiceBase):
    """Keeps what it is sent. It can be made to hang, to refuse, and to take only a part."""

    spans: list[Collected] = attrs.field(factory=list)
    requests: int = 0
    refuses: Status | None = None
    rejects: int = 0
    hangs: bool = False
    away: bool = False
    """Nothing listens."""
    reads: bool = True
    """Else it takes requests and keeps nothing of them: by the generated messages reading costs most of a long test."""

    def __mapping__(self) -> dict[str, Handler]:
        handlers = TraceServiceBase.__mapping__(self)
        return {
            path: handler if self.reads else handler._replace(request_type=Unread) for path, handler in handlers.items()
        }

    async def export(self, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse:
        self.requests += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.refuses is not None:
            raise GRPCError(self.refuses, "not now")
        for of_program in request.resource_spans:
            resource = plain(of_program.resource.attributes)
            for of_scope in of_program.scope_spans:
                self.spans.extend(Collected(of_scope.scope.name, resource, span) for span in of_scope.spans)
        if self.rejects:
            return ExportTraceServiceResponse(ExportTracePartialSuccess(self.rejects, "some are too long"))
        return ExportTraceServiceResponse()

    def named(self, name: str) -> list[Collected]:
        return [one for one in self.spans if one.name == name]

    def only(self, name: str) -> Collected:
        (found,) = self.named(name)
        return found

    def of_trace(self, trace: str) -> list[Collected]:
        """In the order in which they began."""
        return sorted((one for one in self.spans if one.trace == trace), key=lambda one: (one.began, one.ended))

    def children(self, parent: Collected) -> list[Collected]:
        return [one for one in self.of_trace(parent.trace) if one.parent == parent.id]

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Channel]:
        """A channel to it, not entered yet."""
        async with trio.open_nursery() as nursery:
            server = Server([self])

            async def connect() -> UnixStream:
                if self.away:
                    raise OSError("nobody listens")
                ours, theirs = socket.socketpair()
                nursery.start_soon(server.serve_stream, UnixStream(theirs))
                return UnixStream(ours)

            yield Channel(connect, target="the collector")
            nursery.cancel_scope.cancel()


def plain(attributes: list[KeyValue]) -> dict[str, Any]:
    """Attributes as Python's values."""
    return {one.key: value(one.value) for one in attributes}


def value(given: AnyValue) -> Any:
    name, found = betterproto.which_one_of(given, "value")
    assert name, "a value has a type"
    return found


def walk(collector: Collector, span: Collected, depth: int = 0) -> Iterator[tuple[int, Collected]]:
    """A span and all that is in it, with how deep it lies."""
    yield depth, span
    for child in collector.children(span):
        yield from walk(collector, child, depth + 1)
