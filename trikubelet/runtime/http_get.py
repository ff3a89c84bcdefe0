"""Sending one GET request to a server in a pod, for hooks and probes: Trio carries, h11 speaks, ssl encrypts.

Small on purpose. There is no proxy, no cookie, no connection kept, no credential and no certificate check (the agent
cannot know whom a pod's certificate is from), and whatever a server sends, no more than the first 10 KiB of a body are
read. Errors are worded as users know them from Go's client, since they end up in events and statuses.
"""

from __future__ import annotations

import math
import os
import ssl
from typing import TYPE_CHECKING, Final

import attrs
import h11
import trio

from trikubelet.runtime.http_request import HTTPRequest, HTTPRequestError, redirected

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BODY: Final = 10 * 1024
"""Bytes of a body that are read."""
_MOST_REDIRECTS: Final = 10
_MOST_INTERIM_ANSWERS: Final = 5
_CONNECT_TIMEOUT: Final = 30.0
_HANDSHAKE_TIMEOUT: Final = 10.0
_RECEIVE: Final = 16 * 1024
_BROKEN: Final = "net/http: HTTP/1.x transport connection broken"


@attrs.frozen
class HTTPResponse:
    """An answer, whatever its status."""

    status: int
    location: str = ""
    body: bytes = b""
    """Its first 10 KiB; empty when it announced to be longer than that."""
    body_problem: str = ""
    """Why the body ends where it does, when that is neither its end nor the limit."""


@attrs.frozen
class HTTPGetError(Exception):
    """There was no answer."""

    url: str
    problem: str
    plain_http: bool = False
    """Asked by HTTPS, the server answered in plain HTTP."""

    def __str__(self) -> str:
        return f'Get "{self.url}": {self.problem}'


async def http_get(request: HTTPRequest, *, timeout: float = math.inf) -> HTTPResponse:
    """Send the request, follow redirects to the same host, at most ten; `timeout` seconds for all of it.

    Raises HTTPGetError when there is no answer. Cancelling closes the connection.
    """
    deadline = trio.current_time() + timeout
    for _ in range(_MOST_REDIRECTS):
        response = await _exchange(request, deadline)
        try:
            following = redirected(request, response.status, response.location)
        except HTTPRequestError as error:
            raise HTTPGetError(request.url, str(error)) from error
        if following is None:
            return response
        request = following
    raise HTTPGetError(request.url, f"stopped after {_MOST_REDIRECTS} redirects")


async def _exchange(request: HTTPRequest, deadline: float) -> HTTPResponse:
    connection = h11.Connection(h11.CLIENT)
    stream: trio.abc.Stream | None = None
    head: h11.Response | None = None
    try:
        with trio.CancelScope(deadline=deadline):
            stream = await _connect(request)
            head = await _ask(request, connection, stream)
        if head is None or stream is None:
            problem = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            raise HTTPGetError(request.url, problem)
        body, body_problem = await _read_body(head, connection, stream, deadline)
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)
    location = _header(head, b"location")
    return HTTPResponse(head.status_code, location, body, body_problem)


async def _connect(request: HTTPRequest) -> trio.abc.Stream:
    stream: trio.SocketStream | None = None
    try:
        with trio.move_on_after(_CONNECT_TIMEOUT):
            stream = await trio.open_tcp_stream(request.host, request.port)
    except (OSError, ValueError) as error:
        raise HTTPGetError(request.url, f"dial tcp {request.address}: {_connect_problem(error)}") from error
    if stream is None:
        raise HTTPGetError(request.url, f"dial tcp {request.address}: i/o timeout")
    return stream if request.scheme == "http" else await _encrypt(request, stream)


async def _encrypt(request: HTTPRequest, stream: trio.SocketStream) -> trio.abc.Stream:
    """TLS on the stream, whoever the server says it is. The stream is closed when that fails."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # short keys are as good as unchecked ones
    noted = _NotesFirstBytes(stream)
    encrypted = trio.SSLStream(noted, context, server_hostname=request.host, https_compatible=True)
    try:
        with trio.move_on_after(_HANDSHAKE_TIMEOUT) as scope:
            await encrypted.do_handshake()
        if scope.cancelled_caught:
            raise HTTPGetError(request.url, "net/http: TLS handshake timeout")
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        if noted.first.startswith(b"HTTP/"):
            problem = "http: server gave HTTP response to HTTPS client"
            raise HTTPGetError(request.url, problem, plain_http=True) from error
        cause = error.__cause__
        problem = f"tls: {cause.reason or cause}" if isinstance(cause, ssl.SSLError) and noted.first else "EOF"
        raise HTTPGetError(request.url, problem) from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return encrypted


async def _ask(request: HTTPRequest, connection: h11.Connection, stream: trio.abc.Stream) -> h11.Response:
    """Send the request and wait for the head of the answer."""
    try:
        headers = [(name.encode(), value.encode()) for name, value in request.header_lines()]
        sent = connection.send(h11.Request(method="GET", target=request.target, headers=headers))
    except (h11.LocalProtocolError, ValueError) as error:
        raise HTTPGetError(request.url, f"net/http: invalid request: {error}") from error
    try:
        await stream.send_all((sent or b"") + (connection.send(h11.EndOfMessage()) or b""))
        for _ in range(_MOST_INTERIM_ANSWERS):
            event = await _next_event(connection, stream)
            if isinstance(event, h11.Response):
                return event
    except EOFError as error:
        raise HTTPGetError(request.url, "EOF") from error
    except h11.RemoteProtocolError as error:
        raise HTTPGetError(request.url, f"{_BROKEN}: malformed HTTP response: {error}") from error
    except trio.BrokenResourceError as error:
        raise HTTPGetError(request.url, f"read tcp {request.address}: read: {_errno_text(error.__cause__)}") from error
    raise HTTPGetError(request.url, f"{_BROKEN}: too many 1xx informational responses")


async def _read_body(
    head: h11.Response, connection: h11.Connection, stream: trio.abc.Stream, deadline: float
) -> tuple[bytes, str]:
    """What the body begins with, and the problem that cut it short."""
    announced = _header(head, b"content-length")
    if announced.isdecimal() and int(announced) > MOST_BODY:
        return b"", ""
    body = b""
    try:
        with trio.CancelScope(deadline=deadline) as scope:
            while len(body) < MOST_BODY:
                event = await _next_event(connection, stream)
                if not isinstance(event, h11.Data):
                    break
                body += event.data
    except (h11.RemoteProtocolError, trio.BrokenResourceError):
        return body[:MOST_BODY], "unexpected EOF"
    if scope.cancelled_caught:
        return body, "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
    return body[:MOST_BODY], ""


async def _next_event(connection: h11.Connection, stream: trio.abc.Stream) -> h11.Event:
    """Raises EOFError when the connection ends before an answer."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Event):
            return event
        data = await stream.receive_some(_RECEIVE)
        if not data and connection.their_state is h11.SEND_RESPONSE:
            raise EOFError
        connection.receive_data(bytes(data))


def _header(head: h11.Response, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in head.headers if name == wanted), "")


class _NotesFirstBytes(trio.abc.Stream):
    """Remembers how the other side's first words began, for telling what it speaks when it is not TLS."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.first = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        if len(self.first) < 5:
            self.first += bytes(data[:5])
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


def _connect_problem(error: Exception) -> str:
    """The first of the errors that an attempt on all addresses ended with."""
    for found in _chain(error):
        if isinstance(found, OSError) and found.errno is not None and found.errno > 0:
            return f"connect: {_errno_text(found)}"
    return str(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            for part in error.exceptions:
                yield from _chain(part)
        yield error
        error = error.__cause__


def _errno_text(error: BaseException | None) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return "connection reset by peer"
