"""The services."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio
from grpclib import GRPCError

from trikubelet.rpc.device_plugins import v1beta1
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.rpc.plugin_registration import v1 as plugins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEVICE_PLUGIN: Final = "DevicePlugin"


@attrs.frozen
class Brick:
    """A device."""

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()

    def as_message(self) -> v1beta1.Device:
        topology = v1beta1.TopologyInfo(nodes=[v1beta1.NumaNode(id=node) for node in self.numa_nodes])
        device = v1beta1.Device(id=self.id, health="Healthy" if self.healthy else "Unhealthy")
        if self.numa_nodes:
            device.topology = topology
        return device


def bricks_response(devices: Sequence[str]) -> v1beta1.ContainerAllocateResponse:
    return v1beta1.ContainerAllocateResponse(
        envs={"BRICKS": ",".join(devices)},
        devices=[
            v1beta1.DeviceSpec(container_path=f"/dev/brick-{one}", host_path="/dev/null", permissions="rw")
            for one in devices
        ],
        annotations={"toy.example.com/bricks": ",".join(devices)},
    )


@attrs.define(eq=False)
class ToyPlugin(v1beta1.DevicePluginBase):
    """Does what it is asked, and notes it; what goes wrong is up to the test."""

    resource: str = "toy.example.com/brick"
    devices: Iterable[str | Brick] = ()
    pre_start: bool = False
    preferring: Callable[[Sequence[str], Sequence[str], int], Sequence[str]] | None = None
    """Its opinion, of what is to be had, what has to be among it, and how many; without one it has none."""
    response: Callable[[Sequence[str]], v1beta1.ContainerAllocateResponse] = bricks_response
    log: Path = Path("/dev/null")
    """A line of JSON for each call."""
    toolbox: Path | None = None
    """A folder that containers with devices see."""

    calls: list[tuple[str, tuple[str, ...]]] = attrs.field(factory=list, init=False)
    """Names of calls and the devices in them."""
    hanging: set[str] = attrs.field(factory=set, init=False)
    """Names of calls that are never answered."""
    failing: dict[str, GRPCError] = attrs.field(factory=dict, init=False)
    """By the name of the call."""
    hung: trio.Event = attrs.field(factory=trio.Event, init=False)
    """A call is one of those that are never answered."""
    _lists: list[list[Brick]] = attrs.field(factory=list, init=False)
    _told: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    listeners: int = attrs.field(default=0, init=False)
    """Streams of lists that somebody reads."""

    def __attrs_post_init__(self) -> None:
        self._lists.append([one if isinstance(one, Brick) else Brick(one) for one in self.devices])

    def tell(self, devices: Iterable[str | Brick]) -> None:
        """These are all devices from now on."""
        self._lists.append([one if isinstance(one, Brick) else Brick(one) for one in devices])
        self._told.set()
        self._told = trio.Event()

    def end_lists(self) -> None:
        """All that listen hear that there is nothing more."""
        self._ended = True
        self._told.set()

    def asked(self, rpc: str) -> list[tuple[str, ...]]:
        """The devices of all calls of this name."""
        return [devices for name, devices in self.calls if name == rpc]

    async def get_device_plugin_options(self, empty: v1beta1.Empty) -> v1beta1.DevicePluginOptions:
        await self._called("GetDevicePluginOptions")
        return v1beta1.DevicePluginOptions(
            pre_start_required=self.pre_start, get_preferred_allocation_available=self.preferring is not None
        )

    async def list_and_watch(self, empty: v1beta1.Empty) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
        await self._called("ListAndWatch")
        sent = len(self._lists) - 1
        self.listeners += 1
        try:
            while not self._ended:
                while sent < len(self._lists):
                    yield v1beta1.ListAndWatchResponse(devices=[one.as_message() for one in self._lists[sent]])
                    sent += 1
                await self._told.wait()
        finally:
            self.listeners -= 1

    async def get_preferred_allocation(
        self, preferred_allocation_request: v1beta1.PreferredAllocationRequest
    ) -> v1beta1.PreferredAllocationResponse:
        (request,) = preferred_allocation_request.container_requests
        await self._called("GetPreferredAllocation", request.available_device_ids)
        assert self.preferring is not None
        chosen = self.preferring(request.available_device_ids, request.must_include_device_ids, request.allocation_size)
        response = v1beta1.ContainerPreferredAllocationResponse(device_ids=list(chosen))
        return v1beta1.PreferredAllocationResponse(container_responses=[response])

    async def allocate(self, allocate_request: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        (request,) = allocate_request.container_requests
        await self._called("Allocate", request.devices_ids)
        response = self.response(request.devices_ids)
        if self.toolbox is not None:
            mount = v1beta1.Mount(container_path="/toolbox", host_path=str(self.toolbox), read_only=True)
            response.mounts.append(mount)
        return v1beta1.AllocateResponse(container_responses=[response])

    async def pre_start_container(
        self, pre_start_container_request: v1beta1.PreStartContainerRequest
    ) -> v1beta1.PreStartContainerResponse:
        await self._called("PreStartContainer", pre_start_container_request.devices_ids)
        return v1beta1.PreStartContainerResponse()

    async def _called(self, rpc: str, devices: Sequence[str] = ()) -> None:
        self.calls.append((rpc, tuple(devices)))
        with self.log.open("a") as log:
            log.write(json.dumps({"call": rpc, "devices": list(devices)}) + "\n")
        if rpc in self.hanging:
            self.hung.set()
            await trio.sleep_forever()
        if rpc in self.failing:
            raise self.failing[rpc]


class Introduction(plugins.RegistrationBase):
    """How the plugin introduces itself in `plugins_registry`; `told` has what it heard, empty for success."""

    def __init__(self, resource: str, endpoint: str, versions: Sequence[str] = ("v1beta1",)) -> None:
        self.info = plugins.PluginInfo(
            type=DEVICE_PLUGIN, name=resource, endpoint=endpoint, supported_versions=list(versions)
        )
        self.told: list[str] = []
        self.heard = trio.Event()

    async def get_info(self, info_request: plugins.InfoRequest) -> plugins.PluginInfo:
        return self.info

    async def notify_registration_status(
        self, registration_status: plugins.RegistrationStatus
    ) -> plugins.RegistrationStatusResponse:
        self.told.append(registration_status.error)
        self.heard.set()
        return plugins.RegistrationStatusResponse()


async def register(agent: Path, resource: str, endpoint: str, *, version: str = "v1beta1") -> None:
    """Register at the agent's socket. Raises GRPCError."""
    async with open_unix_channel(agent) as channel:
        request = v1beta1.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        await v1beta1.RegistrationStub(channel).register(request)
