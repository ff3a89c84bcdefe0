"""Requests and responses as handlers see them: values, with no socket and no h11 in sight."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    import trio

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class HTTPError(Exception):
    """Answers a request with a status and one line of text. Handlers raise it, also out of their own nurseries."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = tuple(headers)


@frozen
class Peer:
    """The other end of a connection, as far as the connection tells."""

    address: str = ""
    """IP address and port, or "" where there is none (unix socket)."""
    encrypted: bool = False
    certificates: tuple[bytes, ...] = ()
    """DER of what the client showed in the handshake, its own first. They are not verified."""


NOBODY: Final = Peer()


@frozen
class User:
    """The authenticated user (`k8s.io/apiserver`'s `user.Info`)."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)


@frozen
class Request:
    """One request, its body read to the end."""

    method: str
    path: str
    """As sent, percent-encoded, without the query."""
    query: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """Names in lower case; the last one of several with the same name."""
    body: bytes = b""
    params: Mapping[str, str] = attrs.field(factory=dict)
    """What the `{names}` of the route's pattern stand for, decoded: never empty, but a slash or `..` may be in it."""
    target: str = ""
    """Path and query as sent."""
    raw_headers: tuple[tuple[str, str], ...] = ()
    """Every header field as sent, in order; names in lower case."""
    peer: Peer = NOBODY
    user: User | None = None
    """None where no authentication is asked for (the agent's unix socket)."""

    def text(self, name: str) -> str | None:
        """The first value of a query parameter; None when it is absent."""
        return next(iter(self.query.get(name, ())), None)

    def flag(self, name: str) -> bool:
        """A boolean query parameter: `?watch` and `?watch=1` are true, and so are Go's other spellings (`ParseBool`).

        Raises HTTPError 400 for any other value.
        """
        value = self.text(name)
        if value is None or value in ("0", "f", "F", "false", "FALSE", "False"):
            return False
        if value in ("", "1", "t", "T", "true", "TRUE", "True"):
            return True
        raise HTTPError(400, f"query parameter {name}: expected true or false, got {value!r}")

    def number(self, name: str) -> int | None:
        """A query parameter that is a whole number of 64 bits. Raises HTTPError 400 when it is something else."""
        value = self.text(name)
        if not value:
            return None
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and -(2**63) <= int(value) < 2**63:
            return int(value)
        raise HTTPError(400, f"query parameter {name}: expected a whole number, got {value!r}")


class Writer(Protocol):
    """Where a streamed body goes."""

    async def write(self, data: bytes) -> None:
        """Send bytes to the client now. Empty ones send only the response's head, if it has not been sent yet.

        Blocks while the client does not read, for the write timeout at most; a client that is gone or too slow
        cancels the handler, so this never raises for it. When cancelled, some of the bytes may have been sent.
        """
        ...


@frozen
class Response:
    """A whole answer."""

    body: bytes = b""
    status: int = 200
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


@frozen
class StreamResponse:
    """An answer in pieces: `produce` is called with a writer, and ends the answer by returning.

    The head is sent with the first write. What `produce` raises before is answered like what a handler raises; after
    it, the connection is cut without the final chunk, so that the client sees that something is missing. It is
    cancelled when the client goes. For HEAD it is not called.
    """

    produce: Callable[[Writer], Awaitable[None]]
    status: int = 200
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


class Takeover(Protocol):
    """A connection that its handler may take over, or still answer like any other."""

    async def accept(self, headers: Sequence[tuple[str, str]]) -> trio.abc.HalfCloseableStream:
        """Answer 101 with these header fields and nothing else, and get the raw connection. At most once.

        Raises HTTPError 400 when the request did not ask for it.

        The stream begins with what the client has sent already. It is closed when the handler returns. Its
        `send_all` has no time limit: it waits as long as the peer does not read.
        """
        ...

    async def answer(self, response: Response) -> None:
        """Answer with a whole response instead. At most once, and not after `accept`."""
        ...


@frozen
class UpgradeResponse:
    """An answer that may become a raw connection: `handle` decides.

    `handle` is cancelled when the client goes before `accept`; afterwards it reads the stream itself. What it raises
    before `accept` or `answer` is answered like what a handler raises.
    """

    handle: Callable[[Takeover], Awaitable[None]]


AnyResponse = Response | StreamResponse | UpgradeResponse
Handler = Callable[[Request], Awaitable[AnyResponse]]


def json_response(data: Any, status: int = 200) -> Response:
    """`data` as JSON on one line."""
    return Response(json.dumps(data, separators=(",", ":")).encode() + b"\n", status, JSON)


def error_response(error: HTTPError) -> Response:
    """The one line that the client gets."""
    line = " ".join(error.message.split())
    return Response(f"{line}\n".encode(), error.status, headers=error.headers)
