"""What travels between the sync loop, the pod workers and the code that syncs a pod."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from trikubelet.api import Pod
from trikubelet.runtime.model import RunningPod

if TYPE_CHECKING:
    from trikubelet.api import PodStatus
    from trikubelet.runtime.model import PodRuntimeStatus


class SyncPodType(enum.Enum):
    """Why a pod is handed to its worker (kubelet: `SyncPodType`)."""

    CREATE = "create"
    UPDATE = "update"
    SYNC = "sync"
    KILL = "kill"


STATUS_TIMEOUT: Final = 120.0
"""Seconds to wait for an inspection of a pod: what one call to the runtime may take."""

PodStatusFn = Callable[["PodStatus"], "PodStatus"]
"""Changes the status that a killed pod ends with (eviction sets phase, reason and message)."""


@attrs.frozen
class KillPodOptions:
    """How a pod is killed (kubelet: `KillPodOptions`)."""

    on_completed: Callable[[], None] | None = None
    """Called once when the pod's containers have ended."""
    evict: bool = False
    pod_status_fn: PodStatusFn | None = None
    grace_period_override: int | None = None
    """Seconds."""


@attrs.frozen
class UpdatePodOptions:
    """One request to a pod's worker (kubelet: `UpdatePodOptions`). Exactly one of pod and running_pod is given."""

    update_type: SyncPodType
    start_time: float
    """Trio time at which the agent learned of the change."""
    pod: Pod | None = None
    mirror_pod: Pod | None = None
    running_pod: RunningPod | None = None
    """A pod that only the runtime knows; only with KILL."""
    kill_options: KillPodOptions | None = None


@attrs.frozen
class PodSyncReport:
    """What came of a work that did not fail."""

    acted_at: float | None
    """Trio time at which the pod was last changed: what was observed before says nothing about it any more. None when
    there was nothing to do."""
    terminal: bool = False
    """The pod has reached a terminal phase: it is to be ended."""


class PodSyncer(Protocol):
    """The four things that a pod worker does to a pod. Each may raise; the worker then tries again with backoff.

    Each may be cancelled at any await, and leaves nothing that the next call cannot repair.
    """

    async def sync_pod(
        self, update_type: SyncPodType, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus
    ) -> PodSyncReport:
        """Make the runtime match the pod."""
        ...

    async def sync_terminating_pod(
        self, pod: Pod, status: PodRuntimeStatus, grace_period: int | None, pod_status_fn: PodStatusFn | None
    ) -> PodSyncReport:
        """Stop every container of the pod; returns only when none runs."""
        ...

    async def sync_terminating_runtime_pod(self, running_pod: RunningPod) -> None:
        """Stop a pod of which only the runtime knows."""
        ...

    async def sync_terminated_pod(self, pod: Pod, status: PodRuntimeStatus) -> None:
        """Release what the pod held (volumes, cgroups) after its containers ended."""
        ...


class PodCache(Protocol):
    """The pod status cache as its readers see it; only PLEG writes to it (`trikubelet.pleg.cache`)."""

    def get(self, uid: str) -> PodRuntimeStatus:
        """What was last observed; an empty status for a pod never seen. Raises the last inspection's error."""
        ...

    async def get_newer_than(self, uid: str, min_time: float) -> PodRuntimeStatus:
        """A status observed at or after `min_time` (Trio time). Asks for an inspection when there is none yet.

        Raises the inspection's error. Cancelling it disturbs no other waiter.
        """
        ...
