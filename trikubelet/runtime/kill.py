"""Ending containers and pods.

All containers of a pod begin to end at the same moment, each with the grace that is its own. A container's grace pays
for its preStop hook, then for its turn (sidecars wait for the main containers, and for the sidecars that started after
them), and what is left, two seconds at least, for the stop itself. A stop that the runtime did not answer is asked for
again with what is left then. When all have ended, the sandboxes are stopped. None of these waits outlives its
container: once it is known to have ended, it is dealt with.

A kill that is cancelled (because the grace period got shorter) leaves the runtime with a stop in progress, and the
hook in the background; killing again with less time is how both are hurried.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import Container, Lifecycle, ObjectMeta, Pod, PodSpec, is_sidecar
from trikubelet.cri.errors import CRIError
from trikubelet.events import EventType
from trikubelet.logs import get_logger
from trikubelet.runtime.ended import Ended, until_ended
from trikubelet.runtime.grace import MINIMUM_GRACE_PERIOD, termination_grace_period
from trikubelet.runtime.labels import CONTAINER_NAME, read_container_record, read_identity
from trikubelet.runtime.model import ContainerState
from trikubelet.runtime.plan import KillReason
from trikubelet.runtime.pre_stop import PreStopHooks
from trikubelet.runtime.results import SyncAction, SyncResult
from trikubelet.runtime.wording import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trikubelet.cri.client import RuntimeClient
    from trikubelet.events import EventRecorder
    from trikubelet.runtime.hooks import HookRunner
    from trikubelet.runtime.model import RunningPod, RuntimeContainer

log = get_logger("runtime")

KILL_CONTAINER_ERROR: Final = "KillContainerError"
KILL_POD_SANDBOX_ERROR: Final = "KillPodSandboxError"

STOP_PATIENCE: Final = 0.5
"""Seconds from the word that a container has ended until it counts though its StopContainer does not return."""
STOP_RETRY_PAUSE: Final = 1.0
"""Seconds between two requests to stop a container, when the runtime cannot be reached."""


class TerminationOrder:
    """Who waits for whom when a pod with sidecars ends (kubelet: `terminationOrdering`)."""

    def __init__(self, pod: Pod, running: Iterable[str]) -> None:
        alive = set(running)
        self._ended = {name: trio.Event() for name in alive}
        self._before: dict[str, list[str]] = {}
        main = [container.name for container in pod.spec.containers if container.name in alive]
        later: list[str] = []
        for container in reversed(pod.spec.init_containers):
            if not is_sidecar(container):
                continue
            self._before[container.name] = [*main, *later]
            if container.name in alive:
                later = [container.name]

    def mark_ended(self, name: str) -> None:
        if name in self._ended:
            self._ended[name].set()

    async def wait_for_turn(self, name: str, limit: float) -> None:
        """Return when everything that goes first has ended, at the latest after `limit` seconds."""
        with trio.move_on_after(limit):
            for other in self._before.get(name, ()):
                await self._ended[other].wait()


class Killer:
    """Stops containers and sandboxes.

    Without `hooks`, preStop hooks are left out. `ended` tells when containers have ended, see `Ended`; without it, only
    the runtime's answers do.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        recorder: EventRecorder,
        hooks: HookRunner | None = None,
        *,
        ended: Ended | None = None,
        on_turn: Callable[[str, str], None] = lambda uid, container: None,
    ) -> None:
        """`on_turn` is called with the pod's UID and the container's name when a container of a pod that ends is about
        to get its signal: sidecars have to wait for that."""
        self._runtime = runtime
        self._recorder = recorder
        self._on_turn = on_turn
        self._ended = ended
        self._pre_stop = None if hooks is None else PreStopHooks(hooks, recorder)
        self.stopped_sandboxes: set[str] = set()
        """Ids of sandboxes that the runtime said it has stopped. Garbage collection forgets those that are gone."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the task in which preStop hooks outlive kills that are cancelled. Cancelling it ends them."""
        if self._pre_stop is not None:
            await self._pre_stop.run(task_status=task_status)
        else:
            task_status.started()

    async def kill_pod(self, running: RunningPod, pod: Pod | None, grace_override: int | None) -> list[SyncResult]:
        """End all containers at once, then stop all sandboxes. Failures are in the results.

        Cancelling stops waiting; the runtime may go on.
        """
        containers = [container for container in running.containers if container.state is not ContainerState.EXITED]
        order = None
        if pod is not None and any(is_sidecar(container) for container in pod.spec.init_containers):
            order = TerminationOrder(pod, [container.name for container in containers])
        results: list[SyncResult] = []

        async def kill_one(container: RuntimeContainer) -> None:
            results.append(
                await self.kill_container(
                    pod, container.id.id, container.name, grace_override=grace_override, order=order
                )
            )

        async with trio.open_nursery() as watchers:
            if order is not None and self._ended is not None:
                for container in containers:
                    watchers.start_soon(self._mark_when_ended, self._ended, order, running.uid, container)
            async with trio.open_nursery() as kills:
                for container in containers:
                    kills.start_soon(kill_one, container)
            watchers.cancel_scope.cancel()
        results.append(await self._stop_sandboxes(running))
        return results

    async def kill_container(
        self,
        pod: Pod | None,
        container_id: str,
        name: str,
        *,
        message: str = "",
        reason: KillReason = KillReason.UNKNOWN,
        grace_override: int | None = None,
        order: TerminationOrder | None = None,
    ) -> SyncResult:
        """End one container with its grace period, and wait for its end (kubelet: `killContainer`).

        `pod` is None, or lacks the container, when its manifest is gone: then the container's own labels tell what
        to do. `grace_override`: seconds instead of all that. A container that is gone has ended.
        """
        result = SyncResult(SyncAction.KILL_CONTAINER, name)
        try:
            known = await self._known(pod, container_id, name)
        except CRIError as error:
            if error.not_found:
                if order is not None:
                    order.mark_ended(name)
                return result
            return attrs.evolve(result, reason=KILL_CONTAINER_ERROR, message=describe_error(error))
        pod, container = known
        grace = termination_grace_period(pod, container, reason)
        text = message or f"Stopping container {name}"
        self._recorder.pod_event(pod, EventType.NORMAL, "Killing", text, container=name)
        if grace_override is not None:
            grace = grace_override
        log.info("killing container", pod=pod.full_name, container=name, container_id=container_id, grace=grace)
        end = partial(self._end, pod, container, container_id, grace, order)
        problem = await until_ended(self._ended, pod.metadata.uid, container_id, end, patience=STOP_PATIENCE)
        if problem is not None:
            log.warning("container did not stop", pod=pod.full_name, container=name, problem=str(problem))
            return attrs.evolve(result, reason=KILL_CONTAINER_ERROR, message=describe_error(problem))
        if self._pre_stop is not None:
            self._pre_stop.forget(container_id)
        if order is not None:
            order.mark_ended(name)
        return result

    async def _end(
        self, pod: Pod, container: Container, container_id: str, grace: int, order: TerminationOrder | None
    ) -> CRIError | None:
        """Hook, turn and stop, within the grace; returns why it did not stop."""
        if self._pre_stop is not None:
            began = trio.current_time()
            await self._pre_stop.finish(pod, container, container_id, grace)
            grace -= int(trio.current_time() - began)
        if order is not None and grace > 0:
            began = trio.current_time()
            await order.wait_for_turn(container.name, grace)
            grace -= int(trio.current_time() - began)
        if order is not None:
            self._on_turn(pod.metadata.uid, container.name)
        return await self._stop(container_id, max(grace, MINIMUM_GRACE_PERIOD))

    async def _stop(self, container_id: str, grace: int) -> CRIError | None:
        """Have it stopped, asking again for as long as there is grace when the runtime does not answer."""
        deadline = trio.current_time() + grace
        while True:
            left = max(math.ceil(deadline - trio.current_time()), MINIMUM_GRACE_PERIOD)
            try:
                await self._runtime.stop_container(container_id, left)
            except CRIError as error:
                if error.not_found:
                    return None
                remaining = deadline - trio.current_time()
                if remaining <= 0 or not (error.unavailable or error.timed_out):
                    return error
                log.info("container will be stopped again", container_id=container_id, problem=str(error))
                await trio.sleep(min(STOP_RETRY_PAUSE, remaining))
            else:
                return None

    async def _mark_when_ended(
        self, ended: Ended, order: TerminationOrder, pod_uid: str, container: RuntimeContainer
    ) -> None:
        """Even one whose stop failed may end, and then nobody needs to wait for it."""
        await ended(pod_uid, container.id.id, patience=STOP_PATIENCE)
        order.mark_ended(container.name)

    async def _stop_sandboxes(self, running: RunningPod) -> SyncResult:
        problems: list[str] = []

        async def stop(sandbox: RuntimeContainer) -> None:
            try:
                await self._runtime.stop_pod_sandbox(sandbox.id.id)
            except CRIError as error:
                if not error.not_found:
                    log.warning(
                        "sandbox did not stop", pod=running.full_name, sandbox=sandbox.id.id, problem=str(error)
                    )
                    problems.append(describe_error(error))
            else:
                self.stopped_sandboxes.add(sandbox.id.id)

        async with trio.open_nursery() as nursery:
            for sandbox in running.sandboxes:
                nursery.start_soon(stop, sandbox)
        result = SyncResult(SyncAction.KILL_POD_SANDBOX, f"{running.full_name}({running.uid})")
        if problems:
            return attrs.evolve(result, reason=KILL_POD_SANDBOX_ERROR, message="; ".join(problems))
        return result

    async def _known(self, pod: Pod | None, container_id: str, name: str) -> tuple[Pod, Container]:
        """The container's spec, or as much of it as its labels remember. Raises CRIError."""
        if pod is not None and (container := find_container(pod, name)) is not None:
            return pod, container
        status = (await self._runtime.container_status(container_id)).status
        identity = read_identity(status.labels)
        record = read_container_record(status.annotations)
        restored = Container(
            name=status.labels.get(CONTAINER_NAME, name),
            ports=record.ports,
            termination_message_path=record.termination_message_path,
            lifecycle=None if record.pre_stop is None else Lifecycle(pre_stop=record.pre_stop),
        )
        if pod is not None:
            return pod, restored
        metadata = ObjectMeta(
            uid=identity.uid,
            name=identity.name,
            namespace=identity.namespace,
            deletion_grace_period_seconds=record.deletion_grace_period,
        )
        spec = PodSpec(containers=(restored,), termination_grace_period_seconds=record.termination_grace_period)
        return Pod(metadata=metadata, spec=spec), restored


def find_container(pod: Pod, name: str) -> Container | None:
    """The container of the pod's spec, of whichever kind, with this name."""
    containers: Sequence[Container] = (
        *pod.spec.init_containers,
        *pod.spec.containers,
        *pod.spec.ephemeral_containers,
    )
    return next((container for container in containers if container.name == name), None)
