"""The container instances of one pod, each with a life that is told in order.

A container instance has a scope of its own among what runs for its pod: its probes while it runs, and then its end:
preStop hook, turn, stop. The scope closes when the instance is known to have ended, and what it started is gone with
it, its hook too, which may outlast the grace period and even an attempt to stop the container that failed. A restart is
the end of one scope and the begin of another. An instance for which nothing runs has none.

Asking for an instance's end begins it, or hastens the one that is under way: a sync that kills a container for a failed
probe may be cancelled because the pod is deleted, and the pod's end then joins what has begun. The caller waits for
it; cancelling the wait does not cancel the end, which lives in the pod's nursery. Only the end of a whole pod is not
called off: for an instance without probes and preStop hook it is done in the caller's task.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from trikubelet.api import Container, Pod, is_sidecar
from trikubelet.container.model import ContainerState
from trikubelet.formats.values import define
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.kill import KILL_CONTAINER_ERROR, Grace, TerminationOrder, termination_grace_period
from trikubelet.runtime.plan import KillReason
from trikubelet.runtime.results import SyncAction, SyncResult
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.container.model import PodRuntimeStatus, RunningPod, RuntimeContainer
    from trikubelet.runtime.kill import Killer

log = get_logger("runtime")


class PodProbes(Protocol):
    """The probes of one pod, as far as its containers' scopes run them (`trikubelet.probes.manager`)."""

    def has(self, container: str) -> bool:
        """Whether the container has probes that may be run."""
        ...

    async def run(self, container: str) -> None:
        """Probe a container that runs, until cancelled or nothing is left to ask."""
        ...

    def stop_liveness_and_startup(self, container: str) -> None:
        """The container is about to be stopped for good: nothing shall have it restarted any more."""
        ...


class NoProbes:
    """Implements `PodProbes` for containers without probes."""

    def has(self, _container: str) -> bool:
        return False

    async def run(self, _container: str) -> None:
        await trio.lowlevel.checkpoint()

    def stop_liveness_and_startup(self, container: str) -> None: ...


@define(eq=False)
class _Ending:
    """One attempt to end an instance, shared by all that ask for it."""

    pod: Pod
    container: Container
    grace: Grace
    order: TerminationOrder | None
    for_good: bool
    """The pod ends: the container does not come back."""
    message: str = ""
    """Why the container ends, where that is no matter of the whole pod."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)
    problem: CRIError | None = None
    """Why it did not end."""


class ContainerLife:
    """One container instance, from when something runs for it until it has ended."""

    def __init__(self, container_id: str, name: str, killer: Killer, probes: PodProbes) -> None:
        self.name = name
        self._id = container_id
        self._killer = killer
        self._probes = probes
        self._probing = trio.CancelScope()
        self._send, self._receive = trio.open_memory_channel[_Ending](1)
        self.ending: _Ending | None = None
        self.over = False
        """It has ended: there is nothing to end any more."""

    async def live(self) -> None:
        """Probe it; when it is asked to end, end it. Returns when it has ended."""
        async with trio.open_nursery() as nursery:
            if self._probes.has(self.name):
                nursery.start_soon(self._probe, name=f"probes of {self.name}")
            async with self._receive:
                async for ending in self._receive:
                    await self.end(ending, nursery)
                    if self.over:
                        break
            nursery.cancel_scope.cancel()

    async def end(self, ending: _Ending, instance: trio.Nursery | None = None) -> None:
        """Try to end it, once. Cancelled, it leaves the container to the next attempt.

        `instance`: the nursery in which its preStop hook lives. Without it none is run.
        """
        self.ending = ending
        with ending.scope:
            ending.problem = await self._end(ending, instance)
        self.ending = None
        if ending.problem is None:
            self.over = True
            self._killer.has_ended(self._id)
        ending.over.set()

    def ask_to_end(self, ending: _Ending) -> None:
        """Have `live` begin its end; none is under way."""
        self.ending = ending
        self._send.send_nowait(ending)

    def has_ended(self) -> None:
        """It was seen to have ended."""
        self.over = True
        self._killer.has_ended(self._id)
        self._probing.cancel()  # now: its successor's probes are the same workers, and must not find it at them
        if self.ending is not None:
            self.ending.scope.cancel()
        self._send.close()

    async def _probe(self) -> None:
        with self._probing:
            await self._probes.run(self.name)

    async def _end(self, ending: _Ending, instance: trio.Nursery | None) -> CRIError | None:
        async def end() -> CRIError | None:
            pod, container, grace = ending.pod, ending.container, ending.grace
            step = partial(
                self._killer.steps.step,
                pod.metadata.uid,
                container=self.name,
                subject=ending.message,
                deadline=lambda: grace.deadline,
            )
            if ending.for_good and not is_sidecar(container):
                self._probes.stop_liveness_and_startup(self.name)
            if instance is not None:
                await self._killer.run_pre_stop_hook(pod, container, self._id, grace, instance)
            if ending.order is not None:
                with grace.limit(), step("turn to end"):
                    await ending.order.wait_for_turn(self.name)
            if ending.for_good:
                self._probes.stop_liveness_and_startup(self.name)
            with step("StopContainer"):
                return await self._killer.stop_container(self._id, grace)

        return await self._killer.while_it_lives(ending.pod.metadata.uid, self._id, end)


class PodContainers:
    """The instances of one pod for which something runs, in the pod's nursery."""

    def __init__(self, nursery: trio.Nursery, killer: Killer, probes: PodProbes | None = None) -> None:
        self._nursery = nursery
        self._killer = killer
        self._probes = probes or NoProbes()
        self._lives: dict[str, ContainerLife] = {}
        """By container id."""
        self._deadline = math.inf
        """Of the pod's grace period, in Trio time."""

    def follow(self, observed: PodRuntimeStatus) -> None:
        """Have a scope for each container that runs and is probed, and none for those that have ended."""
        there = {one.id.id: one for one in observed.container_statuses if one.state is not ContainerState.EXITED}
        for container_id, life in self._lives.items():
            if container_id not in there and not life.over:
                life.has_ended()
        for container_id, container in there.items():
            if container.state is ContainerState.RUNNING and self._probes.has(container.name):
                self._life_of(container_id, container.name)

    def shorten_grace(self, deadline: float) -> None:
        """The pod's grace period ends by `deadline`: what is under way is hastened, and what begins later too."""
        self._deadline = min(self._deadline, deadline)
        for life in self._lives.values():
            if life.ending is not None:
                life.ending.grace.shorten(deadline)

    async def kill_pod(
        self, running: RunningPod, pod: Pod | None, deadline: float | None = None, *, for_good: bool = False
    ) -> list[SyncResult]:
        """End all containers at once, then stop all sandboxes. Failures are in the results.

        `deadline`: the end of the grace period in Trio time; None: each container has its own. `for_good`: none of
        them comes back. Cancelling stops waiting; what has begun goes on.
        """
        if deadline is not None:
            self.shorten_grace(deadline)
        containers = [container for container in running.containers if container.state is not ContainerState.EXITED]
        order = None
        if pod is not None and any(is_sidecar(container) for container in pod.spec.init_containers):
            order = TerminationOrder(pod, [container.name for container in containers])
        results: list[SyncResult] = []

        async def kill_one(container: RuntimeContainer) -> None:
            killed = await self._kill(
                pod, container.id.id, container.name, deadline=deadline, order=order, for_good=for_good
            )
            results.append(killed)

        async with trio.open_nursery() as watchers:
            if order is not None:
                for container in containers:
                    watchers.start_soon(self._killer.mark_when_ended, order, running.uid, container)
            if len(containers) == 1:
                await kill_one(containers[0])  # most pods: no task, no tick of the scheduler
            else:
                async with trio.open_nursery() as kills:
                    for container in containers:
                        kills.start_soon(kill_one, container, name=f"kill {container.name}")
            watchers.cancel_scope.cancel()
        results.append(await self._killer.stop_sandboxes(running))
        return results

    async def kill_container(
        self,
        pod: Pod | None,
        container_id: str,
        name: str,
        *,
        message: str = "",
        reason: KillReason = KillReason.UNKNOWN,
        deadline: float | None = None,
    ) -> SyncResult:
        """End one container with its grace period, and wait for its end (kubelet: `killContainer`).

        `pod` is None, or lacks the container, when its manifest is gone: then the container's own labels tell what
        to do. `deadline`: Trio time, instead of all that. A container that is gone has ended.
        """
        return await self._kill(pod, container_id, name, message=message, reason=reason, deadline=deadline)

    async def _kill(
        self,
        pod: Pod | None,
        container_id: str,
        name: str,
        *,
        message: str = "",
        reason: KillReason = KillReason.UNKNOWN,
        deadline: float | None = None,
        order: TerminationOrder | None = None,
        for_good: bool = False,
    ) -> SyncResult:
        result = SyncResult(SyncAction.KILL_CONTAINER, name)
        try:
            pod, container = await self._killer.specification(pod, container_id, name)
        except CRIError as error:
            if not error.not_found:
                return attrs.evolve(result, reason=KILL_CONTAINER_ERROR, message=str(error))
            if container_id in self._lives:
                self._lives[container_id].has_ended()
        else:
            if deadline is None:
                deadline = trio.current_time() + termination_grace_period(pod, container, reason)
            grace = Grace(min(deadline, self._deadline))
            problem = await self._end(container_id, _Ending(pod, container, grace, order, for_good, message))
            if problem is not None:
                log.warning("container did not stop", pod=pod.full_name, container=name, problem=str(problem))
                return attrs.evolve(result, reason=KILL_CONTAINER_ERROR, message=str(problem))
        if order is not None:
            order.mark_ended(name)
        return result

    async def _end(self, container_id: str, ending: _Ending) -> CRIError | None:
        """End an instance, or join the end that is under way; why it did not end."""
        pod, name = ending.pod, ending.container.name
        life = self._lives.get(container_id)
        if life is not None and life.over:
            return None
        known = None if life is None else life.ending
        if known is not None:
            known.grace.shorten(ending.grace.deadline)
            known.order = known.order or ending.order
            if ending.for_good and not known.for_good:
                known.for_good = True
                if ending.order is None or not is_sidecar(ending.container):
                    self._probes.stop_liveness_and_startup(name)
            await known.over.wait()
            return known.problem
        self._killer.killing(pod, name, ending.message)
        left = round(ending.grace.deadline - trio.current_time(), 1)
        log.info("killing container", pod=pod.full_name, container=name, container_id=container_id, grace=left)
        has_hook = ending.container.lifecycle is not None and ending.container.lifecycle.pre_stop is not None
        if life is None and ending.for_good and not has_hook:
            # The end of a pod is not called off, and nothing else runs for the container: this task is its scope.
            await self._live(container_id, self._new_life(container_id, name), ending)
        else:
            self._life_of(container_id, name).ask_to_end(ending)
            await ending.over.wait()
        return ending.problem

    def _life_of(self, container_id: str, name: str) -> ContainerLife:
        life = self._lives.get(container_id)
        if life is None:
            life = self._new_life(container_id, name)
            self._nursery.start_soon(self._live, container_id, life, name=f"container {name}")
        return life

    def _new_life(self, container_id: str, name: str) -> ContainerLife:
        life = self._lives[container_id] = ContainerLife(container_id, name, self._killer, self._probes)
        return life

    async def _live(self, container_id: str, life: ContainerLife, ending: _Ending | None = None) -> None:
        """The life of an instance, or its end alone."""
        try:
            await (life.live() if ending is None else life.end(ending))
        finally:
            del self._lives[container_id]


@asynccontextmanager
async def containers_without_pod(killer: Killer) -> AsyncIterator[PodContainers]:
    """For ending what belongs to no pod that is known. Ends what is under way when it is left early."""
    async with trio.open_nursery() as nursery:
        yield PodContainers(nursery, killer)
        nursery.cancel_scope.cancel()
