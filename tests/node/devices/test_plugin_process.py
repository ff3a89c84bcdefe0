"""A plugin that is a process of its own, and agents that come and go: real sockets, real time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.node.devices.situations import BRICK, container, make_pod
from tests.patience import PATIENCE
from trikubelet.admission.types import AllocationError
from trikubelet.node.devices.manager import DeviceManager
from trikubelet.node.devices.server import FOLDER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@attrs.define(eq=False)
class Agent:
    """A device manager, as an agent has it."""

    manager: DeviceManager
    active: set[str]

    async def has(self, capacity: int, allocatable: int) -> None:
        """Return when the node has that many devices."""
        while True:
            found = self.manager.resources()
            if (found.capacity.get(BRICK), found.allocatable.get(BRICK)) == (capacity, allocatable):
                return
            with trio.fail_after(PATIENCE):
                await self.manager.changed.wait()


@asynccontextmanager
async def agent(root: Path, active: set[str]) -> AsyncIterator[Agent]:
    manager = DeviceManager(root / FOLDER, needed=lambda uid: uid in active, sources_ready=lambda: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        yield Agent(manager, active)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def plugin(root: Path, *options: str, socket: str = "toy.sock") -> AsyncIterator[trio.Process]:
    command = [
        *(sys.executable, "-m", "tests.device_plugin", "--folder", str(root / FOLDER)),
        *("--devices", str(root / "bricks.json"), "--log", str(root / "calls.jsonl")),
        *("--socket", str(root / FOLDER / socket), *options),
    ]
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(partial(trio.run_process, command, check=False))
        try:
            yield process
        finally:
            process.terminate()


def write_bricks(root: Path, **health: str) -> None:
    unfinished = root / "bricks.new"
    unfinished.write_text(json.dumps(health))
    unfinished.rename(root / "bricks.json")


def calls(root: Path) -> list[tuple[str, list[str]]]:
    lines = (root / "calls.jsonl").read_text().splitlines()
    return [(line["call"], line["devices"]) for line in map(json.loads, lines)]


async def test_a_plugin_of_its_own_serves_pods(tmp_path: Path) -> None:
    write_bricks(tmp_path, a="Healthy", b="Healthy")
    pod = make_pod("p", container(bricks=1))
    async with agent(tmp_path, {"p"}) as first, plugin(tmp_path, "--pre-start", "--prefers-last"):
        await first.has(2, 2)
        await first.manager.allocate(pod)
        extras = await first.manager.extras(pod, pod.spec.containers[0])
        assert extras.environment == {"BRICKS": "b"}
        assert [(device.container_path, device.host_path) for device in extras.devices] == [
            ("/dev/brick-b", "/dev/null")
        ]
        write_bricks(tmp_path, a="Healthy", b="Unhealthy")
        await first.has(2, 1)
        assert first.manager.health("p")("main")[0].resources[0].health == "Unhealthy"
    assert calls(tmp_path)[2:] == [
        ("GetPreferredAllocation", ["a", "b"]),
        ("Allocate", ["b"]),
        ("PreStartContainer", ["b"]),
    ]


async def test_a_plugin_finds_the_next_agent(tmp_path: Path) -> None:
    write_bricks(tmp_path, a="Healthy", b="Healthy")
    pod = make_pod("p", container(bricks=1))
    (tmp_path / FOLDER).mkdir()
    async with plugin(tmp_path):
        async with agent(tmp_path, {"p"}) as first:
            await first.has(2, 2)
            await first.manager.allocate(pod)
        async with agent(tmp_path, {"p"}) as second:
            assert [device.id for device in second.manager.devices("p", "main")] == ["a"]
            await second.has(2, 2)
            with pytest.raises(AllocationError, match="Requested: 2, Available: 1"):
                await second.manager.allocate(make_pod("q", container(bricks=2)))
            assert (await second.manager.extras(pod, pod.spec.containers[0])).environment == {"BRICKS": "a"}


async def test_a_plugin_is_killed_and_another_one_comes(tmp_path: Path) -> None:
    write_bricks(tmp_path, a="Healthy", b="Healthy")
    async with agent(tmp_path, {"p"}) as one:
        async with plugin(tmp_path) as process:
            await one.has(2, 2)
            process.send_signal(signal.SIGKILL)
            await one.has(2, 0)
        assert one.manager.problem(make_pod("p", container(bricks=1))) is not None
        write_bricks(tmp_path, a="Healthy", b="Healthy", c="Healthy")
        async with plugin(tmp_path, socket="other.sock"):
            await one.has(3, 3)
            await one.manager.allocate(make_pod("p", container(bricks=3)))


async def test_an_agent_that_was_killed_knows_what_it_admitted(tmp_path: Path) -> None:
    """Killed at the moment at which the pod counts as admitted."""
    write_bricks(tmp_path, a="Healthy", b="Healthy")
    (tmp_path / FOLDER).mkdir()
    async with plugin(tmp_path):
        command = [sys.executable, "-m", "tests.node.devices.short_lived_agent", str(tmp_path)]
        with trio.fail_after(PATIENCE):
            ended = await trio.run_process(command, check=False, capture_stdout=True)
        assert ended.returncode == -signal.SIGKILL
        assert ended.stdout.endswith(b"admitted\n")
        async with agent(tmp_path, {"p"}) as second:
            assert [device.id for device in second.manager.devices("p", "main")] == ["a"]
            await second.has(2, 2)


def test_the_program_says_what_it_needs() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.device_plugin", "--devices", "x"], capture_output=True, text=True, check=False
    )
    assert "one of --folder and --registry is needed" in ended.stderr
