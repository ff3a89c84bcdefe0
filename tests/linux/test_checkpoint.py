"""Files that survive: whole after every kill, and known to be broken when they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.killed_writer import kill_at_every_step
from trikubelet.linux.checkpoint import (
    BrokenCheckpointError,
    CheckpointError,
    GrowingChecksum,
    checksum,
    read_checkpoint,
    write_checkpoint,
)
from trikubelet.linux.durable_files import write_atomically

OF_A_KUBELET = (
    r'{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",'
    r'\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}'
)
WRITER = """
from pathlib import Path
from trikubelet.linux.checkpoint import write_checkpoint
watch()
write_checkpoint(Path(sys.argv[2]), sys.argv[3])
"""


def test_a_checkpoint_of_a_kubelet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text(OF_A_KUBELET)
    data = read_checkpoint(path)
    assert data is not None
    assert list(json.loads(data)["entries"]) == ["pod1"]


def test_a_checkpoint_is_written_as_a_kubelet_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_checkpoint(path, json.loads(OF_A_KUBELET)["data"])
    assert path.read_text() == OF_A_KUBELET


@given(data=st.text(st.characters(exclude_categories=["Cs"])))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, data: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any-text"
    write_checkpoint(path, data)
    assert read_checkpoint(path) == data


def test_where_there_is_none_nothing_is_read(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "state") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 64,
        OF_A_KUBELET.encode()[:-20],
        OF_A_KUBELET.replace("pod1", "pod2").encode(),
        OF_A_KUBELET.replace("1178570812", "1178570813").encode(),
        OF_A_KUBELET.replace("1178570812", '"1178570812"').encode(),
        b"{}",
        b"[]",
        b"null",
        b'{"data":{},"checksum":1}',
        b'{"data":"\\ud800","checksum":1}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_broken_checkpoint_is_told_with_its_place(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    with pytest.raises(BrokenCheckpointError, match=str(path)):
        read_checkpoint(path)


def test_a_checkpoint_that_nobody_may_read_is_not_broken(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="directory") as caught:
        read_checkpoint(tmp_path)
    assert not isinstance(caught.value, BrokenCheckpointError)


def test_only_its_owner_may_read_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o600
    write_atomically(path, b"newer", mode=0o644)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_write_leaves_nothing_beside_its_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "state", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_checkpoint(path, "old")

    def is_full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", is_full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_checkpoint(path, "new")
    monkeypatch.undo()
    assert read_checkpoint(path) == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a machine that crashes would keep a name for nothing."""
    order: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: order.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    rename = os.rename

    def renamed(old: Any, new: Any) -> None:
        order.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "rename", renamed)
    write_atomically(tmp_path / "state", b"new")
    assert order == [str(tmp_path / ".state.tmp"), "rename", str(tmp_path)]


def test_a_writer_that_is_killed_at_any_step_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "state"
    old, new = "o" * 100, "n" * 200
    write_checkpoint(path, old)
    found = []
    for _ in kill_at_every_step(WRITER, str(path), new):
        found.append(read_checkpoint(path))
        if found[-1] == new:
            write_checkpoint(path, old)
    steps_before_the_rename = found.index(new)
    assert steps_before_the_rename >= 5
    assert found == [old] * steps_before_the_rename + [new] * (len(found) - steps_before_the_rename)
    assert read_checkpoint(path) == new
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_the_first_writer_that_is_killed_leaves_nothing_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for _ in kill_at_every_step(WRITER, str(path), "new"):
        assert read_checkpoint(path) in (None, "new")
        path.unlink(missing_ok=True)


def test_the_checksum_is_the_kubelets() -> None:
    assert checksum(json.loads(OF_A_KUBELET)["data"]) == 1178570812


@given(
    versions=st.lists(
        st.tuples(st.integers(0, 5000), st.text(max_size=20), st.integers(0, 3000)).map(
            lambda parts: "x" * parts[0] + parts[1].encode(errors="ignore").decode() + "y" * parts[2]
        ),
        max_size=6,
    )
)
def test_a_text_that_begins_as_before_has_the_checksum_that_it_would_have_alone(versions: list[str]) -> None:
    summed = GrowingChecksum()
    assert [summed(version) for version in versions] == [checksum(version) for version in versions]
