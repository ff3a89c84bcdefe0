"""How long to wait before the next attempt: doubling waits, forgotten after a quiet time.

`KeyedBackoff` has the rules of client-go's `flowcontrol.Backoff`. It is pure: time comes in as seconds of whatever
clock the caller uses. Two moments matter to each question: when the thing ended or failed (`event`), and when the entry
was last touched. `CrashLoops` applies it to containers that end over and over (CrashLoopBackOff). The waits are kept in
memory only, as in the kubelet: a container that crashes again after the agent was restarted waits from the shortest
time on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import to_dict
from trikubelet.backoff import Backoff
from trikubelet.container.messages import describe_duration, describe_pod
from trikubelet.container.model import ContainerState
from trikubelet.formats.hashing import fnv1a_64
from trikubelet.formats.values import define, frozen
from trikubelet.runtime.results import CRASH_LOOP_BACK_OFF, SyncAction, SyncResult
from trikubelet.telemetry.events import EventType

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.clock import WallClock
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus
    from trikubelet.telemetry.events import EventRecorder

CONTAINER_INITIAL: Final = 10.0
CONTAINER_MAXIMUM: Final = 300.0
CONTAINER_RESET: Final = 600.0
"""A container that ran this long before it ended starts over, whatever the maximum is."""
IMAGE_INITIAL: Final = 10.0
IMAGE_MAXIMUM: Final = 300.0


@frozen
class _Entry:
    wait: float
    updated: float


@define
class KeyedBackoff:
    """Waits per key. Seconds throughout."""

    waits: Backoff
    reset_after: float | None = None
    """Quiet seconds after which a key is as new; twice the maximum by default."""
    _entries: dict[str, _Entry] = attrs.field(factory=dict, init=False)

    @classmethod
    def for_containers(cls, maximum: float = CONTAINER_MAXIMUM, first: float = CONTAINER_INITIAL) -> KeyedBackoff:
        """CrashLoopBackOff (kubelet: `newCrashLoopBackOff`)."""
        return cls(Backoff(min(first, maximum), maximum), CONTAINER_RESET)

    @classmethod
    def for_images(cls) -> KeyedBackoff:
        """ImagePullBackOff."""
        return cls(Backoff(IMAGE_INITIAL, IMAGE_MAXIMUM))

    def wait_of(self, key: str) -> float:
        """The wait that is now in force for the key, 0 for an unknown one."""
        entry = self._entries.get(key)
        return 0.0 if entry is None else entry.wait

    def advance(self, key: str, event: float, now: float) -> None:
        """Note one more failure: the first wait for a new or expired key, else twice the last, up to the maximum."""
        entry = self._entries.get(key)
        fresh = entry is None or self._expired(entry, event)
        wait = self.waits.first if entry is None or fresh else self.waits.after(entry.wait)
        self._entries[key] = _Entry(wait, now)

    def in_backoff_since(self, key: str, event: float, now: float) -> bool:
        """Whether the wait that began at `event` is still running."""
        entry = self._entries.get(key)
        return entry is not None and not self._expired(entry, event) and now - event < entry.wait

    def in_backoff_since_update(self, key: str, now: float) -> bool:
        """Whether the wait that began with the last `advance` is still running."""
        entry = self._entries.get(key)
        return entry is not None and not self._expired(entry, now) and now - entry.updated < entry.wait

    def expires_at(self, key: str) -> float:
        """When the wait that began with the last `advance` ends. KeyError for an unknown key."""
        entry = self._entries[key]
        return entry.updated + entry.wait

    def reset(self, key: str) -> None:
        """Forget a key."""
        self._entries.pop(key, None)

    def collect(self, now: float) -> None:
        """Forget every expired key, so that the table cannot grow for ever."""
        for key in [key for key, entry in self._entries.items() if self._expired(entry, now)]:
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)

    def _expired(self, entry: _Entry, event: float) -> bool:
        quiet = 2 * self.waits.longest if self.reset_after is None else self.reset_after
        return event - entry.updated > quiet


class CrashLoops:
    """Keeps containers that end over and over from starting at once."""

    def __init__(
        self, recorder: EventRecorder, clock: WallClock, longest_wait: float, first_wait: float = CONTAINER_INITIAL
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._backoff = KeyedBackoff.for_containers(longest_wait, first_wait)

    def forget(self, pod: Pod, container: Container) -> None:
        """It may start at once, however often it has ended."""
        self._backoff.reset(backoff_key(pod, container))

    def hold_back(self, pod: Pod, container: Container, status: PodRuntimeStatus) -> SyncResult | None:
        """The result of a container that has to wait before it starts again, after the event for it.

        None when it may start; the wait after this start is then the longer one.
        """
        ended = _last_ended(status, container.name)
        if ended is None:
            return None
        finished = 0.0 if ended.finished_at is None else ended.finished_at.timestamp()
        now = self._clock.now().timestamp()
        key = backoff_key(pod, container)
        if not self._backoff.in_backoff_since(key, finished, now):
            self._backoff.advance(key, finished, now)
            return None
        wait = self._backoff.wait_of(key)
        described = describe_pod(pod)
        event = f"Back-off restarting failed container {container.name} in pod {described}"
        self._recorder.pod_event(pod, EventType.WARNING, "BackOff", event, container=container.name)
        message = f"back-off {describe_duration(wait)} restarting failed container={container.name} pod={described}"
        retry_at = trio.current_time() + finished + wait - now
        return SyncResult(SyncAction.START_CONTAINER, container.name, CRASH_LOOP_BACK_OFF, message, retry_at)

    def collect(self) -> None:
        """Forget containers that have been quiet for long."""
        self._backoff.collect(self._clock.now().timestamp())


def backoff_key(pod: Pod, container: Container) -> str:
    """The key of a container's CrashLoopBackOff: a change of any part of it starts the waits over.

    Kubelet: `GetBackoffKey`.
    """
    resources = json.dumps(to_dict(container.resources), sort_keys=True)
    metadata = pod.metadata
    parts = (metadata.name, metadata.namespace, metadata.uid, container.name, container.image, resources)
    return f"{fnv1a_64('/'.join(parts).encode()):x}"


def _last_ended(status: PodRuntimeStatus, name: str) -> ContainerStatus | None:
    ended = (one for one in status.container_statuses if one.name == name and one.state is ContainerState.EXITED)
    return next(ended, None)
