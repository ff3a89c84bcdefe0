"""A connection that is HTTP no more, on either side of it."""

from __future__ import annotations

import trio


class RawStream(trio.abc.HalfCloseableStream):
    """A connection that was taken over: first what had arrived already, then the stream itself."""

    def __init__(self, stream: trio.abc.Stream, first: bytes) -> None:
        self._stream = stream
        self._first = bytes(first)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._first:
            return bytes(await self._stream.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()
        most = len(self._first) if max_bytes is None else max_bytes
        data, self._first = self._first[:most], self._first[most:]
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Say that nothing more comes. A stream that cannot say it is left open: the other side learns at its end."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        else:
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()
