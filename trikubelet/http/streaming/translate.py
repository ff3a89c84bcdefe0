"""Exec and attach for clients of `v5.channel.k8s.io`, which no runtime knows: WebSocket on one side, SPDY on the other.

The client's side is served as if the command ran here (`serve_remote_command`), the runtime's is used as kubectl would
use it, and in between every stream is copied by a task of its own. As in the API server (`StreamTranslatorHandler`) the
client's WebSocket is accepted first; whatever goes wrong with the runtime is then told on the error channel.

    client stdin, sizes  →  stdin, resize          A stream that the client closes is closed there.
    client output        ←  stdout, stderr         A client that does not read makes the runtime wait.
    client status        ←  error                  Last, when all output has gone out.

A client that leaves takes the runtime's connection with it at once, and the runtime then ends what was reading from or
writing to it. (The API server's translator lets the command run on.) A runtime that goes without a status is a failure,
never a success.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import frozen
from trikubelet.http.streaming.command import (
    IDLE_TIMEOUT,
    CommandResult,
    CommandStreams,
    Exited,
    Failed,
    decode_status,
)
from trikubelet.http.streaming.proxy import forwarded_headers
from trikubelet.http.streaming.remote_command import RemoteCommand, serve_remote_command
from trikubelet.http.streaming.runtime_upgrade import (
    RefusedError,
    RuntimeAddress,
    RuntimeStreamError,
    dial,
    runtime_upgrade,
)
from trikubelet.http.streaming.spdy import SpdySession, SpdyStream, open_spdy
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trikubelet.http.messages import Request, Takeover

log = get_logger("streaming")

PROTOCOLS: Final = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
"""What is offered to the runtime, best first."""
_STRUCTURED: Final = frozenset({"v4.channel.k8s.io", "v5.channel.k8s.io"})
"""Those that tell the end by a `metav1.Status`; others say nothing, or what went wrong as text."""
_SIZES: Final = frozenset({"v3.channel.k8s.io"}) | _STRUCTURED
FINISH_TIMEOUT: Final = 10.0
"""For telling the client how it ended."""
STATUS_SIZE: Final = 16 * 2**10
"""Bytes of what the runtime says on its error stream; what is beyond is cut off."""
_RECEIVE: Final = 64 * 2**10
_PREFIX: Final = "Internal error occurred: "
"""Put before every failure, here and there. Once is enough."""
_NOT_FORWARDED: Final = frozenset({"connection", "upgrade", "x-stream-protocol-version", "content-length"})


async def translate_command(
    url: str,
    request: Request,
    takeover: Takeover,
    streams: CommandStreams,
    connect: Callable[[RuntimeAddress], Awaitable[trio.abc.Stream]] = dial,
) -> None:
    """Serve a client with the command behind the runtime's `url` until it ends, or the client leaves.

    `streams` is what the runtime was asked for when the URL was made. Raises HTTPError for what is no right WebSocket.
    When cancelled, both connections are cut.
    """
    async with serve_remote_command(request, takeover, streams) as command:
        result = await _until_gone(command, url, request, streams, connect)
        if result is not None:
            with trio.move_on_after(FINISH_TIMEOUT):
                await command.finish(result)


async def _until_gone(
    command: RemoteCommand,
    url: str,
    request: Request,
    streams: CommandStreams,
    connect: Callable[[RuntimeAddress], Awaitable[trio.abc.Stream]],
) -> CommandResult | None:
    """How the command ended; None when the client left before."""
    result: CommandResult | None = None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await command.wait_disconnected()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        result = await _run(command, url, request, streams, connect)
        nursery.cancel_scope.cancel()
    return result


async def _run(
    command: RemoteCommand,
    url: str,
    request: Request,
    streams: CommandStreams,
    connect: Callable[[RuntimeAddress], Awaitable[trio.abc.Stream]],
) -> CommandResult:
    protocol, status = "", b""
    try:
        with trio.CancelScope() as over:
            async with runtime_upgrade(url, "POST", spdy_headers(request), connect) as runtime:
                protocol = runtime.header("x-stream-protocol-version")
                async with open_spdy(runtime.stream, client=True, idle_timeout=IDLE_TIMEOUT) as session:
                    remote = await _open(session, streams, sizes=protocol in _SIZES)
                    status = await _Copying(command, remote).run()
                    over.cancel()  # it has said its last word; no time for goodbyes, the client waits
    except (RuntimeStreamError, RefusedError) as error:
        return _not_streamed(str(error))
    except trio.TooSlowError:
        return _not_streamed("the runtime did not accept the command's streams in time")
    except trio.BrokenResourceError as error:
        return _not_streamed(f"the connection to the runtime broke: {error}")
    return _result(protocol, status)


def _not_streamed(problem: str) -> Failed:
    """The runtime's fault. What it says of a command that it could not run is for the client alone."""
    log.warning("a command could not be streamed", problem=problem)
    return Failed(problem)


def spdy_headers(request: Request) -> list[tuple[str, str]]:
    """The header fields of the request to the runtime: the client's, but for what is about its WebSocket."""
    forwarded = forwarded_headers(attrs.evolve(request, method="POST"))
    return [
        *((n, v) for n, v in forwarded if n not in _NOT_FORWARDED and not n.startswith("sec-websocket-")),
        ("connection", "Upgrade"),
        ("upgrade", "SPDY/3.1"),
        *(("x-stream-protocol-version", protocol) for protocol in PROTOCOLS),
        ("content-length", "0"),
    ]


def _result(protocol: str, status: bytes) -> CommandResult:
    """What the error stream's content means."""
    if protocol not in _STRUCTURED:
        return Failed(status.decode(errors="replace")) if status else Exited(0)
    if not status:
        return Failed("the runtime closed the connection and did not say how the command ended")
    result = decode_status(status)
    return Failed(result.message.removeprefix(_PREFIX)) if isinstance(result, Failed) else result


@frozen
class _RemoteStreams:
    """The runtime's side of a command."""

    error: SpdyStream
    stdin: SpdyStream | None
    stdout: SpdyStream | None
    stderr: SpdyStream | None
    resize: SpdyStream | None


async def _open(session: SpdySession, streams: CommandStreams, *, sizes: bool) -> _RemoteStreams:
    """Open what the runtime waits for, in kubectl's order: it starts the command when all are there."""
    wanted = {
        "error": True,
        "stdin": streams.stdin,
        "stdout": streams.stdout,
        "stderr": streams.stderr and not streams.tty,
        "resize": streams.tty and sizes,
    }
    kinds = [kind for kind, is_wanted in wanted.items() if is_wanted]
    opened = dict(zip(kinds, await session.open_streams([{"streamType": kind} for kind in kinds]), strict=True))
    return _RemoteStreams(
        opened["error"], opened.get("stdin"), opened.get("stdout"), opened.get("stderr"), opened.get("resize")
    )


class _Copying:
    """One task for each stream. It is over when the runtime has ended its output and its error stream."""

    def __init__(self, command: RemoteCommand, remote: _RemoteStreams) -> None:
        self._command = command
        self._remote = remote
        self._status = bytearray()

    async def run(self) -> bytes:
        """What the error stream said. Broken streams are ends like others: whether all is well the status tells."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stdin)
            nursery.start_soon(self._sizes)
            async with trio.open_nursery() as outputs:
                outputs.start_soon(self._read_status)
                outputs.start_soon(_output, self._remote.stdout, self._command.stdout)
                outputs.start_soon(_output, self._remote.stderr, self._command.stderr)
            nursery.cancel_scope.cancel()
        return bytes(self._status)

    async def _stdin(self) -> None:
        source, sink = self._command.stdin, self._remote.stdin
        if source is None or sink is None:
            return
        sink.discard_received()
        try:
            while data := await source.receive_some(_RECEIVE):
                await sink.send_all(data)
            await sink.send_eof()
        except trio.BrokenResourceError:
            # The stream is closed, or the client is gone, which another task handles.
            await source.aclose()

    async def _sizes(self) -> None:
        source, sink = self._command.resizes, self._remote.resize
        if source is None or sink is None:
            return
        sink.discard_received()
        with suppress(trio.BrokenResourceError):
            async for size in source:
                await sink.send_all(size.to_json() + b"\n")

    async def _read_status(self) -> None:
        with suppress(trio.BrokenResourceError):
            while data := await self._remote.error.receive_some(_RECEIVE):
                self._status += data[: STATUS_SIZE - len(self._status)]


async def _output(source: SpdyStream | None, sink: trio.abc.SendStream | None) -> None:
    if source is None or sink is None:
        return
    with suppress(trio.BrokenResourceError):
        while data := await source.receive_some(_RECEIVE):
            await sink.send_all(data)
