"""What surrounds an agent: its lock and its endpoints."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from trikubelet.agent.root_folder import RootFolderInUseError, lock_root_folder
from trikubelet.agent.run import socket_path


def test_a_unix_endpoint_names_a_path() -> None:
    assert socket_path("unix:///run/containerd/containerd.sock") == Path("/run/containerd/containerd.sock")


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "/run/x.sock", "unix://relative/x", "unix:", "", "npipe:x"])
def test_any_other_endpoint_is_refused_with_the_form_it_should_have(endpoint: str) -> None:
    with pytest.raises(ValueError, match="expected unix:///path/to/socket"):
        socket_path(endpoint)


def test_two_agents_do_not_share_a_root_folder(tmp_path: Path) -> None:
    with ExitStack() as first, ExitStack() as second:
        lock_root_folder(tmp_path, first)
        with pytest.raises(RootFolderInUseError, match=r"an agent \(pid \d+\) already works in"):
            lock_root_folder(tmp_path, second)
    with ExitStack() as third:
        lock_root_folder(tmp_path, third)
