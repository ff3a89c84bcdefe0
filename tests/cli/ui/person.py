"""A person who looks at a terminal of some size, with what is on it: pyte plays the terminal."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pyte
import trio

from tests.cli.streaming_agent import PATIENCE, Terminal, terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SIZE: Final = (80, 24)


class Person:
    """Sees what a terminal would show."""

    def __init__(self, terminal: Terminal, size: tuple[int, int]) -> None:
        self.terminal = terminal
        self.raw = bytearray()
        """All that was printed."""
        self._screen: Any = pyte.Screen(*size)
        self._stream: Any = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def title(self) -> str:
        """Of the terminal's window."""
        return str(self._screen.title)

    def line_of(self, text: str) -> str:
        """The first one with this in it; "" when there is none."""
        return next((line for line in self.lines if text in line), "")

    async def until(self, seen: Callable[[], bool]) -> None:
        with trio.move_on_after(PATIENCE):
            while not seen():
                data = await self.terminal.read()
                self.raw += data
                self._stream.feed(data)
        assert seen(), "\n".join(self.lines)

    async def sees(self, *texts: str) -> None:
        """Waits until all of them are on the screen, in one line."""
        await self.until(lambda: any(all(text in line for text in texts) for line in self.lines))

    async def type(self, keys: str) -> None:
        await self.terminal.type(keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        self.terminal.resize(columns, lines)


@asynccontextmanager
async def person(root_dir: Path, size: tuple[int, int] = SIZE, **env: str) -> AsyncIterator[Person]:
    """At `trikubelet ui`."""
    columns, lines = size
    variables = {"TERM": "xterm", "NO_COLOR": "", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", **env}
    async with terminal(root_dir, "ui", columns=columns, lines=lines, env=variables) as at:
        yield Person(at, size)
