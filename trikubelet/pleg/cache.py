"""The pod status cache: what was last observed of each pod, and a way to wait for something newer.

Only `Pleg` writes. A reader that needs an observation newer than a given time never waits for a period to pass: the
cache asks for an inspection of that pod at once (`request_inspection`), which all readers of the same pod share.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.container.model import PodRuntimeStatus, nothing_runs
from trikubelet.formats.values import define, frozen

if TYPE_CHECKING:
    from collections.abc import Callable


@define
class _Entry:
    status: PodRuntimeStatus
    error: Exception | None
    observed_at: float
    runs: bool = False
    """Whether something of the pod was seen to run."""


@frozen
class PodStatusCacheStatistics:
    pods: int
    waiting: int


class PodStatusCache:
    """Statuses by pod UID. Implements `trikubelet.pods.types.PodCache`."""

    def __init__(self, request_inspection: Callable[[str, float], None]) -> None:
        """`request_inspection` sees to it that an inspection of the pod begins, or began, at or after a Trio time."""
        self._request_inspection = request_inspection
        self._entries: dict[str, _Entry] = {}
        self._waiters: dict[str, trio.Event] = {}
        self._listed_at: float | None = None
        self._owners: dict[str, str] = {}
        """By the id of a container or sandbox, the pod that was last seen with it."""

    def get(self, uid: str) -> PodRuntimeStatus:
        """What was last observed, an empty status for a pod never seen. Raises the last inspection's error."""
        entry = self._entries.get(uid)
        if entry is None:
            return PodRuntimeStatus(uid=uid, name="", namespace="")
        if entry.error is not None:
            raise entry.error
        return entry.status

    async def get_newer_than(self, uid: str, min_time: float) -> PodRuntimeStatus:
        """A status observed at or after `min_time` (Trio time).

        Returns at once when there is one; a pod that a complete list, begun since, did not hold has an empty one.
        Else asks for an inspection and waits for it, also when the last one failed. Raises the inspection's error. May
        be cancelled freely.
        """
        began = trio.current_time()
        while True:
            entry = self._entries.get(uid)
            if entry is not None and entry.observed_at >= max(min_time, began if entry.error is not None else min_time):
                return self.get(uid)
            if entry is None and self._listed_at is not None and self._listed_at >= min_time:
                return self.get(uid)
            waiter = self._waiters.setdefault(uid, trio.Event())
            self._request_inspection(uid, min_time)
            await waiter.wait()

    def publish(self, uid: str, status: PodRuntimeStatus, observed_at: float) -> None:
        """An inspection that began at `observed_at` saw this."""
        self._disown(uid)
        self._entries[uid] = _Entry(status, None, observed_at, not nothing_runs(status))
        self._owners.update(dict.fromkeys(_ids(status), uid))
        self._wake(uid)

    def publish_error(self, uid: str, error: Exception, observed_at: float) -> None:
        """An inspection that began at `observed_at` failed. What was seen before is kept for the next comparison."""
        entry = self._entries.get(uid)
        if entry is None:
            entry = self._entries[uid] = _Entry(PodRuntimeStatus(uid=uid, name="", namespace=""), error, observed_at)
        entry.error, entry.observed_at = error, observed_at
        self._wake(uid)

    def publish_removal(self, uid: str, container_id: str) -> None:
        """The runtime said that this container or sandbox is removed. Nothing else was looked at."""
        entry = self._entries[uid]
        self._owners.pop(container_id, None)
        entry.status = attrs.evolve(
            entry.status,
            sandbox_statuses=tuple(one for one in entry.status.sandbox_statuses if one.id != container_id),
            container_statuses=tuple(one for one in entry.status.container_statuses if one.id.id != container_id),
        )
        entry.runs = not nothing_runs(entry.status)

    def last_seen(self, uid: str) -> PodRuntimeStatus | None:
        """The newest status without its error."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.status

    def has_begun(self, uid: str) -> bool:
        """Whether the runtime was last seen to hold something of the pod."""
        seen = self.last_seen(uid)
        return seen is not None and bool(seen.sandbox_statuses or seen.container_statuses)

    def runs(self, uid: str) -> bool:
        """Whether the runtime was last seen to run something of the pod: a container, or a sandbox."""
        entry = self._entries.get(uid)
        return entry is not None and entry.runs

    def observed_at(self, uid: str) -> float:
        """When the newest successful inspection began, in Trio time; minus infinity without one."""
        entry = self._entries.get(uid)
        return -math.inf if entry is None or entry.error is not None else entry.observed_at

    def forget(self, uid: str) -> None:
        """A complete list did not hold this pod, and its last inspection found nothing."""
        self._disown(uid)
        self._entries.pop(uid, None)

    def record_complete_list(self, began_at: float) -> None:
        """A list of all pods, begun at that time, is complete and its changes are being inspected."""
        self._listed_at = began_at

    def pod_of(self, container_id: str) -> str | None:
        """The UID of the pod that was last seen with this container or sandbox."""
        return self._owners.get(container_id)

    def _disown(self, uid: str) -> None:
        entry = self._entries.get(uid)
        if entry is not None:
            for container_id in _ids(entry.status):
                if self._owners.get(container_id) == uid:
                    del self._owners[container_id]

    def uids(self) -> set[str]:
        return set(self._entries)

    @property
    def is_complete(self) -> bool:
        """Whether all pods were listed once."""
        return self._listed_at is not None

    def statistics(self) -> PodStatusCacheStatistics:
        return PodStatusCacheStatistics(pods=len(self._entries), waiting=len(self._waiters))

    def _wake(self, uid: str) -> None:
        waiter = self._waiters.pop(uid, None)
        if waiter is not None:
            waiter.set()


def _ids(status: PodRuntimeStatus) -> list[str]:
    sandboxes = [sandbox.id for sandbox in status.sandbox_statuses]
    return sandboxes + [container.id.id for container in status.container_statuses]
