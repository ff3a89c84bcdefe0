"""Which resize is asked about first, and whether one makes room for others. Pure.

What a resize changes for the node is what the pod requests of cpu and memory. A change that requests no more of either
is granted wherever nothing else is against it, and may make room; so such go first. Then the kubelet's order: priority,
quality of service, and the longest wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.allocation.conditions import ResizeConditions
from trikubelet.api import QOS_GUARANTEED, Pod, Quantity, pod_requests, qos_class
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

_RESIZED: Final = ("cpu", "memory")
_NOTHING: Final = Quantity()


@frozen
class PendingResize:
    """A pod that wants other resources than it has."""

    wanted: Pod
    """As its spec says."""
    allocated: Pod
    conditions: ResizeConditions


def is_increasing(allocated: Pod, wanted: Pod) -> bool:
    """Whether the pod requests more cpu or more memory than it has (kubelet: `isResizeIncreasingRequests`)."""
    before, after = pod_requests(allocated), pod_requests(wanted)
    return any(after.get(name, _NOTHING) > before.get(name, _NOTHING) for name in _RESIZED)


def makes_room(allocated: Pod, wanted: Pod) -> bool:
    """Whether the pod requests less cpu or less memory than it has."""
    return is_increasing(wanted, allocated)


def in_order(resizes: Iterable[PendingResize]) -> list[PendingResize]:
    """The first to be asked about first; equals stay as they are (kubelet: `sortPendingResizes`)."""
    return sorted(resizes, key=_rank)


def _rank(resize: PendingResize) -> tuple[bool, int, bool, bool, float]:
    wanted, since = resize.wanted, _waiting_since(resize)
    return (
        is_increasing(resize.allocated, wanted),
        -(wanted.spec.priority or 0),
        qos_class(wanted) != QOS_GUARANTEED,
        since is None,
        0.0 if since is None else since.timestamp(),
    )


def _waiting_since(resize: PendingResize) -> datetime | None:
    pending = resize.conditions.pending
    return None if pending is None else pending.last_transition_time
