from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from wsproto.connection import CLIENT, Connection
from wsproto.events import BytesMessage, CloseConnection

from tests.http.streaming.fake_runtime import SPDY_ANSWER, URL, FakeRuntime, client_of, read_head, read_rest
from trikubelet.http.messages import Request
from trikubelet.http.streaming.client import ClientCommand, open_command
from trikubelet.http.streaming.command import CommandResult, CommandStreams, Exited, Failed, TerminalSize, encode_status
from trikubelet.http.streaming.spdy import SpdySession, SpdyStream, open_spdy
from trikubelet.http.streaming.translate import spdy_headers, translate_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.http.streaming.fake_runtime import Connect, Serve
    from trikubelet.http.messages import Takeover

ALL = CommandStreams(stdin=True, stdout=True, stderr=True)
TERMINAL = CommandStreams(stdin=True, stdout=True, tty=True)
OPENING = (
    b"GET /exec/ns/pod/c HTTP/1.1\r\nHost: node:10250\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
)


def translating(streams: CommandStreams) -> Serve:
    async def serve(request: Request, takeover: Takeover, connect: Connect) -> None:
        await translate_command(URL, request, takeover, streams, connect)

    return serve


@attrs.define
class Runtime:
    """The runtime's end of a translated session: the streams that the agent has opened, by kind."""

    transport: trio.abc.HalfCloseableStream
    session: SpdySession
    streams: Mapping[str, SpdyStream]

    async def end(self, status: bytes) -> None:
        """As containerd does it: the status, then everything is reset."""
        await self.streams["error"].send_all(status)
        for stream in self.streams.values():
            await stream.reset()
        await self.transport.send_eof()


@asynccontextmanager
async def runtime_of(fake: FakeRuntime, kinds: int, answer: bytes = SPDY_ANSWER) -> AsyncIterator[Runtime]:
    transport = await fake.accept()
    await read_head(transport)
    await transport.send_all(answer)
    async with open_spdy(transport, client=False) as session:
        streams = {}
        for _ in range(kinds):
            stream = await session.accept_stream()
            await stream.reply()
            streams[stream.headers["streamtype"]] = stream
        yield Runtime(transport, session, streams)


@asynccontextmanager
async def translated(
    streams: CommandStreams, kinds: int, *, slow: bool = False, answer: bytes = SPDY_ANSWER
) -> AsyncIterator[tuple[ClientCommand, Runtime]]:
    """A client's command and the runtime's streams, as a translator connects them."""
    fake = FakeRuntime(slow=slow)
    async with client_of(translating(streams), fake, slow=slow) as client:
        async with (
            open_command(client, "/exec/ns/pod/c", streams) as command,
            runtime_of(fake, kinds, answer) as runtime,
        ):
            yield command, runtime


async def ended_with(status: bytes, answer: bytes = SPDY_ANSWER) -> CommandResult:
    """What a client is told when the runtime says `status`."""
    async with translated(CommandStreams(stdout=True), 2, answer=answer) as (command, runtime):
        assert command.protocol == "v5.channel.k8s.io"
        await runtime.end(status)
        return await command.result()


def test_the_runtime_is_asked_for_spdy_and_learns_nothing_of_the_websocket() -> None:
    fields = (
        ("host", "node:10250"),
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "k"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
        ("sec-websocket-extensions", "permessage-deflate"),
        ("authorization", "Bearer t0ken"),
        ("user-agent", "kubectl"),
    )
    assert spdy_headers(Request("GET", "/", raw_headers=fields)) == [
        ("host", "node:10250"),
        ("user-agent", "kubectl"),
        ("connection", "Upgrade"),
        ("upgrade", "SPDY/3.1"),
        ("x-stream-protocol-version", "v4.channel.k8s.io"),
        ("x-stream-protocol-version", "v3.channel.k8s.io"),
        ("x-stream-protocol-version", "v2.channel.k8s.io"),
        ("x-stream-protocol-version", "channel.k8s.io"),
        ("content-length", "0"),
    ]


@pytest.mark.parametrize(
    ("streams", "kinds"),
    [
        (CommandStreams(stdout=True), ["error", "stdout"]),
        (ALL, ["error", "stdin", "stdout", "stderr"]),
        (TERMINAL, ["error", "stdin", "stdout", "resize"]),
        (CommandStreams(stdin=True), ["error", "stdin"]),
    ],
)
async def test_the_streams_that_the_runtime_waits_for_are_opened(
    streams: CommandStreams, kinds: list[str], autojump_clock: MockClock
) -> None:
    async with translated(streams, len(kinds)) as (_, runtime):
        assert list(runtime.streams) == kinds


async def test_every_stream_goes_its_way(autojump_clock: MockClock) -> None:
    async with translated(ALL, 4) as (command, runtime):
        assert command.stdin is not None
        assert command.stdout is not None
        assert command.stderr is not None
        await command.stdin.send_all(b"typed")
        assert await runtime.streams["stdin"].receive_some() == b"typed"
        await runtime.streams["stdout"].send_all(b"printed")
        assert await command.stdout.receive_some() == b"printed"
        await runtime.streams["stderr"].send_all(b"complained")
        assert await command.stderr.receive_some() == b"complained"


async def test_a_closed_stdin_is_closed_there_and_the_output_goes_on(autojump_clock: MockClock) -> None:
    async with translated(ALL, 4) as (command, runtime):
        assert command.stdin is not None
        assert command.stdout is not None
        await command.stdin.send_all(b"all")
        await command.stdin.send_eof()
        assert await read_rest(runtime.streams["stdin"]) == b"all"
        await runtime.streams["stdout"].send_all(b"counted")
        assert await command.stdout.receive_some() == b"counted"


async def test_terminal_sizes_arrive_as_json(autojump_clock: MockClock) -> None:
    async with translated(TERMINAL, 4) as (command, runtime):
        await command.resize(TerminalSize(80, 24))
        assert json.loads(await runtime.streams["resize"].receive_some()) == {"Width": 80, "Height": 24}
        await command.resize(TerminalSize(100, 30))
        assert json.loads(await runtime.streams["resize"].receive_some()) == {"Width": 100, "Height": 30}


@pytest.mark.parametrize("result", [Exited(0), Exited(3), Exited(137), Failed("no such command")])
async def test_how_the_command_ended_is_passed_on(result: CommandResult, autojump_clock: MockClock) -> None:
    told = await ended_with(encode_status(result))
    if isinstance(result, Failed):
        # Once is enough.
        assert told == Failed("Internal error occurred: no such command")
    else:
        assert told == result


@pytest.mark.parametrize("version", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
async def test_a_runtime_that_goes_without_a_status_is_a_failure(version: str, autojump_clock: MockClock) -> None:
    told = await ended_with(b"", SPDY_ANSWER.replace(b"v4.channel.k8s.io", version.encode()))
    assert isinstance(told, Failed)
    assert "did not say how the command ended" in told.message


@pytest.mark.parametrize("version", ["v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"])
async def test_before_v4_silence_is_success_and_text_is_failure(version: str, autojump_clock: MockClock) -> None:
    answer = SPDY_ANSWER.replace(b"v4.channel.k8s.io", version.encode())
    assert await ended_with(b"", answer) == Exited(0)
    told = await ended_with(b"it went wrong", answer)
    assert isinstance(told, Failed)
    assert "it went wrong" in told.message


async def test_what_a_runtime_says_at_length_is_cut_off(autojump_clock: MockClock) -> None:
    told = await ended_with(b"x" * 1_000_000, SPDY_ANSWER.replace(b"v4.channel", b"v3.channel"))
    assert told == Failed("Internal error occurred: " + "x" * 16 * 2**10)


async def test_output_arrives_before_the_end_is_told(autojump_clock: MockClock) -> None:
    async with translated(ALL, 4) as (command, runtime):
        assert command.stdout is not None
        await runtime.streams["stdout"].send_all(b"x" * 200_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.end, encode_status(Exited(0)))
            output = b""
            while len(output) < 200_000:
                output += await command.stdout.receive_some()
            assert await command.result() == Exited(0)


async def test_a_runtime_that_keeps_its_connection_open_holds_up_nobody(autojump_clock: MockClock) -> None:
    async with translated(CommandStreams(stdout=True), 2) as (command, runtime):
        await runtime.streams["error"].send_all(encode_status(Exited(0)))
        for stream in runtime.streams.values():
            await stream.send_eof()
        started = trio.current_time()
        assert await command.result() == Exited(0)
        await runtime.session.ended.wait()
        assert trio.current_time() == started


async def test_a_runtime_that_breaks_in_the_middle_is_told_as_a_failure(autojump_clock: MockClock) -> None:
    async with translated(ALL, 4) as (command, runtime):
        assert command.stdout is not None
        await runtime.streams["stdout"].send_all(b"half")
        assert await command.stdout.receive_some() == b"half"
        await trio.aclose_forcefully(runtime.transport)
        assert isinstance(await command.result(), Failed)


async def test_a_client_that_is_gone_takes_the_runtime_s_connection_with_it_at_once(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    async with client_of(translating(ALL), fake) as client:
        await client.send_all(OPENING)
        async with runtime_of(fake, 4) as runtime:
            await trio.testing.wait_all_tasks_blocked()
            started = trio.current_time()
            await trio.aclose_forcefully(client)
            await runtime.session.ended.wait()
            assert trio.current_time() == started


async def test_a_client_that_closes_its_websocket_takes_the_runtime_s_connection_with_it(
    autojump_clock: MockClock,
) -> None:
    fake = FakeRuntime()
    async with client_of(translating(ALL), fake) as client:
        await client.send_all(OPENING)
        async with runtime_of(fake, 4) as runtime:
            await trio.testing.wait_all_tasks_blocked()
            started = trio.current_time()
            await client.send_all(Connection(CLIENT).send(CloseConnection(code=1000)))
            await runtime.session.ended.wait()
            assert trio.current_time() == started


async def test_what_the_client_reads_is_v5(autojump_clock: MockClock) -> None:
    fake = FakeRuntime()
    wire = Connection(CLIENT)
    events: list[Any] = []
    async with client_of(translating(ALL), fake) as client:
        await client.send_all(OPENING)
        first, fields = await read_head(client)
        assert first.startswith("HTTP/1.1 101")
        assert "sec-websocket-protocol: v5.channel.k8s.io" in [field.lower() for field in fields]
        async with trio.open_nursery() as nursery:
            async with runtime_of(fake, 4) as runtime:
                await runtime.streams["stdout"].send_all(b"out")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(runtime.end, encode_status(Exited(3)))
                while not events or not isinstance(events[-1], CloseConnection):
                    wire.receive_data(bytes(await client.receive_some()))
                    events += wire.events()
                    if isinstance(events[-1], CloseConnection):
                        await client.send_all(wire.send(events[-1].response()))
    *messages, close = events
    assert [bytes(message.data) for message in messages] == [b"\x01", b"\x01out", b"\x03" + encode_status(Exited(3))]
    assert all(isinstance(message, BytesMessage) for message in messages)
    assert close.code == 1000


# Before the command runs: the WebSocket is open by then.


async def told_of(answer: bytes | None, *, unreachable: str = "") -> CommandResult:
    fake = FakeRuntime(unreachable=unreachable)
    async with client_of(translating(ALL), fake) as client, trio.open_nursery() as nursery:
        async with open_command(client, "/exec/ns/pod/c", ALL) as command:
            if not unreachable:
                runtime = await fake.accept()
                await read_head(runtime)
                if answer is not None:
                    nursery.start_soon(runtime.send_all, answer)
            return await command.result()


async def test_a_runtime_that_cannot_be_reached_is_told_on_the_error_channel(autojump_clock: MockClock) -> None:
    told = await told_of(None, unreachable="error dialing backend: 127.0.0.1:1: refused")
    assert told == Failed("Internal error occurred: error dialing backend: 127.0.0.1:1: refused")


async def test_a_runtime_that_refuses_is_told_in_its_words(autojump_clock: MockClock) -> None:
    told = await told_of(b"HTTP/1.1 404 Not Found\r\nContent-Length: 20\r\n\r\n404 page not found\r\n")
    assert told == Failed("Internal error occurred: the runtime refused the stream with status 404: 404 page not found")


async def test_a_runtime_that_does_not_answer_is_told_in_time(autojump_clock: MockClock) -> None:
    told = await told_of(None)
    assert told == Failed("Internal error occurred: no answer from the runtime within 30 seconds")


async def test_a_runtime_that_accepts_no_streams_is_told_in_time(autojump_clock: MockClock) -> None:
    told = await told_of(SPDY_ANSWER)
    assert told == Failed("Internal error occurred: the runtime did not accept the command's streams in time")


async def test_a_client_that_leaves_while_the_runtime_is_asked_takes_the_connection_with_it(
    autojump_clock: MockClock,
) -> None:
    fake = FakeRuntime()
    async with client_of(translating(ALL), fake) as client:
        await client.send_all(OPENING)
        runtime = await fake.accept()
        await read_head(runtime)
        started = trio.current_time()
        await trio.aclose_forcefully(client)
        assert await read_rest(runtime) == b""
        assert trio.current_time() == started


# A side that does not read.

MOST = 2**20


async def test_little_waits_for_a_client_that_does_not_read(autojump_clock: MockClock) -> None:
    async with translated(ALL, 4, slow=True) as (_, runtime):
        sent = 0
        with trio.move_on_after(3600):
            while sent < 64 * MOST:
                await runtime.streams["stdout"].send_all(bytes(16 * 2**10))
                sent += 16 * 2**10
        assert sent <= MOST


async def test_little_waits_for_a_runtime_that_does_not_read(autojump_clock: MockClock) -> None:
    async with translated(ALL, 4, slow=True) as (command, _):
        assert command.stdin is not None
        sent = 0
        with trio.move_on_after(3600):
            while sent < 64 * MOST:
                await command.stdin.send_all(bytes(16 * 2**10))
                sent += 16 * 2**10
        assert sent <= 2 * MOST
