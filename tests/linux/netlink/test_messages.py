"""What goes to the kernel can be read again, and no answer, however broken, does more than be refused."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.linux.netlink import links, nftables, routes
from trikubelet.linux.netlink.messages import (
    NLMSG_DONE,
    NLMSG_ERROR,
    MalformedMessageError,
    Message,
    Request,
    attribute,
    decode_attribute_list,
    decode_error,
    decode_messages,
    decode_text,
    encode_request,
    nested,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = st.integers(0, 0x3FFF)
VALUES = st.binary(max_size=64)
DECODERS: list[Callable[[Message], object]] = [
    decode_error,
    links.decode_link,
    routes.decode_address,
    routes.decode_route,
    nftables.decode_table_name,
    nftables.decode_chain,
    nftables.decode_rule,
    nftables.decode_elements,
]
ANSWERS = [NLMSG_ERROR, NLMSG_DONE, 16, 20, 24, *(10 << 8 | each for each in (0, 3, 6, 12))]
"""Kinds that the decoders look into."""


@given(st.lists(st.tuples(KINDS, VALUES)))
def test_attributes_come_back(attributes: list[tuple[int, bytes]]) -> None:
    assert decode_attribute_list(b"".join(attribute(kind, value) for kind, value in attributes)) == attributes


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), VALUES), min_size=1))
def test_messages_come_back(messages: list[tuple[int, bytes]]) -> None:
    data = b"".join(encode_request(Request(kind, body), at) for at, (kind, body) in enumerate(messages))
    assert [(each.kind, each.body, each.sequence) for each in decode_messages(data)] == [
        (kind, body, at) for at, (kind, body) in enumerate(messages)
    ]


@pytest.mark.fuzz
@given(st.binary())
def test_bytes_that_are_no_messages(data: bytes) -> None:
    try:
        for message in decode_messages(data):
            assert len(message.body) <= len(data)
    except MalformedMessageError:
        pass


@pytest.mark.fuzz
@given(st.sampled_from(ANSWERS), st.integers(0, 0xFFFF), st.binary())
def test_no_answer_is_more_than_refused(kind: int, flags: int, body: bytes) -> None:
    for decode in DECODERS:
        with suppress(MalformedMessageError):
            decode(Message(kind, flags, 1, body))


@pytest.mark.fuzz
@given(st.sampled_from(ANSWERS), st.lists(st.tuples(st.integers(0, 30), VALUES)), st.sampled_from([4, 8, 12, 16]))
def test_no_attributes_are_more_than_refused(kind: int, attributes: list[tuple[int, bytes]], header: int) -> None:
    body = bytes(header) + b"".join(attribute(each, value) for each, value in attributes)
    for decode in DECODERS:
        with suppress(MalformedMessageError):
            decode(Message(kind, 0, 1, body))


def test_a_message_that_promises_more_than_came() -> None:
    with pytest.raises(MalformedMessageError, match="a message of 64 bytes, where 16 are left"):
        decode_messages(struct.pack("=IHHII", 64, 2, 0, 1, 0))


def test_an_attribute_too_long_for_its_length() -> None:
    with pytest.raises(ValueError, match="has 65536 bytes, at most 65531 fit"):
        attribute(1, bytes(65536))


def test_an_error_with_the_kernels_words() -> None:
    quoted = struct.pack("=IHHII", 16, 16, 0, 1, 0)
    body = struct.pack("=i", -22) + quoted + text(1, "no such mode")
    assert decode_error(Message(NLMSG_ERROR, 0x300, 1, body)) == (22, "no such mode")


def test_an_error_that_quotes_the_whole_request() -> None:
    quoted = struct.pack("=IHHII", 24, 16, 0, 1, 0) + bytes(8)
    body = struct.pack("=i", -22) + quoted + text(1, "no such mode")
    assert decode_error(Message(NLMSG_ERROR, 0x200, 1, body)) == (22, "no such mode")


def test_an_acknowledgement() -> None:
    assert decode_error(Message(NLMSG_ERROR, 0x100, 1, bytes(20))) == (0, "")


def test_a_key_of_parts_is_named_for_people() -> None:
    made = nftables.make_map(
        nftables.INET, "t", "ports", [nftables.PROTOCOL, nftables.PORT], [nftables.ADDRESS4, nftables.PORT], 1
    )
    found = dict(decode_attribute_list(made.body[4:]))
    assert decode_text(found[1]) == "t"
    assert found[4] == struct.pack("!I", 12 << 6 | 13)
    assert found[5] == struct.pack("!I", 8)
    assert found[7] == struct.pack("!I", 8)


def test_many_elements_take_several_messages() -> None:
    elements = [nftables.Element(struct.pack("!I", at), b"\0\0\0\1", "namespace/name") for at in range(1000)]
    requests = nftables.add_elements(nftables.INET, "t", "m", elements)
    read = [element for each in requests for element in nftables.decode_elements(Message(each.kind, 0, 1, each.body))]
    assert len(requests) == 4
    assert read == elements
    assert {each.comment for each in read} == {"namespace/name"}


def test_a_comment_is_cut_between_characters() -> None:
    (new, *_) = nftables.replace_table(nftables.INET, "t", "é" * 100)
    userdata = dict(decode_attribute_list(new.body[4:]))[6]
    assert userdata == bytes([0, 127]) + "é".encode() * 63 + b"\0"


def test_nested_attributes_are_marked() -> None:
    assert nested(1, b"") == struct.pack("=HH", 4, 0x8001)
    assert decode_attribute_list(nested(1, b"")) == [(1, b"")]
