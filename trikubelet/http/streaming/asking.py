"""Asking an HTTP server for an upgrade: one request on a connected stream, and what is answered."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import h11
import trio

from trikubelet.formats.values import frozen
from trikubelet.http.raw_stream import RawStream

if TYPE_CHECKING:
    from collections.abc import Sequence

REFUSAL_SIZE: Final = 64 * 2**10
"""Bytes of an answer that is no upgrade; what is beyond is cut off."""
REFUSAL_TIMEOUT: Final = 10.0
"""Seconds for them."""
SWITCHING: Final = 101
_HEAD_SIZE: Final = 64 * 2**10
_RECEIVE: Final = 16 * 2**10


@frozen
class Answer:
    """What the server said."""

    status: int
    headers: tuple[tuple[str, str], ...]
    """As sent."""
    stream: RawStream
    """After a 101 the raw connection, which begins with what came right after the answer."""
    body: bytes = b""
    """Of any other answer, as far as it came in time and is wanted."""


async def ask_for_upgrade(
    stream: trio.abc.Stream, method: str, target: str, headers: Sequence[tuple[str, str]], *, timeout: float
) -> Answer:
    """`target`: path and query. `headers` say everything, Host too. `timeout`: seconds until the answer's head.

    Raises h11.LocalProtocolError for a request that is none, h11.RemoteProtocolError, trio.BrokenResourceError and
    trio.TooSlowError; the stream then is of no further use.
    """
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_SIZE)
    with trio.fail_after(timeout):
        request = http.send(h11.Request(method=method, target=target, headers=list(headers))) or b""
        await stream.send_all(request + (http.send(h11.EndOfMessage()) or b""))
        head = await _head(stream, http)
    body = b"" if head.status_code == SWITCHING else await _body(stream, http)
    fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers.raw_items())
    return Answer(head.status_code, fields, RawStream(stream, http.trailing_data[0]), body)


async def _head(stream: trio.abc.Stream, http: h11.Connection) -> h11.InformationalResponse | h11.Response:
    """What comes before the answer (100 and 103) is skipped."""
    while True:
        event = http.next_event()
        if isinstance(event, h11.Response):
            return event
        if isinstance(event, h11.InformationalResponse) and event.status_code == SWITCHING:
            return event
        if event is h11.NEED_DATA:
            data = await stream.receive_some(_RECEIVE)
            if not data:
                raise trio.BrokenResourceError("the connection ended before an answer")
            http.receive_data(bytes(data))


async def _body(stream: trio.abc.Stream, http: h11.Connection) -> bytes:
    body = bytearray()
    with trio.move_on_after(REFUSAL_TIMEOUT), suppress(trio.BrokenResourceError, h11.RemoteProtocolError):
        while len(body) < REFUSAL_SIZE:
            event = http.next_event()
            if isinstance(event, h11.Data):
                body += event.data
            elif event is h11.NEED_DATA:
                http.receive_data(bytes(await stream.receive_some(_RECEIVE)))
            else:
                break
    return bytes(body[:REFUSAL_SIZE])
