"""A person at a terminal: kubectl on a pty, which is typed at, looked at and resized."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

import attrs

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kubectl.one_node import OneNode


@attrs.define
class Terminal:
    """`shown` is everything that came so far."""

    descriptor: int
    process: subprocess.Popen[bytes]
    shown: bytes = b""

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        _set_size(self.descriptor, rows, columns)
        self.process.send_signal(signal.SIGWINCH)

    def until_sized(self, rows: int, columns: int) -> None:
        """A shell finds the terminal as large as this one. It is told so beside everything else: that may take."""
        size = f"{rows} {columns}"
        self.type(f'until size=$(stty size); [ "$size" = "{size}" ]; do sleep 0.05; done; echo size is $size\n')
        self.wait_for(f"size is {size}")

    def wait_for(self, text: str) -> None:
        """Until it has been shown."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self.shown[-1000:]!r}"
            assert self._read(left), f"ended without {text!r}: {self.shown[-1000:]!r}"

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        """Something more. False: nothing more will come, or not in time."""
        ready, _, _ = select.select([self.descriptor], [], [], max(seconds, 0))
        if not ready:
            return False
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:  # nobody has the other end any more
            return False
        self.shown += data
        return bool(data)


@contextlib.contextmanager
def terminal(node: OneNode, *words: str, rows: int = 31, columns: int = 93) -> Iterator[Terminal]:
    """A kubectl on a terminal of its own, for the body of the `with`."""
    ours, its = pty.openpty()
    try:
        _set_size(ours, rows, columns)
        with node.going(*words, stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
            os.close(its)
            its = -1
            yield Terminal(ours, process)
    finally:
        os.close(ours)
        if its >= 0:
            os.close(its)


def _set_size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
