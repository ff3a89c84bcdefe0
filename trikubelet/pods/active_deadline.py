"""`activeDeadlineSeconds`: how long a pod may be active on the node. Pure (kubelet: `active_deadline.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.api import Pod

REASON: Final = "DeadlineExceeded"
MESSAGE: Final = "Pod was active on the node longer than the specified deadline"


def is_past_active_deadline(pod: Pod, start_time: datetime | None, now: datetime) -> bool:
    """Whether the pod's time is over. `start_time`: when the agent first took note of it, None if it has not yet."""
    limit = pod.spec.active_deadline_seconds
    return limit is not None and start_time is not None and (now - start_time).total_seconds() >= limit
