"""What travels between the sync loop, the pod workers, the life of a pod and the code that syncs it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from trikubelet.api import Pod
from trikubelet.container.model import RunningPod
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import trio

    from trikubelet.api import PodStatus
    from trikubelet.container.model import PodRuntimeStatus


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


UpdateType: TypeAlias = Literal[SyncPodType.CREATE, SyncPodType.UPDATE, SyncPodType.SYNC]


@frozen(kw_only=True)
class UpdatePod:
    """A new version of a pod, or a reason to look at it again. It may ask for the pod's end by what it says of it."""

    update_type: UpdateType
    pod: Pod
    mirror_pod: Pod | None = None
    start_time: float
    """Trio time at which the agent learned of the change."""


@frozen(kw_only=True)
class KillPod:
    """The end of a pod (kubelet: `KillPodOptions`). To wait for it, await the pod's life."""

    pod: Pod
    mirror_pod: Pod | None = None
    start_time: float
    asked_by: str = ""
    """Who asks for it, and why, for people."""
    evict: bool = False
    pod_status_fn: PodStatusFn | None = None
    grace_period_override: int | None = None
    """Seconds."""


@frozen(kw_only=True)
class KillRuntimePod:
    """The end of a pod of which only the runtime knows."""

    running_pod: RunningPod
    start_time: float
    asked_by: str = ""
    """As of a `KillPod`."""
    grace_period_override: int | None = None
    """Seconds."""


Request: TypeAlias = UpdatePod | KillPod | KillRuntimePod
"""What a pod's life can be asked for (kubelet: `UpdatePodOptions`)."""


@frozen
class Kill:
    """How the containers are to be ended."""

    grace_period: int
    """Seconds; only ever shrinks."""
    deadline: float
    """The end of the grace period in Trio time; only ever moves closer."""
    status_fn: PodStatusFn | None = None
    """Of the last request that had one."""


@frozen
class PodSyncReport:
    """What came of a work that did not fail."""

    acted_at: float | None
    """Trio time at which the pod was last changed: what was observed before says nothing about it any more. None when
    there was nothing to do."""
    terminal: bool = False
    """The pod has reached a terminal phase: it is to be ended."""
    why: str = ""
    """Why it has, for people."""


class PodSyncer(Protocol):
    """What the life of one pod does to it. Each call may raise; the life then tries again with backoff.

    Each may be cancelled at any await, and leaves nothing that the next call cannot repair.
    """

    async def sync_pod(
        self,
        update_type: SyncPodType,
        pod: Pod,
        mirror_pod: Pod | None,
        status: PodRuntimeStatus,
    ) -> PodSyncReport:
        """Make the runtime match the pod."""
        ...

    async def sync_terminating_pod(self, pod: Pod, status: PodRuntimeStatus, kill: Callable[[], Kill]) -> PodSyncReport:
        """Stop every container of the pod; returns only when none runs. `kill` tells how, as asked for by now."""
        ...

    async def sync_terminating_runtime_pod(self, running_pod: RunningPod, kill: Kill) -> None:
        """Stop a pod of which only the runtime knows."""
        ...

    def shorten_grace(self, deadline: float) -> None:
        """Containers that are being stopped have until `deadline` (Trio time), if that is sooner than what they had."""
        ...

    async def sync_terminated_pod(self, pod: Pod, status: PodRuntimeStatus) -> None:
        """Release what the pod held outside of this process, after its containers ended."""
        ...


class OpenPod(Protocol):
    """Makes the syncer of one pod."""

    def __call__(self, uid: str, nursery: trio.Nursery, /) -> AbstractContextManager[PodSyncer]:
        """What runs for the pod runs in `nursery`, and is gone when that closes; what is only kept for the pod goes
        with the context."""
        ...


DesiredPod: TypeAlias = Callable[[str], tuple[Pod, Pod | None] | None]
"""UID to the pod and its mirror pod as they are desired now; None for a pod that is not desired any more."""


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
