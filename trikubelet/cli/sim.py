"""`trikubelet sim`: days in the life of a simulated node, in minutes."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trikubelet.cli.output import echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trikubelet.sim.life import LifeSummary


@click.command(short_help="Simulate the life of a node.")
@click.option("--pods", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Pods at the same time.")
@click.option("--hours", type=click.FloatRange(0.01), default=24.0, show_default=True, help="Simulated hours.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Decides every random choice: the same seed gives the same run.",
)
@click.option("--faults", is_flag=True, help="Inject errors, hangs, lost replies, restarts and stale lists.")
@click.option(
    "--pod-hours",
    type=click.FloatRange(0.001),
    default=2.0,
    show_default=True,
    help="How long a pod stays, on average.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Draw the phases of the first 60 places' pods over time, as an SVG.",
)
def sim(pods: int, hours: float, seed: int, faults: bool, pod_hours: float, picture: Path | None) -> int:
    """Run the agent on a simulated runtime, with pods that come, change, crash, are evicted and go.

    Invariants are checked all the time. Exits 1 if one was violated; the same seed reproduces it.
    """
    from trikubelet.sim.life import LifeOptions, live
    from trikubelet.sim.picture import PhasePicture
    from trikubelet.telemetry.logs import silence

    silence()  # thousands of pods come and go: the summary tells
    options = LifeOptions(pods=pods, hours=hours, seed=seed, faults=faults, mean_pod_hours=pod_hours)
    phases = None if picture is None else PhasePicture()
    with _progress_bar(hours * 3600) as progress:
        summary = live(options, progress, phases)
    if picture is not None and phases is not None:
        picture.write_text(phases.draw(), encoding="utf-8")
    _print(summary)
    return 1 if summary.violations else 0


@contextmanager
def _progress_bar(seconds: float) -> Iterator[Callable[[float], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("simulating"),
        BarColumn(),
        TextColumn("{task.fields[hours]:.1f} h"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("life", total=seconds, hours=0.0)
        yield lambda now: bar.update(task, completed=now, hours=now / 3600)


def _print(summary: LifeSummary) -> None:
    options = summary.options
    lines = [
        ("pods run", f"{summary.pods_run}"),
        ("ended", _counts(summary.endings)),
        ("containers started", f"{summary.containers_started} ({summary.restarts} restarts)"),
        ("phase transitions", f"{summary.transitions}"),
        ("calls to the runtime", f"{summary.calls}"),
        ("faults", _counts(summary.faults)),
        ("slowest end", f"{summary.slowest_end:.3f} s beyond its grace period, while nothing failed"),
        ("invariants checked", f"{sum(summary.checks.values())} times, {len(summary.checks)} invariants"),
        ("digest", summary.digest),
    ]
    echo(f"{options.pods} pods, {options.hours:g} h, seed {options.seed}, {'with' if options.faults else 'no'} faults")
    for name, text in lines:
        if text:
            echo(f"  {name:<21} {text}")
    speed = summary.simulated_seconds / summary.real_seconds
    real = f"{summary.simulated_seconds:.0f} s simulated in {summary.real_seconds:.1f} s: {speed:.0f} times as fast"
    echo(f"  {'time':<21} {real}", err=True)
    for violation in summary.violations:
        echo(f"VIOLATION (seed {options.seed}) {violation}")
    verdict = f"{len(summary.violations)} violations" if summary.violations else "everything held"
    echo(f"  {'verdict':<21} {verdict}")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)
