"""Getting devices for pods that are admitted but for that.

Plugins are asked while the pod is held, so the sync loop waits for none of them. Pods that want devices of the same
resource get them one after the other, in the order in which they were admitted: each gets all or nothing, and of two at
a time each could take what the other lacks. A plugin that hangs holds up only those who want its devices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from trikubelet.admission.types import AllocationError
from trikubelet.pods.held import HeldPod

if TYPE_CHECKING:
    from trio_typing import TaskStatus

    from trikubelet.api import Pod
    from trikubelet.pods.admitting import AdmitAgain


class PodDevices(Protocol):
    """Who has devices to give (`trikubelet.node.devices.manager`)."""

    def lacking(self, pod: Pod) -> frozenset[str]:
        """Resources of which the pod has to be given something."""
        ...

    async def allocate(self, pod: Pod) -> None:
        """Give the pod what it asks for, all or nothing. Raises AllocationError. May be cancelled."""
        ...


class NoPodDevices:
    """Of a node without plugins."""

    def lacking(self, _: Pod) -> frozenset[str]:
        return frozenset()

    async def allocate(self, _: Pod) -> None:
        await trio.lowlevel.checkpoint()


@attrs.frozen
class DevicesAnswered:
    """An event for the sync loop: a held pod has its devices, or cannot get them."""

    held: HeldPod
    problem: str | None


class Allocating:
    """Asks for devices, and tells the sync loop. `run` has to run, or pods that want devices stay held."""

    def __init__(self, devices: PodDevices, send: trio.MemorySendChannel[AdmitAgain | DevicesAnswered]) -> None:
        self._devices = devices
        self._send = send
        self._begin, self._begun = trio.open_memory_channel[HeldPod](math.inf)
        self._scopes: dict[HeldPod, trio.CancelScope] = {}
        self._turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        """By resource."""

    def lacks(self, pod: Pod) -> bool:
        """Whether the pod has to be given anything."""
        return bool(self._devices.lacking(pod))

    def begin(self, held: HeldPod) -> None:
        """The pod's turn comes. Never waits."""
        self._scopes[held] = trio.CancelScope()
        self._begin.send_nowait(held)

    def forget(self, held: HeldPod) -> None:
        """Nobody wants the pod any more: what it was given is taken back. Nothing happens if it wants no devices."""
        if (scope := self._scopes.pop(held, None)) is not None:
            scope.cancel()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; pods stay held then."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            async for held in self._begun:
                if (scope := self._scopes.get(held)) is not None:
                    # It stands in its queues when this returns.
                    await nursery.start(self._allocate, held, scope)

    async def _allocate(self, held: HeldPod, scope: trio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        problem = None
        with scope:
            try:
                async with AsyncExitStack() as turns:
                    for resource in sorted(self._devices.lacking(held.pod)):
                        await turns.enter_async_context(self._turns[resource])
                    await self._devices.allocate(held.pod)
            except AllocationError as error:
                problem = str(error)
        if not scope.cancelled_caught:
            self._scopes.pop(held, None)
            await self._send.send(DevicesAnswered(held, problem))
