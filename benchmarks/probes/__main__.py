"""What probes cost, whether they come in time, and how soon a failing endpoint's container is killed.

    python -m benchmarks.probes                                     # everything; about three minutes
    python -m benchmarks.probes --only cost --json probes.json
    python -m benchmarks.probes --only load --probes 500 --window 30
    python -m benchmarks.probes --only kill --runtime embedded --kills 20

Three measurements, each beside its floor in the same run: CPU of one probe by kind (`cost.py`); an agent with hundreds
of HTTP and TCP probes a second, some of them at dead targets, and pods that end meanwhile (`load.py`); the delay from
a failing endpoint to the death of its container (`restart.py`). The first and the last need root; containerd also runc
and the CNI plugins (`make packages`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click

from benchmarks.detect.crash import percentile
from benchmarks.picture import picture_option
from benchmarks.probes.cost import measure_costs
from benchmarks.probes.load import bare_loop, measure_load
from benchmarks.probes.restart import PERIOD, THRESHOLD, measure_kills
from benchmarks.probes.targets import running_targets
from benchmarks.report import Result, print_table, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.probes.cost import Cost
    from benchmarks.probes.load import BareLoop, Load
    from benchmarks.probes.restart import Kills

DRIFT_GOAL: Final = 1.0
"""Percent of the period."""
CPU_GOALS: Final = {"tcpSocket": 100.0, "httpGet": 250.0, "httpGet, HTTPS": 2500.0, "grpc": 2500.0, "exec": 1000.0}
"""Microseconds of one probe."""
BEYOND_GOAL: Final = 50.0
"""Milliseconds over period x threshold."""
TIME_WAIT_GOAL: Final = 20
"""Of ten thousand and more: where both sides close in the same moment, both keep their port."""
DELETION_GOAL: Final = 50.0
"""Milliseconds that a deletion may take longer beside probes, 99th percentile."""


def cost_results(costs: Sequence[Cost]) -> list[Result]:
    """The aims of each kind."""
    return [Result(f"one probe, {each.kind}: CPU", "µs", each.cpu, CPU_GOALS[each.kind]) for each in costs]


def load_results(idle: Load, busy: Load) -> list[Result]:
    """The aims of the probes' pace, and of pods that end beside them."""
    assert busy.timing is not None
    slower = 1000 * (percentile(busy.deletions, 0.99) - percentile(idle.deletions, 0.99))
    title = f"{busy.probes} probes a second"
    return [
        Result(f"{title}, drift of the worst", "% of the period", busy.timing.drift, DRIFT_GOAL),
        Result(f"{title}, how late they come (99th percentile)", "% of the period", busy.timing.late_p99, DRIFT_GOAL),
        Result(f"{title}, a deletion beside them takes longer (99th percentile)", "ms", slower, DELETION_GOAL),
        Result(f"{title}, ports of ours in TIME-WAIT", "", busy.time_wait, TIME_WAIT_GOAL),
    ]


def kill_results(kills: Kills) -> list[Result]:
    """The aims of one runtime."""
    title = f"failing endpoint on {kills.runtime}"
    return [
        Result(
            f"{title}: killed beyond period x threshold (slowest)",
            "ms",
            max(kill.beyond for kill in kills.agent),
            BEYOND_GOAL,
        ),
        Result(
            f"{title}: last answer → killed (median)",
            "ms",
            percentile([kill.answered for kill in kills.agent], 0.5),
            BEYOND_GOAL,
        ),
    ]


def _print_costs(costs: Sequence[Cost]) -> None:
    print_table(
        "One probe, µs",
        ["kind", "CPU", "time", "bare client", "its CPU", "its time"],
        [
            [
                each.kind,
                f"{each.cpu:.0f}",
                f"{each.wall:.0f}",
                each.floor,
                f"{each.floor_cpu:.0f}",
                f"{each.floor_wall:.0f}",
            ]
            for each in costs
        ],
    )


def _print_load(idle: Load, busy: Load, bare: BareLoop) -> None:
    rows = []
    for name, load in (("without probes", idle), (f"{busy.probes} a second", busy)):
        late = load.timing
        pace = ["", "", "", "", ""]
        if late is not None:
            pace = [f"{late.drift:.4f}", f"{late.late_median:.2f}", f"{late.late_p99:.2f}", f"{late.late_max:.2f}"]
            pace.append(str(late.missed))
        milliseconds = [f"{1000 * percentile(load.deletions, share):.0f}" for share in (0.5, 0.99)]
        rows.append([name, f"{load.cpu:.1f}", *pace, *milliseconds])
    late = bare.timing
    pace = [f"{late.drift:.4f}", f"{late.late_median:.2f}", f"{late.late_p99:.2f}", f"{late.late_max:.2f}"]
    rows.append(["bare connects", f"{bare.cpu:.1f}", *pace, str(late.missed), "", ""])
    columns = ["", "CPU %", "drift %", "late p50", "p99", "max", "missed", "end p50", "end p99"]
    print_table("Probes beside pods that end (ms); drift and lateness in percent of the period", columns, rows)


def _print_kills(measured: Sequence[Kills]) -> None:
    rows = []
    for kills in measured:
        for name, values in (
            ("failing → killed", [kill.delay for kill in kills.agent]),
            (f"beyond {PERIOD} s x {THRESHOLD}", [kill.beyond for kill in kills.agent]),
            ("last answer → killed", [kill.answered for kill in kills.agent]),
            ("bare StopContainer → killed", kills.floor),
        ):
            rows.append([f"{kills.runtime}: {name}", *(f"{percentile(values, share):.1f}" for share in (0.5, 0.9, 1))])
    print_table("A liveness probe fails, milliseconds", ["", "p50", "p90", "max"], rows)


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
@click.option("--only", type=click.Choice(["cost", "load", "kill"]), help="Leave out the other measurements.")
@click.option(
    "--count", type=click.IntRange(min=20), default=2000, show_default=True, help="Of cheap probes, for cost."
)
@click.option("--probes", type=click.IntRange(min=20), default=500, show_default=True, help="A second, for load.")
@click.option("--window", type=click.FloatRange(min=3), default=20.0, show_default=True, help="Seconds of load.")
@click.option(
    "--settle", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds before the window."
)
@click.option("--deletions", type=click.IntRange(min=1), default=30, show_default=True, help="Pods that end, for load.")
@click.option(
    "--runtime",
    "runtimes",
    type=click.Choice(["embedded", "containerd"]),
    multiple=True,
    default=("embedded", "containerd"),
    show_default=True,
    help="Where containers are killed.",
)
@click.option("--kills", type=click.IntRange(min=1), default=12, show_default=True, help="On each runtime.")
def main(
    json_file: Path | None,
    only: str | None,
    count: int,
    probes: int,
    window: float,
    settle: float,
    deletions: int,
    runtimes: tuple[str, ...],
    kills: int,
) -> None:
    """Measure probes."""
    click.echo(f"load of the machine at the start: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
    results: list[Result] = []
    with TemporaryDirectory(prefix="trikubelet-probes-") as name, running_targets() as targets:
        folder = Path(name)
        if only in ("cost", None):
            costs = measure_costs(targets, _made(folder / "cost"), count)
            _print_costs(costs)
            results += cost_results(costs)
        if only in ("load", None):
            idle, busy = (
                measure_load(
                    _made(folder / name),
                    targets,
                    probes,
                    probed=probed,
                    settle=settle,
                    window=window,
                    deletions=deletions,
                    told=_told,
                )
                for name, probed in (("idle", False), ("busy", True))
            )
            _print_load(idle, busy, bare_loop(targets, probes, window))
            results += load_results(idle, busy)
        if only in ("kill", None):
            measured = []
            for runtime in dict.fromkeys(runtimes):
                measured.append(measure_kills(runtime, _made(folder / runtime), targets, kills, _told))
                results += kill_results(measured[-1])
            _print_kills(measured)
    sys.exit(0 if report(results, json_file) else 1)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _told(what: str) -> None:
    if sys.stderr.isatty():
        click.echo(what, err=True)


if __name__ == "__main__":
    main()
