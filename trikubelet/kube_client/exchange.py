"""One request to the API server and its answer, as the client and its transports see them.

They say three things that no HTTP library has words for: whether a request may have reached the server before it
failed, that a response is a watch and ends when the connection's credentials are replaced, and that it ended for that
reason. And they carry little else, since a pod's life takes a dozen requests: httpx, which was here, looked for
cookies, redirects and authentication each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Sequence


class TransportError(Exception):
    """A request got no answer, or not all of it. It may have reached the server."""


class NotSentError(TransportError):
    """The request did not reach the server."""


class Body(Protocol):
    """The body of a response, as it arrives and as it was encoded."""

    async def receive(self) -> bytes:
        """The next piece; empty at the end. Raises TransportError when the connection is lost."""
        ...

    async def aclose(self) -> None:
        """Be done with the response, read to its end or not. Works in a cancelled scope, and takes no time that the
        peer decides on."""
        ...


@define
class Exchange:
    """One attempt to make a request."""

    lasting: bool = False
    """The response is a watch."""
    sent: bool = False
    """The request may have reached the server."""
    retired: bool = False
    """The watch was ended on this side, because it has to begin again on a new connection."""


@define
class Request:
    """What is asked."""

    method: str
    scheme: str
    authority: str
    """Host and port, as they are written in a URL."""
    target: str
    """Path and query, quoted."""
    headers: list[tuple[bytes, bytes]]
    """Names in small letters. Those about the connection and the body's length are the transport's."""
    body: bytes
    exchange: Exchange

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


@define
class Reply:
    """The head of a response, and its body to be read. Whoever has it closes the body."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    """Names in small letters."""
    body: Body

    @property
    def success(self) -> bool:
        return 200 <= self.status < 300

    def header(self, name: bytes) -> str:
        """Empty when there is none."""
        return next((value for key, value in self.headers if key == name), b"").decode("latin-1")


class Sends(Protocol):
    """A way to the API server."""

    async def send(self, request: Request) -> Reply:
        """Send a request and wait for the head of its response. Raises TransportError and CredentialsError."""
        ...
