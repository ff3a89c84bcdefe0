"""A pair of connected streams in memory, which behave as the two ends of a Unix socket.

`trio.testing.memory_stream_pair` passes through the scheduler for each send. These can also send at once, as
`rpc.grpc.unix.UnixStream` can: the same path through the gRPC engine is taken as on a real socket, and a simulated call
costs six scheduler passes less.
"""

from __future__ import annotations

import trio

CAPACITY = 256 * 2**10
"""Bytes on their way in one direction. About what Linux gives a Unix socket."""


class _Pipe:
    """One direction."""

    __slots__ = ("arrived", "data", "receiver_gone", "room", "sender_gone")

    def __init__(self) -> None:
        self.data = bytearray()
        self.sender_gone = False
        self.receiver_gone = False
        self.arrived = trio.lowlevel.ParkingLot()
        self.room = trio.lowlevel.ParkingLot()


class PipeStream(trio.abc.Stream):
    """One end. One task may receive while another sends."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Send what there is room for; returns how many bytes that were.

        Raises `trio.BrokenResourceError` when the peer is gone, `trio.ClosedResourceError` after `aclose`.
        """
        pipe = self._outgoing
        if pipe.sender_gone:
            raise trio.ClosedResourceError("this end has been closed")
        if pipe.receiver_gone:
            raise trio.BrokenResourceError("the peer has closed its end")
        sent = min(len(data), CAPACITY - len(pipe.data))
        if sent:
            pipe.data += data[:sent]
            pipe.arrived.unpark()
        return sent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. When cancelled, part of it may have been sent."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with memoryview(data) as view:
            sent = self.send_nowait(view)
            while sent < len(view):
                await self._outgoing.room.park()
                sent += self.send_nowait(view[sent:])
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """Sleep until there is room."""
        pipe = self._outgoing
        while len(pipe.data) >= CAPACITY and not (pipe.sender_gone or pipe.receiver_gone):
            await pipe.room.park()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has arrived; b"" when the peer has closed. Nothing is lost when this is cancelled."""
        pipe = self._incoming
        if pipe.data or pipe.sender_gone or pipe.receiver_gone:
            await trio.lowlevel.checkpoint()
        while True:
            if pipe.receiver_gone:
                raise trio.ClosedResourceError("this end has been closed")
            if pipe.data:
                count = len(pipe.data) if max_bytes is None else max_bytes
                data = bytes(pipe.data[:count])
                del pipe.data[:count]
                pipe.room.unpark()
                return data
            if pipe.sender_gone:
                return b""
            await pipe.arrived.park()

    async def aclose(self) -> None:
        """Close both directions; the peer reads what was sent, then b""."""
        self._outgoing.sender_gone = True
        self._incoming.receiver_gone = True
        for pipe in (self._outgoing, self._incoming):
            pipe.arrived.unpark_all()
            pipe.room.unpark_all()
        await trio.lowlevel.checkpoint()


def pipe_stream_pair() -> tuple[PipeStream, PipeStream]:
    """Two connected ends."""
    there, back = _Pipe(), _Pipe()
    return PipeStream(back, there), PipeStream(there, back)
