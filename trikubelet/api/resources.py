"""What containers and pods ask for and may use at most."""

from __future__ import annotations

from attrs import field

from trikubelet.api.quantity import Quantity
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject
from trikubelet.formats.values import frozen


@frozen(repr=False)
class ResourceClaim(APIObject):
    """A claim of the pod that a container uses; `request` picks one device request of it."""

    name: str = field(default="", metadata=REQUIRED)
    request: str = ""


@frozen(repr=False)
class ResourceRequirements(APIObject):
    """Requested and allowed amounts by resource name, and the claims in use."""

    limits: dict[str, Quantity] = field(default=EMPTY)
    requests: dict[str, Quantity] = field(default=EMPTY)
    claims: tuple[ResourceClaim, ...] = ()


@frozen(repr=False)
class VolumeResourceRequirements(APIObject):
    """Requested and allowed capacity of a volume."""

    limits: dict[str, Quantity] = field(default=EMPTY)
    requests: dict[str, Quantity] = field(default=EMPTY)


@frozen(repr=False)
class ContainerResizePolicy(APIObject):
    """What a change of one resource needs: nothing, or a restart of the container."""

    resource_name: str = field(default="", metadata=REQUIRED)
    restart_policy: str = field(default="", metadata=REQUIRED)
