"""What a container could write in the place of the keeper's own processes is told from what these write."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.embedded.keeper.reaper import STATUS
from trikubelet.embedded.keeper.reports import PID_SIZE, read_birth, read_report, read_sibling, read_status

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["uid", "gid", "groups", "error", "terminal"]), inner)
    ),
)


@pytest.mark.parametrize(
    ("message", "descriptors"),
    [
        ({"uid": 0, "gid": 4294967294, "groups": [0, 5]}, 0),
        ({"error": "exec: not found"}, 0),
        ({"terminal": True}, 1),
    ],
)
def test_what_the_keepers_processes_say_is_understood(message: dict[str, Any], descriptors: int) -> None:
    assert read_report(json.dumps(message).encode(), descriptors) == message


@pytest.mark.parametrize(
    ("data", "descriptors"),
    [
        (b"x", 0),
        (b"[" * 100_000, 0),
        (b"\xff", 0),
        (b'{"terminal": true}', 0),
        (b'{"terminal": true}', 2),
        (b'{"error": 1}', 0),
        (b'{"uid": true, "gid": 0, "groups": []}', 0),
        (b'{"uid": -1, "gid": 0, "groups": []}', 0),
        (b'{"uid": 0, "gid": 0, "groups": 0}', 0),
        (b'{"uid": 0, "gid": 0, "groups": [], "more": 1}', 0),
    ],
)
def test_anything_else_is_passed_over(data: bytes, descriptors: int) -> None:
    assert read_report(data, descriptors) is None


@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(), st.integers(0, 3))
def test_nothing_is_an_error(data: bytes, descriptors: int) -> None:
    read_report(data, descriptors)


@given(st.binary() | st.integers().map(lambda number: str(number).encode()))
def test_a_birth_is_a_pid_or_a_reason(data: bytes) -> None:
    pid, why = read_birth(data)
    assert (pid > 0) != bool(why)
    assert read_birth(b"17 ") == (17, "")
    assert read_birth(b"0 too many processes") == (0, "too many processes")


@given(st.binary())
def test_a_sibling_is_a_pid_or_a_reason(data: bytes) -> None:
    pid, why = read_sibling(data)
    assert (pid > 0) != bool(why)
    assert read_sibling((17).to_bytes(PID_SIZE, sys.byteorder)) == (17, "")
    assert read_sibling(bytes(PID_SIZE) + b"too many processes\0\0") == (0, "too many processes")


@given(st.binary(max_size=8) | st.integers(-(1 << 31), (1 << 31) - 1).map(STATUS.pack))
def test_a_status_is_one_of_an_end_or_none(data: bytes) -> None:
    status = read_status(data)
    if status is not None:
        os.waitstatus_to_exitcode(status)
    assert read_status(STATUS.pack(3 << 8)) == 3 << 8
    assert read_status(STATUS.pack(9)) == 9
    assert read_status(STATUS.pack(0x137F)) is None
