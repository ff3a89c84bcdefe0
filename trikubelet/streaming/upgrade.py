"""The client's side of an HTTP upgrade: one request on a connected stream, and the raw connection after a 101."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import h11
import trio

from trikubelet.server.connection import RawStream

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_TIMEOUT: Final = 60.0
_HEAD_SIZE: Final = 64 * 2**10
_REFUSAL_SIZE: Final = 64 * 2**10
_REFUSAL_TIMEOUT: Final = 10.0
_RECEIVE: Final = 16 * 2**10


class UpgradeError(Exception):
    """No upgraded connection. `status` is the answer's, 0 when there was none that could be understood."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the server answered with status {status}: {message}" if status else message)
        self.status = status
        self.message = message


@attrs.frozen
class Upgraded:
    """`headers`: of the answer, names in lower case."""

    headers: Mapping[str, str]
    stream: trio.abc.HalfCloseableStream


async def upgrade(stream: trio.abc.Stream, method: str, target: str, headers: Sequence[tuple[str, str]]) -> Upgraded:
    """Ask for an upgrade. `target`: path and query; `headers`: all, with Connection and Upgrade.

    Raises UpgradeError, after 60 seconds at the latest. The stream then is of no further use.
    """
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_SIZE)
    try:
        fields = [("Host", "localhost"), *headers, ("Content-Length", "0")]
        request = http.send(h11.Request(method=method, target=target, headers=fields)) or b""
        with trio.fail_after(ANSWER_TIMEOUT):
            await stream.send_all(request + (http.send(h11.EndOfMessage()) or b""))
            answer = await _answer(stream, http)
        if answer.status_code != 101:
            text = (await _body(stream, http)).decode(errors="replace").strip()
            raise UpgradeError(answer.status_code, text or "no reason given")
    except h11.ProtocolError as error:
        raise UpgradeError(0, f"expected HTTP/1.1 from the server: {error}") from error
    except trio.TooSlowError:
        raise UpgradeError(0, f"the server did not answer within {ANSWER_TIMEOUT:g} seconds") from None
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise UpgradeError(0, "the server closed the connection before it answered") from error
    known = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
    return Upgraded(known, RawStream(stream, http.trailing_data[0]))


async def _answer(stream: trio.abc.Stream, http: h11.Connection) -> h11.InformationalResponse | h11.Response:
    while True:
        event = http.next_event()
        if isinstance(event, h11.Response):
            return event
        if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            return event
        if event is h11.NEED_DATA:
            data = await stream.receive_some(_RECEIVE)
            if not data:
                raise trio.BrokenResourceError("the connection ended")
            http.receive_data(bytes(data))


async def _body(stream: trio.abc.Stream, http: h11.Connection) -> bytes:
    """The reason of a refusal, as far as it comes in time and is not too long."""
    body = bytearray()
    with trio.move_on_after(_REFUSAL_TIMEOUT), suppress(trio.BrokenResourceError, h11.ProtocolError):
        while len(body) < _REFUSAL_SIZE:
            event = http.next_event()
            if isinstance(event, h11.Data):
                body += event.data
            elif event is h11.NEED_DATA:
                http.receive_data(bytes(await stream.receive_some(_RECEIVE)))
            else:
                break
    return bytes(body[:_REFUSAL_SIZE])
