"""Pods by manifests, and an agent inside this process to be watched."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from benchmarks.agent_process import NODE_NAME, PATIENCE
from tests.containerd_node import TEST_IMAGE
from trikubelet.agent.agent import Agent
from trikubelet.agent.options import AgentOptions
from trikubelet.clock import SystemClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

__all__ = [
    "NODE_NAME",
    "PATIENCE",
    "CountingChannel",
    "ManifestFolder",
    "RecordingClient",
    "agent_inside",
]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from trikubelet.rpc.cri import v1
    from trikubelet.rpc.cri.caller import CallChannel
    from trikubelet.rpc.grpc import Channel

SCRIPT: Final = ": > /sign/$(hostname); trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"


class Runtime(Protocol):
    """A container runtime that serves CRI on a socket."""

    @property
    def socket(self) -> Path: ...

    @property
    def endpoint(self) -> str: ...


class CountingChannel:
    """Counts calls by their names."""

    def __init__(self, inner: Channel) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def request(self, name: str, *arguments: Any, **more: Any) -> Any:
        self.calls[name.rpartition("/")[2]] += 1
        return self._inner.request(name, *arguments, **more)

    def take(self) -> Counter[str]:
        calls, self.calls = self.calls, Counter()
        return calls


class RecordingClient(RuntimeClient):
    """Keeps the configurations that it was given, oldest first."""

    def __init__(self, channel: CallChannel) -> None:
        super().__init__(channel)
        self.sandboxes: list[v1.PodSandboxConfig] = []
        self.containers: list[tuple[v1.PodSandboxConfig, v1.ContainerConfig]] = []
        """Each with that of its sandbox."""

    @property
    def sandbox(self) -> v1.PodSandboxConfig:
        """The last one."""
        return self.sandboxes[-1]

    @property
    def container(self) -> v1.ContainerConfig:
        """The last one."""
        return self.containers[-1][1]

    async def run_pod_sandbox(self, config: v1.PodSandboxConfig, runtime_handler: str = "") -> str:
        self.sandboxes.append(config)
        return await super().run_pod_sandbox(config, runtime_handler)

    async def create_container(
        self, sandbox_id: str, config: v1.ContainerConfig, sandbox_config: v1.PodSandboxConfig
    ) -> str:
        self.containers.append((sandbox_config, config))
        return await super().create_container(sandbox_id, config, sandbox_config)


class ManifestFolder:
    """Pods by their manifests."""

    def __init__(self, folder: Path, sign: Path, image: str = TEST_IMAGE) -> None:
        self.path = folder / "manifests"
        self.path.mkdir(parents=True, exist_ok=True)
        self._sign = sign
        self._image = image

    def write(self, names: Sequence[str]) -> None:
        """Bring pods with one container each, as close to each other as can be."""
        pods = {}
        for name in names:
            container = {
                "name": "main",
                "image": self._image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", SCRIPT],
                "volumeMounts": [{"name": "sign", "mountPath": "/sign"}],
            }
            volumes = [{"name": "sign", "hostPath": {"path": str(self._sign)}}]
            spec = {"terminationGracePeriodSeconds": 5, "volumes": volumes, "containers": [container]}
            pods[name] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.put(pods)

    def put(self, pods: Mapping[str, Mapping[str, Any]]) -> None:
        """Bring or replace these manifests, as close to each other as can be."""
        for name, pod in pods.items():
            (self.path / f".{name}").write_text(json.dumps(pod))
        for name in pods:
            (self.path / f".{name}").rename(self.path / f"{name}.json")

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.path / f"{name}.json").unlink()


@asynccontextmanager
async def agent_inside(folder: Path, node: Runtime, manifests: ManifestFolder) -> AsyncIterator[Any]:
    """An agent of this process: its channel and its runtime client."""
    options = AgentOptions(
        configuration=KubeletConfiguration(
            pod_logs_dir=str(folder / "logs"),
            cgroups_per_qos=False,
            enforce_node_allocatable=(),
            fail_cgroup_v1=False,
        ),
        root_dir=folder / "root",
        node_name=NODE_NAME,
        runtime_endpoint=node.endpoint,
        manifests=manifests.path,
    )
    async with open_unix_channel(node.socket) as inner, trio.open_nursery() as nursery:
        channel = CountingChannel(inner)
        runtime = RecordingClient(channel)
        await nursery.start(Agent(options, runtime, ImageClient(channel), clock=SystemClock()).run)
        yield channel, runtime
        nursery.cancel_scope.cancel()
