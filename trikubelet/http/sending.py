"""The way out of a connection: h11 makes bytes of answers, the stream gets them in pieces, each with a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import h11
import trio

from trikubelet.http.messages import AnyResponse, HTTPError, Request, Response, StreamResponse, UpgradeResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trikubelet.http.limits import Limits
    from trikubelet.http.raw_stream import RawStream

_BODILESS: Final = frozenset({204, 304})
_T = TypeVar("_T")


class Gone(Exception):  # noqa: N818 - no error, a fact
    """The client is gone or too slow: no answer can reach it. `HttpConnection` makes it."""


class Sender:
    """Sends what h11 allows. All calls raise `Gone`."""

    def __init__(
        self, stream: trio.abc.Stream, http: h11.Connection, limits: Limits, gone: Callable[[str], Gone]
    ) -> None:
        """`gone` makes what is raised, of the reason why."""
        self._stream = stream
        self._http = http
        self._limits = limits
        self._gone = gone
        self.closing = False
        """The connection ends with the answer to the request in hand, which says so."""
        self.begun = False
        """h11 has the head of the answer to the request in hand: no other one can be given."""
        self.answered = False
        """That head, or all of an answer whose length is known, has been sent."""

    async def whole(self, response: Response, *, head: bool) -> None:
        """Send a whole answer; with `head` without its body."""
        headers = self._headers(response)
        if response.status not in _BODILESS:
            headers.append(("Content-Length", str(len(response.body))))
        answer = h11.Response(status_code=response.status, headers=headers)
        body = b"" if head or response.status in _BODILESS else response.body
        await self._begin(answer, *([h11.Data(data=body)] if body else ()), h11.EndOfMessage())

    def _headers(self, response: Response | StreamResponse) -> list[tuple[str, str]]:
        headers = [("Content-Type", response.content_type), ("X-Content-Type-Options", "nosniff"), *response.headers]
        if self.closing:
            headers.append(("Connection", "close"))
        return headers

    async def begin(self, response: StreamResponse) -> None:
        """Send the head of an answer of unknown length."""
        await self._begin(h11.Response(status_code=response.status, headers=self._headers(response)))

    async def switch(self, headers: Sequence[tuple[str, str]]) -> None:
        """Answer 101: what follows is another protocol."""
        await self._begin(
            h11.InformationalResponse(status_code=101, headers=list(headers), reason="Switching Protocols")
        )

    async def go_on(self) -> None:
        """Tell a client that waits with its body to send it: 100, which is no answer yet."""
        await self._send(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))

    async def _begin(self, *events: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage) -> None:
        """Send an answer's head, and what there is of the rest. Headers that are none fail before, in h11's events."""
        self.begun = True
        await self._send(b"".join([self._http.send(event) or b"" for event in events]))
        self.answered = True

    async def chunk(self, data: bytes) -> None:
        await self._send(self._http.send(h11.Data(data=data)))

    async def end(self) -> None:
        await self._send(self._http.send(h11.EndOfMessage()))

    async def _send(self, data: bytes | None) -> None:
        with memoryview(data or b"") as view:
            for start in range(0, len(view), self._limits.write_size):
                await self._send_part(view[start : start + self._limits.write_size])

    async def _send_part(self, part: memoryview) -> None:
        try:
            with trio.move_on_after(self._limits.write_timeout):
                await self._stream.send_all(part)
                return
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._gone(f"it broke: {error}") from None
        raise self._gone(f"the client did not take {len(part)} bytes within {self._limits.write_timeout:g} seconds")


class ResponseWriter:
    """Carries one answer, whole or in pieces."""

    def __init__(
        self,
        sender: Sender,
        request: Request,
        scope: trio.CancelScope,
        take_over: Callable[[Sequence[tuple[str, str]]], Awaitable[RawStream]],
    ) -> None:
        """`scope` is cancelled when the client is gone; `take_over` answers 101 and gives the connection away."""
        self._sender = sender
        self._take_over = take_over
        self._head_only = request.method == "HEAD"
        self._may_be_taken_over = bool(request.headers.get("upgrade", "").strip(", \t"))
        self._scope = scope
        self._response: StreamResponse | None = None
        self.cut = False
        """The answer remained incomplete."""

    async def send_response(self, response: AnyResponse) -> None:
        if isinstance(response, Response):
            await self._try(self._sender.whole(response, head=self._head_only))
            return
        if isinstance(response, UpgradeResponse):
            await response.handle(self)
            if not self._sender.begun:
                raise TypeError("a handler neither took the connection over nor answered")
            return
        self._response = response
        if not self._head_only:
            await response.produce(self)
        await self.write(b"")
        await self._try(self._sender.end())

    async def accept(self, headers: Sequence[tuple[str, str]]) -> RawStream:
        if not self._may_be_taken_over:
            raise HTTPError(400, "expected a request with the headers Connection: Upgrade and Upgrade: PROTOCOL")
        return await self._try(self._take_over(headers))

    async def answer(self, response: Response) -> None:
        await self.send_response(response)

    async def write(self, data: bytes) -> None:
        assert self._response is not None
        if not self._sender.begun:
            await self._try(self._sender.begin(self._response))
        if data:
            await self._try(self._sender.chunk(data))
        else:
            await trio.lowlevel.checkpoint()

    async def _try(self, sending: Awaitable[_T]) -> _T:
        try:
            return await sending
        except Gone:
            self.cut = True
            self._scope.cancel()
            await trio.sleep_forever()
