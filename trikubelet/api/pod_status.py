"""What was seen of a pod."""

from __future__ import annotations

from datetime import datetime

from attrs import field

from trikubelet.api.container_status import ContainerStatus
from trikubelet.api.quantity import Quantity
from trikubelet.api.resources import ResourceRequirements
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, wire
from trikubelet.formats.values import frozen


@frozen(repr=False)
class PodCondition(APIObject):
    """One aspect of a pod's state: True, False or Unknown, and since when."""

    type: str = field(default="", metadata=REQUIRED)
    observed_generation: int = 0
    status: str = field(default="", metadata=REQUIRED)
    last_probe_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


@frozen(repr=False)
class HostIP(APIObject):
    """An address of the node."""

    ip: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PodIP(APIObject):
    """An address of the pod."""

    ip: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PodResourceClaimStatus(APIObject):
    """Which claim was made from a template."""

    name: str = field(default="", metadata=REQUIRED)
    resource_claim_name: str | None = None


@frozen(repr=False)
class ContainerExtendedResourceRequest(APIObject):
    """Which request of a claim stands for an extended resource of a container."""

    container_name: str = field(default="", metadata=REQUIRED)
    resource_name: str = field(default="", metadata=REQUIRED)
    request_name: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PodExtendedResourceClaimStatus(APIObject):
    """The claim that stands for the pod's extended resources."""

    request_mappings: tuple[ContainerExtendedResourceRequest, ...] = field(default=(), metadata=REQUIRED)
    resource_claim_name: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class NodeAllocatableResourceClaimStatus(APIObject):
    """Node resources that a claim of the pod takes up."""

    resource_claim_name: str = field(default="", metadata=REQUIRED)
    containers: tuple[str, ...] = ()
    resources: dict[str, Quantity] = field(default=EMPTY, metadata=REQUIRED)


@frozen(repr=False)
class PodStatus(APIObject):
    """Everything that is reported of a pod."""

    observed_generation: int = 0
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    message: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    host_ip: str = field(default="", metadata=wire("hostIP"))
    host_ips: tuple[HostIP, ...] = field(default=(), metadata=wire("hostIPs"))
    pod_ip: str = field(default="", metadata=wire("podIP"))
    pod_ips: tuple[PodIP, ...] = field(default=(), metadata=wire("podIPs"))
    start_time: datetime | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    qos_class: str = ""
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    resize: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    allocated_resources: dict[str, Quantity] = field(default=EMPTY)
    resources: ResourceRequirements | None = None
    node_allocatable_resource_claim_statuses: tuple[NodeAllocatableResourceClaimStatus, ...] = ()
