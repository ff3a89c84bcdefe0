"""A client's upgraded connection passed through to the container runtime, byte by byte.

The client's request goes to the runtime with the path of the runtime's URL, the client gets the runtime's answer, and
from then on each side's bytes go to the other. What is spoken (SPDY, WebSocket up to v4) is not looked at. Each
direction holds one block of at most `BLOCK` bytes: a side that does not read makes the other one wait, through TCP.

Ends are kept apart. A side that ends in order makes the other see an end, while the opposite direction may go on for
as long as something moves in it; a few seconds after nothing does the connection is closed. (The kubelet closes both
as soon as one ends, and so now and then takes away an exit status that was on its way.) A client that is gone takes
the runtime's connection with it at once; one that breaks on the runtime's side is cut on the client's without an
orderly end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.http.messages import TEXT, HTTPError, Request, Response, Takeover
from trikubelet.http.streaming.runtime_upgrade import (
    RefusedError,
    RuntimeAddress,
    RuntimeStreamError,
    dial,
    runtime_upgrade,
)
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trikubelet.http.streaming.runtime_upgrade import Upgraded

log = get_logger("streaming")

BLOCK: Final = 64 * 2**10
IDLE_TIMEOUT: Final = 4 * 3600.0
"""Seconds without a byte in either direction, as in the runtimes' streaming servers."""
END_TIMEOUT: Final = 10.0
"""Seconds that nothing moves after one side has ended."""
TOKEN_PROTOCOL: Final = "base64url.bearer.authorization.k8s.io."
"""How a browser shows its bearer token: as one of the WebSocket protocols that it offers."""
_NOT_FORWARDED: Final = frozenset(
    {
        # The client was authenticated here; the runtime must not get its credentials.
        "authorization",
        "proxy-authorization",
        # About this connection, or a body: an upgrade has none.
        "content-length",
        "transfer-encoding",
        "te",
        "trailer",
        "expect",
        "keep-alive",
        "proxy-connection",
        "x-forwarded-for",
    }
)
_WITH_LENGTH: Final = frozenset({"POST", "PUT", "PATCH"})


async def proxy_upgrade(
    url: str,
    request: Request,
    takeover: Takeover,
    connect: Callable[[RuntimeAddress], Awaitable[trio.abc.Stream]] = dial,
) -> None:
    """Connect a client with the runtime's `url` until one of them ends (`UpgradeAwareHandler`).

    What the runtime refuses is answered in its words. Raises HTTPError 500 when it cannot be reached or answers
    nonsense, and when its connection breaks, by which the client's is cut. When cancelled, both connections are cut.
    """
    try:
        async with runtime_upgrade(url, request.method, forwarded_headers(request), connect) as runtime:
            client = await takeover.accept(runtime.headers)
            await splice(client, runtime)
    except RuntimeStreamError as error:
        raise backend_error(error) from error
    except RefusedError as refused:
        await takeover.answer(refusal(refused))


def forwarded_headers(request: Request) -> list[tuple[str, str]]:
    """The client's header fields as the runtime gets them: `Host` and all, without its credentials."""
    headers = []
    for name, value in request.raw_headers:
        if name == "sec-websocket-protocol":
            value = _without_token(value)
            if not value:
                continue
        if name not in _NOT_FORWARDED:
            headers.append((name, value))
    forwarded_for = [value for name, value in request.raw_headers if name == "x-forwarded-for"]
    if request.peer.address:
        forwarded_for.append(request.peer.address.rpartition(":")[0].strip("[]"))
    if forwarded_for:
        headers.append(("x-forwarded-for", ", ".join(forwarded_for)))
    if request.method in _WITH_LENGTH:
        headers.append(("content-length", "0"))
    return headers


def _without_token(protocols: str) -> str:
    offered = (protocol.strip() for protocol in protocols.split(","))
    return ", ".join(protocol for protocol in offered if not protocol.startswith(TOKEN_PROTOCOL))


def backend_error(error: RuntimeStreamError) -> HTTPError:
    """The answer to a client when there is none of the runtime to pass on."""
    log.warning("the runtime's streaming server failed", problem=str(error))
    return HTTPError(500, str(error))


def refusal(refused: RefusedError) -> Response:
    """The runtime's refusal as an answer of ours."""
    headers = {name.lower(): value for name, value in refused.headers}
    return Response(
        refused.body,
        refused.status,
        headers.get("content-type", TEXT),
        tuple(
            (name, value)
            for name, value in refused.headers
            if name.lower() not in ("content-type", "x-content-type-options", "date")
        ),
    )


@frozen
class SpliceTimeouts:
    """In seconds."""

    idle: float = IDLE_TIMEOUT
    end: float = END_TIMEOUT


async def splice(
    client: trio.abc.HalfCloseableStream, runtime: Upgraded, timeouts: SpliceTimeouts | None = None
) -> None:
    """Copy both ways until both sides have ended, or nothing more can be done. Closes neither.

    Raises RuntimeStreamError when the runtime's connection breaks. When cancelled, what was on its way is lost.
    """
    splicing = _Splice(client, runtime, timeouts or SpliceTimeouts())
    await splicing.run()
    if splicing.broken:
        raise RuntimeStreamError("the connection to the runtime broke")


class _Splice:
    def __init__(self, client: trio.abc.HalfCloseableStream, runtime: Upgraded, timeouts: SpliceTimeouts) -> None:
        self._client = client
        self._runtime = runtime
        self._timeouts = timeouts
        self._ending = False
        self._scope = trio.CancelScope()
        self.broken = False
        """The runtime's connection did not end in order."""

    async def run(self) -> None:
        self._moved()
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._to_runtime)
                nursery.start_soon(self._to_client)

    async def _to_client(self) -> None:
        try:
            while data := await self._from_runtime():
                await self._client.send_all(data)
                self._moved()
            self._end()
            await self._client.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._scope.cancel()

    async def _from_runtime(self) -> bytes:
        try:
            return await self._runtime.stream.receive_some(BLOCK)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.broken = True
            raise

    async def _to_runtime(self) -> None:
        try:
            while data := await self._client.receive_some(BLOCK):
                await self._pass_on(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._scope.cancel()
            return
        if not self._runtime.half_closeable:
            self._scope.cancel()  # there is no other way to tell it
            return
        self._end()
        try:
            await self._runtime.stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it is gone; what it said last is still being read

    async def _pass_on(self, data: bytes | bytearray) -> None:
        """Send to the runtime. When it takes no more, go on reading: closing with bytes unread would tear what it said
        last from the client."""
        try:
            await self._runtime.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._end()
        else:
            self._moved()

    def _end(self) -> None:
        if not self._ending:
            self._ending = True
            self._moved()

    def _moved(self) -> None:
        self._scope.deadline = trio.current_time() + (self._timeouts.end if self._ending else self._timeouts.idle)
