"""What the runtime was seen to hold: values that PLEG observes and everybody else reads.

Two views of one pod, as in the kubelet's `container` package:

- `RunningPod`, cheap, from list replies: which containers and sandboxes exist.
- `PodRuntimeStatus`, from status replies: everything that is known of each of them.

All are immutable; times on the wire are aware datetimes, `observed_at` is Trio time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import attrs

from trikubelet.formats.values import frozen

_START_ERROR: Final = "StartError"
_IN_FRONT: Final = "unable to start container process: "
_LONGEST_PROBLEM: Final = 500
"""Characters."""


class ContainerState(enum.Enum):
    """State of a container, or of a sandbox seen as one (ready is RUNNING, not ready is EXITED)."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@frozen
class ContainerID:
    """A runtime's id with the runtime's name, written `containerd://0123…` in API statuses."""

    type: str
    id: str

    def __str__(self) -> str:
        return f"{self.type}://{self.id}"

    @classmethod
    def parse(cls, text: str) -> ContainerID:
        """Read `type://id`. Raises ValueError for anything else."""
        kind, separator, name = text.strip('"').partition("://")
        if not separator:
            raise ValueError(f"expected TYPE://ID as container id, got {text!r}")
        return cls(kind, name)


@frozen
class RuntimeContainer:
    """One container (or sandbox) of a list reply."""

    id: ContainerID
    name: str
    """The container's name in the pod; empty for a sandbox."""
    state: ContainerState
    image: str = ""
    image_id: str = ""
    hash: int = 0
    created_at: datetime | None = None
    pod_sandbox_id: str = ""
    attempt: int = 0


@frozen
class RunningPod:
    """A pod as the runtime's lists show it (kubelet: `container.Pod`). Ended containers are among its containers."""

    uid: str
    name: str
    namespace: str
    created_at: datetime | None = None
    containers: tuple[RuntimeContainer, ...] = ()
    sandboxes: tuple[RuntimeContainer, ...] = ()

    @property
    def full_name(self) -> str:
        """`name_namespace`, the key of static pods."""
        return f"{self.name}_{self.namespace}"


@frozen
class ContainerUser:
    """The numbers that a container's first process began with."""

    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


@frozen
class RuntimeResources:
    """What the runtime says that a container may use: thousandths of a processor, bytes. None: it does not say."""

    cpu_request: int | None = None
    cpu_limit: int | None = None
    memory_limit: int | None = None


@frozen
class ContainerStatus:
    """One container of a pod as the runtime reports it (kubelet: `container.Status`)."""

    id: ContainerID
    name: str
    state: ContainerState
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0
    image: str = ""
    image_id: str = ""
    image_ref: str = ""
    image_runtime_handler: str = ""
    hash: int = 0
    restart_count: int = 0
    reason: str = ""
    message: str = ""
    start_cut_off: bool = False
    """True for a container that the runtime calls exited though no process of it ever ran: its start ended with the
    client that asked for it. Among the containers of a pod it is CREATED."""
    user: ContainerUser | None = None
    """None when the runtime does not tell."""
    resources: RuntimeResources | None = None
    """Likewise."""
    log_path: str = ""
    pod_sandbox_id: str = ""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)


def start_problem(reason: str, message: str) -> str:
    """Return why a container never ran, without what the layers of its runtime put in front; empty for one that ran."""
    if reason != _START_ERROR:
        return ""
    return message.rpartition(_IN_FRONT)[2].removesuffix(": unknown")[:_LONGEST_PROBLEM]


@frozen
class SandboxStatus:
    """One sandbox of a pod."""

    id: str
    attempt: int
    ready: bool
    created_at: datetime | None = None
    ips: tuple[str, ...] = ()
    host_network: bool = False
    network_reported: bool = False
    """True when the runtime's status had a network part; only then an empty `ips` means that the address is lost."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)


@frozen
class PodRuntimeStatus:
    """All that is known of a pod's sandboxes and containers at one moment (kubelet: `container.PodStatus`).

    Containers are sorted newest first, sandboxes too.
    """

    uid: str
    name: str
    namespace: str
    ips: tuple[str, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    sandbox_statuses: tuple[SandboxStatus, ...] = ()
    observed_at: float = 0.0
    """Trio time at which the inspection began: everything that happened before is in here."""

    def find_container(self, name: str) -> ContainerStatus | None:
        """The newest status of the container with this name."""
        return next((status for status in self.container_statuses if status.name == name), None)

    def running_containers(self) -> list[ContainerStatus]:
        return [status for status in self.container_statuses if status.state is ContainerState.RUNNING]

    def as_running_pod(self, runtime_name: str) -> RunningPod:
        """The same pod in the shape that killing works on (kubelet: `ConvertPodStatusToRunningPod`).

        Holds running and unknown containers only, and all sandboxes.
        """
        alive = (ContainerState.RUNNING, ContainerState.UNKNOWN)
        return RunningPod(
            uid=self.uid,
            name=self.name,
            namespace=self.namespace,
            containers=tuple(
                RuntimeContainer(
                    id=status.id,
                    name=status.name,
                    state=status.state,
                    image=status.image,
                    image_id=status.image_id,
                    hash=status.hash,
                    created_at=status.created_at,
                    pod_sandbox_id=status.pod_sandbox_id,
                    attempt=status.restart_count,
                )
                for status in self.container_statuses
                if status.state in alive
            ),
            sandboxes=tuple(
                RuntimeContainer(
                    id=ContainerID(runtime_name, sandbox.id),
                    name="",
                    state=ContainerState.RUNNING if sandbox.ready else ContainerState.EXITED,
                    created_at=sandbox.created_at,
                    attempt=sandbox.attempt,
                )
                for sandbox in self.sandbox_statuses
            ),
        )


def contents(status: PodRuntimeStatus) -> dict[str, str]:
    """The ids of all containers of a pod, each with that of its sandbox, and of its sandboxes, each with itself."""
    of_containers = {container.id.id: container.pod_sandbox_id for container in status.container_statuses}
    return of_containers | {sandbox.id: sandbox.id for sandbox in status.sandbox_statuses}


def nothing_runs(status: PodRuntimeStatus) -> bool:
    """Whether neither a container runs nor a sandbox is ready (kubelet: `isPodStatusCacheTerminal`)."""
    return not status.running_containers() and not any(sandbox.ready for sandbox in status.sandbox_statuses)
