"""The pure machine with lives that are only a loop: what a test does to it happens at once, or when it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from trikubelet.pods.machine import is_in_the_way
from trikubelet.pods.phases import (
    CleanUpPod,
    Completed,
    Finished,
    Outcome,
    Retry,
    SyncPod,
    Terminated,
    TerminatePod,
    TerminateRuntimePod,
    Terminating,
    TerminationRequested,
    Work,
)
from trikubelet.pods.registry import PodWorkerRegistry, WorkerSummary
from trikubelet.pods.types import Kill, KillRuntimePod

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus
    from trikubelet.pods.types import Request

Record: TypeAlias = tuple[object, ...]


class PureNode:
    """Does what `PodWorkers` and the lives do, without a clock. `records` says what the syncer would have been called
    with."""

    def __init__(self) -> None:
        self.registry = PodWorkerRegistry()
        self.states = self.registry.states
        self.now = 0.0
        self.workers: set[str] = set()
        """UIDs of the pods that have a life."""
        self.woken: set[str] = set()
        self.held: set[str] = set()
        """Lives that do not get to run."""
        self.busy: dict[str, Work] = {}
        self.cancelled: set[str] = set()
        self.deadlines: dict[str, float] = {}
        """Of the kills in flight, as the syncer knows them."""
        self.retries: dict[str, Retry] = {}
        self.records: dict[str, list[Record]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._static_names: dict[str, str] = {}

    def update(
        self, request: Request, status: PodRuntimeStatus | None = None, *, told: Callable[[], None] | None = None
    ) -> None:
        """`told` is called once the pod's containers have ended: at once when they have, or when it is not known."""
        self.now += 1
        self.registry.update_pod(request, self.now, status)
        uid = request.running_pod.uid if isinstance(request, KillRuntimePod) else request.pod.metadata.uid
        if told is not None:
            self._waiting.setdefault(uid, []).append(told)
        self._tell(uid)

    def sync_known_pods(self, *desired: Pod | str) -> dict[str, WorkerSummary]:
        self.now += 1
        uids = {pod if isinstance(pod, str) else pod.metadata.uid for pod in desired}
        known = self.registry.sync_known_pods(uids, self.now)
        assert known.faults == ()
        for uid in known.changed:
            self._tell(uid)
        return known.workers

    def begin(self, uid: str) -> Work | None:
        """Let one life look for work; it stays busy with it."""
        self.woken.discard(uid)
        self.now += 1
        work = self.registry.begin(uid, self.now)
        if work is not None:
            assert uid not in self.busy
            self.busy[uid] = work
            self.records.setdefault(uid, []).append(self._record(uid, work))
            if isinstance(work, TerminatePod | TerminateRuntimePod):
                self.deadlines[uid] = self.kill(uid).deadline
        self._moved(uid)
        return self.busy.get(uid)

    def done(self, uid: str, outcome: Outcome = Completed()) -> None:  # noqa: B008 - a frozen value
        self._ended(uid)
        self.now += 1
        retry = self.registry.done(uid, outcome, self.now)
        if retry is None:
            self.woken.add(uid)  # It goes on at once.
        else:
            self.retries[uid] = retry
        self._moved(uid)

    def retry(self, uid: str) -> None:
        self.registry.retry(uid)
        self._wake(uid)

    def begin_again(self, uid: str) -> None:
        """A fault ends the life, whatever it does, and it begins again."""
        if uid in self.busy:
            self._ended(uid)
        self.retries.pop(uid, None)
        self.registry.begin_again(uid)
        self._wake(uid)

    def settle(self, outcome: Outcome = Completed()) -> None:  # noqa: B008
        """Run every life until none has anything to do; work that fails is not tried again."""
        while ready := sorted((self.woken | self.busy.keys()) - self.held):
            for uid in ready:
                if uid in self.busy or self.begin(uid) is not None:
                    self.done(uid, outcome)

    def kill(self, uid: str) -> Kill:
        """How the pod is to be ended."""
        state = self.states.phase(uid)
        assert isinstance(state, TerminationRequested | Terminating)
        return state.kill

    # --- What `PodWorkers` and the lives do --------------------------------------------------------------------------

    def _tell(self, uid: str) -> None:
        """There is news of a pod."""
        phase = self.states.phase(uid)
        if phase is not None and phase.identity.static:
            self._static_names[uid] = phase.identity.full_name
        if phase is not None and not isinstance(phase, Finished):
            self.workers.add(uid)
            if uid not in self.busy:
                self.woken.add(uid)
            elif is_in_the_way(phase):
                self.cancelled.add(uid)
            elif isinstance(phase, Terminating):
                self.deadlines[uid] = min(self.deadlines[uid], phase.kill.deadline)
        self._moved(uid)
        self._wake_next_static(uid)

    def _wake(self, uid: str) -> None:
        if uid in self.workers and uid not in self.busy:
            self.woken.add(uid)

    def _ended(self, uid: str) -> None:
        """The work in flight did."""
        del self.busy[uid]
        self.cancelled.discard(uid)
        self.deadlines.pop(uid, None)

    def _moved(self, uid: str) -> None:
        """The pod may be in another phase: who waits is told, and its life may be over."""
        phase = self.states.phase(uid)
        if isinstance(phase, Terminated | Finished | None):
            for told in self._waiting.pop(uid, ()):
                told()
        if isinstance(phase, Finished | None) and uid in self.workers:
            assert uid not in self.busy
            self.workers.remove(uid)
            self.woken.discard(uid)
            self.retries.pop(uid, None)
            self._wake_next_static(uid)

    def _wake_next_static(self, uid: str) -> None:
        if uid in self._static_names:
            following = self.states.startable_static_pod(self._static_names[uid])
            if following is not None:
                self._wake(following)

    def _record(self, uid: str, work: Work) -> Record:
        match work:
            case SyncPod(update):
                return ("sync", update.update_type.value)
            case TerminatePod():
                return ("terminate", self.kill(uid).grace_period)
            case TerminateRuntimePod():
                return ("terminate runtime pod",)
            case CleanUpPod():
                return ("clean up",)
