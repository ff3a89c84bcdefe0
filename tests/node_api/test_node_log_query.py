from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.http.messages import HTTPError
from trikubelet.node_api.node_log_query import (
    JournalOptions,
    NodeLogQuery,
    journal_command,
    known_to_journal,
    read_node_log_query,
)


def read(text: str) -> NodeLogQuery | None:
    return read_node_log_query(parse_qs(text, keep_blank_values=True))


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", None),
        ("other=1", None),
        ("query=foo", NodeLogQuery(("foo",))),
        ("query=foo&query=&query=bar", NodeLogQuery(("foo", "bar"))),
        ("query=/a.log", NodeLogQuery(file="/a.log")),
        ("query=foo&tailLines=&boot=", NodeLogQuery(("foo",))),
        ("query=foo&tailLines=0&boot=0", NodeLogQuery(("foo",), options=JournalOptions(tail_lines=0, boot=0))),
        ("query=foo&tailLines=100000", NodeLogQuery(("foo",), options=JournalOptions(tail_lines=100_000))),
        (
            "query=foo&sinceTime=2026-01-01T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
            NodeLogQuery(
                ("foo",),
                options=JournalOptions(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
            ),
        ),
        (f"query={'x' * 256}", NodeLogQuery(("x" * 256,))),
        ("query=a&pattern=(", NodeLogQuery(("a",), options=JournalOptions(pattern="("))),
    ],
)
def test_what_is_wanted(text: str, query: NodeLogQuery | None) -> None:
    assert read(text) == query


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("query=", 400, "query cannot be empty"),
        ("query=%20%20", 400, 'query: Invalid value: ["  "]: query cannot be empty'),
        ("query=a&sinceTime=yesterday", 400, 'sinceTime: Invalid value: "yesterday": invalid time format'),
        ("query=a&untilTime=1", 400, "untilTime"),
        ("query=a&tailLines=x", 400, "tailLines"),
        ("query=a&boot=1.5", 400, "boot"),
        ("query=&boot=x", 400, "[query: Invalid value"),
        ("boot=0", 406, "query: Required value: cannot be empty with options"),
        ("query=a&boot=1", 406, "boot: Invalid value: 1: must be less than 1"),
        ("query=a&tailLines=-1", 406, "must be between 0 and 100000, inclusive"),
        ("query=a&tailLines=100001", 406, "must be between"),
        ("query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z", 406, "must be after `sinceTime`"),
        ("query=a&pattern=" + "(" * 513 + ")" * 512, 406, "pattern: Too long: may not be more than 1024 characters"),
        ("query=a&pattern=x%00", 406, "null byte"),
        ("query=a%20b", 406, 'query: Invalid value: "a b": input contains unsupported characters'),
        ("query=a%0Ab", 406, "unsupported characters"),
        ("query=a;reboot", 406, "unsupported characters"),
        ("query=$(x)", 406, "unsupported characters"),
        ("query=%C3%A4", 406, "unsupported characters"),
        (f"query={'x' * 257}", 406, "length must be less than 256"),
        ("query=a&query=b&query=c&query=d&query=e", 406, "Too many: 5: must have at most 4 items"),
        ("query=a&query=/b", 406, "cannot specify a file and service"),
        ("query=/a&query=/b", 406, "cannot specify more than one file"),
        ("query=/a&tailLines=3", 406, "cannot specify file with options"),
    ],
)
def test_what_cannot_be_wanted(text: str, status: int, message: str) -> None:
    with pytest.raises(HTTPError) as caught:
        read(text)
    assert caught.value.status == status
    assert message in caught.value.message


@pytest.mark.fuzz
@given(st.lists(st.text(max_size=20), min_size=1, max_size=3), st.text(max_size=30))
def test_nothing_that_a_stranger_says_is_an_argument_by_itself(names: list[str], pattern: str) -> None:
    try:
        query = read_node_log_query({"query": names, "pattern": [pattern]})
    except HTTPError:
        return
    assert query is not None
    command = journal_command(query.services, query.options)
    known = ("--utc", "--no-pager", "--case-sensitive=false", "--output=short-precise")
    for argument in command[1:]:
        assert argument in known or argument.startswith(("--unit=", "--grep="))


@pytest.mark.parametrize(
    ("service", "known"), [("ssh", True), ("sh", False), ("foo@1", True), ("ssh.service", False), ("", False)]
)
def test_a_service_is_known_by_its_whole_name(service: str, known: bool) -> None:
    assert known_to_journal(service, b"ssh.service\nfoo@1.service\ninit.scope\n") is known
