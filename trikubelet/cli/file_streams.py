"""Standard streams and pipes as Trio streams. Imports Trio: import it when needed.

Trio's own stream for descriptors makes them non-blocking. That is a property of the open file, not of the process:
the shell, and all other writers to the same terminal, would get it too, and keep it if this process is killed. So
reading waits until there is something and then reads at once, and writing is done by a worker thread.
"""

from __future__ import annotations

import errno
import os
from typing import Final

import trio

_BLOCK: Final = 64 * 2**10


class ReadableFile(trio.abc.ReceiveStream):
    """A descriptor to read from: terminal, pipe, socket, file or device. Stays open.

    A terminal that was hung up is at its end. Nothing is lost when reading from anything but files is cancelled.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._can_wait = True

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        size = max_bytes or _BLOCK
        while True:
            try:
                if await self._wait():
                    return os.read(self._descriptor, size)
                return await trio.to_thread.run_sync(os.read, self._descriptor, size, abandon_on_cancel=True)
            except BlockingIOError:
                continue  # somebody else was quicker, or the kernel changed its mind
            except OSError as error:
                if error.errno == errno.EIO:
                    return b""
                raise

    async def _wait(self) -> bool:
        """Whether it waited; regular files cannot be waited for (EPERM of epoll_ctl)."""
        if self._can_wait:
            try:
                await trio.lowlevel.wait_readable(self._descriptor)
            except PermissionError:
                self._can_wait = False
        return self._can_wait

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class WritableFile(trio.abc.SendStream):
    """A descriptor to write to. Stays open.

    When writing is cancelled, what is being written may still be written. Raises BrokenPipeError when nobody reads
    any more, OSError for what else can happen to files.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(bytes(data))
        while rest:
            try:
                written = await trio.to_thread.run_sync(
                    os.write, self._descriptor, rest[:_BLOCK], abandon_on_cancel=True
                )
                rest = rest[written:]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._descriptor)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
