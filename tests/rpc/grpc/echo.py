"""A service with one method of each kind, on messages that are plain bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio
import trio.testing
from grpclib.const import Cardinality, Handler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grpclib.metadata import _MetadataLike

    from trikubelet.rpc.grpc import Channel, ClientStream, Server

WHOLE = "/test.Echo/Whole"
SPLIT = "/test.Echo/Split"
JOIN = "/test.Echo/Join"
EACH = "/test.Echo/Each"

CARDINALITY = {
    WHOLE: Cardinality.UNARY_UNARY,
    SPLIT: Cardinality.UNARY_STREAM,
    JOIN: Cardinality.STREAM_UNARY,
    EACH: Cardinality.STREAM_STREAM,
}


@attrs.frozen
class Text:
    """A message that is its bytes."""

    body: bytes = b""

    def SerializeToString(self) -> bytes:
        return self.body

    @classmethod
    def FromString(cls, data: bytes) -> Text:
        if data == b"unparsable":
            raise ValueError("this is the message that cannot be parsed")
        return cls(data)


HandlerFunction = Callable[[Any], Awaitable[None]]


class Echo:
    """Whole returns the message, Split its words, Join all messages as one, Each every message.

    A test replaces a method by giving another function for its path.
    """

    def __init__(self, replaced: Mapping[str, HandlerFunction] | None = None) -> None:
        self._functions: dict[str, HandlerFunction] = {
            WHOLE: self.whole,
            SPLIT: self.split,
            JOIN: self.join,
            EACH: self.each,
            **(replaced or {}),
        }

    async def whole(self, stream: Any) -> None:
        await stream.send_message(await stream.recv_message())

    async def split(self, stream: Any) -> None:
        message = await stream.recv_message()
        for word in message.body.split():
            await stream.send_message(Text(word))

    async def join(self, stream: Any) -> None:
        await stream.send_message(Text(b" ".join([message.body async for message in stream])))

    async def each(self, stream: Any) -> None:
        async for message in stream:
            await stream.send_message(message)

    def __mapping__(self) -> dict[str, Handler]:
        return {path: Handler(func, CARDINALITY[path], Text, Text) for path, func in self._functions.items()}


def open_call(
    channel: Channel, path: str, *, timeout: float | None = None, metadata: _MetadataLike | None = None
) -> ClientStream[Text, Text]:
    return channel.request(path, CARDINALITY[path], Text, Text, timeout=timeout, metadata=metadata)


async def call(channel: Channel, path: str, *bodies: bytes, timeout: float | None = None) -> list[bytes]:
    """Send these messages, and return those of the reply."""
    async with open_call(channel, path, timeout=timeout) as stream:
        for body in bodies[:-1]:
            await stream.send_message(Text(body))
        await stream.send_message(Text(bodies[-1]), end=True)
        return [message.body async for message in stream]


async def pour(channel: Channel, path: str, *, timeout: float | None = None) -> None:
    """Send messages until something stops it."""
    async with open_call(channel, path, timeout=timeout) as stream:
        while True:
            await stream.send_message(Text(b"x" * 2**20))


async def read(channel: Channel, path: str, received: list[bytes], *, timeout: float | None = None) -> None:
    """Send one message, and put those of the reply into `received` as they come."""
    async with open_call(channel, path, timeout=timeout) as stream:
        await stream.send_message(Text())
        async for message in stream:
            received.append(message.body)


class Node:
    """A server that can be dialled in memory, hung up on, and told to be away."""

    def __init__(self, server: Server, nursery: trio.Nursery) -> None:
        self.server = server
        self.dials: list[float] = []
        self.away: OSError | None = None
        self._nursery = nursery
        self._scopes: list[trio.CancelScope] = []

    async def connect(self) -> trio.abc.Stream:
        self.dials.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.away is not None:
            raise self.away
        near, far = trio.testing.memory_stream_pair()
        scope = trio.CancelScope()
        self._scopes.append(scope)
        self._nursery.start_soon(self._serve, far, scope)
        self._pair = (near, far)
        return near

    async def _serve(self, stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
        with scope:
            await self.server.serve_stream(stream)

    async def cut(self) -> None:
        """Break the newest connection as a crash would: both ends see it closed, nothing is said."""
        for end in self._pair:
            end.send_stream.close()

    def stop(self) -> None:
        """Cancel all connections' servers."""
        for scope in self._scopes:
            scope.cancel()
