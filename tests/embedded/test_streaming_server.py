"""The URLs that CRI's Exec, Attach and PortForward answer with: who gets one, how long it lives, and the whole wire."""

from __future__ import annotations

import hashlib
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio
import trio.testing
from grpclib import GRPCError
from grpclib.const import Status

from tests.embedded.runtime_node import descriptors, processes_with, wait_for_descriptors, wait_until
from tests.embedded.test_port_forward import echo, pod_listening
from tests.patience import PATIENCE
from trikubelet.embedded.streaming_server import MOST_TOKENS, TOKEN_LIFETIME, Session, Tokens, TooManyTokensError
from trikubelet.http.streaming.client import ClientCommand, UpgradeError, open_command, open_port_forward
from trikubelet.http.streaming.command import CommandStreams, Exited, Failed, TerminalSize
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.embedded.runtime_node import Node
    from trikubelet.http.streaming.client import PortForwarder, Transport

PLAIN = CommandStreams(stdin=True, stdout=True, stderr=True)
TTY = CommandStreams(stdin=True, stdout=True, tty=True)
TRANSPORTS: list[Any] = ["websocket", "spdy"]


# -- tokens ------------------------------------------------------------------------------------------------------------


async def test_a_token_works_once_and_for_a_minute(autojump_clock: trio.testing.MockClock) -> None:
    tokens, session = Tokens(), some_session()
    assert tokens.take("unknown") is None
    first, second = tokens.add(session), tokens.add(session)
    assert first != second
    assert len(first) >= 32
    await trio.sleep(TOKEN_LIFETIME - 0.1)
    assert tokens.take(first) is session
    assert tokens.take(first) is None
    await trio.sleep(0.2)
    assert tokens.take(second) is None


async def test_so_many_tokens_wait_and_no_more_until_some_are_too_old(autojump_clock: trio.testing.MockClock) -> None:
    tokens, session = Tokens(), some_session()
    for _ in range(MOST_TOKENS):
        tokens.add(session)
    with pytest.raises(TooManyTokensError):
        tokens.add(session)
    await trio.sleep(TOKEN_LIFETIME)
    assert tokens.take(tokens.add(session)) is session


def some_session() -> Session:
    class Nothing:
        pass

    return Nothing()  # type: ignore[return-value]


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def container(node: Node) -> str:
    return await node.launch(await node.sandbox(), ["sleep", "1000"])


async def exec_url(node: Node, container: str, argv: list[str], streams: CommandStreams) -> str:
    request = v1.ExecRequest(container_id=container, cmd=argv, **attrs.asdict(streams))
    return (await node.cri.exec(request)).url


@pytest.mark.root
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"stdout": True, "stderr": True, "tty": True}, "tty and stderr cannot both be true"),
        ({"tty": True}, "one of stdin, stdout, or stderr must be set"),
        ({"stdout": True, "cmd": []}, "no command"),
    ],
)
async def test_streams_that_cannot_be_are_refused(node: Node, container: str, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(GRPCError, match=why) as failure:
        await node.cri.exec(v1.ExecRequest(**{"container_id": container, "cmd": ["true"], **fields}))
    assert failure.value.status is Status.INVALID_ARGUMENT


@pytest.mark.root
async def test_only_what_runs_has_streams(node: Node) -> None:
    sandbox = await node.sandbox()
    container = await node.create(sandbox, ["true"])
    for call in (
        node.cri.exec(v1.ExecRequest(container_id=container, cmd=["true"], stdout=True)),
        node.cri.attach(v1.AttachRequest(container_id=container, stdout=True)),
    ):
        with pytest.raises(GRPCError, match="container is in CONTAINER_CREATED state") as failure:
            await call
        assert failure.value.status is Status.FAILED_PRECONDITION
    await node.cri.stop_pod_sandbox(v1.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    with pytest.raises(GRPCError, match="sandbox container is not running"):
        await node.cri.port_forward(v1.PortForwardRequest(pod_sandbox_id=sandbox))


@pytest.mark.root
async def test_what_is_unknown_is_not_found(node: Node) -> None:
    for call in (
        node.cri.exec(v1.ExecRequest(container_id="feed", cmd=["true"], stdout=True)),
        node.cri.attach(v1.AttachRequest(container_id="feed", stdout=True)),
        node.cri.port_forward(v1.PortForwardRequest(pod_sandbox_id="feed")),
    ):
        with pytest.raises(GRPCError) as failure:
            await call
        assert failure.value.status is Status.NOT_FOUND


@pytest.mark.root
async def test_nothing_listens_before_the_first_url_is_asked_for(node: Node, container: str) -> None:
    assert node.runtime._streaming._port == 0
    url = urlsplit(await exec_url(node, container, ["true"], PLAIN))
    assert url.scheme == "http"
    assert url.hostname == "127.0.0.1"
    assert url.port == node.runtime._streaming._port
    assert url.path.startswith("/exec/")
    again = urlsplit(await exec_url(node, container, ["true"], PLAIN))
    assert again.port == url.port


@pytest.mark.root
async def test_a_url_that_was_used_or_belongs_elsewhere_is_not_found(node: Node, container: str) -> None:
    url = await exec_url(node, container, ["true"], PLAIN)
    async with command_at(url, PLAIN) as command:
        assert await command.run(None, None, None) == Exited(0)
    elsewhere = (await exec_url(node, container, ["true"], PLAIN)).replace("/exec/", "/attach/")
    for wrong in (url, elsewhere, elsewhere.replace("/attach/", "/exec/")):
        with pytest.raises(UpgradeError) as failure:
            async with command_at(wrong, PLAIN):
                pass
        assert failure.value.status == 404


# -- the wire ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator[tuple[trio.SocketStream, str]]:
    parts = urlsplit(url)
    with trio.fail_after(3 * PATIENCE):
        async with await trio.open_tcp_stream(str(parts.hostname), parts.port or 0) as stream:
            yield stream, parts.path


@asynccontextmanager
async def command_at(
    url: str, streams: CommandStreams, transport: Transport = "websocket"
) -> AsyncIterator[ClientCommand]:
    async with (
        connection_to(url) as (stream, target),
        open_command(stream, target, streams, transport=transport) as command,
    ):
        yield command


@asynccontextmanager
async def forwarder_at(url: str, transport: Transport) -> AsyncIterator[PortForwarder]:
    async with (
        connection_to(url) as (stream, target),
        open_port_forward(stream, target, transport=transport) as forwarder,
    ):
        yield forwarder


class Collected(trio.abc.SendStream):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def typed(data: bytes) -> trio.abc.ReceiveStream:
    """A stdin that holds `data` and ends."""
    sender, receiver = trio.testing.memory_stream_one_way_pair()
    await sender.send_all(data)
    await sender.aclose()
    return receiver


@pytest.mark.root
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_ten_mebibytes_come_back_and_the_exit_code_too(node: Node, container: str, transport: Any) -> None:
    data, out, err = os.urandom(10 << 20), Collected(), Collected()
    url = await exec_url(node, container, ["sh", "-c", "cat; echo done >&2; exit 37"], PLAIN)
    async with command_at(url, PLAIN, transport) as command:
        assert await command.run(await typed(data), out, err) == Exited(37)
    assert hashlib.sha256(out.data).digest() == hashlib.sha256(data).digest()
    assert bytes(err.data) == b"done\n"


@pytest.mark.root
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_missing_command_is_explained(node: Node, container: str, transport: Any) -> None:
    url = await exec_url(node, container, ["no-such-command"], PLAIN)
    async with command_at(url, PLAIN, transport) as command:
        result = await command.run(None, None, None)
    assert isinstance(result, Failed)
    assert result.message.startswith("Internal error occurred: error executing command in container: ")
    assert "executable file not found in $PATH" in result.message


@pytest.mark.root
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_terminal_is_resized_and_ends_with_its_shell(node: Node, container: str, transport: Any) -> None:
    script = "trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.02; done"
    url = await exec_url(node, container, ["bash", "-c", script], TTY)
    async with command_at(url, TTY, transport) as command:
        assert command.stdout is not None
        out = b""
        while b"ready" not in out:
            out += await command.stdout.receive_some()
        await command.resize(TerminalSize(width=77, height=22))
        rest = Collected()
        assert await command.run(None, rest, None) == Exited(4)
    assert b"22 77" in rest.data


@pytest.mark.root
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_lost_connection_ends_the_command(node: Node, container: str, transport: Any) -> None:
    marker = f"lost-{node.keeper_pid()}-{transport}"
    script = f"python3 -c 'import os,time; os.fork() or os.setsid(); time.sleep(1000)' {marker} & echo up; wait"
    url = await exec_url(node, container, ["bash", "-c", script], PLAIN)
    async with connection_to(url) as (stream, target):
        async with open_command(stream, target, PLAIN, transport=transport) as command:
            assert command.stdout is not None
            while b"up" not in await command.stdout.receive_some():
                pass
            await wait_until(lambda: len(processes_with(marker)) >= 2, "its processes run")
            await trio.aclose_forcefully(stream)
            await wait_until(lambda: processes_with(marker) == [], "its processes are gone")


@pytest.mark.root
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_attached_client_talks_to_the_container(node: Node, transport: Any) -> None:
    script = "while read line; do echo got-$line; done; echo end"
    container = await node.launch(await node.sandbox(), ["bash", "-c", script], stdin=True, stdin_once=True)
    request = v1.AttachRequest(container_id=container, **attrs.asdict(PLAIN))
    out = Collected()
    async with command_at((await node.cri.attach(request)).url, PLAIN, transport) as command:
        assert await command.run(await typed(b"one\ntwo\n"), out, None) == Exited(0)
    assert bytes(out.data) == b"got-one\ngot-two\nend\n"
    assert (await node.ended(container)).exit_code == 0


@pytest.mark.root
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_port_carries_five_mebibytes_and_a_closed_one_says_so(node: Node, transport: Any) -> None:
    data = os.urandom(5 << 20)
    sandbox = await node.sandbox()
    url = (await node.cri.port_forward(v1.PortForwardRequest(pod_sandbox_id=sandbox))).url
    async with pod_listening(echo) as port, forwarder_at(url, transport) as forwarder:
        near, far = trio.testing.memory_stream_pair()
        received = bytearray()
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await near.send_all(data)
                await near.send_eof()

            async def receive() -> None:
                async for block in near:
                    received.extend(block)

            nursery.start_soon(send)
            nursery.start_soon(receive)
            assert await forwarder.forward(far, port) == ""
        assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
        _, unused = trio.testing.memory_stream_pair()
        assert "connection refused" in await forwarder.forward(unused, 1)


@pytest.mark.root
async def test_a_hundred_commands_over_the_wire_leave_nothing(node: Node, container: str) -> None:
    async def one(transport: Any) -> None:
        async with limit:
            url = await exec_url(node, container, ["echo", "hello"], PLAIN)
            out = Collected()
            async with command_at(url, PLAIN, transport) as command:
                assert await command.run(None, out, None) == Exited(0)
            assert bytes(out.data) == b"hello\n"

    limit = trio.CapacityLimiter(10)
    await one("spdy")
    before = descriptors(os.getpid(), node.keeper_pid())
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(one, "spdy")
            nursery.start_soon(one, "websocket")
    await wait_for_descriptors(before, os.getpid(), node.keeper_pid())
