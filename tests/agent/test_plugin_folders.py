"""The folders of plugins' sockets, on a machine with SELinux."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.agent import plugins

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_confined_plugins_may_use_the_folders_of_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels: dict[str, str] = {}

    def set_label(folder: Path, label: str) -> None:
        assert folder.is_dir()
        labels[str(folder.relative_to(tmp_path))] = label
        if folder.name == "plugins":
            raise OSError("this file system has no labels")

    monkeypatch.setattr(plugins, "set_label", set_label)
    plugins.label_folders(tmp_path)
    label = "system_u:object_r:container_file_t:s0"
    assert labels == dict.fromkeys(("plugins_registry", "plugins", "device-plugins"), label)
