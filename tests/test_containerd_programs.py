"""The variable that names another containerd."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.containerd_programs import CONTAINERD, PROGRAMS, containerd_version, missing_programs, program, search_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _another_version() -> Iterator[None]:
    containerd_version.cache_clear()
    yield
    containerd_version.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A containerd of its own."""
    for name in PROGRAMS[:3]:
        file = tmp_path / name
        file.write_text("#!/bin/sh\necho containerd github.com/containerd/containerd/v2 v2.13.4 abcdef\n")
        file.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("named", ["", "containerd"])
def test_a_folder_or_the_program_in_it_goes_before_the_machines(
    named: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTAINERD, str(folder / named))
    assert search_path() == f"{folder}{os.pathsep}{os.environ['PATH']}"
    assert program("ctr") == str(folder / "ctr")
    assert containerd_version() == (2, 13)


def test_what_the_folder_lacks_is_the_machines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTAINERD, str(folder))
    monkeypatch.setenv("PATH", "")
    assert missing_programs() == ["runc"]
    (folder / "runc").touch(mode=0o755)
    assert missing_programs() == []


@pytest.mark.parametrize("lost", PROGRAMS[:3])
def test_a_variable_that_names_no_containerd_is_not_passed_over(
    lost: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTAINERD, str(folder))
    (folder / lost).unlink()
    with pytest.raises(ValueError, match=f"found no {lost}"):
        search_path()


def test_without_the_variable_it_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTAINERD, raising=False)
    assert search_path() == os.environ["PATH"]
