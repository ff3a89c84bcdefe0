"""The server's side of the two upgrades: which of them a request asks for, and in which protocol.

SPDY clients list protocols in `X-Stream-Protocol-Version`; the first that is known is answered in the same header, and
without one the answer is 403 with what would have been accepted. WebSocket clients list subprotocols as everywhere, and
may ask for none. (`httpstream.Handshake`, `wsstream.Conn.Open`.)
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import TYPE_CHECKING, Final

from wsproto.utilities import generate_accept_token

from trikubelet.http.messages import HTTPError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import trio

    from trikubelet.http.messages import Request, Takeover

SPDY: Final = "SPDY/3.1"
STREAM_PROTOCOL: Final = "X-Stream-Protocol-Version"
ACCEPTED_PROTOCOLS: Final = "X-Accepted-Stream-Protocol-Versions"
WEBSOCKET_PROTOCOL: Final = "Sec-WebSocket-Protocol"
TUNNEL_PREFIX: Final = "SPDY/3.1+"


class StreamsMissingError(HTTPError):
    """After the upgrade, the client left or did not open the streams it announced: there is nothing to serve."""

    def __init__(self, message: str) -> None:
        super().__init__(408, message)


def is_websocket(request: Request) -> bool:
    """Whether a request asks for a WebSocket; otherwise it should ask for SPDY."""
    return request.headers.get("upgrade", "").lower() == "websocket" and _wants_upgrade(request)


def _wants_upgrade(request: Request) -> bool:
    return "upgrade" in ",".join(_values(request, "connection")).lower()


def _values(request: Request, name: str) -> list[str]:
    """What a header that may come several times lists, in order."""
    name = name.lower()
    fields = [value for known, value in request.raw_headers if known == name]
    if not fields and name in request.headers:
        fields = [request.headers[name]]
    return [value.strip() for field in fields for value in field.split(",") if value.strip()]


async def accept_spdy(
    request: Request, takeover: Takeover, supported: Sequence[str]
) -> tuple[str, trio.abc.HalfCloseableStream]:
    """Switch to SPDY: the protocol that was agreed on, and the raw connection.

    Raises HTTPError 400 when the request asks for nothing of the kind, 403 when there is no common protocol.
    """
    offered = _values(request, STREAM_PROTOCOL)
    if not offered:
        raise HTTPError(400, f"unable to upgrade: expected protocols in the header {STREAM_PROTOCOL}")
    protocol = next((name for name in offered if name in supported), None)
    if protocol is None:
        raise HTTPError(
            403,
            f"unable to upgrade: the client speaks {', '.join(offered)[:200]}, expected one of {', '.join(supported)}",
            [(ACCEPTED_PROTOCOLS, name) for name in supported],
        )
    if not _wants_upgrade(request) or SPDY.lower() not in request.headers.get("upgrade", "").lower():
        raise HTTPError(400, f"unable to upgrade: expected the headers Connection: Upgrade and Upgrade: {SPDY}")
    headers = [("Connection", "Upgrade"), ("Upgrade", SPDY), (STREAM_PROTOCOL, protocol)]
    return protocol, await takeover.accept(headers)


def tunnelled_protocol(request: Request, supported: Sequence[str]) -> str | None:
    """The subprotocol by which a WebSocket client wants to tunnel SPDY, if it does: "SPDY/3.1+" and a protocol."""
    tunnels = [f"{TUNNEL_PREFIX}{name}" for name in supported]
    return next((name for name in _values(request, WEBSOCKET_PROTOCOL) if name in tunnels), None)


def websocket_protocol(request: Request, supported: Sequence[str]) -> str:
    """The first subprotocol of the client's that is supported; "" must be supported for clients that name none.

    Raises HTTPError 403.
    """
    offered = _values(request, WEBSOCKET_PROTOCOL) or [""]
    for name in offered:
        if name in supported:
            return name
    expected = ", ".join(name for name in supported if name)
    raise HTTPError(403, f"unable to upgrade: the client speaks {', '.join(offered)[:200]}, expected one of {expected}")


async def accept_websocket(request: Request, takeover: Takeover, protocol: str) -> trio.abc.HalfCloseableStream:
    """Switch to a WebSocket with this subprotocol ("": none); the raw connection.

    Raises HTTPError 400, 405 or 426 when the request is no right handshake (RFC 6455, section 4.2.1).
    """
    if request.method != "GET":
        raise HTTPError(405, f"expected GET for a WebSocket, got {request.method}", [("Allow", "GET")])
    if request.headers.get("sec-websocket-version") != "13":
        raise HTTPError(426, "expected Sec-WebSocket-Version: 13", [("Sec-WebSocket-Version", "13")])
    key = request.headers.get("sec-websocket-key", "")
    try:
        valid = len(b64decode(key.encode(), validate=True)) == 16
    except (binascii.Error, ValueError):
        valid = False
    if not valid:
        raise HTTPError(400, "expected 16 bytes in base64 in the header Sec-WebSocket-Key")
    token = generate_accept_token(key.encode()).decode()
    headers = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", token)]
    if protocol:
        headers.append((WEBSOCKET_PROTOCOL, protocol))
    return await takeover.accept(headers)
