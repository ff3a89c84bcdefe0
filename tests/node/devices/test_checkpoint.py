"""What survives the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.node.devices.situations import R1, R2
from trikubelet.linux.checkpoint import BrokenCheckpointError, write_checkpoint
from trikubelet.node.devices.checkpoint import DeviceCheckpoint, Remembered, from_text, to_text
from trikubelet.node.devices.model import DeviceFile, DeviceMount, Grant, Needs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NEEDS = Needs(
    environment={"r2devices": "dev1 dev2", "é": "\N{SNOWMAN}"},
    mounts=(DeviceMount("/usr/lib", "/home/lib", read_only=True), DeviceMount("/a", "/b")),
    files=(DeviceFile("/dev/a", "/dev/b", "mrw"),),
    annotations={"x": ""},
    cdi_devices=("domain1.com/resource1=dev1",),
)
GRANTS = {
    "pod1": {"con1": {R1: Grant({"dev1": (), "dev2": (0, 1)}, NEEDS), R2: Grant({"dev1": (0,)})}, "con2": {}},
    "pod2": {"con1": {R1: Grant({"dev4": ()}, NEEDS)}},
}

names = st.text(max_size=8)
needs = st.builds(
    Needs,
    environment=st.dictionaries(names, names, max_size=2),
    mounts=st.lists(st.builds(DeviceMount, names, names, st.booleans()), max_size=2).map(tuple),
    files=st.lists(st.builds(DeviceFile, names, names, names), max_size=2).map(tuple),
    annotations=st.dictionaries(names, names, max_size=2),
    cdi_devices=st.lists(names, max_size=2).map(tuple),
)
grants = st.builds(Grant, st.dictionaries(names, st.lists(st.integers(0, 7), max_size=2).map(tuple), max_size=3), needs)


def test_what_is_written_is_read() -> None:
    assert from_text(to_text(Remembered((R2, R1), GRANTS))) == Remembered((R1, R2), GRANTS)


@given(st.dictionaries(names, st.dictionaries(names, st.dictionaries(names, grants, max_size=2), max_size=2)))
def test_anything_that_is_written_is_read(pods: Mapping[str, Mapping[str, Mapping[str, Grant]]]) -> None:
    assert from_text(to_text(Remembered((), pods))).grants == pods


@pytest.mark.parametrize(
    "damage",
    [
        "[]",
        "{}",
        '{"resources": [], "pods": []}',
        '{"resources": [1], "pods": {}}',
        '{"resources": [], "pods": {"p": {"c": {"r": null}}}}',
        '{"resources": [], "pods": {"p": {"c": {"r": {"devices": {"a": ["0"]}}}}}}',
        '{"resources": [], "pods": {"p": {"c": {"r": {"devices": {"a": [true]}}}}}}',
        "[" * 100_000,
    ],
)
def test_what_was_never_written_is_not_believed(tmp_path: Path, damage: str) -> None:
    write_checkpoint(tmp_path / "state", damage)
    checkpoint = DeviceCheckpoint(tmp_path / "state", Remembered)
    with pytest.raises(BrokenCheckpointError, match=r"^checkpoint "):
        checkpoint.read()
    assert checkpoint.exists, "the node is not a new one"


def test_without_a_file_the_node_is_new(tmp_path: Path) -> None:
    checkpoint = DeviceCheckpoint(tmp_path / "state", Remembered)
    assert checkpoint.read() == Remembered()
    assert not checkpoint.exists


async def test_a_file_is_there_once_something_has_changed(tmp_path: Path) -> None:
    known = [Remembered((R1,), GRANTS)]
    checkpoint = DeviceCheckpoint(tmp_path / "state", lambda: known[-1])
    async with trio.open_nursery() as nursery:
        await nursery.start(checkpoint.file.run)
        checkpoint.file.changed()
        await checkpoint.file.durable()
        assert checkpoint.exists
        nursery.cancel_scope.cancel()
    again = DeviceCheckpoint(tmp_path / "state", lambda: known[-1])
    assert again.read() == known[-1]
    assert again.exists


async def test_what_the_file_says_already_is_not_written(tmp_path: Path) -> None:
    known = Remembered((R1,), GRANTS)
    write_checkpoint(tmp_path / "state", to_text(known))
    checkpoint = DeviceCheckpoint(tmp_path / "state", lambda: known)
    checkpoint.read()
    before = (tmp_path / "state").stat().st_ino
    async with trio.open_nursery() as nursery:
        await nursery.start(checkpoint.file.run)
        checkpoint.file.changed()
        await checkpoint.file.durable()
        nursery.cancel_scope.cancel()
    assert (tmp_path / "state").stat().st_ino == before
