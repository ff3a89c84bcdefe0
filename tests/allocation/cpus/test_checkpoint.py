"""`cpu_manager_state`: the rows of the kubelet's `state_checkpoint_test.go`. All are of the policy "none"."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.allocation.cpus.machines import table
from trikubelet.allocation.cpus.checkpoint import from_bytes, to_bytes
from trikubelet.allocation.cpus.state import CpuState
from trikubelet.formats.cpu_list import parse_cpu_list
from trikubelet.formats.go_checkpoint import GoCheckpointError

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_SETS = st.integers(0, 2**70)
_STATES = st.builds(
    CpuState,
    _SETS,
    st.dictionaries(_NAMES, st.dictionaries(_NAMES, _SETS, min_size=1, max_size=3), max_size=3),
    st.dictionaries(_NAMES, _SETS, max_size=3),
)


def _state(row: dict[str, Any]) -> CpuState:
    return CpuState(
        parse_cpu_list(row["shared"]),
        {uid: {name: parse_cpu_list(cpus) for name, cpus in its.items()} for uid, its in row["assigned"].items()},
        {uid: parse_cpu_list(cpus) for uid, cpus in row.get("pods", {}).items()},
    )


@pytest.mark.parametrize("row", table("restore"))
def test_a_file_is_read_or_refused(row: dict[str, Any]) -> None:
    containers = {number: (uid, name) for number, (uid, name) in row["containers"].items()}
    if row["error"]:
        with pytest.raises(GoCheckpointError):
            from_bytes(row["content"].encode(), "none", containers, pod_level=row["gate"])
    else:
        assert from_bytes(row["content"].encode(), "none", containers, pod_level=row["gate"]) == _state(row)


@pytest.mark.parametrize("row", table("store"))
def test_a_state_is_written_and_read_back(row: dict[str, Any]) -> None:
    assert from_bytes(to_bytes("none", _state(row)), "none", {}) == _state(row)


@pytest.mark.parametrize("row", [row for row in table("restore") if not row["error"] and not row["containers"]])
def test_a_state_has_the_kubelets_checksum(row: dict[str, Any]) -> None:
    wire = json.loads(row["content"])
    if wire["checksum"] != 1694838852:  # version 1, which is not written
        written = json.loads(to_bytes("none", _state(row), pod_level="podEntries" in wire))
        assert written["checksum"] == wire["checksum"]


def test_the_file_is_the_kubelets_to_the_byte() -> None:
    state = CpuState(0b1110, {"pod": {"container2": 0b1110, "container1": 0b1110000}})
    assert to_bytes("none", state) == (
        b'{"policyName":"none","defaultCpuSet":"1-3",'
        b'"entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":3610638499}'
    )
    assert b"entries" not in to_bytes("static", CpuState(0b1))


def test_a_file_of_another_policy_is_refused() -> None:
    with pytest.raises(GoCheckpointError, match='of the policy "static"'):
        from_bytes(to_bytes("static", CpuState(1)), "none", {})


def test_containers_of_version_1_have_to_be_known() -> None:
    row = next(row for row in table("restore") if row["containers"])
    with pytest.raises(GoCheckpointError, match="unknown"):
        from_bytes(row["content"].encode(), "none", {})


@given(_STATES, st.booleans())
def test_every_state_survives(state: CpuState, pod_level: bool) -> None:
    if not pod_level:
        state = CpuState(state.shared, state.containers)
    assert from_bytes(to_bytes("static", state, pod_level=pod_level), "static", {}, pod_level=pod_level) == state


@given(_STATES, st.data())
def test_a_changed_file_is_refused_or_says_the_same(state: CpuState, data: st.DataObject) -> None:
    content = to_bytes("static", state, pod_level=True)
    place = data.draw(st.integers(0, len(content) - 1))
    changed = content[:place] + data.draw(st.binary(max_size=1)) + content[place + 1 :]
    assume(b'"checksum":' in changed)  # without one a file is believed, as those of old kubelets were
    with contextlib.suppress(GoCheckpointError, UnicodeDecodeError):
        assert from_bytes(changed, "static", {}, pod_level=True) == state
