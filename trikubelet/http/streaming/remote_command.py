"""The server's side of exec and attach: whatever the client speaks, its handler sees the same streams.

    async def handle(takeover: Takeover) -> None:
        async with serve_remote_command(request, takeover, CommandStreams(stdin=True, stdout=True)) as command:
            ...  # copy command.stdin to the process, and what it prints to command.stdout
            await command.finish(Exited(process.returncode))

    return UpgradeResponse(handle)

Over SPDY the client opens a stream for each of stdin, stdout, stderr, its terminal's sizes and the error stream, and
names it by a header; over a WebSocket they are channels with fixed numbers. The error stream carries the result.
(kubelet: `cri/streaming/remotecommand`.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.http.streaming.channels import (
    COMMAND_PROTOCOLS,
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    Channel,
    open_channels,
)
from trikubelet.http.streaming.command import (
    DEFAULT_TIMEOUTS,
    CommandResult,
    CommandStreams,
    StreamingTimeouts,
    TerminalSize,
    encode_status,
    encode_text,
)
from trikubelet.http.streaming.handshake import (
    StreamsMissingError,
    accept_spdy,
    accept_websocket,
    is_websocket,
    websocket_protocol,
)
from trikubelet.http.streaming.spdy import SpdySession, SpdyStream, open_spdy
from trikubelet.scopes import body_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.http.messages import Request, Takeover

__all__ = ["RemoteCommand", "StreamsMissingError", "serve_remote_command"]

V4_SPDY, V3_SPDY, V2_SPDY, V1_SPDY = "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"
SPDY_PROTOCOLS: Final = (V4_SPDY, V3_SPDY, V2_SPDY, V1_SPDY)
STREAM_TYPE: Final = "streamtype"
_CHANNELS: Final = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": ERROR, "resize": RESIZE}
_LARGEST_SIZE: Final = 4096
"""Bytes of one terminal size as JSON."""


class _Output(trio.abc.SendStream):
    """What a command prints, on its way to the client. Closing it ends it in order."""

    def __init__(self, wire: SpdyStream | Channel) -> None:
        self._wire = wire

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._wire.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._wire.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        with suppress(trio.BrokenResourceError):
            await self._wire.send_eof()


class _Input(trio.abc.ReceiveStream):
    """What a client types. Closing it drops what still comes, and tells the client."""

    def __init__(self, wire: SpdyStream | Channel) -> None:
        self._wire = wire

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._wire.receive_some(max_bytes)

    async def aclose(self) -> None:
        self._wire.discard_received()
        with suppress(trio.BrokenResourceError):
            await self._wire.send_eof()


@frozen
class _Wires:
    """What a transport gives."""

    protocol: str
    structured: bool
    """The result is sent as a `metav1.Status`."""
    streams: Mapping[str, SpdyStream | Channel]
    ended: trio.Event


class RemoteCommand:
    """A command's streams, as its client opened them. Streams that were not asked for are None.

    `stdin.receive_some` gives b"" when the client closed it, and raises `trio.BrokenResourceError` when the client
    is gone. `stdout.send_all` waits while the client does not read, and raises the same when it is gone.
    `stdin.aclose()` tells the client that stdin is not read any more; `stdout.aclose()` that nothing more comes.

    A client has no way to close stdin over WebSockets before v5.
    """

    def __init__(
        self, wires: _Wires, *, tty: bool, resizes: trio.MemoryReceiveChannel[TerminalSize] | None = None
    ) -> None:
        self._wires = wires
        streams = wires.streams
        self.protocol = wires.protocol
        """Such as "v5.channel.k8s.io"; "" when a WebSocket client asked for none."""
        self.tty = tty
        self.stdin: trio.abc.ReceiveStream | None = _Input(streams["stdin"]) if "stdin" in streams else None
        self.stdout: trio.abc.SendStream | None = _Output(streams["stdout"]) if "stdout" in streams else None
        self.stderr: trio.abc.SendStream | None = _Output(streams["stderr"]) if "stderr" in streams else None
        self.resizes = resizes
        """With a terminal only. The last size waits to be taken, earlier ones are dropped. Ends with the client."""

    async def finish(self, result: CommandResult) -> None:
        """Tell the client how it ended, and that nothing more comes on stdout and stderr. At most once, at the end.

        What was written to stdout and stderr before arrives first. Says nothing to a client that is gone. Waits
        while the client does not read, for ever if it never does: give it a deadline.
        """
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                await stream.aclose()
        message = encode_status(result) if self._wires.structured else encode_text(result)
        error = self._wires.streams["error"]
        with suppress(trio.BrokenResourceError):
            await error.send_all(message)
            await error.send_eof()

    async def wait_disconnected(self) -> None:
        """Return when the client is gone: connection lost, closed, or idle for too long.

        A client whose stdin is not read may be noticed only when something is written to it.
        """
        await self._wires.ended.wait()


@asynccontextmanager
async def serve_remote_command(
    request: Request,
    takeover: Takeover,
    streams: CommandStreams,
    timeouts: StreamingTimeouts = DEFAULT_TIMEOUTS,
) -> AsyncIterator[RemoteCommand]:
    """Take the connection over in the protocol that the client asks for, and wait for its streams.

    Raises `HTTPError` (to be passed on: the server answers it) for requests without an upgrade (400) and for
    unknown protocols (403), and `StreamsMissingError` (an HTTPError too, which the client does not see) when the
    client leaves or does not open the streams in time. When the body ends the connection ends; it ends at once when
    the body raises or is cancelled.
    """
    names = [name for name in ("stdin", "stdout") if getattr(streams, name)]
    if streams.stderr and not streams.tty:
        names.append("stderr")
    serve = _serve_websocket if is_websocket(request) else _serve_spdy
    async with serve(request, takeover, names, tty=streams.tty, timeouts=timeouts) as wires:
        if "resize" not in wires.streams:
            yield RemoteCommand(wires, tty=streams.tty)
            return
        put, take = trio.open_memory_channel[TerminalSize](1)
        with body_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read_sizes, wires.streams["resize"], put, take.clone())
                yield RemoteCommand(wires, tty=streams.tty, resizes=take)
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def _serve_websocket(
    request: Request, takeover: Takeover, names: list[str], *, tty: bool, timeouts: StreamingTimeouts
) -> AsyncIterator[_Wires]:
    protocols = {protocol.name: protocol for protocol in COMMAND_PROTOCOLS}
    protocol = protocols[websocket_protocol(request, tuple(protocols))]
    transport = await accept_websocket(request, takeover, protocol.name)
    wanted = [*names, "error", *(["resize"] if tty else [])]
    async with open_channels(
        transport,
        protocol,
        [_CHANNELS[name] for name in wanted],
        client=False,
        idle_timeout=timeouts.idle,
    ) as channels:
        first = next((name for name in ("stdout", "stderr") if name in names), "error")
        # An empty message tells clients that the command's streams are there.
        with suppress(trio.BrokenResourceError):
            await channels.send(_CHANNELS[first], b"")
        wires = {name: channels[_CHANNELS[name]] for name in wanted}
        yield _Wires(protocol.name, protocol.structured_errors, wires, channels.ended)


@asynccontextmanager
async def _serve_spdy(
    request: Request, takeover: Takeover, names: list[str], *, tty: bool, timeouts: StreamingTimeouts
) -> AsyncIterator[_Wires]:
    protocol, transport = await accept_spdy(request, takeover, SPDY_PROTOCOLS)
    wanted = ["error", *names]
    if tty and protocol in (V4_SPDY, V3_SPDY):
        wanted.append("resize")
    async with open_spdy(transport, client=False, idle_timeout=timeouts.idle) as session:
        streams = await _collect(session, wanted, timeouts.creation)
        with body_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_turn_away, session)
                yield _Wires(protocol, protocol == V4_SPDY, streams, session.ended)
                nursery.cancel_scope.cancel()


async def _collect(session: SpdySession, wanted: list[str], timeout: float) -> dict[str, SpdyStream]:
    streams: dict[str, SpdyStream] = {}
    problem = f"expected the streams {', '.join(wanted)} within {timeout:g} seconds"
    try:
        with trio.move_on_after(timeout):
            while len(streams) < len(wanted):
                stream = await session.accept_stream()
                kind = stream.headers.get(STREAM_TYPE, "")
                if kind in wanted and kind not in streams:
                    await stream.reply()
                    streams[kind] = stream
                else:
                    await _turn_away_one(stream)
            return streams
    except (trio.EndOfChannel, trio.BrokenResourceError):
        problem = f"the client left before it had opened the streams {', '.join(wanted)}"
    raise StreamsMissingError(f"{problem}, got {', '.join(streams) or 'none'}")


async def _turn_away(session: SpdySession) -> None:
    """Streams beyond the expected ones."""
    with suppress(trio.EndOfChannel):
        while True:
            await _turn_away_one(await session.accept_stream())


async def _turn_away_one(stream: SpdyStream) -> None:
    """Accept and end an unwanted stream: a refusal would end many clients."""
    with suppress(trio.BrokenResourceError):
        await stream.reply()
    await stream.aclose()


async def _read_sizes(
    wire: SpdyStream | Channel,
    put: trio.MemorySendChannel[TerminalSize],
    take: trio.MemoryReceiveChannel[TerminalSize],
) -> None:
    """Terminal sizes: JSON objects one after the other."""
    rest = ""
    with put, take, suppress(trio.BrokenResourceError):
        while data := await wire.receive_some(_LARGEST_SIZE):
            sizes, rest = _sizes(rest + data.decode(errors="replace"))
            for size in sizes[-1:]:
                with suppress(trio.WouldBlock):
                    take.receive_nowait()
                put.send_nowait(size)
            if len(rest) > _LARGEST_SIZE:
                break
        else:
            return
    wire.discard_received()


def _sizes(text: str) -> tuple[list[TerminalSize], str]:
    """The sizes in a text, and what remains of it: the beginning of another one, or what cannot be one."""
    sizes = []
    while text := text.lstrip():
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            break
        text = text[end:]
        if (size := _size(value)) is not None:
            sizes.append(size)
    return sizes, text


def _size(value: object) -> TerminalSize | None:
    if not isinstance(value, dict):
        return None
    fields = {str(name).lower(): number for name, number in value.items()}
    width, height = fields.get("width", 0), fields.get("height", 0)
    if all(isinstance(number, int) and 0 <= number < 2**16 for number in (width, height)):
        return TerminalSize(width, height)
    return None
