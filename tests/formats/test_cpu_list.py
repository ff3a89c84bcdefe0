"""Linux's lists of CPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.cpu_list import format_cpu_list, lowest, members, parse_cpu_list, set_of

_SETS = st.sets(st.integers(0, 1023), max_size=40)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", []),
        ("5", [5]),
        ("0-2", [0, 1, 2]),
        ("1-1", [1]),
        ("3,0-1", [0, 1, 3]),
        ("0-5,34,46-48", [*range(6), 34, 46, 47, 48]),
    ],
)
def test_a_list_is_read(text: str, cpus: list[int]) -> None:
    assert list(members(parse_cpu_list(text))) == cpus


@pytest.mark.parametrize("text", ["a", "1,", "-1", "1-", "3-1", "1-2-3", " 1", "1,,2", "0-99999999"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_cpu_list(text)


@given(_SETS)
def test_a_set_is_written_and_read_back(cpus: set[int]) -> None:
    assert set(members(parse_cpu_list(format_cpu_list(set_of(cpus))))) == cpus


@given(_SETS)
def test_the_list_is_the_shortest_one(cpus: set[int]) -> None:
    text = format_cpu_list(set_of(cpus))
    ends = [int(end) for part in text.split(",") if text for end in {part.partition("-")[0], part.rpartition("-")[2]}]
    assert all(end - 1 not in cpus or end + 1 not in cpus for end in ends)
    assert text.count(",") == max(sum(1 for cpu in cpus if cpu - 1 not in cpus) - 1, 0)


@given(_SETS, st.integers(0, 50))
def test_the_lowest_members_are_taken(cpus: set[int], count: int) -> None:
    assert list(members(lowest(set_of(cpus), count))) == sorted(cpus)[:count]
