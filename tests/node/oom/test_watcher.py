"""Following the kernel's log, with one end of a socket in its place: each read gives one record there too."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.captured_logs import capture_logs
from tests.descriptors import open_descriptors
from tests.node.oom.test_kernel_log import GLOBAL_5, LIMIT_5, START
from trikubelet.node.oom.watcher import follow, watch_kernel_log
from trikubelet.telemetry.events import EventRecorder, EventType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLED = "Out of memory: Killed process 1234 (stress) total-vm:8392412kB, UID:1000 oom_score_adj:0"
TOLD = "System OOM encountered, victim process: stress, pid: 1234"


class StoppedClock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


class Kernel:
    """What writes to the log."""

    def __init__(self) -> None:
        self.log, self._end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log.setblocking(False)

    def says(self, *messages: str) -> None:
        for number, message in enumerate(messages):
            self._end.send(f"4,{number},5140900,-;{message}\n".encode())

    def ends(self) -> None:
        self._end.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.ends()
    kernel.log.close()


@pytest.fixture
def recorder() -> EventRecorder:
    return EventRecorder(StoppedClock())


def told(recorder: EventRecorder) -> list[tuple[str, str, int]]:
    return [(event.reason, event.message, event.count) for event in recorder.node_events()]


async def test_the_node_tells_when_the_machine_runs_out_of_memory_and_not_when_a_pod_does(
    kernel: Kernel, recorder: EventRecorder, nursery: trio.Nursery
) -> None:
    nursery.start_soon(follow, kernel.log.fileno(), recorder)
    kernel.says("usb 1-1: new device", START, LIMIT_5, KILLED)
    await wait_all_tasks_blocked()
    assert told(recorder) == []
    kernel.says(START, GLOBAL_5)
    await wait_all_tasks_blocked()
    assert told(recorder) == []
    kernel.says(KILLED)
    await wait_all_tasks_blocked()
    assert told(recorder) == [("SystemOOM", TOLD, 1)]
    assert recorder.node_events()[0].type is EventType.WARNING
    kernel.says(START, GLOBAL_5, KILLED)
    await wait_all_tasks_blocked()
    assert told(recorder) == [("SystemOOM", TOLD, 2)]


async def test_a_gap_in_the_log_is_passed_over(
    kernel: Kernel, recorder: EventRecorder, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, overrun = os.read, [BrokenPipeError()]

    def read_once_overrun(descriptor: int, length: int) -> bytes:
        record = read(descriptor, length)
        if b"LOST" in record:
            raise overrun.pop()
        return record

    monkeypatch.setattr(os, "read", read_once_overrun)
    nursery.start_soon(follow, kernel.log.fileno(), recorder)
    kernel.says(START, "LOST", "Memory cgroup out of memory: Killed process 5 (a) total-vm:4kB", START, KILLED)
    await wait_all_tasks_blocked()
    assert told(recorder) == [("SystemOOM", TOLD, 1)]
    assert not overrun


async def test_many_records_do_not_keep_others_from_their_turn(
    kernel: Kernel, recorder: EventRecorder, nursery: trio.Nursery
) -> None:
    kernel.log.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    kernel.says(*["noise"] * 150, START, KILLED)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while not told(recorder):
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(follow, kernel.log.fileno(), recorder)
    await others()
    assert turns >= 2


@pytest.mark.parametrize("why", ["missing", "folder", "fifo"])
async def test_a_log_that_cannot_be_read_is_said_once(why: str, tmp_path: Path, recorder: EventRecorder) -> None:
    path = tmp_path / "kmsg"
    if why == "folder":
        path.mkdir()
    elif why == "fifo":
        os.mkfifo(path)
    before = open_descriptors()
    with capture_logs() as said, trio.fail_after(5):
        await watch_kernel_log(recorder, path)
    (line,) = said
    assert line["log_level"] == "warning"
    assert line["event"].startswith("no event will tell when this machine runs out of memory")
    assert open_descriptors() == before


async def test_the_kernels_own_log_is_followed_from_its_end(recorder: EventRecorder) -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("needs /dev/kmsg")
    with capture_logs() as said:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_kernel_log, recorder)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert said == []
    assert told(recorder) == []
