"""How one object points at another."""

from __future__ import annotations

from attrs import field

from trikubelet.api.schema import REQUIRED, APIObject
from trikubelet.formats.values import frozen


@frozen(repr=False)
class LocalObjectReference(APIObject):
    """An object of the same namespace, by name."""

    name: str = ""


@frozen(repr=False)
class SecretReference(APIObject):
    """A secret of any namespace."""

    name: str = ""
    namespace: str = ""


@frozen(repr=False)
class ObjectReference(APIObject):
    """Any object, or a part of one (`field_path`), as events and bindings name it."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


@frozen(repr=False)
class TypedLocalObjectReference(APIObject):
    """An object of the same namespace, by kind and name."""

    api_group: str | None = field(default=None, metadata=REQUIRED)
    kind: str = field(default="", metadata=REQUIRED)
    name: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class TypedObjectReference(APIObject):
    """An object by kind and name, possibly of another namespace."""

    api_group: str | None = field(default=None, metadata=REQUIRED)
    kind: str = field(default="", metadata=REQUIRED)
    name: str = field(default="", metadata=REQUIRED)
    namespace: str | None = None
