"""The API source: the pods that the API server has bound to this node.

The store of pods (`trikubelet.kube_client.store`) is kept by a reflector; whenever it changes, all of its pods are sent
on, several changes at once when they come faster than they are taken. Nothing is sent before the store has synced, so
the agent does not take a server that is away for one without pods; and when the server goes away later, the pods stay.

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
    from trikubelet.telemetry.events import EventRecorder


class ApiServerSource:
    """A PodSource (`mux`). Somebody else keeps the store current."""

    def __init__(self, pods: Store[Pod], recorder: EventRecorder) -> None:
        self._pods = pods
        self._recorder = recorder
        pods.subscribe_undecodable(self._report)

    @property
    def name(self) -> str:
        return API_SERVER_SOURCE

    async def run(
        self,
        send: trio.MemorySendChannel[tuple[Pod, ...]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send the pods whenever they change, until cancelled. `started` is called at once, not after the first set."""
        async with send:
            task_status.started()
            await self._pods.wait_synced()
            with self._pods.changes.subscribe() as changes:
                while True:
                    await send.send(tuple(self._pods.values()))
                    await changes.receive()

    def _report(self, undecodable: Undecodable, kept: Pod | None) -> None:
        metadata = undecodable.metadata
        problems = "; ".join(str(problem) for problem in undecodable.problems)
        name = f"{metadata.name}_{metadata.namespace}({metadata.uid})"
        consequence = "ignoring" if kept is None else "keeping the version before"
        message = f"Error reading pod {name} from {self.name}, {consequence}: {problems}"
        self._recorder.pod_event(Pod(metadata=metadata), EventType.WARNING, "FailedValidation", message)
