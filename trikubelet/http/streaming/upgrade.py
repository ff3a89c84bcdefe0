"""The client's side of an HTTP upgrade: one request on a connected stream, and the raw connection after a 101."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import h11
import trio

from trikubelet.formats.values import frozen
from trikubelet.http.streaming.asking import SWITCHING, ask_for_upgrade

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_TIMEOUT: Final = 60.0


class UpgradeError(Exception):
    """No upgraded connection. `status` is the answer's, 0 when there was none that could be understood."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the server answered with status {status}: {message}" if status else message)
        self.status = status
        self.message = message


@frozen
class Upgraded:
    """`headers`: of the answer, names in lower case."""

    headers: Mapping[str, str]
    stream: trio.abc.HalfCloseableStream


async def upgrade(stream: trio.abc.Stream, method: str, target: str, headers: Sequence[tuple[str, str]]) -> Upgraded:
    """Ask for an upgrade. `target`: path and query; `headers`: all, with Connection and Upgrade.

    Raises UpgradeError, after 60 seconds at the latest. The stream then is of no further use.
    """
    fields = [("Host", "localhost"), *headers, ("Content-Length", "0")]
    try:
        answer = await ask_for_upgrade(stream, method, target, fields, timeout=ANSWER_TIMEOUT)
    except h11.ProtocolError as error:
        raise UpgradeError(0, f"expected HTTP/1.1 from the server: {error}") from error
    except trio.TooSlowError:
        raise UpgradeError(0, f"the server did not answer within {ANSWER_TIMEOUT:g} seconds") from None
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise UpgradeError(0, "the server closed the connection before it answered") from error
    if answer.status != SWITCHING:
        text = answer.body.decode(errors="replace").strip()
        raise UpgradeError(answer.status, text or "no reason given")
    return Upgraded({name.lower(): value for name, value in answer.headers}, answer.stream)
