"""A probe manager with the real status manager beside it, and a prober that answers as it is told.

Each pod has a scope like that of its life, and each container instance one in it, by the statuses that are reported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, cast

import attrs
import trio

from trikubelet.api import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Probe,
)
from trikubelet.clock import TrioClock
from trikubelet.container import model
from trikubelet.container.model import ContainerID, PodRuntimeStatus
from trikubelet.node_api.task_tree import task_tree
from trikubelet.pods.manager import PodManager
from trikubelet.probes.manager import ProbeManager
from trikubelet.probes.types import ProbeKind, ProbeTarget
from trikubelet.runtime.containers.life import PodContainers
from trikubelet.status.manager import StatusManager

if TYPE_CHECKING:
    from trikubelet.runtime.kill import Killer

LIVENESS, READINESS, STARTUP = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP
SETTLED = 1000.0
"""An age at which the agent makes no worker wait."""
ALWAYS = "Always"


def probe(**fields: Any) -> Probe:
    """Every ten seconds, the first success and the third failure count."""
    defaults = Probe(period_seconds=10, timeout_seconds=1, success_threshold=1, failure_threshold=3)
    return attrs.evolve(defaults, **fields)


def container(name: str = "c", *kinds: ProbeKind, **fields: Any) -> Container:
    """A container with these kinds of probes; `every` replaces them all."""
    every = fields.pop("every", None) or probe()
    return Container(
        name=name,
        liveness_probe=every if LIVENESS in kinds else None,
        readiness_probe=every if READINESS in kinds else None,
        startup_probe=every if STARTUP in kinds else None,
        **fields,
    )


def pod(uid: str, *containers: Container, init: tuple[Container, ...] = (), restart: str = ALWAYS) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=f"pod-{uid}", namespace="default", uid=uid),
        spec=PodSpec(containers=containers, init_containers=init, restart_policy=restart),
    )


def container_id(number: int = 1, name: str = "c") -> ContainerID:
    return ContainerID("test", f"{name}-{number}")


@attrs.define
class ScriptedProber:
    """Answers by `answer`, which may raise, after `seconds`."""

    answer: Callable[[ProbeTarget], bool | None] = lambda target: True
    seconds: Callable[[ProbeTarget], float] = lambda target: 0.0
    asked: list[tuple[float, ProbeTarget]] = attrs.field(factory=list)
    cancelled: list[float] = attrs.field(factory=list)

    async def probe(self, target: ProbeTarget) -> bool | None:
        self.asked.append((trio.current_time(), target))
        try:
            await trio.sleep(self.seconds(target))
        except trio.Cancelled:
            self.cancelled.append(trio.current_time())
            raise
        return self.answer(target)

    def times(self, kind: ProbeKind | None = None, name: str = "") -> list[float]:
        """When it was asked."""
        return [
            time for time, target in self.asked if kind in (None, target.kind) and name in ("", target.container.name)
        ]


class NoKiller:
    """Nothing is killed here: containers end by themselves."""

    def has_ended(self, container_id: str) -> None: ...


class PodScope:
    """What a pod's life is for its probes: a nursery, and in it scopes of the instances that run."""

    def __init__(self, uid: str, manager: ProbeManager, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._tasks: set[trio.CancelScope] = set()
        self._open = ExitStack()
        as_nursery = cast("trio.Nursery", self)
        self.probes = self._open.enter_context(manager.of_pod(uid, as_nursery))
        self._containers = PodContainers(as_nursery, cast("Killer", NoKiller()), self.probes)

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: object, name: object = None) -> None:
        scope = trio.CancelScope()
        self._tasks.add(scope)
        self._nursery.start_soon(self._run, scope, function, *args, name=name)

    async def _run(self, scope: trio.CancelScope, function: Callable[..., Awaitable[object]], *args: object) -> None:
        with scope:
            await function(*args)
        self._tasks.discard(scope)

    def follow(self, status: PodStatus) -> None:
        """The containers were seen to be as it says."""
        seen = (*status.init_container_statuses, *status.container_statuses)
        self._containers.follow(
            PodRuntimeStatus("u", "p", "default", container_statuses=tuple(map(_as_observed, seen)))
        )

    def end(self) -> None:
        """The pod's life is over."""
        self._open.close()
        for task in self._tasks:
            task.cancel()


def _as_observed(status: ContainerStatus) -> model.ContainerStatus:
    """What waits for its next run has ended its last."""
    runtime, _, number = status.container_id.partition("://")
    running = status.state.running is not None
    return model.ContainerStatus(
        id=ContainerID(runtime, number),
        name=status.name,
        state=model.ContainerState.RUNNING if running else model.ContainerState.EXITED,
    )


@attrs.define
class Stage:
    """Time on it is Trio's, less that of its beginning."""

    prober: ScriptedProber
    pods: PodManager
    statuses: StatusManager
    manager: ProbeManager
    clock: TrioClock
    nursery: trio.Nursery
    began: float = attrs.field(factory=trio.current_time)
    scopes: dict[str, PodScope] = attrs.field(factory=dict)
    """Of the pods that live."""

    def add(self, one: Pod) -> Pod:
        """Want it, and sync it for the first time."""
        self.pods.add_pod(one)
        self.sync(one)
        return one

    def sync(self, one: Pod) -> None:
        """What a sync does for the probes."""
        uid = one.metadata.uid
        if uid not in self.scopes:
            self.scopes[uid] = PodScope(uid, self.manager, self.nursery)
        scope = self.scopes[uid]
        scope.probes.add(one)
        status = self.statuses.get_pod_status(uid)
        if status is not None:
            scope.follow(status)

    def end(self, uid: str) -> None:
        """The pod's life is over."""
        self.scopes.pop(uid).end()

    def stop_liveness_and_startup(self, uid: str, container: str) -> None:
        self.scopes[uid].probes.stop_liveness_and_startup(container)

    def report(self, of: Pod, *statuses: ContainerStatus, phase: str = "Running") -> None:
        sidecars = {one.name for one in of.spec.init_containers}
        status = PodStatus(
            phase=phase,
            pod_ip="10.0.0.7",
            container_statuses=tuple(one for one in statuses if one.name not in sidecars),
            init_container_statuses=tuple(one for one in statuses if one.name in sidecars),
        )
        if of.metadata.uid in self.scopes:
            self.scopes[of.metadata.uid].follow(status)
        self.statuses.set_pod_status(of, status)

    def running(
        self, name: str = "c", number: int = 1, *, started: bool = True, ready: bool = False, ago: float = 0.0
    ) -> ContainerStatus:
        """A container that started so many seconds ago."""
        state = ContainerState(running=ContainerStateRunning(started_at=self.clock.now() - timedelta(seconds=ago)))
        identifier = str(container_id(number, name))
        return ContainerStatus(name=name, container_id=identifier, state=state, started=started, ready=ready)

    def waiting(self, name: str = "c", number: int = 1) -> ContainerStatus:
        """In CrashLoopBackOff, say."""
        state = ContainerState(waiting=ContainerStateWaiting())
        return ContainerStatus(name=name, container_id=str(container_id(number, name)), state=state, started=False)

    def ended(self, name: str = "c", number: int = 1, exit_code: int = 1) -> ContainerStatus:
        state = ContainerState(terminated=ContainerStateTerminated(exit_code=exit_code))
        return ContainerStatus(name=name, container_id=str(container_id(number, name)), state=state, started=False)

    def now(self) -> float:
        return trio.current_time() - self.began

    def times(self, kind: ProbeKind | None = None, name: str = "") -> list[float]:
        """When the prober was asked, on the stage's time."""
        return [round(time - self.began, 6) for time in self.prober.times(kind, name)]

    def kinds(self) -> set[tuple[str, str, ProbeKind]]:
        """Whose workers there are."""
        return {(key.pod_uid, key.container, key.kind) for key in self.manager.worker_keys()}

    def is_ready(self, uid: str, name: str = "c") -> bool:
        status = self.statuses.get_pod_status(uid)
        assert status is not None
        return next(one.ready for one in status.container_statuses if one.name == name)

    async def follow(self) -> None:
        """Do what the sync loop does with results."""
        while True:
            self.manager.report(await self.manager.receive())


@asynccontextmanager
async def probe_stage(*, age: float = SETTLED, seed: int = 0) -> AsyncIterator[Stage]:
    """The manager of an agent of so many seconds."""
    clock, pods, prober = TrioClock(), PodManager(), ScriptedProber()
    statuses = StatusManager(clock, pods)
    manager = ProbeManager(prober, statuses, clock=clock, rng=Random(seed), newest=pods.pod_by_uid)
    await trio.sleep(age)
    async with trio.open_nursery() as nursery:
        yield Stage(prober, pods, statuses, manager, clock, nursery)
        nursery.cancel_scope.cancel()


def probe_tasks() -> list[str]:
    """The names of all tasks of probes that there are."""
    found = []

    def walk(task: dict[str, Any]) -> None:
        name = str(task["name"])
        if name.startswith("probes of") or " probe of " in name or name == "statuses for probes":
            found.append(name)
        for nursery in task.get("nurseries", ()):
            for child in nursery["tasks"]:
                walk(child)

    walk(task_tree())
    return found
