"""Why containers wait: for the end of their CrashLoopBackOff, or for what the last attempt to start them failed of.

Both are kept in memory only, as in the kubelet: a container that crashes again after the agent was restarted waits from
the shortest time on.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import to_dict
from trikubelet.container.messages import describe_duration, describe_pod
from trikubelet.container.model import ContainerState
from trikubelet.formats.hashing import fnv1a_64
from trikubelet.runtime.backoff import KeyedBackoff
from trikubelet.runtime.results import CRASH_LOOP_BACK_OFF, SyncAction, SyncResult
from trikubelet.telemetry.events import EventType

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.clock import WallClock
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus
    from trikubelet.telemetry.events import EventRecorder

MAX_ENTRIES: Final = 1000


@attrs.define
class WaitingReasons:
    """Reason and message of the last attempt to start a container, by pod and container (kubelet: `ReasonCache`).

    Best effort: the oldest go when there are too many.
    """

    _reasons: OrderedDict[tuple[str, str], tuple[str, str]] = attrs.field(factory=OrderedDict, init=False)

    def note(self, uid: str, result: SyncResult) -> None:
        """An attempt to start one of the pod's containers went like this."""
        key = (uid, result.target)
        if not result.failed:
            self._reasons.pop(key, None)
            return
        self._reasons[key] = (result.reason, result.message)
        self._reasons.move_to_end(key)
        if len(self._reasons) > MAX_ENTRIES:
            self._reasons.popitem(last=False)

    def of_pod(self, uid: str) -> dict[str, tuple[str, str]]:
        """Reason and message for each of the pod's containers that could not be started, by name."""
        return {name: reason for (pod, name), reason in self._reasons.items() if pod == uid}


class CrashLoops:
    """Keeps containers that end over and over from starting at once."""

    def __init__(self, recorder: EventRecorder, clock: WallClock, longest_wait: float) -> None:
        self._recorder = recorder
        self._clock = clock
        self._backoff = KeyedBackoff.for_containers(longest_wait)

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
    """What a container's CrashLoopBackOff is kept under: whatever changes in it starts the waits over.

    Kubelet: `GetBackoffKey`.
    """
    resources = json.dumps(to_dict(container.resources), sort_keys=True)
    metadata = pod.metadata
    parts = (metadata.name, metadata.namespace, metadata.uid, container.name, container.image, resources)
    return f"{fnv1a_64('/'.join(parts).encode()):x}"


def _last_ended(status: PodRuntimeStatus, name: str) -> ContainerStatus | None:
    ended = (one for one in status.container_statuses if one.name == name and one.state is ContainerState.EXITED)
    return next(ended, None)
