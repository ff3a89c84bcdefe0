"""A programmed life: many pods come, change, crash, are evicted and go, for as long as one likes, on a simulated node.

Each of a number of places has a task that runs one pod after the other in it. What happens to a pod is drawn from the
place's own random source, so that one place's story does not depend on the others. Faults, if asked for, come in storms
(`weather`); `watch` checks all the while what always holds, and after each storm that everything gets well in time. At
the end all pods are removed, and nothing may be left.

The same options give the same life: the same summary, down to the digest of every change of every container.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import random
import time
from typing import TYPE_CHECKING, Final

import attrs
import trio
import trio.testing

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.rpc.cri import v1
from trikubelet.sim.kinds import KINDS, VERSIONS, Kind, install, with_image, with_uid
from trikubelet.sim.machine import RUNNING
from trikubelet.sim.node import ScriptedSource, run_deterministically, simulated_node
from trikubelet.sim.runtime import SimulatedRuntime
from trikubelet.sim.watch import Violation, Wanted, Watch
from trikubelet.sim.weather import Weather

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.agent.agent import Agent
    from trikubelet.api import Pod, PodStatus
    from trikubelet.sim.machine import Change
    from trikubelet.sim.picture import PhasePicture

SWEEP_PERIOD: Final = 10.0
FINAL_QUIET: Final = 180.0
"""Seconds at the end in which the last pods end, and what they left is removed."""
LOOK_PERIOD: Final = 0.5
DELAY: Final = (0.001, 0.02)
"""Seconds that a simulated call takes."""


@frozen(kw_only=True)
class LifeOptions:
    """What kind of life."""

    pods: int = 100
    """Pods at the same time."""
    hours: float = 24.0
    seed: int = 0
    faults: bool = False
    mean_pod_hours: float = 2.0
    """How long a pod stays on the node."""


@frozen(kw_only=True)
class LifeSummary:
    """What came of it. Equal for equal options, but for `real_seconds`."""

    options: LifeOptions
    pods_run: int
    containers_started: int
    restarts: int
    endings: dict[str, int]
    """How pods were asked to end, and how often."""
    transitions: int
    """Of pods from one phase into the next."""
    calls: int
    """That the runtime got."""
    faults: dict[str, int]
    checks: dict[str, int]
    """How often each invariant was checked."""
    violations: tuple[Violation, ...]
    slowest_end: float
    """Seconds beyond its grace period, while nothing failed."""
    simulated_seconds: float
    digest: str
    """Of every change of every container, with its time."""
    real_seconds: float = attrs.field(eq=False)


class Digest:
    """Of everything that happens to containers, and the counts of their starts."""

    def __init__(self) -> None:
        self.starts = 0
        self.restarts = 0
        self._hash = hashlib.sha256()

    def record(self, change: Change) -> None:
        container = change.container
        name, exit_code = "", 0
        if container is not None:
            name, exit_code = f"{container.name}/{container.config.metadata.attempt}", container.exit_code
            if change.kind is v1.ContainerEventType.CONTAINER_STARTED_EVENT:
                self.starts += 1
                self.restarts += container.config.metadata.attempt > 0
        uid = change.sandbox.config.metadata.uid
        self._hash.update(f"{change.time:.9f} {change.kind.value} {uid} {name} {exit_code}\n".encode())

    def text(self) -> str:
        return self._hash.hexdigest()[:16]


class ProgrammedLife:
    """One life. `run` it once, within `run_deterministically`."""

    def __init__(self, options: LifeOptions, progress: Callable[[float], None] | None = None) -> None:
        """`progress` is called with the simulated seconds that have passed."""
        # What was there before holds nothing of this life: the watch does not look for leaks in it, time and again.
        gc.collect()
        gc.freeze()
        self.options = options
        self.sim = SimulatedRuntime(seed=options.seed, log_limit=1000)
        self.sim.delays["*"] = DELAY
        install(self.sim)
        self.watch = Watch(self.sim.machine)
        self.digest = Digest()
        self.sim.machine.observers.append(self.digest.record)
        self.sources = {name: ScriptedSource(name) for name in ("file", "api")}
        self.pods_run = 0
        self.endings: dict[str, int] = {}
        self._progress = progress
        self._agent: Agent | None = None
        self._agent_started = trio.Event()
        self._restarts: Broadcast[None] = Broadcast()
        self._agents = 0
        self.weather = Weather(self.sim, self.watch, self.random("weather"), self._restart_agent)

    def random(self, name: str) -> random.Random:
        """A random source of its own for each purpose, fixed by the seed."""
        return random.Random(f"{self.options.seed}/{name}")

    @property
    def agent(self) -> Agent:
        assert self._agent is not None, "the life has not begun"
        return self._agent

    async def run(self) -> LifeSummary:
        """Live, end, and tell."""
        began, real_began = trio.current_time(), time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_agents)
            await self._agent_started.wait()
            nursery.start_soon(self._sweep, began)
            await trio.sleep(1)
            await self.watch.learn_idle()
            async with trio.open_nursery() as places:
                for number in range(self.options.pods):
                    places.start_soon(Place(self, number).run)
                if self.options.faults:
                    places.start_soon(self.weather.run)
                await trio.sleep(3600 * self.options.hours)
                places.cancel_scope.cancel()
            await self._end()
            nursery.cancel_scope.cancel()
        return self._summary(trio.current_time() - began, time.perf_counter() - real_began)

    async def _end(self) -> None:
        self.weather.clear()
        self.watch.wanted.clear()
        for source in self.sources.values():
            source.remove(*source.pods)
        await trio.sleep(FINAL_QUIET)
        self.watch.sweep()
        self.watch.check_nothing_left()
        await self.watch.check_leaks()

    async def _run_agents(self) -> None:
        """One agent after the other; between them no time passes."""
        while True:
            self._agents += 1
            node = simulated_node(
                self.sim,
                sources=self.sources,
                rng=self.random(f"agent/{self._agents}"),
                make_registry=self.watch.new_registry,
                prepare=self._prepare,
            )
            with self._restarts.subscribe() as restarts:
                async with node:
                    self._agent_started.set()
                    await restarts.receive()

    def _prepare(self, agent: Agent) -> None:
        self._agent = agent
        self.watch.attach(agent)

    def _restart_agent(self) -> None:
        self._restarts.send(None)

    async def _sweep(self, began: float) -> None:
        while True:
            await trio.sleep(SWEEP_PERIOD)
            if not self.watch.tasks_match():
                await trio.testing.wait_all_tasks_blocked()
            self.watch.sweep()
            if self._progress is not None:
                self._progress(trio.current_time() - began)

    def _summary(self, simulated: float, real: float) -> LifeSummary:
        weather = self.weather
        faults = {
            **{kind.value: count for kind, count in self.sim.faults.met.items()},
            "lost events": self.sim.events.dropped,
            "runtime restarts": weather.runtime_restarts,
            "agent restarts": weather.agent_restarts,
            "reboots": weather.reboots,
        }
        return LifeSummary(
            options=self.options,
            pods_run=self.pods_run,
            containers_started=self.digest.starts,
            restarts=self.digest.restarts,
            endings=dict(sorted(self.endings.items())),
            transitions=self.watch.transitions,
            calls=self.sim.calls.total(),
            faults=dict(sorted(faults.items())) if self.options.faults else {},
            checks=dict(sorted(self.watch.checks.items())),
            violations=tuple(self.watch.violations),
            slowest_end=round(self.watch.slowest_end, 3),
            simulated_seconds=simulated,
            digest=self.digest.text(),
            real_seconds=real,
        )


class Place:
    """Runs one pod after the other."""

    def __init__(self, life: ProgrammedLife, number: int) -> None:
        self._life = life
        self._number = number
        self._random = life.random(f"place/{number}")
        self._count = 0

    async def run(self) -> None:
        await trio.sleep(self._random.uniform(0, 60))
        while True:
            kind = self._random.choices(KINDS, [kind.share for kind in KINDS])[0]
            source = self._life.sources[self._random.choice(("file", "api"))]
            await self._live(kind, source, kind.pod(f"{kind.name}-{self._number}", self._next_uid(), self._random))
            await trio.sleep(self._random.expovariate(1 / 30))

    def _next_uid(self) -> str:
        self._count += 1
        self._life.pods_run += 1
        return f"{self._number}-{self._count}"

    async def _live(self, kind: Kind, source: ScriptedSource, pod: Pod) -> None:
        """One pod, and those that take its place without a pause."""
        until = trio.current_time() + self._random.expovariate(1 / (3600 * self._life.options.mean_pod_hours))
        self._put(kind, source, pod)
        while True:
            pause = self._random.expovariate(1 / 1800)
            if trio.current_time() + pause >= until:
                break
            await trio.sleep(pause)
            pod = await self._happen(kind, source, pod)
        await trio.sleep_until(max(until, trio.current_time()))
        ending = self._random.choice((self._remove, self._remove, self._delete, self._evict))
        self._life.watch.wanted.pop(pod.metadata.uid, None)
        self._record(ending.__name__.removeprefix("_"))
        await ending(source, pod)
        await self._until(lambda: self._is_gone(pod))

    def _put(self, kind: Kind, source: ScriptedSource, pod: Pod) -> None:
        source.put(pod)
        if kind.keeps_running:
            self._life.watch.wanted[pod.metadata.uid] = Wanted(trio.current_time(), pod.spec.containers[0].image)

    # What happens to a pod

    async def _happen(self, kind: Kind, source: ScriptedSource, pod: Pod) -> Pod:
        """Something happens; returns the pod as it is wanted afterwards."""
        happenings = (self._update, self._recreate, self._return, self._break, self._lose_sandbox)
        return await self._random.choice(happenings)(kind, source, pod)

    async def _update(self, kind: Kind, source: ScriptedSource, pod: Pod) -> Pod:
        """It gets another image."""
        changed = with_image(pod, kind.image(self._random.choice(VERSIONS)))
        self._put(kind, source, changed)
        await trio.lowlevel.checkpoint()
        return changed

    async def _recreate(self, kind: Kind, source: ScriptedSource, pod: Pod) -> Pod:
        """It goes, and at once another one of its name comes: what an edited manifest does."""
        self._record("replaced")
        changed = with_uid(pod, self._next_uid())
        self._life.watch.wanted.pop(pod.metadata.uid, None)
        source.remove(pod.metadata.uid)
        self._put(kind, source, changed)
        await self._until(lambda: self._is_gone(pod))
        return changed

    async def _return(self, kind: Kind, source: ScriptedSource, pod: Pod) -> Pod:
        """It goes, and comes again with the same UID, perhaps before it has ended."""
        self._record("removed and put back")
        self._life.watch.wanted.pop(pod.metadata.uid, None)
        source.remove(pod.metadata.uid)
        await trio.sleep(self._random.choice((0.0, 0.01, 0.5, 3.0, 60.0)))
        self._put(kind, source, pod)
        return pod

    async def _break(self, kind: Kind, source: ScriptedSource, pod: Pod) -> Pod:
        """One of its containers is killed by the kernel."""
        for container in self._life.watch.running(pod.metadata.uid)[:1]:
            if container.state is RUNNING:
                self._life.sim.end_container(container, 137, "OOMKilled")
        await trio.lowlevel.checkpoint()
        return pod

    async def _lose_sandbox(self, kind: Kind, source: ScriptedSource, pod: Pod) -> Pod:
        """Its sandbox dies, its containers run on."""
        for container in self._life.watch.running(pod.metadata.uid)[:1]:
            self._life.sim.fail_sandbox(container.sandbox)
        await trio.lowlevel.checkpoint()
        return pod

    # How a pod ends

    async def _remove(self, source: ScriptedSource, pod: Pod) -> None:
        """Its source does not name it any more."""
        source.remove(pod.metadata.uid)
        await trio.lowlevel.checkpoint()

    async def _delete(self, source: ScriptedSource, pod: Pod) -> None:
        """It is marked for deletion, perhaps again with less grace, and its object goes when the agent is done."""
        uid, grace = pod.metadata.uid, pod.spec.termination_grace_period_seconds or 0
        source.put(self._marked(pod, grace))
        if grace > 2 and self._random.random() < 0.5:
            await trio.sleep(self._random.uniform(0, grace / 2))
            source.put(self._marked(pod, self._random.randrange(grace)))
        await self._until(lambda: self._life.agent.workers.states.should_pod_be_finished(uid))
        source.remove(uid)

    def _marked(self, pod: Pod, grace: int) -> Pod:
        metadata = attrs.evolve(
            pod.metadata, deletion_timestamp=self._life.agent.clock.now(), deletion_grace_period_seconds=grace
        )
        return attrs.evolve(pod, metadata=metadata)

    async def _evict(self, source: ScriptedSource, pod: Pod) -> None:
        """The agent itself ends it; then its object goes."""
        grace = self._random.choice((None, 0, 1))
        # Killing may take longer than a killer waits: then it is still being ended, which the watch sees to.
        with contextlib.suppress(KillTimeoutError):
            await self._life.agent.workers.kill_pod(
                pod, evict=True, grace_period_override=grace, pod_status_fn=_evicted
            )
        await trio.sleep(self._random.uniform(0, 5))
        source.remove(pod.metadata.uid)

    # Waiting

    def _is_gone(self, pod: Pod) -> bool:
        uid = pod.metadata.uid
        return self._life.agent.workers.states.phase(uid) is None and not self._life.watch.running(uid)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            await trio.sleep(LOOK_PERIOD)
            if condition():
                return

    def _record(self, ending: str) -> None:
        self._life.endings[ending] = self._life.endings.get(ending, 0) + 1


def _evicted(status: PodStatus) -> PodStatus:
    return attrs.evolve(status, phase="Failed", reason="Evicted", message="simulated: the node was low on memory")


def live(
    options: LifeOptions, progress: Callable[[float], None] | None = None, picture: PhasePicture | None = None
) -> LifeSummary:
    """Run a life from beginning to end; `picture` is told of its phases."""

    async def script() -> LifeSummary:
        life = ProgrammedLife(options, progress)
        if picture is not None:
            life.watch.on_phase.append(picture.moved)
        return await life.run()

    return run_deterministically(script, seed=options.seed)
