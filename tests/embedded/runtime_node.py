"""An embedded runtime in a folder of its own, and short ways to ask it for containers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.patience import PATIENCE, pauses
from trikubelet.clock import SystemClock
from trikubelet.embedded.images.model import StoredImage
from trikubelet.embedded.runtime import EmbeddedRuntime
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.hidden_paths import MASKED_PATHS, READONLY_PATHS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence


OWN_PID = v1.NamespaceOption(pid=v1.NamespaceMode.CONTAINER)


@attrs.define
class FixedImages:
    """Images by name, beside those of a store."""

    inner: Callable[[str], StoredImage | None]
    images: dict[str, StoredImage] = attrs.field(factory=dict)

    def resolve(self, reference: str) -> StoredImage | None:
        return self.images.get(reference) or self.inner(reference)


@attrs.define
class Ended:
    """How a container ended, and what it wrote."""

    status: v1.ContainerStatus
    records: list[tuple[str, str, str]]
    """(stream, tag, text) of each log line."""

    @property
    def exit_code(self) -> int:
        return self.status.exit_code

    @property
    def out(self) -> str:
        return "".join(text + ("\n" if tag == "F" else "") for stream, tag, text in self.records if stream == "stdout")

    @property
    def err(self) -> str:
        return "".join(text + ("\n" if tag == "F" else "") for stream, tag, text in self.records if stream == "stderr")


class Node:
    """One running embedded runtime."""

    def __init__(self, runtime: EmbeddedRuntime, logs: Path) -> None:
        self.runtime = runtime
        self.cri = runtime.runtime_service
        self.lifecycle = runtime._lifecycle
        self.logs = logs
        self.images = FixedImages(runtime.images.resolve)
        self.cri._resolve_image = self.images.resolve
        self._count = 0

    async def sandbox(
        self,
        name: str = "pod",
        *,
        options: v1.NamespaceOption = OWN_PID,
        hostname: str = "pod-host",
        port_mappings: Sequence[v1.PortMapping] = (),
        **fields: Any,
    ) -> str:
        config = v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(name=name, namespace="default", uid=f"uid-{name}"),
            hostname=hostname,
            log_directory=str(self.logs / name),
            port_mappings=list(port_mappings),
            linux=v1.LinuxPodSandboxConfig(
                security_context=v1.LinuxSandboxSecurityContext(namespace_options=options), **fields
            ),
        )
        reply = await self.cri.run_pod_sandbox(v1.RunPodSandboxRequest(config=config))
        return reply.pod_sandbox_id

    async def create(
        self,
        sandbox: str,
        command: Sequence[str],
        *,
        name: str = "",
        image: str = "localhost/host",
        env: Mapping[str, str] | None = None,
        security: v1.LinuxContainerSecurityContext | None = None,
        resources: v1.LinuxContainerResources | None = None,
        **fields: Any,
    ) -> str:
        self._count += 1
        if security is None:  # what an agent asks for
            security = v1.LinuxContainerSecurityContext(
                masked_paths=list(MASKED_PATHS), readonly_paths=list(READONLY_PATHS)
            )
        if not security.namespace_options.pid:
            record = self.cri._inventory.sandboxes.get(sandbox)
            options = None if record is None else record.config.linux.security_context.namespace_options
            security.namespace_options = OWN_PID if options is None else options
        linux = v1.LinuxContainerConfig(security_context=security)
        if resources is not None:
            linux.resources = resources
        config = v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name=name or f"c{self._count}"),
            image=v1.ImageSpec(image=image),
            command=list(command),
            envs=[v1.KeyValue(key=key, value=value.encode()) for key, value in (env or {}).items()],
            log_path=f"{name or f'c{self._count}'}.log",
            linux=linux,
            **fields,
        )
        request = v1.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
        return (await self.cri.create_container(request)).container_id

    async def start(self, container: str) -> None:
        await self.cri.start_container(v1.StartContainerRequest(container_id=container))

    async def launch(self, sandbox: str, command: Sequence[str], **fields: Any) -> str:
        container = await self.create(sandbox, command, **fields)
        await self.start(container)
        return container

    async def run(self, sandbox: str, command: Sequence[str], **fields: Any) -> Ended:
        """Start a container and wait for its end."""
        return await self.ended(await self.launch(sandbox, command, **fields))

    async def ended(self, container: str) -> Ended:
        with trio.fail_after(PATIENCE):
            await self.cri._inventory.container(container).exited.wait()
        return Ended(await self.status(container), self.log(container))

    async def status(self, container: str) -> v1.ContainerStatus:
        return (await self.cri.container_status(v1.ContainerStatusRequest(container_id=container))).status

    async def stop(self, container: str, timeout: int) -> None:
        await self.cri.stop_container(v1.StopContainerRequest(container_id=container, timeout=timeout))

    async def remove(self, container: str) -> None:
        await self.cri.remove_container(v1.RemoveContainerRequest(container_id=container))

    async def exec(self, container: str, command: Sequence[str], timeout: int = 10) -> v1.ExecSyncResponse:
        request = v1.ExecSyncRequest(container_id=container, cmd=list(command), timeout=timeout)
        return await self.cri.exec_sync(request)

    def log(self, container: str) -> list[tuple[str, str, str]]:
        path = Path(self.cri._inventory.container(container).spec["log_path"])
        return parse_log(path.read_text()) if path.exists() else []

    def pid(self, container: str) -> int:
        return self.cri._inventory.container(container).pid

    def keeper_pid(self) -> int:
        return int(self.cri.capabilities()["keeperPid"])

    async def wait_for_output(self, container: str, text: str) -> None:
        """Until the container wrote a line with `text`."""
        looks = pauses()
        with trio.fail_after(PATIENCE):
            while not any(text in line for _, _, line in self.log(container)):
                await trio.sleep(next(looks))

    async def remove_everything(self) -> None:
        for sandbox in list(self.cri._inventory.sandboxes):
            await self.cri.remove_pod_sandbox(v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox))


def parse_log(text: str) -> list[tuple[str, str, str]]:
    records = []
    for line in text.splitlines():
        _, stream, tag, content = line.split(" ", 3)
        records.append((stream, tag, content))
    return records


@asynccontextmanager
async def running_node(root: Path, logs: Path, **options: Any) -> AsyncIterator[Node]:
    """A node in `root`; its containers and its keeper live on when this ends. Its pods are on the machine's network."""
    runtime = EmbeddedRuntime(root, clock=SystemClock(), **{"networks": {}, **options})
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        try:
            yield Node(runtime, logs)
        finally:
            nursery.cancel_scope.cancel()


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    looks = pauses()
    with trio.move_on_after(PATIENCE):
        while not condition():
            await trio.sleep(next(looks))
        return
    raise AssertionError(f"still not so after {PATIENCE:g} s: {what}")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def processes_with(marker: str) -> list[int]:
    """Pids of processes with `marker` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in words and is_alive(int(folder.name)):
                found.append(int(folder.name))
    return found


def children_named(name: str, parent: int) -> list[int]:
    """Pids of a process's children that call themselves so."""
    found = []
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            called = Path(f"/proc/{pid}/comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if called == f"{name}\n":
            found.append(int(pid))
    return found


def descriptors(*pids: int) -> list[int]:
    """How many descriptors each process has open."""
    return [sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) for pid in pids]


async def wait_for_descriptors(before: list[int], *pids: int) -> None:
    """Until no process has more open than before (which may have counted some that were about to be closed)."""

    def no_more() -> bool:
        return all(now <= then for now, then in zip(descriptors(*pids), before, strict=True))

    await wait_until(no_more, f"no more descriptors than before, {before}")


def mounts_with(marker: str) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if marker in line]
