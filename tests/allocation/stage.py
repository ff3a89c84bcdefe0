"""An allocation manager on a node of 4 CPUs and 4 GiB, with this node's real admission."""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.admission.situations import make_node
from trikubelet.admission.admit import NodeAdmission
from trikubelet.admission.sysctls import SysctlAllowList
from trikubelet.allocation.manager import AllocationContext, AllocationManager
from trikubelet.allocation.model import ALL_RESIZES, ResizeGates, allocation_of
from trikubelet.allocation.store import ALLOCATED_FILE, AllocationStore
from trikubelet.api import Pod
from trikubelet.broadcast import Subscription
from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.telemetry.events import AnyEvent, EventRecorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Node


@attrs.define
class HandClock:
    """Time goes on when a test says so."""

    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def go_on(self, seconds: float = 1) -> None:
        self.time += timedelta(seconds=seconds)


@attrs.define(eq=False)
class Stage:
    """What the manager asks and tells, as a test says."""

    folder: Path
    gates: ResizeGates = ALL_RESIZES
    admission: dict[str, Any] = attrs.field(factory=dict)
    """Parts of the node's admission that are not as usual."""
    pods: dict[str, Pod] = attrs.field(factory=dict)
    """Wanted pods by UID, by their specs; all are active."""
    ready: bool = True
    events: list[str] = attrs.field(factory=list)
    """What was told since `heard` was called."""
    clock: HandClock = attrs.field(factory=HandClock)
    decides: NodeAdmission = attrs.field(init=False)
    manager: AllocationManager = attrs.field(init=False)
    store: AllocationStore = attrs.field(init=False)
    _wakes: Subscription[None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new agent, that knows what is in the file."""
        recorder = EventRecorder(self.clock)
        recorder.add_listener(self._hear)
        self.store = AllocationStore.open(self.folder / ALLOCATED_FILE)
        self.decides = NodeAdmission(
            **{
                "sysctls": SysctlAllowList.of_node(),
                "machine": MachineFacts(2**33),
                "abilities": RuntimeAbilities,
                "resizes_pod_level": self.gates.pod_level,
                **self.admission,
            }
        )
        context = AllocationContext(
            self.decides,
            node=self.node,
            active=lambda: list(self.pods.values()),
            pod_by_uid=self.pods.get,
            sources_ready=lambda: self.ready,
        )
        self.manager = AllocationManager(self.store, context, recorder, self.clock, self.gates)
        self._wakes = self._count_wakes()

    @property
    def wakes(self) -> int:
        """How often the sync loop was woken since it last came."""
        return len(self._wakes)

    def _count_wakes(self) -> Subscription[None]:
        number = itertools.count()
        return self.manager.retry_wanted.subscribe(lambda _: next(number))

    def node(self) -> Node:
        return make_node(allocatable={"cpu": "4", "memory": "4Gi", "pods": "40"})

    async def make_room(self, preemptor: Pod, victims: Sequence[Pod], resource: str) -> None:
        raise NotImplementedError

    def add(self, *pods: Pod) -> None:
        """Pods arrive and are admitted."""
        for pod in pods:
            self.pods[pod.metadata.uid] = pod
            self.manager.admitted(pod)

    def allocate(self, pod: Pod) -> None:
        """The pod was given this before the agent started."""
        self.store.set(pod.metadata.uid, allocation_of(pod, self.gates))

    def change(self, pod: Pod) -> list[str]:
        """A pod's spec changes. Returns the UIDs of pods that are to be synced."""
        old = self.pods[pod.metadata.uid]
        self.pods[pod.metadata.uid] = pod
        self.manager.changed(old, pod)
        return self.retry()

    def end(self, uid: str) -> list[str]:
        del self.pods[uid]
        self.release(uid)
        return self.retry()

    def release(self, uid: str) -> None:
        with suppress(StopIteration):  # it does not wait
            self.manager.release(uid).send(None)

    def retry(self) -> list[str]:
        """The sync loop comes, if it was woken."""
        if not self.wakes:
            return []
        self._wakes.close()
        self._wakes = self._count_wakes()
        return [pod.metadata.uid for pod in self.manager.retry()]

    def heard(self) -> list[str]:
        heard, self.events = self.events, []
        return heard

    def conditions(self, uid: str) -> list[tuple[str, str, str, int]]:
        """Type, reason, message and generation."""
        return [
            (one.type.removeprefix("PodResize"), one.reason, one.message, one.observed_generation)
            for one in self.manager.conditions(uid)
        ]

    def _hear(self, event: AnyEvent) -> None:
        self.events.append(f"{event.type.value} {event.reason} {event.message}")
