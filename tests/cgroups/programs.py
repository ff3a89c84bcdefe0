"""Processes that tests put into groups."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trikubelet.cgroups.files import GroupFiles
    from trikubelet.cgroups.names import CgroupName

SLEEP = "import time; time.sleep(60)"
FORKS = """
import os, time
for generation in range(6):
    os.fork()
while True:
    pid = os.fork()
    if pid == 0:
        time.sleep(0.01)
        os._exit(0)
    os.waitpid(pid, 0)
"""
DIES_WITHIN = 10.0
"""Seconds after SIGKILL; a process that stays frozen never does."""
HOLDS = "import sys, time; held = b'x' * (32 << 20); print('ready', flush=True); time.sleep(60)"


@contextmanager
def running(
    driver: GroupFiles, name: CgroupName, program: str, *, sub_group: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A Python program inside a group, in every hierarchy; it waits to be moved in before it begins."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stdin.readline()\n{program}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        enter(driver, driver.folders(name), process.pid)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DIES_WITHIN)


def enter(driver: GroupFiles, folders: Sequence[str], pid: int) -> None:
    for folder in folders:
        if driver.kernel.exists(folder):
            driver.kernel.write(f"{folder}/cgroup.procs", str(pid))
