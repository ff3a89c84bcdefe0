"""Commands inside containers: started by the keeper, their streams pumped here.

The ends of the pipes that belong to the command go to the keeper with the request and are closed here; a terminal is
made in the container and comes back with the answer. So a command sees the end of its stdin when ours is closed, and we
see the end of its output when the last process that holds it is gone.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.embedded.keeper_client import KeeperClient, KeeperError, KeeperLostError
from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from trikubelet.http.streaming.command import CommandStreams, TerminalSize

_KILL_DEADLINE: Final = 10.0


@define(eq=False)
class Command:
    """One command that runs, or ran, in a container."""

    stdin: trio.lowlevel.FdStream | None = None
    stdout: trio.lowlevel.FdStream | None = None
    """Like stderr: what it prints; a terminal, once hung up, raises `trio.BrokenResourceError`."""
    stderr: trio.lowlevel.FdStream | None = None
    has_terminal: bool = False
    """Then stdin and stdout are the same stream, and there is no stderr."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    exit_code: int | None = None
    """128 and the signal's number for a killed one; None while it runs, and for good when its keeper died."""

    def resize(self, size: TerminalSize) -> None:
        """Give its terminal another size; the kernel tells the foreground process (SIGWINCH)."""
        if self.stdout is not None and self.has_terminal:
            set_terminal_size(self.stdout.fileno(), size)

    def close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


class Commands:
    """The commands that this agent runs in containers."""

    def __init__(self, keeper: KeeperClient) -> None:
        self._keeper = keeper
        self._running: dict[str, Command] = {}

    def ended(self, event: dict[str, Any]) -> None:
        """The keeper's `exec_ended`."""
        command = self._running.get(event["exec"])
        if command is not None:
            command.exit_code = event["exit_code"]
            command.ended.set()

    def keeper_lost(self) -> None:
        """All commands died with their keeper."""
        for command in self._running.values():
            command.ended.set()

    @asynccontextmanager
    async def start(self, container_id: str, argv: Sequence[str], streams: CommandStreams) -> AsyncIterator[Command]:
        """Start a command. When the body is left before the command has ended, it is killed with all that it started.

        What it left in the background when it ended lives on. Raises KeeperError (it could not be started),
        KeeperLostError, OSError (no descriptors left), trio.TooSlowError.
        """
        name = os.urandom(8).hex()
        command = self._running[name] = Command()
        try:
            fields = {"container": container_id, "exec": name, "argv": list(argv)}
            if streams.tty:
                await self._start_in_terminal(command, fields)
            else:
                await self._start_with_pipes(command, streams, fields)
            yield command
        finally:
            try:
                # Before its streams are closed: a command that ended of that would leave others behind.
                if not command.ended.is_set():
                    await self._kill(name)
            finally:
                command.close()
                del self._running[name]

    async def _start_in_terminal(self, command: Command, fields: dict[str, Any]) -> None:
        _, terminal = await self._keeper.request_descriptor("exec", tty=True, streams=[], **fields)
        if terminal is None:
            raise KeeperError("exec", "internal", "the keeper made no terminal")
        command.has_terminal = True
        command.stdin = command.stdout = trio.lowlevel.FdStream(terminal)

    async def _start_with_pipes(self, command: Command, streams: CommandStreams, fields: dict[str, Any]) -> None:
        theirs: dict[str, int] = {}
        try:
            if streams.stdin:
                theirs["stdin"], writer = os.pipe2(os.O_CLOEXEC)
                command.stdin = trio.lowlevel.FdStream(writer)
            if streams.stdout:
                reader, theirs["stdout"] = os.pipe2(os.O_CLOEXEC)
                command.stdout = trio.lowlevel.FdStream(reader)
            if streams.stderr:
                reader, theirs["stderr"] = os.pipe2(os.O_CLOEXEC)
                command.stderr = trio.lowlevel.FdStream(reader)
            await self._keeper.request("exec", list(theirs.values()), tty=False, streams=list(theirs), **fields)
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)

    async def _kill(self, name: str) -> None:
        with trio.move_on_after(_KILL_DEADLINE, shield=True):
            try:
                await self._keeper.request("exec_kill", exec=name)
            except (KeeperError, KeeperLostError, trio.TooSlowError):
                return  # then the keeper is gone, and the command with it


def set_terminal_size(descriptor: int, size: TerminalSize) -> None:
    """Set the size of the terminal behind its leading end; one without rows or columns is ignored, as by containerd."""
    if size.width > 0 and size.height > 0:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0))
