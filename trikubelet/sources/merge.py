"""From what each source wants to what changed: ADD, UPDATE, DELETE, REMOVE, RECONCILE.

Pure. Every source sends its whole truth (SET); `merge_source` compares it with what that source sent before and says
which pods are new, changed, gone, or changed in their status only. Follows the kubelet's `podStorage`.

A pod that is known keeps its object: of a new version it takes the spec, labels, annotations, deletion marks,
generation and status, and keeps everything else, with the annotations that the node made itself.

Most pods of a set are the very objects of the set before, since a source that watches changes one pod at a time. They
are not looked into: with hundreds of pods, comparing all for each change of one would be most of what the agent does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import (
    CONFIG_FIRST_SEEN_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_SOURCE_ANNOTATION,
)
from trikubelet.sources.types import PodOperation, PodUpdate

if TYPE_CHECKING:
    from datetime import datetime

LOCAL_ANNOTATIONS: Final = (CONFIG_SOURCE_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_FIRST_SEEN_ANNOTATION)
"""Annotations that the node adds; they are no difference between two versions of a pod."""

_DELIVERY: Final = (PodOperation.REMOVE, PodOperation.ADD, PodOperation.UPDATE, PodOperation.DELETE)


@attrs.frozen
class Merged:
    """The outcome of one SET."""

    pods: Mapping[str, Pod]
    """What the source has now, by UID."""
    sent: Mapping[str, Pod]
    """What it sent, by UID: the objects that the next set is compared with."""
    updates: tuple[PodUpdate, ...]
    """What changed, in the order in which it is to be delivered."""
    duplicates: tuple[Pod, ...] = ()
    """Pods that were dropped, since an earlier one of this source has their full name or UID."""


NOTHING: Final[Merged] = Merged({}, {}, ())
"""Before the first set."""


def merge_source(source: str, before: Merged, pods: Sequence[Pod], *, now: datetime, first: bool) -> Merged:
    """Compare a source's pods with those that it had.

    `first` says that the source was not heard of before: then an update is sent even when there is no pod, so that the
    sync loop learns that the source is ready.
    """
    known, sent_before = before.pods, before.sent
    changes: dict[PodOperation, list[Pod]] = {operation: [] for operation in PodOperation}
    current: dict[str, Pod] = {}
    sent: dict[str, Pod] = {}
    names: set[tuple[str, str]] = set()
    duplicates: list[Pod] = []
    for raw in pods:
        uid, name = raw.metadata.uid, (raw.metadata.namespace, raw.metadata.name)
        if name in names or uid in current:
            duplicates.append(raw)
            continue
        names.add(name)
        sent[uid] = raw
        if sent_before.get(uid) is raw:
            current[uid] = known[uid]
            continue
        pod = _annotated(raw, CONFIG_SOURCE_ANNOTATION, source)
        existing = known.get(uid)
        if existing is None:
            merged = _annotated(pod, CONFIG_FIRST_SEEN_ANNOTATION, format_timestamp(now))
            changes[PodOperation.ADD].append(merged)
        else:
            merged, operation = _compare(existing, pod)
            if operation is not None:
                changes[operation].append(merged)
        current[uid] = merged
    changes[PodOperation.REMOVE] = [pod for uid, pod in known.items() if uid not in current]
    return Merged(current, sent, tuple(_deliver(source, changes, first)), tuple(duplicates))


def _deliver(source: str, changes: Mapping[PodOperation, list[Pod]], first: bool) -> list[PodUpdate]:
    updates = [PodUpdate(op, source, tuple(changes[op])) for op in _DELIVERY if changes[op]]
    if first and all(update.op is PodOperation.REMOVE for update in updates):
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
