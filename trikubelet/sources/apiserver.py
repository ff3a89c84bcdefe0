"""The API source: the pods that the API server has bound to this node.

A reflector keeps the store of pods (`trikubelet.kube_client.store`). Whenever the store changes, all of its pods are
sent, several changes at once when they come faster than they are taken. Nothing is sent before the store has synced, so
an API server that cannot be reached does not count as one without pods; when it goes away later, the pods stay.

Pods are taken as the server has them: it has filled in defaults and validated. A pod whose newest version this agent
cannot read stays as it was; one that was never read cannot run, which is told in an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import API_SERVER_SOURCE
from trikubelet.telemetry.events import EventType

if TYPE_CHECKING:
    from trikubelet.kube_client.store import Store
    from trikubelet.kube_client.types import Undecodable
    from trikubelet.sources.mux import SendPods
    from trikubelet.telemetry.events import EventRecorder


class ApiServerSource:
    """The PodSource of a store that a reflector keeps current."""

    def __init__(self, pods: Store[Pod], recorder: EventRecorder) -> None:
        self._pods = pods
        self._recorder = recorder
        pods.subscribe_undecodable(self._report)

    @property
    def name(self) -> str:
        return API_SERVER_SOURCE

    async def run(self, send: SendPods, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send the pods whenever they change, until cancelled. `started` is called at once, not after the first set."""
        task_status.started()
        await self._pods.wait_synced()
        with self._pods.changes.subscribe() as changes:
            while True:
                await send(tuple(self._pods.values()))
                await changes.receive()

    def _report(self, undecodable: Undecodable, kept: Pod | None) -> None:
        metadata = undecodable.metadata
        problems = "; ".join(str(problem) for problem in undecodable.problems)
        name = f"{metadata.name}_{metadata.namespace}({metadata.uid})"
        consequence = "ignoring" if kept is None else "keeping the version before"
        message = f"Error reading pod {name} from {self.name}, {consequence}: {problems}"
        self._recorder.pod_event(Pod(metadata=metadata), EventType.WARNING, "FailedValidation", message)
