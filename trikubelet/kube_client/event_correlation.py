"""Which events an API server gets for what happened: each thing once, with a count, and never too many.

A sighting goes through three stages, in the order and with the numbers of client-go's event correlator, so that users
see the same events as of a kubelet. *Combining*: from the tenth different message about one object with one reason
within ten minutes on, the messages share one event, `(combined from similar events): …`. *Counting*: a sighting that
differs from an earlier one in nothing but time and version raises that event's count. *Limiting*: a node reports one
object 25 times in a burst, afterwards once in five minutes; the rest is counted but not sent, until a sighting that is
sent carries the count.

All of it happens when something is seen, not when it is sent. So what the API server holds at last does not depend on
whether it could be reached meanwhile.

Nothing here does I/O or reads a clock. The memories forget what was not seen for longest: an event that comes again
after that is a new one.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import attrs

from trikubelet.api import Event, EventSource, ObjectMeta, ObjectReference, to_dict
from trikubelet.api.name_formats import dns_subdomain
from trikubelet.formats.values import define, frozen

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

V = TypeVar("V")

REMEMBERED: Final = 4096
"""Events, groups of similar ones, and objects that are remembered."""
COMBINED_FROM: Final = 10
"""Different messages of one reason: from this many on they share an event."""
COMBINED_WITHIN: Final = 600.0
"""Seconds between two sightings of a group after which it is begun anew."""
COMBINED_PREFIX: Final = "(combined from similar events): "
BURST: Final = 25
PER_SECOND: Final = 1 / 300
DEFAULT_NAMESPACE: Final = "default"
"""Of events of objects without a namespace."""


@frozen
class Sighting:
    """Something was seen to happen to an object."""

    about: ObjectReference
    type: str
    """`Normal` or `Warning`."""
    reason: str
    message: str
    at: datetime
    annotations: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@frozen
class CorrelatedEvent:
    """What the API server should hold now: `event` under the name that it has."""

    key: Hashable
    """The same for all tellings of one event; the newest of them says everything."""
    event: Event

    def changes(self) -> dict[str, Any]:
        """The strategic merge patch for an event that the API server has already."""
        written = to_dict(self.event)
        return {field: written[field] for field in ("count", "lastTimestamp", "message") if field in written}


class EventCorrelator:
    """Turns sightings into tellings. Not for several threads."""

    def __init__(self, component: str, host: str, *, rng: random.Random) -> None:
        self._source = EventSource(component=component, host=host)
        self._rng = rng
        self._groups: Memory[_Group] = Memory(REMEMBERED)
        self._events: Memory[Event] = Memory(REMEMBERED)
        self._allowances: Memory[_Allowance] = Memory(REMEMBERED)
        self._last_stamp = 0

    def correlate(self, sighting: Sighting, now: float) -> CorrelatedEvent | None:
        """What to tell after this sighting at `now` (seconds of a clock that only moves on); None: nothing."""
        key, message = self._combined(sighting, now)
        event = self._counted(key, sighting, message)
        allowance = self._allowances.get((_object(sighting.about), sighting.type), lambda: _Allowance(BURST, now))
        return CorrelatedEvent(key, event) if allowance.takes(now) else None

    def _combined(self, sighting: Sighting, now: float) -> tuple[Hashable, str]:
        """The event that the sighting belongs to, and its message there."""
        about, message = sighting.about, sighting.message
        kind = (_object(about), sighting.type, sighting.reason)
        group = self._groups.get(kind, lambda: _Group(now))
        if now - group.last_seen > COMBINED_WITHIN:
            group.messages.clear()
        group.last_seen = now
        if message not in group.messages and len(group.messages) >= COMBINED_FROM - 1:
            return kind, COMBINED_PREFIX + message
        group.messages.add(message)
        return (*kind, about.field_path, message), message

    def _counted(self, key: Hashable, sighting: Sighting, message: str) -> Event:
        seen = self._events.find(key)
        if seen is None:
            event = self._first(sighting, message)
        else:
            event = attrs.evolve(seen, count=seen.count + 1, message=message, last_timestamp=sighting.at)
        self._events.keep(key, event)
        return event

    def _first(self, sighting: Sighting, message: str) -> Event:
        namespace = sighting.about.namespace or DEFAULT_NAMESPACE
        return Event(
            metadata=ObjectMeta(name=self._name(sighting), namespace=namespace, annotations=dict(sighting.annotations)),
            involved_object=sighting.about,
            reason=sighting.reason,
            message=message,
            source=self._source,
            first_timestamp=sighting.at,
            last_timestamp=sighting.at,
            count=1,
            type=sighting.type,
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
        )

    def _name(self, sighting: Sighting) -> str:
        """The object's name and the time in nanoseconds, which no two events of this correlator share."""
        stamp = int(sighting.at.timestamp() * 1_000_000) * 1000
        self._last_stamp = max(stamp, self._last_stamp + 1)
        name = f"{sighting.about.name}.{self._last_stamp:x}"
        if dns_subdomain(name):  # too long, most of the time
            return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        return name


@define
class _Group:
    """Sightings that differ in nothing but their messages: those messages that have events of their own."""

    last_seen: float
    messages: set[str] = attrs.field(factory=set)


@define
class _Allowance:
    """How many events an object may have: a bucket of tokens that fills slowly."""

    tokens: float
    filled: float

    def takes(self, now: float) -> bool:
        self.tokens = min(float(BURST), self.tokens + max(0.0, now - self.filled) * PER_SECOND)
        self.filled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Memory(Generic[V]):
    """The values that were last used."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def find(self, key: Hashable) -> V | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def keep(self, key: Hashable, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        value = self.find(key)
        if value is None:
            value = make()
            self.keep(key, value)
        return value


def _object(about: ObjectReference) -> Hashable:
    """The object itself, whatever part or version of it."""
    return (about.api_version, about.kind, about.namespace, about.name, about.uid)
