"""Exec and attach from end to end: our client, our server, memory between them; and clients that misbehave."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, lockstep_stream_one_way_pair

from tests.http.streaming.serving import serving
from trikubelet.http.streaming.client import ClientCommand, UpgradeError, open_command
from trikubelet.http.streaming.command import (
    CommandStreams,
    Exited,
    Failed,
    StreamingTimeouts,
    TerminalSize,
    decode_status,
    encode_status,
    encode_text,
)
from trikubelet.http.streaming.remote_command import RemoteCommand, StreamsMissingError, serve_remote_command
from trikubelet.http.streaming.spdy import open_spdy
from trikubelet.http.streaming.upgrade import upgrade

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from trikubelet.http.messages import Request, Takeover

Transport = Literal["websocket", "spdy"]
BOTH = pytest.mark.parametrize("transport", ["websocket", "spdy"])
ALL = CommandStreams(stdin=True, stdout=True, stderr=True)


def command_server(
    run: Callable[[RemoteCommand], Awaitable[None]],
    streams: CommandStreams = ALL,
    timeouts: StreamingTimeouts | None = None,
) -> AbstractAsyncContextManager[trio.abc.Stream]:
    async def handle(request: Request, takeover: Takeover) -> None:
        async with serve_remote_command(request, takeover, streams, timeouts or StreamingTimeouts()) as command:
            await run(command)

    return serving(handle)


async def cat(command: RemoteCommand) -> None:
    """What `cat` does, with a word on stderr."""
    assert command.stdin is not None
    assert command.stdout is not None
    while data := await command.stdin.receive_some():
        await command.stdout.send_all(data)
    if command.stderr is not None:
        await command.stderr.send_all(b"done")
    await command.finish(Exited(0))


def source(data: bytes) -> MemoryReceiveStream:
    stream = MemoryReceiveStream()
    stream.put_data(data)
    stream.put_eof()
    return stream


@BOTH
async def test_a_command_gets_stdin_to_its_end_and_its_client_gets_output_and_the_exit(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    data = bytes(range(256)) * 4000
    out, err = MemorySendStream(), MemorySendStream()
    async with command_server(cat) as stream, open_command(stream, "/exec/x", ALL, transport=transport) as command:
        assert await command.run(source(data), out, err) == Exited(0)
    assert out.get_data_nowait() == data
    assert err.get_data_nowait() == b"done"


@BOTH
@pytest.mark.parametrize("result", [Exited(0), Exited(1), Exited(137), Failed("no such file: läuft nicht")])
async def test_the_result_reaches_the_client(
    autojump_clock: trio.abc.Clock, transport: Transport, result: Exited | Failed
) -> None:
    async def run(command: RemoteCommand) -> None:
        await command.finish(result)

    streams = CommandStreams(stdout=True)
    async with command_server(run, streams) as stream:
        async with open_command(stream, "/exec/x", streams, transport=transport) as command:
            got = await command.run(None, None, None)
    if isinstance(result, Failed):
        assert isinstance(got, Failed)
        assert result.message in got.message
    else:
        assert got == result


@BOTH
async def test_the_terminals_sizes_arrive_and_the_latest_one_wins(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    seen: list[TerminalSize] = []

    async def run(command: RemoteCommand) -> None:
        assert command.tty
        assert command.resizes is not None
        assert command.stderr is None
        seen.append(await command.resizes.receive())
        await trio.sleep(1)
        seen.append(await command.resizes.receive())
        await command.finish(Exited(0))

    streams = CommandStreams(stdin=True, stdout=True, stderr=True, tty=True)
    async with command_server(run, streams) as stream:
        async with open_command(stream, "/exec/x", streams, transport=transport) as command:
            await command.resize(TerminalSize(80, 24))
            await trio.sleep(0.5)
            for width in (100, 120, 65535):
                await command.resize(TerminalSize(width, 50))
            assert await command.run(None, None, None) == Exited(0)
    assert seen == [TerminalSize(80, 24), TerminalSize(65535, 50)]


@BOTH
async def test_what_a_client_sends_right_after_the_upgrade_is_never_lost(transport: Transport) -> None:
    """Over sockets, where an answer may be on its way before the server has begun to watch its client."""

    async def handle(request: Request, takeover: Takeover) -> None:
        async with serve_remote_command(request, takeover, ALL) as command:
            await cat(command)

    for _ in range(20):
        out = MemorySendStream()
        client, server = (trio.SocketStream(end) for end in trio.socket.socketpair())
        with trio.fail_after(10):
            async with serving(handle, (client, server)) as stream:
                async with open_command(stream, "/exec/x", ALL, transport=transport) as command:
                    assert await command.run(source(b"now"), out, None) == Exited(0)
        assert out.get_data_nowait() == b"now"


@BOTH
async def test_a_command_that_stops_reading_stdin_lets_its_client_go_on(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    async def head(command: RemoteCommand) -> None:
        assert command.stdin is not None
        assert command.stdout is not None
        await command.stdout.send_all(await command.stdin.receive_some(4))
        await command.stdin.aclose()
        await trio.sleep(1)
        await command.finish(Exited(0))

    out = MemorySendStream()
    async with command_server(head) as stream, open_command(stream, "/exec/x", ALL, transport=transport) as command:
        assert await command.run(source(b"x" * 4 + b"y" * 2**22), out, None) == Exited(0)
    assert out.get_data_nowait() == b"xxxx"


def unbuffered_pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """A transport that holds nothing: who sends waits until it is received."""
    to_server, server_takes = lockstep_stream_one_way_pair()
    to_client, client_takes = lockstep_stream_one_way_pair()
    return trio.StapledStream(to_server, client_takes), trio.StapledStream(to_client, server_takes)


@BOTH
async def test_memory_stays_bounded_when_a_command_reads_no_stdin(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    sent = 0

    async def handle(request: Request, takeover: Takeover) -> None:
        async with serve_remote_command(request, takeover, ALL) as command:
            await trio.sleep(60)
            await command.finish(Exited(5))

    async def flood(command: ClientCommand) -> None:
        nonlocal sent
        assert command.stdin is not None
        with suppress(trio.BrokenResourceError):
            while True:
                await command.stdin.send_all(b"x" * 2**16)
                sent += 2**16

    async with serving(handle, unbuffered_pair()) as stream:
        async with open_command(stream, "/exec/x", ALL, transport=transport) as command:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood, command)
                await trio.sleep(30)
                assert 2**17 <= sent <= 2**20
                assert await command.result() == Exited(5)
                nursery.cancel_scope.cancel()


@BOTH
async def test_a_command_waits_for_a_client_that_does_not_read(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    """The client's inbox fills, then its reader stops, and the command's output with it."""
    written = 0

    async def handle(request: Request, takeover: Takeover) -> None:
        nonlocal written
        async with serve_remote_command(request, takeover, CommandStreams(stdout=True)) as command:
            assert command.stdout is not None
            with suppress(trio.BrokenResourceError):
                while True:
                    await command.stdout.send_all(b"y" * 2**16)
                    written += 2**16

    async with serving(handle, unbuffered_pair()) as stream:
        streams = CommandStreams(stdout=True)
        async with open_command(stream, "/exec/x", streams, transport=transport) as command:
            await trio.sleep(50)
            assert 2**17 <= written <= 2**20
            assert command.stdout is not None
            before = written
            for _ in range(100):
                await command.stdout.receive_some()
            await trio.sleep(1)
            assert written > before


@BOTH
async def test_a_lost_client_is_noticed_and_breaks_the_streams(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    seen: list[str] = []

    async def run(command: RemoteCommand) -> None:
        assert command.stdin is not None
        assert command.stdout is not None
        await command.wait_disconnected()
        with pytest.raises(trio.BrokenResourceError):
            await command.stdin.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await command.stdout.send_all(b"x")
        await command.finish(Exited(0))
        seen.append("finished")

    with trio.CancelScope() as scope:
        async with command_server(run) as stream, open_command(stream, "/exec/x", ALL, transport=transport):
            await trio.aclose_forcefully(stream)
            await trio.sleep(1)
            assert seen == ["finished"]
            scope.cancel()
    assert seen == ["finished"]


@BOTH
async def test_a_lost_server_is_a_failure_not_a_success(autojump_clock: trio.abc.Clock, transport: Transport) -> None:
    async def run(command: RemoteCommand) -> None:
        await trio.sleep(1)
        raise RuntimeError("the runtime died")

    async with command_server(run) as stream, open_command(stream, "/exec/x", ALL, transport=transport) as command:
        result = await command.run(None, None, None)
    assert isinstance(result, Failed)


@BOTH
async def test_an_idle_connection_is_cut_and_a_busy_one_is_not(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    ended: list[float] = []

    async def run(command: RemoteCommand) -> None:
        started = trio.current_time()
        await command.wait_disconnected()
        ended.append(trio.current_time() - started)

    async with command_server(run, timeouts=StreamingTimeouts(idle=100)) as stream:
        async with open_command(stream, "/exec/x", ALL, transport=transport) as command:
            assert command.stdin is not None
            for _ in range(5):
                await trio.sleep(90)
                await command.stdin.send_all(b"x")
            assert isinstance(await command.result(), Failed)
    assert ended == [pytest.approx(550)]


async def test_spdy_streams_must_come_in_time(autojump_clock: trio.abc.Clock) -> None:
    errors: list[Exception] = []

    async def handle(request: Request, takeover: Takeover) -> None:
        try:
            async with serve_remote_command(request, takeover, ALL):
                raise AssertionError("the client never opened its streams")
        except StreamsMissingError as error:
            errors.append(error)
            raise

    async with serving(handle) as stream:
        upgraded = await upgrade(stream, "POST", "/", _spdy_headers("v4.channel.k8s.io"))
        async with open_spdy(upgraded.stream, client=True) as session:
            started = trio.current_time()
            await session.open_stream({"streamType": "error"})
            await session.ended.wait()
            assert trio.current_time() - started == pytest.approx(30, abs=1)
    assert "stderr within 30 seconds, got error" in str(errors[0])


def _spdy_headers(*protocols: str) -> list[tuple[str, str]]:
    listed = [("X-Stream-Protocol-Version", name) for name in protocols]
    return [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), *listed]


async def _finish_with_three(command: RemoteCommand) -> None:
    await command.finish(Exited(3))


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        (["v4.channel.k8s.io", "v3.channel.k8s.io"], "v4.channel.k8s.io"),
        (["v9.channel.k8s.io, v2.channel.k8s.io"], "v2.channel.k8s.io"),
        (["v9.channel.k8s.io", "channel.k8s.io"], "channel.k8s.io"),
    ],
)
async def test_the_clients_first_protocol_that_is_known_is_taken(
    autojump_clock: trio.abc.Clock, offered: list[str], agreed: str
) -> None:
    async with command_server(_finish_with_three, CommandStreams(stdout=True)) as stream:
        upgraded = await upgrade(stream, "POST", "/", _spdy_headers(*offered))
        assert upgraded.headers["x-stream-protocol-version"] == agreed
        async with open_spdy(upgraded.stream, client=True) as session:
            error = await session.open_stream({"streamType": "error"})
            await session.open_stream({"streamType": "stdout"})
            message = await error.receive_some()
    if agreed == "v4.channel.k8s.io":
        assert decode_status(message) == Exited(3)
    else:
        assert message == b"command terminated with non-zero exit code: 3"


async def test_streams_that_nobody_asked_for_are_accepted_and_ended(autojump_clock: trio.abc.Clock) -> None:
    async def run(command: RemoteCommand) -> None:
        await trio.sleep(10)
        await command.finish(Exited(0))

    async with command_server(run, CommandStreams(stdout=True)) as stream:
        upgraded = await upgrade(stream, "POST", "/", _spdy_headers("v4.channel.k8s.io"))
        async with open_spdy(upgraded.stream, client=True) as session:
            extra = [await session.open_stream({"streamType": "stdin"})]
            error = await session.open_stream({"streamType": "error"})
            await session.open_stream({"streamType": "stdout"})
            extra.append(await session.open_stream({"streamType": "stdout"}))
            for stray in extra:
                with pytest.raises(trio.BrokenResourceError):
                    await stray.receive_some()
            assert decode_status(await error.receive_some()) == Exited(0)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", [], 400),
        ("POST", [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")], 400),
        ("POST", [("Upgrade", "h2c"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io")], 400),
        ("POST", _spdy_headers("v9.channel.k8s.io"), 403),
        ("GET", [("Connection", "Upgrade"), ("Upgrade", "websocket")], 426),
        (
            "GET",
            [("Connection", "upgrade"), ("Upgrade", "WebSocket"), ("Sec-WebSocket-Version", "13")],
            400,
        ),
        (
            "GET",
            [("Connection", "upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Protocol", "v3.channel.k8s.io")],
            403,
        ),
        ("POST", [("Connection", "upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")], 405),
    ],
)
async def test_requests_that_fit_no_protocol_are_refused(
    autojump_clock: trio.abc.Clock, method: str, headers: list[tuple[str, str]], status: int
) -> None:
    async with command_server(cat) as stream:
        with pytest.raises(UpgradeError) as caught:
            await upgrade(stream, method, "/exec/x", headers)
    assert caught.value.status == status


async def test_a_refusal_names_the_protocols_that_would_do(autojump_clock: trio.abc.Clock) -> None:
    async with command_server(cat) as stream:
        fields = "".join(f"{name}: {value}\r\n" for name, value in _spdy_headers("v9"))
        await stream.send_all(f"POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode())
        answer = await stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 403")
    assert answer.lower().count(b"x-accepted-stream-protocol-versions: ") == 4


def test_a_status_survives_the_wire() -> None:
    assert json.loads(encode_status(Exited(0))) == {"metadata": {}, "status": "Success"}
    status = json.loads(encode_status(Exited(7)))
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"] == {"causes": [{"reason": "ExitCode", "message": "7"}]}
    assert json.loads(encode_status(Failed("x")))["reason"] == "InternalError"
    assert encode_text(Exited(0)) == b""
    assert decode_status(encode_status(Exited(7))) == Exited(7)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"status":"Failure","reason":"NonZeroExitCode"}',
        b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":7}}',
        b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"-1"}]}}',
        b"[" * 10000,
    ],
)
def test_a_status_that_makes_no_sense_is_a_failure(message: bytes) -> None:
    assert isinstance(decode_status(message), Failed)
