from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from trikubelet.linux.sd_notify import READY, forget, keep, kept, notify, watchdog, watchdog_period

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """The service manager's end."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as receiver:
        receiver.bind(path)
        yield receiver, {"NOTIFY_SOCKET": path}


def test_a_state_reaches_the_service_manager(manager: tuple[socket.socket, dict[str, str]]) -> None:
    receiver, environ = manager
    assert notify(READY, environ=environ)
    assert receiver.recv(100) == b"READY=1"


def test_an_abstract_socket_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as receiver:
        receiver.bind("\0trikubelet-test-notify")
        assert notify(READY, environ={"NOTIFY_SOCKET": "@trikubelet-test-notify"})
        assert receiver.recv(100) == b"READY=1"


def test_nobody_is_told_where_nobody_asks(tmp_path: Path) -> None:
    assert not notify(READY, environ={})
    assert not notify(READY, environ={"NOTIFY_SOCKET": "relative"})
    assert not notify(READY, environ={"NOTIFY_SOCKET": str(tmp_path / "nobody")})


OWN = "own"


def with_pid(environ: dict[str, str]) -> dict[str, str]:
    """Put the pid of this process in the place of OWN: the tests were collected in another one."""
    return {name: str(os.getpid()) if value == OWN else value for name, value in environ.items()}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": OWN}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_the_watchdog_period_is_read(environ: dict[str, str], expected: float | None) -> None:
    assert watchdog_period(with_pid(environ)) == expected


async def test_the_watchdog_speaks_twice_a_period_while_healthy(
    manager: tuple[socket.socket, dict[str, str]], autojump_clock: trio.abc.Clock
) -> None:
    receiver, environ = manager
    healthy = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: watchdog(lambda: healthy, environ={**environ, "WATCHDOG_USEC": "10000000"}))
        await trio.sleep(14)
        healthy = False
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert [receiver.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    with pytest.raises(BlockingIOError):
        receiver.recv(100)


async def test_without_a_watchdog_nothing_is_waited_for() -> None:
    await watchdog(environ={})


def test_a_descriptor_is_given_away_to_be_kept(manager: tuple[socket.socket, dict[str, str]]) -> None:
    receiver, environ = manager
    ours, theirs = os.pipe()
    keep("inhibitor", theirs, environ=environ)
    os.close(theirs)
    message, (held,), *_ = socket.recv_fds(receiver, 100, 1)
    assert message == b"FDSTORE=1\nFDNAME=inhibitor"
    os.write(held, b"still there")
    os.close(held)
    assert os.read(ours, 100) == b"still there"
    os.close(ours)
    forget("inhibitor", environ=environ)
    assert receiver.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=inhibitor"


def test_what_was_kept_is_found_again() -> None:
    """Of three descriptors the second is of another name, and the third is not there."""
    asks = "import os; from trikubelet.linux.sd_notify import kept; found = kept('inhibitor'); "
    asks += "print(found, *map(os.get_inheritable, found))"
    settings = "LISTEN_PID=$$ LISTEN_FDS=3 LISTEN_FDNAMES=inhibitor:other:inhibitor"
    script = f'exec 3</dev/null 4</dev/null 5<&-; export {settings}; exec "$0" -c "$1"'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, asks], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.splitlines()[-1] == "[3] False"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "inhibitor"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "other"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "0", "LISTEN_FDNAMES": "inhibitor"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "many", "LISTEN_FDNAMES": "inhibitor"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "1"},
    ],
)
def test_what_was_not_kept_is_not_found(environ: dict[str, str]) -> None:
    assert kept("inhibitor", environ=with_pid(environ)) == []
