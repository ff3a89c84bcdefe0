"""Ending containers and pods.

All containers of a pod are asked to end at the same moment, each with the grace that is its own; only sidecars wait for
the main containers, and for the sidecars that started after them. When all have ended, the sandboxes are stopped. A
kill that is cancelled (because the grace period got shorter) leaves the runtime with a stop in progress; killing again
with less time is how it is hurried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import Container, Lifecycle, ObjectMeta, Pod, PodSpec, is_sidecar
from trikubelet.cri.errors import CRIError
from trikubelet.events import EventType
from trikubelet.logs import get_logger
from trikubelet.runtime.grace import MINIMUM_GRACE_PERIOD, termination_grace_period
from trikubelet.runtime.labels import CONTAINER_NAME, read_container_record, read_identity
from trikubelet.runtime.model import ContainerState
from trikubelet.runtime.plan import KillReason
from trikubelet.runtime.results import SyncAction, SyncResult
from trikubelet.runtime.wording import describe_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trikubelet.cri.client import RuntimeClient
    from trikubelet.events import EventRecorder
    from trikubelet.runtime.model import RunningPod, RuntimeContainer

log = get_logger("runtime")

KILL_CONTAINER_ERROR: Final = "KillContainerError"
KILL_POD_SANDBOX_ERROR: Final = "KillPodSandboxError"


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
    """Stops containers and sandboxes."""

    def __init__(self, runtime: RuntimeClient, recorder: EventRecorder) -> None:
        self._runtime = runtime
        self._recorder = recorder

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

        async with trio.open_nursery() as nursery:
            for container in containers:
                nursery.start_soon(kill_one, container)
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
        if order is not None and grace > 0:
            began = trio.current_time()
            await order.wait_for_turn(name, grace)
            grace -= int(trio.current_time() - began)
        grace = max(grace, MINIMUM_GRACE_PERIOD)
        log.info("killing container", pod=pod.full_name, container=name, container_id=container_id, grace=grace)
        try:
            await self._runtime.stop_container(container_id, grace)
        except CRIError as error:
            if not error.not_found:
                log.warning("container did not stop", pod=pod.full_name, container=name, problem=str(error))
                return attrs.evolve(result, reason=KILL_CONTAINER_ERROR, message=describe_error(error))
        if order is not None:
            order.mark_ended(name)
        return result

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
