"""Where the commands look for the agent."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trikubelet.cli import root_dir
from trikubelet.cli.failures import CommandError
from trikubelet.cli.root_dir import SOCKET_NAME, default_root_dir, running_agent_root_dir


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (0, {"HOME": "/root"}, "/var/lib/trikubelet"),
        (1000, {"HOME": "/home/me"}, "/home/me/.local/state/trikubelet"),
        (1000, {"HOME": "/home/me", "XDG_STATE_HOME": "/state"}, "/state/trikubelet"),
        (1000, {"HOME": "/home/me", "XDG_STATE_HOME": "relative"}, "/home/me/.local/state/trikubelet"),
    ],
)
def test_the_default_folder(uid: int, environ: dict[str, str], expected: str) -> None:
    assert default_root_dir(environ, uid=uid) == Path(expected)


def listen(folder: Path) -> socket.socket:
    folder.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / SOCKET_NAME))
    listener.listen()
    return listener


@pytest.fixture(autouse=True)
def one_process_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """All listen in this process, which would be one agent."""
    found = root_dir.agent_pid

    def pid(folder: Path) -> int | None:
        return None if found(folder) is None else abs(hash(folder))

    monkeypatch.setattr(root_dir, "agent_pid", pid)


def test_an_agent_in_the_users_state_directory_is_found(tmp_path: Path) -> None:
    default, environ = tmp_path / "default", {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert running_agent_root_dir(default, environ) == default, "nobody listens anywhere"
    with listen(tmp_path / "state" / "trikubelet"):
        assert running_agent_root_dir(default, environ) == tmp_path / "state" / "trikubelet"
        listen(default).close()
        assert running_agent_root_dir(default, environ) == tmp_path / "state" / "trikubelet", "a killed one's socket"


def test_of_several_agents_none_is_picked(tmp_path: Path) -> None:
    default, environ = tmp_path / "default", {"XDG_STATE_HOME": str(tmp_path / "state")}
    with listen(default), listen(tmp_path / "state" / "trikubelet"):
        with pytest.raises(CommandError, match="2 agents run here, say which one is meant: ") as raised:
            running_agent_root_dir(default, environ)
    for folder in (default, tmp_path / "state" / "trikubelet"):
        assert f"--root-dir={folder} (pid {abs(hash(folder))})" in str(raised.value)


def test_an_agent_by_two_names_is_one(tmp_path: Path) -> None:
    default, environ = tmp_path / "default", {"XDG_STATE_HOME": str(tmp_path / "state")}
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "trikubelet").symlink_to(default)
    with listen(default), pytest.MonkeyPatch.context() as patch:
        patch.setattr(root_dir, "agent_pid", lambda folder: 77)
        assert running_agent_root_dir(default, environ) == default


def test_an_agent_of_a_joined_node_is_found_in_the_kubelet_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default, environ = tmp_path / "default", {"XDG_STATE_HOME": str(tmp_path / "state")}
    monkeypatch.setattr("trikubelet.cli.root_dir.KUBELET_ROOT", tmp_path / "kubelet")
    with listen(tmp_path / "kubelet"):
        assert running_agent_root_dir(default, environ) == tmp_path / "kubelet"


def test_a_folder_that_may_not_be_entered_has_no_agent_for_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_socket", refuse)
    assert running_agent_root_dir(tmp_path, {"HOME": str(tmp_path)}) == tmp_path
