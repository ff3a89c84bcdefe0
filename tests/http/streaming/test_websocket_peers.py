"""Our WebSockets against those of the `websockets` library, as client and as server; and frames against our rules."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest
import trio
from trio.testing import memory_stream_pair
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as HandshakeRequest
from websockets.http11 import Response as HandshakeResponse
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from tests.http.streaming.serving import serving
from trikubelet.http.streaming.channels import ERROR
from trikubelet.http.streaming.client import UpgradeError, open_command
from trikubelet.http.streaming.command import CommandStreams, Exited, Failed, TerminalSize
from trikubelet.http.streaming.remote_command import RemoteCommand, serve_remote_command
from trikubelet.http.streaming.websocket import WebSocketByteStream, WebSocketClosed, open_websocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from websockets.protocol import Protocol

    from trikubelet.http.messages import Request, Takeover

STREAMS = CommandStreams(stdin=True, stdout=True)


class Peer:
    """The library's protocol on a stream. Messages are taken frame by frame."""

    def __init__(self, stream: trio.abc.Stream, protocol: Protocol) -> None:
        self.stream = stream
        self.protocol = protocol
        self._events: list[object] = []

    async def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                await self.stream.send_all(data)

    async def event(self) -> object:
        """The next frame, request or response; None at the end of the connection."""
        while not self._events:
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self.protocol.receive_data(bytes(data))
            self._events += self.protocol.events_received()
            await self.flush()
        return self._events.pop(0)

    async def frame(self) -> tuple[Opcode, bytes]:
        frame = await self.event()
        assert isinstance(frame, Frame)
        return frame.opcode, bytes(frame.data)

    async def send(self, data: bytes, *, text: bool = False) -> None:
        if text:
            self.protocol.send_text(data)
        else:
            self.protocol.send_binary(data)
        await self.flush()

    async def close_code(self) -> int | None:
        """What we close with, after everything else."""
        while await self.event() is not None:
            pass
        return self.protocol.close_rcvd.code if self.protocol.close_rcvd else None


@asynccontextmanager
async def library_client(protocol: str = "v5.channel.k8s.io") -> AsyncIterator[Peer]:
    """The library as a client of a command that works like `cat`."""

    async def handle(request: Request, takeover: Takeover) -> None:
        async with serve_remote_command(request, takeover, STREAMS) as command:
            await command.finish(await cat(command))

    async with serving(handle) as stream:
        offered = [Subprotocol(protocol)] if protocol else None
        client = ClientProtocol(parse_uri("ws://node/exec/x"), subprotocols=offered)
        client.send_request(client.connect())
        peer = Peer(stream, client)
        await peer.flush()
        assert isinstance(await peer.event(), HandshakeResponse)
        assert client.subprotocol == (protocol or None)
        yield peer


async def cat(command: RemoteCommand) -> Exited:
    assert command.stdin is not None
    assert command.stdout is not None
    try:
        while data := await command.stdin.receive_some():
            await command.stdout.send_all(data)
    except trio.BrokenResourceError:
        return Exited(1)
    return Exited(0)


async def test_v5_copies_until_stdin_is_closed_then_tells_the_result_and_closes(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with library_client() as peer:
        assert await peer.frame() == (Opcode.BINARY, b"\x01")
        await peer.send(b"\x00hello")
        assert await peer.frame() == (Opcode.BINARY, b"\x01hello")
        await peer.send(b"\xff\x00")
        opcode, status = await peer.frame()
        assert (opcode, status[0]) == (Opcode.BINARY, ERROR)
        assert json.loads(status[1:])["status"] == "Success"
        assert await peer.close_code() == 1000


async def test_before_v5_stdin_ends_with_the_connection(autojump_clock: trio.abc.Clock) -> None:
    async with library_client("v4.channel.k8s.io") as peer:
        assert await peer.frame() == (Opcode.BINARY, b"\x01")
        # What closes stdin in v5 goes nowhere here.
        await peer.send(b"\xff\x00")
        await peer.send(b"\x00hello")
        assert await peer.frame() == (Opcode.BINARY, b"\x01hello")
        peer.protocol.send_close(1000)
        await peer.flush()
        assert await peer.close_code() == 1000


async def test_base64_protocols_speak_text(autojump_clock: trio.abc.Clock) -> None:
    async with library_client("v4.base64.channel.k8s.io") as peer:
        assert await peer.frame() == (Opcode.TEXT, b"1")
        data = bytes(range(256)) * 1000
        await peer.send(b"0" + b64encode(data), text=True)
        received = b""
        while len(received) < len(data):
            opcode, message = await peer.frame()
            assert (opcode, message[:1]) == (Opcode.TEXT, b"1")
            received += b64decode(message[1:], validate=True)
        assert received == data


async def test_a_client_that_asks_for_no_protocol_gets_binary_channels(autojump_clock: trio.abc.Clock) -> None:
    async with library_client("") as peer:
        assert await peer.frame() == (Opcode.BINARY, b"\x01")
        await peer.send(b"\x00hello")
        assert await peer.frame() == (Opcode.BINARY, b"\x01hello")


async def test_a_message_of_megabytes_and_one_in_fragments_arrive(autojump_clock: trio.abc.Clock) -> None:
    async with library_client() as peer:
        await peer.frame()
        await peer.send(b"\x00" + b"x" * 5_000_000)
        size = 0
        while size < 5_000_000:
            _, message = await peer.frame()
            assert len(message) <= 2**16
            size += len(message) - 1
        client = cast("ClientProtocol", peer.protocol)
        for part, fin in ((b"\x00", False), (b"in ", False), (b"pieces", True)):
            if part == b"\x00":
                client.send_binary(part, fin=fin)
            else:
                client.send_continuation(part, fin=fin)
            client.send_ping(b"between")
        await peer.flush()
        messages = [await peer.frame() for _ in range(5)]
        assert messages.count((Opcode.PONG, b"between")) == 3
        assert b"".join(data[1:] for opcode, data in messages if opcode is Opcode.BINARY) == b"in pieces"


@pytest.mark.parametrize(
    ("protocol", "message", "text", "code"),
    [
        ("v5.channel.k8s.io", b"\xff", False, 1002),
        ("v5.channel.k8s.io", b"\xff\x00\x00", False, 1002),
        ("v5.channel.k8s.io", b"\xff\x09", False, 1002),
        ("v4.base64.channel.k8s.io", b"0abc", True, 1007),
    ],
)
async def test_what_breaks_the_channels_rules_closes_with_a_code(
    autojump_clock: trio.abc.Clock, protocol: str, message: bytes, text: bool, code: int
) -> None:
    async with library_client(protocol) as peer:
        await peer.send(message, text=text)
        assert await peer.close_code() == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x82\x01x", 1002),  # not masked
        (b"\xc2\x81\0\0\0\0x", 1002),  # a reserved bit
        (b"\x83\x80\0\0\0\0", 1002),  # a reserved opcode
        (b"\x81\x81\0\0\0\0\xff", 1007),  # text that is no UTF-8
        (b"\x89\xfe\xff\xff\0\0\0\0", 1002),  # a ping of 64 KiB
    ],
)
async def test_what_breaks_the_protocol_closes_with_a_code(
    autojump_clock: trio.abc.Clock, data: bytes, code: int
) -> None:
    async with library_client() as peer:
        await peer.stream.send_all(data)
        assert await peer.close_code() == code


async def test_messages_for_channels_that_are_not_there_are_dropped(autojump_clock: trio.abc.Clock) -> None:
    async with library_client() as peer:
        await peer.frame()
        for message in (b"", b"\x01ignored", b"\x07ignored", b"\x04ignored", b"\x00", b"\x00kept"):
            await peer.send(message)
        assert await peer.frame() == (Opcode.BINARY, b"\x01kept")


async def test_a_message_beyond_the_limit_closes_with_a_code(autojump_clock: trio.abc.Clock) -> None:
    ours, theirs = memory_stream_pair()
    async with open_websocket(theirs, client=False, message_limit=1000) as websocket:
        await ours.send_all(b"\x82\xfe\x03\xe9\0\0\0\0" + b"x" * 1001)
        with pytest.raises(WebSocketClosed) as caught:
            await websocket.receive()
        assert caught.value.code == 1009
        reason = b"expected at most 1000 bytes in a message"
        assert await ours.receive_some() == bytes([0x88, 2 + len(reason), 0x03, 0xF1]) + reason


async def test_a_tunnel_takes_binary_messages_only(autojump_clock: trio.abc.Clock) -> None:
    ours, theirs = memory_stream_pair()
    async with open_websocket(theirs, client=False) as websocket:
        tunnel = WebSocketByteStream(websocket)
        await ours.send_all(b"\x82\x83\0\0\0\0abc" + b"\x81\x81\0\0\0\0d")
        assert await tunnel.receive_some(2) == b"ab"
        assert await tunnel.receive_some() == b"c"
        with pytest.raises(WebSocketClosed):
            await tunnel.receive_some()


@asynccontextmanager
async def library_server(*protocols: str) -> AsyncIterator[tuple[Peer, trio.abc.Stream]]:
    """The library as a server: its peer after the handshake (which a client must begin), and the client's stream."""
    client, theirs = memory_stream_pair()
    server = ServerProtocol(subprotocols=[Subprotocol(name) for name in protocols])
    with trio.fail_after(1000):
        yield Peer(theirs, server), client


async def _accept(peer: Peer) -> None:
    server = cast("ServerProtocol", peer.protocol)
    request = await peer.event()
    assert isinstance(request, HandshakeRequest)
    server.send_response(server.accept(request))
    await peer.flush()


async def test_our_client_sends_stdin_its_end_and_sizes_and_reads_the_result(autojump_clock: trio.abc.Clock) -> None:
    async with library_server("v5.channel.k8s.io", "v4.channel.k8s.io") as (peer, stream):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, peer)
            streams = CommandStreams(stdin=True, stdout=True, tty=True)
            async with open_command(stream, "/exec/x", streams) as command:
                assert command.protocol == "v5.channel.k8s.io"
                assert command.stdin is not None
                assert command.stdout is not None
                await command.stdin.send_all(b"hello")
                await command.resize(TerminalSize(80, 24))
                await command.stdin.send_eof()
                assert await peer.frame() == (Opcode.BINARY, b"\x00hello")
                assert await peer.frame() == (Opcode.BINARY, b'\x04{"Width":80,"Height":24}')
                assert await peer.frame() == (Opcode.BINARY, b"\xff\x00")
                await peer.send(b"\x01output")
                await peer.send(b'\x03{"status":"Success"}')
                peer.protocol.send_close(1000)
                await peer.flush()
                assert await command.stdout.receive_some() == b"output"
                assert await command.stdout.receive_some() == b""
                assert await command.result() == Exited(0)


async def test_our_client_takes_v4_and_tells_an_unexpected_end_from_success(autojump_clock: trio.abc.Clock) -> None:
    async with library_server("v4.channel.k8s.io") as (peer, stream):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, peer)
            async with open_command(stream, "/exec/x", STREAMS) as command:
                assert command.protocol == "v4.channel.k8s.io"
                assert command.stdin is not None
                await command.stdin.send_eof()
                peer.protocol.send_close(1011, "broken")
                await peer.flush()
                result = await command.result()
    assert isinstance(result, Failed)
    assert "1011" in result.message


async def test_our_client_refuses_a_server_that_picks_no_protocol(autojump_clock: trio.abc.Clock) -> None:
    async with library_server() as (peer, stream):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, peer)
            with pytest.raises(UpgradeError, match="expected one of the protocols"):
                async with open_command(stream, "/exec/x", STREAMS):
                    pass


async def test_our_client_refuses_an_answer_to_another_key(autojump_clock: trio.abc.Clock) -> None:
    ours, theirs = memory_stream_pair()
    await theirs.send_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
    )
    with pytest.raises(UpgradeError, match="Sec-WebSocket-Accept"):
        async with open_command(ours, "/exec/x", STREAMS):
            pass


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!", 403, "no!"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "no reason"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", 0, "HTTP/1.1"),
        (b"", 0, "closed the connection"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 99\r\n\r\nhalf", 500, "half"),
    ],
)
async def test_our_client_tells_why_there_is_no_upgrade(
    autojump_clock: trio.abc.Clock, answer: bytes, status: int, reason: str
) -> None:
    ours, theirs = memory_stream_pair()
    await theirs.send_all(answer)
    await theirs.send_eof()
    with pytest.raises(UpgradeError, match=reason) as caught:
        async with open_command(ours, "/exec/x", STREAMS):
            pass
    assert caught.value.status == status


async def test_our_client_waits_for_no_answer_for_ever(autojump_clock: trio.abc.Clock) -> None:
    ours, _theirs = memory_stream_pair()
    with pytest.raises(UpgradeError, match="60 seconds"):
        async with open_command(ours, "/exec/x", STREAMS):
            pass
