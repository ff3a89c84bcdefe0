"""A stand-in for the agent whose commands, ports and archives the test plays, and commands of ours that talk to it.

The commands are processes, since they own their standard streams, a terminal among them.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio
from trio.lowlevel import FdStream

from tests.cli.conftest import a_pod
from tests.forked import ForkedProcess, fork
from trikubelet.cli.file_streams import ReadableFile, WritableFile
from trikubelet.http.messages import (
    JSON,
    AnyResponse,
    HTTPError,
    Request,
    Response,
    StreamResponse,
    Takeover,
    UpgradeResponse,
    Writer,
)
from trikubelet.http.server import HttpServer
from trikubelet.http.streaming.command import CommandResult, CommandStreams, Exited, Failed
from trikubelet.http.streaming.port_forward import ForwardedPort, serve_port_forward
from trikubelet.http.streaming.remote_command import RemoteCommand, serve_remote_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    Command = Callable[[RemoteCommand, list[str]], Awaitable[CommandResult]]
    Port = Callable[[ForwardedPort], Awaitable[None]]

PATIENCE = 90.0
COMMAND_LINE = "tests.cli.command_line"
MAIN = f"from {COMMAND_LINE} import main; main()"


@attrs.define
class StreamingAgent:
    """What it has, and what it was asked. Commands that nobody plays are run on this machine."""

    root_dir: Path
    pods: list[dict[str, Any]] = attrs.field(factory=lambda: [a_pod()])
    commands: dict[str, Command] = attrs.field(factory=dict)
    attached: Command | None = None
    ports: dict[int, Port] = attrs.field(factory=dict)
    summaries: list[dict[str, Any]] = attrs.field(factory=list)
    """Answered one after the other, the last one again and again."""
    answers: dict[str, Response] = attrs.field(factory=dict)
    """By the first word of the path."""
    journal: list[dict[str, Any]] = attrs.field(factory=list)
    """What viewers have been told so far, the snapshot first; see `tell`."""
    told: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    refusal: HTTPError | None = None
    """Of every stream."""
    requests: list[Request] = attrs.field(factory=list)
    stopping: trio.Event = attrs.field(factory=trio.Event)

    async def handle(self, request: Request) -> AnyResponse:
        self.requests.append(request)
        kind = request.path.split("/")[1]
        if kind in ("exec", "attach", "portForward"):
            if self.refusal is not None:
                raise self.refusal

            async def take(takeover: Takeover) -> None:
                await (self._forward if kind == "portForward" else self._command)(request, takeover)

            return UpgradeResponse(take)
        if kind == "journal":
            return StreamResponse(self._tell, content_type=JSON)
        if kind in self.answers:
            return self.answers[kind]
        if kind == "pods":
            return _json({"apiVersion": "v1", "kind": "PodList", "items": self.pods})
        summary = self.summaries.pop(0) if len(self.summaries) > 1 else self.summaries[0]
        return _json(summary)

    def tell(self, *lines: dict[str, Any]) -> None:
        """Tell all viewers of the journal."""
        self.journal += lines
        self.told.unpark_all()

    async def _tell(self, writer: Writer) -> None:
        count = 0
        while True:
            while count < len(self.journal):
                count += 1
                await writer.write(json.dumps(self.journal[count - 1]).encode() + b"\n")
            await self.told.park()

    async def _command(self, request: Request, takeover: Takeover) -> None:
        asked = {name: request.text(query) == "1" for name, query in _STREAMS.items()}
        words = list(request.query.get("command", ()))
        play = (self.attached or _run_here) if not words else self.commands.get(words[0], _run_here)
        async with serve_remote_command(request, takeover, CommandStreams(**asked)) as command:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    await command.wait_disconnected()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                await command.finish(await play(command, words))
                nursery.cancel_scope.cancel()

    async def _forward(self, request: Request, takeover: Takeover) -> None:
        async with serve_port_forward(request, takeover) as forwards, trio.open_nursery() as nursery:
            async for forwarded in forwards:
                nursery.start_soon(self.ports.get(forwarded.port, _nobody_listens), forwarded)


_STREAMS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}


def _json(data: Any) -> Response:
    return Response(json.dumps(data).encode(), content_type=JSON)


async def _nobody_listens(forwarded: ForwardedPort) -> None:
    await forwarded.finish(f"nobody listens on {forwarded.port}")


async def _run_here(command: RemoteCommand, words: list[str]) -> CommandResult:
    pipe = subprocess.PIPE
    try:
        process = await trio.lowlevel.open_process(words, stdin=pipe, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        return Failed(f'failed to exec in container: exec: "{words[0]}": executable file not found in $PATH')
    try:
        async with trio.open_nursery() as everything:
            everything.start_soon(_copy, command.stdin, process.stdin)
            async with trio.open_nursery() as outputs:
                outputs.start_soon(_copy, process.stdout, command.stdout)
                outputs.start_soon(_copy, process.stderr, command.stderr)
            code = await process.wait()
            everything.cancel_scope.cancel()
    finally:
        process.kill()
    return Exited(code)


async def _copy(source: trio.abc.ReceiveStream | None, sink: trio.abc.SendStream | None) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while source is not None and (data := await source.receive_some()):
            if sink is not None:
                await sink.send_all(data)
        if sink is not None:
            await sink.aclose()


@asynccontextmanager
async def streaming_agent(root_dir: Path) -> AsyncIterator[StreamingAgent]:
    """An agent that answers until the end of the block, or `stopping` is set: then it is gone without a word."""
    agent = StreamingAgent(root_dir)
    server = HttpServer(agent.handle)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve_unix, root_dir / "trikubelet.sock")

            async def stop() -> None:
                await agent.stopping.wait()
                nursery.cancel_scope.cancel()

            async with trio.open_nursery() as outside:
                outside.start_soon(stop)
                with trio.CancelScope(shield=True):
                    with trio.fail_after(PATIENCE):
                        yield agent
                outside.cancel_scope.cancel()
            nursery.cancel_scope.cancel()


def words_of(root_dir: Path, words: tuple[object, ...]) -> list[str]:
    first, *rest = map(str, words)
    group = [first, rest.pop(0)] if first == "top" else [first]
    return [*group, f"--root-dir={root_dir}", *rest]


def arguments_of(root_dir: Path, *words: object) -> list[str]:
    """The command line for a process that is not forked."""
    return [sys.executable, "-c", MAIN, *words_of(root_dir, words)]


@attrs.define(eq=False)
class CommandProcess:
    """A command of ours."""

    process: ForkedProcess

    async def wait(self) -> int:
        return await self.process.wait_async()

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)


@attrs.define(eq=False)
class PipedProcess(CommandProcess):
    """And the other ends of its pipes."""

    stdin: FdStream
    stdout: FdStream
    stderr: FdStream


async def run_cli(root_dir: Path, *words: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command of ours to its end."""
    told = {"stdout": bytearray(), "stderr": bytearray()}
    async with started_cli(root_dir, *words) as process, trio.open_nursery() as nursery:

        async def feed() -> None:
            with suppress(trio.BrokenResourceError):
                await process.stdin.send_all(stdin)
            await process.stdin.aclose()

        async def read(name: str, stream: FdStream) -> None:
            while data := await stream.receive_some():
                told[name] += data

        nursery.start_soon(feed)
        nursery.start_soon(read, "stdout", process.stdout)
        nursery.start_soon(read, "stderr", process.stderr)
        code = await process.wait()
    return subprocess.CompletedProcess(words_of(root_dir, words), code, bytes(told["stdout"]), bytes(told["stderr"]))


@asynccontextmanager
async def started_cli(root_dir: Path, *words: object) -> AsyncIterator[PipedProcess]:
    """A command of ours that goes on, with pipes. Killed at the end if it has not ended."""
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    process = fork(COMMAND_LINE, words_of(root_dir, words), stdin=stdin[0], stdout=stdout[1], stderr=stderr[1])
    for descriptor in (stdin[0], stdout[1], stderr[1]):
        os.close(descriptor)
    async with FdStream(stdin[1]) as into, FdStream(stdout[0]) as out, FdStream(stderr[0]) as err:
        try:
            yield PipedProcess(process, into, out, err)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait_async()


@attrs.define
class Terminal:
    """A person at a terminal: `process` has it as its stdin, stdout and stderr."""

    process: CommandProcess
    _master: int
    _slave: int
    shown: bytes = b""

    async def type(self, keys: bytes) -> None:
        await WritableFile(self._master).send_all(keys)

    async def until(self, text: bytes) -> None:
        """Wait until the terminal shows a text after all that was waited for before."""
        while text not in self.shown:
            self.shown += await self.read()
        self.shown = self.shown.partition(text)[2]

    async def read(self) -> bytes:
        """What is printed next."""
        data = await ReadableFile(self._master).receive_some()
        assert data, f"the terminal ended with {self.shown!r}"
        return data

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def modes(self) -> list[Any]:
        """As `termios.tcgetattr`: input, output, control and local flags first."""
        return termios.tcgetattr(self._slave)

    @property
    def is_raw(self) -> bool:
        return not self.modes()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)


@asynccontextmanager
async def terminal(
    root_dir: Path, *words: object, columns: int = 80, lines: int = 24, env: Mapping[str, str] | None = None
) -> AsyncIterator[Terminal]:
    """A command of ours on a terminal of its own. `env` is for variables beside ours."""
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    try:
        process = fork(
            COMMAND_LINE,
            words_of(root_dir, words),
            main="main_on_terminal",
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **(env or {})},
        )
        try:
            yield Terminal(CommandProcess(process), master, slave)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait_async()
    finally:
        os.close(master)
        os.close(slave)
