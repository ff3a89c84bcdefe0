"""The other end of exec, attach and port-forward without a wire: clients made of memory streams."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
import trio.testing

from tests.patience import PATIENCE
from trikubelet.embedded import sessions
from trikubelet.http.streaming.command import CommandResult, CommandStreams, TerminalSize
from trikubelet.http.streaming.port_forward import ForwardedPort
from trikubelet.http.streaming.remote_command import RemoteCommand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from tests.embedded.runtime_node import Node

PLAIN = CommandStreams(stdin=True, stdout=True, stderr=True)
OUTPUT = CommandStreams(stdout=True, stderr=True)
TTY = CommandStreams(stdin=True, stdout=True, tty=True)


class Client(RemoteCommand):
    """A client with its half of the streams. Every stream holds one block at a time, so a client can be slow."""

    def __init__(self, streams: CommandStreams) -> None:
        self.protocol = "memory"
        self.tty = streams.tty
        self.stdin = self.stdout = self.stderr = self.resizes = None
        if streams.stdin:
            self.typing, self.stdin = trio.testing.lockstep_stream_one_way_pair()
        if streams.stdout:
            self.stdout, self.shown = trio.testing.lockstep_stream_one_way_pair()
        if streams.stderr:
            self.stderr, self.complaints = trio.testing.lockstep_stream_one_way_pair()
        if streams.tty:
            self.sizes, self.resizes = trio.open_memory_channel[TerminalSize](1)
        self.out = bytearray()
        self.err = bytearray()
        self.left = trio.Event()
        self.result: CommandResult | None = None
        self.finished = trio.Event()

    async def finish(self, result: CommandResult) -> None:
        self.result = result
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                await stream.aclose()
        self.finished.set()

    async def wait_disconnected(self) -> None:
        await self.left.wait()

    # -- what the client does ----------------------------------------------------------------------------------------

    async def type(self, text: bytes, *, block: int = 64 * 1024) -> None:
        for start in range(0, len(text), block):
            await self.typing.send_all(text[start : start + block])

    async def end_stdin(self) -> None:
        await self.typing.aclose()

    async def read(self) -> None:
        """Collect output to the end."""
        async with trio.open_nursery() as nursery:
            for stream, collected in ((self.stdout, self.out), (self.stderr, self.err)):
                if stream is not None:
                    nursery.start_soon(_collect, self.shown if stream is self.stdout else self.complaints, collected)

    async def wait_for(self, text: bytes) -> None:
        """Until the text is among what `read` has collected."""
        await _wait(lambda: text in self.out, f"{text!r} in {bytes(self.out)[-300:]!r}")

    async def leave(self) -> None:
        """Be gone, as a broken connection is."""
        self.left.set()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                await stream.aclose()


async def _collect(source: trio.abc.ReceiveStream, target: bytearray) -> None:
    async for block in source:
        target += block


async def _wait(condition: Callable[[], bool], what: str) -> None:
    with trio.move_on_after(PATIENCE):
        while not condition():
            await trio.sleep(0.005)
        return
    raise AssertionError(f"still not so after {PATIENCE:g} s: {what}")


@asynccontextmanager
async def executing(
    node: Node, container: str, argv: Sequence[str], streams: CommandStreams = PLAIN, *, reading: bool = True
) -> AsyncIterator[Client]:
    """A command that runs for a client; when the body ends, the client stays until the command ends."""
    client = Client(streams)
    record = node.cri._inventory.container(container)
    with trio.fail_after(3 * PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sessions.execute, node.lifecycle.commands, record, argv, streams, client)
            if reading:
                nursery.start_soon(client.read)
            yield client


@asynccontextmanager
async def attached(
    node: Node, container: str, streams: CommandStreams = PLAIN, *, reading: bool = True
) -> AsyncIterator[Client]:
    """A client attached to a container; when the body ends, it stays until the container or it itself has ended."""
    client = Client(streams)
    record = node.cri._inventory.container(container)
    with trio.fail_after(3 * PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sessions.attach, node.lifecycle.attachments, record, streams, client)
            if reading:
                nursery.start_soon(client.read)
            yield client


class Forwarded(ForwardedPort):
    """One forwarded connection, and `near`, the client's end of it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.request_id = "0"
        self.near, far = trio.testing.memory_stream_pair()
        self.data = far
        self._far = far
        self.error: str | None = None

    def break_off(self) -> None:
        """Be gone, as after a reset: reading raises an error."""
        self._far.receive_stream.close()

    async def finish(self, error: str = "") -> None:
        self.error = error
        await self.data.aclose()
