"""`kubectl cp`: tar on both sides of an exec."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kubectl.one_node import OneNode

pytestmark = pytest.mark.kubectl

NAMES = ["plain", "with two  spaces", 'quote\'s "here"', "-dash", "semi;colon & $HOME", "häßlich", ".hidden", "a/b/c"]


def test_a_file_to_the_pod_and_back(node: OneNode, tmp_path: Path) -> None:
    data = os.urandom(5 * 2**20)
    (tmp_path / "sent").write_bytes(data)
    done = node.run("cp", "sent", "web:/tmp/kept", "-c", "main", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    done = node.run("cp", "web:/tmp/kept", "came back", "-c", "main", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "came back").read_bytes() == data
    node.kubectl("exec", "web", "-c", "main", "--", "rm", "/tmp/kept")


def test_a_folder_with_odd_names(node: OneNode, tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / "sent" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sent" / name).write_text(f"this is {name}")
    done = node.run("cp", "sent", "web:/tmp/folder", "-c", "main", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    done = node.run("cp", "web:/tmp/folder", "back", "-c", "main", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {str(path.relative_to(tmp_path / "back")): path.read_text() for path in _files(tmp_path / "back")}
    assert found == {name: f"this is {name}" for name in NAMES}
    node.kubectl("exec", "web", "-c", "main", "--", "rm", "-r", "/tmp/folder")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
