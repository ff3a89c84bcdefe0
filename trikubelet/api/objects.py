"""Whole objects: pods, and the few others the agent reads or writes."""

from __future__ import annotations

from datetime import datetime

from attrs import field

from trikubelet.api.meta import KubernetesObject, ListMeta, ObjectMeta
from trikubelet.api.pod_spec import PodSpec
from trikubelet.api.pod_status import PodStatus
from trikubelet.api.references import ObjectReference
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32, MicroTime
from trikubelet.formats.values import frozen


@frozen(repr=False)
class Pod(KubernetesObject):
    """A group of containers that share a node, a network and a life."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: PodSpec = field(default=PodSpec())
    status: PodStatus = field(default=PodStatus())

    @property
    def full_name(self) -> str:
        """`name_namespace`, the key of static pods."""
        return f"{self.metadata.name}_{self.metadata.namespace}"


@frozen(repr=False)
class PodList(APIObject):
    """Several pods."""

    api_version: str = "v1"
    kind: str = "PodList"
    metadata: ListMeta = field(default=ListMeta())
    items: tuple[Pod, ...] = field(default=(), metadata=REQUIRED)


@frozen(repr=False)
class ConfigMap(KubernetesObject):
    """Configuration by key, as text or bytes."""

    api_version: str = "v1"
    kind: str = "ConfigMap"
    metadata: ObjectMeta = field(default=ObjectMeta())
    immutable: bool | None = None
    data: dict[str, str] = field(default=EMPTY)
    binary_data: dict[str, bytes] = field(default=EMPTY)


@frozen(repr=False)
class Secret(KubernetesObject):
    """Secrets by key; `string_data` is write-only convenience."""

    api_version: str = "v1"
    kind: str = "Secret"
    metadata: ObjectMeta = field(default=ObjectMeta())
    immutable: bool | None = None
    data: dict[str, bytes] = field(default=EMPTY, repr=False)
    string_data: dict[str, str] = field(default=EMPTY, repr=False)
    type: str = ""


@frozen(repr=False)
class EventSource(APIObject):
    """Which component on which host reported an event."""

    component: str = ""
    host: str = ""


@frozen(repr=False)
class EventSeries(APIObject):
    """How often an event was seen again, and when last."""

    count: Int32 = 0
    last_observed_time: MicroTime | None = None


@frozen(repr=False)
class Event(KubernetesObject):
    """Something that happened to an object."""

    api_version: str = "v1"
    kind: str = "Event"
    metadata: ObjectMeta = field(default=ObjectMeta())
    involved_object: ObjectReference = field(factory=ObjectReference)
    reason: str = ""
    message: str = ""
    source: EventSource = field(factory=EventSource)
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    count: Int32 = 0
    type: str = ""
    event_time: MicroTime | None = None
    series: EventSeries | None = None
    action: str = ""
    related: ObjectReference | None = None
    reporting_component: str = field(default="", metadata=REQUIRED)
    reporting_instance: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class LeaseSpec(APIObject):
    """A lease's holder and its end; durations are in seconds."""

    holder_identity: str | None = None
    lease_duration_seconds: Int32 | None = None
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: Int32 | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


@frozen(repr=False)
class Lease(KubernetesObject):
    """A claim that has to be renewed; the agent's node heartbeat is one (`coordination.k8s.io/v1`)."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: LeaseSpec = field(factory=LeaseSpec)
