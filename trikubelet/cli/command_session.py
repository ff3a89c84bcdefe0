"""A command in a container and this process's own streams, for `exec` and `attach`.

Imports Trio: import it when needed.

    stdin          →  stdin       until its end, which the command sees too
    its terminal   →  sizes       at the beginning and with each SIGWINCH
    stdout, stderr ←  the same
    exit code      ←  result      when everything that was printed has been written

SIGINT, SIGTERM, SIGHUP and SIGQUIT cut the connection, which ends what `exec` started. With a terminal, Ctrl-C is a key
like any other and goes to the command. Whatever happens, the terminal gets its modes back.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import trio

from trikubelet.cli.agent_stream import connect, stream_errors
from trikubelet.cli.file_streams import ReadableFile, WritableFile
from trikubelet.cli.terminal import DetachKeys, RawTerminal, raw_terminal
from trikubelet.formats.values import frozen
from trikubelet.http.streaming.client import open_command
from trikubelet.http.streaming.command import CommandResult, CommandStreams, TerminalSize

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.http.streaming.client import ClientCommand

STDIN, STDOUT, STDERR = 0, 1, 2
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@frozen
class Target:
    """What is asked of which agent."""

    socket: Path
    path: str
    """Such as `/exec/default/web/main`."""
    streams: CommandStreams
    command: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        asked = {"input": self.streams.stdin, "output": self.streams.stdout}
        asked |= {"error": self.streams.stderr, "tty": self.streams.tty}
        query = [("command", word) for word in self.command] + [(name, "1") for name, wanted in asked.items() if wanted]
        return f"{quote(self.path)}?{urlencode(query, errors='surrogateescape')}"


@frozen
class Interrupted:
    """A signal ended the session."""

    number: int


@frozen
class Detached:
    """The detach keys ended the session."""


Outcome = CommandResult | Interrupted | Detached


async def interact(target: Target, *, raw: bool, redraw: bool = False, detach: DetachKeys | None = None) -> Outcome:
    """Run a session with this process's streams. `raw`: stdin is a terminal that belongs to the command meanwhile.

    `redraw`: have what is drawn on the terminal drawn again. Raises CommandError, BrokenPipeError when the reader of
    its output is gone, OSError. When cancelled the command is cut off.
    """
    session = _Session(target, redraw=redraw, detach=detach)
    with ExitStack() as stack, trio.open_signal_receiver(*_ENDING) as signals, stream_errors(target.socket):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.await_signal, signals, nursery.cancel_scope)
            async with open_command(await connect(target.socket), target.url, target.streams) as command:
                if raw:
                    terminal = stack.enter_context(raw_terminal(STDIN))
                    nursery.start_soon(session.send_sizes, command, terminal)
                await session.run(command)
            nursery.cancel_scope.cancel()
    assert session.outcome is not None
    return session.outcome


class _Session:
    def __init__(self, target: Target, *, redraw: bool, detach: DetachKeys | None) -> None:
        self._streams = target.streams
        self._redraw = redraw
        self._detach = detach
        self.outcome: Outcome | None = None
        """The first one counts."""

    async def run(self, command: ClientCommand) -> None:
        stdin: trio.abc.ReceiveStream | None = None
        with trio.CancelScope() as scope:
            if self._streams.stdin:
                stdin = ReadableFile(STDIN)
                if self._detach is not None:
                    stdin = _Detachable(stdin, self._detach, scope)
            result = await command.run(stdin, WritableFile(STDOUT), WritableFile(STDERR))
            self.outcome = self.outcome or result
        self.outcome = self.outcome or Detached()

    async def await_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for number in signals:
            self.outcome = self.outcome or Interrupted(number)
            scope.cancel()

    async def send_sizes(self, command: ClientCommand, terminal: RawTerminal) -> None:
        """Send the terminal's size now and whenever it changes, or this process goes on after it was stopped."""
        with trio.open_signal_receiver(signal.SIGWINCH, signal.SIGCONT) as signals, suppress(trio.BrokenResourceError):
            await _send_size(command, terminal, more=1 if self._redraw else 0)
            if self._redraw:
                # Two different sizes: programs draw their screen again only when it changes.
                await _send_size(command, terminal)
            async for number in signals:
                if number == signal.SIGCONT:
                    terminal.enter()
                await _send_size(command, terminal)


async def _send_size(command: ClientCommand, terminal: RawTerminal, more: int = 0) -> None:
    if (size := terminal.size()) is not None:
        columns, lines = size
        await command.resize(TerminalSize(width=columns + more, height=lines + more))


class _Detachable(trio.abc.ReceiveStream):
    """What is typed, up to the detach keys: these end the session."""

    def __init__(self, typed: trio.abc.ReceiveStream, keys: DetachKeys, scope: trio.CancelScope) -> None:
        self._typed = typed
        self._keys = keys
        self._scope = scope

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while data := await self._typed.receive_some(max_bytes):
            passed, complete = self._keys.feed(bytes(data))
            if complete:
                self._scope.cancel()
                await trio.lowlevel.checkpoint()
            if passed:
                return passed
        return b""

    async def aclose(self) -> None:
        await self._typed.aclose()
