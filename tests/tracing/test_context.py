"""Ids of traces, how they travel, and which traces are recorded."""

from __future__ import annotations

import uuid
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.tracing.context import SpanContext, is_sampled, parse_traceparent, pod_context

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
ids = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f" 00-{TRACE}-{SPAN}-01\t", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_what_a_request_comes_from(text: str, sampled: bool) -> None:
    found = parse_traceparent(text, "vendor=x")
    assert found == SpanContext(int(TRACE, 16), int(SPAN, 16), sampled, "vendor=x", remote=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{TRACE}-{SPAN}-01-" + "x" * 100_000,
        "\u0660\u0660-" + "\u0660" * 32 + f"-{SPAN}-01",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_long_state_is_not_passed_on() -> None:
    found = parse_traceparent(f"00-{TRACE}-{SPAN}-01", "x" * 513)
    assert found is not None
    assert found.headers() == [("traceparent", f"00-{TRACE}-{SPAN}-01")]


@given(*ids, st.booleans(), st.sampled_from(["", "a=b,c=d"]))
def test_what_is_sent_is_what_is_understood(trace_id: int, span_id: int, sampled: bool, state: str) -> None:
    sent = dict(SpanContext(trace_id, span_id, sampled, state).headers())
    found = parse_traceparent(sent["traceparent"], sent.get("tracestate", ""))
    assert found == SpanContext(trace_id, span_id, sampled, state, remote=True)


@given(st.integers(0, 2**128 - 1))
def test_of_a_million_traces_none_or_all(trace_id: int) -> None:
    assert not is_sampled(trace_id, 0)
    assert is_sampled(trace_id, 1_000_000)


@given(st.integers(0, 2**128 - 1), st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_more_sampling_records_what_less_sampling_does(trace_id: int, one: int, other: int) -> None:
    if is_sampled(trace_id, min(one, other)):
        assert is_sampled(trace_id, max(one, other))


def test_uids_are_sampled_as_evenly_as_other_ids() -> None:
    """A UID has the same bits in some places, in the half that others decide by too."""
    rng = Random(1)
    uids = [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(4000)]
    for per_million in (100_000, 500_000, 900_000):
        share = sum(pod_context(uid, per_million).sampled for uid in uids) / len(uids)
        assert share == pytest.approx(per_million / 1e6, abs=0.03)


def test_a_pods_trace_is_found_by_its_uid() -> None:
    uid = "0f0e0d0c-0b0a-4908-8706-050403020100"
    assert f"{pod_context(uid, 0).trace_id:032x}" == uid.replace("-", "")
    assert pod_context(uid, 0) == pod_context(uid, 0)
    assert pod_context(uid, 10**6).sampled
    static = "d41d8cd98f00b204e9800998ecf8427e"
    assert f"{pod_context(static, 0).trace_id:032x}" == static


@given(st.text())
def test_any_uid_has_a_trace_of_its_own(uid: str) -> None:
    context, other = pod_context(uid, 0), pod_context(uid + "x", 0)
    assert parse_traceparent(context.traceparent) is not None
    assert (context.trace_id, context.span_id) != (other.trace_id, other.span_id)
