"""Questions to the agent on Trio: answers that end, and streams that do not. Every failure is a CommandError."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import h11
import trio

from trikubelet.cli.agent_stream import connect
from trikubelet.cli.client import agent_gone, lost_agent, request_target
from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trikubelet.cli.client import Query

HEAD_TIMEOUT: Final = 10.0
"""Seconds until an answer begins."""
ANSWER_TIMEOUT: Final = 10.0
ACTION_TIMEOUT: Final = 600.0
"""Seconds for what makes the agent work: a restart waits for the grace of containers."""
_BLOCK: Final = 64 * 2**10
_LONGEST_LINE: Final = 64 * 2**20
_LONGEST_REFUSAL: Final = 4096


class RefusedError(CommandError):
    """The agent is there, and says no."""


class Body:
    """The body of an answer, as it arrives."""

    def __init__(self, socket: Path, stream: trio.SocketStream, protocol: h11.Connection) -> None:
        self._socket = socket
        self._stream = stream
        self._protocol = protocol
        self._rest = b""

    async def block(self) -> bytes:
        """What comes next; b"" at the end. Raises CommandError when the agent goes before."""
        while True:
            event = await self.event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return b""

    async def line(self) -> bytes:
        """The next line. Raises CommandError at the end of the stream, which had none to come."""
        while b"\n" not in self._rest:
            block = await self.block()
            if not block or len(self._rest) > _LONGEST_LINE:
                raise agent_gone(self._socket)
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    async def event(self) -> h11.Event:
        """What h11 makes of what comes next."""
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                self._protocol.receive_data(await self._stream.receive_some(_BLOCK))
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            raise lost_agent(self._socket, error) from None
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise agent_gone(self._socket)
        assert isinstance(event, h11.Event)
        return event


@asynccontextmanager
async def asked(
    socket: Path, path: str, query: Query | None = None, *, method: str = "GET", patience: float = HEAD_TIMEOUT
) -> AsyncIterator[Body]:
    """The body of an answer, which must begin within `patience` seconds. Raises CommandError, also for a refusal."""
    with trio.CancelScope(deadline=trio.current_time() + patience) as slow:
        stream = await connect(socket)
        try:
            protocol = h11.Connection(h11.CLIENT)
            request = h11.Request(
                method=method,
                target=request_target(path, query or {}),
                headers=[("host", "localhost"), ("content-length", "0")],
            )
            sent = (protocol.send(request) or b"") + (protocol.send(h11.EndOfMessage()) or b"")
            try:
                await stream.send_all(sent)
            except trio.BrokenResourceError as error:
                raise lost_agent(socket, error) from None
            body = Body(socket, stream, protocol)
            head = await body.event()
            while isinstance(head, h11.InformationalResponse):
                head = await body.event()
            assert isinstance(head, h11.Response)
            if head.status_code >= 400:
                text = (await body.block())[:_LONGEST_REFUSAL].decode(errors="replace").strip()
                raise RefusedError(text or f"the agent answered {head.status_code}")
            slow.deadline = float("inf")
            yield body
        finally:
            with trio.move_on_after(0, shield=True):
                await stream.aclose()
    if slow.cancelled_caught:
        raise CommandError(f"the agent on {socket} did not answer within {patience:.0f} s")


async def answer(
    socket: Path, path: str, query: Query | None = None, *, method: str = "GET", patience: float = ANSWER_TIMEOUT
) -> Any:
    """The JSON of an answer."""
    received = bytearray()
    with trio.move_on_after(patience):
        async with asked(socket, path, query, method=method, patience=patience) as body:
            while block := await body.block():
                received += block
            try:
                return json.loads(received)
            except ValueError as error:
                raise CommandError(f"the agent on {socket} answered no JSON: {error}") from None
    raise CommandError(f"the agent on {socket} did not answer within {patience:.0f} s")
