"""One device plugin, over its socket: the lists that it sends, and the calls that it is asked.

A plugin is somebody else's program, and it can be wrong in every way. So each call has a deadline, also those that the
kubelet gives none. Lists are taken one at a time: the plugin is answered, in effect, by how fast its stream is read. Of
lists that come faster than they can matter only the newest counts, and a long list earns a long pause, so that a plugin
that never stops costs a few percent of a processor at most, and little memory: what is not read is not sent.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from grpclib import GRPCError, Status
from grpclib.const import Cardinality

from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.node.devices.model import HEALTHY, DeviceFile, DeviceMount, Needs, PluginDevice, PluginOptions
from trikubelet.rpc.device_plugins import v1beta1
from trikubelet.rpc.status_text import status_text
from trikubelet.rpc.unread import Unread, newest_of, pause_after
from trikubelet.scopes import off_loop
from trikubelet.supervision import supervise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from trikubelet.rpc.grpc import Channel

DIAL_SECONDS: Final = 10.0
OPTIONS_SECONDS: Final = 10.0
ALLOCATE_SECONDS: Final = 60.0
"""Also for GetPreferredAllocation. (The kubelet waits for ever, and admits no pod meanwhile.)"""
PRE_START_SECONDS: Final = 30.0
"""(`KubeletPreStartContainerRPCTimeoutInSecs`)"""
DIALS: Final = Backoff(first=0.015625, longest=1.0)
MOST_FROM_PLUGIN: Final = 4 * 2**20
"""Bytes of a message from a plugin: the kubelet leaves it at gRPC's default."""
_LIST_AND_WATCH: Final = "/v1beta1.DevicePlugin/ListAndWatch"

Reply = TypeVar("Reply")


@frozen
class PluginError(Exception):
    """A plugin does not do what is asked of it. The text is meant for the plugin's owner."""

    problem: str

    def __str__(self) -> str:
        return self.problem


class Endpoint:
    """A plugin that we are connected to. Made by `connected`.

    It is stopped when its lists have come to an end, from either side. Calls that are made before that are still
    answered afterwards.
    """

    def __init__(self, resource: str, socket: Path, channel: Channel, options: PluginOptions) -> None:
        self.resource = resource
        self.socket = socket
        self.options = options
        self.stopped = False
        self._channel = channel
        self._stub = v1beta1.DevicePluginStub(channel)
        self._listening = trio.CancelScope()
        self._reading = trio.CapacityLimiter(1)
        self._calls = 0
        self._call_ended: Broadcast[None] = Broadcast()

    def stop(self) -> None:
        """Listen no more."""
        self.stopped = True
        self._listening.cancel()

    async def listen(self, on_list: Callable[[list[PluginDevice]], object]) -> None:
        """Hand over each list until `stop`. Raises PluginError when the plugin ends it."""
        failure: GRPCError | None = None

        async def take_lists() -> None:
            nonlocal failure
            try:
                await self._take_lists(on_list)
            except GRPCError as error:
                failure = error

        try:
            with self._listening:
                await supervise(take_lists)  # a list that could not be taken is asked for again
        finally:
            self.stopped = True
        if failure is not None:
            text = status_text(failure.status, failure.message)
            raise PluginError(f"ListAndWatch ended unexpectedly: {text}") from failure
        if not self._listening.cancelled_caught:
            raise PluginError("ListAndWatch ended unexpectedly: EOF")

    async def drained(self) -> None:
        """Return when no call is under way. All have deadlines."""
        while self._calls:
            await self._call_ended.wait()

    async def preferred(self, selectable: Sequence[str], included: Sequence[str], size: int) -> Collection[str]:
        """Which of `selectable` go well together, `included` being among them. Raises PluginError."""
        request = v1beta1.ContainerPreferredAllocationRequest(
            available_device_ids=list(selectable), must_include_device_ids=list(included), allocation_size=size
        )
        requests = v1beta1.PreferredAllocationRequest(container_requests=[request])
        reply = await self._call(self._stub.get_preferred_allocation, requests, ALLOCATE_SECONDS)
        return reply.container_responses[0].device_ids if reply.container_responses else ()

    async def allocate(self, devices: Sequence[str]) -> Needs:
        """What a container needs that gets these devices. Raises PluginError."""
        request = v1beta1.ContainerAllocateRequest(devices_ids=list(devices))
        requests = v1beta1.AllocateRequest(container_requests=[request])
        reply = await self._call(self._stub.allocate, requests, ALLOCATE_SECONDS)
        if not reply.container_responses:
            raise PluginError(f"no containers return in allocation response {reply}")
        return _needs(reply.container_responses[0])

    async def pre_start(self, devices: Sequence[str]) -> None:
        """A container that has these devices is about to start. Raises PluginError."""
        request = v1beta1.PreStartContainerRequest(devices_ids=list(devices))
        await self._call(self._stub.pre_start_container, request, PRE_START_SECONDS)

    async def _call(self, method: Callable[..., Awaitable[Reply]], request: object, seconds: float) -> Reply:
        if self.stopped:
            raise PluginError(f"endpoint {self.resource} has been stopped")
        self._calls += 1
        try:
            return await method(request, timeout=seconds)
        except GRPCError as error:
            raise PluginError(status_text(error.status, error.message)) from error
        finally:
            self._calls -= 1
            self._call_ended.send(None)

    async def _take_lists(self, on_list: Callable[[list[PluginDevice]], object]) -> None:
        request = self._channel.request(_LIST_AND_WATCH, Cardinality.UNARY_STREAM, v1beta1.Empty, Unread)
        async with request as stream:
            await stream.send_message(v1beta1.Empty(), end=True)
            while (message := await stream.recv_message()) is not None:
                newest = await newest_of(stream, message)
                on_list(await off_loop(self._reading, len(newest), _devices, newest))
                await pause_after(newest)


@asynccontextmanager
async def connected(
    resource: str, socket: Path, connect: Callable[[Path], AbstractAsyncContextManager[Channel]]
) -> AsyncIterator[Endpoint]:
    """A plugin, while the context lasts. Raises PluginError when it cannot be connected to, or has no options."""
    async with connect(socket) as channel:
        yield Endpoint(resource, socket, channel, await _options(channel))


async def _options(channel: Channel) -> PluginOptions:
    """The first call is the one that connects; a socket appears a moment before somebody listens on it."""
    stub = v1beta1.DevicePluginStub(channel)
    pause, refusal = DIALS.first, "no answer"
    with trio.move_on_after(DIAL_SECONDS + OPTIONS_SECONDS):
        give_up_at = trio.current_time() + DIAL_SECONDS
        while True:
            try:
                reply = await stub.get_device_plugin_options(v1beta1.Empty(), timeout=OPTIONS_SECONDS)
                return PluginOptions(reply.pre_start_required, reply.get_preferred_allocation_available)
            except GRPCError as error:
                refusal = status_text(error.status, error.message)
                if error.status is not Status.UNAVAILABLE:
                    raise PluginError(f"failed to get device plugin options: {refusal}") from error
            if trio.current_time() + pause > give_up_at:
                break
            await trio.sleep(pause)
            pause = DIALS.after(pause)
    raise PluginError(f"failed to dial device plugin: {refusal}")


def _devices(message: Unread) -> list[PluginDevice]:
    """Raises GRPCError for what is no list."""
    try:
        reply = v1beta1.ListAndWatchResponse.FromString(message)
    except Exception as error:
        raise GRPCError(Status.INTERNAL, f"not a list of devices: {error}") from error
    return [
        PluginDevice(one.id, one.health == HEALTHY, tuple(node.id for node in one.topology.nodes))
        for one in reply.devices
    ]


def _needs(reply: v1beta1.ContainerAllocateResponse) -> Needs:
    return Needs(
        environment=dict(reply.envs),
        mounts=tuple(DeviceMount(one.container_path, one.host_path, one.read_only) for one in reply.mounts),
        files=tuple(DeviceFile(one.container_path, one.host_path, one.permissions) for one in reply.devices),
        annotations=dict(reply.annotations),
        cdi_devices=tuple(one.name for one in reply.cdi_devices),
    )
