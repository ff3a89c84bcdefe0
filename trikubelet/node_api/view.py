"""What the handlers of the HTTP API ask of the agent. The agent implements it, tests have stand-ins.

What is not `async` must not block; what is may be cancelled at any time. Pods are found by namespace and name; a UID
in a path may be that of a mirror pod, and `running_container` translates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from trikubelet.api import Pod
    from trikubelet.broadcast import Subscription
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.http.streaming.command import CommandStreams
    from trikubelet.node_api.log_location import LogTarget


@frozen
class Ran:
    """What a command in a container has written, and its exit code."""

    stdout: bytes
    stderr: bytes
    exit_code: int


class SharedView(Protocol):
    """What both APIs ask: the pods of the node, containers' logs, the agent's health."""

    def pods(self) -> Sequence[Pod]:
        """Every pod the agent knows, with its reported status, in a stable order."""
        ...

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name; of several the one that is wanted. A static pod is found by its own name."""
        ...

    async def log_files(self, namespace: str, pod: str, container: str, previous: bool) -> LogTarget:
        """Where a container's log is. Raises LogNotAvailableError.

        The pod is one of `pods()`, the container is in its spec. `log_location.container_for_logs` finds the
        container's id in the pod's status, with the kubelet's words when there is none; its CRI status has the path.
        """
        ...

    def container_running(self, container_id: str) -> bool:
        """Whether the container of this CRI id runs. While the runtime cannot be asked: as last seen."""
        ...

    def subscribe(self) -> Subscription[None]:
        """Wakes when `pods()` or `container_running()` may have another answer."""
        ...

    def health(self) -> Mapping[str, str | None]:
        """Each check of the agent's health with its problem, None where all is well."""
        ...


class NodeApiView(SharedView, Protocol):
    """All that the routes of the node's API ask. Everything `async` about containers and streams raises CRIError."""

    async def running_pods(self) -> Sequence[Pod]:
        """What runs by the runtime's word: name, namespace and UID, names and images of the running containers."""
        ...

    async def running_container(self, pod: Pod, uid: str, container: str) -> str | None:
        """The CRI id of a pod's running container, None when there is none or `uid` (if any) is not the pod's.

        `uid` may be that of the mirror pod (`PodManager.resolve_uid`). What was last
        seen may be believed, but not that nothing runs: a container may have started just now.
        """
        ...

    async def run_command(self, container_id: str, command: Sequence[str]) -> Ran:
        """Run a command to its end (CRI `ExecSync`), however long that takes."""
        ...

    async def checkpoint(self, container_id: str, location: Path, timeout: int) -> None:
        """Write a checkpoint of a container to a file in a folder that is there. `timeout` in seconds, 0: the usual."""
        ...

    async def exec_url(self, container_id: str, command: Sequence[str], streams: CommandStreams) -> str:
        """Where a command with streams can be had (CRI `Exec`)."""
        ...

    async def attach_url(self, container_id: str, streams: CommandStreams) -> str:
        """Where a container's own streams can be had (CRI `Attach`)."""
        ...

    async def port_forward_url(self, pod: Pod, ports: Sequence[int]) -> str | None:
        """Where connections into the pod's newest sandbox can be had (CRI `PortForward`); None without a sandbox."""
        ...

    @property
    def configuration(self) -> KubeletConfiguration:
        """What is in force, drop-ins and flags included."""
        ...

    def flags(self) -> Mapping[str, str]:
        """The command line's flags by name, without dashes, those with their defaults included."""
        ...

    @property
    def root_dir(self) -> Path: ...

    @property
    def started_at(self) -> datetime:
        """When the process began."""
        ...

    @property
    def kubernetes_version(self) -> str:
        """The release that the node reports, such as `v1.36.0`."""
        ...
