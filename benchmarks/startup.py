"""What an agent costs before it does anything: time to import, memory when idle, time to the first pod's process.

    python -m benchmarks.startup [--json FILE] [--runs N]

Everything is measured on whole processes, each beside its floor in the same run: a Python that does nothing, and one
that only imports Trio. The agents run on the embedded runtime, in folders of their own that are gone afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import click

from benchmarks.agent_process import AgentProcess, compile_package, running_agent
from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError

PATIENCE: Final = 30.0
MIB: Final = 1 << 20
_AGENT: Final = "import trikubelet.agent.run, trikubelet.agent.service"
IMPORTS: Final = {
    "python, nothing": "pass",
    "python, import trio": "import trio",
    "python, import the agent": _AGENT,
    "python, import the agent with the embedded runtime": f"{_AGENT}, trikubelet.embedded.runtime",
}


@attrs.frozen
class Memory:
    """Of one process, in MiB."""

    resident: float
    proportional: float
    """Pages shared by n processes count as 1/n. Zero where the kernel does not tell."""

    @classmethod
    def of(cls, pid: int) -> Memory:
        resident = _kibibytes(Path(f"/proc/{pid}/status"), "VmRSS:")
        try:
            proportional = _kibibytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
        except OSError:
            proportional = 0
        return cls(resident * 1024 / MIB, proportional * 1024 / MIB)


def measure_imports(runs: int) -> dict[str, float]:
    """Median seconds of a whole Python that does one thing. The kinds take turns, so that noise hits all alike."""
    compile_package()
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for run in range(runs + 1):
        for name, code in IMPORTS.items():
            began = time.monotonic()
            subprocess.run([sys.executable, "-c", code], check=True)
            if run:  # the first run fills the caches
                times[name].append(time.monotonic() - began)
    return {name: median(values) for name, values in times.items()}


def measure_idle_memory() -> tuple[Memory, Memory]:
    """An idle agent and its keeper, some seconds after the start."""
    with TemporaryDirectory(prefix="trikubelet-startup-") as name, running_agent(Path(name)) as agent:
        client = AgentClient(agent.root)
        _wait_until(agent, lambda: _answers(client))
        time.sleep(3)
        return Memory.of(agent.process.pid), Memory.of(agent.keeper)


def measure_first_pod() -> float:
    """Seconds from the start of the agent's process until the first pod's process has done something."""
    with TemporaryDirectory(prefix="trikubelet-startup-") as name:
        folder = Path(name)
        (folder / "manifests").mkdir()
        (folder / "manifests" / "pod.json").write_text(json.dumps(_pod(folder)))
        sign = folder / "started"
        with running_agent(folder) as agent:
            _wait_until(agent, sign.exists)
            return time.monotonic() - agent.started_at


def _pod(folder: Path) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "localhost/host",
        "command": ["sh", "-c", "trap 'exit 0' TERM; : > /folder/started; while :; do sleep 0.1; done"],
        "volumeMounts": [{"name": "folder", "mountPath": "/folder"}],
    }
    volumes = [{"name": "folder", "hostPath": {"path": str(folder)}}]
    spec = {"terminationGracePeriodSeconds": 5, "volumes": volumes, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first"}, "spec": spec}


def _wait_until(agent: AgentProcess, condition: Any) -> None:
    while not condition():
        if agent.process.poll() is not None or time.monotonic() - agent.started_at > PATIENCE:
            raise RuntimeError(f"the agent does not start: {agent.log.read_text()[-2000:]}")
        time.sleep(0.001)


def _answers(client: AgentClient) -> bool:
    try:
        client.get("/version")
    except CommandError:
        return False
    return True


def _kibibytes(file: Path, field: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f"expected {field} in {file}")


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
@click.option("--runs", type=click.IntRange(min=1), default=7, show_default=True, help="Repetitions of each timing.")
def main(json_file: Path | None, runs: int) -> None:
    """Measure how an agent starts."""
    imports = measure_imports(runs)
    agent, keeper = measure_idle_memory()
    first_pod = [measure_first_pod() for _ in range(runs)]

    rows = [[name, f"{1000 * seconds:.0f}"] for name, seconds in imports.items()]
    rows.append(["agent: first pod's process runs, median", f"{1000 * median(first_pod):.0f}"])
    rows.append(["agent: first pod's process runs, slowest", f"{1000 * max(first_pod):.0f}"])
    print_table(
        f"Milliseconds from a process's start, {runs} runs each, load {os.getloadavg()[0]:.1f}", ["", "ms"], rows
    )
    memory = [("agent, idle", agent), ("keeper, idle", keeper)]
    print_table(
        "Memory in MiB",
        ["", "resident", "proportional"],
        [[name, f"{one.resident:.1f}", f"{one.proportional:.1f}"] for name, one in memory],
    )
    met = report(
        [
            Result("resident memory of the idle agent with its keeper", "MiB", agent.resident + keeper.resident, 60),
            Result("start to the first pod's process (median)", "s", median(first_pod), 0.45),
        ],
        json_file,
    )
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
