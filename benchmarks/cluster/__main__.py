"""How long pods take in a cluster: from their creation until they are ready, from their deletion until they are gone.

    python -m benchmarks.cluster                                             # embedded runtime, one pod
    python -m benchmarks.cluster --runtime containerd --rounds 50            # root, containerd (make packages)
    python -m benchmarks.cluster --runtime containerd --pods 100 --rounds 3 --rest 70 --json cluster.json
    python -m benchmarks.cluster --runtime containerd --kubelet PROGRAM      # beside another kubelet, on its own node
    python -m benchmarks.cluster --runtime containerd --kubeconfigs FOLDER   # in a cluster that runs already

Pods are created bound to the node, by an administrator of the API server, and what becomes of them is told by his
watch. The floor is a bare client that makes the same CRI calls on a runtime of the same kind, until they return; of
several pods at once, it is the bare client that was fastest of those that work on so many at a time. All take turns in
the same run, after a pod each to warm up. The API server is the tests'. For another one FOLDER has kubeconfigs:
`admin.kubeconfig` and, for the nodes, `benchmark.kubeconfig` and `benchmark-peer.kubeconfig`; the nodes' objects are
left in it. See `contestants.py` and `arena.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click
import trio

from benchmarks.cluster.arena import Settings, arena, compete
from benchmarks.cluster.steps import FLOOR, FLOOR_STEPS, Measurements, Step, aims
from benchmarks.picture import picture_option
from benchmarks.report import print_table, report
from benchmarks.termination.__main__ import progress_bar
from benchmarks.termination.phases import Percentiles
from benchmarks.termination.pods import LEAST_GRACE
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import Sequence

FLOOR_AT_ONCE: Final = (10, 500)
"""Tried where nothing else is said."""


def measure_on(
    kind: str, settings: Settings, at_once: Sequence[int], kubelet: Path | None, kubeconfigs: Path | None
) -> Measurements:
    """Start everything, measure, leave nothing."""
    nodes = 1 if kubelet is None else 2
    steps = 2 + (len(at_once) + nodes) * (1 + settings.rounds) + (2 * nodes if settings.rest else 0)
    with TemporaryDirectory(prefix="trikubelet-cluster-") as name:
        with arena(kind, Path(name), kubelet, kubeconfigs) as started, progress_bar(steps) as progress:
            return trio.run(compete, started, settings, at_once, progress)


def print_steps(settings: Settings, measured: Measurements, heading: str) -> None:
    """Percentiles of every step."""
    rows = []
    for step in Step:
        floor = measured.floor(step) if step in FLOOR_STEPS else None
        for shown, name in ((FLOOR, floor), *((node, node) for node in measured.nodes)):
            if name is None or not measured.seconds(name, step):
                continue
            what = f"{'deleted' if step.of_end else 'created'} to {step.value}"
            rows.append([what, shown, *_milliseconds(measured.seconds(name, step))])
            if settings.pods > 1 and step in FLOOR_STEPS:
                rows.append([f"{what}, the last", shown, *_milliseconds(measured.lasts(name, step))])
    print_table(f"Milliseconds: {heading}", ["step", "who", "times", "p50", "p90", "p99", "max"], rows)
    for node in measured.nodes:
        cpu, end = measured.cpu_per_pod(node), measured.cpu_of_end(node)
        click.echo(
            f"CPU of {node}: {1000 * cpu:.1f} ms per pod, with what it does besides: "
            f"{1000 * (cpu - end):.1f} for its start, {1000 * end:.1f} for its end."
        )
    for (node, pods), rest in measured.rests.items():
        click.echo(f"{node} at rest with {pods} pods: {rest.cpu:.2f} % of a core, {rest.resident:.1f} MiB resident.")


def _milliseconds(seconds: Sequence[float]) -> list[str]:
    found = Percentiles.of(seconds)
    return [str(found.count), *(f"{1000 * value:.1f}" for value in (found.p50, found.p90, found.p99, found.max))]


@click.command()
@click.option("--runtime", "kind", type=click.Choice(["embedded", "containerd"]), default="embedded", show_default=True)
@click.option("--pods", type=click.IntRange(1, 500), default=1, show_default=True, help="At once.")
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--grace", type=click.IntRange(min=LEAST_GRACE), default=5, show_default=True, help="Grace period in seconds."
)
@click.option("--settle", default=1.0, show_default=True, help="Seconds that all pods run until they are deleted.")
@click.option(
    "--floor-at-once",
    "at_once",
    type=click.IntRange(min=1),
    multiple=True,
    default=FLOOR_AT_ONCE,
    show_default=True,
    help="Pods that the bare client works on at a time; of several numbers, the best is the floor.",
)
@click.option(
    "--rest",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds to watch the agent without pods, and with all of them.",
)
@click.option(
    "--kubelet",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The program of another kubelet, which takes turns with this agent.",
)
@click.option(
    "--kubeconfigs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with those of a cluster that runs already, instead of the API server of the tests.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
def main(
    kind: str,
    pods: int,
    rounds: int,
    grace: int,
    settle: float,
    at_once: tuple[int, ...],
    rest: float,
    kubelet: Path | None,
    kubeconfigs: Path | None,
    json_file: Path | None,
) -> None:
    """Measure how long pods take to start and to end in a cluster."""
    silence()
    settings = Settings(pods, rounds, grace, settle, rest)
    measured = measure_on(kind, settings, sorted({min(number, pods) for number in at_once}), kubelet, kubeconfigs)
    of_pods = "one pod at a time" if pods == 1 else f"{pods} pods at once"
    print_steps(settings, measured, f"{of_pods}, {rounds} rounds, {kind}")
    click.echo(
        "Noted in this process: the floor's calls when they return, the deaths of processes when the kernel tells of "
        "them, the rest when the administrator's watch does. First status: the agent reports anything; ended: it "
        "reports that all containers have ended."
    )
    sys.exit(0 if report(aims(kind, pods, measured), json_file) else 1)


if __name__ == "__main__":
    main()
