from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio.testing

from tests.node_api.test_container_logs import Node, record
from trikubelet.node_api.container_logs import copy_log
from trikubelet.node_api.log_location import LogTarget
from trikubelet.node_api.log_records import LogOptions
from trikubelet.node_api.log_turns import REST, log_turns

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

READERS = 20
FOLLOWERS = 50


async def test_one_follower_does_not_rest_and_others_do_the_longer_the_more_there_are() -> None:
    turns = log_turns()
    assert log_turns() is turns
    with turns.following():
        assert turns.rest == 0
        with turns.following(), turns.following():
            assert turns.rest == 2 * REST
    assert turns.rest == 0


async def test_readers_leave_time_for_others_between_their_blocks(tmp_path: Path) -> None:
    """However many there are, the loop comes round after each block."""
    path = tmp_path / "0.log"
    path.write_text(record("x" * 1000) * 500)
    rounds = blocks = 0

    async def write(data: bytes) -> None:
        nonlocal blocks
        blocks += bool(data)
        await trio.lowlevel.checkpoint()

    async def others() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await trio.lowlevel.checkpoint()

    node = Node(path, running=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        async with trio.open_nursery() as readers:
            for _ in range(READERS):
                readers.start_soon(copy_log, LogTarget(path, "c1", False), LogOptions(), write, node)
        nursery.cancel_scope.cancel()
    assert blocks >= 4 * READERS
    assert rounds >= blocks


async def test_among_many_followers_one_that_is_always_woken_looks_only_now_and_then(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "0.log"
    path.write_text("")
    looks = 0

    class Counting(Node):
        def container_running(self, container_id: str) -> bool:
            nonlocal looks
            looks += 1
            return True

    node = Counting(path)

    async def wake() -> None:
        while True:
            node.changes.send(None)
            await trio.sleep(REST)

    async with trio.open_nursery() as nursery:
        for _ in range(FOLLOWERS):
            nursery.start_soon(copy_log, LogTarget(path, "c1", True), LogOptions(follow=True), node.write, node)
        nursery.start_soon(wake)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert 0.5 / REST < looks < 1.2 / REST
