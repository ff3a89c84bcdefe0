"""Runs a piece of Python that writes a file, in a process that is killed before its n-th call to the kernel for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

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


_DRIVER: Final = """
import os, signal, sys

program = sys.argv.pop(1)
imports = [line for line in program.splitlines() if line.startswith(("import ", "from "))]
exec("\\n".join(imports), {})
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        sys.argv[1] = line.strip()
        exec(program, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Each step is a fork of one process that has imported what the program imports, and has a minute."""


def kill_at_every_step(program: str, *arguments: str) -> Iterator[int]:
    """Run `program` once for each of its steps, killed before that step, until one run comes to its end.

    The program calls `watch()` before it writes; its arguments are `sys.argv[2:]`, and it prints nothing. After each
    run that was killed, the number of steps that were made is told. What it writes goes to the disk in pieces.
    """
    command = [sys.executable, "-c", _DRIVER, _PRELUDE + program, "", *arguments]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as driver,
    ):
        assert driver.stdin is not None
        assert driver.stdout is not None
        for step in range(100):
            print(step, file=driver.stdin, flush=True)
            ended = driver.stdout.readline().strip()
            if ended == "0":
                return
            errors.seek(0)
            assert ended == str(-signal.SIGKILL), errors.read().decode()
            yield step
    raise AssertionError("the program makes more than a hundred steps")
