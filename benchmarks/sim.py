"""How much the agent itself costs, on the simulated node: no disk, no kernel, no waiting.

python -m benchmarks.sim                      # transitions a second, growth from 100 to 10,000 pods, a quiet resync
python -m benchmarks.sim --hours 24 --faults  # and a day in the life of 100 pods
python -m benchmarks.sim --pods 100 --pods 1000
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import trio
import trio.testing

from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from trikubelet.pods.types import SyncPodType, UpdatePod
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.kinds import KINDS, install
from trikubelet.sim.life import LifeOptions, live
from trikubelet.sim.node import run_deterministically, simulated_node
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import Pod
    from trikubelet.sim.node import SimulatedNode

SETTLING_SECONDS = 130.0
"""Every pod has found nothing to do at least once."""
QUIET_SECONDS = 120.0
TRANSITIONS = 5
"""Of a pod that starts and is removed: from waiting over syncing, asked to end, terminating, terminated to finished."""


@attrs.frozen
class Cost:
    """CPU seconds."""

    pods: int
    start: float
    """From the manifests to the last running container, for all pods."""
    quiet: float
    """Of a time without any change, for all pods."""
    resync: float
    """Of one sync whose inputs are those of the last one, from the request to the worker's next sleep."""
    end: float
    """From the removal of all manifests until nothing is left."""

    @property
    def life_of_a_pod(self) -> float:
        return (self.start + self.end) / self.pods

    @property
    def transitions_per_second(self) -> float:
        return TRANSITIONS * self.pods / (self.start + self.end)


def services(count: int) -> list[Pod]:
    """Pods that run until they are asked to end."""
    service = next(kind for kind in KINDS if kind.name == "service")
    choices = random.Random(1)
    return [service.pod(f"service-{number}", f"uid-{number}", choices) for number in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    """Look once a simulated second."""
    while not condition():  # noqa: ASYNC110 - simulated seconds cost nothing
        await trio.sleep(1)


async def _resync(node: SimulatedNode) -> float:
    """CPU seconds of one sync, the best of five rounds over all pods."""
    best = math.inf
    pods = node.agent.pods.pods()
    for _ in range(5):
        await trio.testing.wait_all_tasks_blocked()
        began = time.process_time()
        for pod in pods:
            request = UpdatePod(update_type=SyncPodType.SYNC, start_time=trio.current_time(), pod=pod)
            node.agent.workers.update_pod(request)
        await trio.testing.wait_all_tasks_blocked()
        best = min(best, (time.process_time() - began) / len(pods))
    return best


async def _measure(pods: int) -> Cost:
    sim = SimulatedRuntime(seed=1, log_limit=10)
    install(sim)
    async with simulated_node(sim) as node:
        began = time.process_time()
        node.source().put(*services(pods))
        await until(lambda: len(sim.running_containers()) == pods)
        started = time.process_time()
        await trio.sleep(SETTLING_SECONDS)
        resync = await _resync(node)
        quiet_from = time.process_time()
        await trio.sleep(QUIET_SECONDS)
        quiet_until = time.process_time()
        node.source().remove(*node.source().pods)
        await until(lambda: not node.agent.workers.states.phases() and not sim.machine.sandboxes)
        ended = time.process_time()
    return Cost(pods, started - began, quiet_until - quiet_from, resync, ended - quiet_until)


def _cost(pods: int) -> Cost:
    gc.collect()
    return run_deterministically(lambda: _measure(pods), seed=1)


@click.command()
@click.option("--pods", "sizes", type=int, multiple=True, default=(100, 1000, 10_000), show_default=True)
@click.option("--hours", default=0.0, help="Also live so many hours with 100 pods.")
@click.option("--faults", is_flag=True, help="That life has faults.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the aims here.")
@picture_option
def main(sizes: tuple[int, ...], hours: float, faults: bool, json_file: Path | None) -> None:
    """Measure what pods cost."""
    silence()
    costs = [_cost(pods) for pods in sizes]
    print_table(
        "CPU time",
        ["pods", "start of a pod, ms", "end of a pod, ms", "transitions/s", "resync, µs", "quiet hour, s"],
        [
            [
                str(cost.pods),
                f"{cost.start / cost.pods * 1e3:.1f}",
                f"{cost.end / cost.pods * 1e3:.1f}",
                f"{cost.transitions_per_second:.0f}",
                f"{cost.resync * 1e6:.0f}",
                f"{cost.quiet / QUIET_SECONDS * 3600:.1f}",
            ]
            for cost in costs
        ],
    )
    growth = costs[-1].life_of_a_pod / costs[0].life_of_a_pod
    results = [
        Result("resync whose inputs have not changed", "µs", costs[0].resync * 1e6, 100),
        Result(f"cost per pod, {costs[-1].pods} pods over {costs[0].pods}", "times", growth, 1.2),
    ]
    if hours:
        summary = live(LifeOptions(pods=100, hours=hours, seed=7, faults=faults))
        results.append(Result(f"{hours:g} h of 100 pods", "s", summary.real_seconds, 120 * hours / 24))
        results.append(Result("violations", "", len(summary.violations), 0))
    sys.exit(0 if report(results, json_file) else 1)


if __name__ == "__main__":
    main()
