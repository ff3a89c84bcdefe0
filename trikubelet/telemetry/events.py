"""Events: what happened to an object, in the words that users of a kubelet know (`Pulled`, `Killing`, `BackOff`).

One recorder takes them from every part of the agent. It never blocks and never fails: a subscriber (the log, later
the API server) that is slow misses nothing, since the recorder keeps the newest events of each object and counts
repeats instead of storing them again.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from trikubelet.api import ObjectReference
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import KubernetesObject, Pod
    from trikubelet.clock import WallClock


class EventType(enum.Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@frozen
class PodEvent:
    """One event of a pod, with how often it was seen."""

    uid: str
    namespace: str
    name: str
    type: EventType
    reason: str
    message: str
    field_path: str
    """`spec.containers{main}` when the event concerns one container, else empty."""
    first_seen: datetime
    last_seen: datetime
    count: int = 1
    resource_version: str = ""
    """The pod's, when the event was last seen; empty for a pod that no API server knows."""
    annotations: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    """Of the event's object, for tools: what the message says, taken apart."""

    @property
    def api_reference(self) -> ObjectReference:
        """The pod, or the part of it, in the words of an API server's event."""
        return ObjectReference(
            kind="Pod",
            namespace=self.namespace,
            name=self.name,
            uid=self.uid,
            api_version="v1",
            resource_version=self.resource_version,
            field_path=self.field_path,
        )


@frozen
class NodeEvent:
    """One event of the node itself, with how often it was seen."""

    type: EventType
    reason: str
    message: str
    first_seen: datetime
    last_seen: datetime
    count: int = 1


@frozen
class ObjectEvent:
    """One event of another object that pods use, as their claims. Nothing is kept of it."""

    about: ObjectReference
    type: EventType
    reason: str
    message: str
    last_seen: datetime


AnyEvent: TypeAlias = PodEvent | NodeEvent | ObjectEvent

EVENTS_PER_POD: Final = 50
NODE_EVENTS: Final = 100
PODS_KEPT: Final = 1000


class EventRecorder:
    """Keeps the newest events of each pod and of the node, and hands every one on to the listeners, in order."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._events: OrderedDict[str, OrderedDict[tuple[str, str, str, str], PodEvent]] = OrderedDict()
        self._node_events: OrderedDict[tuple[str, str, str], NodeEvent] = OrderedDict()
        self._listeners: list[Callable[[AnyEvent], None]] = []

    def add_listener(self, listener: Callable[[AnyEvent], None]) -> None:
        """`listener` is called synchronously with each event; it must not block.

        So the log and the latencies have every event in its order, up to the last one before the agent ends. A
        broadcast would leave that to tasks, which end first.
        """
        self._listeners.append(listener)

    def pod_event(
        self,
        pod: Pod,
        type_: EventType,
        reason: str,
        message: str,
        *,
        container: str | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Record an event of a pod, or of one of its containers."""
        now = self._clock.now()
        path = "" if container is None else _container_path(pod, container)
        key = (type_.value, reason, message, path)
        of_pod = self._events.setdefault(pod.metadata.uid, OrderedDict())
        self._events.move_to_end(pod.metadata.uid)
        seen = of_pod.pop(key, None)
        if seen is None:
            event = PodEvent(
                uid=pod.metadata.uid,
                namespace=pod.metadata.namespace,
                name=pod.metadata.name,
                type=type_,
                reason=reason,
                message=message,
                field_path=path,
                first_seen=now,
                last_seen=now,
                resource_version=pod.metadata.resource_version,
                annotations=annotations or {},
            )
        else:
            version = pod.metadata.resource_version
            event = attrs.evolve(seen, last_seen=now, count=seen.count + 1, resource_version=version)
        of_pod[key] = event
        while len(of_pod) > EVENTS_PER_POD:
            of_pod.popitem(last=False)
        while len(self._events) > PODS_KEPT:
            self._events.popitem(last=False)
        self._notify(event)

    def node_event(self, type_: EventType, reason: str, message: str) -> None:
        """Record an event of the node."""
        now = self._clock.now()
        key = (type_.value, reason, message)
        seen = self._node_events.pop(key, None)
        if seen is None:
            event = NodeEvent(type_, reason, message, first_seen=now, last_seen=now)
        else:
            event = attrs.evolve(seen, last_seen=now, count=seen.count + 1)
        self._node_events[key] = event
        while len(self._node_events) > NODE_EVENTS:
            self._node_events.popitem(last=False)
        self._notify(event)

    def object_event(self, about: KubernetesObject, type_: EventType, reason: str, message: str) -> None:
        """Record an event of an object that a pod uses."""
        metadata = about.metadata
        reference = ObjectReference(
            kind=about.kind,
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            api_version=about.api_version,
            resource_version=metadata.resource_version,
        )
        self._notify(ObjectEvent(reference, type_, reason, message, self._clock.now()))

    def node_events(self) -> list[NodeEvent]:
        """The newest events of the node, the one seen longest ago first."""
        return list(self._node_events.values())

    def _notify(self, event: AnyEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def pod_events(self) -> list[PodEvent]:
        """The events kept for all pods, the one seen longest ago first."""
        every = (event for of_pod in self._events.values() for event in of_pod.values())
        return sorted(every, key=lambda event: event.last_seen)

    def events_of(self, uid: str) -> list[PodEvent]:
        """The events kept for a pod, the one seen longest ago first."""
        return list(self._events.get(uid, {}).values())


def _container_path(pod: Pod, container: str) -> str:
    for field, containers in (
        ("initContainers", pod.spec.init_containers),
        ("ephemeralContainers", pod.spec.ephemeral_containers),
    ):
        if any(candidate.name == container for candidate in containers):
            return f"spec.{field}{{{container}}}"
    return f"spec.containers{{{container}}}"
