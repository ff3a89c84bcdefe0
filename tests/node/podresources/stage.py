"""Pods, managers that know what they gave away, and a server with both to ask."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import betterproto
import trio

from trikubelet.allocation.memory.state import Block
from trikubelet.api import Pod, pod_from_dict
from trikubelet.api.pod_kinds import is_terminal
from trikubelet.formats.cpu_list import set_of
from trikubelet.node.podresources.providers import (
    Claim,
    ClaimDevice,
    Device,
    Providers,
)
from trikubelet.node.podresources.server import PodResourcesServer
from trikubelet.pods.manager import PodManager
from trikubelet.rpc.grpc import Channel, open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from trikubelet.api import Container

GIB = 2**30

DEVICES = (Device("example.com/gpu", "gpu-0", (1,)), Device("example.com/key", "key-7"))
CPUS = set_of((12, 23, 30))
MEMORY = (Block(0b10, "memory", GIB), Block(0b11, "hugepages-1Gi", GIB))
CLAIM = Claim(
    "claim",
    "team",
    (ClaimDevice("dra.example.com", "pool-1", "gpu-1", ("example.com/gpu=a", "example.com/gpu=b"), "share-1"),),
)


def make_pod(
    name: str,
    *containers: str,
    namespace: str = "default",
    phase: str = "Running",
    init: Sequence[str] = (),
    sidecars: Sequence[str] = (),
    ephemeral: Sequence[str] = (),
) -> Pod:
    """A pod with the UID `uid-NAME`. Its sidecars come after its other init containers."""
    spec: dict[str, Any] = {
        "containers": [{"name": one} for one in containers],
        "initContainers": [
            *({"name": one} for one in init),
            *({"name": one, "restartPolicy": "Always"} for one in sidecars),
        ],
        "ephemeralContainers": [{"name": one} for one in ephemeral],
    }
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return pod_from_dict({"metadata": metadata, "spec": spec, "status": {"phase": phase}})


@attrs.define
class Managers:
    """All four, in one: `holders` are the (UID, container) that have all that there is."""

    holders: frozenset[tuple[str, str]] = frozenset()
    forgot: int = 0
    broken: bool = False

    def providers(self) -> Providers:
        return Providers(devices=self, cpus=self, memory=self, claims=self)

    def forget_ended(self) -> None:
        self.forgot += 1
        if self.broken:
            raise RuntimeError("the checkpoint is gone")

    def devices(self, uid: str, container: str) -> Sequence[Device]:
        return DEVICES if (uid, container) in self.holders else ()

    def allocatable_devices(self) -> Sequence[Device]:
        return (*DEVICES, Device("example.com/gpu", "gpu-9", (0, 1)))

    def exclusive_cpus(self, uid: str, container: str) -> int:
        return CPUS if (uid, container) in self.holders else 0

    @property
    def allocatable_cpus(self) -> int:
        return CPUS | 1 << 31

    def memory(self, uid: str, container: str) -> Sequence[Block]:
        return MEMORY if (uid, container) in self.holders else ()

    @property
    def allocatable_memory(self) -> Sequence[Block]:
        return (*MEMORY, Block(0b1, "memory", 64 * GIB))

    def claims(self, pod: Pod, container: Container) -> Sequence[Claim]:
        return (CLAIM,) if (pod.metadata.uid, container.name) in self.holders else ()


def make_server(pods: Sequence[Pod], managers: Managers | None = None) -> PodResourcesServer:
    """Of a node with these pods, of which those are active that have not ended."""
    known = PodManager(pods)

    def active() -> Sequence[Pod]:
        return [pod for pod in known.pods() if not is_terminal(pod)]

    if managers is None:
        return PodResourcesServer(known, active)
    return PodResourcesServer(known, active, managers.providers())


@asynccontextmanager
async def asking(server: PodResourcesServer, path: Path) -> AsyncIterator[Channel]:
    """A channel to the server, which listens at `path`."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, path)
        async with open_unix_channel(path) as channel:
            yield channel
        nursery.cancel_scope.cancel()


def as_dict(message: Any) -> Mapping[str, Any]:
    """What is set in one of our messages, by the names of the proto files."""
    found: Mapping[str, Any] = message.to_dict(casing=betterproto.Casing.SNAKE)
    return found
