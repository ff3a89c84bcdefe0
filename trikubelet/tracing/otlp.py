"""From spans to the bytes of an `ExportTraceServiceRequest`.

They are written here, and not by the messages of `rpc/otlp`: these take 2.4 ms for a span with three attributes, and
a pod that starts has fifteen spans. What is written here takes a fiftieth of that; the tests read it by those messages,
and hold each field against them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from trikubelet.rpc.cri.wire import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT, write_varint
from trikubelet.tracing.context import SAMPLED, SpanContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.tracing.spans import Attributes, Span, SpanEvent, Value

_FIXED64: Final = struct.Struct("<Q")
_FIXED32: Final = struct.Struct("<I")
_DOUBLE: Final = struct.Struct("<d")
_KNOWN_WHETHER_REMOTE: Final = 0x100
_REMOTE: Final = 0x200
_ERROR: Final = 2


def resource_spans(resource: Attributes, spans: Mapping[str, Iterable[bytes]]) -> bytes:
    """A whole request: encoded spans by the part of the program that tells of them."""
    scopes = b"".join(_field(2, _scope_spans(scope, encoded)) for scope, encoded in spans.items())
    return _field(1, _field(1, _attributes(1, resource)) + scopes)


def _scope_spans(scope: str, spans: Iterable[bytes]) -> bytes:
    return _field(1, _text(1, scope)) + b"".join(_field(2, span) for span in spans)


def encode_span(span: Span) -> bytes:
    """One that has ended."""
    context, parent = span.context, span.parent
    assert span.ended_at is not None
    parts = [
        _field(1, context.trace_id.to_bytes(16)),
        _field(2, context.span_id.to_bytes(8)),
        _text(3, context.state),
        b"" if parent is None else _field(4, parent.span_id.to_bytes(8)),
        _text(5, span.name),
        _number(6, span.kind),
        _fixed64(7, span.began_at),
        _fixed64(8, span.ended_at),
        _attributes(9, span.attributes),
        *(_field(11, _event(event)) for event in span.events),
        *(_field(13, _link(link)) for link in span.links),
        b"" if span.error is None else _field(15, _text(2, span.error) + _number(3, _ERROR)),
        _fixed32(16, _flags(context.sampled, parent)),
    ]
    return b"".join(parts)


def _event(event: SpanEvent) -> bytes:
    return _fixed64(1, event.at) + _text(2, event.name) + _attributes(3, event.attributes)


def _link(link: SpanContext) -> bytes:
    ids = _field(1, link.trace_id.to_bytes(16)) + _field(2, link.span_id.to_bytes(8))
    return ids + _text(3, link.state) + _fixed32(6, _flags(link.sampled, link))


def _flags(sampled: bool, parent: SpanContext | None) -> int:
    """W3C's flags, and whether the parent (or the link) is another program's."""
    remote = _REMOTE if parent is not None and parent.remote else 0
    return (SAMPLED if sampled else 0) | _KNOWN_WHETHER_REMOTE | remote


def _attributes(number: int, attributes: Attributes) -> bytes:
    return b"".join(_field(number, _text(1, key) + _field(2, _any(value))) for key, value in attributes.items())


def _any(value: Value) -> bytes:
    """An AnyValue. Its field is sent though it is 0 or empty, else nobody could tell of which type it is."""
    match value:
        case str():
            return _field(1, value.encode(errors="replace"))
        case bool():
            return write_varint(2 << 3 | VARINT) + write_varint(value)
        case int():
            return write_varint(3 << 3 | VARINT) + write_varint(value)
        case float():
            return write_varint(4 << 3 | FIXED64) + _DOUBLE.pack(value)


def _field(number: int, data: bytes) -> bytes:
    return write_varint(number << 3 | LENGTH_DELIMITED) + write_varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode(errors="replace")) if text else b""


def _number(number: int, value: int) -> bytes:
    return write_varint(number << 3 | VARINT) + write_varint(value)


def _fixed64(number: int, value: int) -> bytes:
    return write_varint(number << 3 | FIXED64) + _FIXED64.pack(value)


def _fixed32(number: int, value: int) -> bytes:
    return write_varint(number << 3 | FIXED32) + _FIXED32.pack(value)
