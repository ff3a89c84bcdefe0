"""What has arrived for one stream of a connection and has not been read yet: bounded, since the peers are not.

Neither SPDY as Kubernetes speaks it nor its WebSocket channels have flow control by stream: a peer sends what it has.
So the connection's reader waits here when a stream is full, or when all streams together are, and then the whole
connection waits, until TCP makes the peer wait. An unread stream stops its neighbours; that is the price,
and moby/spdystream pays the same. Closing a stream's inbox drops its data.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs
import trio

from trikubelet.formats.values import define

_CHUNK: Final = 64
"""What keeping a piece costs beside its bytes: many tiny ones must not cost more than the limit says."""


@define
class Room:
    """What all inboxes of one connection may hold together."""

    limit: int
    used: int = 0
    """Never above `limit` by more than one piece."""
    changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)


class Inbox:
    """One stream's bytes between the connection's reader (`put`, `end`) and one task that takes them."""

    def __init__(self, limit: int, room: Room) -> None:
        self._limit = limit
        self._room = room
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._arrived = trio.lowlevel.ParkingLot()
        self._taking = False
        self._closed = False
        self.ended = False
        """Nothing more arrives."""
        self._broken = ""

    @property
    def size(self) -> int:
        """Bytes held, with what it costs to hold them."""
        return self._size

    async def put(self, data: bytes) -> None:
        """Keep data, as soon as there is room. Drops them when the inbox is closed."""
        while self._wanted() and (self._size >= self._limit or self._room.used >= self._room.limit):
            await self._room.changed.park()
        if data and self._wanted():
            self._pieces.append(data)
            self._account(len(data) + _CHUNK)
            self._arrived.unpark()

    def _wanted(self) -> bool:
        return not (self.ended or self._closed)

    def end(self, broken: str = "") -> None:
        """Nothing more arrives: in order, or because of what `broken` says. What is here can still be taken."""
        if not self.ended:
            self.ended, self._broken = True, broken
            self._arrived.unpark_all()
            self._room.changed.unpark_all()

    def close(self) -> None:
        """Drop what is here and what arrives. A task that waits for data gets `trio.ClosedResourceError`."""
        self._closed = True
        self._pieces.clear()
        self._account(-self._size)
        self._arrived.unpark_all()
        self._room.changed.unpark_all()

    async def take(self, max_bytes: int | None = None) -> bytes:
        """At least one byte; b"" at the end. Nothing is lost when it is cancelled.

        Raises `trio.BrokenResourceError` when the stream did not end in order, `trio.ClosedResourceError` after
        `close`, and `trio.BusyResourceError` when another task is here.
        """
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes: expected at least 1, got {max_bytes}")
        if self._taking:
            raise trio.BusyResourceError("another task is already receiving from this stream")
        await trio.lowlevel.checkpoint()
        self._taking = True
        try:
            while not (self._pieces or self.ended or self._closed):
                await self._arrived.park()
        finally:
            self._taking = False
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        if self._pieces:
            return self._first(max_bytes)
        if self._broken:
            raise trio.BrokenResourceError(self._broken)
        return b""

    def _first(self, max_bytes: int | None) -> bytes:
        piece = self._pieces.popleft()
        if max_bytes is not None and len(piece) > max_bytes:
            self._pieces.appendleft(piece[max_bytes:])
            piece = piece[:max_bytes]
            self._account(-max_bytes)
        else:
            self._account(-len(piece) - _CHUNK)
        return piece

    def _account(self, size: int) -> None:
        self._size += size
        self._room.used += size
        if size < 0:
            self._room.changed.unpark_all()
