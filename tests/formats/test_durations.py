from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
        ("1m30s", timedelta(seconds=90)),
        ("1h2m3s", timedelta(hours=1, minutes=2, seconds=3)),
        ("1.5h", timedelta(minutes=90)),
        (".5s", timedelta(milliseconds=500)),
        ("1.s", timedelta(seconds=1)),
        ("-2m", timedelta(minutes=-2)),
        ("+3s", timedelta(seconds=3)),
        ("300ms", timedelta(milliseconds=300)),
        ("10us", timedelta(microseconds=10)),
        ("10µs", timedelta(microseconds=10)),
        ("2000ns", timedelta(microseconds=2)),
    ],
)
def test_a_go_duration_is_read_exactly(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "5", "1d", "s", "1m 30s", "one", "-", "1e3s", "0x1s", "300y", "9999999h", "1ns"])
def test_what_go_does_not_read_or_time_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(hours=1), "1h0m0s"),
        (timedelta(milliseconds=100), "100ms"),
        (timedelta(seconds=-1.5), "-1.5s"),
        (timedelta(microseconds=1500), "1.5ms"),
    ],
)
def test_durations_are_written_as_go_writes_them(value: timedelta, text: str) -> None:
    assert format_duration(value) == text


@given(st.timedeltas(min_value=timedelta(days=-3000), max_value=timedelta(days=3000)))
def test_what_is_written_reads_back(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("5", "expected a duration such as \"1m30s\" (units us, ms, s, m, h), got '5'"),
        ("1ns", "expected a duration in whole microseconds, got '1ns'"),
    ],
)
def test_what_is_expected_is_what_is_taken(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_duration(text)
    assert parse_duration("5000ns") == timedelta(microseconds=5)
