"""Gives devices to containers, and has their plugins prepare them: what the book says, put to the plugins.

A plugin is asked outside of everything else: while it thinks, other pods come and get devices. So what it prefers is
looked at in the light of what is free by then, and what it is asked to give is reserved until it has answered.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.admission.types import AllocationError
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.node.devices.checkpoint import FILE
from trikubelet.node.devices.choice import picked
from trikubelet.node.devices.endpoint import PluginError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from trikubelet.api import Container, Pod
    from trikubelet.linux.state_file import StateFile
    from trikubelet.node.devices.book import DeviceBook
    from trikubelet.node.devices.choice import Pick
    from trikubelet.node.devices.connections import PluginConnections
    from trikubelet.node.devices.endpoint import Endpoint
    from trikubelet.node.devices.metrics import DeviceMetrics

log = get_logger("devices")

_ANYWHERE: Final[Mapping[str, int]] = {}


class DeviceGiver:
    """All its methods raise AllocationError, and may be cancelled."""

    def __init__(
        self,
        book: DeviceBook,
        connections: PluginConnections,
        file: StateFile,
        metrics: DeviceMetrics,
    ) -> None:
        self._book = book
        self._connections = connections
        self._file = file
        self._metrics = metrics

    async def give(self, pod: Pod, containers: Sequence[Container], nodes: Mapping[str, int] = _ANYWHERE) -> None:
        """Give containers of a pod what they lack, in this order: all or nothing. On the disk when it returns.

        `nodes`: the NUMA nodes that were agreed on, sets by the container's name.
        """
        with self._all_or_nothing(pod.metadata.uid) as given:
            for container in containers:
                for resource, amount in self._book.wanted(pod, container).items():
                    if await self._give(pod, container, resource, amount, nodes.get(container.name)):
                        given.append((container.name, resource))
            if given:
                await self._write_down()

    async def prepare(self, uid: str, container: str, resource: str) -> None:
        """A container that has devices is about to start: its plugin prepares them, if it wants to."""
        endpoint = self._connections.get(resource)
        if endpoint is None:
            if self._book.is_gone(resource):
                raise AllocationError(f"endpoint not found in cache for a registered resource: {resource}")
            return  # Its plugin has not come back yet since the agent started.
        if not endpoint.options.pre_start:
            return
        grant = self._book.granted_to(uid).get(container, {}).get(resource)
        if grant is None:
            raise AllocationError(
                f"no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}"
            )
        try:
            await endpoint.pre_start(sorted(grant.devices))
        except PluginError as error:
            raise AllocationError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    @contextmanager
    def _all_or_nothing(self, uid: str) -> Iterator[list[tuple[str, str]]]:
        """Takes back what was given, by container and resource, when the block fails or is cancelled."""
        given: list[tuple[str, str]] = []
        try:
            yield given
        except BaseException:
            for container, resource in given:
                self._book.take_back(uid, container, resource)
            raise

    async def _give(self, pod: Pod, container: Container, resource: str, amount: int, nodes: int | None) -> bool:
        """Whether the container has got something (kubelet: `allocateContainerResources`)."""
        preferred: Collection[str] = ()
        pick = self._book.pick(pod, container, resource, amount, nodes)
        if pick is not None and pick.missing and self._endpoint(resource).options.preferred_allocation:
            preferred = await self._preferred(self._endpoint(resource), pick, amount)
            pick = self._book.pick(pod, container, resource, amount, nodes)
        if pick is None:
            return False
        await self._ask_for(self._endpoint(resource), pod.metadata.uid, container.name, picked(pick, preferred))
        return True

    async def _preferred(self, endpoint: Endpoint, pick: Pick, amount: int) -> Collection[str]:
        try:
            return await endpoint.preferred(pick.selectable, pick.certain, amount)
        except PluginError as error:
            raise AllocationError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error

    async def _ask_for(self, endpoint: Endpoint, uid: str, container: str, devices: Sequence[str]) -> None:
        resource, began = endpoint.resource, trio.current_time()
        with self._book.reserved(resource, devices):
            try:
                needs = await endpoint.allocate(devices)
            except PluginError as error:
                raise AllocationError(str(error)) from error
            finally:
                self._metrics.allocations.observe((resource,), trio.current_time() - began)
            self._book.give(uid, container, resource, devices, needs)
        log.info("devices allocated", pod=uid, container=container, resource=resource, devices=list(devices))

    def _endpoint(self, resource: str) -> Endpoint:
        endpoint = self._connections.get(resource)
        if endpoint is None:
            raise AllocationError(f"unknown Device Plugin {resource}")
        return endpoint

    async def _write_down(self) -> None:
        self._file.changed()
        try:
            await self._file.durable()
        except CheckpointError as error:
            raise AllocationError(f'failed to write checkpoint file "{FILE}": {error}') from error
