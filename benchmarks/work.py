"""How much an agent does for a pod, counted and not timed: the same on every machine, whatever else runs on it.

    python -m benchmarks.work                # beside what is recorded
    python -m benchmarks.work --record       # from now on, this is what is recorded

A cluster of one node runs in this process, on a clock that jumps and with every choice fixed: the API server of the
tests, and the agent on a simulated runtime. Counted are the calls of Python functions (a coroutine that goes on is one
more), without those of that API server and that runtime, and the bytes that Python has allocated. Processor time
follows the calls closely enough to guard it; `benchmarks.perf` measures it, where an earlier commit is at hand.

What is counted differs a little between versions of Python and of Trio. More than 15 % above what is recorded is too
much, and the exit code is 1.
"""

from __future__ import annotations

import cProfile
import json
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import trio

from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, write_aims
from tests.scenarios.stage import cluster_stage
from trikubelet.sim import Life, Program
from trikubelet.sim.node import run_deterministically
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.scenarios.stage import Stage

RECORDED: Final = Path(__file__).with_name("work.json")
MOST_WORSE: Final = 1.15
"""Times what is recorded."""
PODS: Final = 20
DELAYS: Final = {"RunPodSandbox": (0.1, 0.3), "StopPodSandbox": (0.1, 0.3), "*": (0.001, 0.02)}
"""Seconds that the runtime takes, from and to."""
MINUTES_AT_REST: Final = 10
_OTHERS: Final = ("/tests/", "/trikubelet/sim/", "/benchmarks/")
_IMPORTS: Final = """
import tracemalloc
tracemalloc.start()
import trikubelet.cli.main, trikubelet.agent.service
print(tracemalloc.get_traced_memory()[0])
"""


def count() -> dict[str, tuple[str, float]]:
    """All figures: a unit and a value by name."""
    figures = {"the modules of an agent": ("KiB", _of_modules() / 1024)}
    figures |= run_deterministically(_calls, seed=1)
    figures |= run_deterministically(_memory, seed=1)
    return figures


def _of_modules() -> float:
    """Bytes."""
    done = subprocess.run([sys.executable, "-c", _IMPORTS], check=True, capture_output=True, text=True)
    return float(done.stdout)


async def _calls() -> dict[str, tuple[str, float]]:
    async with cluster_stage() as stage:
        await _settle(stage)
        started = await _counted(partial(_start, stage, PODS))
        await trio.sleep(60)
        rested = await _counted(partial(trio.sleep, 60 * MINUTES_AT_REST))
        ended = await _counted(partial(_end, stage, PODS))
    return {
        "a pod's start": ("calls", started / PODS),
        "a pod's end": ("calls", ended / PODS),
        f"{PODS} pods at rest, a minute": ("calls", rested / MINUTES_AT_REST),
    }


async def _memory() -> dict[str, tuple[str, float]]:
    async with cluster_stage() as stage:
        await _settle(stage)
        tracemalloc.start()
        try:
            await _start(stage, PODS)
            await trio.sleep(60)
            allocated = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
    filters = [tracemalloc.Filter(inclusive=False, filename_pattern=f"*{others}*") for others in _OTHERS]
    ours = sum(statistic.size for statistic in allocated.filter_traces(filters).statistics("filename"))
    return {"what one of them holds": ("KiB", ours / PODS / 1024)}


async def _settle(stage: Stage) -> None:
    """The first pods load modules, and fill what is remembered."""
    stage.sim.delays.update(DELAYS)
    stage.sim.program(Program((Life(),)), image="test/a:1")
    await trio.sleep(30)
    await _start(stage, 2, "warm")
    await _end(stage, 2, "warm")


async def _start(stage: Stage, pods: int, name: str = "pod") -> None:
    names = [f"{name}-{number}" for number in range(pods)]
    for each in names:
        stage.create_pod(each, containers=[{"name": "main", "image": "test/a:1"}])
    await stage.until_ready(*names)
    await trio.sleep(5)


async def _end(stage: Stage, pods: int, name: str = "pod") -> None:
    names = [f"{name}-{number}" for number in range(pods)]
    for each in names:
        stage.delete_pod(each)
    await stage.until_gone(*names)
    await trio.sleep(5)


async def _counted(work: Callable[[], Awaitable[None]]) -> float:
    """The calls of Python functions while it is done, of those that are the agent's."""
    profile = cProfile.Profile(builtins=False, subcalls=False)
    profile.enable()
    try:
        await work()
    finally:
        profile.disable()
    return sum(
        entry.callcount
        for entry in profile.getstats()
        if not any(others in getattr(entry.code, "co_filename", "") for others in _OTHERS)
    )


def results(figures: dict[str, tuple[str, float]], recorded: dict[str, float]) -> list[Result]:
    """What was counted, times what is recorded. A figure that is not recorded yet has nothing to be above."""
    return [
        Result(f"{name}, beside what is recorded", "times", value / recorded.get(name, value), MOST_WORSE)
        for name, (_, value) in figures.items()
    ]


@click.command()
@click.option("--record", is_flag=True, help="Record what is counted, for others to compare theirs with.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
def main(record: bool, json_file: Path | None) -> None:
    """Count what an agent does for a pod."""
    silence()
    figures = count()
    if record:
        content = {name: round(value, 1) for name, (_, value) in figures.items()}
        RECORDED.write_text(json.dumps(content, indent=2) + "\n")
    recorded: dict[str, float] = json.loads(RECORDED.read_text())
    aims = results(figures, recorded)
    rows = [
        [name, unit, f"{recorded.get(name, value):,.0f}", f"{value:,.0f}", f"{100 * (aim.value - 1):+.1f} %"]
        for (name, (unit, value)), aim in zip(figures.items(), aims, strict=True)
    ]
    print_table("Counted", ["", "unit", "recorded", "now", "change"], rows)
    write_aims(aims, json_file)
    sys.exit(0 if all(aim.met for aim in aims) else 1)


if __name__ == "__main__":
    main()
