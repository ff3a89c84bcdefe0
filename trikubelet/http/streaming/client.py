"""The client's side of exec, attach and port-forward, over a connected stream: the agent's unix socket, or another.

    async with open_command(stream, "/exec/ns/pod/main?command=ls&output=1", CommandStreams(stdout=True)) as command:
        result = await command.run(None, stdout, None)

    async with open_port_forward(stream, "/portForward/ns/pod") as forwarder:
        problem = await forwarder.forward(local_connection, 8080)

WebSockets are asked for v5, then v4; SPDY for v4. With v4 over WebSockets there is no way to close stdin.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal

import trio
from wsproto.utilities import generate_accept_token, generate_nonce

from trikubelet.http.streaming.channels import ERROR, RESIZE, STDERR, STDIN, STDOUT, V4, V5, Channel, open_channels
from trikubelet.http.streaming.command import CommandResult, CommandStreams, Failed, TerminalSize, decode_status
from trikubelet.http.streaming.handshake import SPDY, STREAM_PROTOCOL, TUNNEL_PREFIX, WEBSOCKET_PROTOCOL
from trikubelet.http.streaming.spdy import SpdySession, SpdyStream, open_spdy
from trikubelet.http.streaming.upgrade import Upgraded, UpgradeError, upgrade
from trikubelet.http.streaming.websocket import WebSocketByteStream, open_websocket
from trikubelet.scopes import body_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

__all__ = ["ClientCommand", "PortForwarder", "UpgradeError", "open_command", "open_port_forward"]

Transport = Literal["websocket", "spdy"]

_BLOCK: Final = 64 * 2**10
_LONGEST_STATUS: Final = 64 * 2**10
_CHANNELS: Final = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}
_PORT_FORWARD: Final = "portforward.k8s.io"


class ClientCommand:
    """A command on a server. A reader of one output stream must read all: they share a connection."""

    def __init__(self, protocol: str, streams: Mapping[str, SpdyStream | Channel]) -> None:
        self.protocol = protocol
        self._streams = streams
        self.stdin: trio.abc.HalfCloseableStream | None = streams.get("stdin")
        """Closed by `send_eof`."""
        self.stdout: trio.abc.ReceiveStream | None = streams.get("stdout")
        """Ends with b"", or with `trio.BrokenResourceError` where a server ends streams by resetting them."""
        self.stderr: trio.abc.ReceiveStream | None = streams.get("stderr")

    async def resize(self, size: TerminalSize) -> None:
        """Tell the size of this side's terminal; nothing without one. Raises `trio.BrokenResourceError`."""
        if (stream := self._streams.get("resize")) is not None:
            await stream.send_all(size.to_json())

    async def result(self) -> CommandResult:
        """Wait for the end of the command; a lost connection is `Failed`."""
        message, problem = bytearray(), ""
        try:
            while len(message) < _LONGEST_STATUS and (data := await self._streams["error"].receive_some()):
                message += data
        except trio.BrokenResourceError as error:
            problem = str(error)
        result = decode_status(bytes(message))
        if not message and problem:
            return Failed(f"the connection ended before the server said how the command ended: {problem}")
        return result

    async def run(
        self,
        stdin: trio.abc.ReceiveStream | None,
        stdout: trio.abc.SendStream | None,
        stderr: trio.abc.SendStream | None,
    ) -> CommandResult:
        """Copy these streams to and from the command until it ends. Closes none of them.

        Errors of theirs are raised, in a group. Reading `stdin` is cancelled when the command has ended.
        """
        async with trio.open_nursery() as everything:
            if stdin is not None and self.stdin is not None:
                everything.start_soon(_copy_stdin, stdin, self.stdin)
            async with trio.open_nursery() as outputs:
                outputs.start_soon(_copy_output, self.stdout, stdout)
                outputs.start_soon(_copy_output, self.stderr, stderr)
                result = await self.result()
            everything.cancel_scope.cancel()
        return result


async def _copy_stdin(source: trio.abc.ReceiveStream, target: trio.abc.HalfCloseableStream) -> None:
    while data := await source.receive_some(_BLOCK):
        try:
            await target.send_all(data)
        except trio.BrokenResourceError:
            return
    with suppress(trio.BrokenResourceError):
        await target.send_eof()


async def _copy_output(source: trio.abc.ReceiveStream | None, target: trio.abc.SendStream | None) -> None:
    """Without a target, what comes is dropped."""
    while source is not None:
        try:
            data = await source.receive_some(_BLOCK)
        except trio.BrokenResourceError:
            return
        if not data:
            return
        if target is not None:
            await target.send_all(data)


@asynccontextmanager
async def open_command(
    stream: trio.abc.Stream,
    target: str,
    streams: CommandStreams,
    *,
    transport: Transport = "websocket",
    headers: Sequence[tuple[str, str]] = (),
) -> AsyncIterator[ClientCommand]:
    """Start a command, or attach to one, over `stream`, which is closed at the end. `target`: path and query.

    `streams` must say the same as the query. Raises UpgradeError, and `trio.BrokenResourceError` or
    `trio.TooSlowError` when the server does not accept the streams.
    """
    names = ["error", *(name for name in ("stdin", "stdout") if getattr(streams, name))]
    if streams.tty:
        names.append("resize")
    elif streams.stderr:
        names.append("stderr")
    try:
        if transport == "spdy":
            upgraded = await _upgrade_spdy(stream, target, V4.name, headers)
            async with open_spdy(upgraded.stream, client=True) as session:
                opened = await session.open_streams([{"streamType": name} for name in names])
                yield ClientCommand(V4.name, dict(zip(names, opened, strict=True)))
        else:
            upgraded = await _upgrade_websocket(stream, target, [V5.name, V4.name], headers)
            protocol = V5 if upgraded.headers.get(WEBSOCKET_PROTOCOL.lower()) == V5.name else V4
            numbers = [_CHANNELS[name] for name in names]
            async with open_channels(upgraded.stream, protocol, numbers, client=True) as channels:
                yield ClientCommand(protocol.name, {name: channels[_CHANNELS[name]] for name in names})
    finally:
        await trio.aclose_forcefully(stream)


async def _upgrade_spdy(
    stream: trio.abc.Stream, target: str, protocol: str, headers: Sequence[tuple[str, str]]
) -> Upgraded:
    fields = [*headers, ("Connection", "Upgrade"), ("Upgrade", SPDY), (STREAM_PROTOCOL, protocol)]
    return await upgrade(stream, "POST", target, fields)


async def _upgrade_websocket(
    stream: trio.abc.Stream, target: str, protocols: Sequence[str], headers: Sequence[tuple[str, str]]
) -> Upgraded:
    key = generate_nonce()
    fields = [*headers, ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
    fields += [("Sec-WebSocket-Key", key.decode()), (WEBSOCKET_PROTOCOL, ", ".join(protocols))]
    upgraded = await upgrade(stream, "GET", target, fields)
    if upgraded.headers.get("sec-websocket-accept", "").strip() != generate_accept_token(key).decode():
        raise UpgradeError(0, "the server's Sec-WebSocket-Accept does not belong to this request")
    chosen = upgraded.headers.get(WEBSOCKET_PROTOCOL.lower(), "")
    if chosen not in protocols:
        raise UpgradeError(0, f"expected one of the protocols {', '.join(protocols)} from the server, got {chosen!r}")
    return upgraded


class PortForwarder:
    """Connections to ports of a pod through one connection. Made by `open_port_forward`."""

    def __init__(self, session: SpdySession) -> None:
        self._session = session
        self._requests = 0

    async def wait_disconnected(self) -> None:
        """Return when the server is gone."""
        await self._session.ended.wait()

    async def forward(self, local: trio.abc.HalfCloseableStream, port: int) -> str:
        """Connect `local` with a port until the pod's side ends; what went wrong at the server, "" for nothing.

        Half-closes go through both ways. `local` stays open. Raises `trio.BrokenResourceError` when the server is gone
        or refuses, `trio.TooSlowError` when it does not answer.
        """
        errors, data = await self.open(port)
        try:
            with body_errors():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_copy_to_server, local, data)
                    await _copy_to_local(data, local)
                    nursery.cancel_scope.cancel()
            return await _read_error(errors)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await data.aclose()
                await errors.aclose()

    async def open(self, port: int) -> tuple[SpdyStream, SpdyStream]:
        """A connection's two streams: errors (closed by the server at the end) and data. Both are to be closed."""
        request_id, self._requests = self._requests, self._requests + 1
        headers = {"port": str(port), "requestID": str(request_id)}
        errors = await self._session.open_stream({"streamType": "error", **headers})
        try:
            await errors.send_eof()
            return errors, await self._session.open_stream({"streamType": "data", **headers})
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await errors.aclose()
            raise


async def _copy_to_server(local: trio.abc.HalfCloseableStream, data: SpdyStream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while block := await local.receive_some(_BLOCK):
            await data.send_all(block)
        await data.send_eof()


async def _copy_to_local(data: SpdyStream, local: trio.abc.HalfCloseableStream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while block := await data.receive_some(_BLOCK):
            await local.send_all(block)
        await local.send_eof()


async def _read_error(errors: SpdyStream) -> str:
    message = bytearray()
    with suppress(trio.BrokenResourceError):
        while len(message) < _LONGEST_STATUS and (data := await errors.receive_some()):
            message += data
    return message.decode(errors="replace")


@asynccontextmanager
async def open_port_forward(
    stream: trio.abc.Stream,
    target: str,
    *,
    transport: Transport = "spdy",
    headers: Sequence[tuple[str, str]] = (),
) -> AsyncIterator[PortForwarder]:
    """Forward ports over `stream`, which is closed at the end; with "websocket", SPDY is tunnelled in a WebSocket.

    Raises UpgradeError.
    """
    try:
        if transport == "spdy":
            upgraded = await _upgrade_spdy(stream, target, _PORT_FORWARD, headers)
            async with open_spdy(upgraded.stream, client=True) as session:
                yield PortForwarder(session)
        else:
            upgraded = await _upgrade_websocket(stream, target, [TUNNEL_PREFIX + _PORT_FORWARD], headers)
            async with open_websocket(upgraded.stream, client=True) as websocket:
                async with open_spdy(WebSocketByteStream(websocket), client=True) as session:
                    yield PortForwarder(session)
    finally:
        await trio.aclose_forcefully(stream)
