"""`GetContainerEvents`: the runtime says at once which pod changed; its events only trigger inspections.

Not every runtime has the call (containerd before 1.7 answers UNIMPLEMENTED): then the source is off for good and
relists carry on alone. After every gap a relist finds what was missed.

An event says when it happened, and runtimes send it after they have changed their state. So an inspection that began
later has seen it; most events of the agent's own actions need no look of their own.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import trio
from grpclib.const import Status

from trikubelet.backoff import Backoff
from trikubelet.rpc.cri.client import CRIError
from trikubelet.rpc.cri.v1 import ContainerEventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.clock import WallClock
    from trikubelet.pleg.exits import ExitTracker
    from trikubelet.pleg.pleg import Pleg
    from trikubelet.pleg.relist import Relist
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.rpc.cri.v1 import ContainerEventResponse, ContainerStatus

log = get_logger("pleg")

RETRIES: Final = Backoff(first=0.25, longest=30.0)


class CriEventSource:
    """Reads the runtime's event stream and connects again when it breaks."""

    def __init__(
        self,
        client: RuntimeClient,
        clock: WallClock,
        ends: ExitTracker,
        on_end: Callable[[ContainerStatus, str], object],
    ) -> None:
        """`on_end` is called at each end with the container's status and its sandbox's id."""
        self._on_end = on_end
        self._client = client
        self._ends = ends
        self._clock = clock
        self._problem: str | None = "not started"
        self.streams = self.failures = 0
        """Streams that brought something, and calls that failed or broke off."""
        self.latencies = Histogram()
        """Seconds from when things happened to when their events came."""

    def problem(self) -> str | None:
        """Why events may be missed; None while a stream is open and has brought something."""
        return self._problem

    async def run(self, pleg: Pleg, relist: Relist) -> None:
        """Read until cancelled, or return when the runtime has no such call."""
        try:
            await self._read(pleg, relist)
        finally:
            if self._problem is None:
                self._problem = "broke off"
                relist.relist_soon()

    async def _read(self, pleg: Pleg, relist: Relist) -> None:
        retry = RETRIES.first
        while True:
            self._problem = "no event has come yet"
            try:
                async with aclosing(self._client.container_events()) as events:
                    async for event in events:
                        self.streams += self._problem is not None
                        self._problem, retry = None, RETRIES.first
                        self._receive(event, pleg, relist)
            except CRIError as error:
                self.failures += 1
                if error.status is Status.UNIMPLEMENTED:
                    self._problem = "the runtime has no container events"
                    log.info("the runtime has no container events: watching processes and relisting")
                    return
                log.warning("container events broke off", error=str(error), retry_in=retry)
                self._problem = f"broke off: {error}"
            else:
                self._problem = "the runtime ended them"
            relist.relist_soon()
            await trio.sleep(retry)
            retry = RETRIES.after(retry)

    def _receive(self, event: ContainerEventResponse, pleg: Pleg, relist: Relist) -> None:
        kind = event.container_event_type
        happened_at = self._happened_at(event)
        self.latencies.observe(trio.current_time() - happened_at)
        # An event comes without a pod when its sandbox is gone already.
        uid = event.pod_sandbox_status.metadata.uid or pleg.cache.pod_of(event.container_id)
        if kind is ContainerEventType.CONTAINER_STOPPED_EVENT:
            for status in event.containers_statuses:
                if status.id == event.container_id:
                    self._on_end(status, event.pod_sandbox_status.id)
            self._ends.record(event.container_id)
        match kind:
            case ContainerEventType.CONTAINER_DELETED_EVENT if uid is None:
                pass  # of a pod that was never seen, or not of late
            case _ if uid is None:
                relist.relist_soon()
            case ContainerEventType.CONTAINER_STOPPED_EVENT:
                pleg.container_ended(uid, event.container_id)
            case ContainerEventType.CONTAINER_DELETED_EVENT:
                pleg.container_removed(uid, event.container_id, happened_at)
            case _:
                pleg.inspect_soon(uid, happened_at, event.container_id)

    def _happened_at(self, event: ContainerEventResponse) -> float:
        """In Trio time; just now, for an event from the future or without a time."""
        age = self._clock.now().timestamp() - event.created_at / 1e9
        return trio.current_time() - (max(age, 0.0) if event.created_at else 0.0)
