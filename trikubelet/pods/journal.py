"""The journal: what happened to each pod of this node, in order, for people who look at it.

The story of an entry: something happens, and its owner tells the journal at once: the registry of every change of a
pod's phase, the recorder of every event, PLEG of containers that began or ended, the status manager of what is reported
of a pod. The journal notes it among the pod's newest entries and puts it into the queue of each viewer. It is made into
JSON when a viewer takes it, so a journal at which nobody looks costs an object for each entry and nothing else. The
stages of the pod (`pods.stages`) are made of the entries then, too.

Memory does not grow. Of each pod the newest entries and stages are kept. Those of its phases are kept apart, since a
container that restarts for ever would drive them out. A pod that the workers have forgotten stays a short while, for
those who ask what became of it. A viewer's queue has a limit: a slower one gets a fresh snapshot instead of what it
missed.

The journal is for looking only. Nothing in the agent decides by it.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import attrs
import trio

from trikubelet.api.timestamps import format_micro_time
from trikubelet.container.model import ContainerState, start_problem
from trikubelet.formats.values import define, frozen
from trikubelet.pods.phases import Syncing, Terminated, Terminating, TerminationRequested, WaitingToStart
from trikubelet.pods.stages import Begun, Stages
from trikubelet.status.container_statuses import STATUS_UNKNOWN, UNKNOWN_EXIT_CODE
from trikubelet.telemetry.events import PodEvent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from trikubelet.api import Pod, PodStatus
    from trikubelet.clock import WallClock
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus
    from trikubelet.pods.phases import Phase
    from trikubelet.status.manager import StatusChange
    from trikubelet.telemetry.events import AnyEvent

ENTRIES_PER_POD: Final = 50
"""The newest, beside the entries of its phases."""
PHASES_PER_POD: Final = 20
STAGES_KEPT: Final = 20_000
"""Of all pods together; the pod with the most gives up its older half."""
PODS_KEPT: Final = 1000
"""Those of which nothing was told for longest go first."""
KEPT_WHEN_FORGOTTEN: Final = 120.0
"""Seconds for which a pod that the workers have forgotten stays in the journal."""
QUEUE: Final = 1000
"""Entries that may wait for one viewer."""
SHORT_ID: Final = 12
"""Digits of a container's id that are shown."""


_MAY_RUN: Final = (ContainerState.RUNNING, ContainerState.UNKNOWN)


class Kind(enum.Enum):
    """What an entry tells of."""

    PHASE = "phase"
    """`what`: the name of a class of `pods.phases`, once more when its end is hastened, or `Gone` when the workers have
    forgotten the pod."""
    EVENT = "event"
    """`what`: the event's reason, as `Pulling` or `BackOff`."""
    CONTAINER = "container"
    """`what`: `Started` or `Ended`, as the runtime was seen to say. One that ran and is gone has ended too, as it is
    reported: with the reason ContainerStatusUnknown."""
    STATUS = "status"
    """`what`: the phase that is reported of the pod, as `Running`; `reason` with it."""
    READY = "ready"
    """`what`: `Ready` or `NotReady`; of the pod, or of one of its containers."""


@frozen(kw_only=True)
class Entry:
    """One thing that happened."""

    number: int
    """Another one for each entry of this agent, growing."""
    at: datetime
    uid: str
    pod: str
    """Namespace and name, with a slash between."""
    kind: Kind
    what: str
    container: str = ""
    """Empty when it concerns the pod as a whole."""
    facts: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    """JSON values by name, and times; see `as_json`."""
    stage: Begun | None = None
    """The pod's stage that began with it."""

    def as_json(self) -> dict[str, Any]:
        """`n`, `at` (RFC 3339 with microseconds), `uid`, `pod`, `kind`, `what`, `container` if it concerns one, and

        - of phases that end the pod: `askedBy` (a list), `grace` (seconds), `until` (when the grace is over)
        - of events: `eventType`, `message`; `count` and `firstSeen` when it came before
        - of containers: `id` (twelve digits), `restarts`; of those that ended `exitCode`, `reason`, `startedAt`;
          of those that could not start `message`
        - of statuses: `reason`, `message`
        - of the first one of a stage of the pod: `stage`, as `pods.stages.Begun.as_json`
        """
        head = {
            "n": self.number,
            "at": format_micro_time(self.at),
            "uid": self.uid,
            "pod": self.pod,
            "kind": self.kind.value,
            "what": self.what,
        }
        if self.container:
            head["container"] = self.container
        if self.stage is not None:
            head["stage"] = self.stage.as_json()
        return head | {
            name: value if isinstance(value, list | str | int) else format_micro_time(value)
            for name, value in self.facts.items()
        }


@define
class _PodRecord:
    """The entries of one pod, and what was last told of it."""

    uid: str
    pod: str
    phases: deque[Entry] = attrs.field(factory=lambda: deque(maxlen=PHASES_PER_POD))
    others: deque[Entry] = attrs.field(factory=lambda: deque(maxlen=ENTRIES_PER_POD))
    stages: Stages = attrs.field(factory=Stages)
    containers: dict[str, ContainerStatus] = attrs.field(factory=dict)
    """By id, as they were seen last."""
    reported: tuple[str, str] = ("", "")
    """Phase and reason."""
    ready: dict[str, bool] = attrs.field(factory=dict)
    """By container, the whole pod's by an empty name."""

    def drop_event(self, reason: str, container: str, message: str) -> None:
        """It has come again: a back-off that is told every minute shall not drive out everything else."""
        told = (Kind.EVENT, reason, container, message)
        for entry in self.others:
            if (entry.kind, entry.what, entry.container, entry.facts.get("message")) == told:
                self.others.remove(entry)
                return

    def entries(self) -> list[Entry]:
        return sorted((*self.phases, *self.others), key=lambda entry: entry.number)


class Journal:
    """Takes what happens to pods, and shows it."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._pods: OrderedDict[str, _PodRecord] = OrderedDict()
        self._forgotten: OrderedDict[str, float] = OrderedDict()
        """UIDs of pods that the workers have forgotten, with the Trio time of it."""
        self._viewers: list[Viewer] = []
        self._number = 0
        self._stages = 0
        """Stages that are kept of all pods."""

    # --- What happens. Nothing here waits or raises. -----------------------------------------------------------------

    def moved(self, before: Phase | None, after: Phase | None) -> None:
        """A pod's phase is another one, or something in it is (`on_move` of a `PodWorkerRegistry`)."""
        known = after or before
        if known is None or (type(before) is type(after) and not _is_hastened(before, after)):
            return
        uid = known.identity.uid
        name, _, namespace = known.identity.full_name.rpartition("_")
        pod = f"{namespace}/{name}"
        if after is None:
            self._note(uid, pod, Kind.PHASE, "Gone")
            self._forgotten[uid] = trio.current_time()
            self._forgotten.move_to_end(uid)
            return
        self._forgotten.pop(uid, None)
        self._note(uid, pod, Kind.PHASE, type(after).__name__, facts=self._facts_of_phase(after))

    def event(self, event: AnyEvent) -> None:
        """A listener of the recorder."""
        if not isinstance(event, PodEvent):
            return
        facts: dict[str, Any] = {"eventType": event.type.value, "message": event.message}
        container = event.field_path.partition("{")[2].removesuffix("}")
        pod = f"{event.namespace}/{event.name}"
        if event.count > 1:
            facts |= {"count": event.count, "firstSeen": event.first_seen}
            self._record(event.uid, pod).drop_event(event.reason, container, event.message)
        self._note(event.uid, pod, Kind.EVENT, event.reason, container, facts=facts, at=event.last_seen)

    def observed(self, status: PodRuntimeStatus) -> None:
        """The runtime was seen to hold this of a pod."""
        if not status.container_statuses and status.uid not in self._pods:
            return
        pod = f"{status.namespace}/{status.name}"
        record = self._record(status.uid, pod)
        known, record.containers = record.containers, {one.id.id: one for one in status.container_statuses}
        for container in known.values():
            if container.state in _MAY_RUN and container.id.id not in record.containers:
                end = attrs.evolve(
                    container, state=ContainerState.EXITED, exit_code=UNKNOWN_EXIT_CODE, reason=STATUS_UNKNOWN
                )
                self._note_container(record, end)
        for container in reversed(status.container_statuses):  # the oldest first
            before = known.get(container.id.id)
            if before is None or before.state is not container.state:
                self._note_container(record, container)

    def reported(self, change: StatusChange) -> None:
        """Something else is reported of a pod."""
        pod, status = change.pod, change.status
        uid, named = pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}"
        record = self._record(uid, named)
        if (status.phase, status.reason) != record.reported:
            record.reported = status.phase, status.reason
            facts = {name: text for name, text in (("reason", status.reason), ("message", status.message)) if text}
            self._note(uid, named, Kind.STATUS, status.phase, facts=facts)
        for container, ready in _readiness(pod, status):
            if record.ready.get(container, False) is not ready:
                record.ready[container] = ready
                self._note(uid, named, Kind.READY, "Ready" if ready else "NotReady", container)

    # --- Who looks ---------------------------------------------------------------------------------------------------

    def view(self) -> Viewer:
        """Look on from now on. Use it as a context manager."""
        viewer = Viewer(self)
        self._viewers.append(viewer)
        return viewer

    def close(self, viewer: Viewer) -> None:
        """Called by a viewer that looks no longer."""
        self._viewers.remove(viewer)

    def entries(self, uid: str) -> list[Entry]:
        """What is kept of a pod, the oldest first; none for a pod that is not known."""
        record = self._pods.get(uid)
        return [] if record is None else record.entries()

    def find(self, pod: str) -> list[str]:
        """UIDs of the pods of this namespace and name, with a slash between, the newest last."""
        return [uid for uid, record in self._pods.items() if record.pod == pod]

    def snapshot(self) -> dict[str, Any]:
        """All pods with what is kept of them, as JSON values: `n` is the number of the newest entry, `stages` are the
        pod's (`pods.stages.Begun.as_json`), the oldest first."""
        self._sweep()
        pods = [
            {
                "uid": record.uid,
                "pod": record.pod,
                "stages": [begun.as_json() for begun in record.stages.begun],
                "entries": [entry.as_json() for entry in record.entries()],
            }
            for record in self._pods.values()
        ]
        return {"type": "SNAPSHOT", "n": self._number, "now": format_micro_time(self._clock.now()), "pods": pods}

    # --- Pieces ------------------------------------------------------------------------------------------------------

    def _note(
        self,
        uid: str,
        pod: str,
        kind: Kind,
        what: str,
        container: str = "",
        *,
        facts: Mapping[str, Any] = {},
        at: datetime | None = None,
    ) -> None:
        self._number += 1
        at = at or self._clock.now()
        record = self._record(uid, pod)
        kept = len(record.stages.begun)
        stage = record.stages.take(kind.value, what, at, container, facts)
        self._stages += len(record.stages.begun) - kept
        if self._stages > STAGES_KEPT:
            self._shorten()
        entry = Entry(
            number=self._number,
            at=at,
            uid=uid,
            pod=pod,
            kind=kind,
            what=what,
            container=container,
            facts=facts,
            stage=stage,
        )
        (record.phases if kind is Kind.PHASE else record.others).append(entry)
        for viewer in self._viewers:
            viewer.offer(entry)

    def _note_container(self, record: _PodRecord, container: ContainerStatus) -> None:
        facts: dict[str, Any] = {"id": container.id.id[:SHORT_ID], "restarts": container.restart_count}
        if container.state is ContainerState.RUNNING:
            what, at = "Started", container.started_at
        elif container.state is ContainerState.EXITED:
            what, at = "Ended", container.finished_at
            facts["exitCode"] = container.exit_code
            if container.reason:
                facts["reason"] = container.reason
            if problem := start_problem(container.reason, container.message):
                facts["message"] = problem
            if container.started_at is not None:
                facts["startedAt"] = container.started_at
        else:
            return
        self._note(record.uid, record.pod, Kind.CONTAINER, what, container.name, facts=facts, at=at)

    def _facts_of_phase(self, phase: Phase) -> dict[str, Any]:
        if isinstance(phase, WaitingToStart | Syncing):
            return {}
        facts: dict[str, Any] = {}
        if phase.ending.asked_by:
            facts["askedBy"] = list(phase.ending.asked_by)
        if isinstance(phase, TerminationRequested | Terminating):
            facts["grace"] = phase.kill.grace_period
            facts["until"] = wall_time(self._clock, phase.kill.deadline)
        return facts

    def _record(self, uid: str, pod: str) -> _PodRecord:
        record = self._pods.get(uid)
        if record is None:
            self._sweep()
            record = self._pods[uid] = _PodRecord(uid, pod)
        else:
            self._pods.move_to_end(uid)
        return record

    def _shorten(self) -> None:
        """Forget the older half of the longest list of stages."""
        longest = max((record.stages.begun for record in self._pods.values()), key=len)
        for _ in range(len(longest) // 2):
            longest.popleft()
            self._stages -= 1

    def _drop(self, uid: str) -> None:
        record = self._pods.pop(uid, None)
        self._stages -= 0 if record is None else len(record.stages.begun)

    def _sweep(self) -> None:
        now = trio.current_time()
        while self._forgotten:
            uid, since = next(iter(self._forgotten.items()))
            if now - since < KEPT_WHEN_FORGOTTEN and len(self._pods) < PODS_KEPT:
                break
            del self._forgotten[uid]
            self._drop(uid)
        while len(self._pods) >= PODS_KEPT:
            self._drop(next(iter(self._pods)))


class Viewer:
    """What one who looks has not seen yet."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: deque[Entry] = deque()
        self._behind = True
        self._arrived = trio.lowlevel.ParkingLot()

    async def receive(self) -> dict[str, Any]:
        """At first, and when entries were lost because this one was too slow, the snapshot of all pods; else the next
        entry, its `type` is `ENTRY`. JSON values both. Cancelling it loses nothing."""
        await trio.lowlevel.checkpoint()
        while (news := self.receive_nowait()) is None:
            await self._arrived.park()
        return news

    def receive_nowait(self) -> dict[str, Any] | None:
        """The same; None when there is nothing new."""
        if self._behind:
            self._behind = False
            return self._journal.snapshot()
        return {"type": "ENTRY"} | self._waiting.popleft().as_json() if self._waiting else None

    def offer(self, entry: Entry) -> None:
        """Called by the journal. Never waits."""
        if self._behind:
            return  # it is in the snapshot that comes next
        if len(self._waiting) >= QUEUE:
            self._waiting.clear()
            self._behind = True
        else:
            self._waiting.append(entry)
        self._arrived.unpark()

    def __len__(self) -> int:
        return len(self._waiting)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close(self)


def wall_time(clock: WallClock, moment: float) -> datetime:
    """The date of a moment in Trio time."""
    return clock.now() + timedelta(seconds=moment - trio.current_time())


def _is_hastened(before: Phase | None, after: Phase | None) -> bool:
    """Whether a pod that is being ended has less time now, or somebody else has asked for its end."""
    match before, after:
        case TerminationRequested() | Terminating(), TerminationRequested() | Terminating():
            return before.kill.deadline != after.kill.deadline or before.ending.asked_by != after.ending.asked_by
        case Terminated(), Terminated():
            return before.ending.asked_by != after.ending.asked_by
        case _:
            return False


def _readiness(pod: Pod, status: PodStatus) -> Iterator[tuple[str, bool]]:
    """Of the pod, with an empty name, and of its containers where there are several."""
    if len(pod.spec.containers) > 1:
        for container in status.container_statuses:
            yield container.name, container.ready
    yield "", any(one.type == "Ready" and one.status == "True" for one in status.conditions)
