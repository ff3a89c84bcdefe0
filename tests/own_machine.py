"""A machine for plugins that change one: a network and a mount namespace that end with the test.

A test runs a function of its module there, async or not: `run_there(scenario, folder)`. What it makes is
gone when its process is.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

DEBIAN: Final = Path("/usr/lib/cni")
_SERVE: Final = """
import socket
with socket.create_server(("", 80)) as server:
    print("ready", flush=True)
    while True:
        connection, peer = server.accept()
        with connection:
            connection.sendall(peer[0].encode())
"""
_ASK: Final = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as connection:
    print(connection.recv(100).decode(), end="")
"""


async def run_there(
    scenario: Callable[[Path], Awaitable[None] | None], folder: Path, *, within: float = 2 * PATIENCE
) -> None:
    """Raises AssertionError with what was printed when it fails, trio.TooSlowError after `within` seconds."""
    code = f"from tests.own_machine import main; main({scenario.__module__!r}, {scenario.__name__!r})"
    with trio.fail_after(within):
        ended = await trio.run_process(
            ["unshare", "--net", "--mount", "--kill-child", "--fork", sys.executable, "-c", code, str(folder)],
            check=False,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
        )
    assert ended.returncode == 0, ended.stdout.decode(errors="replace")


def main(module: str, name: str) -> None:
    """In there."""
    scenario = getattr(__import__(module, fromlist=[name]), name)
    run("ip", "link", "set", "lo", "up")
    if inspect.iscoroutinefunction(scenario):
        trio.run(scenario, Path(sys.argv[1]))
    else:
        scenario(Path(sys.argv[1]))


def run(*command: str) -> str:
    """What a program prints. Raises AssertionError."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode == 0, f"{command}: {ended.stderr}"
    return ended.stdout


@contextmanager
def pod_namespace() -> Iterator[str]:
    """A network namespace that a process holds, which ends here, and with this process."""
    command = ["unshare", "--net", "--kill-child", "--fork", "sh", "-c", "ip link set lo up; echo $$; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid = holder.stdout.readline().strip()
        try:
            yield f"/proc/{pid}/ns/net"
        finally:
            holder.kill()


@contextmanager
def served(namespace: str) -> Iterator[None]:
    """Port 80 in a namespace answers with the address that it is asked from."""
    command = ["nsenter", f"--net={namespace}", sys.executable, "-c", _SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            server.kill()


def ask(address: str, port: int = 80, *, namespace: str = "/proc/self/ns/net") -> str:
    """What a server answers to a client in a namespace."""
    return run("nsenter", f"--net={namespace}", sys.executable, "-c", _ASK, address, str(port), str(PATIENCE))
