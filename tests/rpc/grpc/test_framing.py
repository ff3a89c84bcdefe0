from __future__ import annotations

from itertools import pairwise

import pytest
from grpclib import GRPCError, Status
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.rpc.grpc.framing import MessageReader, frame_message


@given(messages=st.lists(st.binary(max_size=40), max_size=8), cuts=st.lists(st.integers(0, 400), max_size=20))
def test_messages_survive_any_cut_of_their_bytes(messages: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(frame_message(message, 100) for message in messages)
    reader = MessageReader(100)
    bounds = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    received = [message for begin, end in pairwise(bounds) for message in reader.feed(wire[begin:end])]
    assert received == messages
    assert not reader.mid_message


@given(message=st.binary(max_size=40), cut=st.integers(1, 44))
def test_a_reader_knows_that_it_is_within_a_message(message: bytes, cut: int) -> None:
    wire = frame_message(message, 100)
    reader = MessageReader(100)
    reader.feed(wire[:cut])
    assert reader.mid_message == (cut < len(wire))


def test_a_message_over_the_limit_is_refused_as_soon_as_its_length_is_known() -> None:
    reader = MessageReader(10)
    with pytest.raises(GRPCError, match=r"received message larger than max \(11 vs\. 10\)") as caught:
        reader.feed(b"\0\0\0\0\x0b")
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


def test_a_message_of_exactly_the_limit_passes() -> None:
    assert MessageReader(10).feed(frame_message(b"x" * 10, 10)) == [b"x" * 10]


def test_a_compressed_message_is_refused() -> None:
    with pytest.raises(GRPCError) as caught:
        MessageReader(10).feed(b"\1\0\0\0\1x")
    assert caught.value.status is Status.UNIMPLEMENTED


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(GRPCError, match=r"trying to send message larger than max \(3 vs\. 2\)") as caught:
        frame_message(b"abc", 2)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
