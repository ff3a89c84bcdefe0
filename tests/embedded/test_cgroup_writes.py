"""How processes come into their cgroups: on v2 they are born there, since a move costs a grace period of the kernel."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.embedded.runtime_node import children_named
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.embedded.runtime_node import Node

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@contextmanager
def traced(pids: Sequence[int], log: Path) -> Iterator[None]:
    """Writes to `log` what processes, and all that they fork, do to be in a cgroup."""
    wanted = [word for pid in pids for word in ("-p", str(pid))]
    command = ["strace", "-f", *wanted, "-e", "trace=openat,clone3", "-o", str(log)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as strace:
        try:
            assert strace.stderr is not None
            for _ in pids:
                assert b"attached" in strace.stderr.readline()
            yield
        finally:
            strace.send_signal(signal.SIGINT)
            strace.communicate(timeout=PATIENCE)


async def test_nothing_is_moved_into_its_v2_group(node: Node, tmp_path: Path) -> None:
    sandbox = await node.sandbox()
    group = node.cri._inventory.container(await node.launch(sandbox, ["sleep", "1000"]))
    if not (group.cgroup or {}).get("unified"):
        pytest.skip("no cgroup v2 is mounted")
    log = tmp_path / "trace"
    keeper = node.keeper_pid()
    with traced([keeper, *children_named("trikube-forker", keeper)], log):
        container = await node.launch(sandbox, ["sleep", "1000"])
        done = await node.exec(container, ["cat", "/proc/self/cgroup"])
    assert b"exec-" in done.stdout
    lines = log.read_text().splitlines()
    assert sum("CLONE_INTO_CGROUP" in line for line in lines) >= 2
    moved = [line for line in lines if "cgroup.procs" in line and ("O_WRONLY" in line or "O_RDWR" in line)]
    assert moved == []
