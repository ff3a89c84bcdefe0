"""Container events for subscribers, with the two faults that event streams have: lost and doubled ones.

Every subscriber gets the events from the moment of its subscription; one that does not read loses what exceeds its
buffer, as with real runtimes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from trikubelet.formats.values import define
from trikubelet.rpc.cri import v1
from trikubelet.sim.listing import container_status, sandbox_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    from trikubelet.sim.machine import Change, Machine

BUFFER = 1000


@define(eq=False)
class _Subscription:
    events: deque[v1.ContainerEventResponse] = attrs.field(factory=lambda: deque())
    broken: bool = False


class EventFeed:
    """Turns the machine's changes into container events."""

    def __init__(self, machine: Machine, random: Random) -> None:
        self.supported = True
        """False: the runtime does not have GetContainerEvents, like containerd 1.6."""
        self.lose_probability = 0.0
        self.duplicate_probability = 0.0
        self.dropped = 0
        """Events that subscribers did not get: lost ones, and those that found a buffer full."""
        self._machine = machine
        self._random = random
        self._lose_next = 0
        self._duplicate_next = 0
        self._subscriptions: list[_Subscription] = []
        machine.observers.append(self._publish)

    def lose_next(self, count: int = 1) -> None:
        """The next events are lost."""
        self._lose_next += count

    def duplicate_next(self, count: int = 1) -> None:
        """The next events come twice."""
        self._duplicate_next += count

    def stop_faults(self) -> None:
        self.lose_probability = self.duplicate_probability = 0.0
        self._lose_next = self._duplicate_next = 0

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    async def subscribe(self) -> AsyncIterator[v1.ContainerEventResponse]:
        """Events from now on. Raises GRPCError UNAVAILABLE when the runtime restarts."""
        subscription = _Subscription()
        self._subscriptions.append(subscription)
        try:
            while True:
                self._machine.settle()
                while subscription.events:
                    yield subscription.events.popleft()
                if subscription.broken:
                    raise GRPCError(Status.UNAVAILABLE, "simulated: the runtime restarted")
                with trio.move_on_at(self._machine.next_end()):
                    await self._machine.activity.wait()
        finally:
            self._subscriptions.remove(subscription)

    def disconnect(self) -> None:
        """End all subscriptions."""
        for subscription in self._subscriptions:
            subscription.broken = True
            subscription.events.clear()

    def _publish(self, change: Change) -> None:
        copies = self._copies()
        if not copies or not self._subscriptions:
            return
        event = self._event(change)
        for subscription in self._subscriptions:
            for _ in range(copies):
                if len(subscription.events) < BUFFER:
                    subscription.events.append(event)
                else:
                    self.dropped += 1

    def _copies(self) -> int:
        if self._lose_next or (self.lose_probability and self._random.random() < self.lose_probability):
            self._lose_next = max(0, self._lose_next - 1)
            self.dropped += 1
            return 0
        if self._duplicate_next or (self.duplicate_probability and self._random.random() < self.duplicate_probability):
            self._duplicate_next = max(0, self._duplicate_next - 1)
            return 2
        return 1

    def _event(self, change: Change) -> v1.ContainerEventResponse:
        sandbox = change.sandbox
        event = v1.ContainerEventResponse(
            container_id=change.container.id if change.container else sandbox.id,
            container_event_type=change.kind,
            created_at=self._machine.timestamp(change.time),
            containers_statuses=[container_status(container) for container in sandbox.containers.values()],
        )
        if sandbox.id in self._machine.sandboxes:
            event.pod_sandbox_status = sandbox_status(sandbox)
        return event
