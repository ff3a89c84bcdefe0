"""Asks whether a pod may run, and sees to what the answer needs before it can be final.

    ask            admission gives its verdict: admitted and rejected are told at once
    hold           all other verdicts: the pod stays here without a worker, and its requests count for others
    meanwhile      a task makes room, another fetches the node; or the runtime has to answer first
    again          the sync loop receives that this is done (`done`), and hands it in here: the pod is admitted, or
                   asked about anew
    grants         a pod that is admitted gets CPUs, memory and NUMA nodes, or is rejected after all
    devices        one that wants some is then held until it has them

The sync loop alone calls in here, never waits, and carries out what is returned. So verdicts are reached in the loop,
one after the other, each with all that was decided before.

Device plugins are asked while the pod is held, so the sync loop waits for none of them. Pods that want devices of the
same resource get them one after the other, in the order in which they were admitted: each gets all or nothing, and of
two at a time each could take what the other lacks. A plugin that hangs holds up only the pods that want its devices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, assert_never

import attrs
import trio

from trikubelet.admission.handlers import without_devices
from trikubelet.admission.types import Admitted, AllocationError, NeedsFreshNode, Preempt, Rejected, Wait
from trikubelet.allocation.topology import hints
from trikubelet.broadcast import Inbox
from trikubelet.formats.values import define, frozen
from trikubelet.kube_client.errors import ApiError
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from trio_typing import TaskStatus

    from trikubelet.admission.types import Admission
    from trikubelet.allocation.managers import ResourceManagers
    from trikubelet.allocation.topology.admit import ResourceManager
    from trikubelet.api import Pod
    from trikubelet.kube_client.node_view import NodeView
    from trikubelet.pods.preempting import Preempting

log = get_logger("admission")

FETCH_TIMEOUT: Final = 10.0
"""Seconds for the API server to tell of the node; then the copy at hand has to do."""


class PodDevices(Protocol):
    """The devices of the node (`trikubelet.node.devices.manager`, which this package may not import)."""

    def lacking(self, pod: Pod) -> frozenset[str]:
        """Resources of which the pod has to be given something."""
        ...

    def offers(self, pod: Pod) -> ResourceManager:
        """What could be given to the pod, where on the machine."""
        ...

    def promise(self, pod: Pod, agreed: ResourceManager) -> None:
        """Keep what was agreed on for the pod until `allocate` is done with it."""
        ...

    async def allocate(self, pod: Pod, agreed: ResourceManager | None) -> None:
        """Give the pod what it asks for, all or nothing. `agreed`: the offers after the NUMA nodes were agreed on, if
        anything has to be.

        Raises AllocationError. May be cancelled.
        """
        ...


@define(eq=False)
class HeldPod:
    """A pod whose verdict is not final, in its newest version."""

    pod: Pod
    agreed: ResourceManager | None = None
    """Where its devices are to come from, once that has been agreed on."""
    waits_for: str = ""
    """For people."""
    since: float = attrs.field(factory=trio.current_time)
    """Trio time at which it was first judged."""
    for_runtime: bool = False
    """It waits for the runtime to answer."""
    allocating: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Around its wait for devices."""


@define(eq=False)
class Beside:
    """The active pods, held ones included, beside which others are judged in one moment: what they have does not change
    meanwhile, so of many pods that arrive at once no one asks again what all others have."""

    pods: dict[str, Pod]
    """By UID, as the pod manager has them."""
    allocated: dict[str, Pod]
    """With the resources that they have."""

    def without(self, uid: str) -> list[Pod]:
        """All but one, with the resources that they have."""
        if uid not in self.allocated:
            return list(self.allocated.values())
        return [pod for other, pod in self.allocated.items() if other != uid]


@frozen
class AdmitAgain:
    """An event for the sync loop: what a held pod waited for has been done, as far as it could be."""

    held: HeldPod
    room_made: bool
    """Other pods have ended for it; else the node was fetched."""


@frozen
class DevicesAnswered:
    """An event for the sync loop: a held pod has its devices, or cannot get them."""

    held: HeldPod
    problem: str | None


AdmittingEvent: TypeAlias = AdmitAgain | DevicesAnswered


class Admitting:
    """Finds the verdict on each pod: `Admitted` or `Rejected`, or None while the pod is held.

    `allocated` gives a pod with the resources that it has, which may be others than it asks for: pods are judged so,
    and handed on by their specs. `run` has to run, or held pods stay held.
    """

    def __init__(
        self,
        admission: Admission,
        node: NodeView,
        preempting: Preempting,
        *,
        allocated: Callable[[Pod], Pod],
        devices: PodDevices,
        managers: ResourceManagers | None = None,
    ) -> None:
        self._allocated = allocated
        self._admission = admission
        self._node = node
        self._preempting = preempting
        self._devices = devices
        self._managers = managers
        self._device_turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        """By resource."""
        self._send, self.done = trio.open_memory_channel[AdmittingEvent](0)
        self._held: dict[str, HeldPod] = {}
        self._want_node: Inbox[HeldPod] = Inbox()
        self._wait_for_node: list[HeldPod] = []
        """Taken out of it, and not answered yet."""
        self._want_room, self._rooms = trio.open_memory_channel[tuple[HeldPod, Preempt]](math.inf)
        self._want_devices, self._to_allocate = trio.open_memory_channel[HeldPod](math.inf)

    @property
    def held(self) -> Collection[str]:
        """UIDs of the pods that are held: no other part of the agent may start them."""
        return self._held.keys()

    def why_held(self, uid: str) -> tuple[str, float] | None:
        """What a held pod waits for, for people, and the Trio time since which it is held; None for one that is not."""
        held = self._held.get(uid)
        return None if held is None else (held.waits_for, held.since)

    def beside(self, active: Iterable[Pod]) -> Beside:
        """The active pods as the pod manager has them, to be used at once."""
        beside = Beside({}, {})
        for pod in active:
            self.joins(beside, pod)
        return beside

    def joins(self, beside: Beside, pod: Pod) -> None:
        """One more counts for those that are judged next: it has been judged, and not rejected."""
        beside.pods[pod.metadata.uid] = pod
        beside.allocated[pod.metadata.uid] = self._allocated(pod)

    def ask(self, pod: Pod, beside: Beside) -> Admitted | Rejected | None:
        """A pod has arrived."""
        return self.judge(HeldPod(pod), beside)

    def update(self, pod: Pod) -> None:
        """A held pod has a newer version: that one will be judged, or run."""
        self._held[pod.metadata.uid].pod = pod

    def forget(self, uid: str) -> None:
        """The pod is no longer desired: devices that it was given are taken back. Pods that were asked to make room for
        it still end. For a pod that is not held, nothing happens."""
        if (held := self._held.pop(uid, None)) is not None:
            held.allocating.cancel()
            self._take_back(uid)

    def again(self, event: AdmittingEvent, beside: Beside) -> Admitted | Rejected | None:
        """Go on with a held pod, unless it has gone meanwhile."""
        held, uid = event.held, event.held.pod.metadata.uid
        if self._held.get(uid) is not held:
            return None
        if isinstance(event, AdmitAgain) and not event.room_made:
            return self.judge(held, beside, fresh=True)
        del self._held[uid]
        if isinstance(event, AdmitAgain):
            return self._admit(held)
        refusal = without_devices(event.problem)
        if refusal is None:
            return Admitted()
        self._take_back(uid)
        return refusal

    def waiting_for_runtime(self) -> list[HeldPod]:
        """Those that wait for the runtime to answer, which it may have done."""
        return [one for one in self._held.values() if one.for_runtime]

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what verdicts need, until cancelled. Cancelling it leaves pods held, and pods that are ended end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._keep_node_fresh)
            nursery.start_soon(self._allocate_in_order)
            task_status.started()
            await supervise(self._begin_to_make_room, nursery)

    async def _begin_to_make_room(self, nursery: trio.Nursery) -> None:
        async for held, verdict in self._rooms:
            nursery.start_soon(supervise, self._make_room, held, verdict)

    def judge(self, held: HeldPod, beside: Beside, *, fresh: bool = False) -> Admitted | Rejected | None:
        """`fresh`: the node was fetched for it."""
        pod, uid = held.pod, held.pod.metadata.uid
        node = self._node.cached()
        verdict = self._admission.admit(self._allocated(pod), beside.without(uid), node=node, fresh=fresh)
        self._held.pop(uid, None)
        held.for_runtime = False
        match verdict:
            case Admitted():
                return self._admit(held)
            case Rejected():
                return verdict
            case Preempt():
                victims = tuple(beside.pods.get(victim.metadata.uid, victim) for victim in verdict.victims)
                for victim in victims:
                    self.forget(victim.metadata.uid)  # a held one has come to its end before its verdict
                held.waits_for = f"the end of pods that make room for it: {_names(victims)}"
                self._held[uid] = held
                self._want_room.send_nowait((held, attrs.evolve(verdict, victims=victims)))
            case NeedsFreshNode():
                held.waits_for = "the node's object, which is fetched from the API server"
                self._held[uid] = held
                self._want_node.put(held)
            case Wait():
                held.for_runtime, held.waits_for = True, verdict.why
                self._held[uid] = held
                log.debug("pod waits to be admitted", pod=pod.full_name, problem=verdict.why)
            case _:
                assert_never(verdict)
        return None

    def _admit(self, held: HeldPod) -> Admitted | Rejected | None:
        """Give the pod what its containers have for themselves. Then it is admitted, or held until it has its devices.

        What it was given is taken back when it does not get them.
        """
        if self._managers is not None:
            try:
                held.agreed = self._managers.admit(self._allocated(held.pod), self._devices.offers(held.pod))
            except hints.AllocationError as error:
                return Rejected(error.reason, error.message)
        if not self._devices.lacking(held.pod):
            return Admitted()
        if held.agreed is not None:
            self._devices.promise(held.pod, held.agreed)
        held.waits_for = f"devices: {', '.join(sorted(self._devices.lacking(held.pod)))}"
        self._held[held.pod.metadata.uid] = held
        self._want_devices.send_nowait(held)
        return None

    def _take_back(self, uid: str) -> None:
        if self._managers is not None:
            self._managers.forget(uid)

    async def _make_room(self, held: HeldPod, verdict: Preempt) -> None:
        await self._preempting.make_room(held.pod, verdict.victims, verdict.resource)
        await self._send.send(AdmitAgain(held, room_made=True))

    async def _keep_node_fresh(self) -> None:
        """Fetch the node for all pods that need it; pods that come during a request are for the next one."""
        waiting = self._wait_for_node
        while True:
            while self._want_node or not waiting:
                waiting.append(await self._want_node.receive())
            with trio.move_on_after(FETCH_TIMEOUT):
                try:
                    await self._node.fetch()
                except ApiError as error:
                    log.warning("cannot look at the node anew", problem=str(error))
            while waiting:
                await self._send.send(AdmitAgain(waiting[0], room_made=False))
                del waiting[0]

    async def _allocate_in_order(self) -> None:
        async with trio.open_nursery() as nursery:
            await supervise(self._begin_to_allocate, nursery)

    async def _begin_to_allocate(self, nursery: trio.Nursery) -> None:
        async for held in self._to_allocate:
            if not held.allocating.cancel_called:
                await nursery.start(self._allocate, held)  # it waits for its turn when this returns

    async def _allocate(self, held: HeldPod, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        with held.allocating:
            await supervise(self._answer_about_devices, held)

    async def _answer_about_devices(self, held: HeldPod) -> None:
        problem = None
        try:
            async with AsyncExitStack() as turns:
                for resource in sorted(self._devices.lacking(held.pod)):
                    await turns.enter_async_context(self._device_turns[resource])
                await self._devices.allocate(held.pod, held.agreed)
        except AllocationError as error:
            problem = str(error)
        await self._send.send(DevicesAnswered(held, problem))


def _names(pods: Iterable[Pod]) -> str:
    return ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods)
