# Generated from protos/runtime_v1.proto by `make protos`. Do not edit.
# This file has been @generated
import warnings
from typing import (
    TYPE_CHECKING,
    AsyncIterator,
    Dict,
    List,
    Optional,
)

import betterproto
import grpclib
from trikubelet.rpc.service import ServiceBase, ServiceStub

if TYPE_CHECKING:
    import grpclib.server
    from betterproto.grpc.grpclib_client import MetadataLike
    from grpclib.metadata import Deadline

from trikubelet.rpc.cri.codec import Message

if TYPE_CHECKING:
    from enum import IntEnum as Enum
else:
    from betterproto import Enum


class CgroupDriver(Enum):
    """Who writes the cgroup files. Kubelet and runtime must agree."""

    SYSTEMD = 0
    CGROUPFS = 1


class Protocol(Enum):
    """What is spoken on a port."""

    TCP = 0
    UDP = 1
    SCTP = 2


class NamespaceMode(Enum):
    """Whose namespace it is."""

    POD = 0
    """One for all containers of the pod."""

    CONTAINER = 1
    """One for each container."""

    NODE = 2
    """The node's."""

    TARGET = 3
    """That of another container; for ephemeral containers."""


class SupplementalGroupsPolicy(Enum):
    """Which groups the first process has."""

    Merge = 0
    """
    Those of the pod, and those that the image's /etc/group names for the user.
    """

    Strict = 1
    """Those of the pod alone."""


class PodSandboxState(Enum):
    """Whether containers can start in it."""

    SANDBOX_READY = 0
    SANDBOX_NOTREADY = 1


class MountPropagation(Enum):
    """Who sees mounts that are made later."""

    PROPAGATION_PRIVATE = 0
    """Nobody else (rprivate)."""

    PROPAGATION_HOST_TO_CONTAINER = 1
    """The container sees the node's (rslave)."""

    PROPAGATION_BIDIRECTIONAL = 2
    """Both see each other's (rshared)."""


class Signal(Enum):
    """
    The signal that asks a container to end. The numbers are this interface's own, not the kernel's.
    """

    RUNTIME_DEFAULT = 0
    """What the image says, else SIGTERM."""

    SIGABRT = 1
    SIGALRM = 2
    SIGBUS = 3
    SIGCHLD = 4
    SIGCLD = 5
    SIGCONT = 6
    SIGFPE = 7
    SIGHUP = 8
    SIGILL = 9
    SIGINT = 10
    SIGIO = 11
    SIGIOT = 12
    SIGKILL = 13
    SIGPIPE = 14
    SIGPOLL = 15
    SIGPROF = 16
    SIGPWR = 17
    SIGQUIT = 18
    SIGSEGV = 19
    SIGSTKFLT = 20
    SIGSTOP = 21
    SIGSYS = 22
    SIGTERM = 23
    SIGTRAP = 24
    SIGTSTP = 25
    SIGTTIN = 26
    SIGTTOU = 27
    SIGURG = 28
    SIGUSR1 = 29
    SIGUSR2 = 30
    SIGVTALRM = 31
    SIGWINCH = 32
    SIGXCPU = 33
    SIGXFSZ = 34
    SIGRTMIN = 35
    SIGRTMINPLUS1 = 36
    SIGRTMINPLUS2 = 37
    SIGRTMINPLUS3 = 38
    SIGRTMINPLUS4 = 39
    SIGRTMINPLUS5 = 40
    SIGRTMINPLUS6 = 41
    SIGRTMINPLUS7 = 42
    SIGRTMINPLUS8 = 43
    SIGRTMINPLUS9 = 44
    SIGRTMINPLUS10 = 45
    SIGRTMINPLUS11 = 46
    SIGRTMINPLUS12 = 47
    SIGRTMINPLUS13 = 48
    SIGRTMINPLUS14 = 49
    SIGRTMINPLUS15 = 50
    SIGRTMAXMINUS14 = 51
    SIGRTMAXMINUS13 = 52
    SIGRTMAXMINUS12 = 53
    SIGRTMAXMINUS11 = 54
    SIGRTMAXMINUS10 = 55
    SIGRTMAXMINUS9 = 56
    SIGRTMAXMINUS8 = 57
    SIGRTMAXMINUS7 = 58
    SIGRTMAXMINUS6 = 59
    SIGRTMAXMINUS5 = 60
    SIGRTMAXMINUS4 = 61
    SIGRTMAXMINUS3 = 62
    SIGRTMAXMINUS2 = 63
    SIGRTMAXMINUS1 = 64
    SIGRTMAX = 65


class ContainerState(Enum):
    """Where a container is in its life."""

    CONTAINER_CREATED = 0
    CONTAINER_RUNNING = 1
    CONTAINER_EXITED = 2
    CONTAINER_UNKNOWN = 3
    """The runtime lost track of it."""


class ContainerEventType(Enum):
    """What happened."""

    CONTAINER_CREATED_EVENT = 0
    CONTAINER_STARTED_EVENT = 1
    CONTAINER_STOPPED_EVENT = 2
    CONTAINER_DELETED_EVENT = 3


class MetricType(Enum):
    """Whether a value only grows."""

    COUNTER = 0
    GAUGE = 1


class SecurityProfileProfileType(Enum):
    """Which profile."""

    RuntimeDefault = 0
    """The runtime's own."""

    Unconfined = 1
    """None."""

    Localhost = 2
    """One that lies on the node."""


class VersionRequest(Message):
    """Who asks."""

    version: str = betterproto.string_field(1)
    """The version of the kubelet's side of this interface."""


class VersionResponse(Message):
    """Who answers."""

    version: str = betterproto.string_field(1)
    """The version of the kubelet's side that the runtime was built for."""

    runtime_name: str = betterproto.string_field(2)
    """
    Such as containerd; it becomes the scheme of container ids in pod statuses.
    """

    runtime_version: str = betterproto.string_field(3)
    runtime_api_version: str = betterproto.string_field(4)
    """Version of this interface: v1."""


class StatusRequest(Message):
    """Asks for the conditions of the runtime."""

    verbose: bool = betterproto.bool_field(1)
    """Fill in `info`."""


class StatusResponse(Message):
    """The conditions of the runtime and what it is able to do."""

    status: "RuntimeStatus" = betterproto.message_field(1)
    info: Dict[str, str] = betterproto.map_field(
        2, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    runtime_handlers: List["RuntimeHandler"] = betterproto.message_field(3)
    """
    The handlers that sandboxes can name. The one with an empty name is the default.
    """

    features: "RuntimeFeatures" = betterproto.message_field(4)


class RuntimeStatus(Message):
    """RuntimeReady and NetworkReady are always among the conditions."""

    conditions: List["RuntimeCondition"] = betterproto.message_field(1)


class RuntimeCondition(Message):
    """One thing that is fine or not."""

    type: str = betterproto.string_field(1)
    status: bool = betterproto.bool_field(2)
    """True: fine."""

    reason: str = betterproto.string_field(3)
    """One word in CamelCase for programs."""

    message: str = betterproto.string_field(4)
    """A sentence for people."""


class RuntimeHandler(Message):
    """A way to run pods, such as runc or a virtual machine."""

    name: str = betterproto.string_field(1)
    features: "RuntimeHandlerFeatures" = betterproto.message_field(2)


class RuntimeHandlerFeatures(Message):
    """What containers of one handler can have."""

    recursive_read_only_mounts: bool = betterproto.bool_field(1)
    user_namespaces: bool = betterproto.bool_field(2)


class RuntimeFeatures(Message):
    """What does not depend on the handler."""

    supplemental_groups_policy: bool = betterproto.bool_field(1)
    """SupplementalGroupsPolicy is honoured and ContainerUser is reported."""

    user_namespaces_host_network: bool = betterproto.bool_field(2)
    """A pod may have a user namespace and the node's network at once."""


class RuntimeConfigRequest(Message):
    """Asks how the runtime is set up."""

    pass


class RuntimeConfigResponse(Message):
    """How the runtime is set up."""

    linux: "LinuxRuntimeConfiguration" = betterproto.message_field(1)


class LinuxRuntimeConfiguration(Message):
    """What matters on Linux."""

    cgroup_driver: "CgroupDriver" = betterproto.enum_field(1)


class UpdateRuntimeConfigRequest(Message):
    """A change for the runtime."""

    runtime_config: "RuntimeConfig" = betterproto.message_field(1)


class UpdateRuntimeConfigResponse(Message):
    """The runtime took note."""

    pass


class RuntimeConfig(Message):
    """Settings that the kubelet passes on."""

    network_config: "NetworkConfig" = betterproto.message_field(1)


class NetworkConfig(Message):
    """Settings for the pod network."""

    pod_cidr: str = betterproto.string_field(1)
    """
    Range of pod addresses of this node; two ranges with a comma between them for two address families.
    """


class PodSandboxConfig(Message):
    """All that a runtime has to know to make a sandbox."""

    metadata: "PodSandboxMetadata" = betterproto.message_field(1)
    """
    Which pod it is for. The runtime refuses a second sandbox with the same.
    """

    hostname: str = betterproto.string_field(2)
    """Empty for pods on the node's network."""

    log_directory: str = betterproto.string_field(3)
    """
    Folder of the node for the logs of the pod's containers; their log paths are relative to it.
    """

    dns_config: "DnsConfig" = betterproto.message_field(4)
    port_mappings: List["PortMapping"] = betterproto.message_field(5)
    """Ports of the node that lead into the sandbox."""

    labels: Dict[str, str] = betterproto.map_field(
        6, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """For filters. The runtime keeps them as they are."""

    annotations: Dict[str, str] = betterproto.map_field(
        7, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """
    Free notes. The runtime keeps them as they are and may act on those it knows.
    """

    linux: "LinuxPodSandboxConfig" = betterproto.message_field(8)
    windows: "WindowsPodSandboxConfig" = betterproto.message_field(9)


class PodSandboxMetadata(Message):
    """The pod, and which of its sandboxes this is."""

    name: str = betterproto.string_field(1)
    uid: str = betterproto.string_field(2)
    namespace: str = betterproto.string_field(3)
    attempt: int = betterproto.uint32_field(4)
    """How many sandboxes the pod had before."""


class DnsConfig(Message):
    """Lines of resolv.conf."""

    servers: List[str] = betterproto.string_field(1)
    searches: List[str] = betterproto.string_field(2)
    options: List[str] = betterproto.string_field(3)


class PortMapping(Message):
    """One port of the node."""

    protocol: "Protocol" = betterproto.enum_field(1)
    container_port: int = betterproto.int32_field(2)
    host_port: int = betterproto.int32_field(3)
    """0: the container port is not published."""

    host_ip: str = betterproto.string_field(4)
    """Empty: on all addresses."""


class LinuxPodSandboxConfig(Message):
    """The Linux part of a sandbox's configuration."""

    cgroup_parent: str = betterproto.string_field(1)
    """
    The pod's cgroup as a path; a runtime with the systemd driver translates it.
    """

    security_context: "LinuxSandboxSecurityContext" = betterproto.message_field(2)
    sysctls: Dict[str, str] = betterproto.map_field(
        3, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    overhead: "LinuxContainerResources" = betterproto.message_field(4)
    """What the sandbox itself may use, by the pod's RuntimeClass."""

    resources: "LinuxContainerResources" = betterproto.message_field(5)
    """What all containers together may use."""


class LinuxSandboxSecurityContext(Message):
    """
    As whom and how restricted the sandbox's own process runs, and which namespaces the pod shares.
    """

    namespace_options: "NamespaceOption" = betterproto.message_field(1)
    selinux_options: "SeLinuxOption" = betterproto.message_field(2)
    run_as_user: "Int64Value" = betterproto.message_field(3)
    """Absent: the image's user."""

    run_as_group: "Int64Value" = betterproto.message_field(8)
    readonly_rootfs: bool = betterproto.bool_field(4)
    supplemental_groups: List[int] = betterproto.int64_field(5)
    """Groups besides the primary one, the pod's fsGroup among them."""

    supplemental_groups_policy: "SupplementalGroupsPolicy" = betterproto.enum_field(11)
    privileged: bool = betterproto.bool_field(6)
    """Whether privileged containers may run in it."""

    seccomp: "SecurityProfile" = betterproto.message_field(9)
    apparmor: "SecurityProfile" = betterproto.message_field(10)
    seccomp_profile_path: str = betterproto.string_field(7)
    """Replaced by `seccomp`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_set("seccomp_profile_path"):
            warnings.warn(
                "LinuxSandboxSecurityContext.seccomp_profile_path is deprecated",
                DeprecationWarning,
            )


class NamespaceOption(Message):
    """Where each namespace comes from."""

    network: "NamespaceMode" = betterproto.enum_field(1)
    """POD or NODE."""

    pid: "NamespaceMode" = betterproto.enum_field(2)
    """
    Any mode. CONTAINER, where containers do not see each other, is what pods get by default.
    """

    ipc: "NamespaceMode" = betterproto.enum_field(3)
    """POD or NODE."""

    target_id: str = betterproto.string_field(4)
    """For TARGET: the container whose namespace it is."""

    userns_options: "UserNamespace" = betterproto.message_field(5)
    """Absent: the node's user namespace."""


class UserNamespace(Message):
    """The user namespace of a pod."""

    mode: "NamespaceMode" = betterproto.enum_field(1)
    """POD with the mappings below, or NODE without any."""

    uids: List["IdMapping"] = betterproto.message_field(2)
    gids: List["IdMapping"] = betterproto.message_field(3)


class IdMapping(Message):
    """
    A run of user or group ids in the container, and where it lies on the node.
    """

    host_id: int = betterproto.uint32_field(1)
    """First id on the node."""

    container_id: int = betterproto.uint32_field(2)
    """First id in the container."""

    length: int = betterproto.uint32_field(3)
    """How many ids."""


class SecurityProfile(Message):
    """A seccomp or AppArmor profile."""

    profile_type: "SecurityProfileProfileType" = betterproto.enum_field(1)
    localhost_ref: str = betterproto.string_field(2)
    """
    For Localhost: the path of a seccomp file, or the name of a loaded AppArmor profile.
    """


class SeLinuxOption(Message):
    """The parts of an SELinux label."""

    user: str = betterproto.string_field(1)
    role: str = betterproto.string_field(2)
    type: str = betterproto.string_field(3)
    level: str = betterproto.string_field(4)


class WindowsPodSandboxConfig(Message):
    """The Windows part of a sandbox's configuration."""

    security_context: "WindowsSandboxSecurityContext" = betterproto.message_field(1)


class WindowsSandboxSecurityContext(Message):
    """As whom the sandbox runs on Windows."""

    run_as_username: str = betterproto.string_field(1)
    credential_spec: str = betterproto.string_field(2)
    """
    Contents of a group managed service account's credential specification.
    """

    host_process: bool = betterproto.bool_field(3)
    """Containers run as processes of the node."""

    namespace_options: "WindowsNamespaceOption" = betterproto.message_field(4)


class WindowsNamespaceOption(Message):
    """Where each namespace comes from, on Windows."""

    network: "NamespaceMode" = betterproto.enum_field(1)


class RunPodSandboxRequest(Message):
    """The sandbox to run."""

    config: "PodSandboxConfig" = betterproto.message_field(1)
    runtime_handler: str = betterproto.string_field(2)
    """
    A handler from the runtime's status; the default one if empty. An unknown one is an error.
    """


class RunPodSandboxResponse(Message):
    """The sandbox that runs."""

    pod_sandbox_id: str = betterproto.string_field(1)


class StopPodSandboxRequest(Message):
    """The sandbox to stop."""

    pod_sandbox_id: str = betterproto.string_field(1)


class StopPodSandboxResponse(Message):
    """The sandbox is stopped."""

    pass


class RemovePodSandboxRequest(Message):
    """The sandbox to remove."""

    pod_sandbox_id: str = betterproto.string_field(1)


class RemovePodSandboxResponse(Message):
    """The sandbox is gone."""

    pass


class PodSandboxStatusRequest(Message):
    """The sandbox to look at."""

    pod_sandbox_id: str = betterproto.string_field(1)
    verbose: bool = betterproto.bool_field(2)
    """Fill in `info`."""


class PodSandboxStatusResponse(Message):
    """
    One sandbox and, from runtimes that have container events, its containers.
    """

    status: "PodSandboxStatus" = betterproto.message_field(1)
    info: Dict[str, str] = betterproto.map_field(
        2, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    containers_statuses: List["ContainerStatus"] = betterproto.message_field(3)
    """The containers of the sandbox at the same moment."""

    timestamp: int = betterproto.int64_field(4)
    """The moment that this reply describes."""


class PodSandboxStatus(Message):
    """All about a sandbox."""

    id: str = betterproto.string_field(1)
    metadata: "PodSandboxMetadata" = betterproto.message_field(2)
    state: "PodSandboxState" = betterproto.enum_field(3)
    created_at: int = betterproto.int64_field(4)
    """Never 0."""

    network: "PodSandboxNetworkStatus" = betterproto.message_field(5)
    linux: "LinuxPodSandboxStatus" = betterproto.message_field(6)
    labels: Dict[str, str] = betterproto.map_field(
        7, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    annotations: Dict[str, str] = betterproto.map_field(
        8, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    runtime_handler: str = betterproto.string_field(9)
    """The handler that the sandbox was run with."""


class PodSandboxNetworkStatus(Message):
    """
    Addresses of a sandbox. Empty on the node's network and once the sandbox is stopped.
    """

    ip: str = betterproto.string_field(1)
    """The address of the primary family."""

    additional_ips: List["PodIp"] = betterproto.message_field(2)
    """The others."""


class PodIp(Message):
    """One address."""

    ip: str = betterproto.string_field(1)


class LinuxPodSandboxStatus(Message):
    """The Linux part of a sandbox's status."""

    namespaces: "Namespace" = betterproto.message_field(1)


class Namespace(Message):
    """The namespaces that the sandbox was made with."""

    options: "NamespaceOption" = betterproto.message_field(2)


class ListPodSandboxRequest(Message):
    """Which sandboxes to list; all without a filter."""

    filter: "PodSandboxFilter" = betterproto.message_field(1)


class PodSandboxFilter(Message):
    """Everything must match; what is empty matches all."""

    id: str = betterproto.string_field(1)
    state: "PodSandboxStateValue" = betterproto.message_field(2)
    """Absent: any state."""

    label_selector: Dict[str, str] = betterproto.map_field(
        3, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """Labels with exactly these values."""


class PodSandboxStateValue(Message):
    """A state, in a message of its own so that it can be absent."""

    state: "PodSandboxState" = betterproto.enum_field(1)


class ListPodSandboxResponse(Message):
    """The sandboxes of a list."""

    items: List["PodSandbox"] = betterproto.message_field(1)


class PodSandbox(Message):
    """A sandbox as lists show it."""

    id: str = betterproto.string_field(1)
    metadata: "PodSandboxMetadata" = betterproto.message_field(2)
    state: "PodSandboxState" = betterproto.enum_field(3)
    created_at: int = betterproto.int64_field(4)
    labels: Dict[str, str] = betterproto.map_field(
        5, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    annotations: Dict[str, str] = betterproto.map_field(
        6, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    runtime_handler: str = betterproto.string_field(7)


class StreamPodSandboxesRequest(Message):
    """Which sandboxes to list; all without a filter."""

    filter: "PodSandboxFilter" = betterproto.message_field(1)


class StreamPodSandboxesResponse(Message):
    """One piece of the list."""

    pod_sandboxes: List["PodSandbox"] = betterproto.message_field(1)


class UpdatePodSandboxResourcesRequest(Message):
    """New resources of a pod."""

    pod_sandbox_id: str = betterproto.string_field(1)
    overhead: "LinuxContainerResources" = betterproto.message_field(2)
    """What the sandbox itself may use."""

    resources: "LinuxContainerResources" = betterproto.message_field(3)
    """What all containers together may use."""


class UpdatePodSandboxResourcesResponse(Message):
    """The runtime took note."""

    pass


class ContainerConfig(Message):
    """All that a runtime has to know to make a container."""

    metadata: "ContainerMetadata" = betterproto.message_field(1)
    """
    Which container it is. The runtime refuses a second one in the pod with the same.
    """

    image: "ImageSpec" = betterproto.message_field(2)
    """The image, by the reference that PullImage or ImageStatus gave."""

    command: List[str] = betterproto.string_field(3)
    """In place of the image's entrypoint."""

    args: List[str] = betterproto.string_field(4)
    """In place of the image's arguments."""

    working_dir: str = betterproto.string_field(5)
    """Empty: the image's."""

    envs: List["KeyValue"] = betterproto.message_field(6)
    mounts: List["Mount"] = betterproto.message_field(7)
    devices: List["Device"] = betterproto.message_field(8)
    labels: Dict[str, str] = betterproto.map_field(
        9, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    annotations: Dict[str, str] = betterproto.map_field(
        10, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    log_path: str = betterproto.string_field(11)
    """Relative to the sandbox's log directory."""

    stdin: bool = betterproto.bool_field(12)
    stdin_once: bool = betterproto.bool_field(13)
    """Close stdin when the first client leaves."""

    tty: bool = betterproto.bool_field(14)
    linux: "LinuxContainerConfig" = betterproto.message_field(15)
    windows: "WindowsContainerConfig" = betterproto.message_field(16)
    cdi_devices: List["CdiDevice"] = betterproto.message_field(17)
    """Devices by their CDI names; the runtime looks up what that means."""

    stop_signal: "Signal" = betterproto.enum_field(18)
    """In place of the image's stop signal."""


class ContainerMetadata(Message):
    """The container's name in its pod, and which of its runs this is."""

    name: str = betterproto.string_field(1)
    attempt: int = betterproto.uint32_field(2)
    """How many containers of this name the pod had before."""


class KeyValue(Message):
    """An environment variable."""

    key: str = betterproto.string_field(1)
    value: bytes = betterproto.bytes_field(2)


class Mount(Message):
    """Something of the node, or an image, in the container's file system."""

    container_path: str = betterproto.string_field(1)
    host_path: str = betterproto.string_field(2)
    """Symbolic links in it are followed. Empty when `image` is mounted."""

    readonly: bool = betterproto.bool_field(3)
    selinux_relabel: bool = betterproto.bool_field(4)
    """Give the files the container's label."""

    propagation: "MountPropagation" = betterproto.enum_field(5)
    uid_mappings: List["IdMapping"] = betterproto.message_field(6)
    """For an id-mapped mount."""

    gid_mappings: List["IdMapping"] = betterproto.message_field(7)
    """For an id-mapped mount."""

    recursive_read_only: bool = betterproto.bool_field(8)
    """
    Mounts below it are read-only too. Needs `readonly` and private propagation.
    """

    image: "ImageSpec" = betterproto.message_field(9)
    """Mount this image instead of a path."""

    image_sub_path: str = betterproto.string_field(10)
    """The part of the image to mount; empty for all of it."""


class Device(Message):
    """A device of the node."""

    container_path: str = betterproto.string_field(1)
    host_path: str = betterproto.string_field(2)
    permissions: str = betterproto.string_field(3)
    """Letters of r, w and m (make nodes)."""


class CdiDevice(Message):
    """A device that a CDI specification describes."""

    name: str = betterproto.string_field(1)
    """vendor/class=device."""


class LinuxContainerConfig(Message):
    """The Linux part of a container's configuration."""

    resources: "LinuxContainerResources" = betterproto.message_field(1)
    security_context: "LinuxContainerSecurityContext" = betterproto.message_field(2)


class LinuxContainerResources(Message):
    """Limits and shares. 0 or empty: not set."""

    cpu_period: int = betterproto.int64_field(1)
    """Microseconds."""

    cpu_quota: int = betterproto.int64_field(2)
    """Microseconds of CPU time in each period."""

    cpu_shares: int = betterproto.int64_field(3)
    """Weight against other containers, in the units of cgroup v1."""

    memory_limit_in_bytes: int = betterproto.int64_field(4)
    oom_score_adj: int = betterproto.int64_field(5)
    """The kernel's -1000 to 1000; higher is killed earlier."""

    cpuset_cpus: str = betterproto.string_field(6)
    """List such as 0-2,7."""

    cpuset_mems: str = betterproto.string_field(7)
    """Memory nodes, in the same form."""

    hugepage_limits: List["HugepageLimit"] = betterproto.message_field(8)
    unified: Dict[str, str] = betterproto.map_field(
        9, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """Files of cgroup v2 and what to write into them."""

    memory_swap_limit_in_bytes: int = betterproto.int64_field(10)
    """Memory and swap together."""


class HugepageLimit(Message):
    """How much of one size of huge pages."""

    page_size: str = betterproto.string_field(1)
    """Such as 2MB."""

    limit: int = betterproto.uint64_field(2)
    """Bytes."""


class LinuxContainerSecurityContext(Message):
    """As whom and how restricted the container runs."""

    capabilities: "Capability" = betterproto.message_field(1)
    privileged: bool = betterproto.bool_field(2)
    """
    All capabilities and devices, no seccomp, AppArmor, SELinux, masked or read-only paths.
    """

    namespace_options: "NamespaceOption" = betterproto.message_field(3)
    selinux_options: "SeLinuxOption" = betterproto.message_field(4)
    run_as_user: "Int64Value" = betterproto.message_field(5)
    """Not together with run_as_username. Both absent: the image's user."""

    run_as_group: "Int64Value" = betterproto.message_field(12)
    """Needs one of run_as_user and run_as_username."""

    run_as_username: str = betterproto.string_field(6)
    """A name from the image's /etc/passwd."""

    readonly_rootfs: bool = betterproto.bool_field(7)
    supplemental_groups: List[int] = betterproto.int64_field(8)
    supplemental_groups_policy: "SupplementalGroupsPolicy" = betterproto.enum_field(17)
    no_new_privs: bool = betterproto.bool_field(11)
    masked_paths: List[str] = betterproto.string_field(13)
    """What the container must not see below /proc and /sys."""

    readonly_paths: List[str] = betterproto.string_field(14)
    """What the container must not change there."""

    seccomp: "SecurityProfile" = betterproto.message_field(15)
    apparmor: "SecurityProfile" = betterproto.message_field(16)
    apparmor_profile: str = betterproto.string_field(9)
    """Replaced by `apparmor`."""

    seccomp_profile_path: str = betterproto.string_field(10)
    """Replaced by `seccomp`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_set("apparmor_profile"):
            warnings.warn(
                "LinuxContainerSecurityContext.apparmor_profile is deprecated",
                DeprecationWarning,
            )
        if self.is_set("seccomp_profile_path"):
            warnings.warn(
                "LinuxContainerSecurityContext.seccomp_profile_path is deprecated",
                DeprecationWarning,
            )


class Capability(Message):
    """
    Changes to the runtime's usual capabilities, without the prefix CAP_; ALL is allowed.
    """

    add_capabilities: List[str] = betterproto.string_field(1)
    drop_capabilities: List[str] = betterproto.string_field(2)
    add_ambient_capabilities: List[str] = betterproto.string_field(3)


class WindowsContainerConfig(Message):
    """The Windows part of a container's configuration."""

    resources: "WindowsContainerResources" = betterproto.message_field(1)
    security_context: "WindowsContainerSecurityContext" = betterproto.message_field(2)


class WindowsContainerResources(Message):
    """Limits and shares on Windows. 0: not set."""

    cpu_shares: int = betterproto.int64_field(1)
    cpu_count: int = betterproto.int64_field(2)
    cpu_maximum: int = betterproto.int64_field(3)
    """Hundredths of a percent of all CPUs."""

    memory_limit_in_bytes: int = betterproto.int64_field(4)
    rootfs_size_in_bytes: int = betterproto.int64_field(5)
    affinity_cpus: List["WindowsCpuGroupAffinity"] = betterproto.message_field(6)


class WindowsCpuGroupAffinity(Message):
    """CPUs of one processor group."""

    cpu_mask: int = betterproto.uint64_field(1)
    cpu_group: int = betterproto.uint32_field(2)


class WindowsContainerSecurityContext(Message):
    """As whom the container runs on Windows."""

    run_as_username: str = betterproto.string_field(1)
    credential_spec: str = betterproto.string_field(2)
    host_process: bool = betterproto.bool_field(3)


class CreateContainerRequest(Message):
    """The container to make."""

    pod_sandbox_id: str = betterproto.string_field(1)
    config: "ContainerConfig" = betterproto.message_field(2)
    sandbox_config: "PodSandboxConfig" = betterproto.message_field(3)
    """What the sandbox was run with, unchanged."""


class CreateContainerResponse(Message):
    """The container that was made."""

    container_id: str = betterproto.string_field(1)


class StartContainerRequest(Message):
    """The container to start."""

    container_id: str = betterproto.string_field(1)


class StartContainerResponse(Message):
    """The container runs."""

    pass


class StopContainerRequest(Message):
    """The container to stop."""

    container_id: str = betterproto.string_field(1)
    timeout: int = betterproto.int64_field(2)
    """Seconds between the stop signal and the kill. 0: kill at once."""


class StopContainerResponse(Message):
    """The container has ended."""

    pass


class RemoveContainerRequest(Message):
    """The container to remove."""

    container_id: str = betterproto.string_field(1)


class RemoveContainerResponse(Message):
    """The container is gone."""

    pass


class ListContainersRequest(Message):
    """Which containers to list; all without a filter."""

    filter: "ContainerFilter" = betterproto.message_field(1)


class ContainerFilter(Message):
    """Everything must match; what is empty matches all."""

    id: str = betterproto.string_field(1)
    state: "ContainerStateValue" = betterproto.message_field(2)
    """Absent: any state."""

    pod_sandbox_id: str = betterproto.string_field(3)
    label_selector: Dict[str, str] = betterproto.map_field(
        4, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """Labels with exactly these values."""


class ContainerStateValue(Message):
    """A state, in a message of its own so that it can be absent."""

    state: "ContainerState" = betterproto.enum_field(1)


class ListContainersResponse(Message):
    """The containers of a list."""

    containers: List["Container"] = betterproto.message_field(1)


class Container(Message):
    """A container as lists show it."""

    id: str = betterproto.string_field(1)
    pod_sandbox_id: str = betterproto.string_field(2)
    metadata: "ContainerMetadata" = betterproto.message_field(3)
    image: "ImageSpec" = betterproto.message_field(4)
    """As in the container's configuration."""

    image_ref: str = betterproto.string_field(5)
    """The image that runs: an id or digest."""

    state: "ContainerState" = betterproto.enum_field(6)
    created_at: int = betterproto.int64_field(7)
    labels: Dict[str, str] = betterproto.map_field(
        8, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    annotations: Dict[str, str] = betterproto.map_field(
        9, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    image_id: str = betterproto.string_field(10)
    """The id of the image on the node, as ListImages has it."""


class StreamContainersRequest(Message):
    """Which containers to list; all without a filter."""

    filter: "ContainerFilter" = betterproto.message_field(1)


class StreamContainersResponse(Message):
    """One piece of the list."""

    containers: List["Container"] = betterproto.message_field(1)


class ContainerStatusRequest(Message):
    """The container to look at."""

    container_id: str = betterproto.string_field(1)
    verbose: bool = betterproto.bool_field(2)
    """Fill in `info`; containerd and CRI-O tell the pid there."""


class ContainerStatusResponse(Message):
    """One container."""

    status: "ContainerStatus" = betterproto.message_field(1)
    info: Dict[str, str] = betterproto.map_field(
        2, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


class ContainerStatus(Message):
    """All about a container."""

    id: str = betterproto.string_field(1)
    metadata: "ContainerMetadata" = betterproto.message_field(2)
    state: "ContainerState" = betterproto.enum_field(3)
    created_at: int = betterproto.int64_field(4)
    """Never 0."""

    started_at: int = betterproto.int64_field(5)
    """0 before the start."""

    finished_at: int = betterproto.int64_field(6)
    """0 before the end."""

    exit_code: int = betterproto.int32_field(7)
    """
    Counts only once it has ended. 128 + n for a process that signal n ended.
    """

    image: "ImageSpec" = betterproto.message_field(8)
    """By a name that people know."""

    image_ref: str = betterproto.string_field(9)
    """By digest, where there is one."""

    reason: str = betterproto.string_field(10)
    """One word, such as Completed, Error or OOMKilled."""

    message: str = betterproto.string_field(11)
    """A sentence for people."""

    labels: Dict[str, str] = betterproto.map_field(
        12, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    annotations: Dict[str, str] = betterproto.map_field(
        13, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    mounts: List["Mount"] = betterproto.message_field(14)
    log_path: str = betterproto.string_field(15)
    """The whole path on the node."""

    resources: "ContainerResources" = betterproto.message_field(16)
    """The limits in force."""

    image_id: str = betterproto.string_field(17)
    """The id of the image on the node, as ListImages has it."""

    user: "ContainerUser" = betterproto.message_field(18)
    """As whom its first process began."""

    stop_signal: "Signal" = betterproto.enum_field(19)


class ContainerResources(Message):
    """Limits in force."""

    linux: "LinuxContainerResources" = betterproto.message_field(1)
    windows: "WindowsContainerResources" = betterproto.message_field(2)


class ContainerUser(Message):
    """As whom a container runs."""

    linux: "LinuxContainerUser" = betterproto.message_field(1)


class LinuxContainerUser(Message):
    """Numbers of the first process when it began."""

    uid: int = betterproto.int64_field(1)
    gid: int = betterproto.int64_field(2)
    supplemental_groups: List[int] = betterproto.int64_field(3)


class UpdateContainerResourcesRequest(Message):
    """New limits for a container. What is 0 stays as it is."""

    container_id: str = betterproto.string_field(1)
    linux: "LinuxContainerResources" = betterproto.message_field(2)
    windows: "WindowsContainerResources" = betterproto.message_field(3)
    annotations: Dict[str, str] = betterproto.map_field(
        4, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


class UpdateContainerResourcesResponse(Message):
    """The limits are in force."""

    pass


class ReopenContainerLogRequest(Message):
    """The container whose log was rotated."""

    container_id: str = betterproto.string_field(1)


class ReopenContainerLogResponse(Message):
    """The runtime writes to the new file."""

    pass


class CheckpointContainerRequest(Message):
    """The container to write away."""

    container_id: str = betterproto.string_field(1)
    location: str = betterproto.string_field(2)
    """Path of the archive on the node."""

    timeout: int = betterproto.int64_field(3)
    """Seconds; 0 for the runtime's own limit."""


class CheckpointContainerResponse(Message):
    """The archive is complete."""

    pass


class ExecSyncRequest(Message):
    """A command to run."""

    container_id: str = betterproto.string_field(1)
    cmd: List[str] = betterproto.string_field(2)
    timeout: int = betterproto.int64_field(3)
    """Seconds until the command is killed; 0: never."""


class ExecSyncResponse(Message):
    """
    What the command wrote and how it ended. Runtimes cut off output beyond 16 MiB.
    """

    stdout: bytes = betterproto.bytes_field(1)
    stderr: bytes = betterproto.bytes_field(2)
    exit_code: int = betterproto.int32_field(3)


class ExecRequest(Message):
    """
    A command to run with streams. At least one stream is wanted; stderr is not possible with a terminal.
    """

    container_id: str = betterproto.string_field(1)
    cmd: List[str] = betterproto.string_field(2)
    tty: bool = betterproto.bool_field(3)
    stdin: bool = betterproto.bool_field(4)
    stdout: bool = betterproto.bool_field(5)
    stderr: bool = betterproto.bool_field(6)


class ExecResponse(Message):
    """Where to connect."""

    url: str = betterproto.string_field(1)


class AttachRequest(Message):
    """
    The streams to connect to a container. `tty` must be as in its configuration.
    """

    container_id: str = betterproto.string_field(1)
    stdin: bool = betterproto.bool_field(2)
    tty: bool = betterproto.bool_field(3)
    stdout: bool = betterproto.bool_field(4)
    stderr: bool = betterproto.bool_field(5)


class AttachResponse(Message):
    """Where to connect."""

    url: str = betterproto.string_field(1)


class PortForwardRequest(Message):
    """The ports to reach in a sandbox."""

    pod_sandbox_id: str = betterproto.string_field(1)
    port: List[int] = betterproto.int32_field(2)


class PortForwardResponse(Message):
    """Where to connect."""

    url: str = betterproto.string_field(1)


class GetEventsRequest(Message):
    """Subscribes to events."""

    pass


class ContainerEventResponse(Message):
    """
    Something happened to a container, or to a sandbox: then `container_id` is the sandbox's.
    """

    container_id: str = betterproto.string_field(1)
    container_event_type: "ContainerEventType" = betterproto.enum_field(2)
    created_at: int = betterproto.int64_field(3)
    pod_sandbox_status: "PodSandboxStatus" = betterproto.message_field(4)
    """The sandbox after the event; absent once it is removed."""

    containers_statuses: List["ContainerStatus"] = betterproto.message_field(5)
    """All containers of the sandbox after the event."""


class ContainerStatsRequest(Message):
    """The container to measure."""

    container_id: str = betterproto.string_field(1)


class ContainerStatsResponse(Message):
    """One container's use."""

    stats: "ContainerStats" = betterproto.message_field(1)


class ListContainerStatsRequest(Message):
    """Which containers to measure; all without a filter."""

    filter: "ContainerStatsFilter" = betterproto.message_field(1)


class ContainerStatsFilter(Message):
    """Everything must match; what is empty matches all."""

    id: str = betterproto.string_field(1)
    pod_sandbox_id: str = betterproto.string_field(2)
    label_selector: Dict[str, str] = betterproto.map_field(
        3, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


class ListContainerStatsResponse(Message):
    """The use of the containers of a list."""

    stats: List["ContainerStats"] = betterproto.message_field(1)


class StreamContainerStatsRequest(Message):
    """Which containers to measure; all without a filter."""

    filter: "ContainerStatsFilter" = betterproto.message_field(1)


class StreamContainerStatsResponse(Message):
    """One piece of the list."""

    container_stats: List["ContainerStats"] = betterproto.message_field(1)


class ContainerStats(Message):
    """What a container uses."""

    attributes: "ContainerAttributes" = betterproto.message_field(1)
    cpu: "CpuUsage" = betterproto.message_field(2)
    memory: "MemoryUsage" = betterproto.message_field(3)
    writable_layer: "FilesystemUsage" = betterproto.message_field(4)
    """What it wrote over its image."""

    swap: "SwapUsage" = betterproto.message_field(5)
    io: "IoUsage" = betterproto.message_field(6)


class ContainerAttributes(Message):
    """Which container was measured."""

    id: str = betterproto.string_field(1)
    metadata: "ContainerMetadata" = betterproto.message_field(2)
    labels: Dict[str, str] = betterproto.map_field(
        3, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    annotations: Dict[str, str] = betterproto.map_field(
        4, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


class PodSandboxStatsRequest(Message):
    """The sandbox to measure."""

    pod_sandbox_id: str = betterproto.string_field(1)


class PodSandboxStatsResponse(Message):
    """One sandbox's use."""

    stats: "PodSandboxStats" = betterproto.message_field(1)


class ListPodSandboxStatsRequest(Message):
    """Which sandboxes to measure; all without a filter."""

    filter: "PodSandboxStatsFilter" = betterproto.message_field(1)


class PodSandboxStatsFilter(Message):
    """Everything must match; what is empty matches all."""

    id: str = betterproto.string_field(1)
    label_selector: Dict[str, str] = betterproto.map_field(
        2, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


class ListPodSandboxStatsResponse(Message):
    """The use of the sandboxes of a list."""

    stats: List["PodSandboxStats"] = betterproto.message_field(1)


class StreamPodSandboxStatsRequest(Message):
    """Which sandboxes to measure; all without a filter."""

    filter: "PodSandboxStatsFilter" = betterproto.message_field(1)


class StreamPodSandboxStatsResponse(Message):
    """One piece of the list."""

    pod_sandbox_stats: List["PodSandboxStats"] = betterproto.message_field(1)


class PodSandboxStats(Message):
    """What a sandbox and its containers use."""

    attributes: "PodSandboxAttributes" = betterproto.message_field(1)
    linux: "LinuxPodSandboxStats" = betterproto.message_field(2)
    windows: "WindowsPodSandboxStats" = betterproto.message_field(3)


class PodSandboxAttributes(Message):
    """Which sandbox was measured."""

    id: str = betterproto.string_field(1)
    metadata: "PodSandboxMetadata" = betterproto.message_field(2)
    labels: Dict[str, str] = betterproto.map_field(
        3, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    annotations: Dict[str, str] = betterproto.map_field(
        4, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


class LinuxPodSandboxStats(Message):
    """
    What a sandbox uses on Linux. `cpu`, `memory` and `io` are those of the pod's cgroup.
    """

    cpu: "CpuUsage" = betterproto.message_field(1)
    memory: "MemoryUsage" = betterproto.message_field(2)
    network: "NetworkUsage" = betterproto.message_field(3)
    process: "ProcessUsage" = betterproto.message_field(4)
    containers: List["ContainerStats"] = betterproto.message_field(5)
    io: "IoUsage" = betterproto.message_field(6)


class CpuUsage(Message):
    """CPU time."""

    timestamp: int = betterproto.int64_field(1)
    """When it was measured; in all these messages."""

    usage_core_nano_seconds: "UInt64Value" = betterproto.message_field(2)
    """Since the beginning, all cores added up."""

    usage_nano_cores: "UInt64Value" = betterproto.message_field(3)
    """The present rate: billionths of a core."""

    psi: "PsiStats" = betterproto.message_field(4)


class MemoryUsage(Message):
    """Memory."""

    timestamp: int = betterproto.int64_field(1)
    working_set_bytes: "UInt64Value" = betterproto.message_field(2)
    """What cannot be reclaimed easily; eviction looks at it."""

    available_bytes: "UInt64Value" = betterproto.message_field(3)
    """Limit minus working set; absent without a limit."""

    usage_bytes: "UInt64Value" = betterproto.message_field(4)
    """All of it, caches too."""

    rss_bytes: "UInt64Value" = betterproto.message_field(5)
    """Anonymous memory."""

    page_faults: "UInt64Value" = betterproto.message_field(6)
    """Minor ones, since the beginning."""

    major_page_faults: "UInt64Value" = betterproto.message_field(7)
    """Since the beginning."""

    psi: "PsiStats" = betterproto.message_field(8)


class SwapUsage(Message):
    """Swap."""

    timestamp: int = betterproto.int64_field(1)
    swap_available_bytes: "UInt64Value" = betterproto.message_field(2)
    swap_usage_bytes: "UInt64Value" = betterproto.message_field(3)


class IoUsage(Message):
    """Input and output."""

    timestamp: int = betterproto.int64_field(1)
    psi: "PsiStats" = betterproto.message_field(2)


class PsiStats(Message):
    """
    How long tasks waited for a resource (the kernel's pressure stall information).
    """

    full: "PsiData" = betterproto.message_field(1)
    """All tasks of the cgroup at once."""

    some: "PsiData" = betterproto.message_field(2)
    """At least one task."""


class PsiData(Message):
    """Waiting, since the beginning and lately."""

    total: int = betterproto.uint64_field(1)
    """Nanoseconds."""

    avg10: float = betterproto.double_field(2)
    """Percent of the last 10 seconds."""

    avg60: float = betterproto.double_field(3)
    """Percent of the last minute."""

    avg300: float = betterproto.double_field(4)
    """Percent of the last five minutes."""


class NetworkUsage(Message):
    """Traffic of a sandbox."""

    timestamp: int = betterproto.int64_field(1)
    default_interface: "NetworkInterfaceUsage" = betterproto.message_field(2)
    interfaces: List["NetworkInterfaceUsage"] = betterproto.message_field(3)
    """All but the default one."""


class NetworkInterfaceUsage(Message):
    """Traffic of one interface, since the beginning."""

    name: str = betterproto.string_field(1)
    rx_bytes: "UInt64Value" = betterproto.message_field(2)
    rx_errors: "UInt64Value" = betterproto.message_field(3)
    tx_bytes: "UInt64Value" = betterproto.message_field(4)
    tx_errors: "UInt64Value" = betterproto.message_field(5)


class ProcessUsage(Message):
    """Processes of a sandbox."""

    timestamp: int = betterproto.int64_field(1)
    process_count: "UInt64Value" = betterproto.message_field(2)


class FilesystemUsage(Message):
    """Space taken up in a file system."""

    timestamp: int = betterproto.int64_field(1)
    fs_id: "FilesystemIdentifier" = betterproto.message_field(2)
    used_bytes: "UInt64Value" = betterproto.message_field(3)
    inodes_used: "UInt64Value" = betterproto.message_field(4)


class FilesystemIdentifier(Message):
    """Which file system."""

    mountpoint: str = betterproto.string_field(1)


class WindowsPodSandboxStats(Message):
    """What a sandbox uses on Windows."""

    cpu: "WindowsCpuUsage" = betterproto.message_field(1)
    memory: "WindowsMemoryUsage" = betterproto.message_field(2)
    network: "WindowsNetworkUsage" = betterproto.message_field(3)
    process: "WindowsProcessUsage" = betterproto.message_field(4)
    containers: List["WindowsContainerStats"] = betterproto.message_field(5)


class WindowsContainerStats(Message):
    """What a container uses on Windows."""

    attributes: "ContainerAttributes" = betterproto.message_field(1)
    cpu: "WindowsCpuUsage" = betterproto.message_field(2)
    memory: "WindowsMemoryUsage" = betterproto.message_field(3)
    writable_layer: "WindowsFilesystemUsage" = betterproto.message_field(4)


class WindowsCpuUsage(Message):
    """CPU time on Windows."""

    timestamp: int = betterproto.int64_field(1)
    usage_core_nano_seconds: "UInt64Value" = betterproto.message_field(2)
    usage_nano_cores: "UInt64Value" = betterproto.message_field(3)


class WindowsMemoryUsage(Message):
    """Memory on Windows."""

    timestamp: int = betterproto.int64_field(1)
    working_set_bytes: "UInt64Value" = betterproto.message_field(2)
    available_bytes: "UInt64Value" = betterproto.message_field(3)
    page_faults: "UInt64Value" = betterproto.message_field(4)
    commit_memory_bytes: "UInt64Value" = betterproto.message_field(5)
    """What is reserved for it, in memory or on disk."""


class WindowsNetworkUsage(Message):
    """Traffic of a sandbox on Windows."""

    timestamp: int = betterproto.int64_field(1)
    default_interface: "WindowsNetworkInterfaceUsage" = betterproto.message_field(2)
    interfaces: List["WindowsNetworkInterfaceUsage"] = betterproto.message_field(3)


class WindowsNetworkInterfaceUsage(Message):
    """Traffic of one interface on Windows, since the beginning."""

    name: str = betterproto.string_field(1)
    rx_bytes: "UInt64Value" = betterproto.message_field(2)
    rx_packets_dropped: "UInt64Value" = betterproto.message_field(3)
    tx_bytes: "UInt64Value" = betterproto.message_field(4)
    tx_packets_dropped: "UInt64Value" = betterproto.message_field(5)


class WindowsProcessUsage(Message):
    """Processes of a sandbox on Windows."""

    timestamp: int = betterproto.int64_field(1)
    process_count: "UInt64Value" = betterproto.message_field(2)


class WindowsFilesystemUsage(Message):
    """Space taken up in a file system on Windows."""

    timestamp: int = betterproto.int64_field(1)
    fs_id: "FilesystemIdentifier" = betterproto.message_field(2)
    used_bytes: "UInt64Value" = betterproto.message_field(3)


class ListMetricDescriptorsRequest(Message):
    """Asks which metrics there are."""

    pass


class ListMetricDescriptorsResponse(Message):
    """The metrics there are."""

    descriptors: List["MetricDescriptor"] = betterproto.message_field(1)


class MetricDescriptor(Message):
    """A metric: its name, its help text, and the names of its labels."""

    name: str = betterproto.string_field(1)
    help: str = betterproto.string_field(2)
    label_keys: List[str] = betterproto.string_field(3)
    """In the order in which a Metric gives their values."""


class ListPodSandboxMetricsRequest(Message):
    """Asks for all metrics."""

    pass


class ListPodSandboxMetricsResponse(Message):
    """Metrics by sandbox."""

    pod_metrics: List["PodSandboxMetrics"] = betterproto.message_field(1)


class StreamPodSandboxMetricsRequest(Message):
    """Asks for all metrics."""

    pass


class StreamPodSandboxMetricsResponse(Message):
    """Some of the sandboxes."""

    pod_sandbox_metrics: List["PodSandboxMetrics"] = betterproto.message_field(1)


class PodSandboxMetrics(Message):
    """Metrics of a sandbox and its containers."""

    pod_sandbox_id: str = betterproto.string_field(1)
    metrics: List["Metric"] = betterproto.message_field(2)
    container_metrics: List["ContainerMetrics"] = betterproto.message_field(3)


class ContainerMetrics(Message):
    """Metrics of a container."""

    container_id: str = betterproto.string_field(1)
    metrics: List["Metric"] = betterproto.message_field(2)


class Metric(Message):
    """A value of a metric."""

    name: str = betterproto.string_field(1)
    """One of the descriptors' names; others are ignored."""

    timestamp: int = betterproto.int64_field(2)
    """When it was measured, if that was not just now; else 0."""

    metric_type: "MetricType" = betterproto.enum_field(3)
    label_values: List[str] = betterproto.string_field(4)
    """One for each label key of the descriptor, in its order."""

    value: "UInt64Value" = betterproto.message_field(5)


class ListImagesRequest(Message):
    """Which images to list; all without a filter."""

    filter: "ImageFilter" = betterproto.message_field(1)


class ImageFilter(Message):
    """Names one image."""

    image: "ImageSpec" = betterproto.message_field(1)


class ListImagesResponse(Message):
    """The images of a list."""

    images: List["Image"] = betterproto.message_field(1)


class Image(Message):
    """An image on the node."""

    id: str = betterproto.string_field(1)
    """What PullImage returns for it."""

    repo_tags: List[str] = betterproto.string_field(2)
    repo_digests: List[str] = betterproto.string_field(3)
    size: int = betterproto.uint64_field(4)
    """Bytes, never 0."""

    uid: "Int64Value" = betterproto.message_field(5)
    """The numeric user of the image. Absent: see `username`."""

    username: str = betterproto.string_field(6)
    """The named user of the image, where it has no numeric one."""

    spec: "ImageSpec" = betterproto.message_field(7)
    pinned: bool = betterproto.bool_field(8)
    """
    Please do not collect it as garbage. Removing it is possible all the same.
    """


class ImageSpec(Message):
    """A reference to an image."""

    image: str = betterproto.string_field(1)
    """A name with tag or digest, or an id."""

    annotations: Dict[str, str] = betterproto.map_field(
        2, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )
    """
    Help for the runtime to choose, where a name stands for several images.
    """

    user_specified_image: str = betterproto.string_field(18)
    """What the pod says, where `image` is already resolved."""

    runtime_handler: str = betterproto.string_field(19)
    """The handler that the image is for; empty for the default."""

    image_ref: str = betterproto.string_field(20)
    """For mounted images: the digest of what was mounted."""


class StreamImagesRequest(Message):
    """Which images to list; all without a filter."""

    filter: "ImageFilter" = betterproto.message_field(1)


class StreamImagesResponse(Message):
    """One piece of the list."""

    images: List["Image"] = betterproto.message_field(1)


class ImageStatusRequest(Message):
    """The image to look at."""

    image: "ImageSpec" = betterproto.message_field(1)
    verbose: bool = betterproto.bool_field(2)
    """Fill in `info`."""


class ImageStatusResponse(Message):
    """One image."""

    image: "Image" = betterproto.message_field(1)
    """Absent where the node does not have it."""

    info: Dict[str, str] = betterproto.map_field(
        2, betterproto.TYPE_STRING, betterproto.TYPE_STRING
    )


class PullImageRequest(Message):
    """The image to pull."""

    image: "ImageSpec" = betterproto.message_field(1)
    auth: "AuthConfig" = betterproto.message_field(2)
    """Absent: anonymous, or what the runtime itself knows."""

    sandbox_config: "PodSandboxConfig" = betterproto.message_field(3)
    """The pod that it is pulled for."""


class AuthConfig(Message):
    """Credentials for a registry."""

    username: str = betterproto.string_field(1)
    password: str = betterproto.string_field(2)
    auth: str = betterproto.string_field(3)
    """User and password in one, as in Docker's configuration file."""

    server_address: str = betterproto.string_field(4)
    identity_token: str = betterproto.string_field(5)
    """To exchange for a registry token."""

    registry_token: str = betterproto.string_field(6)
    """A bearer token to send as it is."""


class PullImageResponse(Message):
    """The image is there."""

    image_ref: str = betterproto.string_field(1)
    """The id or digest to create containers with."""


class RemoveImageRequest(Message):
    """The image to remove."""

    image: "ImageSpec" = betterproto.message_field(1)


class RemoveImageResponse(Message):
    """The image is gone."""

    pass


class ImageFsInfoRequest(Message):
    """Asks for the use of disks."""

    pass


class ImageFsInfoResponse(Message):
    """The use of disks."""

    image_filesystems: List["FilesystemUsage"] = betterproto.message_field(1)
    container_filesystems: List["FilesystemUsage"] = betterproto.message_field(2)
    """
    Where writable layers are kept; the same as for images on most nodes.
    """


class Int64Value(Message):
    """A number that may be absent."""

    value: int = betterproto.int64_field(1)


class UInt64Value(Message):
    """A number that may be absent."""

    value: int = betterproto.uint64_field(1)


class RuntimeServiceStub(ServiceStub):
    async def version(
        self,
        version_request: "VersionRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "VersionResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/Version",
            version_request,
            VersionResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def run_pod_sandbox(
        self,
        run_pod_sandbox_request: "RunPodSandboxRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "RunPodSandboxResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/RunPodSandbox",
            run_pod_sandbox_request,
            RunPodSandboxResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def stop_pod_sandbox(
        self,
        stop_pod_sandbox_request: "StopPodSandboxRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "StopPodSandboxResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/StopPodSandbox",
            stop_pod_sandbox_request,
            StopPodSandboxResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def remove_pod_sandbox(
        self,
        remove_pod_sandbox_request: "RemovePodSandboxRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "RemovePodSandboxResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/RemovePodSandbox",
            remove_pod_sandbox_request,
            RemovePodSandboxResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def pod_sandbox_status(
        self,
        pod_sandbox_status_request: "PodSandboxStatusRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "PodSandboxStatusResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/PodSandboxStatus",
            pod_sandbox_status_request,
            PodSandboxStatusResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def list_pod_sandbox(
        self,
        list_pod_sandbox_request: "ListPodSandboxRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ListPodSandboxResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ListPodSandbox",
            list_pod_sandbox_request,
            ListPodSandboxResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def stream_pod_sandboxes(
        self,
        stream_pod_sandboxes_request: "StreamPodSandboxesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[StreamPodSandboxesResponse]:
        async for response in self._unary_stream(
            "/runtime.v1.RuntimeService/StreamPodSandboxes",
            stream_pod_sandboxes_request,
            StreamPodSandboxesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response

    async def create_container(
        self,
        create_container_request: "CreateContainerRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "CreateContainerResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/CreateContainer",
            create_container_request,
            CreateContainerResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def start_container(
        self,
        start_container_request: "StartContainerRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "StartContainerResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/StartContainer",
            start_container_request,
            StartContainerResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def stop_container(
        self,
        stop_container_request: "StopContainerRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "StopContainerResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/StopContainer",
            stop_container_request,
            StopContainerResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def remove_container(
        self,
        remove_container_request: "RemoveContainerRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "RemoveContainerResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/RemoveContainer",
            remove_container_request,
            RemoveContainerResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def list_containers(
        self,
        list_containers_request: "ListContainersRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ListContainersResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ListContainers",
            list_containers_request,
            ListContainersResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def stream_containers(
        self,
        stream_containers_request: "StreamContainersRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[StreamContainersResponse]:
        async for response in self._unary_stream(
            "/runtime.v1.RuntimeService/StreamContainers",
            stream_containers_request,
            StreamContainersResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response

    async def container_status(
        self,
        container_status_request: "ContainerStatusRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ContainerStatusResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ContainerStatus",
            container_status_request,
            ContainerStatusResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def update_container_resources(
        self,
        update_container_resources_request: "UpdateContainerResourcesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "UpdateContainerResourcesResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/UpdateContainerResources",
            update_container_resources_request,
            UpdateContainerResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def reopen_container_log(
        self,
        reopen_container_log_request: "ReopenContainerLogRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ReopenContainerLogResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ReopenContainerLog",
            reopen_container_log_request,
            ReopenContainerLogResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def exec_sync(
        self,
        exec_sync_request: "ExecSyncRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ExecSyncResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ExecSync",
            exec_sync_request,
            ExecSyncResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def exec(
        self,
        exec_request: "ExecRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ExecResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/Exec",
            exec_request,
            ExecResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def attach(
        self,
        attach_request: "AttachRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "AttachResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/Attach",
            attach_request,
            AttachResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def port_forward(
        self,
        port_forward_request: "PortForwardRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "PortForwardResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/PortForward",
            port_forward_request,
            PortForwardResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def container_stats(
        self,
        container_stats_request: "ContainerStatsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ContainerStatsResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ContainerStats",
            container_stats_request,
            ContainerStatsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def list_container_stats(
        self,
        list_container_stats_request: "ListContainerStatsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ListContainerStatsResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ListContainerStats",
            list_container_stats_request,
            ListContainerStatsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def stream_container_stats(
        self,
        stream_container_stats_request: "StreamContainerStatsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[StreamContainerStatsResponse]:
        async for response in self._unary_stream(
            "/runtime.v1.RuntimeService/StreamContainerStats",
            stream_container_stats_request,
            StreamContainerStatsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response

    async def pod_sandbox_stats(
        self,
        pod_sandbox_stats_request: "PodSandboxStatsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "PodSandboxStatsResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/PodSandboxStats",
            pod_sandbox_stats_request,
            PodSandboxStatsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def list_pod_sandbox_stats(
        self,
        list_pod_sandbox_stats_request: "ListPodSandboxStatsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ListPodSandboxStatsResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ListPodSandboxStats",
            list_pod_sandbox_stats_request,
            ListPodSandboxStatsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def stream_pod_sandbox_stats(
        self,
        stream_pod_sandbox_stats_request: "StreamPodSandboxStatsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[StreamPodSandboxStatsResponse]:
        async for response in self._unary_stream(
            "/runtime.v1.RuntimeService/StreamPodSandboxStats",
            stream_pod_sandbox_stats_request,
            StreamPodSandboxStatsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response

    async def update_runtime_config(
        self,
        update_runtime_config_request: "UpdateRuntimeConfigRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "UpdateRuntimeConfigResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/UpdateRuntimeConfig",
            update_runtime_config_request,
            UpdateRuntimeConfigResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def status(
        self,
        status_request: "StatusRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "StatusResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/Status",
            status_request,
            StatusResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def checkpoint_container(
        self,
        checkpoint_container_request: "CheckpointContainerRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "CheckpointContainerResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/CheckpointContainer",
            checkpoint_container_request,
            CheckpointContainerResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def get_container_events(
        self,
        get_events_request: "GetEventsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[ContainerEventResponse]:
        async for response in self._unary_stream(
            "/runtime.v1.RuntimeService/GetContainerEvents",
            get_events_request,
            ContainerEventResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response

    async def list_metric_descriptors(
        self,
        list_metric_descriptors_request: "ListMetricDescriptorsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ListMetricDescriptorsResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ListMetricDescriptors",
            list_metric_descriptors_request,
            ListMetricDescriptorsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def list_pod_sandbox_metrics(
        self,
        list_pod_sandbox_metrics_request: "ListPodSandboxMetricsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ListPodSandboxMetricsResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/ListPodSandboxMetrics",
            list_pod_sandbox_metrics_request,
            ListPodSandboxMetricsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def stream_pod_sandbox_metrics(
        self,
        stream_pod_sandbox_metrics_request: "StreamPodSandboxMetricsRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[StreamPodSandboxMetricsResponse]:
        async for response in self._unary_stream(
            "/runtime.v1.RuntimeService/StreamPodSandboxMetrics",
            stream_pod_sandbox_metrics_request,
            StreamPodSandboxMetricsResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response

    async def runtime_config(
        self,
        runtime_config_request: "RuntimeConfigRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "RuntimeConfigResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/RuntimeConfig",
            runtime_config_request,
            RuntimeConfigResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def update_pod_sandbox_resources(
        self,
        update_pod_sandbox_resources_request: "UpdatePodSandboxResourcesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "UpdatePodSandboxResourcesResponse":
        return await self._unary_unary(
            "/runtime.v1.RuntimeService/UpdatePodSandboxResources",
            update_pod_sandbox_resources_request,
            UpdatePodSandboxResourcesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class ImageServiceStub(ServiceStub):
    async def list_images(
        self,
        list_images_request: "ListImagesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ListImagesResponse":
        return await self._unary_unary(
            "/runtime.v1.ImageService/ListImages",
            list_images_request,
            ListImagesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def stream_images(
        self,
        stream_images_request: "StreamImagesRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> AsyncIterator[StreamImagesResponse]:
        async for response in self._unary_stream(
            "/runtime.v1.ImageService/StreamImages",
            stream_images_request,
            StreamImagesResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        ):
            yield response

    async def image_status(
        self,
        image_status_request: "ImageStatusRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ImageStatusResponse":
        return await self._unary_unary(
            "/runtime.v1.ImageService/ImageStatus",
            image_status_request,
            ImageStatusResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def pull_image(
        self,
        pull_image_request: "PullImageRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "PullImageResponse":
        return await self._unary_unary(
            "/runtime.v1.ImageService/PullImage",
            pull_image_request,
            PullImageResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def remove_image(
        self,
        remove_image_request: "RemoveImageRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "RemoveImageResponse":
        return await self._unary_unary(
            "/runtime.v1.ImageService/RemoveImage",
            remove_image_request,
            RemoveImageResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )

    async def image_fs_info(
        self,
        image_fs_info_request: "ImageFsInfoRequest",
        *,
        timeout: Optional[float] = None,
        deadline: Optional["Deadline"] = None,
        metadata: Optional["MetadataLike"] = None
    ) -> "ImageFsInfoResponse":
        return await self._unary_unary(
            "/runtime.v1.ImageService/ImageFsInfo",
            image_fs_info_request,
            ImageFsInfoResponse,
            timeout=timeout,
            deadline=deadline,
            metadata=metadata,
        )


class RuntimeServiceBase(ServiceBase):

    async def version(self, version_request: "VersionRequest") -> "VersionResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def run_pod_sandbox(
        self, run_pod_sandbox_request: "RunPodSandboxRequest"
    ) -> "RunPodSandboxResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def stop_pod_sandbox(
        self, stop_pod_sandbox_request: "StopPodSandboxRequest"
    ) -> "StopPodSandboxResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def remove_pod_sandbox(
        self, remove_pod_sandbox_request: "RemovePodSandboxRequest"
    ) -> "RemovePodSandboxResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def pod_sandbox_status(
        self, pod_sandbox_status_request: "PodSandboxStatusRequest"
    ) -> "PodSandboxStatusResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def list_pod_sandbox(
        self, list_pod_sandbox_request: "ListPodSandboxRequest"
    ) -> "ListPodSandboxResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def stream_pod_sandboxes(
        self, stream_pod_sandboxes_request: "StreamPodSandboxesRequest"
    ) -> AsyncIterator[StreamPodSandboxesResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield StreamPodSandboxesResponse()

    async def create_container(
        self, create_container_request: "CreateContainerRequest"
    ) -> "CreateContainerResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def start_container(
        self, start_container_request: "StartContainerRequest"
    ) -> "StartContainerResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def stop_container(
        self, stop_container_request: "StopContainerRequest"
    ) -> "StopContainerResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def remove_container(
        self, remove_container_request: "RemoveContainerRequest"
    ) -> "RemoveContainerResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def list_containers(
        self, list_containers_request: "ListContainersRequest"
    ) -> "ListContainersResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def stream_containers(
        self, stream_containers_request: "StreamContainersRequest"
    ) -> AsyncIterator[StreamContainersResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield StreamContainersResponse()

    async def container_status(
        self, container_status_request: "ContainerStatusRequest"
    ) -> "ContainerStatusResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def update_container_resources(
        self, update_container_resources_request: "UpdateContainerResourcesRequest"
    ) -> "UpdateContainerResourcesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def reopen_container_log(
        self, reopen_container_log_request: "ReopenContainerLogRequest"
    ) -> "ReopenContainerLogResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def exec_sync(
        self, exec_sync_request: "ExecSyncRequest"
    ) -> "ExecSyncResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def exec(self, exec_request: "ExecRequest") -> "ExecResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def attach(self, attach_request: "AttachRequest") -> "AttachResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def port_forward(
        self, port_forward_request: "PortForwardRequest"
    ) -> "PortForwardResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def container_stats(
        self, container_stats_request: "ContainerStatsRequest"
    ) -> "ContainerStatsResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def list_container_stats(
        self, list_container_stats_request: "ListContainerStatsRequest"
    ) -> "ListContainerStatsResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def stream_container_stats(
        self, stream_container_stats_request: "StreamContainerStatsRequest"
    ) -> AsyncIterator[StreamContainerStatsResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield StreamContainerStatsResponse()

    async def pod_sandbox_stats(
        self, pod_sandbox_stats_request: "PodSandboxStatsRequest"
    ) -> "PodSandboxStatsResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def list_pod_sandbox_stats(
        self, list_pod_sandbox_stats_request: "ListPodSandboxStatsRequest"
    ) -> "ListPodSandboxStatsResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def stream_pod_sandbox_stats(
        self, stream_pod_sandbox_stats_request: "StreamPodSandboxStatsRequest"
    ) -> AsyncIterator[StreamPodSandboxStatsResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield StreamPodSandboxStatsResponse()

    async def update_runtime_config(
        self, update_runtime_config_request: "UpdateRuntimeConfigRequest"
    ) -> "UpdateRuntimeConfigResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def status(self, status_request: "StatusRequest") -> "StatusResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def checkpoint_container(
        self, checkpoint_container_request: "CheckpointContainerRequest"
    ) -> "CheckpointContainerResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def get_container_events(
        self, get_events_request: "GetEventsRequest"
    ) -> AsyncIterator[ContainerEventResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield ContainerEventResponse()

    async def list_metric_descriptors(
        self, list_metric_descriptors_request: "ListMetricDescriptorsRequest"
    ) -> "ListMetricDescriptorsResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def list_pod_sandbox_metrics(
        self, list_pod_sandbox_metrics_request: "ListPodSandboxMetricsRequest"
    ) -> "ListPodSandboxMetricsResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def stream_pod_sandbox_metrics(
        self, stream_pod_sandbox_metrics_request: "StreamPodSandboxMetricsRequest"
    ) -> AsyncIterator[StreamPodSandboxMetricsResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield StreamPodSandboxMetricsResponse()

    async def runtime_config(
        self, runtime_config_request: "RuntimeConfigRequest"
    ) -> "RuntimeConfigResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def update_pod_sandbox_resources(
        self, update_pod_sandbox_resources_request: "UpdatePodSandboxResourcesRequest"
    ) -> "UpdatePodSandboxResourcesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_version(
        self, stream: "grpclib.server.Stream[VersionRequest, VersionResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.version(request)
        await stream.send_message(response)

    async def __rpc_run_pod_sandbox(
        self,
        stream: "grpclib.server.Stream[RunPodSandboxRequest, RunPodSandboxResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.run_pod_sandbox(request)
        await stream.send_message(response)

    async def __rpc_stop_pod_sandbox(
        self,
        stream: "grpclib.server.Stream[StopPodSandboxRequest, StopPodSandboxResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.stop_pod_sandbox(request)
        await stream.send_message(response)

    async def __rpc_remove_pod_sandbox(
        self,
        stream: "grpclib.server.Stream[RemovePodSandboxRequest, RemovePodSandboxResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.remove_pod_sandbox(request)
        await stream.send_message(response)

    async def __rpc_pod_sandbox_status(
        self,
        stream: "grpclib.server.Stream[PodSandboxStatusRequest, PodSandboxStatusResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.pod_sandbox_status(request)
        await stream.send_message(response)

    async def __rpc_list_pod_sandbox(
        self,
        stream: "grpclib.server.Stream[ListPodSandboxRequest, ListPodSandboxResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.list_pod_sandbox(request)
        await stream.send_message(response)

    async def __rpc_stream_pod_sandboxes(
        self,
        stream: "grpclib.server.Stream[StreamPodSandboxesRequest, StreamPodSandboxesResponse]",
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.stream_pod_sandboxes,
            stream,
            request,
        )

    async def __rpc_create_container(
        self,
        stream: "grpclib.server.Stream[CreateContainerRequest, CreateContainerResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.create_container(request)
        await stream.send_message(response)

    async def __rpc_start_container(
        self,
        stream: "grpclib.server.Stream[StartContainerRequest, StartContainerResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.start_container(request)
        await stream.send_message(response)

    async def __rpc_stop_container(
        self,
        stream: "grpclib.server.Stream[StopContainerRequest, StopContainerResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.stop_container(request)
        await stream.send_message(response)

    async def __rpc_remove_container(
        self,
        stream: "grpclib.server.Stream[RemoveContainerRequest, RemoveContainerResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.remove_container(request)
        await stream.send_message(response)

    async def __rpc_list_containers(
        self,
        stream: "grpclib.server.Stream[ListContainersRequest, ListContainersResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.list_containers(request)
        await stream.send_message(response)

    async def __rpc_stream_containers(
        self,
        stream: "grpclib.server.Stream[StreamContainersRequest, StreamContainersResponse]",
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.stream_containers,
            stream,
            request,
        )

    async def __rpc_container_status(
        self,
        stream: "grpclib.server.Stream[ContainerStatusRequest, ContainerStatusResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.container_status(request)
        await stream.send_message(response)

    async def __rpc_update_container_resources(
        self,
        stream: "grpclib.server.Stream[UpdateContainerResourcesRequest, UpdateContainerResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.update_container_resources(request)
        await stream.send_message(response)

    async def __rpc_reopen_container_log(
        self,
        stream: "grpclib.server.Stream[ReopenContainerLogRequest, ReopenContainerLogResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.reopen_container_log(request)
        await stream.send_message(response)

    async def __rpc_exec_sync(
        self, stream: "grpclib.server.Stream[ExecSyncRequest, ExecSyncResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.exec_sync(request)
        await stream.send_message(response)

    async def __rpc_exec(
        self, stream: "grpclib.server.Stream[ExecRequest, ExecResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.exec(request)
        await stream.send_message(response)

    async def __rpc_attach(
        self, stream: "grpclib.server.Stream[AttachRequest, AttachResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.attach(request)
        await stream.send_message(response)

    async def __rpc_port_forward(
        self, stream: "grpclib.server.Stream[PortForwardRequest, PortForwardResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.port_forward(request)
        await stream.send_message(response)

    async def __rpc_container_stats(
        self,
        stream: "grpclib.server.Stream[ContainerStatsRequest, ContainerStatsResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.container_stats(request)
        await stream.send_message(response)

    async def __rpc_list_container_stats(
        self,
        stream: "grpclib.server.Stream[ListContainerStatsRequest, ListContainerStatsResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.list_container_stats(request)
        await stream.send_message(response)

    async def __rpc_stream_container_stats(
        self,
        stream: "grpclib.server.Stream[StreamContainerStatsRequest, StreamContainerStatsResponse]",
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.stream_container_stats,
            stream,
            request,
        )

    async def __rpc_pod_sandbox_stats(
        self,
        stream: "grpclib.server.Stream[PodSandboxStatsRequest, PodSandboxStatsResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.pod_sandbox_stats(request)
        await stream.send_message(response)

    async def __rpc_list_pod_sandbox_stats(
        self,
        stream: "grpclib.server.Stream[ListPodSandboxStatsRequest, ListPodSandboxStatsResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.list_pod_sandbox_stats(request)
        await stream.send_message(response)

    async def __rpc_stream_pod_sandbox_stats(
        self,
        stream: "grpclib.server.Stream[StreamPodSandboxStatsRequest, StreamPodSandboxStatsResponse]",
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.stream_pod_sandbox_stats,
            stream,
            request,
        )

    async def __rpc_update_runtime_config(
        self,
        stream: "grpclib.server.Stream[UpdateRuntimeConfigRequest, UpdateRuntimeConfigResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.update_runtime_config(request)
        await stream.send_message(response)

    async def __rpc_status(
        self, stream: "grpclib.server.Stream[StatusRequest, StatusResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.status(request)
        await stream.send_message(response)

    async def __rpc_checkpoint_container(
        self,
        stream: "grpclib.server.Stream[CheckpointContainerRequest, CheckpointContainerResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.checkpoint_container(request)
        await stream.send_message(response)

    async def __rpc_get_container_events(
        self, stream: "grpclib.server.Stream[GetEventsRequest, ContainerEventResponse]"
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.get_container_events,
            stream,
            request,
        )

    async def __rpc_list_metric_descriptors(
        self,
        stream: "grpclib.server.Stream[ListMetricDescriptorsRequest, ListMetricDescriptorsResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.list_metric_descriptors(request)
        await stream.send_message(response)

    async def __rpc_list_pod_sandbox_metrics(
        self,
        stream: "grpclib.server.Stream[ListPodSandboxMetricsRequest, ListPodSandboxMetricsResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.list_pod_sandbox_metrics(request)
        await stream.send_message(response)

    async def __rpc_stream_pod_sandbox_metrics(
        self,
        stream: "grpclib.server.Stream[StreamPodSandboxMetricsRequest, StreamPodSandboxMetricsResponse]",
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.stream_pod_sandbox_metrics,
            stream,
            request,
        )

    async def __rpc_runtime_config(
        self,
        stream: "grpclib.server.Stream[RuntimeConfigRequest, RuntimeConfigResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.runtime_config(request)
        await stream.send_message(response)

    async def __rpc_update_pod_sandbox_resources(
        self,
        stream: "grpclib.server.Stream[UpdatePodSandboxResourcesRequest, UpdatePodSandboxResourcesResponse]",
    ) -> None:
        request = await stream.recv_message()
        response = await self.update_pod_sandbox_resources(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/runtime.v1.RuntimeService/Version": grpclib.const.Handler(
                self.__rpc_version,
                grpclib.const.Cardinality.UNARY_UNARY,
                VersionRequest,
                VersionResponse,
            ),
            "/runtime.v1.RuntimeService/RunPodSandbox": grpclib.const.Handler(
                self.__rpc_run_pod_sandbox,
                grpclib.const.Cardinality.UNARY_UNARY,
                RunPodSandboxRequest,
                RunPodSandboxResponse,
            ),
            "/runtime.v1.RuntimeService/StopPodSandbox": grpclib.const.Handler(
                self.__rpc_stop_pod_sandbox,
                grpclib.const.Cardinality.UNARY_UNARY,
                StopPodSandboxRequest,
                StopPodSandboxResponse,
            ),
            "/runtime.v1.RuntimeService/RemovePodSandbox": grpclib.const.Handler(
                self.__rpc_remove_pod_sandbox,
                grpclib.const.Cardinality.UNARY_UNARY,
                RemovePodSandboxRequest,
                RemovePodSandboxResponse,
            ),
            "/runtime.v1.RuntimeService/PodSandboxStatus": grpclib.const.Handler(
                self.__rpc_pod_sandbox_status,
                grpclib.const.Cardinality.UNARY_UNARY,
                PodSandboxStatusRequest,
                PodSandboxStatusResponse,
            ),
            "/runtime.v1.RuntimeService/ListPodSandbox": grpclib.const.Handler(
                self.__rpc_list_pod_sandbox,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListPodSandboxRequest,
                ListPodSandboxResponse,
            ),
            "/runtime.v1.RuntimeService/StreamPodSandboxes": grpclib.const.Handler(
                self.__rpc_stream_pod_sandboxes,
                grpclib.const.Cardinality.UNARY_STREAM,
                StreamPodSandboxesRequest,
                StreamPodSandboxesResponse,
            ),
            "/runtime.v1.RuntimeService/CreateContainer": grpclib.const.Handler(
                self.__rpc_create_container,
                grpclib.const.Cardinality.UNARY_UNARY,
                CreateContainerRequest,
                CreateContainerResponse,
            ),
            "/runtime.v1.RuntimeService/StartContainer": grpclib.const.Handler(
                self.__rpc_start_container,
                grpclib.const.Cardinality.UNARY_UNARY,
                StartContainerRequest,
                StartContainerResponse,
            ),
            "/runtime.v1.RuntimeService/StopContainer": grpclib.const.Handler(
                self.__rpc_stop_container,
                grpclib.const.Cardinality.UNARY_UNARY,
                StopContainerRequest,
                StopContainerResponse,
            ),
            "/runtime.v1.RuntimeService/RemoveContainer": grpclib.const.Handler(
                self.__rpc_remove_container,
                grpclib.const.Cardinality.UNARY_UNARY,
                RemoveContainerRequest,
                RemoveContainerResponse,
            ),
            "/runtime.v1.RuntimeService/ListContainers": grpclib.const.Handler(
                self.__rpc_list_containers,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListContainersRequest,
                ListContainersResponse,
            ),
            "/runtime.v1.RuntimeService/StreamContainers": grpclib.const.Handler(
                self.__rpc_stream_containers,
                grpclib.const.Cardinality.UNARY_STREAM,
                StreamContainersRequest,
                StreamContainersResponse,
            ),
            "/runtime.v1.RuntimeService/ContainerStatus": grpclib.const.Handler(
                self.__rpc_container_status,
                grpclib.const.Cardinality.UNARY_UNARY,
                ContainerStatusRequest,
                ContainerStatusResponse,
            ),
            "/runtime.v1.RuntimeService/UpdateContainerResources": grpclib.const.Handler(
                self.__rpc_update_container_resources,
                grpclib.const.Cardinality.UNARY_UNARY,
                UpdateContainerResourcesRequest,
                UpdateContainerResourcesResponse,
            ),
            "/runtime.v1.RuntimeService/ReopenContainerLog": grpclib.const.Handler(
                self.__rpc_reopen_container_log,
                grpclib.const.Cardinality.UNARY_UNARY,
                ReopenContainerLogRequest,
                ReopenContainerLogResponse,
            ),
            "/runtime.v1.RuntimeService/ExecSync": grpclib.const.Handler(
                self.__rpc_exec_sync,
                grpclib.const.Cardinality.UNARY_UNARY,
                ExecSyncRequest,
                ExecSyncResponse,
            ),
            "/runtime.v1.RuntimeService/Exec": grpclib.const.Handler(
                self.__rpc_exec,
                grpclib.const.Cardinality.UNARY_UNARY,
                ExecRequest,
                ExecResponse,
            ),
            "/runtime.v1.RuntimeService/Attach": grpclib.const.Handler(
                self.__rpc_attach,
                grpclib.const.Cardinality.UNARY_UNARY,
                AttachRequest,
                AttachResponse,
            ),
            "/runtime.v1.RuntimeService/PortForward": grpclib.const.Handler(
                self.__rpc_port_forward,
                grpclib.const.Cardinality.UNARY_UNARY,
                PortForwardRequest,
                PortForwardResponse,
            ),
            "/runtime.v1.RuntimeService/ContainerStats": grpclib.const.Handler(
                self.__rpc_container_stats,
                grpclib.const.Cardinality.UNARY_UNARY,
                ContainerStatsRequest,
                ContainerStatsResponse,
            ),
            "/runtime.v1.RuntimeService/ListContainerStats": grpclib.const.Handler(
                self.__rpc_list_container_stats,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListContainerStatsRequest,
                ListContainerStatsResponse,
            ),
            "/runtime.v1.RuntimeService/StreamContainerStats": grpclib.const.Handler(
                self.__rpc_stream_container_stats,
                grpclib.const.Cardinality.UNARY_STREAM,
                StreamContainerStatsRequest,
                StreamContainerStatsResponse,
            ),
            "/runtime.v1.RuntimeService/PodSandboxStats": grpclib.const.Handler(
                self.__rpc_pod_sandbox_stats,
                grpclib.const.Cardinality.UNARY_UNARY,
                PodSandboxStatsRequest,
                PodSandboxStatsResponse,
            ),
            "/runtime.v1.RuntimeService/ListPodSandboxStats": grpclib.const.Handler(
                self.__rpc_list_pod_sandbox_stats,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListPodSandboxStatsRequest,
                ListPodSandboxStatsResponse,
            ),
            "/runtime.v1.RuntimeService/StreamPodSandboxStats": grpclib.const.Handler(
                self.__rpc_stream_pod_sandbox_stats,
                grpclib.const.Cardinality.UNARY_STREAM,
                StreamPodSandboxStatsRequest,
                StreamPodSandboxStatsResponse,
            ),
            "/runtime.v1.RuntimeService/UpdateRuntimeConfig": grpclib.const.Handler(
                self.__rpc_update_runtime_config,
                grpclib.const.Cardinality.UNARY_UNARY,
                UpdateRuntimeConfigRequest,
                UpdateRuntimeConfigResponse,
            ),
            "/runtime.v1.RuntimeService/Status": grpclib.const.Handler(
                self.__rpc_status,
                grpclib.const.Cardinality.UNARY_UNARY,
                StatusRequest,
                StatusResponse,
            ),
            "/runtime.v1.RuntimeService/CheckpointContainer": grpclib.const.Handler(
                self.__rpc_checkpoint_container,
                grpclib.const.Cardinality.UNARY_UNARY,
                CheckpointContainerRequest,
                CheckpointContainerResponse,
            ),
            "/runtime.v1.RuntimeService/GetContainerEvents": grpclib.const.Handler(
                self.__rpc_get_container_events,
                grpclib.const.Cardinality.UNARY_STREAM,
                GetEventsRequest,
                ContainerEventResponse,
            ),
            "/runtime.v1.RuntimeService/ListMetricDescriptors": grpclib.const.Handler(
                self.__rpc_list_metric_descriptors,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListMetricDescriptorsRequest,
                ListMetricDescriptorsResponse,
            ),
            "/runtime.v1.RuntimeService/ListPodSandboxMetrics": grpclib.const.Handler(
                self.__rpc_list_pod_sandbox_metrics,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListPodSandboxMetricsRequest,
                ListPodSandboxMetricsResponse,
            ),
            "/runtime.v1.RuntimeService/StreamPodSandboxMetrics": grpclib.const.Handler(
                self.__rpc_stream_pod_sandbox_metrics,
                grpclib.const.Cardinality.UNARY_STREAM,
                StreamPodSandboxMetricsRequest,
                StreamPodSandboxMetricsResponse,
            ),
            "/runtime.v1.RuntimeService/RuntimeConfig": grpclib.const.Handler(
                self.__rpc_runtime_config,
                grpclib.const.Cardinality.UNARY_UNARY,
                RuntimeConfigRequest,
                RuntimeConfigResponse,
            ),
            "/runtime.v1.RuntimeService/UpdatePodSandboxResources": grpclib.const.Handler(
                self.__rpc_update_pod_sandbox_resources,
                grpclib.const.Cardinality.UNARY_UNARY,
                UpdatePodSandboxResourcesRequest,
                UpdatePodSandboxResourcesResponse,
            ),
        }


class ImageServiceBase(ServiceBase):

    async def list_images(
        self, list_images_request: "ListImagesRequest"
    ) -> "ListImagesResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def stream_images(
        self, stream_images_request: "StreamImagesRequest"
    ) -> AsyncIterator[StreamImagesResponse]:
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)
        yield StreamImagesResponse()

    async def image_status(
        self, image_status_request: "ImageStatusRequest"
    ) -> "ImageStatusResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def pull_image(
        self, pull_image_request: "PullImageRequest"
    ) -> "PullImageResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def remove_image(
        self, remove_image_request: "RemoveImageRequest"
    ) -> "RemoveImageResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def image_fs_info(
        self, image_fs_info_request: "ImageFsInfoRequest"
    ) -> "ImageFsInfoResponse":
        raise grpclib.GRPCError(grpclib.const.Status.UNIMPLEMENTED)

    async def __rpc_list_images(
        self, stream: "grpclib.server.Stream[ListImagesRequest, ListImagesResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.list_images(request)
        await stream.send_message(response)

    async def __rpc_stream_images(
        self, stream: "grpclib.server.Stream[StreamImagesRequest, StreamImagesResponse]"
    ) -> None:
        request = await stream.recv_message()
        await self._call_rpc_handler_server_stream(
            self.stream_images,
            stream,
            request,
        )

    async def __rpc_image_status(
        self, stream: "grpclib.server.Stream[ImageStatusRequest, ImageStatusResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.image_status(request)
        await stream.send_message(response)

    async def __rpc_pull_image(
        self, stream: "grpclib.server.Stream[PullImageRequest, PullImageResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.pull_image(request)
        await stream.send_message(response)

    async def __rpc_remove_image(
        self, stream: "grpclib.server.Stream[RemoveImageRequest, RemoveImageResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.remove_image(request)
        await stream.send_message(response)

    async def __rpc_image_fs_info(
        self, stream: "grpclib.server.Stream[ImageFsInfoRequest, ImageFsInfoResponse]"
    ) -> None:
        request = await stream.recv_message()
        response = await self.image_fs_info(request)
        await stream.send_message(response)

    def __mapping__(self) -> Dict[str, grpclib.const.Handler]:
        return {
            "/runtime.v1.ImageService/ListImages": grpclib.const.Handler(
                self.__rpc_list_images,
                grpclib.const.Cardinality.UNARY_UNARY,
                ListImagesRequest,
                ListImagesResponse,
            ),
            "/runtime.v1.ImageService/StreamImages": grpclib.const.Handler(
                self.__rpc_stream_images,
                grpclib.const.Cardinality.UNARY_STREAM,
                StreamImagesRequest,
                StreamImagesResponse,
            ),
            "/runtime.v1.ImageService/ImageStatus": grpclib.const.Handler(
                self.__rpc_image_status,
                grpclib.const.Cardinality.UNARY_UNARY,
                ImageStatusRequest,
                ImageStatusResponse,
            ),
            "/runtime.v1.ImageService/PullImage": grpclib.const.Handler(
                self.__rpc_pull_image,
                grpclib.const.Cardinality.UNARY_UNARY,
                PullImageRequest,
                PullImageResponse,
            ),
            "/runtime.v1.ImageService/RemoveImage": grpclib.const.Handler(
                self.__rpc_remove_image,
                grpclib.const.Cardinality.UNARY_UNARY,
                RemoveImageRequest,
                RemoveImageResponse,
            ),
            "/runtime.v1.ImageService/ImageFsInfo": grpclib.const.Handler(
                self.__rpc_image_fs_info,
                grpclib.const.Cardinality.UNARY_UNARY,
                ImageFsInfoRequest,
                ImageFsInfoResponse,
            ),
        }
