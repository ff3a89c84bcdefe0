"""ThresholdNotifier of this machine's kernel, in a cgroup of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.descriptors import open_descriptors
from tests.patience import PATIENCE
from trikubelet.node.eviction.threshold_notifier import NODE_PRESSURE, StallNotifier, UsageNotifier

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

UNIFIED = Path("/sys/fs/cgroup")
MEMORY = UNIFIED / "memory"
MIB = 2**20

JOIN = "import os, sys\nopen(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
HOLD = JOIN + "held = bytearray(int(sys.argv[2]))\nos.write(1, b'held')\nsys.stdin.read()\n"
THRASH = JOIN + (
    "path = sys.argv[2]\n"
    "with open(path, 'wb') as file:\n"
    "    for _ in range(64):\n"
    "        file.write(bytes(1 << 20))\n"
    "while True:\n"
    "    with open(path, 'rb') as file:\n"
    "        while file.read(1 << 16):\n"
    "            pass\n"
)


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of cgroup v1's memory hierarchy."""
    if not (MEMORY / "cgroup.event_control").exists():
        pytest.skip("cgroup v1 has no memory hierarchy here")
    with made(MEMORY) as path:
        yield path


@pytest.fixture
def narrow() -> Iterator[Path]:
    """A group that gets little memory, of whichever version."""
    old = (MEMORY / "cgroup.event_control").exists()
    if not old and not (UNIFIED / "cgroup.controllers").exists():
        pytest.skip("there are no cgroups here")
    with made(MEMORY if old else UNIFIED) as path:
        (path / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(16 * MIB))
        yield path


@contextmanager
def made(parent: Path) -> Iterator[Path]:
    path = parent / f"eviction-alarm-{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        # A process that was just killed leaves its group a moment later.
        for _ in range(100):
            try:
                path.rmdir()
            except OSError:
                time.sleep(0.02)
            else:
                break
        else:
            path.rmdir()


async def in_group(code: str, *arguments: object) -> trio.Process:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_usage_beyond_the_threshold_rings(group: Path) -> None:
    before = open_descriptors()
    notifier = UsageNotifier(group, 40 * MIB, 0)
    process = await in_group(HOLD, group, 80 * MIB)
    try:
        with trio.fail_after(PATIENCE):
            await notifier.wait()
        assert int((group / "memory.usage_in_bytes").read_text()) > 30 * MIB
    finally:
        process.kill()
        await process.wait()
        notifier.close()
        notifier.close()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
    assert open_descriptors() == before


async def test_usage_below_the_threshold_does_not(group: Path) -> None:
    notifier = UsageNotifier(group, 400 * MIB, 0)
    process = await in_group(HOLD, group, 40 * MIB)
    try:
        assert process.stdout is not None
        assert await process.stdout.receive_some() == b"held"
        with trio.move_on_after(0.1) as waited:
            await notifier.wait()
        assert waited.cancelled_caught
    finally:
        process.kill()
        await process.wait()
        notifier.close()


@pytest.mark.parametrize(("measured", "rings"), [(10 * MIB, True), (30 * MIB, False)])
async def test_what_was_crossed_before_the_alarm_was_set_rings_too(group: Path, measured: int, rings: bool) -> None:
    """The kernel tells of what comes, and a measurement tells of what was; between them is a moment."""
    process = await in_group(HOLD, group, 40 * MIB)
    try:
        assert process.stdout is not None
        assert await process.stdout.receive_some() == b"held"
        notifier = UsageNotifier(group, 20 * MIB, measured)
        with trio.move_on_after(PATIENCE if rings else 0.1) as waited:
            await notifier.wait()
        assert waited.cancelled_caught is not rings
        notifier.close()
    finally:
        process.kill()
        await process.wait()


async def test_an_alarm_that_is_closed_wakes_who_waits_for_it(group: Path) -> None:
    notifier = UsageNotifier(group, 400 * MIB, 0)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await notifier.wait()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        notifier.close()
    with pytest.raises(trio.ClosedResourceError):
        await notifier.wait()


def test_a_group_that_is_not_there_is_an_error_and_leaves_nothing_open() -> None:
    before = open_descriptors()
    with pytest.raises(FileNotFoundError):
        UsageNotifier(MEMORY / "no-such-group", MIB, 0)
    with pytest.raises(FileNotFoundError):
        StallNotifier(Path("/proc/pressure/no-such-file"))
    with pytest.raises(OSError, match="Invalid argument"):
        StallNotifier(NODE_PRESSURE, window=1)
    assert open_descriptors() == before


async def test_tasks_that_wait_for_memory_ring_again_and_again(narrow: Path, tmp_path: Path) -> None:
    """A process whose files do not fit into its group's memory waits for each of them anew."""
    if not NODE_PRESSURE.exists():
        pytest.skip("the kernel does not count stalls")
    before = open_descriptors()
    notifier = StallNotifier(NODE_PRESSURE, stalled=5000)
    process = await in_group(THRASH, narrow, tmp_path / "file")
    try:
        with trio.fail_after(3 * PATIENCE):
            await notifier.wait()
            await notifier.wait()
    finally:
        process.kill()
        await process.wait()
        notifier.close()
        notifier.close()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
    assert open_descriptors() == before
    with pytest.raises(trio.ClosedResourceError):
        await notifier.wait()
