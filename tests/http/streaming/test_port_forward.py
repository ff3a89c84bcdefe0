"""Port-forward from end to end: our client, our server, memory between them; and clients that misbehave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.http.streaming.serving import serving
from trikubelet.http.streaming.channels import V4, V4_BASE64, ChannelProtocol, open_channels
from trikubelet.http.streaming.client import UpgradeError, _upgrade_websocket, open_port_forward
from trikubelet.http.streaming.command import StreamingTimeouts
from trikubelet.http.streaming.port_forward import ForwardedPort, serve_port_forward
from trikubelet.http.streaming.spdy import SpdySession, StreamRefused, open_spdy
from trikubelet.http.streaming.upgrade import upgrade

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from trikubelet.http.messages import Request, Takeover

Transport = Literal["websocket", "spdy"]
BOTH = pytest.mark.parametrize("transport", ["websocket", "spdy"])


def forward_server(
    run: Callable[[ForwardedPort], Awaitable[None]], ports: tuple[int, ...] = ()
) -> AbstractAsyncContextManager[trio.abc.Stream]:
    async def handle(request: Request, takeover: Takeover) -> None:
        async with serve_port_forward(request, takeover, ports, StreamingTimeouts()) as forwards:
            async with trio.open_nursery() as nursery:
                async for forwarded in forwards:
                    nursery.start_soon(run, forwarded)

    return serving(handle)


async def echo(forwarded: ForwardedPort) -> None:
    """Give back what comes, with the port before it, until the client ends."""
    await forwarded.data.send_all(f"{forwarded.port}:".encode())
    while data := await forwarded.data.receive_some():
        await forwarded.data.send_all(data)
    await forwarded.finish()


async def refuse(forwarded: ForwardedPort) -> None:
    await forwarded.finish(f"connection refused on {forwarded.port}")


async def _read_all(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while part := await stream.receive_some():
        data += part
    return data


@BOTH
async def test_many_connections_to_many_ports_share_one(autojump_clock: trio.abc.Clock, transport: Transport) -> None:
    answers: dict[int, bytes] = {}
    async with forward_server(echo) as stream:
        async with open_port_forward(stream, "/portForward/x", transport=transport) as forwarder:

            async def connect(port: int) -> None:
                ours, local = memory_stream_pair()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_forward_in_order, local, port)
                    await ours.send_all(b"x" * port)
                    await ours.send_eof()
                    answers[port] = await _read_all(ours)

            async def _forward_in_order(local: trio.abc.HalfCloseableStream, port: int) -> None:
                assert await forwarder.forward(local, port) == ""

            async with trio.open_nursery() as nursery:
                for port in range(1, 65536, 1000):
                    nursery.start_soon(connect, port)
    assert answers == {port: f"{port}:".encode() + b"x" * port for port in range(1, 65536, 1000)}


@BOTH
async def test_an_error_is_told_and_ends_one_connection_only(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    async with forward_server(refuse) as stream:
        async with open_port_forward(stream, "/portForward/x", transport=transport) as forwarder:
            for port in (80, 81):
                _, local = memory_stream_pair()
                assert await forwarder.forward(local, port) == f"connection refused on {port}"


@BOTH
async def test_the_pods_end_reaches_the_client_while_it_could_still_send(
    autojump_clock: trio.abc.Clock, transport: Transport
) -> None:
    async def say_and_close(forwarded: ForwardedPort) -> None:
        await forwarded.data.send_all(b"bye")
        await forwarded.finish()

    async with forward_server(say_and_close) as stream:
        async with open_port_forward(stream, "/portForward/x", transport=transport) as forwarder:
            ours, local = memory_stream_pair()
            assert await forwarder.forward(local, 8080) == ""
            assert await _read_all(ours) == b"bye"


def _headers(kind: str, port: object = 80, request: object = 7) -> dict[str, str]:
    return {"streamType": kind, "port": str(port), **({} if request is None else {"requestID": str(request)})}


class _Client:
    def __init__(self, run: Callable[[ForwardedPort], Awaitable[None]]) -> None:
        self._run = run

    async def __call__(self, use: Callable[[SpdySession], Awaitable[None]]) -> None:
        async with forward_server(self._run) as stream:
            fields = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
            fields.append(("X-Stream-Protocol-Version", "portforward.k8s.io"))
            upgraded = await upgrade(stream, "POST", "/", fields)
            async with open_spdy(upgraded.stream, client=True) as session:
                await use(session)


async def test_a_client_without_request_ids_gets_its_streams_paired_by_their_numbers(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def use(session: SpdySession) -> None:
        for _ in range(2):
            await session.open_stream(_headers("error", request=None))
            data = await session.open_stream(_headers("data", 99, request=None))
            assert await data.receive_some() == b"99:"

    await _Client(echo)(use)


@pytest.mark.parametrize("kind", ["error", "data"])
async def test_a_stream_whose_partner_never_comes_is_ended_after_the_timeout(
    autojump_clock: trio.abc.Clock, kind: str
) -> None:
    async def use(session: SpdySession) -> None:
        started = trio.current_time()
        lonely = await session.open_stream(_headers(kind))
        if kind == "error":
            assert b"timed out" in await lonely.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await lonely.receive_some()
        assert trio.current_time() - started == pytest.approx(30, abs=1)
        # The number may be used again.
        await session.open_stream(_headers("error"))
        data = await session.open_stream(_headers("data"))
        assert await data.receive_some() == b"80:"

    await _Client(echo)(use)


async def test_a_second_stream_of_the_same_kind_is_ended_and_complained_about(autojump_clock: trio.abc.Clock) -> None:
    async def use(session: SpdySession) -> None:
        error = await session.open_stream(_headers("error"))
        twin = await session.open_stream(_headers("error"))
        with pytest.raises(trio.BrokenResourceError):
            await twin.receive_some()
        assert b"already assigned" in await error.receive_some()

    await _Client(echo)(use)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"streamType": "data"},
        _headers("data", 0),
        _headers("data", 65536),
        _headers("data", "http"),
        _headers("data", "+80"),
        _headers("stdin", 80),
    ],
)
async def test_streams_without_a_port_or_a_kind_are_refused(
    autojump_clock: trio.abc.Clock, headers: dict[str, str]
) -> None:
    async def use(session: SpdySession) -> None:
        with pytest.raises(StreamRefused):
            await session.open_stream(headers)

    await _Client(echo)(use)


@pytest.mark.parametrize("protocol", [V4, V4_BASE64])
async def test_websocket_channels_carry_each_port_of_the_url(
    autojump_clock: trio.abc.Clock, protocol: ChannelProtocol
) -> None:
    async def run(forwarded: ForwardedPort) -> None:
        if forwarded.port == 256:
            await refuse(forwarded)
        else:
            await forwarded.data.send_all(await forwarded.data.receive_some())
            await forwarded.finish()

    async with forward_server(run, (80, 256)) as stream:
        upgraded = await _upgrade_websocket(stream, "/", [protocol.name], ())
        async with open_channels(upgraded.stream, protocol, range(4), client=True) as channels:
            await channels[0].send_all(b"ping")
            assert await _read_all(channels[0]) == b"\x50\x00ping"
            assert await _read_all(channels[1]) == b"\x50\x00"
            assert await _read_all(channels[2]) == b"\x00\x01"
            assert await _read_all(channels[3]) == b"\x00\x01connection refused on 256"


async def test_a_websocket_for_no_port_is_refused(autojump_clock: trio.abc.Clock) -> None:
    async with forward_server(echo) as stream:
        with pytest.raises(UpgradeError, match="ports"):
            await _upgrade_websocket(stream, "/", [V4.name], ())
