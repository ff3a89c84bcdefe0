"""How long a pod takes to end: from the removal of its manifest until nothing of it runs, beside the bare calls.

    python -m benchmarks.termination                                             # embedded runtime, one pod
    python -m benchmarks.termination --runtime containerd --pods 100 --rounds 3  # root, containerd (make packages)
    python -m benchmarks.termination --runtime containerd --kubelet /usr/bin/kubelet
    python -m benchmarks.termination --runtime sim --pods 500 --behaviour all --latency StopPodSandbox=0.2
    python -m benchmarks.termination --picture end.png --json end.json           # end.png and end.svg

Every kubelet is told of static pods by its manifest folder and watched from outside, in the same way: see `watch.py`
for what is taken for the moment of each phase. The floor is a bare client that makes the same CRI calls on a runtime of
the same kind, with the configurations that our agent would have given it. All take turns in the same run, after a pod
each to warm up. Of several pods at once, the floor is the bare client that was fastest of those that work on so many
pods at a time (`--floor-at-once`).
"""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from benchmarks.agent_process import interruptible_once
from benchmarks.manifest_agents import Runtime
from benchmarks.picture import NoMatplotlibError, check_matplotlib
from benchmarks.report import print_table, report
from benchmarks.termination.floor import bare_clients, record
from benchmarks.termination.kubelets import IMAGES, Process, containerd, other_kubelet, our_agent, served_runtime
from benchmarks.termination.phases import Measurements, Percentiles, Phase, aims
from benchmarks.termination.picture import draw
from benchmarks.termination.pods import LEAST_GRACE, Behaviour
from benchmarks.termination.rounds import Settings, measure
from benchmarks.termination.sim import simulate
from benchmarks.termination.watch import FEW_PODS, PERIOD_OF_FEW, PERIOD_OF_MANY, ContainerdEyes, EmbeddedEyes
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import ExitStack

    from benchmarks.termination.kubelets import Contestant
    from benchmarks.termination.watch import Eyes

ALL: Final = "all"
FLOOR_AT_ONCE: Final = (10, 500)
"""Tried where nothing else is said."""


@attrs.frozen
class Arena:
    """What runs: a runtime for the floor, and a process with its runtime for every kubelet."""

    kind: str
    folder: Path
    floor: Runtime
    floor_place: Path
    """Its socket, or the folder of its embedded runtime."""
    kubelets: list[tuple[Process, Path]]
    """Each with the place of its runtime."""


@contextmanager
def arena(kind: str, folder: Path, kubelet: Path | None) -> Iterator[Arena]:
    """Start everything. Nothing is left of it."""
    with interruptible_once() as stack:
        yield Arena(kind, folder, *_start(kind, folder, kubelet, stack))


def _start(
    kind: str, folder: Path, kubelet: Path | None, stack: ExitStack
) -> tuple[Runtime, Path, list[tuple[Process, Path]]]:
    def make_runtime(name: str, number: int) -> tuple[Runtime, Path]:
        if kind == "containerd":
            node = stack.enter_context(containerd(folder / name, number))
            return node, node.socket
        served = stack.enter_context(served_runtime(folder / name))
        return served, served.root

    floor, floor_place = make_runtime("floor", 0)
    if kind == "embedded":
        ours = stack.enter_context(our_agent(folder / "agent", "embedded"))
        kubelets = [(ours, ours.folder / "root" / "runtime")]
    else:
        node, place = make_runtime("ours", 1)
        kubelets = [(stack.enter_context(our_agent(folder / "agent", node.endpoint)), place)]
    if kubelet is not None:
        node, place = make_runtime("theirs", 2)
        kubelets.append((stack.enter_context(other_kubelet(folder / "kubelet", kubelet, node)), place))
    return floor, floor_place, kubelets


async def compete(
    arena: Arena, settings: Settings, at_once: Sequence[int], progress: Callable[[str], None]
) -> Measurements:
    """Let all take their turns."""
    image = IMAGES[arena.kind]
    behaviours = tuple(dict.fromkeys((Behaviour.EXITS_ON_TERM, *settings.behaviours)))
    progress("recording what an agent asks of the runtime")
    recorded = await record(arena.folder / "recorded", arena.floor, image, behaviours)
    async with AsyncExitStack() as stack:

        async def look_at(place: Path) -> Eyes:
            if arena.kind == "embedded":
                return EmbeddedEyes(place)
            return await stack.enter_async_context(ContainerdEyes.on(place))

        clients = bare_clients(arena.floor, await look_at(arena.floor_place), arena.folder / "bare", recorded, at_once)
        contestants: list[Contestant] = [*await stack.enter_async_context(clients)]
        for process, place in arena.kubelets:
            contestants.append(process.contestant(image, await look_at(place)))
        return (await measure(settings, contestants, progress)).with_best_floor()


def print_phases(settings: Settings, measured: Measurements, heading: str, noted: str) -> None:
    """A table for each behaviour, and how its moments were noted."""
    for behaviour in measured.behaviours:
        rows = []
        for phase in Phase:
            for contestant in measured.contestants(behaviour):
                seconds = measured.seconds(behaviour, contestant, phase)
                if seconds:
                    rows.append([phase.value, contestant, *_milliseconds(seconds)])
        for contestant in measured.contestants(behaviour):
            if settings.pods > 1:
                lasts = measured.lasts(behaviour, contestant)
                rows.append(["last sandbox gone", contestant, *_milliseconds(lasts)])
        title = f"{behaviour}, ms from being asked: {heading}"
        print_table(title, ["phase", "who", "pods", "p50", "p90", "p99", "max"], rows)
    rows = []
    for behaviour in measured.behaviours:
        for contestant in measured.contestants(behaviour):
            cpu = measured.cpu_per_pod(contestant, behaviour)
            if cpu is not None:
                rows.append([str(behaviour), contestant, f"{1000 * cpu:.1f}"])
    if rows:
        print_table("CPU per pod, start and stop, beyond an idle agent's", ["behaviour", "who", "ms"], rows)
    click.echo(noted)


def _milliseconds(seconds: Sequence[float]) -> list[str]:
    found = Percentiles.of(seconds)
    return [str(found.count), *(f"{1000 * value:.1f}" for value in (found.p50, found.p90, found.p99, found.max))]


def how_noted(kind: str, pods: int) -> str:
    """What tells of each phase, and how exactly."""
    period = PERIOD_OF_FEW if pods <= FEW_PODS else PERIOD_OF_MANY
    lists = {
        "containerd": "containers gone: tasks deleted (containerd's events) and not running in ListContainers; sandbox "
        "gone: network namespace removed (inotify) and not ready in ListPodSandbox; the lists are read "
        f"{1000 * period:g} ms after an event, then as often, and count only where they contradict it.",
        "embedded": "containers gone: recorded by the keeper (inotify); sandbox gone: namespaces let go "
        "(once the containers are gone the keeper is asked every 2 ms).",
    }[kind]
    return (
        "first signal: the container's trap (inotify); process dead: pidfd; worker finished: the pod's folder removed "
        f"(inotify), ours only. {lists} What is not polled is noted within about a millisecond on an idle machine."
    )


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str], None]]:
    """On stderr; to be told of each step as it begins."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("starting", total=total)
        begun = 0

        def step(what: str) -> None:
            nonlocal begun
            progress.update(task, completed=begun, description=what, refresh=True)
            begun += 1

        yield step
        progress.update(task, completed=total, description="done", refresh=True)


class _Latency(click.ParamType[tuple[str, float]]):
    """`RPC=SECONDS`."""

    name = "rpc=seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        rpc, _, seconds = str(value).partition("=")
        try:
            return rpc, float(seconds)
        except ValueError:
            self.fail(f"expected RPC=SECONDS, such as StopPodSandbox=0.2, got {value!r}", param, ctx)


@click.command()
@click.option("--runtime", "kind", type=click.Choice(["embedded", "containerd", "sim"]), default="embedded")
@click.option("--pods", type=click.IntRange(1, 500), default=1, show_default=True, help="Asked to end at once.")
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Of each behaviour.")
@click.option(
    "--grace", type=click.IntRange(min=LEAST_GRACE), default=5, show_default=True, help="Grace period in seconds."
)
@click.option(
    "--behaviour",
    "behaviours",
    multiple=True,
    type=click.Choice([*(one.value for one in Behaviour), ALL]),
    default=[Behaviour.EXITS_ON_TERM.value],
    show_default=True,
    help="What the pods do; may be repeated.",
)
@click.option(
    "--kubelet",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="Also a kubelet, on a runtime of its own.",
)
@click.option("--idle", default=15.0, show_default=True, help="Seconds to watch an agent without pods for its CPU.")
@click.option("--settle", default=2.0, show_default=True, help="Seconds from a batch's start until it is asked to end.")
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
    "--latency",
    "latencies",
    multiple=True,
    type=_Latency(),
    help="With --runtime sim: RPC=SECONDS that a call takes ('*': all others).",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw it, as .png and .svg (needs matplotlib).")
def main(
    kind: str,
    pods: int,
    rounds: int,
    grace: int,
    behaviours: tuple[str, ...],
    kubelet: Path | None,
    settle: float,
    idle: float,
    at_once: tuple[int, ...],
    latencies: tuple[tuple[str, float], ...],
    json_file: Path | None,
    picture: Path | None,
) -> None:
    """Measure how long pods take to end."""
    if kubelet is not None and kind == "sim":
        raise click.UsageError("--kubelet: a kubelet needs a real runtime, not --runtime sim")
    if latencies and kind != "sim":
        raise click.UsageError("--latency: only a simulated runtime takes as long as it is told")
    silence()
    wanted = tuple(Behaviour) if ALL in behaviours else tuple(Behaviour(name) for name in dict.fromkeys(behaviours))
    settings = Settings(pods, rounds, grace, wanted, settle, idle)
    try:
        if picture is not None:
            check_matplotlib()
    except NoMatplotlibError as error:
        raise click.ClickException(str(error)) from None
    of_pods = "one pod at a time" if pods == 1 else f"{pods} pods at once"
    heading = f"{of_pods}, {rounds} rounds, {kind}"
    if kind == "sim":
        with progress_bar(2 * rounds * len(wanted)) as progress:
            measured = simulate(settings, dict(latencies), progress)
        noted = "Simulated time. The floor works on all pods at once."
    else:
        numbers = sorted({min(number, pods) for number in at_once})
        measured = compete_on(kind, settings, numbers, kubelet)
        heading += f", load {os.getloadavg()[0]:.1f}"
        noted = how_noted(kind, pods)
    print_phases(settings, measured, heading, noted)
    if picture is not None:
        files = draw(measured, heading, picture)
        click.echo(f"drawn: {', '.join(str(file) for file in files)}")
    sys.exit(0 if report(aims(kind, pods, measured), json_file) else 1)


def compete_on(kind: str, settings: Settings, at_once: Sequence[int], kubelet: Path | None) -> Measurements:
    """On real runtimes, in a folder that is gone afterwards."""
    contestants = len(at_once) + (1 if kubelet is None else 2)
    steps = 1 + contestants * (1 + settings.rounds * len(settings.behaviours))
    with TemporaryDirectory(prefix="trikubelet-end-") as name, arena(kind, Path(name), kubelet) as started:
        with progress_bar(steps) as progress:
            return trio.run(compete, started, settings, at_once, progress)


if __name__ == "__main__":
    main()
