"""What is counted of resizes, in the kubelet's words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import Quantity
from trikubelet.formats.values import define, frozen
from trikubelet.telemetry.metrics import Counts, Labels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.allocation.model import PodAllocation

POD_UPDATED: Final = "pod_updated"
PODS_ADDED: Final = "pods_added"
PODS_REMOVED: Final = "pods_removed"
POD_TERMINATED: Final = "pod_terminated"
POD_RESIZED: Final = "pod_resized"
NODE_CHANGED: Final = "node_changed"
TRIGGERS: Final = frozenset({POD_UPDATED, PODS_ADDED, PODS_REMOVED, POD_TERMINATED, POD_RESIZED, NODE_CHANGED})
"""What made a waiting resize possible, as `kubelet_pod_deferred_accepted_resizes_total` counts it; the last is ours."""

_RESOURCES: Final = ("memory", "cpu")
_NONE: Final = Quantity()


@define
class ResizeCounts:
    """What is counted since the agent began."""

    requested: Counts = attrs.field(factory=Counter)
    """Changes that users asked for: the resource, `requests` or `limits`, and what of it changed."""
    deferred_accepted: Counts = attrs.field(factory=Counter)
    """Resizes that were granted after they had been deferred, by what made it possible (one of TRIGGERS)."""
    infeasible: Counts = attrs.field(factory=Counter)
    """Resizes found infeasible, by what is in the way."""


@frozen
class ResizeStatistics:
    """How many pods are in which condition now."""

    pending: Counts
    """By reason, in lower case."""
    in_progress: int
    waiting: int
    """Pods that will be asked about again."""


def requested(old: PodAllocation, new: PodAllocation) -> Iterator[Labels]:
    """Each change of one container's resources (kubelet: `recordContainerResizeOperations`). Pure."""
    for name, before in old.containers.items():
        after = new.containers.get(name, before)
        for resource in _RESOURCES:
            for requirement, was, is_ in (
                ("requests", before.requests, after.requests),
                ("limits", before.limits, after.limits),
            ):
                operation = _operation(was.get(resource, _NONE), is_.get(resource, _NONE))
                if operation:
                    yield resource, requirement, operation


def _operation(old: Quantity, new: Quantity) -> str:
    if old == new:
        return ""
    if new == _NONE:
        return "remove"
    if old == _NONE:
        return "add"
    return "decrease" if new < old else "increase"
