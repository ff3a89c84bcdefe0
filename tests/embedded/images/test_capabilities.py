"""The store finds out what it may do, and does not believe that giving a file to oneself proves anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trikubelet.embedded.images.capabilities import probe_capabilities
from trikubelet.embedded.images.model import LayerFormat

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.root
def test_another_user_can_neither_mark_deletions_nor_give_files_away(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(0o711)
    pid = os.fork()
    if pid == 0:  # the child answers by its exit code
        well = False
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            found = probe_capabilities(directory)
            well = found.layer_format is LayerFormat.FLAT and not found.privileged
        finally:
            os._exit(0 if well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(directory.iterdir()) == []
