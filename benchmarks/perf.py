"""What this tree costs beside an earlier commit of it: processor time and memory, which are steady on a busy machine.

    python -m benchmarks.perf                      # beside the last release
    python -m benchmarks.perf --base 30cea26       # beside any commit
    python -m benchmarks.perf --turns 5 --json perf.json

Both trees run as a person would run them, by their command line alone, so that the older one needs to know nothing of
this benchmark. They take turns (A B, B A, …), so that whatever else the machine does hits both alike. A figure of this
tree counts as worse when it is more than 15 % above the other's, and by more than the two spread from turn to turn.
Times on the clock are not judged: they are the machine's as much as ours.

The exit code is 1 when a figure got worse, and 2 when the commit that was asked for is not there. Without an earlier
commit at hand (a clone without history) there is nothing to compare with: that is said, and is no failure. What guards
such a clone is `benchmarks.work`, which counts instead.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from benchmarks.agent_process import PATIENCE, write_configuration
from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, write_aims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
RELEASE: Final = Path(__file__).with_name("perf-base.txt")
"""Holds the commit of the last release, for clones without its tag."""
MOST_WORSE: Final = 1.15
"""Times the earlier figure."""
PODS: Final = 20
IDLE_SECONDS: Final = 20.0


@attrs.frozen
class Figure:
    """One number of one tree, as every turn measured it."""

    name: str
    unit: str
    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def change(self) -> float:
        """Times the earlier one; the median of the pairs that ran beside each other."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return median(mine / other if other else 1.0 + mine for mine, other in pairs)

    @property
    def spread(self) -> float:
        """The median distance from the median, of whichever tree varies more, as a part of the median."""
        return max(map(_spread, (self.ours, self.theirs)))

    @property
    def limit(self) -> float:
        """The change from which on it counts as worse."""
        return MOST_WORSE + 2 * self.spread

    @property
    def result(self) -> Result:
        return Result(f"{self.name}, beside the earlier commit", "times", self.change, self.limit)


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values) / middle if middle else 0.0


# --- One turn of one tree --------------------------------------------------------------------------------------------


@attrs.frozen
class Tree:
    """A checkout, run by this Python and with its packages."""

    path: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", "from trikubelet.cli.main import main; main()", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**ours, "PYTHONPATH": str(self.path)}

    def run(self, *arguments: str) -> float:
        """Seconds of processor time of a command."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(tree: Tree) -> dict[str, tuple[str, float]]:
    """All figures of one tree, once: a unit and a value by name."""
    figures = {"a command that only asks": ("ms CPU", 1000 * tree.run("version"))}
    figures["a simulated hour of fifty pods"] = (
        "s CPU",
        tree.run("sim", "--pods", "50", "--hours", "1", "--seed", "7"),
    )
    with TemporaryDirectory(prefix="trikubelet-perf-") as name, _running(tree, Path(name)) as agent:
        agent.wait_for(lambda: (agent.folder / "root" / "trikubelet.sock").exists())
        time.sleep(2)
        figures["the agent's start"] = ("ms CPU", 1000 * _cpu(agent.pid))
        figures["the agent without pods"] = ("MiB", _resident(agent.pid))
        figures["the keeper without pods"] = ("MiB", _resident(agent.keeper))
        began = _cpu(agent.pid)
        agent.start_pods()
        time.sleep(3)
        started = _cpu(agent.pid)
        figures["a pod's start"] = ("ms CPU", 1000 * (started - began) / PODS)
        quiet = _cpu(agent.pid)
        time.sleep(IDLE_SECONDS)
        figures[f"{PODS} idle pods"] = ("ms CPU / s", 1000 * (_cpu(agent.pid) - quiet) / IDLE_SECONDS)
        figures[f"the agent with {PODS} pods"] = ("MiB", _resident(agent.pid))
        figures[f"the keeper with {PODS} pods"] = ("MiB", _resident(agent.keeper))
        began = _cpu(agent.pid)
        agent.end_pods()
        time.sleep(2)
        figures["a pod's end"] = ("ms CPU", 1000 * (_cpu(agent.pid) - began) / PODS)
    return figures


@attrs.frozen
class Agent:
    """An agent of one of the trees."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def keeper(self) -> int:
        return int(json.loads((self.folder / "root" / "runtime" / "keeper.json").read_text())["pid"])

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the agent does not do it: {(self.folder / 'agent.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def start_pods(self) -> None:
        """Returns when all their processes run."""
        for number in range(PODS):
            _write(self.folder / "manifests" / f"{number}.json", json.dumps(_pod(number, self.folder)))
        self.wait_for(lambda: len(list((self.folder / "signs").iterdir())) == PODS)

    def end_pods(self) -> None:
        """Returns when nothing is left of them."""
        for manifest in (self.folder / "manifests").iterdir():
            manifest.unlink()
        pods = self.folder / "root" / "pods"
        self.wait_for(lambda: not list(pods.iterdir()))


@contextmanager
def _running(tree: Tree, folder: Path) -> Iterator[Agent]:
    for name in ("manifests", "signs"):
        (folder / name).mkdir()
    arguments = [
        "run",
        f"--config={write_configuration(folder)}",
        f"--manifests={folder / 'manifests'}",
        f"--root-dir={folder / 'root'}",
        "--runtime-endpoint=embedded",
        "--drain-on-exit",
    ]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            tree.command(*arguments), env=tree.environment, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield Agent(folder, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()  # if it does not end
            process.wait()


def _pod(number: int, folder: Path) -> dict[str, Any]:
    script = f": > /signs/{number}; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
    container = {
        "name": "main",
        "image": "localhost/host",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "signs", "mountPath": "/signs"}],
    }
    volumes = [{"name": "signs", "hostPath": {"path": str(folder / "signs")}}]
    spec = {"terminationGracePeriodSeconds": 5, "volumes": volumes, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec}


def _write(file: Path, text: str) -> None:
    """Whole at once, as editors do: the agent watches the folder."""
    temporary = file.with_name(f".{file.name}")
    temporary.write_text(text)
    temporary.rename(file)


def _cpu(pid: int) -> float:
    """Seconds of processor time of a process, without its children, by the clock that the kernel keeps for it."""
    return time.clock_gettime((~pid << 3) | 2)


def _resident(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"expected VmRSS in the status of process {pid}")


# --- Both trees ------------------------------------------------------------------------------------------------------


def base_commit(asked: str | None) -> str | None:
    """The commit to compare with; None when this clone does not have it."""
    names = [asked] if asked else [*_output("git", "tag", "--list", "v*", "--sort=-creatordate"), *_recorded()]
    for name in names:
        if found := _output("git", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"):
            return found[0]
    return None


def _recorded() -> list[str]:
    return RELEASE.read_text().split()[:1] if RELEASE.exists() else []


def _output(*command: str) -> list[str]:
    """Lines; none when it failed."""
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """The files of a commit. The repository is only read: nothing is left in it, however this ends."""
    with TemporaryDirectory(prefix="trikubelet-perf-") as name:
        archive = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, check=True, capture_output=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            # Debian 12's Python knows no filters yet.
            files.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            files.extractall(name)
        yield Path(name)


def compare(base: Path, turns: int) -> list[Figure]:
    """Measure both trees in turns. Before, all of both is compiled, and a first command does not count."""
    ours, theirs = Tree(ROOT), Tree(base)
    measured: dict[Path, list[Mapping[str, tuple[str, float]]]] = {ROOT: [], base: []}
    for tree in (ours, theirs):
        subprocess.run([sys.executable, "-m", "compileall", "-q", tree.path / "trikubelet"], check=True)
        tree.run("version")
    for turn in range(turns):
        for tree in (ours, theirs) if turn % 2 else (theirs, ours):
            measured[tree.path].append(measure(tree))
            click.echo(f"turn {turn + 1} of {turns}: {'this tree' if tree is ours else 'the earlier commit'}", err=True)
    return [
        Figure(
            name,
            unit,
            [turn[name][1] for turn in measured[ROOT]],
            [turn[name][1] for turn in measured[base]],
        )
        for name, (unit, _) in measured[ROOT][0].items()
    ]


def print_figures(figures: Sequence[Figure]) -> None:
    rows = [
        [
            figure.name,
            figure.unit,
            f"{median(figure.theirs):.1f}",
            f"{median(figure.ours):.1f}",
            f"{100 * (figure.change - 1):+.0f} %",
            f"± {100 * figure.spread:.0f} %",
            "" if figure.result.met else "WORSE",
        ]
        for figure in figures
    ]
    print_table(f"Medians, load {os.getloadavg()[0]:.1f}", ["", "unit", "earlier", "now", "change", "spread", ""], rows)


@click.command()
@click.option("--base", help="The commit to compare with.  [default: the last release]")
@click.option("--turns", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
def main(base: str | None, turns: int, json_file: Path | None) -> None:
    """Compare processor time and memory with those of an earlier commit."""
    commit = base_commit(base)
    if commit is None:
        if base is not None:
            raise click.UsageError(f"this clone has no commit {base}")
        click.echo("Nothing to compare with: this clone has no release. `python -m benchmarks.work` needs none.")
        return
    with _checkout(commit) as folder:
        figures = compare(folder, turns)
    print_figures(figures)
    results = [figure.result for figure in figures]
    write_aims(results, json_file)
    sys.exit(0 if all(result.met for result in results) else 1)


if __name__ == "__main__":
    main()
