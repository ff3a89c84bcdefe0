"""How soon a crash is answered, and what it costs to wait for one.

    python -m benchmarks.detect                                     # everything; twenty minutes
    python -m benchmarks.detect --only crash --runtime containerd --crashes 20
    python -m benchmarks.detect --only idle --pods 0 --pods 100 --window 20 --containerd-pods 0

Two measurements. A container's process is killed from outside: when does the runtime know, when does the agent decide
to restart it, when does it run again (`crash.py`)? And agents whose pods just run: how much of a core, how much
memory (`idle.py`)? The agent is a process as a person starts it, on a runtime in a process of its own.

The embedded runtime and containerd need root, containerd also runc and the CNI plugins (`make packages`).
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click

from benchmarks.detect.crash import STEPS, Crashes, measure_crashes, percentile
from benchmarks.detect.idle import Idle, measure_idle
from benchmarks.detect.processes import RUNTIMES
from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DECIDED_WITHIN: Final = 100.0
"""Milliseconds, from the runtime's knowledge."""
CPU_GOALS: Final = {("containerd", 100): 1.0, ("sim", 500): 2.0}
"""Percent of a core."""
MEMORY_GOAL: Final = 100.0
"""MiB, with 100 pods."""


def crash_results(crashes: Crashes) -> list[Result]:
    """The aims of one runtime's crashes."""
    title = f"crash on {crashes.runtime}, runtime knows → restart decided"
    return [
        Result(f"{title} ({name})", "ms", crashes.decision(share), DECIDED_WITHIN)
        for name, share in (("median", 0.5), ("99th percentile", 0.99))
    ]


def idle_results(idle: Idle) -> list[Result]:
    """The aims for an agent of this size, of which there may be none."""
    results = []
    title = f"{idle.pods} idle pods on {idle.runtime}"
    goal = CPU_GOALS.get((idle.runtime, idle.pods))
    if goal is not None:
        results.append(Result(f"{title}, CPU of the agent", "% of a core", idle.cpu, goal))
    if idle.pods == 100:
        results.append(Result(f"{title}, resident memory of the agent", "MiB", idle.resident, MEMORY_GOAL))
    return results


def _print_crashes(crashes: Crashes) -> None:
    rows = []
    for name, since, until in STEPS:
        ours = [crash.milliseconds(since, until) for crash in crashes.agent]
        floor = [crash.milliseconds(since, until) for crash in crashes.floor]
        shares = [f"{percentile(ours, share):.1f}" for share in (0.5, 0.9, 0.99, 1)]
        rows.append([name, *shares, *(f"{percentile(floor, share):.1f}" for share in (0.5, 0.99))])
    print_table(
        f"{len(crashes.agent)} crashes on {crashes.runtime}, one after the other",
        ["milliseconds", "p50", "p90", "p99", "max", "floor p50", "floor p99"],
        rows,
    )


def _print_idle(measured: Sequence[Idle], window: float) -> None:
    rows = [
        [
            f"{idle.pods} pods on {idle.runtime}",
            f"{idle.cpu:.2f}",
            f"{idle.runtime_cpu:.2f}",
            f"{idle.resident:.1f}",
            f"{idle.proportional:.1f}",
        ]
        for idle in measured
    ]
    columns = ["", "CPU %", "runtime's CPU %", "RSS MiB", "PSS MiB"]
    print_table(f"An idle agent over {window:g} s, CPU in percent of a core", columns, rows)


@contextmanager
def _progress_bar(title: str) -> Iterator[Callable[[str, float], object]]:
    """To be called with what goes on, and how much of it is over."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    console = Console(stderr=True)
    # Rarely drawn: the machine's cores are for what is measured.
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=1, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(title, total=1.0, what="starting")
        yield lambda what, share: bar.update(task, completed=share, what=what)


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
@click.option("--only", type=click.Choice(["crash", "idle"]), help="Leave out the other measurement.")
@click.option(
    "--runtime",
    "runtimes",
    type=click.Choice(RUNTIMES),
    multiple=True,
    default=RUNTIMES,
    show_default=True,
    help="Where containers crash.",
)
@click.option("--crashes", type=click.IntRange(min=1), default=30, show_default=True, help="On each runtime.")
@click.option(
    "--pods",
    "sizes",
    type=click.IntRange(min=0),
    multiple=True,
    default=(0, 50, 100, 250, 500),
    show_default=True,
    help="Idle pods on the simulated runtime.",
)
@click.option(
    "--containerd-pods",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Idle pods on containerd; 0: do not measure there.",
)
@click.option("--window", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Seconds of idling.")
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    default=75.0,
    show_default=True,
    help="Seconds from the last pod's start until then: beyond the resync.",
)
@click.option("--agent-flag", "flags", multiple=True, help="One more flag for the agent, such as --config-dir=FOLDER.")
def main(
    json_file: Path | None,
    only: str | None,
    runtimes: tuple[str, ...],
    crashes: int,
    sizes: tuple[int, ...],
    containerd_pods: int,
    window: float,
    settle: float,
    flags: tuple[str, ...],
) -> None:
    """Measure how soon a crash is answered, and what an idle agent costs."""
    click.echo(f"load of the machine at the start: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
    results: list[Result] = []
    for runtime in dict.fromkeys(runtimes) if only != "idle" else ():
        with TemporaryDirectory(prefix="trikubelet-detect-") as name, _progress_bar(f"crashes on {runtime}") as told:
            measured = measure_crashes(
                runtime, Path(name), crashes, flags, lambda done: told(f"{done} of {crashes}", done / crashes)
            )
        _print_crashes(measured)
        results += crash_results(measured)
    idle = []
    places = [*(("sim", pods) for pods in sizes), *([("containerd", containerd_pods)] if containerd_pods else [])]
    for runtime, pods in places if only != "crash" else ():
        with (
            TemporaryDirectory(prefix="trikubelet-detect-") as name,
            _progress_bar(f"{pods} pods on {runtime}") as told,
        ):
            idle.append(measure_idle(runtime, Path(name), pods, window=window, settle=settle, flags=flags, told=told))
        results += idle_results(idle[-1])
    if idle:
        _print_idle(idle, window)
    met = report(results, json_file)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
