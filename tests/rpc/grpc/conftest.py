"""A server and a channel to it, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.rpc.grpc.echo import Echo, HandlerFunction, Node
from trikubelet.rpc.grpc import Channel, Server

Start = Callable[..., AbstractAsyncContextManager[tuple[Channel, Node]]]


@asynccontextmanager
async def _start(
    replaced: Mapping[str, HandlerFunction] | None = None, *, channel_size: int = 2**24, **options: Any
) -> AsyncIterator[tuple[Channel, Node]]:
    async with trio.open_nursery() as nursery:
        node = Node(Server([Echo(replaced)], **options), nursery)
        async with Channel(node.connect, max_message_size=channel_size) as channel:
            yield channel, node
        nursery.cancel_scope.cancel()


@pytest.fixture
def start() -> Start:
    """`async with start({path: handler}) as (channel, node)`."""
    return _start


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """The test's clock, if the test asks for it: it jumps whenever everybody waits."""
    return trio.testing.MockClock(autojump_threshold=0)
