"""What the client and its transports tell each other about one request, beside what httpx carries.

httpx has no words for three facts that matter here: whether a request may have reached the server before it failed,
that a response is a watch and ends when the connection's credentials are replaced, and that it ended for that reason.
And bodies are read here without httpx: its chain of async generators must be read to the end, which a watch never is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

if TYPE_CHECKING:
    import httpx

EXCHANGE: Final = "trikubelet.exchange"
BODY: Final = "trikubelet.body"
"""Names of the extensions of a request and of a response."""


class Body(Protocol):
    """The body of a response, as it arrives and as it was encoded."""

    async def receive(self) -> bytes:
        """The next piece; empty at the end. Raises a subclass of httpx.TransportError when the connection is lost."""
        ...

    async def aclose(self) -> None:
        """Be done with the response, read to its end or not. Takes no time that the peer decides on."""
        ...


@attrs.define
class Exchange:
    """One attempt to make a request."""

    lasting: bool = False
    """The response is a watch."""
    sent: bool = False
    """The request may have reached the server."""
    retired: bool = False
    """The watch was ended on this side, because it has to begin again on a new connection."""


def exchange_of(request: httpx.Request) -> Exchange:
    """The exchange that a request belongs to; requests that the client did not make get one of their own."""
    found = request.extensions.get(EXCHANGE)
    return found if isinstance(found, Exchange) else Exchange()
