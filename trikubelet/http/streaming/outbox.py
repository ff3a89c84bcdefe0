"""Frames of many tasks on their way into one byte stream: whole, in order, by one task.

A task that sends waits until its frame is written, so that each task has one frame here at most. The writing is done by
a task of its own (`run`): one that is cancelled while it waits takes its frame back, or leaves it to be written to its
end when writing has begun. With a lock instead, a cancelled sender could leave half a frame on the wire, and nobody
after it would be understood.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs
import trio

from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F")

_BATCH: Final = 64 * 2**10
"""Frames that wait are written together up to about this many bytes."""


@define(eq=False)
class _Entry(Generic[F]):
    frame: F
    done: trio.Event = attrs.field(factory=trio.Event)
    failed: bool = False


class Outbox(Generic[F]):
    """`encode` turns a frame into bytes when its turn has come; it may raise `trio.BrokenResourceError` for one."""

    def __init__(self, transport: trio.abc.SendStream, encode: Callable[[F], bytes]) -> None:
        self._transport = transport
        self._encode = encode
        self._queue: deque[_Entry[F]] = deque()
        self._written = trio.lowlevel.ParkingLot()
        self._added = trio.lowlevel.ParkingLot()
        self._writing = False
        self._broken = ""

    def __len__(self) -> int:
        return len(self._queue)

    async def run(self) -> None:
        """Write what is sent until the transport breaks or this is cancelled."""
        try:
            while True:
                while not self._queue:
                    await self._added.park()
                batch, data = self._next_batch()
                self._writing = True
                try:
                    await self._transport.send_all(data)
                finally:
                    for entry in batch:
                        entry.done.set()
                self._writing = False
                self._written.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.fail(f"the connection is broken: {error}")
        finally:
            self.fail("the connection was closed")

    def _next_batch(self) -> tuple[list[_Entry[F]], bytes]:
        batch, data = [], bytearray()
        while self._queue and len(data) < _BATCH:
            entry = self._queue.popleft()
            batch.append(entry)
            try:
                data += self._encode(entry.frame)
            except trio.BrokenResourceError:
                entry.failed = True
        return batch, bytes(data)

    def fail(self, reason: str) -> None:
        """Write nothing more; all waiting senders get `trio.BrokenResourceError`. The first reason counts."""
        self._broken = self._broken or reason
        while self._queue:
            entry = self._queue.popleft()
            entry.failed = True
            entry.done.set()
        self._written.unpark_all()

    async def flush(self) -> None:
        """Wait until everything is written, or nothing more can be."""
        await trio.lowlevel.checkpoint()
        while (self._queue or self._writing) and not self._broken:
            await self._written.park()

    async def send(self, frame: F) -> None:
        """Write a frame. Raises `trio.BrokenResourceError`. Cancelled: not written, or written whole."""
        entry = self._add(frame)
        try:
            await self._wait(entry)
        except trio.Cancelled:
            with suppress(ValueError):
                self._queue.remove(entry)
            raise

    async def deliver(self, frame: F) -> None:
        """Like `send`, but the frame is also written when this is cancelled: for news that the peer must get."""
        await self._wait(self._add(frame))

    def post(self, frame: F) -> None:
        """Have a frame written some time. The caller bounds how many; `len()` is how many wait."""
        with suppress(trio.BrokenResourceError):
            self._add(frame)

    def _add(self, frame: F) -> _Entry[F]:
        if self._broken:
            raise trio.BrokenResourceError(self._broken)
        entry = _Entry(frame)
        self._queue.append(entry)
        self._added.unpark()
        return entry

    async def _wait(self, entry: _Entry[F]) -> None:
        await entry.done.wait()
        if entry.failed or self._broken:
            raise trio.BrokenResourceError(self._broken or "the connection is closing")
