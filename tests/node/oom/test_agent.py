"""A whole agent that follows a kernel's log: a named pipe in the place of /dev/kmsg, where only seeking differs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.node.oom.test_kernel_log import GLOBAL_5, LIMIT_5, START
from tests.node.oom.test_watcher import KILLED, TOLD, told
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import SIMULATED_MACHINE, simulated_node

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_an_agent_tells_of_its_node_that_memory_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    monkeypatch.setattr(os, "lseek", lambda _descriptor, offset, _whence: offset)
    machine = attrs.evolve(SIMULATED_MACHINE, kernel_log=path)
    async with simulated_node(SimulatedRuntime(seed=1), machine=machine) as node:
        await wait_all_tasks_blocked()
        kernel = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        for message in (START, LIMIT_5, KILLED, START, GLOBAL_5, KILLED):
            os.write(kernel, f"4,1,5140900,-;{message}\n".encode())
            await wait_all_tasks_blocked()
        events = [one for one in told(node.agent.recorder) if one[0] == "SystemOOM"]
        os.close(kernel)
    assert events == [("SystemOOM", TOLD, 1)]
