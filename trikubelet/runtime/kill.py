"""Ending containers and pods: the single steps. When they are taken is told by `containers.life`.

A grace period that runs (`Grace`) has a deadline, which a further request may move closer, never away. The deadline
ends the waits before a container gets its signal: for its preStop hook, and for its turn (sidecars wait for the main
containers, and for the sidecars that started after them). The hook itself runs on until the container has ended. The
stop is never cut: the runtime is told how many seconds are left, two at least, and asked again beside that with less
when the deadline has moved. A runtime that is away is asked again until the deadline.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import Container, Lifecycle, ObjectMeta, Pod, PodSpec, is_sidecar
from trikubelet.container.labels import CONTAINER_NAME, read_container_record, read_identity
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.hooks import Ended, HookError, until_ended
from trikubelet.runtime.plan import KillReason
from trikubelet.runtime.results import SyncAction, SyncResult
from trikubelet.runtime.turns import CallKind, Turns
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.steps import TURN, Steps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

    from trikubelet.container.model import RunningPod, RuntimeContainer
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.runtime.hooks import HookRunner
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("runtime")

KILL_CONTAINER_ERROR: Final = "KillContainerError"
KILL_POD_SANDBOX_ERROR: Final = "KillPodSandboxError"

STOP_TIMEOUT: Final = 0.5
"""Seconds from the news that a container has ended until it counts though its StopContainer does not return."""
STOP_RETRY_PAUSE: Final = 1.0
"""Seconds between two requests to stop a container, when the runtime cannot be reached."""
MINIMUM_GRACE_PERIOD: Final = 2
"""Seconds that every container gets, however little is left of its pod's grace period."""


class Grace:
    """A grace period that runs. Its deadline is in Trio time."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._limits: set[trio.CancelScope] = set()
        self._followers: set[Callable[[], None]] = set()

    @property
    def seconds_to_stop(self) -> int:
        """The timeout for the runtime now: CRI counts in whole seconds."""
        return max(math.ceil(self.deadline - trio.current_time()), MINIMUM_GRACE_PERIOD)

    def shorten(self, deadline: float) -> None:
        """Have it end by `deadline`, if that is sooner."""
        if deadline < self.deadline:
            self.deadline = deadline
            for limit in self._limits:
                limit.deadline = deadline
            for follow in self._followers:
                follow()

    @contextmanager
    def limit(self) -> Iterator[trio.CancelScope]:
        """A cancel scope whose deadline is this one's, wherever that moves."""
        with trio.CancelScope(deadline=self.deadline) as scope:
            self._limits.add(scope)
            try:
                yield scope
            finally:
                self._limits.discard(scope)

    @contextmanager
    def followed(self, follow: Callable[[], None]) -> Iterator[None]:
        """Have `follow` called each time the deadline has moved. `follow` never waits."""
        self._followers.add(follow)
        try:
            yield
        finally:
            self._followers.discard(follow)


class TerminationOrder:
    """The order in which the containers of a pod with sidecars end (kubelet: `terminationOrdering`)."""

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

    async def wait_for_turn(self, name: str) -> None:
        """Return when everything that goes first has ended."""
        for other in self._before.get(name, ()):
            await self._ended[other].wait()


class Killer:
    """Has hooks run, containers stopped and sandboxes stopped.

    Without `hooks`, preStop hooks are left out. `ended` tells when containers have ended, see `Ended`; without it, only
    the runtime's answers do. `turns`: of the stops of sandboxes; without them, none waits.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        recorder: EventRecorder,
        hooks: HookRunner | None = None,
        *,
        ended: Ended | None = None,
        turns: Turns | None = None,
        steps: Steps | None = None,
    ) -> None:
        self.steps: Final = steps or Steps()
        """What goes on for each pod."""
        self._runtime = runtime
        self._turns = turns
        self._recorder = recorder
        self._ended = ended
        self._hooks = hooks
        self._hooks_begun: set[str] = set()
        """Ids of containers whose hook was begun and that are not known to have ended. Garbage collection forgets those
        that ended unseen."""
        self.stopped_sandboxes: set[str] = set()
        """Ids of sandboxes that the runtime said it has stopped. Garbage collection forgets those that are gone."""

    @property
    def hooks_begun(self) -> int:
        """How many hooks were begun in containers that are not known to have ended."""
        return len(self._hooks_begun)

    def forget_hooks_unless(self, alive: Collection[str], among: Collection[str]) -> None:
        """Forget that hooks were begun in those of `among` that are not alive."""
        self._hooks_begun.difference_update(set(among) - set(alive))

    @property
    def containers_with_hooks_begun(self) -> frozenset[str]:
        """Their ids."""
        return frozenset(self._hooks_begun)

    def killing(self, pod: Pod, name: str, message: str) -> None:
        """Record that a container is about to be ended."""
        text = message or f"Stopping container {name}"
        self._recorder.pod_event(pod, EventType.NORMAL, "Killing", text, container=name)

    def has_ended(self, container_id: str) -> None:
        """A container is known to have ended: what was remembered of it is not needed any more."""
        self._hooks_begun.discard(container_id)

    async def while_it_lives(
        self, pod_uid: str, container_id: str, work: Callable[[], Awaitable[CRIError | None]]
    ) -> CRIError | None:
        """The result of `work`, or None when the container ended first: then `work` is cancelled."""
        return await until_ended(self._ended, pod_uid, container_id, work, delay=STOP_TIMEOUT)

    async def run_pre_stop_hook(
        self, pod: Pod, container: Container, container_id: str, grace: Grace, instance: trio.Nursery
    ) -> None:
        """Begin the container's hook, once in the agent's life, and wait until it or the grace is over.

        The hook lives in the nursery of the container's instance: neither the end of the grace nor cancelling the wait
        ends it. Without grace none is begun. An event and the log tell how it ended.
        """
        handler = None if container.lifecycle is None else container.lifecycle.pre_stop
        began = container_id in self._hooks_begun
        if handler is None or self._hooks is None or began or grace.deadline <= trio.current_time():
            return
        self._hooks_begun.add(container_id)
        hook_log = log.bind(pod=pod.full_name, container=container.name, container_id=container_id)
        hook_log.debug("running preStop hook")
        over = trio.Event()
        hook = partial(self._hooks.run, container_id, pod, container, handler)
        instance.start_soon(self._until_over, pod, container, hook, over, name=f"preStop hook of {container.name}")
        with (
            grace.limit() as limit,
            self.steps.step(
                pod.metadata.uid, "preStop hook", container=container.name, deadline=lambda: grace.deadline
            ),
        ):
            await over.wait()
        if limit.cancelled_caught:
            over.set()
            hook_log.warning("preStop hook not completed in grace period, stopping the container")

    async def _until_over(
        self, pod: Pod, container: Container, hook: Callable[[], Awaitable[None]], over: trio.Event
    ) -> None:
        """Run a hook to its end, and set `over`. If the grace has set it before, the hook's failure is no news."""
        try:
            await hook()
        except HookError as error:
            if error.container_ended or over.is_set():
                log.debug("preStop hook ended with its container", pod=pod.full_name, container=container.name)
            else:
                self._hook_failed(pod, container)
        except Exception as error:  # noqa: BLE001 - a hook concerns its own container only
            problem = type(error).__name__
            log.error("preStop hook could not be run", problem=problem, pod=pod.full_name, container=container.name)
            self._hook_failed(pod, container)
        over.set()

    def _hook_failed(self, pod: Pod, container: Container) -> None:
        """Without what the hook said, which may be secret."""
        log.warning("preStop hook failed", pod=pod.full_name, container=container.name)
        text = "PreStopHook failed"
        self._recorder.pod_event(pod, EventType.WARNING, "FailedPreStopHook", text, container=container.name)

    async def stop_container(self, container_id: str, grace: Grace) -> CRIError | None:
        """Have a container stopped with what is left of its grace; why it did not stop, None when it did.

        When the grace gets shorter, the runtime is asked again beside the first request, which goes on: a request that
        is cancelled may end without SIGKILL.
        """
        answers: list[CRIError | None] = []
        requests = 1
        killed_at = trio.current_time() + grace.seconds_to_stop

        async def ask() -> None:
            answers.append(await self._stop(container_id, grace))
            if answers[-1] is None or len(answers) == requests:
                asking.cancel_scope.cancel()

        def ask_again() -> None:
            nonlocal requests, killed_at
            sooner = trio.current_time() + grace.seconds_to_stop
            if sooner < killed_at:
                requests, killed_at = requests + 1, sooner
                asking.start_soon(ask)

        async with trio.open_nursery() as asking:
            with grace.followed(ask_again):
                await ask()
                if not asking.cancel_scope.cancel_called:
                    await trio.sleep_forever()  # until one of the other requests is answered
        return None if None in answers else answers[-1]

    async def _stop(self, container_id: str, grace: Grace) -> CRIError | None:
        """Ask again for as long as there is grace when the runtime does not answer."""
        while True:
            try:
                await self._runtime.stop_container(container_id, grace.seconds_to_stop)
            except CRIError as error:
                if error.not_found:
                    return None
                remaining = grace.deadline - trio.current_time()
                if remaining <= 0 or not (error.unavailable or error.timed_out):
                    return error
                log.info("container will be stopped again", container_id=container_id, problem=str(error))
                await trio.sleep(min(STOP_RETRY_PAUSE, remaining))
            else:
                return None

    async def mark_when_ended(self, order: TerminationOrder, pod_uid: str, container: RuntimeContainer) -> None:
        """Even a container whose stop failed may end, and then the others need not wait for it."""
        if self._ended is not None:
            await self._ended(pod_uid, container.id.id, delay=STOP_TIMEOUT)
            order.mark_ended(container.name)

    async def stop_sandboxes(self, running: RunningPod) -> SyncResult:
        problems: list[str] = []

        async def stop(sandbox: RuntimeContainer) -> None:
            try:
                with self.steps.step(running.uid, TURN):
                    async with nullcontext() if self._turns is None else self._turns.take(CallKind.STOP_SANDBOX):
                        with self.steps.step(running.uid, "StopPodSandbox"):
                            await self._runtime.stop_pod_sandbox(sandbox.id.id)
            except CRIError as error:
                if not error.not_found:
                    log.warning(
                        "sandbox did not stop", pod=running.full_name, sandbox=sandbox.id.id, problem=str(error)
                    )
                    problems.append(str(error))
            else:
                self.stopped_sandboxes.add(sandbox.id.id)

        async with trio.open_nursery() as nursery:
            for sandbox in running.sandboxes:
                nursery.start_soon(stop, sandbox)
        result = SyncResult(SyncAction.KILL_POD_SANDBOX, f"{running.full_name}({running.uid})")
        if problems:
            return attrs.evolve(result, reason=KILL_POD_SANDBOX_ERROR, message="; ".join(problems))
        return result

    async def specification(self, pod: Pod | None, container_id: str, name: str) -> tuple[Pod, Container]:
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


def termination_grace_period(pod: Pod, container: Container, reason: KillReason) -> int:
    """Seconds of grace for a container that is killed (kubelet: `setTerminationGracePeriod`).

    A pod that is being deleted has its own; else a failed probe's, else the pod's.
    """
    if pod.metadata.deletion_grace_period_seconds is not None:
        return pod.metadata.deletion_grace_period_seconds
    of_pod = pod.spec.termination_grace_period_seconds
    if of_pod is None:
        return MINIMUM_GRACE_PERIOD
    probe = None
    if reason is KillReason.STARTUP_PROBE:
        probe = container.startup_probe
    elif reason is KillReason.LIVENESS_PROBE:
        probe = container.liveness_probe
    if probe is not None and probe.termination_grace_period_seconds is not None:
        return probe.termination_grace_period_seconds
    return of_pod
