from __future__ import annotations

import pytest
import trio
import trio.testing

from trikubelet.sim.streams import CAPACITY, pipe_stream_pair


async def test_everything_arrives_in_order_while_the_reader_is_slow(autojump_clock: object) -> None:
    left, right = pipe_stream_pair()
    payload = bytes(range(256)) * (CAPACITY // 64)
    got = bytearray()

    async def read() -> None:
        while data := await right.receive_some(10_000):
            got.extend(data)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await left.send_all(payload)
        await left.aclose()
    assert got == payload


async def test_a_reader_that_waits_learns_of_the_end(autojump_clock: object) -> None:
    left, right = pipe_stream_pair()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def read() -> None:
            assert await right.receive_some() == b""

        await trio.testing.wait_all_tasks_blocked()
        await left.aclose()


async def test_a_sender_that_waits_for_room_learns_of_the_end(autojump_clock: object) -> None:
    left, right = pipe_stream_pair()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def send() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await left.send_all(bytes(CAPACITY + 1))

        await trio.testing.wait_all_tasks_blocked()
        await right.aclose()


async def test_what_is_sent_at_once_is_what_there_is_room_for() -> None:
    left, right = pipe_stream_pair()
    assert left.send_nowait(bytes(CAPACITY - 1)) == CAPACITY - 1
    assert left.send_nowait(b"ab") == 1
    assert left.send_nowait(b"b") == 0
    assert len(await right.receive_some()) == CAPACITY
    assert left.send_nowait(b"b") == 1
    assert await right.receive_some() == b"b"


async def test_what_was_sent_before_the_end_is_still_read() -> None:
    left, right = pipe_stream_pair()
    left.send_nowait(b"last words")
    await left.aclose()
    assert await right.receive_some() == b"last words"
    assert await right.receive_some() == b""
    with pytest.raises(trio.BrokenResourceError):
        right.send_nowait(b"too late")
    with pytest.raises(trio.ClosedResourceError):
        left.send_nowait(b"closed")
