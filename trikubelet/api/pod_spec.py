"""What a pod is asked to be."""

from __future__ import annotations

from attrs import field

from trikubelet.api.container import Container, EphemeralContainer
from trikubelet.api.quantity import Quantity
from trikubelet.api.references import LocalObjectReference
from trikubelet.api.resources import ResourceRequirements
from trikubelet.api.scheduling import (
    Affinity,
    PodSchedulingGate,
    PodSchedulingGroup,
    Toleration,
    TopologySpreadConstraint,
)
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32, wire
from trikubelet.api.security import PodSecurityContext
from trikubelet.api.volumes import Volume
from trikubelet.formats.values import frozen


@frozen(repr=False)
class HostAlias(APIObject):
    """A line for the pod's hosts file."""

    ip: str = field(default="", metadata=REQUIRED)
    hostnames: tuple[str, ...] = ()


@frozen(repr=False)
class PodDNSConfigOption(APIObject):
    """An option for resolv.conf."""

    name: str = ""
    value: str | None = None


@frozen(repr=False)
class PodDNSConfig(APIObject):
    """Name servers, search domains and options for resolv.conf, merged with what the DNS policy gives."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = ()


@frozen(repr=False)
class PodReadinessGate(APIObject):
    """A condition that must be true too before the pod is ready."""

    condition_type: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PodOS(APIObject):
    """The operating system the pod is made for."""

    name: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PodResourceClaim(APIObject):
    """A resource claim of the pod, or the template that it is made from."""

    name: str = field(default="", metadata=REQUIRED)
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


@frozen(repr=False)
class PodSpec(APIObject):
    """Everything a pod asks for."""

    volumes: tuple[Volume, ...] = ()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = field(default=(), metadata=REQUIRED)
    ephemeral_containers: tuple[EphemeralContainer, ...] = ()
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    dns_policy: str = ""
    node_selector: dict[str, str] = field(default=EMPTY)
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool | None = None
    node_name: str = ""
    host_network: bool = False
    host_pid: bool = field(default=False, metadata=wire("hostPID"))
    host_ipc: bool = field(default=False, metadata=wire("hostIPC"))
    share_process_namespace: bool | None = None
    security_context: PodSecurityContext | None = None
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    hostname: str = ""
    subdomain: str = ""
    affinity: Affinity | None = None
    scheduler_name: str = ""
    tolerations: tuple[Toleration, ...] = ()
    host_aliases: tuple[HostAlias, ...] = ()
    priority_class_name: str = ""
    priority: Int32 | None = None
    dns_config: PodDNSConfig | None = None
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    runtime_class_name: str | None = None
    enable_service_links: bool | None = None
    preemption_policy: str | None = None
    overhead: dict[str, Quantity] = field(default=EMPTY)
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    set_hostname_as_fqdn: bool | None = field(default=None, metadata=wire("setHostnameAsFQDN"))
    os: PodOS | None = None
    host_users: bool | None = None
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    resources: ResourceRequirements | None = None
    hostname_override: str | None = None
    scheduling_group: PodSchedulingGroup | None = None
