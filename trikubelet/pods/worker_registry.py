"""All pods' workers as one pure machine: their phases and the order of static pods.

Every method that changes something returns the commands that follow, in order; none waits, and the same calls with the
same times give the same result. `workers.PodWorkers` owns one and carries the commands out.

Two static pods of one full name (an edited manifest gives the pod a new UID) never run together: the second waits until
the first has finished, and those that wait start in the order of their arrival. API pods of one full name may overlap,
as in the kubelet. The kubelet lets a waiting pod look again every ten seconds; here the end of one wakes the next.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.pods import worker_state
from trikubelet.pods.classify import is_static_pod, nothing_runs
from trikubelet.pods.termination import asks_to_end
from trikubelet.pods.types import SyncPodType, UpdatePodOptions
from trikubelet.pods.worker_messages import Command, Completed, ConfigUpdate, Outcome, Wake
from trikubelet.pods.worker_phases import (
    Finished,
    Identity,
    Phase,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    WaitingToStart,
)
from trikubelet.pods.worker_queries import PodStates
from trikubelet.pods.worker_state import Event

if TYPE_CHECKING:
    from collections.abc import Collection

    from trikubelet.runtime.model import PodRuntimeStatus


class WorkerLifecycle(enum.Enum):
    """A phase as housekeeping and metrics know it (kubelet: `PodWorkerState`)."""

    SYNC = "sync"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


@attrs.frozen
class WorkerSummary:
    """One worker as `sync_known_pods` found it (kubelet: `PodWorkerSync`)."""

    lifecycle: WorkerLifecycle
    orphan: bool = False
    """No longer desired."""
    has_config: bool = False
    static: bool = False


class PodWorkerRegistry(PodStates):
    """The phases of all pods. Empty at first; a pod is in here from its first update until it is purged."""

    # --- What happens ------------------------------------------------------------------------------------------------

    def update_pod(
        self, options: UpdatePodOptions, now: float, runtime_status: PodRuntimeStatus | None = None
    ) -> tuple[Command, ...]:
        """Take one request to a pod's worker.

        `runtime_status` is what the cache holds of the pod, None when the cache holds an error. It matters for a pod
        seen for the first time that is already terminal. A pod that only the runtime knows can only be killed; other
        requests for it are dropped. When both a pod and a running pod are given, the pod counts.
        """
        if options.pod is None and options.running_pod is not None and options.update_type is not SyncPodType.KILL:
            return ()
        uid, full_name = _name(options)
        event = Event.END_ASKED if asks_to_end(options) else Event.UPDATE
        state = self._phases.get(uid)
        if state is None:
            static = options.pod is not None and is_static_pod(options.pod)
            identity = Identity(uid=uid, full_name=full_name, static=static, first_seen=now)
            idle = runtime_status is not None and nothing_runs(runtime_status)
            after, commands = worker_state.first_sight(identity, options, now, nothing_running=idle)
        else:
            after, commands = worker_state.update(state, options, now)
        return self._move(uid, event, after, commands)

    def begin(self, uid: str, now: float) -> tuple[Command, ...]:
        """The pod's worker is free and looks for work: there is at most one `Run` in the answer."""
        state = self._phases.get(uid)
        if state is None:
            return ()
        after, commands = worker_state.begin(state, now, may_start=self._may_start(state.identity))
        return self._move(uid, Event.BEGIN, after, commands)

    def done(self, uid: str, outcome: Outcome, now: float) -> tuple[Command, ...]:
        """The work that `begin` gave out has ended."""
        state = self._known(uid, Event.DONE)
        event = Event.FAILED
        if isinstance(outcome, Completed):
            may_be_terminal = isinstance(state, Syncing | TerminationRequested)
            event = Event.TERMINAL if outcome.terminal and may_be_terminal else Event.DONE
        after, commands = worker_state.done(state, outcome, now)
        return self._move(uid, event, after, commands)

    def retry(self, uid: str) -> tuple[Command, ...]:
        """The time told by the last `Retry` has come, and nobody has a newer version of the pod to give."""
        state = self._phases.get(uid)
        if state is None:
            return ()
        after, commands = worker_state.replay(state)
        return self._move(uid, Event.RETRY, after, commands)

    def sync_known_pods(
        self, desired: Collection[str], now: float
    ) -> tuple[dict[str, WorkerSummary], tuple[Command, ...]]:
        """Compare with the UIDs of all desired pods: purge what has finished, end what nobody wants.

        Returns the workers that remain. A desired pod that is not among them shall be sent as CREATE by the caller.
        """
        self._synced = True
        workers: dict[str, WorkerSummary] = {}
        commands: list[Command] = []
        for uid, state in list(self._phases.items()):
            after, further = worker_state.known_pods_synced(state, now, desired=uid in desired)
            if after is state and not further:  # nearly all, every two seconds
                worker_state.check_transition(uid, Event.KNOWN_PODS_SYNCED, state, after)
            else:
                commands += self._move(uid, Event.KNOWN_PODS_SYNCED, after, further)
            if after is not None:
                workers[uid] = _summary(after, orphan=uid not in desired)
        return workers, tuple(commands)

    def summaries(self, desired: Collection[str]) -> dict[str, WorkerSummary]:
        """All known pods, finished ones included, beside the UIDs of all desired pods."""
        return {uid: _summary(state, orphan=uid not in desired) for uid, state in self._phases.items()}

    # --- The order of static pods ------------------------------------------------------------------------------------

    def _may_start(self, identity: Identity) -> bool:
        """Kubelet: `allowStaticPodStart`."""
        if not identity.static:
            return True
        if identity.full_name in self._started_static:
            return False
        return self.waiting_static_pods(identity.full_name)[:1] == (identity.uid,)

    def _move(self, uid: str, event: Event, after: Phase | None, commands: tuple[Command, ...]) -> tuple[Command, ...]:
        before = self._phases.get(uid)
        worker_state.check_transition(uid, event, before, after)
        if before is None or after is None or _outline(before) != _outline(after):
            self.version += 1
        if after is None:
            self._phases.pop(uid, None)
        else:
            self._phases[uid] = after
        if type(before) is type(after):
            return commands
        return commands + self._follow_static_order(before, after)

    def _follow_static_order(self, before: Phase | None, after: Phase | None) -> tuple[Command, ...]:
        known = before or after
        if known is None or not known.identity.static:
            return ()
        uid, name = known.identity.uid, known.identity.full_name
        if isinstance(after, WaitingToStart):
            self._waiting_static.setdefault(name, {})[uid] = None
            return ()
        if isinstance(before, WaitingToStart):
            del self._waiting_static[name][uid]
            if not self._waiting_static[name]:
                del self._waiting_static[name]
        if isinstance(after, Syncing):
            self._started_static[name] = uid
            return ()
        if isinstance(after, Finished | None) and self._started_static.get(name) == uid:
            del self._started_static[name]
        if name in self._started_static:
            return ()
        return tuple(Wake(waiting) for waiting in self.waiting_static_pods(name)[:1])

    def _known(self, uid: str, event: Event) -> Phase:
        state = self._phases.get(uid)
        if state is None:
            raise worker_state.IllegalTransitionError(uid, "unknown", event.value)
        return state


def _name(options: UpdatePodOptions) -> tuple[str, str]:
    if options.pod is not None:
        return options.pod.metadata.uid, options.pod.full_name
    if options.running_pod is None:
        raise ValueError("an update needs a pod or a running pod, got neither")
    return options.running_pod.uid, options.running_pod.full_name


_LIFECYCLES: Final = {
    WaitingToStart: WorkerLifecycle.SYNC,
    Syncing: WorkerLifecycle.SYNC,
    TerminationRequested: WorkerLifecycle.TERMINATING,
    Terminating: WorkerLifecycle.TERMINATING,
    Terminated: WorkerLifecycle.TERMINATED,
    Finished: WorkerLifecycle.TERMINATED,
}
_SUMMARIES: Final[dict[tuple[type[Phase], bool, bool, bool], WorkerSummary]] = {}


def _summary(state: Phase, *, orphan: bool) -> WorkerSummary:
    """There are only so many different ones, and each round of housekeeping wants one of every pod."""
    has_config = _has_config(state)
    static = has_config and state.identity.static
    key = type(state), orphan, has_config, static
    known = _SUMMARIES.get(key)
    if known is None:
        known = _SUMMARIES[key] = WorkerSummary(_LIFECYCLES[type(state)], orphan, has_config, static)
    return known


def _has_config(state: Phase) -> bool:
    match state:
        case TerminationRequested():
            return isinstance(state.pending, ConfigUpdate)
        case Terminating():
            return isinstance(state.active, ConfigUpdate)
        case Finished():
            return state.has_config
        case _:
            return True


def _outline(state: Phase) -> tuple[type[Phase], bool, bool]:
    """What of a wanted pod's phase matters to who looks at all pods."""
    return type(state), _has_config(state), isinstance(state, Finished) and state.ending.restart_requested
