"""Metadata that every object carries, and label selectors (`meta/v1`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from attrs import field

from trikubelet.api.schema import EMPTY, REQUIRED, APIObject
from trikubelet.formats.values import frozen


@frozen(repr=False)
class OwnerReference(APIObject):
    """The object that an object belongs to and goes with."""

    api_version: str = field(default="", metadata=REQUIRED)
    kind: str = field(default="", metadata=REQUIRED)
    name: str = field(default="", metadata=REQUIRED)
    uid: str = field(default="", metadata=REQUIRED)
    controller: bool | None = None
    block_owner_deletion: bool | None = None


@frozen(repr=False)
class ManagedFieldsEntry(APIObject):
    """Which fields one manager applied; `fields_v1` is kept as it came."""

    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: datetime | None = None
    fields_type: str = ""
    fields_v1: dict[str, Any] | None = None
    subresource: str = ""


@frozen(repr=False)
class ObjectMeta(APIObject):
    """Name, identity, labels and lifetime of an object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    self_link: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = field(default=EMPTY)
    annotations: dict[str, str] = field(default=EMPTY)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    managed_fields: tuple[ManagedFieldsEntry, ...] = ()


@frozen(repr=False)
class KubernetesObject(APIObject):
    """The base of whole objects: those with a name of their own, which an API server keeps and a client asks for."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(default=ObjectMeta())


@frozen(repr=False)
class ListMeta(APIObject):
    """Version of a list and where its next page begins."""

    self_link: str = ""
    resource_version: str = ""
    continue_: str = ""
    remaining_item_count: int | None = None


@frozen(repr=False)
class LabelSelectorRequirement(APIObject):
    """A condition on one label."""

    key: str = field(default="", metadata=REQUIRED)
    operator: str = field(default="", metadata=REQUIRED)
    values: tuple[str, ...] = ()


@frozen(repr=False)
class LabelSelector(APIObject):
    """Conditions on labels that must all hold; an empty selector matches everything."""

    match_labels: dict[str, str] = field(default=EMPTY)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


@frozen(repr=False)
class Condition(APIObject):
    """One aspect of an object's state (`metav1.Condition`)."""

    type: str = field(default="", metadata=REQUIRED)
    status: str = field(default="", metadata=REQUIRED)
    observed_generation: int = 0
    last_transition_time: datetime | None = field(default=None, metadata=REQUIRED)
    reason: str = field(default="", metadata=REQUIRED)
    message: str = field(default="", metadata=REQUIRED)
