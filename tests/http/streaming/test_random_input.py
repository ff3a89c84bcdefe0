"""What no client should send: it ends its own connection at most, and always."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.examples import examples
from trikubelet.http.streaming.channels import V4_BASE64, V5, open_channels
from trikubelet.http.streaming.spdy import open_spdy
from trikubelet.http.streaming.spdy_frames import Data, Frame, FrameEncoder, Ping, RstStream, SynStream
from trikubelet.http.streaming.websocket import WebSocketByteStream, open_websocket

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS: Final = examples(2500)


def random_bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 200))


def damaged_spdy(chance: random.Random) -> bytes:
    """A session's beginning with a few bytes changed."""
    encoder = FrameEncoder()
    frames: list[Frame] = [
        SynStream(1, {"streamtype": "data"}),
        Data(1, b"hello"),
        Ping(1),
        SynStream(3, {}),
        RstStream(1, 5),
    ]
    data = bytearray(b"".join(encoder.encode(frame) for frame in frames))
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(1, len(data) + 1)])


def damaged_websocket(chance: random.Random) -> bytes:
    """Masked frames, of which a few bytes are changed."""
    data = bytearray()
    for payload in (b"\x00hello", b"\xff\x00", b"0aGVsbG8=", b"\xff\x77"):
        opcode = chance.choice([0x80, 0x81, 0x82, 0x02, 0x88, 0x89, 0x8A])
        data += bytes([opcode, 0x80 | len(payload)]) + bytes(4) + payload
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("make", [random_bytes, damaged_spdy])
@pytest.mark.parametrize("client", [True, False])
async def test_spdy_sessions_end(
    autojump_clock: trio.abc.Clock, make: Callable[[random.Random], bytes], client: bool
) -> None:
    chance = random.Random(7)
    for _ in range(ROUNDS):
        ours, theirs = memory_stream_pair()
        with trio.fail_after(60):
            async with open_spdy(theirs, client=client) as session:
                await ours.send_all(make(chance))
                await ours.send_eof()
                await session.ended.wait()


@pytest.mark.parametrize("make", [random_bytes, damaged_websocket])
@pytest.mark.parametrize("protocol", [V5, V4_BASE64])
async def test_channels_end(
    autojump_clock: trio.abc.Clock, make: Callable[[random.Random], bytes], protocol: object
) -> None:
    chance = random.Random(7)
    assert protocol in (V5, V4_BASE64)
    for _ in range(ROUNDS):
        ours, theirs = memory_stream_pair()
        with trio.fail_after(60):
            async with open_channels(theirs, V5 if protocol is V5 else V4_BASE64, range(5), client=False) as channels:
                await ours.send_all(make(chance))
                await ours.send_eof()
                await channels.ended.wait()


async def test_tunnelled_sessions_end(autojump_clock: trio.abc.Clock) -> None:
    chance = random.Random(7)
    for _ in range(ROUNDS):
        ours, theirs = memory_stream_pair()
        with trio.fail_after(60):
            async with open_websocket(theirs, client=False) as websocket:
                async with open_spdy(WebSocketByteStream(websocket), client=False) as session:
                    await ours.send_all(damaged_websocket(chance))
                    await ours.send_eof()
                    await session.ended.wait()
