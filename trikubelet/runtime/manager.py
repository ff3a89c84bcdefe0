"""The runtime manager: makes the runtime match a pod (kubelet: `kubeGenericRuntimeManager`).

The story of a sync: `plan` says what to do; what must end is killed; a sandbox is made when there is none to use; then
ephemeral, init and main containers are started, each unless it has to wait (CrashLoopBackOff). Every action leaves a
result, failures included, and none of them stops the agent. Nothing is remembered between syncs but the waits, the
reasons of the last failed starts and process ids: what the runtime holds is read from it, by labels and annotations, so
an agent that was killed takes up its pods where they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import is_sidecar, to_dict
from trikubelet.cri.errors import CRIError
from trikubelet.events import EventType
from trikubelet.logs import get_logger
from trikubelet.runtime.backoff import Backoff
from trikubelet.runtime.container import ContainerStarter, StartError, StartRequest
from trikubelet.runtime.errors import KillPodError
from trikubelet.runtime.gc import ContainerCollector
from trikubelet.runtime.gc_choice import ContainerGCPolicy, dead_containers_beyond
from trikubelet.runtime.hashing import fnv1a_64
from trikubelet.runtime.images import ImageManager
from trikubelet.runtime.kill import Killer
from trikubelet.runtime.model import ContainerState
from trikubelet.runtime.observe import Observer
from trikubelet.runtime.plan import (
    KillReason,
    PodActions,
    ProbeResults,
    compute_pod_actions,
)
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.runtime.results import CRASH_LOOP_BACK_OFF, PodSyncResult, SyncAction, SyncResult
from trikubelet.runtime.sandbox import SandboxError, SandboxMaker
from trikubelet.runtime.waiting import WaitingReasons
from trikubelet.runtime.wording import describe_duration, describe_error, describe_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.api import Container, Pod
    from trikubelet.clock import WallClock
    from trikubelet.cri import v1
    from trikubelet.cri.client import ImageClient, RuntimeClient
    from trikubelet.events import EventRecorder
    from trikubelet.runtime.container_config import PodMounts
    from trikubelet.runtime.model import ContainerStatus, PodRuntimeStatus, RunningPod
    from trikubelet.runtime.options import RuntimeOptions

log = get_logger("runtime")

REMOVE_CONTAINER_ERROR: Final = "RemoveContainerError"


class RuntimeManager:
    """Makes the runtime match pods, and reads it. Calls for different pods may run at the same time.

    All calls may be cancelled at any await: nothing runs on in the background, and the next sync goes on from what it
    finds. `files` are those of pods, by default on the disk below the folders that `options` names. `runtime_name` is
    known after `connect`.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        images: ImageClient,
        *,
        recorder: EventRecorder,
        clock: WallClock,
        options: RuntimeOptions,
        mounts: PodMounts,
        files: PodFiles | None = None,
    ) -> None:
        self._runtime = runtime
        self._recorder = recorder
        self._clock = clock
        files = files or PodFiles(options)
        self._observer = Observer(runtime, files)
        self._images = ImageManager(
            images,
            recorder,
            serialize=options.serialize_image_pulls,
            max_parallel=options.max_parallel_image_pulls,
        )
        self._starter = ContainerStarter(runtime, self._images, recorder, files, mounts, options)
        self._sandboxes = SandboxMaker(runtime, recorder, files, options)
        self._killer = Killer(runtime, recorder)
        self._collector = ContainerCollector(runtime, self._starter, self._killer, files, clock)
        self._backoff = Backoff.for_containers(options.max_container_restart_period)
        self._waiting = WaitingReasons()
        self.runtime_name = ""

    async def connect(self) -> v1.VersionResponse:
        """Ask the runtime for its name and version. Raises CRIError."""
        version = await self._runtime.version()
        self.runtime_name = version.runtime_name
        return version

    # Reading

    async def get_pods(self, all: bool = False) -> list[RunningPod]:  # noqa: A002 - the kubelet's name
        """The pods that the runtime holds, newest first; with ended containers and sandboxes when `all`.

        Raises CRIError.
        """
        return await self._observer.pods(self.runtime_name, everything=all)

    async def get_pod_status(self, uid: str, name: str = "", namespace: str = "") -> PodRuntimeStatus:
        """Everything about one pod; a pod that the runtime does not know has an empty status. Raises CRIError."""
        return await self._observer.pod_status(self.runtime_name, uid, name, namespace)

    def waiting_reasons(self, uid: str) -> dict[str, tuple[str, str]]:
        """Reason and message of the pod's containers whose last start failed, by name (kubelet: reason cache)."""
        return self._waiting.of_pod(uid)

    # Syncing

    async def sync_pod(
        self,
        pod: Pod,
        status: PodRuntimeStatus,
        *,
        probes: ProbeResults = ProbeResults(),  # noqa: B008 - frozen
        restart_all_containers: bool = False,
        on_sandbox_ready: Callable[[Pod, tuple[str, ...]], None] | None = None,
    ) -> PodSyncResult:
        """Do what brings the runtime to the pod (kubelet: `SyncPod`).

        `status` must be newer than the last sync's end, or containers may be started twice. `on_sandbox_ready` is
        called with the addresses of a new sandbox before any image is pulled. Problems are in the result, not raised.
        """
        plan = compute_pod_actions(pod, status, probes=probes, restart_all_containers=restart_all_containers)
        if plan.create_sandbox and plan.sandbox_id:
            message = "Pod sandbox changed, it will be killed and re-created."
            self._recorder.pod_event(pod, EventType.NORMAL, "SandboxChanged", message)
        results = await self._end_unwanted(pod, status, plan)
        if any(result.failed for result in results):
            return PodSyncResult(results)
        log.debug("pod planned", pod=pod.full_name, plan=str(plan))
        everything = plan.kill_pod and plan.create_sandbox
        results += await self._remove_old_init_containers(pod, status, everything=everything)
        if not _starts_anything(plan):
            return PodSyncResult(results)
        try:
            config = self._sandboxes.config(pod, plan.attempt, announce=plan.create_sandbox)
            sandbox_id, ips = plan.sandbox_id, status.ips
            if plan.create_sandbox:
                sandbox_id = await self._sandboxes.create(pod, config)
                ips = await self._sandboxes.addresses(pod, sandbox_id)
                results.append(SyncResult(SyncAction.CREATE_POD_SANDBOX, describe_pod(pod)))
                if on_sandbox_ready is not None:
                    on_sandbox_ready(pod, ips)
        except SandboxError as error:
            results.append(SyncResult(SyncAction.CREATE_POD_SANDBOX, describe_pod(pod), error.reason, error.message))
            return PodSyncResult(results)
        results += await self._start_containers(pod, status, plan, sandbox_id, config, ips)
        return PodSyncResult(results)

    async def kill_pod(self, running: RunningPod, pod: Pod | None, grace_override: int | None = None) -> None:
        """End all containers at once, each with its grace period (or `grace_override` seconds), then the sandboxes.

        Returns when nothing of the pod runs. Raises KillPodError when something did not stop.
        """
        results = await self._killer.kill_pod(running, pod, grace_override)
        failures = [(result.target, result.message) for result in results if result.failed]
        if failures:
            raise KillPodError(f"{running.full_name}({running.uid})", failures)

    # Cleaning up

    async def garbage_collect(
        self,
        policy: ContainerGCPolicy = ContainerGCPolicy(),  # noqa: B008 - frozen
        *,
        all_sources_ready: bool,
        is_pod_removed: Callable[[str], bool],
        is_runtime_removable: Callable[[str], bool] | None = None,
    ) -> None:
        """Remove dead containers beyond the policy, dead sandboxes, and logs of removed pods (by uid).

        `is_runtime_removable` adds pods that still exist but whose ended containers may go. Raises
        GarbageCollectionError when the runtime could not be asked; what could not be removed is only logged.
        """
        await self._collector.collect(
            policy,
            all_sources_ready=all_sources_ready,
            is_pod_removed=is_pod_removed,
            is_runtime_removable=is_runtime_removable or is_pod_removed,
        )
        self._backoff.collect(self._clock.now().timestamp())

    async def remove_pod_containers(self, status: PodRuntimeStatus, *, container_id: str = "", keep: int = 1) -> None:
        """Remove a pod's ended containers with their logs, but the newest `keep` (kubelet: `podContainerDeletor`).

        With a container id, only earlier runs of that container. What cannot be removed now is logged and left to
        garbage collection.
        """
        for container in dead_containers_beyond(status, container_id=container_id, keep=keep):
            await self._remove(container)

    async def _remove(self, container: ContainerStatus, *, keep_logs: bool = False) -> str:
        """Remove a container; returns the problem, empty when there was none."""
        try:
            await self._starter.remove(container.id.id, keep_logs=keep_logs)
        except (CRIError, OSError) as error:
            problem = describe_error(error) if isinstance(error, CRIError) else str(error)
            log.warning("container could not be removed", container_id=container.id.id, problem=problem)
            return problem
        return ""

    # The steps of a sync

    async def _end_unwanted(self, pod: Pod, status: PodRuntimeStatus, plan: PodActions) -> list[SyncResult]:
        if plan.kill_pod:
            running = status.as_running_pod(self.runtime_name)
            if not running.containers and not running.sandboxes:
                return []
            return await self._killer.kill_pod(running, pod, None)
        results: list[SyncResult] = []

        async def kill(container_id: str, name: str, message: str, reason: KillReason) -> None:
            results.append(await self._killer.kill_container(pod, container_id, name, message=message, reason=reason))

        async with trio.open_nursery() as nursery:
            for identifier, unwanted in plan.containers_to_kill.items():
                nursery.start_soon(kill, identifier.id, unwanted.name, unwanted.message, unwanted.reason)
        if not any(result.failed for result in results):
            results += await self._reset_containers(pod, status, plan)
        return results

    async def _reset_containers(self, pod: Pod, status: PodRuntimeStatus, plan: PodActions) -> list[SyncResult]:
        """Remove all containers one after the other, without grace, because all of them restart. Logs stay."""
        results: list[SyncResult] = []
        by_id = {container.id: container for container in status.container_statuses}
        for reset in plan.containers_to_reset:
            if reset.kill:
                killed = await self._killer.kill_container(
                    pod,
                    reset.id.id,
                    reset.name,
                    message="killing",
                    reason=KillReason.RESTART_ALL_CONTAINERS,
                    grace_override=0,
                )
                if killed.failed:
                    return [*results, attrs.evolve(killed, action=SyncAction.REMOVE_CONTAINER)]
            problem = await self._remove(by_id[reset.id], keep_logs=True)
            reason = REMOVE_CONTAINER_ERROR if problem else ""
            results.append(SyncResult(SyncAction.REMOVE_CONTAINER, reset.name, reason, problem))
            if problem:
                break
        return results

    async def _remove_old_init_containers(
        self, pod: Pod, status: PodRuntimeStatus, *, everything: bool
    ) -> list[SyncResult]:
        """Remove ended init containers: all when the pod starts over in a new sandbox, else all but each one's last."""
        removed = []
        for container in pod.spec.init_containers:
            runs = [run for run in status.container_statuses if run.name == container.name]
            if not everything:
                over = (ContainerState.EXITED, ContainerState.UNKNOWN)
                runs = [run for run in runs if run.state in over][1:]
            for run in runs:
                if not await self._remove(run):
                    removed.append(SyncResult(SyncAction.REMOVE_CONTAINER, container.name))
        return removed

    async def _start_containers(
        self,
        pod: Pod,
        status: PodRuntimeStatus,
        plan: PodActions,
        sandbox_id: str,
        config: v1.PodSandboxConfig,
        ips: Sequence[str],
    ) -> list[SyncResult]:
        """Start what the plan says, in order. A failed init container ends it, a failed sidecar does not."""
        results: list[SyncResult] = []

        async def start(container: Container) -> SyncResult:
            request = StartRequest(pod, container, status, sandbox_id, config, ips)
            result = await self._start_unless_waiting(request)
            results.append(result)
            return result

        for index in plan.ephemeral_containers_to_start:
            await start(pod.spec.ephemeral_containers[index])
        for index in plan.init_containers_to_start:
            container = pod.spec.init_containers[index]
            if (await start(container)).failed and not is_sidecar(container):
                return results
        for index in plan.containers_to_start:
            await start(pod.spec.containers[index])
        return results

    async def _start_unless_waiting(self, request: StartRequest) -> SyncResult:
        """Start a container, and keep the reason where that fails."""
        uid, name = request.pod.metadata.uid, request.container.name
        result = self._crash_loop(request)
        if result is None:
            try:
                await self._starter.start(request)
                result = SyncResult(SyncAction.START_CONTAINER, name)
            except StartError as error:
                result = SyncResult(SyncAction.START_CONTAINER, name, error.reason, error.message, error.retry_at)
        if result.failed:
            self._waiting.note(uid, name, result.reason, result.message)
        else:
            self._waiting.clear(uid, name)
        return result

    def _crash_loop(self, request: StartRequest) -> SyncResult | None:
        """The result of a container that has to wait before it starts again; None, with the wait after it doubled."""
        pod, container = request.pod, request.container
        ended = _last_ended(request.status, container.name)
        if ended is None:
            return None
        finished = 0.0 if ended.finished_at is None else ended.finished_at.timestamp()
        now = self._clock.now().timestamp()
        key = backoff_key(pod, container)
        if not self._backoff.in_backoff_since(key, finished, now):
            self._backoff.advance(key, finished, now)
            return None
        wait = self._backoff.wait_of(key)
        described = describe_pod(pod)
        event = f"Back-off restarting failed container {container.name} in pod {described}"
        self._recorder.pod_event(pod, EventType.WARNING, "BackOff", event, container=container.name)
        message = f"back-off {describe_duration(wait)} restarting failed container={container.name} pod={described}"
        retry_at = trio.current_time() + finished + wait - now
        return SyncResult(SyncAction.START_CONTAINER, container.name, CRASH_LOOP_BACK_OFF, message, retry_at)


def backoff_key(pod: Pod, container: Container) -> str:
    """What a container's CrashLoopBackOff is kept under: whatever changes in it starts the waits over.

    Kubelet: `GetBackoffKey`.
    """
    resources = json.dumps(to_dict(container.resources), sort_keys=True)
    metadata = pod.metadata
    parts = (metadata.name, metadata.namespace, metadata.uid, container.name, container.image, resources)
    return f"{fnv1a_64('/'.join(parts).encode()):x}"


def _last_ended(status: PodRuntimeStatus, name: str) -> ContainerStatus | None:
    return next(
        (
            container
            for container in status.container_statuses
            if container.name == name and container.state is ContainerState.EXITED
        ),
        None,
    )


def _starts_anything(plan: PodActions) -> bool:
    return bool(
        plan.create_sandbox
        or plan.ephemeral_containers_to_start
        or plan.init_containers_to_start
        or plan.containers_to_start
    )
