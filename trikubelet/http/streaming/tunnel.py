"""Port-forward for clients that can only have a WebSocket: it carries their SPDY connection, byte by byte.

kubectl's port-forward is many streams on one SPDY connection. To get it through proxies that know no SPDY it is packed
into the binary messages of a WebSocket (`SPDY/3.1+portforward.k8s.io`), whose borders mean nothing. Runtimes know
nothing of that: here it is unpacked. So a plain SPDY request goes to the runtime, and the WebSocket is accepted
when the runtime has said yes, in the protocol that it chose (apiserver: `TunnelingHandler`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.http.streaming.handshake import TUNNEL_PREFIX, accept_websocket
from trikubelet.http.streaming.proxy import backend_error, forwarded_headers, refusal, splice
from trikubelet.http.streaming.runtime_upgrade import (
    RefusedError,
    RuntimeAddress,
    RuntimeStreamError,
    dial,
    runtime_upgrade,
)
from trikubelet.http.streaming.websocket import WebSocketByteStream, open_websocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    import trio

    from trikubelet.http.messages import Request, Takeover

_SUFFIX: Final = ".k8s.io"
_ABOUT_THE_WEBSOCKET: Final = frozenset(
    {
        "sec-websocket-protocol",
        "sec-websocket-key",
        "sec-websocket-version",
        "sec-websocket-extensions",
        "upgrade",
        "connection",
        "x-stream-protocol-version",
        "content-length",
    }
)


async def tunnel_spdy(
    url: str,
    request: Request,
    takeover: Takeover,
    connect: Callable[[RuntimeAddress], Awaitable[trio.abc.Stream]] = dial,
) -> None:
    """Connect a client's tunnel with the runtime's `url` until one of them ends.

    Raises and answers like `proxy.proxy_upgrade`, and HTTPError for what is no right WebSocket.
    """
    try:
        async with runtime_upgrade(url, "POST", spdy_headers(request), connect) as runtime:
            chosen = runtime.header("x-stream-protocol-version")
            if "spdy/3.1" not in runtime.header("upgrade").lower():
                raise RuntimeStreamError("unable to upgrade: missing upgrade headers in response")
            stream = await accept_websocket(request, takeover, f"{TUNNEL_PREFIX}{chosen}" if chosen else "")
            async with open_websocket(stream, client=False) as websocket:
                await splice(WebSocketByteStream(websocket), runtime)
    except RuntimeStreamError as error:
        raise backend_error(error) from error
    except RefusedError as refused:
        await takeover.answer(refusal(refused))


def spdy_protocols(offered: Iterable[str]) -> tuple[str, ...]:
    """What a client wants to speak through a tunnel, of the WebSocket protocols that it offers."""
    tunnels = (name for name in offered if name.startswith(TUNNEL_PREFIX) and name.endswith(_SUFFIX))
    return tuple(name.removeprefix(TUNNEL_PREFIX) for name in tunnels)


def spdy_headers(request: Request) -> list[tuple[str, str]]:
    """The header fields of the request for SPDY that a client's WebSocket stands for."""
    offers = (value for name, value in request.raw_headers if name == "sec-websocket-protocol")
    protocols = spdy_protocols(protocol.strip() for offer in offers for protocol in offer.split(","))
    forwarded = forwarded_headers(attrs.evolve(request, method="POST"))
    return [
        *((name, value) for name, value in forwarded if name not in _ABOUT_THE_WEBSOCKET),
        ("connection", "Upgrade"),
        ("upgrade", "SPDY/3.1"),
        *(("x-stream-protocol-version", protocol) for protocol in protocols),
        ("content-length", "0"),
    ]
