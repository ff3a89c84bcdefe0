"""What the generated bases of services stand on, in place of betterproto's, which brings grpclib's server and h2."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.rpc.grpc.server_call import ServerStream


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
