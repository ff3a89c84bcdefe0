"""Runs a piece of Python that writes a file, in a process that is killed before its n-th call to the kernel for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEADLINE: Final = 60.0
_CALLS: Final = ("open", "write", "fsync", "close", "rename")

_PRELUDE: Final = f"""
import os, signal, sys
kill_at = int(sys.argv[1])
calls = 0

def watched(call):
    def step(*arguments, **named):
        global calls
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return call(*arguments, **named)
    return step

real_write = os.write

def writes_little(descriptor, data):
    return real_write(descriptor, bytes(data[: max(64, len(data) // 2)]))

def watch():
    os.write = writes_little
    for name in {_CALLS!r}:
        setattr(os, name, watched(getattr(os, name)))
"""


def kill_at_every_step(program: str, *arguments: str) -> Iterator[int]:
    """Run `program` once for each of its steps, killed before that step, until one run comes to its end.

    The program calls `watch()` before it writes; its arguments are `sys.argv[2:]`. After each run that was killed, the
    number of steps that were made is told. What it writes goes to the disk in pieces.
    """
    for step in range(100):
        command = [sys.executable, "-c", _PRELUDE + program, str(step), *arguments]
        done = subprocess.run(command, timeout=_DEADLINE, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        yield step
    raise AssertionError("the program makes more than a hundred steps")
