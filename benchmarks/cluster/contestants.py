"""Who takes part: a node of a cluster, told of its pods by the API server, and bare clients of a runtime.

A bare client makes the calls that a pod needs with the configurations that an agent would have given them:
RunPodSandbox, CreateContainer, StartContainer; StopContainer, StopPodSandbox. A node's pod is ready when a watch says
so, and gone when it says so; both belong to this process, as the bare calls do.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from benchmarks.agent_process import NODE_NAME, PATIENCE
from benchmarks.cluster.steps import FLOOR, OURS, Batch, PodTimes, Rest, Step, steps_shown
from benchmarks.detect.idle import memory_mib
from benchmarks.termination.floor import BareCalls, Recorded
from benchmarks.termination.pods import STARTED, Behaviour, find_processes
from benchmarks.termination.watch import command_lines, until_dead, wait_for_signs
from tests.apiserver.cluster import TestCluster
from trikubelet.api import pod_from_dict
from trikubelet.kube_client.types import PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.termination.pods import PodPlan
    from tests.apiserver.cluster import Sighting
    from trikubelet.api import Pod

BEHAVIOUR: Final = Behaviour.EXITS_ON_TERM
LOOK_EVERY: Final = 0.02
"""Seconds; when something was seen is noted as it comes."""


class Contestant(Protocol):
    """Somebody who starts and ends pods."""

    @property
    def name(self) -> str: ...

    async def run(self, plans: Sequence[PodPlan], settle: float) -> Batch:
        """Start these pods at once and end them at once, `settle` seconds after all of them run. Nothing is left."""


@attrs.define
class ClusterNode:
    """A node, whatever its agent."""

    cluster: TestCluster
    image: str
    signs: Path
    is_empty: Callable[[], Awaitable[bool]]
    """Whether its runtime holds nothing any more, or nothing that runs."""
    pid: int
    """Of its agent."""
    name: str = OURS
    node: str = NODE_NAME

    async def run(self, plans: Sequence[PodPlan], settle: float) -> Batch:
        pods = {plan.name: self._pod(plan) for plan in plans}
        times = {plan.name: PodTimes(plan.name) for plan in plans}
        cpu = _cpu_seconds(self.pid)

        async def create(pod: Pod) -> None:
            times[pod.metadata.name].created = trio.current_time()
            await self.cluster.client.create(PODS, pod)

        async def delete(name: str) -> None:
            times[name].deleted = trio.current_time()
            await self.cluster.delete_pod(name)

        async with self.cluster.watching() as seen:
            async with trio.open_nursery() as nursery:
                for pod in pods.values():
                    nursery.start_soon(create, pod)
            await _until(Step.READY, times, seen)
            await _until_they_run(self.signs, plans)
            rest = await self.rest(settle)
            cpu_of_start = _cpu_seconds(self.pid) - cpu
            async with trio.open_nursery() as nursery:
                await _note_deaths(nursery, plans, times)
                for name in pods:
                    nursery.start_soon(delete, name)
            await _until(Step.GONE, times, seen)
        with trio.fail_after(PATIENCE):
            while not await self.is_empty():  # noqa: ASYNC110 - not timed
                await trio.sleep(LOOK_EVERY)
        cpu = _cpu_seconds(self.pid) - cpu
        return Batch(list(times.values()), cpu, cpu - cpu_of_start, rest)

    async def rest(self, seconds: float) -> Rest:
        """What the agent takes in so many seconds."""
        cpu, began = _cpu_seconds(self.pid), trio.current_time()
        await trio.sleep(seconds)
        share = (_cpu_seconds(self.pid) - cpu) / max(trio.current_time() - began, 1e-3)
        rollup = await trio.Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return Rest(100 * share, memory_mib(rollup)[0])

    def _pod(self, plan: PodPlan) -> Pod:
        """Bound to the node."""
        document: dict[str, Any] = plan.manifest(self.image, str(self.signs))
        document["metadata"] = {"name": plan.name, "namespace": self.cluster.namespace}
        document["spec"]["nodeName"] = self.node
        return pod_from_dict(document)


async def _until(step: Step, times: dict[str, PodTimes], seen: list[Sighting]) -> None:
    """Take in what was seen, until all pods have come so far."""
    with trio.fail_after(PATIENCE):
        while True:
            for sighting in seen:
                for shown in steps_shown(sighting.type, sighting.pod):
                    times[sighting.pod.metadata.name].note(shown, sighting.at)
            seen.clear()
            if all(step in one.moments for one in times.values()):
                return
            await trio.sleep(LOOK_EVERY)


async def _until_they_run(signs: Path, plans: Sequence[PodPlan]) -> None:
    """Until their processes would answer a signal."""
    await wait_for_signs(signs, frozenset[str]().union(*(plan.signs(STARTED) for plan in plans)), PATIENCE)


async def _note_deaths(nursery: trio.Nursery, plans: Sequence[PodPlan], times: dict[str, PodTimes]) -> None:
    """Begin to watch the processes of pods that run. The nursery closes when they are dead."""
    lines = await trio.to_thread.run_sync(command_lines)

    async def note(plan: PodPlan, *, task_status: trio.TaskStatus[None]) -> None:
        pids = find_processes(lines, plan)
        if pids.keys() != set(plan.behaviour.containers):
            raise RuntimeError(f"expected a process of each container of {plan.name}, found {pids}")
        await until_dead(pids.values(), task_status=task_status)
        times[plan.name].note(Step.DEAD, trio.current_time())

    for plan in plans:
        await nursery.start(note, plan)


def _cpu_seconds(pid: int) -> float:
    """Of all threads of a process, by the clock that the kernel keeps for it."""
    return time.clock_gettime((~pid << 3) | 2)


@attrs.define
class BareClient:
    """Works on so many pods at a time."""

    calls: BareCalls
    at_once: int
    recorded: Recorded
    folder: Path
    """For the logs and the signs of its pods."""

    @property
    def name(self) -> str:
        return f"{FLOOR}, {self.at_once} at once"

    @property
    def signs(self) -> Path:
        return self.folder / "sign"

    async def run(self, plans: Sequence[PodPlan], settle: float) -> Batch:
        configurations = [(plan, self.recorded.of(plan, self.folder / "logs", self.signs)) for plan in plans]
        times = {plan.name: PodTimes(plan.name) for plan in plans}
        limiter = trio.CapacityLimiter(self.at_once)

        async def start(plan: PodPlan, configuration: Recorded) -> None:
            async with limiter:
                await self.calls.start(plan, configuration)
            times[plan.name].note(Step.READY, trio.current_time())

        async def end(plan: PodPlan) -> None:
            async with limiter:
                await self.calls.end(plan)
            times[plan.name].note(Step.GONE, trio.current_time())

        asked = trio.current_time()
        async with trio.open_nursery() as nursery:
            for plan, configuration in configurations:
                nursery.start_soon(start, plan, configuration)
        await _until_they_run(self.signs, plans)
        await trio.sleep(settle)
        async with trio.open_nursery() as nursery:
            await _note_deaths(nursery, plans, times)
            asked_to_end = trio.current_time()
            for plan in plans:
                nursery.start_soon(end, plan)
        for plan in plans:
            times[plan.name].created, times[plan.name].deleted = asked, asked_to_end
            await self.calls.remove(plan)
        return Batch(list(times.values()))
