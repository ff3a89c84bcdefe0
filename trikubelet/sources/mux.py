"""Merges the pods of all sources into one stream of changes for the sync loop (kubelet: `pkg/kubelet/config`).

Every source sends its whole set of pods whenever it may have changed. `merge_source` (pure) compares a set with the one
that this source sent before: which pods are new, changed, gone, or changed in their status only. `SourceMux` runs the
sources and sends these changes. A source merges and sends in its own task, and waits until the sync loop has taken its
changes; so those of one source arrive in order. Until every source has sent its first set, no pod may be cleaned up for
being unknown (`sources_ready`).

A pod that is known keeps its object (kubelet: `podStorage`): of a new version it takes the spec, labels, annotations,
deletion marks, generation and status, and keeps everything else, with the annotations that the node made itself.

Most pods of a set are the very objects of the set before, since a source that watches changes one pod at a time. They
are not looked into: with hundreds of pods, comparing all for each change of one would be most of what the agent does.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs
import trio

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import (
    CONFIG_FIRST_SEEN_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
)
from trikubelet.formats.values import frozen
from trikubelet.supervision import supervise
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.clock import WallClock
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("sources")

LOCAL_ANNOTATIONS: Final = (CONFIG_SOURCE_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_FIRST_SEEN_ANNOTATION)
"""Annotations that the node adds; they are no difference between two versions of a pod."""

SLICE: Final = 500
"""Pods that are compared before the event loop turns: some milliseconds."""
SendPods: TypeAlias = Callable[[tuple[Pod, ...]], Awaitable[None]]
"""Takes the whole set of a source's pods, and returns when the sync loop has taken what changed."""


class PodOperation(enum.Enum):
    """What happened to the pods of an update (kubelet: `PodOperation`)."""

    ADD = "add"
    DELETE = "delete"
    REMOVE = "remove"
    UPDATE = "update"
    RECONCILE = "reconcile"


_DELIVERY: Final = (PodOperation.REMOVE, PodOperation.ADD, PodOperation.UPDATE, PodOperation.DELETE)


@frozen
class PodUpdate:
    """Pods of one source that one operation concerns."""

    op: PodOperation
    source: str
    """`file`, `http` or `api`."""
    pods: tuple[Pod, ...] = ()


class PodSource(Protocol):
    """Something that says which pods this node should run."""

    @property
    def name(self) -> str:
        """`file`, `http` or `api`."""
        ...

    async def run(self, send: SendPods, *, task_status: trio.TaskStatus[None]) -> None:
        """Send the whole set of pods whenever it may have changed, until cancelled. Started before the first set."""
        ...


# --- Merging (pure) --------------------------------------------------------------------------------------------------


@frozen
class Merged:
    """The outcome of one set."""

    pods: Mapping[str, Pod]
    """What the source has now, by UID."""
    sent: Mapping[str, Pod]
    """What it sent, by UID: the objects that the next set is compared with."""
    names: AbstractSet[tuple[str, str]]
    """Namespaces and names of `pods`."""
    updates: tuple[PodUpdate, ...]
    """What changed, in the order in which it is to be delivered."""
    duplicates: tuple[Pod, ...] = ()
    """Pods that were dropped, since an earlier one of this source has their full name or UID."""


def merge_source(
    source: str,
    before: Merged | None,
    pods: Sequence[Pod],
    *,
    now: datetime,
    change: Callable[[Pod], Pod] | None = None,
) -> Merged:
    """Compare a source's pods with those that it had.

    `before` is None for the first set of a source: then there is an update even when there is no pod, so that the sync
    loop learns that the source is ready. `change` is done to each pod first.
    """
    merging = _Merging(source, before, now, change)
    merging.take(pods)
    return merging.result()


class _Merging:
    """A set that is being compared with the one before. It may be taken in slices."""

    def __init__(self, source: str, before: Merged | None, now: datetime, change: Callable[[Pod], Pod] | None) -> None:
        self._source = source
        self._first = before is None
        self._known, self._sent_before = ({}, {}) if before is None else (before.pods, before.sent)
        self._now = now
        self._change = change
        self._changes: dict[PodOperation, list[Pod]] = {operation: [] for operation in PodOperation}
        self._current: dict[str, Pod] = {}
        self._sent: dict[str, Pod] = {}
        self._names: set[tuple[str, str]] = set()
        self._duplicates: list[Pod] = []

    def take(self, pods: Sequence[Pod]) -> None:
        """Compare more pods of the set, in its order."""
        known, sent_before, current, names = self._known, self._sent_before, self._current, self._names
        for raw in pods:
            uid, name = raw.metadata.uid, (raw.metadata.namespace, raw.metadata.name)
            if name in names or uid in current:
                self._duplicates.append(raw)
                continue
            names.add(name)
            self._sent[uid] = raw
            current[uid] = known[uid] if sent_before.get(uid) is raw else self._merged(raw)

    def _merged(self, raw: Pod) -> Pod:
        pod = _annotated(raw if self._change is None else self._change(raw), CONFIG_SOURCE_ANNOTATION, self._source)
        existing = self._known.get(raw.metadata.uid)
        if existing is None:
            new = _annotated(pod, CONFIG_FIRST_SEEN_ANNOTATION, format_timestamp(self._now))
            self._changes[PodOperation.ADD].append(new)
            return new
        merged, operation = _compare(existing, pod)
        if operation is not None:
            self._changes[operation].append(merged)
        return merged

    def result(self) -> Merged:
        """The outcome, when the whole set has been taken."""
        gone = [pod for uid, pod in self._known.items() if uid not in self._current]
        self._changes[PodOperation.REMOVE] = gone
        updates = tuple(_deliver(self._source, self._changes, first=self._first))
        return Merged(self._current, self._sent, self._names, updates, tuple(self._duplicates))


def _deliver(source: str, changes: Mapping[PodOperation, list[Pod]], *, first: bool) -> list[PodUpdate]:
    updates = [PodUpdate(op, source, tuple(changes[op])) for op in _DELIVERY if changes[op]]
    if first and not updates:
        updates.append(PodUpdate(PodOperation.ADD, source))
    if changes[PodOperation.RECONCILE]:
        updates.append(PodUpdate(PodOperation.RECONCILE, source, tuple(changes[PodOperation.RECONCILE])))
    return updates


def _compare(existing: Pod, new: Pod) -> tuple[Pod, PodOperation | None]:
    """The pod as it is to be kept, and what has to be done about the difference."""
    if not pods_differ(existing, new):
        if existing.status == new.status:
            return existing, None
        return attrs.evolve(existing, status=new.status), PodOperation.RECONCILE
    local = {key: value for key, value in existing.metadata.annotations.items() if key in LOCAL_ANNOTATIONS}
    metadata = attrs.evolve(
        existing.metadata,
        labels=new.metadata.labels,
        annotations={**new.metadata.annotations, **local},
        deletion_timestamp=new.metadata.deletion_timestamp,
        deletion_grace_period_seconds=new.metadata.deletion_grace_period_seconds,
        generation=new.metadata.generation,
    )
    merged = attrs.evolve(existing, metadata=metadata, spec=new.spec, status=new.status)
    return merged, PodOperation.UPDATE if new.metadata.deletion_timestamp is None else PodOperation.DELETE


def pods_differ(existing: Pod, new: Pod) -> bool:
    """Whether two versions of a pod ask for something different (kubelet: `podsDifferSemantically`)."""
    old, young = existing.metadata, new.metadata
    return (
        existing.spec != new.spec
        or old.labels != young.labels
        or old.deletion_timestamp != young.deletion_timestamp
        or old.deletion_grace_period_seconds != young.deletion_grace_period_seconds
        or _foreign_annotations(existing) != _foreign_annotations(new)
    )


def _foreign_annotations(pod: Pod) -> dict[str, str]:
    return {key: value for key, value in pod.metadata.annotations.items() if key not in LOCAL_ANNOTATIONS}


def _annotated(pod: Pod, key: str, value: str) -> Pod:
    annotations = {**pod.metadata.annotations, key: value}
    return attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, annotations=annotations))


def format_timestamp(moment: datetime) -> str:
    """RFC 3339 with nine digits, as the kubelet writes `kubernetes.io/config.seen`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond:06d}000Z"


# --- Running the sources ---------------------------------------------------------------------------------------------


class SourceMux:
    """Runs pod sources and merges what they send (kubelet: `PodConfig`). Source names must differ."""

    def __init__(
        self,
        sources: Sequence[PodSource],
        *,
        clock: WallClock,
        recorder: EventRecorder | None = None,
        change: Callable[[Pod], Pod] | None = None,
    ) -> None:
        """`change` is done to every pod that comes.

        `recorder` gets an event for a source's pod that is dropped because an earlier one has its full name or UID:
        once, and again when the pod is dropped anew after it was not.
        """
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise ValueError(f"expected sources with different names, got {names}")
        self._sources = tuple(sources)
        self._names = frozenset(names)
        self._clock = clock
        self._recorder = recorder
        self._change = change
        self._merged: dict[str, Merged] = {}
        """The last set of each source that has sent one."""
        self._unsent: dict[str, list[PodUpdate]] = {name: [] for name in names}
        """What the sets have changed and is not sent yet: a source may fail meanwhile, and is begun again."""

    def sources_ready(self, seen: AbstractSet[str]) -> bool:
        """Whether every source has sent its pods and `seen`, the sources whose updates the caller has handled, names
        them all (kubelet: `SeenAllSources`)."""
        return self._names <= seen and self._names <= self._merged.keys()

    def has_pod_named(self, source: str, namespace: str, name: str) -> bool:
        """True if a source that has sent its pods wants one of this name now."""
        return (namespace, name) in self._merged[source].names

    async def run(
        self,
        send: trio.MemorySendChannel[PodUpdate],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run all sources and send their changes. Runs until cancelled; closes `send` then.

        `task_status.started` is called when every source has started. One that fails later is begun again.
        """
        async with send, trio.open_nursery() as nursery:
            for source in self._sources:
                await nursery.start(supervise, source.run, partial(self._merge_and_send, source.name, send))
            if not self._sources:  # the agent runs all the same: it ends what an earlier one has left
                nursery.start_soon(supervise, trio.sleep_forever)
            task_status.started()

    async def _merge_and_send(
        self, source: str, send: trio.MemorySendChannel[PodUpdate], pods: tuple[Pod, ...]
    ) -> None:
        before = self._merged.get(source)
        merging = _Merging(source, before, self._clock.now(), self._change)
        for begin in range(0, len(pods), SLICE):
            if begin:
                await trio.lowlevel.checkpoint()
            merging.take(pods[begin : begin + SLICE])
        merged = merging.result()
        # What changed is in the updates; keeping it here would keep old versions of pods.
        self._merged[source] = attrs.evolve(merged, updates=())
        reported = {_identity(pod) for pod in before.duplicates} if before is not None else set()
        for pod in merged.duplicates:
            if _identity(pod) not in reported:
                self._report_duplicate(source, pod)
        unsent = self._unsent[source]
        unsent += merged.updates
        while unsent:
            await send.send(unsent[0])
            del unsent[0]

    def _report_duplicate(self, source: str, pod: Pod) -> None:
        log.warning("pod dropped: another one of this source has its name", source=source, pod=pod.full_name)
        if self._recorder is not None:
            name = pod.metadata.name
            pod_name = f"{name}_{pod.metadata.namespace}({pod.metadata.uid})"
            message = f'Error validating pod {pod_name} from {source} due to duplicate pod name "{name}", ignoring'
            self._recorder.pod_event(pod, EventType.WARNING, "FailedValidation", message)


def _identity(pod: Pod) -> tuple[str, str]:
    return (pod.full_name, pod.metadata.uid)
