"""Objects of dynamic resource allocation (`resource.k8s.io/v1`): who may use which devices, and what a node has.

Only fields that the agent reads have names here; the others travel in `unknown_fields`.
"""

from __future__ import annotations

from attrs import field

from trikubelet.api.meta import KubernetesObject, ObjectMeta
from trikubelet.api.schema import REQUIRED, APIObject
from trikubelet.formats.values import frozen


@frozen(repr=False)
class DeviceRequestAllocationResult(APIObject):
    """A device that was chosen for one of a claim's requests."""

    request: str = field(default="", metadata=REQUIRED)
    driver: str = field(default="", metadata=REQUIRED)
    pool: str = field(default="", metadata=REQUIRED)
    device: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class DeviceAllocationResult(APIObject):
    """All devices that were chosen."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()


@frozen(repr=False)
class AllocationResult(APIObject):
    """What a claim was given."""

    devices: DeviceAllocationResult = field(factory=DeviceAllocationResult)


@frozen(repr=False)
class ResourceClaimConsumerReference(APIObject):
    """Who may use a claim: as a rule a pod."""

    api_group: str = ""
    resource: str = field(default="", metadata=REQUIRED)
    name: str = field(default="", metadata=REQUIRED)
    uid: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class ResourceClaimStatus(APIObject):
    """What has become of a claim. No allocation: it was given nothing yet."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()


@frozen(repr=False)
class ResourceClaimObject(KubernetesObject):
    """The wish for devices, and which they are (the API calls it `ResourceClaim`, as it does what a container says)."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"
    metadata: ObjectMeta = field(default=ObjectMeta())
    status: ResourceClaimStatus = field(factory=ResourceClaimStatus)


@frozen(repr=False)
class ResourceSliceSpec(APIObject):
    """Whose devices, and the node that they are on; empty where several can reach them."""

    driver: str = field(default="", metadata=REQUIRED)
    node_name: str = ""


@frozen(repr=False)
class ResourceSlice(KubernetesObject):
    """Devices of a driver, mostly of one node. Drivers write them; the agent only removes them."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceSlice"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: ResourceSliceSpec = field(factory=ResourceSliceSpec)
