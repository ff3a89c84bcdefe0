"""Asking whether a pod may run, and seeing to what the answer needs before it can be final.

    ask            admission gives its verdict: admitted and rejected are told at once
    hold           all other verdicts: the pod stays here without a worker, and its requests count for others
    meanwhile      a task makes room, another fetches the node; or the runtime has to answer first
    again          the sync loop hears that this is done, and hands it in here: the pod is admitted, or asked about anew
    devices        a pod that is admitted and wants some is held until it has them (`allocating`)

The sync loop alone calls in here, and never waits. What the tasks find out goes back through its channel, so verdicts
are reached in the loop, one after the other, each with all that was decided before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, assert_never

import attrs
import trio

from trikubelet.admission.handlers import without_devices
from trikubelet.admission.types import Admitted, NeedsFreshNode, Preempt, Rejected, Wait
from trikubelet.cluster.errors import ApiError
from trikubelet.logs import get_logger
from trikubelet.pods.allocating import Allocating, DevicesAnswered, NoPodDevices, PodDevices
from trikubelet.pods.held import HeldPod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from trio_typing import TaskStatus

    from trikubelet.admission.types import Admission
    from trikubelet.api import Pod
    from trikubelet.node.view import NodeView
    from trikubelet.pods.preempting import Preempting

log = get_logger("admission")

FETCH_TIMEOUT: Final = 10.0
"""Seconds for the API server to tell of the node; then the copy at hand has to do."""


@attrs.frozen
class AdmitAgain:
    """An event for the sync loop: what a held pod waited for has been done, as far as it could be."""

    held: HeldPod
    room_made: bool
    """Other pods have ended for it; else the node was fetched."""


class Admitting:
    """Finds the verdict on each pod. `others`: the active pods, held ones included, as the pod manager has them.

    `on_admitted` and `on_rejected` are called with each final verdict, possibly before `ask` returns. `send` puts an
    event into the sync loop's channel, which hands it to `again`, or to `devices_answered`. `allocated` gives a pod
    with the resources that it has, which may be others than it asks for: pods are judged so, and handed on by their
    specs. `run` has to run, or held pods stay held.
    """

    def __init__(
        self,
        admission: Admission,
        node: NodeView,
        preempting: Preempting,
        *,
        others: Callable[[], Sequence[Pod]],
        on_admitted: Callable[[Pod], None],
        on_rejected: Callable[[Pod, Rejected], None],
        send: Callable[[AdmitAgain | DevicesAnswered], Awaitable[None]],
        allocated: Callable[[Pod], Pod] = lambda pod: pod,
        devices: PodDevices = NoPodDevices(),  # noqa: B008 - has no state
    ) -> None:
        self._allocated = allocated
        self._admission = admission
        self._node = node
        self._preempting = preempting
        self._others = others
        self._on_admitted = on_admitted
        self._on_rejected = on_rejected
        self._send = send
        self._allocating = Allocating(devices, send)
        self._held: dict[str, HeldPod] = {}
        self._want_node: list[HeldPod] = []
        self._node_wanted = trio.Event()
        self._want_room, self._rooms = trio.open_memory_channel[tuple[HeldPod, Preempt]](math.inf)

    @property
    def held(self) -> Collection[str]:
        """UIDs of the pods that are held: nobody else may start them."""
        return self._held.keys()

    def ask(self, pod: Pod) -> None:
        """A pod has arrived. Never waits."""
        self._judge(HeldPod(pod), fresh=False)

    def update(self, pod: Pod) -> None:
        """A held pod has a newer version: that one will be judged, or run."""
        self._held[pod.metadata.uid].pod = pod

    def forget(self, uid: str) -> None:
        """Nobody wants the pod any more; for one that is not held, nothing happens. Whoever ends for it still ends."""
        if (held := self._held.pop(uid, None)) is not None:
            self._allocating.forget(held)

    def again(self, event: AdmitAgain) -> None:
        """Go on with a held pod, unless it has gone meanwhile."""
        held = event.held
        if self._held.get(held.pod.metadata.uid) is not held:
            return
        if event.room_made:
            del self._held[held.pod.metadata.uid]
            self._admit(held)
        else:
            self._judge(held, fresh=True)

    def devices_answered(self, event: DevicesAnswered) -> None:
        """A held pod has its devices, or cannot get them. For one that has gone meanwhile nothing happens."""
        pod, uid = event.held.pod, event.held.pod.metadata.uid
        if self._held.get(uid) is not event.held:
            return
        del self._held[uid]
        refusal = without_devices(event.problem)
        if refusal is None:
            self._on_admitted(pod)
        else:
            self._reject(pod, refusal)

    def ask_those_that_wait_for_the_runtime(self) -> None:
        """It may have answered."""
        for held in [one for one in self._held.values() if one.for_runtime]:
            self._judge(held, fresh=False)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what verdicts need, until cancelled. Cancelling it leaves pods held, and pods that are ended end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_node_fresh)
            nursery.start_soon(self._allocating.run)
            task_status.started()
            async for held, verdict in self._rooms:
                nursery.start_soon(self._make_room, held, verdict)

    def _judge(self, held: HeldPod, *, fresh: bool) -> None:
        pod, uid = held.pod, held.pod.metadata.uid
        others = {other.metadata.uid: other for other in self._others() if other.metadata.uid != uid}
        allocated = self._allocated
        beside = [allocated(other) for other in others.values()]
        verdict = self._admission.admit(allocated(pod), beside, node=self._node.cached(), fresh=fresh)
        self._held.pop(uid, None)
        held.for_runtime = False
        match verdict:
            case Admitted():
                self._admit(held)
            case Rejected():
                self._reject(pod, verdict)
            case Preempt():
                victims = tuple(others.get(victim.metadata.uid, victim) for victim in verdict.victims)
                for victim in victims:
                    self.forget(victim.metadata.uid)  # a held one has come to its end before its verdict
                self._held[uid] = held
                self._want_room.send_nowait((held, attrs.evolve(verdict, victims=victims)))
            case NeedsFreshNode():
                self._held[uid] = held
                self._want_node.append(held)
                self._node_wanted.set()
            case Wait():
                held.for_runtime = True
                self._held[uid] = held
                log.debug("pod waits to be admitted", pod=pod.full_name, problem=verdict.why)
            case _:
                assert_never(verdict)

    def _admit(self, held: HeldPod) -> None:
        """Nothing speaks against the pod; what it lacks yet are devices."""
        if self._allocating.lacks(held.pod):
            self._held[held.pod.metadata.uid] = held
            self._allocating.begin(held)
        else:
            self._on_admitted(held.pod)

    def _reject(self, pod: Pod, verdict: Rejected) -> None:
        log.info("pod rejected", pod=pod.full_name, reason=verdict.reason, problem=verdict.message)
        self._on_rejected(pod, verdict)

    async def _make_room(self, held: HeldPod, verdict: Preempt) -> None:
        await self._preempting.make_room(held.pod, verdict.victims, verdict.resource)
        await self._send(AdmitAgain(held, room_made=True))

    async def _keep_node_fresh(self) -> None:
        """One question is for all pods that want it; those that come while it is asked are for the next."""
        while True:
            await self._node_wanted.wait()
            self._node_wanted = trio.Event()
            waiting, self._want_node = self._want_node, []
            with trio.move_on_after(FETCH_TIMEOUT):
                try:
                    await self._node.fetch()
                except ApiError as error:
                    log.warning("cannot look at the node anew", problem=str(error))
            for held in waiting:
                await self._send(AdmitAgain(held, room_made=False))
