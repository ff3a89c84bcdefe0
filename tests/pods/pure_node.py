"""The pure machine with workers that are only a loop: what a test does to it happens at once, or when it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from trikubelet.pods.worker_messages import (
    CancelWork,
    CleanUpPod,
    Command,
    Completed,
    Notify,
    Outcome,
    Retry,
    Run,
    StartWorker,
    StopWorker,
    SyncPod,
    TerminatePod,
    TerminateRuntimePod,
    Wake,
    Work,
)
from trikubelet.pods.worker_registry import PodWorkerRegistry, WorkerSummary

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.pods.types import UpdatePodOptions
    from trikubelet.runtime.model import PodRuntimeStatus

Record: TypeAlias = tuple[object, ...]


class PureNode:
    """Carries out commands without a clock. `records` says what the syncer would have been called with."""

    def __init__(self) -> None:
        self.registry = PodWorkerRegistry()
        self.now = 0.0
        self.workers: set[str] = set()
        self.woken: set[str] = set()
        self.held: set[str] = set()
        """Workers that do not get to run."""
        self.busy: dict[str, Work] = {}
        self.cancelled: set[str] = set()
        self.retries: dict[str, Retry] = {}
        self.notified: list[str] = []
        self.records: dict[str, list[Record]] = {}

    def update(self, options: UpdatePodOptions, status: PodRuntimeStatus | None = None) -> None:
        self.now += 1
        self.carry_out(self.registry.update_pod(options, self.now, status))

    def sync_known_pods(self, *desired: Pod | str) -> dict[str, WorkerSummary]:
        self.now += 1
        uids = {pod if isinstance(pod, str) else pod.metadata.uid for pod in desired}
        summaries, commands = self.registry.sync_known_pods(uids, self.now)
        self.carry_out(commands)
        return summaries

    def begin(self, uid: str) -> Work | None:
        """Let one worker look for work; it stays busy with it."""
        self.woken.discard(uid)
        self.now += 1
        self.carry_out(self.registry.begin(uid, self.now))
        return self.busy.get(uid)

    def done(self, uid: str, outcome: Outcome = Completed()) -> None:  # noqa: B008 - a frozen value
        del self.busy[uid]
        self.cancelled.discard(uid)
        self.now += 1
        self.carry_out(self.registry.done(uid, outcome, self.now))

    def retry(self, uid: str) -> None:
        self.carry_out(self.registry.retry(uid))

    def settle(self, outcome: Outcome = Completed()) -> None:  # noqa: B008
        """Run every worker until none has anything to do; work that fails is not tried again."""
        while ready := sorted((self.woken | self.busy.keys()) - self.held):
            for uid in ready:
                if uid in self.busy or self.begin(uid) is not None:
                    self.done(uid, outcome)

    def carry_out(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            match command:
                case StartWorker(uid):
                    assert uid not in self.workers
                    self.workers.add(uid)
                case StopWorker(uid):
                    assert uid not in self.busy
                    self.workers.remove(uid)
                    self.woken.discard(uid)
                case Wake(uid):
                    assert uid in self.workers
                    self.woken.add(uid)
                case Run(uid, work):
                    assert uid not in self.busy
                    self.busy[uid] = work
                    self.records.setdefault(uid, []).append(_record(work))
                case CancelWork(uid):
                    assert uid in self.busy
                    self.cancelled.add(uid)
                case Retry(uid):
                    self.retries[uid] = command
                case Notify(uid, callbacks):
                    self.notified.append(uid)
                    for callback in callbacks:
                        callback()


def _record(work: Work) -> Record:
    match work:
        case SyncPod(update):
            return ("sync", update.update_type.value)
        case TerminatePod(_, grace):
            return ("terminate", grace)
        case TerminateRuntimePod():
            return ("terminate runtime pod",)
        case CleanUpPod():
            return ("clean up",)
