"""Any CRI runtime behind its socket, and short ways to ask it for pods and containers, each with all that is in CRI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.containerd_node import TEST_IMAGE
from tests.embedded.runtime_node import parse_log
from tests.patience import PATIENCE, pauses
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

MACHINES_NETWORK = v1.NamespaceOption(network=v1.NamespaceMode.NODE, pid=v1.NamespaceMode.CONTAINER)
OWN_NETWORK = v1.NamespaceOption(network=v1.NamespaceMode.POD, pid=v1.NamespaceMode.CONTAINER)


@attrs.define
class Runtime:
    """One runtime; it has the image `TEST_IMAGE`."""

    name: str
    calls: RuntimeClient
    images: ImageClient
    folder: Path
    import_image: Callable[[Path], Awaitable[object]]
    machine: str = "/proc/self/ns/net"
    """Path of the network namespace that is its machine."""
    _count: int = 0
    _pods: list[str] = attrs.field(factory=list)

    async def pod(self, name: str = "pod", **fields: Any) -> tuple[str, v1.PodSandboxConfig]:
        """Runs one. `options` are its namespaces, with the machine's network unless they say otherwise."""
        options = fields.pop("options", MACHINES_NETWORK)
        config = v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(name=name, namespace="cri", uid=f"uid-{name}"),
            log_directory=str(self.folder / "logs" / name),
            linux=v1.LinuxPodSandboxConfig(
                security_context=v1.LinuxSandboxSecurityContext(namespace_options=options, privileged=True),
                sysctls=fields.pop("sysctls", {}),
            ),
            **fields,
        )
        Path(config.log_directory).mkdir(parents=True, exist_ok=True)
        self._pods.append(await self.calls.run_pod_sandbox(config))
        return self._pods[-1], config

    async def create(self, pod: tuple[str, v1.PodSandboxConfig], script: str, **fields: Any) -> str:
        """A container that runs a shell script, in `TEST_IMAGE` or in `image`."""
        self._count += 1
        name = fields.pop("name", f"c{self._count}")
        security = fields.pop("security", v1.LinuxContainerSecurityContext())
        security.namespace_options = fields.pop("options", pod[1].linux.security_context.namespace_options)
        config = v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name=name),
            image=v1.ImageSpec(image=fields.pop("image", TEST_IMAGE)),
            command=["sh", "-c", script],
            log_path=f"{name}.log",
            linux=v1.LinuxContainerConfig(
                security_context=security, resources=fields.pop("resources", v1.LinuxContainerResources())
            ),
            **fields,
        )
        return await self.calls.create_container(pod[0], config, pod[1])

    async def start(self, pod: tuple[str, v1.PodSandboxConfig], script: str = "sleep 1000", **fields: Any) -> str:
        container = await self.create(pod, script, **fields)
        await self.calls.start_container(container)
        return container

    async def run(self, pod: tuple[str, v1.PodSandboxConfig], script: str, **fields: Any) -> list[str]:
        """The lines that a script writes, on either stream."""
        container = await self.start(pod, script, **fields)
        path = (await self.ended(container)).log_path
        lines = [text for _, _, text in parse_log(Path(path).read_text())]
        await self.calls.remove_container(container)
        return lines

    async def ended(self, container: str) -> v1.ContainerStatus:
        looks = pauses()
        with trio.fail_after(PATIENCE):
            while True:
                status = await self.status(container)
                if status.state is v1.ContainerState.CONTAINER_EXITED:
                    return status
                await trio.sleep(next(looks))

    async def until_written(self, container: str, text: str) -> None:
        """Until a container's log holds that."""
        path = Path((await self.status(container)).log_path)
        looks = pauses()
        with trio.fail_after(PATIENCE):
            while not path.exists() or text not in path.read_text():
                await trio.sleep(next(looks))

    async def status(self, container: str) -> v1.ContainerStatus:
        return (await self.calls.container_status(container)).status

    async def exec(self, container: str, command: Sequence[str], timeout: float = 30) -> v1.ExecSyncResponse:
        return await self.calls.exec_sync(container, command, timeout)


@asynccontextmanager
async def runtime_at(
    name: str, socket: Path, folder: Path, import_image: Callable[[Path], Awaitable[object]], **more: Any
) -> AsyncIterator[Runtime]:
    """When the body ends, so do all its pods."""
    async with open_unix_channel(socket) as channel:
        calls, images = RuntimeClient(channel, timeout=PATIENCE), ImageClient(channel)
        runtime = Runtime(name, calls, images, folder, import_image, **more)
        try:
            yield runtime
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                there = {sandbox.id for sandbox in await runtime.calls.list_pod_sandboxes()}
                for pod in there.intersection(runtime._pods):
                    await runtime.calls.stop_pod_sandbox(pod)
                    await runtime.calls.remove_pod_sandbox(pod)
