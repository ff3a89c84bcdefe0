"""What the node object is made of: what is seen of the node, and what is configured."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import Final

import attrs

from trikubelet import __version__
from trikubelet.api import ContainerImage, Taint
from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.formats.values import frozen
from trikubelet.linux.machine import Machine, go_architecture
from trikubelet.node.address_choice import AddressSettings, HostAddresses
from trikubelet.node.capacity import Reservations
from trikubelet.node.conditions import Pressure
from trikubelet.node.devices.model import DeviceResources

DEFAULT_KUBERNETES_VERSION: Final = "v1.36.2"
"""The release whose kubelet this agent behaves like."""
_NUMBERS: Final = re.compile(r"\s*v?(\d+(?:\.\d+)*)(.*)", re.DOTALL)
_SEMANTIC_TAIL: Final = re.compile(r"(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)


@frozen(kw_only=True)
class NodeFacts:
    """What is known of the node at one moment."""

    machine: Machine | None
    """None when it cannot be read."""
    host: HostAddresses = attrs.field(factory=HostAddresses)
    runtime_name: str = ""
    runtime_version: str | None = None
    """As the runtime says it; None while it has not."""
    abilities: RuntimeAbilities = attrs.field(factory=RuntimeAbilities)
    images: tuple[ContainerImage, ...] = ()
    """All images of the node, the biggest first (`image_list`)."""
    pressure: Pressure = attrs.field(factory=Pressure)
    runtime_problems: tuple[str, ...] = ()
    """Why no pod can be synced, in words."""
    network_problem: str | None = None
    storage_problem: str | None = None
    shutdown_problem: str | None = None
    warnings: tuple[str, ...] = ()
    """What a node that is ready should have and this one has not."""
    devices: DeviceResources = attrs.field(factory=DeviceResources)
    """What plugins have."""
    volumes_in_use: tuple[str, ...] | None = None
    """Unique names of attachable volumes; None while they are not known, which leaves the node's list as it is."""

    @property
    def architecture(self) -> str:
        return go_architecture(platform.machine()) if self.machine is None else self.machine.architecture

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the node is not ready, in the kubelet's order."""
        others = (self.network_problem, self.storage_problem, self.shutdown_problem)
        return (*self.runtime_problems, *(problem for problem in others if problem is not None))


@frozen(kw_only=True)
class NodeSettings:
    """What flags and configuration say of the node."""

    addresses: AddressSettings
    register: bool = True
    """False: somebody else creates the node object, and the agent waits for it."""
    looks_when_forbidden: bool = True
    """Whether a node that may not create its object looks whether it is there already."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """`--node-labels`."""
    taints: tuple[Taint, ...] = ()
    """Given to the node when it is created."""
    provider_id: str = ""
    max_pods: int = 110
    pods_per_core: int = 0
    reservations: Reservations = attrs.field(factory=Reservations)
    local_storage: bool = True
    """`localStorageCapacityIsolation`."""
    controller_attaches: bool = True
    """`enableControllerAttachDetach`."""
    max_images: int = 50
    """-1: all."""
    kubelet_port: int = 10250
    kubelet_version: str = DEFAULT_KUBERNETES_VERSION
    declared_features: tuple[str, ...] | None = None
    """None: features are not declared, and what the node object says of them stays."""
    update_period: float = 10.0
    """Seconds between looks at what is to be reported (`nodeStatusUpdateFrequency`)."""
    report_period: float = 300.0
    """Seconds after which a status is reported though nothing changed (`nodeStatusReportFrequency`)."""
    lease_duration: int = 40
    """Seconds (`nodeLeaseDurationSeconds`)."""

    @property
    def name(self) -> str:
        return self.addresses.node_name


def reported_version(kubernetes: str = DEFAULT_KUBERNETES_VERSION) -> str:
    """`v1.36.2+trikubelet.0.1.0`: what control planes compare, then what it really is."""
    return f"{kubernetes}{'.' if '+' in kubernetes else '+'}trikubelet.{__version__}"


def runtime_version_text(version: str | None) -> str:
    """A runtime's version as the kubelet reports it: without a leading `v`, and of one that is no semantic version
    (`1.6.20~ds1`) only the numbers. `Unknown` where there is none."""
    match = _NUMBERS.fullmatch(version or "")
    if match is None:
        return "Unknown"
    numbers, tail = match[1], match[2]
    semantic = numbers.count(".") == 2 and _SEMANTIC_TAIL.fullmatch(tail) is not None
    return numbers + tail if semantic else numbers
