"""A runtime whose lists and statistics a test writes down."""

from __future__ import annotations

import attrs
import trio
from grpclib.const import Status

from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError

SECOND = 1_000_000_000
READY = v1.PodSandboxState.SANDBOX_READY
GONE = v1.PodSandboxState.SANDBOX_NOTREADY
RUNNING = v1.ContainerState.CONTAINER_RUNNING
EXITED = v1.ContainerState.CONTAINER_EXITED


def sandbox_of(
    name: str,
    *,
    uid: str = "",
    created: int = 1,
    state: v1.PodSandboxState = READY,
    id: str = "",  # noqa: A002
) -> v1.PodSandbox:
    uid = uid or f"{name}-uid"
    return v1.PodSandbox(
        id=id or f"sandbox-{uid}",
        metadata=v1.PodSandboxMetadata(name=name, uid=uid, namespace="ns"),
        state=state,
        created_at=created * SECOND,
    )


def container_of(
    sandbox: v1.PodSandbox,
    name: str,
    *,
    id: str = "",  # noqa: A002
    created: int = 2,
    state: v1.ContainerState = RUNNING,
) -> v1.Container:
    return v1.Container(
        id=id or f"{sandbox.id}-{name}",
        pod_sandbox_id=sandbox.id,
        metadata=v1.ContainerMetadata(name=name),
        image=v1.ImageSpec(image="example/image:1"),
        labels={"io.kubernetes.container.name": name},
        state=state,
        created_at=created * SECOND,
    )


def number(value: int) -> v1.UInt64Value:
    return v1.UInt64Value(value=value)


def stats_of(
    container_id: str, *, at: int = 100, cpu: int | None = None, memory: int | None = None
) -> v1.ContainerStats:
    """With a writable layer of 8192 bytes in 3 inodes, on the file system at /."""
    stats = v1.ContainerStats(
        attributes=v1.ContainerAttributes(
            id=container_id, metadata=v1.ContainerMetadata(name="c"), labels={"a": "b"}, annotations={"c": "d"}
        ),
        writable_layer=v1.FilesystemUsage(
            timestamp=at * SECOND,
            fs_id=v1.FilesystemIdentifier(mountpoint="/"),
            used_bytes=number(8192),
            inodes_used=number(3),
        ),
    )
    if cpu is not None:
        stats.cpu = v1.CpuUsage(timestamp=at * SECOND, usage_core_nano_seconds=number(cpu))
    if memory is not None:
        stats.memory = v1.MemoryUsage(
            timestamp=at * SECOND, working_set_bytes=number(memory), usage_bytes=number(memory)
        )
    return stats


@attrs.define
class FakeRuntime:
    """Implements `StatsRuntime` and `StatsImages`."""

    sandboxes: list[v1.PodSandbox] = attrs.field(factory=list)
    containers: list[v1.Container] = attrs.field(factory=list)
    stats: list[v1.ContainerStats] = attrs.field(factory=list)
    sandbox_stats: list[v1.PodSandboxStats] | None = None
    """None: the runtime does not have the call."""
    images: v1.ImageFsInfoResponse = attrs.field(factory=v1.ImageFsInfoResponse)
    failing: set[str] = attrs.field(factory=set)
    hanging: set[str] = attrs.field(factory=set)
    nonsense: bytes = b""
    """In place of containers' statistics."""
    calls: list[str] = attrs.field(factory=list)

    async def list_containers(self) -> list[v1.Container]:
        await self._called("ListContainers")
        return self.containers

    async def list_pod_sandboxes(self) -> list[v1.PodSandbox]:
        await self._called("ListPodSandbox")
        return self.sandboxes

    async def list_container_stats_data(self) -> bytes:
        await self._called("ListContainerStats")
        return self.nonsense or bytes(v1.ListContainerStatsResponse(stats=self.stats))

    async def list_pod_sandbox_stats_data(self) -> bytes:
        await self._called("ListPodSandboxStats")
        if self.sandbox_stats is None:
            raise CRIError("ListPodSandboxStats", Status.UNIMPLEMENTED, "unknown method")
        return bytes(v1.ListPodSandboxStatsResponse(stats=self.sandbox_stats))

    async def image_fs_info(self) -> v1.ImageFsInfoResponse:
        await self._called("ImageFsInfo")
        return self.images

    async def _called(self, rpc: str) -> None:
        self.calls.append(rpc)
        if rpc in self.hanging:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if rpc in self.failing:
            raise CRIError(rpc, Status.UNAVAILABLE, "no connection")
