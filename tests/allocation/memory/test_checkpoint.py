"""`memory_manager_state`: the rows of the kubelet's `state_checkpoint_test.go`. All are of the policy "static"."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.allocation.memory.tables import blocks, state, table
from trikubelet.allocation.memory.checkpoint import from_bytes, to_bytes
from trikubelet.allocation.memory.state import Block, MemoryState, MemoryTable, NodeState
from trikubelet.formats.go_checkpoint import GoCheckpointError

_NUMBERS = st.integers(0, 2**63)
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_NODES = st.integers(0, 2**64 - 1)
_BLOCKS = st.lists(st.builds(Block, _NODES, _NAMES, _NUMBERS), max_size=3).map(tuple)
_TABLES = st.builds(MemoryTable, *[_NUMBERS] * 5)
_STATES = st.builds(
    MemoryState,
    st.dictionaries(
        st.integers(0, 63),
        st.builds(NodeState, _NUMBERS, st.dictionaries(_NAMES, _TABLES, max_size=2), _NODES),
        max_size=3,
    ),
    st.dictionaries(_NAMES, st.dictionaries(_NAMES, _BLOCKS, max_size=2), max_size=2),
    st.dictionaries(_NAMES, _BLOCKS, max_size=2),
)


def _state(row: dict[str, Any]) -> MemoryState:
    pods = {uid: blocks(its) for uid, its in row["pods"].items()}
    return attrs.evolve(state(row), pods=pods)


@pytest.mark.parametrize("row", table("restore"))
def test_a_file_is_read_or_refused(row: dict[str, Any]) -> None:
    if row["error"]:
        with pytest.raises(GoCheckpointError):
            from_bytes(row["content"].encode(), "static", pod_level=row["gate"])
    else:
        assert from_bytes(row["content"].encode(), "static", pod_level=row["gate"]) == _state(row)


@pytest.mark.parametrize("row", [row for row in table("restore") if not row["error"]])
def test_the_file_is_the_kubelets_to_the_byte(row: dict[str, Any]) -> None:
    written = to_bytes("static", _state(row), pod_level="podEntries" in row["content"])
    assert written == json.dumps(json.loads(row["content"]), separators=(",", ":")).encode()


def test_a_file_of_another_policy_is_refused() -> None:
    with pytest.raises(GoCheckpointError, match='of the policy "None"'):
        from_bytes(to_bytes("None", MemoryState()), "Static")


@given(_STATES, st.booleans())
def test_every_state_survives(before: MemoryState, pod_level: bool) -> None:
    if not pod_level:
        before = attrs.evolve(before, pods={})
    assert from_bytes(to_bytes("Static", before, pod_level=pod_level), "Static", pod_level=pod_level) == before
