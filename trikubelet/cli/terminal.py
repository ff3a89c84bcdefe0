"""This side's terminal: raw while a command in a container has it, and as it was afterwards."""

from __future__ import annotations

import os
import termios
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator


class RawTerminal:
    """A terminal that passes every key on, Ctrl-C too. Made by `raw_terminal`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def enter(self) -> None:
        """Make it raw; again after this process was stopped, since shells then set their own modes."""
        with suppress(termios.error):  # it was hung up
            tty.setraw(self._descriptor, termios.TCSANOW)

    def size(self) -> tuple[int, int] | None:
        """Columns and lines; None when it does not know."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._descriptor)
            if columns and lines:
                return columns, lines
        return None


@contextmanager
def raw_terminal(descriptor: int) -> Iterator[RawTerminal]:
    """Raw inside the block, with the modes of before at its end, however it ends."""
    before = termios.tcgetattr(descriptor)
    terminal = RawTerminal(descriptor)
    try:
        terminal.enter()
        yield terminal
    finally:
        # Not TCSADRAIN: a terminal whose output was stopped would keep this process.
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


class DetachKeys:
    """Finds the keys that leave a container alone again in what is typed, e.g. `ctrl-p,ctrl-q`.

    What may be the beginning of them is held back until the next key tells.
    """

    def __init__(self, text: str) -> None:
        """Raises CommandError."""
        self._keys = bytes(_key(name) for name in text.split(","))
        self._matched = 0

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """What goes on to the container, and whether the keys were complete. Then what came after them is dropped."""
        passed = bytearray()
        for key in typed:
            if key != self._keys[self._matched] and self._matched:
                # The keys are few and never repeat their beginning in a way that matters to anybody.
                passed += self._keys[: self._matched]
                self._matched = 0
            if key == self._keys[self._matched]:
                self._matched += 1
                if self._matched == len(self._keys):
                    return bytes(passed), True
            else:
                passed.append(key)
        return bytes(passed), False


def _key(name: str) -> int:
    """A character, or `ctrl-` and one of a to z or @ [ \\ ] ^ _."""
    if len(name) == 1 and name.isascii():
        return ord(name)
    letter = name.removeprefix("ctrl-").upper()
    if name.startswith("ctrl-") and len(letter) == 1 and "@" <= letter <= "_":
        return ord(letter) - ord("@")
    raise CommandError(f"--detach-keys: expected characters and ctrl-LETTER separated by commas, got {name!r}")
