"""A server with one handler on one end of a pair of memory streams; the other end is the client's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from trio.testing import memory_stream_pair

from trikubelet.http.connection import HttpConnection
from trikubelet.http.limits import Limits
from trikubelet.http.messages import Peer, Request, Takeover, UpgradeResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@asynccontextmanager
async def serving(
    handle: Callable[[Request, Takeover], Awaitable[None]],
    pair: tuple[trio.abc.Stream, trio.abc.Stream] | None = None,
) -> AsyncIterator[trio.abc.Stream]:
    """The client's end. The server must have ended a while after the body."""
    client, server = pair or memory_stream_pair()

    async def handler(request: Request) -> UpgradeResponse:
        async def take(takeover: Takeover) -> None:
            await handle(request, takeover)

        return UpgradeResponse(take)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(server, handler, Limits(), Peer()).run)
        with trio.fail_after(3600 * 24):
            yield client
            await trio.aclose_forcefully(client)
