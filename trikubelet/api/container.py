"""Containers of a pod, as asked for."""

from __future__ import annotations

from attrs import field

from trikubelet.api.environment import EnvFromSource, EnvVar
from trikubelet.api.probes import Lifecycle, Probe
from trikubelet.api.resources import ContainerResizePolicy, ResourceRequirements
from trikubelet.api.schema import REQUIRED, APIObject, Int32, wire
from trikubelet.api.security import SecurityContext
from trikubelet.formats.values import frozen


@frozen(repr=False)
class ContainerPort(APIObject):
    """A port that a container listens on, and the port of the node that leads there."""

    name: str = ""
    host_port: Int32 = 0
    container_port: Int32 = field(default=0, metadata=REQUIRED)
    protocol: str = ""
    host_ip: str = field(default="", metadata=wire("hostIP"))


@frozen(repr=False)
class VolumeMount(APIObject):
    """Where in a container a volume of the pod appears."""

    name: str = field(default="", metadata=REQUIRED)
    read_only: bool = False
    recursive_read_only: str | None = None
    mount_path: str = field(default="", metadata=REQUIRED)
    sub_path: str = ""
    mount_propagation: str | None = None
    sub_path_expr: str = ""


@frozen(repr=False)
class VolumeDevice(APIObject):
    """Where in a container a block device appears."""

    name: str = field(default="", metadata=REQUIRED)
    device_path: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class ContainerRestartRuleOnExitCodes(APIObject):
    """The exit codes that a restart rule is about."""

    operator: str = ""
    values: tuple[Int32, ...] = ()


@frozen(repr=False)
class ContainerRestartRule(APIObject):
    """What happens when a container ends in a way that the rule describes."""

    action: str = ""
    exit_codes: ContainerRestartRuleOnExitCodes | None = None


@frozen(repr=False)
class Container(APIObject):
    """One container: what to run, with what, and how it is watched."""

    name: str = field(default="", metadata=REQUIRED)
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: tuple[ContainerPort, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    env: tuple[EnvVar, ...] = ()
    resources: ResourceRequirements = field(default=ResourceRequirements())
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    restart_policy: str | None = None
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    image_pull_policy: str = ""
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False


@frozen(repr=False)
class EphemeralContainer(Container):
    """A container added to a running pod to look into it; `target_container_name` shares its process namespace."""

    target_container_name: str = ""
