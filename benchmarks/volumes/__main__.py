"""What volumes add to a pod's start: 1, 10 and 50 of each kind, beside the same pod without them.

    python -m benchmarks.volumes                                              # embedded runtime
    python -m benchmarks.volumes --runtime containerd --json volumes.json     # root, containerd (make packages)
    python -m benchmarks.volumes --kind configMap --volumes 10 --rounds 20

A start is timed from the creation of a pod's object until a watch tells that the pod is ready (`starts.py`): the agent
asks an API server for every object, makes the volumes, and the runtime mounts them. Two floors are taken in the same
turn: the file-system calls alone (`bare.py`), and the same pod without volumes. Between them stands what the volume
manager takes for itself, without API server and runtime (`prepare.py`). What hostPath volumes add is what the runtime
takes to mount anything.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import attrs
import click
import trio

from benchmarks.picture import picture_option
from benchmarks.report import print_table, report
from benchmarks.termination.__main__ import progress_bar
from benchmarks.volumes.bare import make_bare
from benchmarks.volumes.kinds import MOST_VOLUMES, Kind
from benchmarks.volumes.prepare import manager_on, time_prepare
from benchmarks.volumes.results import Case, Round, aims, rows
from benchmarks.volumes.starts import Starts, open_starts, running_node
from trikubelet.telemetry.logs import silence
from trikubelet.volumes.manager import VolumeManager

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.volumes.starts import Node

COUNTS: Final = (1, 10, MOST_VOLUMES)
FEW: Final = 10
TURNS_OF_FEW: Final = 3
"""In each round, of pods with less than `FEW` volumes: what those add is less than two starts of a pod differ by."""
PREPARE_ATTEMPTS: Final = 3
"""In each turn, of which the median counts: one takes as long as a hiccup of the machine."""


@attrs.define
class Bench:
    """Takes turns."""

    starts: Starts
    manager: VolumeManager
    folder: Path
    number: int = 0

    async def turn(self, case: Case) -> None:
        """One pod with the volumes and one without, every other time the other one first."""
        self.number += 1
        counts = (case.count, 0) if self.number % 2 else (0, case.count)
        started = {count: await self.starts.time(case.kind, count) for count in counts}
        prepared = {count: await self._prepare(case.kind, count) for count in counts}
        bare = make_bare(self.folder, case.kind, case.count)
        ours, without = started[case.count], started[0]
        case.rounds.append(
            Round(
                ours.seconds,
                without.seconds,
                ours.cpu,
                without.cpu,
                prepared[case.count],
                prepared[0],
                bare,
            )
        )

    async def _prepare(self, kind: Kind, count: int) -> float:
        names = (f"prepared-{self.number}-{count}-{attempt}" for attempt in range(PREPARE_ATTEMPTS))
        return median([(await time_prepare(self.manager, name, kind, count)).prepare for name in names])


async def measure(node: Node, cases: list[Case], rounds: int, settle: float, progress: Callable[[str], None]) -> None:
    """Fill the cases with rounds, after a turn of each kind to warm up."""
    async with AsyncExitStack() as stack:
        progress("waiting for the node")
        starts = await open_starts(node, stack, settle)
        folder = (node.folder / "volumes").resolve()
        folder.mkdir()
        bench = Bench(starts, await stack.enter_async_context(manager_on(folder / "root")), folder)
        for kind in dict.fromkeys(case.kind for case in cases):
            progress(f"{kind}: warming up")
            await bench.turn(Case(kind, 1))
        for number in range(rounds):
            for case in cases:
                progress(f"{case.kind}, {case.count}: round {number + 1} of {rounds}")
                for _ in range(TURNS_OF_FEW if case.count < FEW else 1):
                    await bench.turn(case)


@click.command()
@click.option("--runtime", "runtime", type=click.Choice(["embedded", "containerd"]), default="embedded")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice([kind.value for kind in Kind]),
    multiple=True,
    help="All, unless some are given.",
)
@click.option(
    "--volumes",
    "counts",
    type=click.IntRange(1, MOST_VOLUMES),
    multiple=True,
    default=COUNTS,
    show_default=True,
    help="Of one pod.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--settle", default=0.2, show_default=True, help="Seconds for which each pod runs.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
def main(
    runtime: str, kinds: tuple[str, ...], counts: tuple[int, ...], rounds: int, settle: float, json_file: Path | None
) -> None:
    """Measure what volumes add to a pod's start."""
    silence()
    chosen = [Kind(kind) for kind in kinds] or list(Kind)
    cases = [Case(kind, count) for kind in chosen for count in counts]
    steps = 1 + len(chosen) + rounds * len(cases)
    with TemporaryDirectory(prefix="trikubelet-volumes-") as name, running_node(runtime, Path(name)) as node:
        with progress_bar(steps) as progress:
            trio.run(measure, node, cases, rounds, settle, progress)
    title = f"Milliseconds, medians of {rounds} rounds, {runtime}"
    columns = ["volumes", "start", "without", "each", "CPU", "prepare", "bare"]
    print_table(title, columns, list(rows(cases)))
    without = 1000 * median(case.prepared_without for case in cases)
    click.echo(
        "each: what each volume adds to the start. CPU: what each costs the agent, with its end. prepare: the volume "
        f"manager alone, for all; without volumes it takes {without:.2f} ms. bare: the calls of the file system alone."
    )
    sys.exit(0 if report(aims(runtime, cases), json_file) else 1)


if __name__ == "__main__":
    main()
