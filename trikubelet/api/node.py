"""The node object: how the agent presents its machine."""

from __future__ import annotations

from datetime import datetime

from attrs import field

from trikubelet.api.meta import KubernetesObject, ListMeta, ObjectMeta
from trikubelet.api.quantity import Quantity
from trikubelet.api.scheduling import Taint
from trikubelet.api.schema import EMPTY, REQUIRED, APIObject, Int32, wire
from trikubelet.formats.values import frozen


@frozen(repr=False)
class ConfigMapNodeConfigSource(APIObject):
    """A config map that once configured kubelets."""

    namespace: str = field(default="", metadata=REQUIRED)
    name: str = field(default="", metadata=REQUIRED)
    uid: str = ""
    resource_version: str = ""
    kubelet_config_key: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class NodeConfigSource(APIObject):
    """Where a kubelet once got its configuration from."""

    config_map: ConfigMapNodeConfigSource | None = None


@frozen(repr=False)
class NodeSpec(APIObject):
    """What the cluster decided about a node."""

    pod_cidr: str = field(default="", metadata=wire("podCIDR"))
    pod_cidrs: tuple[str, ...] = field(default=(), metadata=wire("podCIDRs"))
    provider_id: str = field(default="", metadata=wire("providerID"))
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    config_source: NodeConfigSource | None = None
    external_id: str = field(default="", metadata=wire("externalID"))


@frozen(repr=False)
class NodeCondition(APIObject):
    """One aspect of a node's state, with its last heartbeat."""

    type: str = field(default="", metadata=REQUIRED)
    status: str = field(default="", metadata=REQUIRED)
    last_heartbeat_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


@frozen(repr=False)
class NodeAddress(APIObject):
    """An address or name of a node."""

    type: str = field(default="", metadata=REQUIRED)
    address: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class DaemonEndpoint(APIObject):
    """The port of one daemon."""

    port: Int32 = field(default=0, metadata=wire("Port", required=True))


@frozen(repr=False)
class NodeDaemonEndpoints(APIObject):
    """Ports of the daemons on a node."""

    kubelet_endpoint: DaemonEndpoint = field(factory=DaemonEndpoint)


@frozen(repr=False)
class NodeSwapStatus(APIObject):
    """Swap space in bytes."""

    capacity: int | None = None


@frozen(repr=False)
class NodeSystemInfo(APIObject):
    """Identity and versions of the machine, the kernel and the runtime."""

    machine_id: str = field(default="", metadata=wire("machineID", required=True))
    system_uuid: str = field(default="", metadata=wire("systemUUID", required=True))
    boot_id: str = field(default="", metadata=wire("bootID", required=True))
    kernel_version: str = field(default="", metadata=REQUIRED)
    os_image: str = field(default="", metadata=REQUIRED)
    container_runtime_version: str = field(default="", metadata=REQUIRED)
    kubelet_version: str = field(default="", metadata=REQUIRED)
    kube_proxy_version: str = field(default="", metadata=REQUIRED)
    operating_system: str = field(default="", metadata=REQUIRED)
    architecture: str = field(default="", metadata=REQUIRED)
    swap: NodeSwapStatus | None = None


@frozen(repr=False)
class ContainerImage(APIObject):
    """An image on the node and its size in bytes."""

    names: tuple[str, ...] = field(default=(), metadata=REQUIRED)
    size_bytes: int = 0


@frozen(repr=False)
class AttachedVolume(APIObject):
    """A volume that the controller attached to the node."""

    name: str = field(default="", metadata=REQUIRED)
    device_path: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class NodeConfigStatus(APIObject):
    """What became of a kubelet's dynamic configuration."""

    assigned: NodeConfigSource | None = None
    active: NodeConfigSource | None = None
    last_known_good: NodeConfigSource | None = None
    error: str = ""


@frozen(repr=False)
class NodeRuntimeHandlerFeatures(APIObject):
    """What a runtime handler can do."""

    recursive_read_only_mounts: bool | None = None
    user_namespaces: bool | None = None


@frozen(repr=False)
class NodeRuntimeHandler(APIObject):
    """A runtime handler of the node; the empty name is the default one."""

    name: str = field(default="", metadata=REQUIRED)
    features: NodeRuntimeHandlerFeatures | None = None


@frozen(repr=False)
class NodeFeatures(APIObject):
    """What the runtime as a whole can do."""

    supplemental_groups_policy: bool | None = None


@frozen(repr=False)
class NodeStatus(APIObject):
    """Everything that the agent reports of its node."""

    capacity: dict[str, Quantity] = field(default=EMPTY)
    allocatable: dict[str, Quantity] = field(default=EMPTY)
    phase: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    daemon_endpoints: NodeDaemonEndpoints = field(factory=NodeDaemonEndpoints)
    node_info: NodeSystemInfo = field(factory=NodeSystemInfo)
    images: tuple[ContainerImage, ...] = ()
    volumes_in_use: tuple[str, ...] = ()
    volumes_attached: tuple[AttachedVolume, ...] = ()
    config: NodeConfigStatus | None = None
    runtime_handlers: tuple[NodeRuntimeHandler, ...] = ()
    features: NodeFeatures | None = None
    declared_features: tuple[str, ...] = ()


@frozen(repr=False)
class Node(KubernetesObject):
    """A machine of the cluster."""

    api_version: str = "v1"
    kind: str = "Node"
    metadata: ObjectMeta = field(default=ObjectMeta())
    spec: NodeSpec = field(factory=NodeSpec)
    status: NodeStatus = field(factory=NodeStatus)


@frozen(repr=False)
class NodeList(APIObject):
    """Several nodes."""

    api_version: str = "v1"
    kind: str = "NodeList"
    metadata: ListMeta = field(default=ListMeta())
    items: tuple[Node, ...] = field(default=(), metadata=REQUIRED)
