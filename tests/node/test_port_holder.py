"""Which process has a port: on this machine, and by tables of others."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trikubelet.agent.root_folder import lock_root_folder
from trikubelet.node import port_holder as module
from trikubelet.node.port_holder import port_holder

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "   0: {address}:2808 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0\n"
LOOPBACK, OTHER, ALL = "0100007F", "0200007F", "00000000"
MAPPED, ALL_6 = "0000000000000000FFFF00000100007F", "0" * 32


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_process_is_named_by_its_program(taken: int, address: str) -> None:
    name = Path("/proc/self/comm").read_text().strip()
    assert str(port_holder(address, taken)) == f"{name} with pid {os.getpid()}"


def test_an_agent_is_named_by_its_root_folder(taken: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        lock_root_folder(tmp_path, stack)
        assert str(port_holder("127.0.0.1", taken)) == f"the agent with pid {os.getpid()} and root folder {tmp_path}"


def test_nobody_holds_what_is_free(taken: int) -> None:
    assert port_holder("127.0.0.2", taken) is None


@pytest.mark.parametrize(
    ("table", "address", "state", "holds"),
    [
        ("tcp", LOOPBACK, "0A", True),
        ("tcp", ALL, "0A", True),
        ("tcp6", ALL_6, "0A", True),
        ("tcp6", MAPPED, "0A", True),
        ("tcp", OTHER, "0A", False),
        ("tcp", LOOPBACK, "01", False),
    ],
)
def test_another_user_s_process_is_named_by_its_user(
    table: str, address: str, state: str, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / table).write_text(HEAD + LINE.format(address=address, state=state, uid=0, inode=77))
    monkeypatch.setattr(module, "_PROC", tmp_path)
    assert str(port_holder("127.0.0.1", 0x2808)) == ("a process of the user root" if holds else "None")
