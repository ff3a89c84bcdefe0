"""Agents on a containerd that are told of their pods by manifests: as a process, and inside this one to be watched."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from tests.containerd_node import TEST_IMAGE
from trikubelet.agent import Agent
from trikubelet.agent_options import AgentOptions
from trikubelet.clock import SystemClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.cri import v1
from trikubelet.cri.client import ImageClient, RuntimeClient
from trikubelet.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from tests.containerd_node import ContainerdNode
    from trikubelet.grpc import Channel

PATIENCE: Final = 300.0
NODE_NAME: Final = "benchmark"
SCRIPT: Final = ": > /sign/$(hostname); trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"


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
    """Keeps the last configurations that it was given."""

    sandbox = v1.PodSandboxConfig()
    container = v1.ContainerConfig()

    async def run_pod_sandbox(self, config: v1.PodSandboxConfig, runtime_handler: str = "") -> str:
        self.sandbox = config
        return await super().run_pod_sandbox(config, runtime_handler)

    async def create_container(
        self, sandbox_id: str, config: v1.ContainerConfig, sandbox_config: v1.PodSandboxConfig
    ) -> str:
        self.container = config
        return await super().create_container(sandbox_id, config, sandbox_config)


class ManifestFolder:
    """Pods by their manifests."""

    def __init__(self, folder: Path, sign: Path) -> None:
        self.path = folder / "manifests"
        self.path.mkdir(parents=True)
        self._sign = sign

    def write(self, names: Sequence[str]) -> None:
        """Bring pods, as close to each other as can be."""
        for name in names:
            container = {
                "name": "main",
                "image": TEST_IMAGE,
                "command": ["sh", "-c", SCRIPT],
                "volumeMounts": [{"name": "sign", "mountPath": "/sign"}],
            }
            volumes = [{"name": "sign", "hostPath": {"path": str(self._sign)}}]
            spec = {"terminationGracePeriodSeconds": 5, "volumes": volumes, "containers": [container]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
            (self.path / f".{name}").write_text(json.dumps(pod))
        for name in names:
            (self.path / f".{name}").rename(self.path / f"{name}.json")

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.path / f"{name}.json").unlink()


@contextmanager
def agent_process(folder: Path, node: ContainerdNode, manifests: ManifestFolder) -> Iterator[int]:
    """A whole agent; its pid. At the end it drains and is waited for."""
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "podLogsDir": str(folder / "logs"),
    }
    (folder / "config.json").write_text(json.dumps(configuration))
    command = [
        *(sys.executable, "-c", "from trikubelet.cli.main import main; main()", "run"),
        f"--config={folder / 'config.json'}",
        f"--manifests={manifests.path}",
        f"--root-dir={folder / 'root'}",
        f"--runtime-endpoint={node.endpoint}",
        f"--node-name={NODE_NAME}",
        "--drain-on-exit",
    ]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        socket = folder / "root" / "trikubelet.sock"
        _wait_until(socket.exists, lambda: (folder / "agent.log").read_text()[-2000:])
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


@asynccontextmanager
async def agent_inside(folder: Path, node: ContainerdNode, manifests: ManifestFolder) -> AsyncIterator[Any]:
    """An agent of this process: its channel and its runtime client."""
    options = AgentOptions(
        configuration=KubeletConfiguration(pod_logs_dir=str(folder / "logs")),
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


def _wait_until(condition: Any, problem: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the agent does not start: {problem()}")
        time.sleep(0.01)
