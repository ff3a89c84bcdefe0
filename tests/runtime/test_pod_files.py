"""Removing what pods leave in the node's folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.embedded.escapes.attack import nest
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.pod_files import PodFiles

if TYPE_CHECKING:
    from pathlib import Path


async def test_logs_of_a_pod_are_removed_however_deep_its_folders_are(tmp_path: Path) -> None:
    """A container that has the folder by a hostPath can make any in there."""
    logs, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    (logs / "pod" / "main").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (logs / "pod" / "link").symlink_to(elsewhere)
    nest(logs / "pod" / "main", 1500)
    files = PodFiles(RuntimeOptions(root_dir=tmp_path, machine=MachineFacts(1), pod_logs_dir=logs))
    await files.remove_pod_logs("pod")
    assert list(logs.iterdir()) == []
    assert (elsewhere / "kept").exists()
    await files.remove_pod_logs("pod")  # once more does no harm
