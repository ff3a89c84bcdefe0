"""Sending one GET request to a server in a pod, for hooks and probes: Trio carries, h11 writes, ssl encrypts.

A probe sends the same request every few seconds: requests are kept as they were written once. Answers are read as Go's
client reads them (`answer`), which is more lenient than h11; h11 takes the chunks of a body apart.

Small on purpose. There is no proxy, no cookie, no connection kept, no credential and no certificate check (the agent
cannot know the issuer of a pod's certificate), and whatever a server sends, no more than the first 10 KiB of a body are
read. Errors are worded as users know them from Go's client, since they end up in events and statuses.

Go's client would speak HTTP/2 where an encrypted server offers it; this one does not offer to.
"""

from __future__ import annotations

import functools
import math
import ssl
from typing import TYPE_CHECKING, Final

import attrs
import h11
import trio

from trikubelet.formats.values import define, frozen
from trikubelet.http.client.answer import MOST_HEAD, AnswerHead, MalformedHeadError
from trikubelet.http.client.connect import close_quietly, connect_socket, dial_problem, dial_timeout, errno_text
from trikubelet.http.client.request import HTTPRequest, HTTPRequestError, redirected

if TYPE_CHECKING:
    import socket

MOST_BODY: Final = 10 * 1024
"""Bytes of a body that are read."""
CONNECT_TIMEOUT: Final = 30.0
"""Go's default."""
_MOST_REDIRECTS: Final = 10
_HANDSHAKE_TIMEOUT: Final = 10.0
_RECEIVE: Final = 16 * 1024
_TELLING: Final = len(b"HTTP/")
_BROKEN: Final = "net/http: HTTP/1.x transport connection broken"


@frozen
class HTTPResponse:
    """An answer, whatever its status."""

    status: int
    location: str = ""
    body: bytes = b""
    """Its first 10 KiB."""
    body_problem: str = ""
    """Why the body ends where it does, when that is neither its end nor the limit."""


@frozen
class HTTPGetError(Exception):
    """There was no answer."""

    url: str
    problem: str
    plain_http: bool = False
    """Asked by HTTPS, the server answered in plain HTTP."""

    def __str__(self) -> str:
        return f'Get "{self.url}": {self.problem}'


async def http_get(
    request: HTTPRequest,
    *,
    timeout: float = math.inf,
    connect_timeout: float = CONNECT_TIMEOUT,
    skip_long_body: bool = True,
) -> HTTPResponse:
    """Send the request, follow redirects to the same host, at most ten; `timeout` seconds for all of it.

    With `skip_long_body`, nothing is read of a body that announces to be longer than would be read of it.
    Raises HTTPGetError when there is no answer. Cancelling closes the connection.
    """
    deadline = trio.current_time() + timeout
    for _ in range(_MOST_REDIRECTS):
        exchange = _Exchange(request, connect_timeout, skip_long_body)
        response = await exchange.run(deadline)
        try:
            following = redirected(request, response.status, response.location)
        except HTTPRequestError as error:
            raise HTTPGetError(request.url, str(error)) from error
        if following is None:
            return response
        request = following
    raise HTTPGetError(request.url, f"stopped after {_MOST_REDIRECTS} redirects")


@define
class _Exchange:
    """One request and its answer, on a connection of their own."""

    request: HTTPRequest
    connect_timeout: float
    skip_long_body: bool
    head: AnswerHead | None = None
    body: bytearray = attrs.field(factory=bytearray)

    async def run(self, deadline: float) -> HTTPResponse:
        """Raises HTTPGetError."""
        problem = ""
        with trio.CancelScope(deadline=deadline) as scope:
            sock = await self._connect()
            try:
                carrier = _SocketStream(sock)
                stream = carrier if self.request.scheme == "http" else await self._encrypt(carrier)
                received = await self._ask(stream)
                self.head, rest = await self._read_head(received, stream)
                problem = await self._read_body(self.head, rest, stream)
            finally:
                close_quietly(sock)
        if self.head is None:
            raise self._error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")
        if scope.cancelled_caught:
            problem = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
        return HTTPResponse(self.head.status, self.head.location, bytes(self.body[:MOST_BODY]), problem)

    async def _connect(self) -> socket.socket:
        host, port = self.request.host, self.request.port
        try:
            with trio.move_on_after(self.connect_timeout):
                return await connect_socket(host, port)
        except OSError as error:
            raise self._error(dial_problem(host, port, error)) from error
        raise self._error(dial_timeout(host, port))

    async def _encrypt(self, carrier: _SocketStream) -> trio.abc.Stream:
        """TLS on the stream; the server's certificate is not verified."""
        name = self.request.host
        encrypted = trio.SSLStream(carrier, _trusting(), server_hostname=name, https_compatible=True)
        try:
            with trio.move_on_after(_HANDSHAKE_TIMEOUT) as scope:
                await encrypted.do_handshake()
        except trio.BrokenResourceError as error:
            if carrier.first.startswith(b"HTTP/"):
                raise self._error("http: server gave HTTP response to HTTPS client", plain_http=True) from error
            raise self._error(self._broken_by(error) if carrier.first else "EOF") from error
        if scope.cancelled_caught:
            raise self._error("net/http: TLS handshake timeout")
        return encrypted

    async def _ask(self, stream: trio.abc.Stream) -> bytes:
        """Send the request. Returns what the answer begins with, or nothing at its end."""
        try:
            written = _written(self.request)
        except (h11.LocalProtocolError, ValueError) as error:
            raise self._error(f"net/http: invalid request: {error}") from error
        try:
            await stream.send_all(written)
            return bytes(await stream.receive_some(_RECEIVE))
        except trio.BrokenResourceError as error:
            raise self._error(self._broken_by(error)) from error

    async def _read_head(self, received: bytes, stream: trio.abc.Stream) -> tuple[AnswerHead, bytes]:
        """The head of the answer that begins with what was received, and what follows it."""
        head, taken = AnswerHead(), 0
        if not received:
            raise self._error("EOF")
        try:
            while (rest := head.feed(received)) is None or head.is_interim:
                taken += len(received)
                if taken > MOST_HEAD:
                    raise self._error(f"net/http: server response headers exceeded {MOST_HEAD} bytes; aborted")
                if rest is not None:
                    head, received, taken = AnswerHead(), rest, taken - len(rest)
                if not rest and not (received := bytes(await stream.receive_some(_RECEIVE))):
                    raise self._error(f"{_BROKEN}: unexpected EOF")
        except MalformedHeadError as error:
            raise self._error(f"{_BROKEN}: {error}") from error
        except trio.BrokenResourceError as error:
            raise self._error(self._broken_by(error)) from error
        return head, rest

    async def _read_body(self, head: AnswerHead, rest: bytes, stream: trio.abc.Stream) -> str:
        """What the body begins with. Returns the problem that cut it short, empty for none."""
        if self.skip_long_body and (head.length or 0) > MOST_BODY:
            return ""
        chunks = _Chunks() if head.chunked else None
        wanted = MOST_BODY if head.length is None else min(head.length, MOST_BODY)
        try:
            while True:
                self.body += rest if chunks is None else chunks.feed(rest)
                if len(self.body) >= wanted or (chunks is not None and chunks.ended):
                    break
                if not (rest := bytes(await stream.receive_some(_RECEIVE))):
                    return "" if head.length is None and chunks is None else "unexpected EOF"
        except trio.BrokenResourceError:
            return "unexpected EOF"
        except h11.RemoteProtocolError:
            return "malformed chunked encoding"
        if head.length is not None:
            del self.body[head.length :]
        return ""

    def _broken_by(self, error: trio.BrokenResourceError) -> str:
        match error.__cause__:
            case ssl.SSLError() as cause:
                return f"tls: {cause.reason or cause}"
            case OSError() as cause:
                return f"read tcp {self.request.address}: read: {errno_text(cause)}"
        return "EOF"

    def _error(self, problem: str, *, plain_http: bool = False) -> HTTPGetError:
        return HTTPGetError(self.request.url, problem, plain_http)


def _events(request: HTTPRequest) -> tuple[h11.Request, h11.EndOfMessage]:
    """Raises LocalProtocolError, and ValueError for what cannot be written at all."""
    headers = [(name.encode(), value.encode()) for name, value in request.header_lines()]
    return h11.Request(method="GET", target=request.target, headers=headers), h11.EndOfMessage()


@functools.lru_cache(maxsize=1024)
def _written(request: HTTPRequest) -> bytes:
    """As it goes over the wire. Raises as `_events`."""
    protocol = h11.Connection(h11.CLIENT)
    return b"".join(protocol.send(event) or b"" for event in _events(request))


@functools.cache
def _trusting() -> ssl.SSLContext:
    """Making one takes five times as long as a whole request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # short keys are as good as unchecked ones
    return context


class _Chunks:
    """Takes the chunks of a body apart, with h11."""

    def __init__(self) -> None:
        self._protocol = h11.Connection(h11.CLIENT)
        self._protocol.send(h11.Request(method="GET", target="/", headers=[("Host", "")]))
        self._protocol.send(h11.EndOfMessage())
        self._protocol.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._protocol.next_event()
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """The body's bytes that are whole with these. Raises RemoteProtocolError."""
        if data:
            self._protocol.receive_data(data)
        found = bytearray()
        while isinstance(event := self._protocol.next_event(), h11.Data):
            found += event.data
        self.ended = isinstance(event, h11.EndOfMessage)
        return bytes(found)


class _SocketStream(trio.abc.Stream):
    """A connected socket as a stream, for one task.

    Trio's own goes through its scheduler at every call; this one does where it has to wait. And this one remembers
    how the other side's first words began, for telling what it speaks when it is not TLS.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.first = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(max_bytes or _RECEIVE)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error
            if len(self.first) < _TELLING:
                self.first += data[:_TELLING]
            return data

    async def aclose(self) -> None:
        close_quietly(self._socket)
        await trio.lowlevel.checkpoint()
