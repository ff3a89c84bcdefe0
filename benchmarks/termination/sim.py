"""The same rounds on the simulated node: the whole agent in this process, a runtime that takes as long as it is told.

Time is the mock clock's, so that what is reported is the agent's waiting, and nothing of its computing. The list of the
simulated runtime knows of an end at once: there, a container is gone when its process is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from benchmarks.termination.floor import BareCalls, Recorded
from benchmarks.termination.phases import FLOOR, OURS, Batch, Measurements, Phase, PodTimes
from benchmarks.termination.pods import HOOK_SECONDS, LEAST_GRACE, Behaviour, PodPlan
from trikubelet.api import pod_from_dict, set_pod_defaults
from trikubelet.container.labels import POD_UID
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import run_deterministically, simulated_node
from trikubelet.sim.programs import ExecOutcome, Life, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.termination.rounds import Settings
    from trikubelet.api import Pod
    from trikubelet.broadcast import Subscription
    from trikubelet.sim.machine import Change

IMAGE: Final = "test:1"
LATENCIES: Final = {
    "*": 0.002,
    "RunPodSandbox": 0.18,
    "CreateContainer": 0.03,
    "StartContainer": 0.05,
    "StopContainer": 0.025,
    "StopPodSandbox": 0.075,
}
"""Seconds of a call before its effect: about what containerd takes on a small machine."""
EXIT_SECONDS: Final = 0.03
"""From SIGTERM to the end of a process that exits on it."""
STOPPED: Final = v1.ContainerEventType.CONTAINER_STOPPED_EVENT


def simulate(settings: Settings, latencies: Mapping[str, float], progress: Callable[[str], None]) -> Measurements:
    """`progress` is told of what begins: the batches of the floor and of the agent in turns."""
    measured = Measurements()
    for behaviour in settings.behaviours:
        for number in range(settings.rounds):
            plans = settings.plans(behaviour, f"{behaviour}-{number}")
            for name, scenario in ((FLOOR, _floor), (OURS, _ours)):
                progress(f"{name}: {behaviour}, round {number + 1} of {settings.rounds}")
                script = partial(scenario, _runtime(behaviour, latencies, seed=number), plans, settings.settle)
                times = run_deterministically(script, seed=number)
                measured.add(behaviour, name, Batch(times))
    return measured


def _runtime(behaviour: Behaviour, latencies: Mapping[str, float], seed: int) -> SimulatedRuntime:
    sim = SimulatedRuntime(seed=seed)
    sim.images.add(IMAGE)
    sim.delays.update({**LATENCIES, **latencies})
    life = Life(sigterm=EXIT_SECONDS if behaviour.exits else None, sigterm_exit_code=0)
    sim.program(Program((life,), exec=lambda command: ExecOutcome(seconds=HOOK_SECONDS)))
    return sim


@attrs.define
class _Sightings:
    """What the simulated machine tells of pods."""

    sim: SimulatedRuntime
    plans: Sequence[PodPlan]
    expected: frozenset[Phase]
    moments: dict[str, dict[Phase, float]] = attrs.field(factory=dict)
    """By UID."""
    running: dict[str, set[str]] = attrs.field(factory=dict)
    """Names of containers that have not ended, by UID."""

    def __attrs_post_init__(self) -> None:
        for plan in self.plans:
            self.moments[plan.uid] = {}
            self.running[plan.uid] = set(plan.behaviour.containers)
        self.sim.machine.observers.append(self._note)

    def _note(self, change: Change) -> None:
        if change.kind is not STOPPED:
            return
        uid = change.sandbox.config.metadata.uid
        moments = self.moments[uid]
        if change.container is None:
            moments.setdefault(Phase.SANDBOX_GONE, change.time)
            return
        signals = [time for time, _ in change.container.signals]
        moments[Phase.FIRST_SIGNAL] = min(*signals, moments.get(Phase.FIRST_SIGNAL, change.time), change.time)
        self.running[uid].discard(change.container.name)
        if not self.running[uid]:
            moments[Phase.PROCESS_DEAD] = moments[Phase.CONTAINERS_GONE] = change.time

    async def follow(self, finished: Subscription[str]) -> None:
        with finished:
            async for uid in finished:
                self.moments[uid].setdefault(Phase.WORKER_FINISHED, trio.current_time())

    def signalled(self, uid: str) -> bool:
        containers = self.sim.machine.containers_by_pod.get(uid, {}).values()
        return any(container.signals for container in containers)

    async def complete(self) -> None:
        while not all(self.expected <= moments.keys() for moments in self.moments.values()):  # noqa: ASYNC110
            await trio.sleep(0.1)

    def times(self, asked: Mapping[str, float]) -> list[PodTimes]:
        return [PodTimes(plan.name, asked[plan.uid], self.moments[plan.uid]) for plan in self.plans]


async def _running(sim: SimulatedRuntime, plans: Sequence[PodPlan]) -> None:
    containers = sum(len(plan.behaviour.containers) for plan in plans)
    while len(sim.running_containers()) < containers:  # noqa: ASYNC110 - simulated seconds cost nothing
        await trio.sleep(0.1)


async def _ours(sim: SimulatedRuntime, plans: Sequence[PodPlan], settle: float) -> list[PodTimes]:
    seen = _Sightings(sim, plans, frozenset(Phase))
    async with simulated_node(sim) as node, trio.open_nursery() as nursery:
        nursery.start_soon(seen.follow, node.agent.workers.finished.subscribe())
        source = node.source()
        source.put(*(_pod(plan) for plan in plans))
        await _running(sim, plans)
        await trio.sleep(settle)
        if plans[0].behaviour is Behaviour.GRACE_SHORTENED:
            source.put(*(_pod(plan, deletion_grace=plan.grace) for plan in plans))
            while not all(seen.signalled(plan.uid) for plan in plans):  # noqa: ASYNC110 - not timed
                await trio.sleep(0.01)
            asked = trio.current_time()
            source.put(*(_pod(plan, deletion_grace=LEAST_GRACE) for plan in plans))
        else:
            asked = trio.current_time()
            source.remove(*(plan.uid for plan in plans))
        await seen.complete()
        nursery.cancel_scope.cancel()
    return seen.times({plan.uid: asked for plan in plans})


async def _floor(sim: SimulatedRuntime, plans: Sequence[PodPlan], settle: float) -> list[PodTimes]:
    seen = _Sightings(sim, plans, frozenset(Phase) - {Phase.WORKER_FINISHED})
    async with sim.connect() as channel:
        calls = BareCalls(RuntimeClient(channel))
        async with trio.open_nursery() as nursery:
            for plan in plans:
                nursery.start_soon(calls.start, plan, _configuration(plan))
        await trio.sleep(settle)
        asked = {plan.uid: trio.current_time() for plan in plans}
        async with trio.open_nursery() as nursery:
            for plan in plans:
                if plan.behaviour is Behaviour.GRACE_SHORTENED:
                    hurrying = partial(_set_now, asked, plan.uid)
                    nursery.start_soon(calls.hurry, plan, partial(seen.signalled, plan.uid), hurrying)
                else:
                    nursery.start_soon(calls.end, plan)
        await seen.complete()
    return seen.times(asked)


def _set_now(times: dict[str, float], key: str) -> None:
    times[key] = trio.current_time()


def _pod(plan: PodPlan, deletion_grace: int | None = None) -> Pod:
    """As the file source sends it."""
    manifest: dict[str, Any] = plan.manifest(IMAGE, "/sign", deletion_grace=deletion_grace)
    manifest["metadata"] |= {"namespace": "default", "annotations": {"kubernetes.io/config.source": "file"}}
    return set_pod_defaults(pod_from_dict({**manifest, "status": {"phase": "Pending"}}))


def _configuration(plan: PodPlan) -> Recorded:
    """As much of a pod as the simulated runtime looks at."""
    labels = {POD_UID: plan.uid}
    metadata = v1.PodSandboxMetadata(name=plan.name, namespace="default", uid=plan.uid)
    order = (*plan.behaviour.sidecars, *(set(plan.behaviour.containers) - set(plan.behaviour.sidecars)))
    containers = tuple(
        v1.ContainerConfig(metadata=v1.ContainerMetadata(name=name), image=v1.ImageSpec(image=IMAGE), labels=labels)
        for name in order
    )
    return Recorded(v1.PodSandboxConfig(metadata=metadata, labels=labels), containers)
