"""What one pod costs an agent that has many: CPU time of its start, its end and its rest, and memory.

    python -m benchmarks.growth                                    # embedded 10 to 500, simulated 10 to 5,000
    python -m benchmarks.growth --only simulated --simulated 10 --simulated 10000 --json growth.json
    python -m benchmarks.growth --only embedded --embedded 10 --embedded 100 --settle 5 --window 10

Each number of pods has a process of its own: what an earlier one has left behind (memory, garbage) makes no later one
dearer. What is known is written after each, so that an interrupted run loses nothing.

    embedded     a whole agent as a person would start it, with real containers, told of them by a manifest folder. What
                 its keeper takes is in the figures; what containers take before they are containers is not.
    simulated    agent and runtime in one process, without disk and kernel, on a clock that jumps. Both ends of each
                 call to the runtime and all that the runtime remembers are in the figures.

All pods start at once, and end at once. Few of them are started several times over, and what the agent takes without
pods is taken off their rest, but theirs are the figures that vary most. A figure is met that is at most 1.1 times that
of the smallest number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from benchmarks.agent_process import PATIENCE, running_agent
from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from benchmarks.sim import services, until
from trikubelet.agent.service import freeze_garbage
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.kinds import install
from trikubelet.sim.node import run_deterministically, simulated_node
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.agent_process import AgentProcess

ROOT: Final = Path(__file__).resolve().parent.parent
EMBEDDED: Final = "embedded"
SIMULATED: Final = "simulated"
KINDS: Final = (EMBEDDED, SIMULATED)
SIZES: Final = {EMBEDDED: (10, 100, 250, 500), SIMULATED: (10, 100, 250, 500, 5000)}
MOST_GROWTH: Final = 1.1
"""Times the smallest number's."""
STARTED_IN_ALL: Final = 100
"""Pods whose start and end are counted, at least, if that takes no more than so many rounds:"""
MOST_ROUNDS: Final = 10
SIMULATED_SETTLE: Final = 130.0
"""Seconds: every pod has found nothing to do at least once."""
SIMULATED_WINDOW: Final = 600.0
TOLD_EVERY: Final = 5.0
"""Seconds between words about the progress."""
COMMAND: Final = ": > /signs/NAME; trap 'exit 0' TERM; sleep infinity & wait $!"


@attrs.frozen
class Cost:
    """Of one pod among so many."""

    kind: str
    pods: int
    start: float
    """Milliseconds of CPU time, from its manifest until all of them run."""
    end: float
    """The same, until nothing is left of them."""
    idle: float
    """Milliseconds of CPU time in a minute."""
    memory: float
    """KiB that are resident while it runs, and were not before."""


FIGURES: Final = {
    "start": "start, ms CPU",
    "end": "end, ms CPU",
    "idle": "rest, ms CPU / min",
    "memory": "memory, KiB",
}


@attrs.frozen
class Reading:
    """Of all processes that count."""

    cpu: float
    """Seconds."""
    resident: float
    """KiB."""


def read(*pids: int) -> Reading:
    """`pids`: processes that run."""
    return Reading(sum(map(_cpu, pids)), sum(map(_resident, pids)))


def _cpu(pid: int) -> float:
    """Of all threads of a process, by the clock that the kernel keeps for it."""
    return time.clock_gettime((~pid << 3) | 2)


def _resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1])
    raise RuntimeError(f"expected VmRSS in the status of process {pid}")


class Progress:
    """Words for whoever waits, on standard error, not too often."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._told = time.monotonic()

    def __call__(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._told >= TOLD_EVERY:
            self._told = now
            click.echo(f"{self._subject}: {what} {done} of {of}", err=True)


def rounds_of(pods: int) -> int:
    """How many times so many pods are started, so that enough are."""
    return min(-(-STARTED_IN_ALL // pods), MOST_ROUNDS)


# --- One number of pods, in this process -----------------------------------------------------------------------------


async def _simulated(pods: int, told: Progress) -> Cost:
    sim = SimulatedRuntime(seed=1, log_limit=10)
    install(sim)
    me = os.getpid()
    starts, ends = [], []
    async with simulated_node(sim) as node:
        source, states = node.source(), node.agent.workers.states

        def running() -> bool:
            count = len(sim.running_containers())
            told("running", count, pods)
            return count == pods

        def gone() -> bool:
            left = max(len(states.phases()), len(sim.machine.sandboxes))
            told("gone", pods - left, pods)
            return left == 0

        async def rest() -> float:
            await trio.sleep(SIMULATED_SETTLE)
            began = read(me)
            await trio.sleep(SIMULATED_WINDOW)
            return read(me).cpu - began.cpu

        source.put(*services(1))  # the first of all: modules, caches
        await until(lambda: len(sim.running_containers()) == 1)
        source.remove(*source.pods)
        await until(gone)
        freeze_garbage()
        without = await rest()
        before = read(me)
        for last in range(rounds_of(pods) - 1, -1, -1):
            began = read(me)
            source.put(*services(pods))
            await until(running)
            starts.append(read(me).cpu - began.cpu)
            if last == 0:
                told("at rest", pods, pods)
                idle = await rest() - without
                memory = read(me).resident - before.resident
            began = read(me)
            source.remove(*source.pods)
            await until(gone)
            ends.append(read(me).cpu - began.cpu)
    minutes = SIMULATED_WINDOW / 60
    return _cost(SIMULATED, pods, starts, ends, idle / minutes, memory)


def _embedded(pods: int, told: Progress, settle: float, window: float) -> Cost:
    starts, ends = [], []
    with TemporaryDirectory(prefix="trikubelet-growth-") as name:
        folder = Path(name)
        (folder / "signs").mkdir()
        flags = (f"--max-pods={pods + 10}", "--host-image", "--pod-network=host")
        with running_agent(folder, EMBEDDED, flags) as agent:
            agent.wait_until_it_listens()
            _start_pods(agent, 1, told)  # the first of all: modules, caches
            _end_pods(agent, told)
            pids = agent.process.pid, agent.keeper

            def rest() -> float:
                time.sleep(settle)
                began = read(*pids)
                time.sleep(window)
                return read(*pids).cpu - began.cpu

            without = rest()
            before = read(*pids)
            for last in range(rounds_of(pods) - 1, -1, -1):
                began = read(*pids)
                _start_pods(agent, pods, told)
                starts.append(read(*pids).cpu - began.cpu)
                if last == 0:
                    idle = rest() - without
                    memory = read(*pids).resident - before.resident
                began = read(*pids)
                _end_pods(agent, told)
                ends.append(read(*pids).cpu - began.cpu)
    return _cost(EMBEDDED, pods, starts, ends, idle * 60 / window, memory)


def _cost(kind: str, pods: int, starts: Sequence[float], ends: Sequence[float], idle: float, memory: float) -> Cost:
    start, end, rest = (1000 * seconds / pods for seconds in (fmean(starts), fmean(ends), idle))
    return Cost(kind, pods, start, end, rest, memory / pods)


def _start_pods(agent: AgentProcess, pods: int, told: Progress) -> None:
    """Returns when all their processes run, and the agent has had the time to see it."""
    signs = agent.folder / "signs"
    for sign in signs.iterdir():
        sign.unlink()
    for number in range(pods):
        file = agent.manifests / f".{number}"
        file.write_text(json.dumps(_pod(f"pod-{number}", signs)))
        file.rename(agent.manifests / f"{number}.json")  # whole at once: the agent watches the folder
    _wait(agent, lambda: _tell(told, "running", len(list(signs.iterdir())), pods))


def _end_pods(agent: AgentProcess, told: Progress) -> None:
    """Returns when nothing is left of them."""
    pods = list(agent.manifests.glob("*.json"))
    for manifest in pods:
        manifest.unlink()
    folders = agent.root / "pods"
    _wait(agent, lambda: _tell(told, "gone", len(pods) - len(list(folders.iterdir())), len(pods)))


def _tell(told: Progress, what: str, done: int, of: int) -> bool:
    told(what, done, of)
    return done == of


def _wait(agent: AgentProcess, condition: Callable[[], bool]) -> None:
    """And one second more, in which the agent sees it too. Raises RuntimeError when it does not come."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if agent.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the agent does not do it: {agent.log.read_text()[-2000:]}")
        time.sleep(0.1)
    time.sleep(1.0)


def _pod(name: str, signs: Path) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "localhost/host",
        "command": ["sh", "-c", COMMAND.replace("NAME", name)],
        "volumeMounts": [{"name": "signs", "mountPath": "/signs"}],
    }
    volumes = [{"name": "signs", "hostPath": {"path": str(signs)}}]
    spec = {"terminationGracePeriodSeconds": 30, "volumes": volumes, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


# --- All of them -----------------------------------------------------------------------------------------------------


def in_a_process(kind: str, pods: int, settle: float, window: float) -> Cost:
    """Measure one number of pods in a process of its own. Raises CalledProcessError when it fails."""
    command = [sys.executable, "-m", "benchmarks.growth", f"--one={kind}:{pods}"]
    done = subprocess.run(
        [*command, f"--settle={settle}", f"--window={window}"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    return Cost(**json.loads(done.stdout))


def growth(costs: Sequence[Cost]) -> list[Result]:
    """Each figure of each number of pods beside that of the smallest number of its kind."""
    results = []
    for kind in KINDS:
        found = sorted((one for one in costs if one.kind == kind), key=lambda one: one.pods)
        for one in found[1:]:
            for figure, name in FIGURES.items():
                smallest, least, value = found[0], getattr(found[0], figure), getattr(one, figure)
                if least > 0:
                    aim = f"{kind}, {one.pods} pods beside {smallest.pods}: {name.partition(',')[0]}"
                    results.append(Result(aim, "times", value / least, MOST_GROWTH))
    return results


def _write(json_file: Path, costs: Sequence[Cost]) -> None:
    aims = [{**attrs.asdict(result), "met": result.met} for result in growth(costs)]
    unfinished = json_file.with_name(f".{json_file.name}")
    unfinished.write_text(json.dumps({"costs": [attrs.asdict(cost) for cost in costs], "aims": aims}, indent=2) + "\n")
    unfinished.rename(json_file)


def _print(costs: Sequence[Cost]) -> None:
    kinds = [kind for kind in KINDS if any(cost.kind == kind for cost in costs)]
    columns = ["of one pod among", *(f"{kind}: {name}" for kind in kinds for name in FIGURES.values())]
    rows = []
    for pods in sorted({cost.pods for cost in costs}):
        row = [str(pods)]
        for kind in kinds:
            found = next((cost for cost in costs if (cost.kind, cost.pods) == (kind, pods)), None)
            row += ["" if found is None else f"{getattr(found, figure):.2f}" for figure in FIGURES]
        rows.append(row)
    print_table(f"What a pod costs, load {os.getloadavg()[0]:.1f}", columns, rows)


def _measure_here(kind: str, pods: int, settle: float, window: float) -> Cost:
    told = Progress(f"{kind}, {pods} pods")
    if kind == EMBEDDED:
        return _embedded(pods, told, settle, window)
    silence()
    return run_deterministically(lambda: _simulated(pods, told), seed=1)


@click.command()
@click.option("--embedded", type=click.IntRange(min=1), multiple=True, default=SIZES[EMBEDDED], show_default=True)
@click.option("--simulated", type=click.IntRange(min=1), multiple=True, default=SIZES[SIMULATED], show_default=True)
@click.option("--only", type=click.Choice(KINDS), help="Only pods of this kind.")
@click.option("--settle", default=65.0, show_default=True, help="Seconds that real pods run before their rest counts.")
@click.option("--window", default=60.0, show_default=True, help="Seconds in which the rest of real pods is counted.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Costs and aims, written after each size.")
@picture_option
@click.option("--one", hidden=True, help="KIND:PODS, measured in this process; the cost goes to standard output.")
def main(
    embedded: tuple[int, ...],
    simulated: tuple[int, ...],
    only: str | None,
    settle: float,
    window: float,
    json_file: Path | None,
    one: str | None,
) -> None:
    """Measure what one of many pods costs."""
    if one is not None:
        kind, _, pods = one.partition(":")
        click.echo(json.dumps(attrs.asdict(_measure_here(kind, int(pods), settle, window))))
        return
    costs: list[Cost] = []
    for kind, sizes in ((EMBEDDED, embedded), (SIMULATED, simulated)):
        for size in sorted(sizes) if only in (None, kind) else ():
            click.echo(f"{kind}, {size} pods", err=True)
            costs.append(in_a_process(kind, size, settle, window))
            if json_file is not None:
                _write(json_file, costs)
    _print(costs)
    sys.exit(0 if report(growth(costs), None) else 1)


if __name__ == "__main__":
    main()
