"""Counting requests around a handler, from their beginning until the answer was sent, or the stream has ended."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs

from trikubelet.http.messages import AnyResponse, Handler, Request, Response, StreamResponse

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from trikubelet.http.messages import Takeover, Writer


def counted(handler: Handler, count: Callable[[str, str], AbstractContextManager[None]]) -> Handler:
    """`handler`, within `count(method, path)`. A whole answer counts as sent when it is there."""

    async def answer(request: Request) -> AnyResponse:
        with ExitStack() as stack:
            stack.enter_context(count(request.method, request.path))
            response = await handler(request)
            if isinstance(response, Response) or (isinstance(response, StreamResponse) and request.method == "HEAD"):
                return response
            return _within(response, stack.pop_all())
        raise AssertionError("unreachable")

    return answer


def _within(response: AnyResponse, stack: ExitStack) -> AnyResponse:
    """A response whose sending closes `stack` at its end. The server sends it, or is cancelled meanwhile."""
    if isinstance(response, StreamResponse):
        produce = response.produce

        async def produce_within(writer: Writer) -> None:
            with stack:
                await produce(writer)

        return attrs.evolve(response, produce=produce_within)
    assert not isinstance(response, Response)
    handle = response.handle

    async def handle_within(takeover: Takeover) -> None:
        with stack:
            await handle(takeover)

    return attrs.evolve(response, handle=handle_within)
