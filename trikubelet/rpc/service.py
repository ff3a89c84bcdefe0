"""What the generated stubs and bases of services stand on, in place of betterproto's, which bring grpclib's client and
server, asyncio and h2."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any, TypeVar

from grpclib.const import Cardinality

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trikubelet.rpc.grpc.server_call import ServerStream

M = TypeVar("M")


class ServiceStub:
    """Calls the methods of a service over a channel: ours, or grpclib's.

    A timeout in seconds, a deadline or metadata hold for every call that has none of its own.
    """

    def __init__(
        self, channel: Any, *, timeout: float | None = None, deadline: Any = None, metadata: Any = None
    ) -> None:
        self.channel = channel
        self._usual = {"timeout": timeout, "deadline": deadline, "metadata": metadata}

    async def _unary_unary(self, route: str, request: Any, response_type: type[M], **given: Any) -> M:
        """The reply to one message."""
        async with self._call(route, Cardinality.UNARY_UNARY, request, response_type, given) as stream:
            await stream.send_message(request, end=True)
            reply: M | None = await stream.recv_message()
        assert reply is not None
        return reply

    async def _unary_stream(self, route: str, request: Any, response_type: type[M], **given: Any) -> AsyncIterator[M]:
        """Each reply to one message."""
        async with self._call(route, Cardinality.UNARY_STREAM, request, response_type, given) as stream:
            await stream.send_message(request, end=True)
            async for reply in stream:
                yield reply

    def _call(self, route: str, kind: Cardinality, request: Any, response_type: type, given: dict[str, Any]) -> Any:
        chosen = {name: usual if given.get(name) is None else given[name] for name, usual in self._usual.items()}
        return self.channel.request(route, kind, type(request), response_type, **chosen)


class ServiceBase:
    """A service whose methods a subclass overrides."""

    async def _call_rpc_handler_server_stream(
        self, handler: Callable[[Any], Any], stream: ServerStream[Any, Any], request: Any
    ) -> None:
        """Send what a method yields. One without a `yield` is awaited, and sends nothing."""
        messages = handler(request)
        if isinstance(messages, AsyncIterable):
            async for message in messages:
                await stream.send_message(message)
        else:
            await messages
