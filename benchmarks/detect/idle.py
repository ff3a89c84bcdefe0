"""What an agent costs whose pods just run: CPU over a window of time, and memory at its end.

Each number of pods has an agent and a runtime of its own, started anew. The window begins a while after all pods
run: agents look at each pod again after a minute, so before that an agent is idler than it will ever be. It is longer
than most of the agent's periods.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.detect.processes import RuntimeProcess, agent_on, runtime_process, until_running, write_manifests

MIB: Final = 1 << 20
TICK: Final = 1.0
"""Seconds between words about the progress."""

Told = Callable[[str, float], object]
"""What is going on, and how much of it is over, from 0 to 1."""


@attrs.frozen
class Idle:
    """An idle agent."""

    runtime: str
    pods: int
    cpu: float
    """Percent of a core."""
    runtime_cpu: float
    """Of the runtime's own process: what the agent's questions cost there, and what it does without them."""
    resident: float
    """MiB."""
    proportional: float
    """MiB, pages shared by n processes counted as 1/n."""


def cpu_seconds(stat: str) -> float:
    """User and system time of a process with all its threads, from its /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()  # the name before may hold anything
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(rollup: str) -> tuple[float, float]:
    """Resident and proportional memory from /proc/PID/smaps_rollup."""
    kibibytes = {}
    for line in rollup.splitlines()[1:]:
        name, value, *_ = line.split()
        kibibytes[name] = int(value)
    return kibibytes["Rss:"] * 1024 / MIB, kibibytes["Pss:"] * 1024 / MIB


def measure_idle(
    kind: str,
    folder: Path,
    pods: int,
    *,
    window: float,
    settle: float,
    flags: tuple[str, ...] = (),
    told: Told = lambda what, share: None,
) -> Idle:
    """Seconds: `window` of measurement, after `settle` of waiting once all pods run."""
    with runtime_process(kind, folder / "cri") as runtime:
        with agent_on(folder / "agent", runtime.endpoint, *flags) as agent:
            pid = agent.process.pid
            write_manifests(agent.manifests, [f"idle-{number}" for number in range(pods)], runtime.image)
            trio.run(_until_running, runtime, pods, told)
            _pass("settling", settle, told)
            before = _cpu(pid), _cpu(runtime.pid)
            began = time.monotonic()
            _pass("measuring", window, told)
            took = time.monotonic() - began
            after = _cpu(pid), _cpu(runtime.pid)
            resident, proportional = memory_mib(Path(f"/proc/{pid}/smaps_rollup").read_text())
    percents = [100 * (later - earlier) / took for earlier, later in zip(before, after, strict=True)]
    return Idle(kind, pods, percents[0], percents[1], resident, proportional)


async def _until_running(runtime: RuntimeProcess, pods: int, told: Told) -> None:
    async with runtime.client() as client:
        await until_running(client, pods, lambda running: told("starting", running / max(pods, 1)))


def _cpu(pid: int) -> float:
    return cpu_seconds(Path(f"/proc/{pid}/stat").read_text())


def _pass(what: str, seconds: float, told: Told) -> None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        told(what, passed / seconds)
        time.sleep(min(TICK, seconds - passed))
