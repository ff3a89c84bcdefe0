"""Running a program of somebody else's, such as a plugin: what it prints is bounded, and it does not outlive the call.

The program leads a process group of its own, so that it is killed with all that it started when it prints without end
or when the caller has no more time for it. What it leaves running after a good end lives on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REAPED_WITHIN: Final = 5.0
"""Seconds after SIGKILL: one that hangs in the kernel is left to it."""


class TooMuchOutputError(Exception):
    """A program printed more to its standard output than an answer can be, and was killed."""

    def __init__(self, most: int) -> None:
        super().__init__(f"it was killed, since it printed more than {most} bytes")


@frozen
class Finished:
    """How a program ended."""

    code: int
    """Negative: the signal that ended it."""
    stdout: bytes = attrs.field(repr=False)
    stderr: bytes
    """Its end, which mostly says what was wrong."""

    @property
    def ending(self) -> str:
        """`exit status 1` or `signal 9`."""
        return f"exit status {self.code}" if self.code >= 0 else f"signal {-self.code}"


async def run_program(
    command: Sequence[str], *, env: Mapping[str, str], stdin: bytes = b"", most_stdout: int, most_stderr: int
) -> Finished:
    """Run a program to its end. Limits are in bytes; of a longer stderr the beginning is dropped.

    Raises OSError and ValueError for one that cannot be run, TooMuchOutputError. Cancelled, it kills the program.
    """
    process = await trio.lowlevel.open_process(
        list(command),
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = bytearray()
    try:
        async with process.stdout, process.stderr, trio.open_nursery() as nursery:
            if process.stdin is not None:
                nursery.start_soon(_feed, process.stdin, stdin)
            nursery.start_soon(_keep_end, process.stderr, stderr, most_stderr)
            stdout = await _read(process.stdout, most_stdout)
            if stdout is None:
                nursery.cancel_scope.cancel()
        if stdout is None:
            raise TooMuchOutputError(most_stdout)
        return Finished(await process.wait(), stdout, bytes(stderr))
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.move_on_after(_REAPED_WITHIN, shield=True):
            await process.wait()
        raise


async def _feed(stream: trio.abc.SendStream, data: bytes) -> None:
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):  # it need not read it
            await stream.send_all(data)


async def _read(stream: trio.abc.ReceiveStream, most: int) -> bytes | None:
    """Everything, or None as soon as it is more than that."""
    read = bytearray()
    async for piece in stream:
        read += piece
        if len(read) > most:
            return None
    return bytes(read)


async def _keep_end(stream: trio.abc.ReceiveStream, kept: bytearray, most: int) -> None:
    async for piece in stream:
        kept += piece
        del kept[:-most]
