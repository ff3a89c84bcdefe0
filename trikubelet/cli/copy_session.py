"""A container's tar at one end of a pipe, and a worker thread at the other. Imports Trio: import it when needed.

The pipe bounds what is in flight, and the end that is closed first ends the other one too: so a thread that reads from
it or writes to it ends with the connection, and can clean up.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

import trio

from trikubelet.cli.agent_stream import connect, stream_errors
from trikubelet.cli.command_session import STDERR, STDOUT, Target
from trikubelet.cli.failures import CommandError
from trikubelet.cli.file_streams import ReadableFile, WritableFile
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.http.streaming.client import open_command
from trikubelet.http.streaming.command import CommandResult, Exited

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK: Final = 64 * 2**10


async def run_quietly(target: Target) -> CommandResult:
    """Run a command without streams. Raises CommandError."""
    return await _run(target, None, None, None)


async def receive_archive(target: Target, extract: Callable[[IO[bytes]], object]) -> CommandResult:
    """Run a command, and in a thread `extract` with what it prints.

    Raises CommandError, and what `extract` raises, unless the command has failed: then its stream is cut short, and
    that is what `extract` complains of.
    """
    reading, writing = os.pipe()
    worker = _Worker()

    def work() -> None:
        with os.fdopen(reading, "rb", buffering=0) as stream:
            extract(stream)
            while stream.read(_BLOCK):  # the padding behind the archive
                pass

    result: CommandResult | None = None
    with stream_errors(target.socket):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run, work)
            try:
                with suppress(BrokenPipeError):
                    result = await _run(target, None, WritableFile(writing), WritableFile(STDERR))
            finally:
                os.close(writing)
    if worker.problem is not None and (result is None or result == Exited(0)):
        raise worker.problem
    if result is None:
        raise BrokenPipeError  # of our own stderr
    return result


async def send_archive(target: Target, create: Callable[[IO[bytes]], object]) -> CommandResult:
    """Run a command, with what `create` writes in a thread as its stdin.

    Raises CommandError, and what `create` raises.
    """
    reading, writing = os.pipe()
    worker = _Worker()

    def work() -> None:
        with os.fdopen(writing, "wb", buffering=0) as stream:
            create(stream)

    with stream_errors(target.socket):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run, work)
            try:
                result = await _run(target, ReadableFile(reading), WritableFile(STDOUT), WritableFile(STDERR))
            finally:
                os.close(reading)
    if worker.problem is not None and not isinstance(worker.problem, BrokenPipeError):
        raise worker.problem
    return result


class _Worker:
    """A thread whose failure is kept for later: the other end of its pipe may know better why."""

    def __init__(self) -> None:
        self.problem: Exception | None = None

    async def run(self, work: Callable[[], None]) -> None:
        """Not abandoned when cancelled: it ends when the other end of its pipe is closed."""
        try:
            await trio.to_thread.run_sync(work)
        except (ArchiveError, CommandError, OSError) as error:
            self.problem = error


async def _run(
    target: Target,
    stdin: trio.abc.ReceiveStream | None,
    stdout: trio.abc.SendStream | None,
    stderr: trio.abc.SendStream | None,
) -> CommandResult:
    with stream_errors(target.socket):
        async with open_command(await connect(target.socket), target.url, target.streams) as command:
            return await command.run(stdin, stdout, stderr)
