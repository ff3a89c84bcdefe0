"""Things that always hold on a node, checked while it lives.

Two views are compared: the machine's (what really runs, told by every change of a container) and the workers' (the
phase of every pod, told by every transition). A check that fails becomes a `Violation`; nothing is raised, so that a
life goes on and shows what comes of it.

Some truths need a runtime that tells the truth. While its lists are stale an agent cannot know better: pods that were
touched meanwhile are left out of the comparisons until they are gone, but like all others they have to end.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.pods.phases import (
    ConfigUpdate,
    Finished,
    Phase,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    WaitingToStart,
)
from trikubelet.pods.registry import PodWorkerRegistry
from trikubelet.pods.types import KillRuntimePod, SyncPodType, UpdatePod
from trikubelet.rpc.cri import v1
from trikubelet.sim.crash_loops import CrashLoops
from trikubelet.sim.holdings import Holdings
from trikubelet.sim.machine import RUNNING, Change, Container

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.agent.agent import Agent
    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.pods.machine import Event
    from trikubelet.pods.phases import Work
    from trikubelet.pods.registry import OnMove
    from trikubelet.pods.types import Request
    from trikubelet.sim.machine import Machine

NO_START_AFTER_END: Final = "no container of a pod is started after termination was asked"
TERMINATED_IS_STILL: Final = "a terminated pod has no running container"
ONE_STATIC_POD: Final = "two static pods of one full name never run together"
ONE_WAY: Final = "phases move one way"
GRACE_SHRINKS: Final = "a grace period never grows"
NO_UPDATE_LOST: Final = "what is done to a pod is done with its newest version"
WORKERS_MATCH: Final = "there is a task for every pod that has not finished, and no other"
ENDS_IN_TIME: Final = "a pod that was asked to end has ended within its grace period and bounds"
RUNS_AS_WANTED: Final = "a pod that is wanted runs its newest spec within bounds"
NOTHING_LEFT: Final = "nothing is left when no pod is wanted any more"
NO_LEAKS: Final = "no task, channel or scope leaks"

ENDING_BOUND: Final = 90.0
"""Seconds beyond its grace period that a pod's end may take: some failed attempts with their backoffs, and cleanup."""
STARTING_BOUND: Final = 120.0
"""Seconds in which a wanted pod runs: failed attempts with their backoffs, on a runtime that works."""

LEARNING_LOOKS: Final = 10
LOOKS: Final = 60
LOOK_PERIOD: Final = 0.37
"""Seconds from look to look at what an agent holds. Calls in flight come and go, some of them hang for a while."""

_ORDER: Final = {WaitingToStart: 0, Syncing: 1, TerminationRequested: 2, Terminating: 3, Terminated: 4, Finished: 5}
_STARTED: Final = v1.ContainerEventType.CONTAINER_STARTED_EVENT
_STOPPED: Final = v1.ContainerEventType.CONTAINER_STOPPED_EVENT


@frozen
class Violation:
    """Something that must not be was so."""

    time: float
    """Trio time."""
    invariant: str
    pod: str
    detail: str

    def __str__(self) -> str:
        return f"at {self.time:.3f} s, pod {self.pod}: {self.detail} (violates: {self.invariant})"


@frozen
class Wanted:
    """A pod that shall be running, and what its main container's image shall be."""

    since: float
    image: str


class WatchedRegistry(PodWorkerRegistry):
    """Tells of every transition, and of every version of a pod that comes in and that is worked with."""

    def __init__(
        self,
        on_move: OnMove,
        on_moved: Callable[[str, Phase | None, Phase | None], None],
        on_version: Callable[[Pod], None],
        on_work: Callable[[Pod], None],
    ) -> None:
        super().__init__(on_move)
        self._on_moved = on_moved
        self._on_version = on_version
        self._on_work = on_work

    def update_pod(self, request: Request, now: float, runtime_status: PodRuntimeStatus | None = None) -> None:
        if not isinstance(request, KillRuntimePod):
            pod = request.pod
            # A pod that is ending is only created anew when it has ended: it is sent again then.
            state = self.phases.get(pod.metadata.uid)
            created = isinstance(request, UpdatePod) and request.update_type is SyncPodType.CREATE
            later = created and not isinstance(state, WaitingToStart | Syncing | None)
            if not later:
                self._on_version(pod)
        super().update_pod(request, now, runtime_status)

    def begin(self, uid: str, now: float) -> Work | None:
        work = super().begin(uid, now)
        if work is not None and isinstance(work.update, ConfigUpdate):
            self._on_work(work.update.pod)
        return work

    def _move(self, uid: str, event: Event, after: Phase | None) -> None:
        before = self.phases.get(uid)
        super()._move(uid, event, after)
        self._on_moved(uid, before, after)


class Watch:
    """Looks on. `attach` tells it of each new agent, `wanted` is what the script wants to run."""

    def __init__(self, machine: Machine, *, limit: int = 100) -> None:
        self.violations: list[Violation] = []
        """The first `limit` of them."""
        self.checks: Counter[str] = Counter()
        """How often each invariant was checked."""
        self.transitions = 0
        self.on_phase: list[Callable[[str, Phase | None], None]] = []
        """Are told of each pod that is in another phase, by its UID; None: it is forgotten."""
        self.wanted: dict[str, Wanted] = {}
        self.slowest_end = 0.0
        """Seconds beyond its grace period that the slowest end took while nothing failed."""
        self._limit = limit
        self._machine = machine
        self._registry: WatchedRegistry | None = None
        self._agent: Agent | None = None
        self._agent_since = -math.inf
        self._quiet_since: float | None = -math.inf
        self._stale = False
        self._excused: set[str] = set()
        self._running: dict[str, dict[str, Container]] = {}
        self._asked: dict[str, tuple[float, int]] = {}
        self._newest: dict[str, Pod] = {}
        self._crash_loops = CrashLoops()
        self._idle: Holdings | None = None
        machine.observers.append(self._changed)

    def new_registry(self, on_move: OnMove) -> PodWorkerRegistry:
        """For a new agent, which is to be attached before it runs; `on_move` is that agent's."""
        self._registry = WatchedRegistry(on_move, self._moved, self._version_came, self._worked_with)
        return self._registry

    def attach(self, agent: Agent) -> None:
        """A new agent, with the newest registry: what the last one knew is forgotten with it."""
        self._agent = agent
        self._agent_since = trio.current_time()
        self._asked.clear()
        self._newest.clear()

    def detach(self) -> None:
        """The agent is gone, perhaps in the middle of something: what it knew says nothing until there is another."""
        self._registry = None

    def faults_begin(self) -> None:
        """From now on nothing has to happen in time."""
        self._quiet_since = None

    def faults_end(self) -> None:
        self._quiet_since = trio.current_time()

    def lists_are_stale(self, stale: bool) -> None:
        """Whether the runtime's lists lie."""
        self._stale = stale

    def running(self, uid: str) -> list[Container]:
        """The pod's containers that run at this moment."""
        now = trio.current_time()
        return [container for container in self._running.get(uid, {}).values() if _runs(container, now)]

    def uids(self) -> list[str]:
        """Of the pods that have had a running container since their last one was gone."""
        return list(self._running)

    @property
    def well(self) -> bool:
        """Whether every wanted pod runs as it is wanted."""
        return all(self._runs_as_wanted(uid, wanted) for uid, wanted in self.wanted.items())

    def fail(self, invariant: str, pod: str, detail: str) -> None:
        """Note a violation, the first of its kind for each pod."""
        known = any(each.invariant == invariant and each.pod == pod for each in self.violations)
        if not known and len(self.violations) < self._limit:
            self.violations.append(Violation(trio.current_time(), invariant, pod, detail))

    # What the machine tells

    def _changed(self, change: Change) -> None:
        container = change.container
        if container is None:
            return
        uid = container.pod_uid
        if self._stale:
            self._excused.add(uid)
        if change.kind is _STARTED:
            self._running.setdefault(uid, {})[container.id] = container
            self._crash_loops.started(uid, container.name, change.time, calm_since=self._calm_since)
            self._check_start(uid, container)
        elif change.kind is _STOPPED:
            self._crash_loops.ended(uid, container.name, change.time)
            if uid not in self._running:
                return
            self._running[uid].pop(container.id, None)
            if not self._running[uid]:
                del self._running[uid]

    def _check_start(self, uid: str, container: Container) -> None:
        now = trio.current_time()
        if self._registry is None or uid in self._excused or now <= self._agent_since:
            return
        self.checks[NO_START_AFTER_END] += 1
        state = self._registry.states.phase(uid)
        if state is None:
            self.fail(NO_START_AFTER_END, uid, f"{container.name} was started, but no worker knows the pod")
            return
        if not isinstance(state, WaitingToStart | Syncing) and state.ending.asked_at < now:
            detail = f"{container.name} was started {now - state.ending.asked_at:.3f} s after its end was asked"
            self.fail(NO_START_AFTER_END, uid, f"{detail}, the pod is {type(state).__name__}")
        if state.identity.static:
            self._check_one_static(uid, state.identity.full_name)

    def _check_one_static(self, uid: str, full_name: str) -> None:
        assert self._registry is not None
        self.checks[ONE_STATIC_POD] += 1
        for other in self._running:
            state = self._registry.states.phase(other)
            if other == uid or state is None or not state.identity.static or state.identity.full_name != full_name:
                continue
            if self.running(other):
                self.fail(ONE_STATIC_POD, uid, f"it was started while {other} runs")

    # What the workers tell

    def _moved(self, uid: str, before: Phase | None, after: Phase | None) -> None:
        if type(before) is not type(after):
            self.transitions += 1
            for told in self.on_phase:
                told(uid, after)
        if after is None:
            self._record_end(uid)
            self._asked.pop(uid, None)
            self._newest.pop(uid, None)
            if uid not in self._running:
                self._excused.discard(uid)
            return
        if before is not None:
            self.checks[ONE_WAY] += 1
            if _ORDER[type(after)] < _ORDER[type(before)]:
                self.fail(ONE_WAY, uid, f"{type(before).__name__} became {type(after).__name__}")
        match before, after:
            case (
                TerminationRequested(kill=old) | Terminating(kill=old),
                TerminationRequested(kill=new) | Terminating(kill=new),
            ):
                self.checks[GRACE_SHRINKS] += 1
                if new.grace_period > old.grace_period:
                    self.fail(GRACE_SHRINKS, uid, f"{old.grace_period} s became {new.grace_period} s")
                if new.deadline > old.deadline:
                    self.fail(GRACE_SHRINKS, uid, f"its end moved from {old.deadline:.3f} to {new.deadline:.3f}")
        if isinstance(after, TerminationRequested | Terminating):
            self._asked[uid] = (after.ending.asked_at, after.kill.grace_period)
        if isinstance(after, Terminated | Finished) and type(before) is not type(after):
            self._check_still(uid, after)

    def _check_still(self, uid: str, after: Phase) -> None:
        if isinstance(after, Finished):
            self._record_end(uid)
            self._asked.pop(uid, None)
        self.checks[TERMINATED_IS_STILL] += 1
        running = [container.name for container in self.running(uid)]
        if running and uid not in self._excused:
            self.fail(TERMINATED_IS_STILL, uid, f"it is {type(after).__name__}, and {', '.join(running)} runs")

    def _version_came(self, pod: Pod) -> None:
        self._newest[pod.metadata.uid] = pod

    def _worked_with(self, pod: Pod) -> None:
        self.checks[NO_UPDATE_LOST] += 1
        if pod is not self._newest.get(pod.metadata.uid) and pod != self._newest.get(pod.metadata.uid):
            self.fail(NO_UPDATE_LOST, pod.metadata.uid, f"it is worked with {_images(pod)}, a newer version came")

    def _record_end(self, uid: str) -> None:
        if uid in self._asked and self._quiet_since is not None:
            asked_at, grace = self._asked[uid]
            if asked_at > max(self._quiet_since, self._agent_since):
                self.slowest_end = max(self.slowest_end, trio.current_time() - asked_at - grace)

    # From time to time

    def sweep(self) -> None:
        """Check what has to become true in time."""
        if self._agent is None or self._registry is None:
            return
        self._check_tasks()
        if self._quiet_since is None:
            return
        now, calm = trio.current_time(), self._calm_since
        for uid, (asked_at, grace) in self._asked.items():
            self.checks[ENDS_IN_TIME] += 1
            if now > max(asked_at, calm) + grace + ENDING_BOUND:
                phase = type(self._registry.states.phase(uid)).__name__
                self.fail(ENDS_IN_TIME, uid, f"asked to end {now - asked_at:.0f} s ago with {grace} s, it is {phase}")
        for uid, wanted in self.wanted.items():
            self.checks[RUNS_AS_WANTED] += 1
            if now > self._runs_before(uid, wanted) and not self._runs_as_wanted(uid, wanted):
                phase, images = type(self._registry.states.phase(uid)).__name__, self._running_images(uid)
                self.fail(RUNS_AS_WANTED, uid, f"it shall run {wanted.image}, and runs {images}; it is {phase}")

    @property
    def _calm_since(self) -> float:
        """Since when nothing fails and the agent runs; infinity while something fails."""
        return math.inf if self._quiet_since is None else max(self._quiet_since, self._agent_since)

    def _runs_before(self, uid: str, wanted: Wanted) -> float:
        calm = self._calm_since
        return max(wanted.since, calm, self._crash_loops.waits_until(uid, calm_since=calm)) + STARTING_BOUND

    def _running_images(self, uid: str) -> list[str]:
        return [container.config.image.user_specified_image for container in self.running(uid)]

    def _runs_as_wanted(self, uid: str, wanted: Wanted) -> bool:
        return wanted.image in self._running_images(uid)

    def _check_tasks(self) -> None:
        self.checks[WORKERS_MATCH] += 1
        tasks, alive = self._tasks_and_pods()
        if tasks != alive:
            self.fail(WORKERS_MATCH, "*", f"there are {tasks} tasks for {alive} pods")

    def tasks_match(self) -> bool:
        """Whether each pod that has not finished has a task. A moment after its end a pod's task may still be closing:
        let all tasks run until they wait before a sweep that would take this for a violation."""
        if self._agent is None or self._registry is None:
            return True
        tasks, alive = self._tasks_and_pods()
        return tasks == alive

    def _tasks_and_pods(self) -> tuple[int, int]:
        assert self._agent is not None
        assert self._registry is not None
        alive = sum(not isinstance(state, Finished) for state in self._registry.phases.values())
        return self._agent.workers.statistics().tasks, alive

    def left(self) -> dict[str, Sequence[object]]:
        """What there is of pods, by kind."""
        assert self._agent is not None
        agent = self._agent
        left: dict[str, Sequence[object]] = {
            "workers": list(agent.workers.states.phases()),
            "containers": [container.id[:12] for container in self._machine.containers.values()],
            "sandboxes": [sandbox.id[:12] for sandbox in self._machine.sandboxes.values()],
            "observed statuses": sorted(agent.pleg.cache.uids()),
            "watched processes": list(range(agent.pleg_sources.pidfds.watched)),
            "reported statuses": list(range(agent.statuses.statistics().pods)),
        }
        return {what: which for what, which in left.items() if which}

    def check_nothing_left(self) -> None:
        """No pod is wanted any more, and time was enough."""
        self.checks[NOTHING_LEFT] += 1
        for what, which in self.left().items():
            self.fail(NOTHING_LEFT, "*", f"{len(which)} {what} are left: {which[:5]}")

    async def learn_idle(self) -> None:
        """The agent has no pods yet: remember what it holds all the same, for `check_leaks`."""
        self._idle = await _least_held(LEARNING_LOOKS)

    async def check_leaks(self) -> None:
        """The agent has no pods any more, and time was enough: it holds no more than before."""
        assert self._idle is not None, "what an agent holds without pods was not learned"
        self.checks[NO_LEAKS] += 1
        more = (await _least_held(LOOKS, enough=self._idle)).beyond(self._idle)
        if more:
            self.fail(NO_LEAKS, "*", f"more is held than before the first pod: {more}")


async def _least_held(looks: int, enough: Holdings | None = None) -> Holdings:
    """What is held, calls in flight aside: the least of some looks, fewer when one finds no more than `enough`."""
    least = Holdings.count()
    for _ in range(looks):
        if enough is not None and not least.beyond(enough):
            break
        await trio.sleep(LOOK_PERIOD)
        least = least.least(Holdings.count())
    return least


def _runs(container: Container, now: float) -> bool:
    return container.state is RUNNING and (container.end is None or container.end.time > now)


def _images(pod: Pod) -> list[str]:
    return [container.image for container in pod.spec.containers]
