"""Logs that are followed while they are rotated: every line once, in order, for everybody, beside a loop that lives on.

`FOLLOWED_LOG_MIB=1024` in the environment makes the log as long as a night has time for.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from tests.examples import examples
from tests.node_api.handlers.stage import FakeNode
from tests.node_api.numbered_log import LINE, ExpectedLog, WrongLogError, line
from trikubelet.clock import SystemClock
from trikubelet.http.routing import Router
from trikubelet.http.server import HttpServer
from trikubelet.node_api.handlers.logs import LogHandlers
from trikubelet.node_api.log_location import LogTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROJECT: Final = Path(__file__).parents[2]
MIB: Final = int(os.environ.get("FOLLOWED_LOG_MIB", examples(96)))
ROTATIONS: Final = 20
FOLLOWERS: Final = examples(200)
SHORTER: Final = 64
"""What all followers read together is to be no more than a few times what the one reads."""
PATIENCE: Final = 60 + MIB
"""Seconds."""
TICK: Final = 0.01
TARGET: Final = "/containerLogs/default/web/main?follow=true"
ALWAYS_GROWN: Final = 16 * 2**20
MOST_FOR_A_FOLLOWER: Final = 2**20
"""Bytes of memory; a block of the file, what comes of it, and the connection are about half of that."""


@attrs.define
class RunningContainer(FakeNode):
    """Runs until it is told that it has ended."""

    ended: bool = False

    async def log_files(self, namespace: str, pod: str, container: str, previous: bool) -> LogTarget:
        assert self.log is not None
        return LogTarget(self.log, "c1", running=not self.ended)

    def container_running(self, container_id: str) -> bool:
        return not self.ended

    def end(self) -> None:
        self.ended = True
        self.changes.send(None)


@attrs.define
class Beside:
    """What the agent was like meanwhile."""

    late: list[float] = attrs.field(factory=list)
    """Seconds, of each tick."""
    resident: list[int] = attrs.field(factory=list)

    async def watch(self) -> None:
        while True:
            due = trio.current_time() + TICK
            await trio.sleep_until(due)
            self.late.append(trio.current_time() - due)
            self.resident.append(_resident())

    @property
    def grown(self) -> int:
        """Bytes."""
        return max(self.resident) - self.resident[0]

    @property
    def told(self) -> str:
        late = sorted(self.late)
        milliseconds = [f"{1000 * late[int(share * (len(late) - 1))]:.1f}" for share in (0.5, 0.99, 1)]
        grown = f"memory grown by {self.grown / 2**20:.1f} MiB"
        return f"a tick of 10 ms late by {', '.join(milliseconds)} ms (p50, p99, max); {grown}"


def _resident() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Nothing of a long log is left: pytest keeps the folders of the last few runs."""
    yield tmp_path
    for file in tmp_path.glob("0.log*"):
        file.unlink()


async def _follow(
    folder: Path, lines: int, followers: int, rotations: int, rate: float | None
) -> tuple[list[str], Beside]:
    """The followers' problems, and how the agent was. They begin before the log does."""
    path = folder / "0.log"
    path.touch()
    node = RunningContainer(log=path)
    router = Router()
    router.add("GET", "/containerLogs/{namespace}/{pod}/{container}", LogHandlers(node, SystemClock()).container_logs)
    beside = Beside()
    module = [sys.executable, "-m", "tests.node_api.numbered_log"]
    writing = [*module, "write", str(path), f"--lines={lines}", f"--rotations={rotations}"]
    if rate is not None:
        writing.append(f"--rate={rate}")
    reading = [*module, "follow", str(folder / "s"), TARGET, f"--lines={lines}", f"--followers={followers}"]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(HttpServer(router).serve_unix, folder / "s")
            reader = await trio.lowlevel.open_process(reading, stdout=subprocess.PIPE, cwd=PROJECT)
            assert reader.stdout is not None
            await _until(reader.stdout, b"following\n")
            nursery.start_soon(beside.watch)
            await trio.run_process(writing, cwd=PROJECT)
            node.end()
            told = b""
            while data := await reader.stdout.receive_some():
                told += data
            await reader.wait()
            nursery.cancel_scope.cancel()
    return json.loads(told), beside


async def _until(stream: trio.abc.ReceiveStream, text: bytes) -> None:
    got = b""
    while got != text:
        data = await stream.receive_some()
        assert data, f"expected {text!r}, got {got!r}"
        got += data


async def test_a_long_log_is_followed_across_rotations_without_a_line_lost_or_doubled(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    problems, beside = await _follow(folder, MIB * 2**20 // LINE, 1, ROTATIONS, rate=None)
    record_property("beside", beside.told)
    print(beside.told)
    assert problems == [""]
    assert len(list(folder.glob("0.log.*"))) == ROTATIONS
    assert beside.grown < ALWAYS_GROWN


async def test_many_followers_all_get_every_line(folder: Path, record_property: Callable[[str, object], None]) -> None:
    lines = MIB * 2**20 // LINE // SHORTER
    problems, beside = await _follow(folder, lines, FOLLOWERS, ROTATIONS, rate=None)
    record_property("beside", beside.told)
    print(beside.told)
    assert problems == [""] * FOLLOWERS
    assert beside.grown < ALWAYS_GROWN + FOLLOWERS * MOST_FOR_A_FOLLOWER


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0, 1, 3], "line 2: got b'000000000003"),
        ([0, 1, 1, 2], "line 2: got b'000000000001"),
        ([0, 1, 2, 3, 3], "all lines are there, and then came b'000000000003"),
    ],
    ids=["lost", "doubled", "doubled at the end"],
)
def test_a_line_that_is_lost_or_doubled_is_noticed(numbers: list[int], expected: str) -> None:
    with pytest.raises(WrongLogError, match=re.escape(expected)):
        ExpectedLog(4).feed(b"".join(map(line, numbers)))
