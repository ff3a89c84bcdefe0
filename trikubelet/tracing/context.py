"""Which trace a span belongs to, how that travels in headers (W3C Trace Context), which traces are recorded. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from trikubelet.formats.values import frozen

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
SAMPLED: Final = 0x01
MILLION: Final = 1_000_000
_RANDOM_BITS: Final = 56
"""The lowest bits of a trace's id are random wherever ids are made (W3C Trace Context, level 2)."""
_LONGEST_STATE: Final = 512
"""Characters: more need not be passed on."""
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION: Final = "ff"


@frozen
class SpanContext:
    """What others need to know of a span to continue its trace."""

    trace_id: int
    span_id: int
    sampled: bool
    """Whether the trace is recorded."""
    state: str = ""
    """W3C's tracestate, as it came."""
    remote: bool = False
    """The span is another program's."""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    def headers(self) -> list[tuple[str, str]]:
        """What to send along, so that the other side can continue the trace."""
        state = [(TRACESTATE, self.state)] if self.state else []
        return [(TRACEPARENT, self.traceparent), *state]


def parse_traceparent(text: str, state: str = "") -> SpanContext | None:
    """The span that a request comes from; None for anything but a valid traceparent. Never raises."""
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == _INVALID_VERSION or (version == "00" and more is not None):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    kept = state if len(state) <= _LONGEST_STATE else ""
    return SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & SAMPLED), kept, remote=True)


def is_sampled(trace_id: int, per_million: int) -> bool:
    """Whether a trace that begins here is recorded: so many of a million, and for each id always the same answer."""
    randomness = trace_id & ((1 << _RANDOM_BITS) - 1)
    return randomness * MILLION < per_million << _RANDOM_BITS


def pod_context(uid: str, per_million: int) -> SpanContext:
    """The first span of the trace that tells of a pod's start and end: every agent that has the pod finds the same.

    The trace's id is the pod's UID without its dashes, where that is sixteen bytes in hexadecimal digits.
    """
    digest = hashlib.blake2b(uid.encode(), digest_size=24).digest()
    digits = uid.replace("-", "").lower()
    plain = re.fullmatch(r"[0-9a-f]{32}", digits) is not None and int(digits, 16) != 0
    trace_id = int(digits, 16) if plain else int.from_bytes(digest[:16])
    span_id = int.from_bytes(digest[16:]) or 1
    return SpanContext(trace_id, span_id, is_sampled(trace_id, per_million))
