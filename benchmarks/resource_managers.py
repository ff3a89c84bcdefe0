"""How long the decisions of the CPU, memory and topology managers take on a large machine.

    python -m benchmarks.resource_managers [--json FILE] [--rounds N] [--starts N]

CPUs are assigned on a machine of 8 sockets with 768 CPUs, of which random parts are free, with each way to choose them.
Hints of four resources are merged on 8 NUMA nodes: where all can agree, and where none is preferred, which takes
longest. Times are CPU time of this process, of the slowest of all rounds.

Then what the static policy adds to a pod's start on this machine: CPUs are given and written into a file, as an agent
does it. And whole starts on the embedded runtime, from the manifest to the container's first line, in pairs: one under
an agent with the policy and one under an agent without, the first of a pair by turns. They differ by more among each
other than by the policy, so what is judged is the median of the pairs' differences. A container that has a CPU for
itself may not run on the other one while the agent is on its own; one that shares may. Needs root, and two CPUs.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
import trio

from benchmarks.agent_process import PATIENCE, AgentProcess, running_agent
from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from trikubelet.allocation.cpus.assignment import take_packed
from trikubelet.allocation.cpus.distribution import take_distributed
from trikubelet.allocation.cpus.static_policy import StaticPolicy
from trikubelet.allocation.cpus.topology import CpuPlace, CpuTopology
from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.allocation.topology.hints import TopologyHint
from trikubelet.allocation.topology.policy import BEST_EFFORT, SINGLE_NUMA_NODE, TopologyPolicy
from trikubelet.api.pods import pod_from_dict
from trikubelet.formats.cpu_list import set_of
from trikubelet.linux.machine_topology import MachineTopology

if TYPE_CHECKING:
    from collections.abc import Callable


SOCKETS, CORES, THREADS, UNCORES = 8, 48, 2, 6
NODES = tuple(range(8))
RESOURCES = 4
ASSIGNMENT_AIM = 10.0
MERGE_AIM = 50.0
START_AIM = 1.0
"""Milliseconds."""
REQUESTS = {"a CPU of its own": "1", "shared CPUs": "500m"}
SETTLE = 0.1
"""Seconds after a pod's end: what it leaves to be written shall not hold up the next."""


def machine() -> CpuTopology:
    """8 sockets of one NUMA node with 48 cores of two threads, six uncore caches in each."""
    total = SOCKETS * CORES
    return CpuTopology(
        {
            core + thread * total: CpuPlace(core, core // CORES, core // CORES, core * UNCORES // CORES)
            for thread in range(THREADS)
            for core in range(total)
        }
    )


def assignment_times(topology: CpuTopology, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round, by the way to choose."""
    ways: dict[str, Callable[[int, int], int]] = {
        "packed": partial(take_packed, topology),
        "packed, by uncore cache": partial(take_packed, topology, align_uncore=True),
        "across cores": partial(take_packed, topology, spread=True),
        "across NUMA nodes": partial(take_distributed, topology),
        "across NUMA nodes, whole cores": partial(take_distributed, topology, group=THREADS),
    }
    times: dict[str, list[float]] = {}
    for name, choose in ways.items():
        choices = random.Random(1)
        choose(topology.cpus, 1)  # the topology's tables are made once
        for _ in range(rounds):
            part = choices.random()
            free = set_of(cpu for cpu in topology.places if choices.random() < part)
            count = choices.randint(0, free.bit_count())
            times.setdefault(name, []).append(_milliseconds(partial(choose, free, count)))
    return times


def merge_times(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round, by the policy and what hints there are."""
    sets = [set_of(nodes) for size in range(1, len(NODES) + 1) for nodes in combinations(NODES, size)]
    distances = {one: {other: 10 + abs(one - other) for other in NODES} for one in NODES}
    policies = {
        "best-effort": TopologyPolicy(BEST_EFFORT, NODES),
        "best-effort, closest": TopologyPolicy(BEST_EFFORT, NODES, distances),
        "single-numa-node": TopologyPolicy(SINGLE_NUMA_NODE, NODES),
    }
    kinds = {
        "agreed": [TopologyHint(nodes, nodes.bit_count() == 1) for nodes in sets],
        "none preferred": [TopologyHint(nodes) for nodes in sets],
    }
    return {
        f"{name}, {kind}": [
            _milliseconds(partial(policy.merge, [{f"resource-{number}": hints} for number in range(RESOURCES)]))
            for _ in range(rounds)
        ]
        for name, policy in policies.items()
        for kind, hints in kinds.items()
    }


async def added_times(folder: Path, starts: int) -> list[float]:
    """Milliseconds that each start of a pod with one CPU for itself waits for the static policy."""
    policy = StaticPolicy(CpuTopology.of(MachineTopology.read()), reserved=1)
    managers = ResourceManagers(
        ManagerSettings(cpus=policy), folder, needed=lambda _: False, sources_ready=lambda: True
    )
    times = []
    async with trio.open_nursery() as nursery:
        await nursery.start(managers.run)
        for number in range(starts + 1):
            amounts = {"cpu": "1", "memory": "32Mi"}
            container = {"name": "main", "image": "x", "resources": {"requests": amounts, "limits": amounts}}
            metadata = {"name": f"pod-{number}", "uid": f"pod-{number}"}
            pod = pod_from_dict({"metadata": metadata, "spec": {"containers": [container]}})
            await trio.sleep(SETTLE)
            began = time.perf_counter()
            managers.admit(pod, NothingToGive())
            await managers.affinity(pod, pod.spec.containers[0])
            times.append((time.perf_counter() - began) * 1000)
            managers.forget(pod.metadata.uid)
        nursery.cancel_scope.cancel()
    return times[1:]


def start_times(starts: int, cpu: str) -> dict[bool, list[float]]:
    """Milliseconds of each start of a pod that requests `cpu`, without the static policy and with it: the n-th of both
    are a pair."""
    times: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as running:
        agents = {
            policy: running.enter_context(
                running_agent(
                    Path(running.enter_context(TemporaryDirectory(prefix="tkb-"))),
                    flags=("--host-image", "--pod-network=host"),
                    **({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"} if policy else {}),
                )
            )
            for policy in times
        }
        for agent in agents.values():
            agent.wait_until_it_listens()
        for number in range(starts + 1):
            # Whoever comes second finds the machine warm.
            for policy, agent in sorted(agents.items(), reverse=bool(number % 2)):
                took = _start(agent, f"pod-{number}", cpu)
                if number:  # the first one is the slowest
                    times[policy].append(took)
    return times


def paired(times: dict[bool, list[float]]) -> float:
    """The median of what each start with the policy took longer than its pair without."""
    return statistics.median(static - without for without, static in zip(times[False], times[True], strict=True))


def _start(agent: AgentProcess, name: str, cpu: str) -> float:
    """Start a pod and end it. Milliseconds that the start took."""
    sign, manifest = agent.folder / f"{name}.sign", agent.manifests / f"{name}.json"
    amounts = {"cpu": cpu, "memory": "32Mi"}
    container = {
        "name": "main",
        "image": "localhost/host",
        "command": ["sh", "-c", f"echo > /sign/{sign.name}; trap 'exit 0' TERM; while :; do sleep 0.1; done"],
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [{"name": "sign", "mountPath": "/sign"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "sign", "hostPath": {"path": str(agent.folder)}}],
        "terminationGracePeriodSeconds": 1,
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    unfinished = agent.folder / "unfinished"
    unfinished.write_text(json.dumps(pod))
    began = time.monotonic()
    unfinished.rename(manifest)
    _until(sign.exists)
    took = (time.monotonic() - began) * 1000
    manifest.unlink()
    _until(lambda: not any((agent.root / "pods").iterdir()))
    time.sleep(SETTLE)
    return took


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the agent does not start or end a pod: look at its log")
        time.sleep(0.0005)


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


@click.command(help=__doc__)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims there.")
@picture_option
@click.option("--rounds", default=300, show_default=True, help="Assignments of each way; a tenth as many merges.")
@click.option("--starts", default=30, show_default=True, help="Pods under each policy; 0 for none.")
def main(json_file: Path | None, rounds: int, starts: int) -> None:
    assignments, merges = assignment_times(machine(), rounds), merge_times(max(rounds // 10, 1))
    rows = [
        [name, f"{sorted(times)[len(times) // 2]:.2f}", f"{max(times):.2f}"]
        for name, times in {**assignments, **merges}.items()
    ]
    print_table("Decisions, ms", ["", "median", "slowest"], rows)
    results = [
        Result("assignment of CPUs, 8 sockets and 768 CPUs", "ms", max(map(max, assignments.values())), ASSIGNMENT_AIM),
        Result("merge of four resources' hints, 8 NUMA nodes", "ms", max(map(max, merges.values())), MERGE_AIM),
    ]
    if starts:
        with TemporaryDirectory(prefix="tkb-") as folder:
            added = trio.run(added_times, Path(folder), starts)
        results.append(
            Result("static policy: what a pod's start waits for it", "ms", statistics.median(added), START_AIM)
        )
        rows = []
        for what, cpu in REQUESTS.items():
            times = start_times(starts, cpu)
            results.append(
                Result(f"static policy: whole starts, {what}, median of pairs", "ms", paired(times), START_AIM)
            )
            rows += [
                [what, policy, f"{statistics.median(times[is_static]):.1f}"]
                for is_static, policy in ((False, "none"), (True, "static"))
            ]
        print_table("Start of a pod, ms", ["with", "policy", "median"], rows)
    sys.exit(not report(results, json_file))


if __name__ == "__main__":
    main()
