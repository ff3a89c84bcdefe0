"""Who may run on this node: what the sync loop asks before it gives a pod to a worker.

The judgement is admission's, a pure function of pod, other pods and node. This hands it what it goes by, and carries
out its final word: an admitted pod goes on, of a rejected one it is reported that it has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import attrs

from trikubelet.admission.declared_features import FAILED_CHECK, update_problem
from trikubelet.admission.types import Admission
from trikubelet.api import Pod
from trikubelet.events import EventRecorder, EventType
from trikubelet.node.view import NodeView
from trikubelet.pleg.cache import PodStatusCache
from trikubelet.pods.admitting import Admitting
from trikubelet.pods.allocating import NoPodDevices, PodDevices
from trikubelet.pods.preempting import Preempting
from trikubelet.status.manager import StatusManager

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from trikubelet.admission.types import Rejected
    from trikubelet.pods.admitting import AdmitAgain
    from trikubelet.pods.allocating import DevicesAnswered


@attrs.frozen(kw_only=True)
class NodeDoorkeeper:
    """Implements `trikubelet.sync_loop.Doorkeeper`."""

    admission: Admission
    node: NodeView
    preempting: Preempting
    statuses: StatusManager
    recorder: EventRecorder
    cache: PodStatusCache
    allocated: Callable[[Pod], Pod]
    """A pod with the resources that it was given."""
    features: Collection[str]
    """What the node has of what updates may need."""
    devices: PodDevices = attrs.field(factory=NoPodDevices)

    def make_admitting(
        self,
        others: Callable[[], Sequence[Pod]],
        on_admitted: Callable[[Pod], None],
        send: Callable[[AdmitAgain | DevicesAnswered], Awaitable[None]],
    ) -> Admitting:
        return Admitting(
            self.admission,
            self.node,
            self.preempting,
            others=others,
            on_admitted=on_admitted,
            on_rejected=self._reject,
            send=send,
            allocated=self.allocated,
            devices=self.devices,
        )

    def has_begun(self, pod: Pod) -> bool:
        return self.cache.has_begun(pod.metadata.uid)

    def is_rejected(self, uid: str) -> bool:
        change = self.statuses.change(uid)
        return change is not None and change.rejected

    def reported_phase(self, uid: str) -> str | None:
        status = self.statuses.get_pod_status(uid)
        return None if status is None else status.phase

    def updated(self, old: Pod, new: Pod) -> None:
        """A change that asks for what this node has not is told of, and done as far as it goes, as in the kubelet."""
        problem = update_problem(old, new, self.features)
        if problem is not None:
            self.recorder.pod_event(new, EventType.WARNING, FAILED_CHECK, problem)

    def _reject(self, pod: Pod, verdict: Rejected) -> None:
        self.recorder.pod_event(pod, EventType.WARNING, verdict.reason, verdict.message)
        self.statuses.reject_pod(pod, verdict.reason, verdict.message)
