"""Takes the agent's events to the API server, and keeps them while there is none.

The recorder's listener is `offer`: it never waits. Which event follows a sighting is decided there
(event_correlation.py) and put into a queue with one place for each event, so that an hour without an API server costs
one request for each event, with the count and the times that it has by then. Four events are written at a time, each
by one task alone: a write that is older never overtakes a newer one.

An event that the server has is patched, any other one created; when its answer shows that this was wrong (the server
forgets events after an hour, and a lost reply hides a success) the other one follows. Refusals are final, as nothing
about the event would be different the next time; a server that is in trouble is asked again. Nothing else of the agent
ever waits for any of this.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import ObjectReference
from trikubelet.backoff import Backoff
from trikubelet.broadcast import Inbox
from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiAnswerError, ApiError, ApiStatusError
from trikubelet.kube_client.event_correlation import REMEMBERED, CorrelatedEvent, EventCorrelator, Memory, Sighting
from trikubelet.kube_client.recovery import until_recovery
from trikubelet.kube_client.types import EVENTS, PatchType
from trikubelet.supervision import supervise
from trikubelet.telemetry.events import ObjectEvent, PodEvent
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Hashable

    from trikubelet.kube_client.types import ApiClient
    from trikubelet.telemetry.events import AnyEvent

log = get_logger("events")

COMPONENT: Final = "kubelet"
"""The reporting component; `kubectl describe` shows it as the event's origin."""
QUEUED: Final = 1000
"""Events that wait; beyond, the one that waited longest is dropped."""
AT_ONCE: Final = 4
TRIES: Final = 12
"""How often a server that is in trouble is asked to take an event."""
RETRIES: Final = Backoff(first=0.1, longest=10.0)
"""Seconds between tries, and between looks whether a server that was lost is back."""


@frozen
class SenderStatistics:
    """What became of the events since the start."""

    waiting: int
    """In the queue or being written."""
    written: int
    combined: int
    """Sightings that were sent together with a later one, since the event still waited."""
    limited: int
    """Sightings of objects with too many events; only counted."""
    dropped: int
    """Because the queue was full."""
    refused: int


class EventSender:
    """Writes the events of one node. `client` is one with the events' own rate limit (`ApiClient.view`)."""

    def __init__(self, client: ApiClient, node_name: str, *, rng: random.Random | None = None) -> None:
        self._client = client
        self._rng = rng or random.Random()
        self._correlator = EventCorrelator(COMPONENT, node_name, rng=self._rng)
        self._node = ObjectReference(kind="Node", name=node_name, api_version="v1")
        self._queue: OrderedDict[Hashable, CorrelatedEvent] = OrderedDict()
        self._in_flight: set[Hashable] = set()
        self._on_server: Memory[bool] = Memory(REMEMBERED)
        self._offered: Inbox[Hashable] = Inbox()
        """Keys of what waits in the queue."""
        self._written = self._combined = self._limited = self._dropped = self._refused = 0

    def offer(self, event: AnyEvent) -> None:
        """Tell the API server of this, some time. Returns at once; to be called within `trio.run`."""
        sighting = Sighting(self._node, event.type.value, event.reason, event.message, event.last_seen)
        if isinstance(event, PodEvent):
            sighting = attrs.evolve(sighting, about=event.api_reference, annotations=event.annotations)
        elif isinstance(event, ObjectEvent):
            sighting = attrs.evolve(sighting, about=event.about)
        correlated = self._correlator.correlate(sighting, trio.current_time())
        if correlated is None:
            self._limited += 1
            return
        self._combined += correlated.key in self._queue
        self._queue[correlated.key] = correlated
        if len(self._queue) > QUEUED:
            self._drop_oldest()
        self._offered.put(correlated.key)

    def statistics(self) -> SenderStatistics:
        return SenderStatistics(
            waiting=len(self._queue) + len(self._in_flight),
            written=self._written,
            combined=self._combined,
            limited=self._limited,
            dropped=self._dropped,
            refused=self._refused,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is offered, until cancelled; what waits then is not written."""
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(supervise, self._work)
            task_status.started()

    def _drop_oldest(self) -> None:
        key, _ = self._queue.popitem(last=False)
        self._offered.drop(key)
        self._dropped += 1
        if self._dropped.bit_count() == 1:  # the 1st, 2nd, 4th, 8th…
            log.warning("too many events wait for the API server, dropping the oldest", dropped=self._dropped)

    async def _work(self) -> None:
        async for key in self._offered:
            if key in self._in_flight:
                continue  # whoever writes it writes this, too
            self._in_flight.add(key)
            try:
                await self._deliver(key)
            finally:
                self._in_flight.discard(key)
                if key in self._queue:  # a fault came in between
                    self._offered.put(key)

    async def _deliver(self, key: Hashable) -> None:
        """Write an event, and what is offered of it meanwhile, until the server has it or refuses it."""
        tries, wait = 0, RETRIES.first
        correlated: CorrelatedEvent | None = None
        while (newest := self._queue.pop(key, correlated)) is not None:
            correlated = newest
            recoveries = self._client.health.recoveries
            try:
                await self._write(correlated)
            except ApiStatusError as error:
                tries += 1
                if not _passes(error) or tries >= TRIES:
                    self._refuse(correlated, error)
                    tries, wait, correlated = 0, RETRIES.first, None
                    continue
                await trio.sleep(self._jittered(max(wait, error.retry_after or 0.0)))
            except ApiError as error:
                log.debug("an event waits for the API server", error=str(error))
                await until_recovery(self._client.health, recoveries, RETRIES.longest)
                await trio.sleep(self._jittered(min(wait, 1.0)))  # so that not all come at once
            else:
                self._written += 1
                tries, wait, correlated = 0, RETRIES.first, None
                continue
            wait = RETRIES.after(wait)

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.5 + self._rng.random())

    async def _write(self, correlated: CorrelatedEvent) -> None:
        """Patch or create the event; raises ApiError."""
        name = correlated.event.metadata.name
        known = self._on_server.find(name) is not None
        try:
            await (self._patch(correlated) if known else self._create(correlated))
        except ApiStatusError as error:
            if known and error.not_found:
                await self._create(correlated)
            elif not known and error.already_exists:
                self._on_server.keep(name, True)  # whatever becomes of the patch, the next try is one too
                await self._patch(correlated)
            else:
                raise
        self._on_server.keep(name, True)

    async def _create(self, correlated: CorrelatedEvent) -> None:
        try:
            await self._client.create(EVENTS, correlated.event)
        except ApiAnswerError as error:
            log.debug("the API server took an event and answered something else", error=str(error))

    async def _patch(self, correlated: CorrelatedEvent) -> None:
        metadata = correlated.event.metadata
        try:
            await self._client.patch(
                EVENTS, metadata.name, metadata.namespace, PatchType.STRATEGIC, correlated.changes()
            )
        except ApiAnswerError as error:
            log.debug("the API server took an event and answered something else", error=str(error))

    def _refuse(self, correlated: CorrelatedEvent, error: ApiStatusError) -> None:
        self._refused += 1
        about = correlated.event.involved_object
        # A namespace that is going, or gone, takes its events with it, so they are dropped.
        quiet = error.namespace_terminating or error.not_found or error.already_exists
        emit = log.debug if quiet else log.warning
        emit(
            "the API server refused an event (will not retry)",
            object=f"{about.namespace}/{about.name}" if about.namespace else about.name,
            reason=correlated.event.reason,
            error=str(error),
        )


def _passes(error: ApiStatusError) -> bool:
    """The refusal is about the server's state or our identity, not about the event."""
    return error.server_fault or error.too_many or error.unauthorized
