"""The steps of one pod's sync, in the kubelet's order (`SyncPod` of kuberuntime).

    end what is not wanted      the whole pod, or single containers; all are removed when all restart
    prune init containers       those of earlier runs
    sandbox                     claims, handler, user ids and configuration; made when there is none to use. Meanwhile
                                the runtime is asked whether it has the images
    tell that it is ready       before any image is pulled
    pull secrets, image volumes
    ephemeral containers
    init containers             one that fails ends the sync, a sidecar that fails does not
    resize                      of the pod and its running containers in place
    main containers

What to do was decided before (`plan`); each step does its part and leaves a result for every action, failures included.
A step that fails ends the sync: the next one starts from what the runtime holds then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import trio
from grpclib.const import Status

from trikubelet.api import Secret, is_sidecar
from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.container.messages import describe_pod
from trikubelet.container.model import ContainerState
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectGetter
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.actuated import ActuatedResources
from trikubelet.runtime.backoff import CrashLoops
from trikubelet.runtime.containers.container import (
    ContainerStarter,
    StartError,
    StartRequest,
)
from trikubelet.runtime.images.credentials.lookup import fetch_pull_secrets
from trikubelet.runtime.images.gc import ImageHolds
from trikubelet.runtime.images.manager import (
    ImageManager,
    ImageVolumes,
    mounted_images,
    pull_image_volumes,
)
from trikubelet.runtime.metrics import RuntimeMetrics, container_kind
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.plan import KillReason
from trikubelet.runtime.resize import PodResizer
from trikubelet.runtime.results import (
    CREATE_CONTAINER_CONFIG_ERROR,
    PodSyncResult,
    SyncAction,
    SyncResult,
    WaitingReasons,
)
from trikubelet.runtime.sandboxes.sandbox import Sandbox, SandboxError, SandboxMaker, SandboxNotMadeError
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import Container, Pod
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus
    from trikubelet.runtime.containers.life import PodContainers
    from trikubelet.runtime.plan import PodActions

    OnSandboxReady = Callable[[Pod, tuple[str, ...]], None]

log = get_logger("runtime")

REMOVE_CONTAINER_ERROR: Final = "RemoveContainerError"
RETRY_SOON: Final = 1.0
"""Seconds until the next attempt after an error of the runtime that passes by itself."""
IMAGE_VOLUME_REFUSED: Final = "ImageVolumeMountFailed"
"""Prefix of the runtime's message when it cannot mount an image (cri-api: `errors`)."""
_ENDED: Final = (ContainerState.EXITED, ContainerState.UNKNOWN)


@frozen(kw_only=True)
class SyncParts:
    """The parts of the runtime manager that a sync works with."""

    runtime: RuntimeClient
    recorder: EventRecorder
    options: RuntimeOptions
    sandboxes: SandboxMaker
    images: ImageManager
    starter: ContainerStarter
    crash_loops: CrashLoops
    waiting: WaitingReasons
    objects: ObjectGetter
    image_holds: ImageHolds
    metrics: RuntimeMetrics = attrs.field(factory=RuntimeMetrics)
    resizer: PodResizer | None = None
    actuated: ActuatedResources | None = None
    """Where it is recorded what resources containers have; without it, they are never resized."""


class PodSync:
    """One sync of one pod. `run` once."""

    def __init__(
        self,
        parts: SyncParts,
        pod: Pod,
        status: PodRuntimeStatus,
        plan: PodActions,
        containers: PodContainers,
        *,
        runtime_name: str,
        abilities: RuntimeAbilities = RuntimeAbilities(),  # noqa: B008 - frozen
        image_volume_problem: str = "",
        on_sandbox_ready: OnSandboxReady | None = None,
    ) -> None:
        """`image_volume_problem`: why this runtime cannot mount images, empty when it can."""
        self._parts = parts
        self._pod = pod
        self._status = status
        self._plan = plan
        self._containers = containers
        self._runtime_name = runtime_name
        self._abilities = abilities
        self._image_volume_problem = image_volume_problem
        self._on_sandbox_ready = on_sandbox_ready
        self._results: list[SyncResult] = []
        self._made: dict[str, str] = {}

    async def run(self) -> PodSyncResult:
        """Do what is planned. Problems are in the result, not raised. Cancelled, it leaves what has been done."""
        if self._plan.create_sandbox and self._plan.sandbox_id:
            message = "Pod sandbox changed, it will be killed and re-created."
            self._parts.recorder.pod_event(self._pod, EventType.NORMAL, "SandboxChanged", message)
        await self._end_unwanted()
        if not self._failed:
            log.debug("pod planned", pod=self._pod.full_name, plan=str(self._plan))
            await self._remove_old_init_containers()
            if self._plan.starts_anything:
                await self._start_all()
            else:
                await self._resize(self._plan.sandbox_id)
        if self._plan.create_sandbox and self._pod.spec.host_users is False:
            self._parts.metrics.failed_user_namespaced_pods += self._failed
        return PodSyncResult(self._results, self._made)

    @property
    def _failed(self) -> bool:
        return any(result.failed for result in self._results)

    # What must end

    async def _end_unwanted(self) -> None:
        if self._plan.kill_pod:
            running = self._status.as_running_pod(self._runtime_name)
            if running.containers or running.sandboxes:
                self._results += await self._containers.kill_pod(running, self._pod)
            return
        await self._kill_containers()
        if not self._failed:
            await self._reset_containers()

    async def _kill_containers(self) -> None:
        async def kill(container_id: str, name: str, message: str, reason: KillReason) -> None:
            containers = self._containers
            killed = await containers.kill_container(self._pod, container_id, name, message=message, reason=reason)
            self._results.append(killed)

        async with trio.open_nursery() as nursery:
            for identifier, unwanted in self._plan.containers_to_kill.items():
                nursery.start_soon(kill, identifier.id, unwanted.name, unwanted.message, unwanted.reason)

    async def _reset_containers(self) -> None:
        """Remove all containers one after the other, without grace, because all of them restart. Logs stay."""
        by_id = {container.id: container for container in self._status.container_statuses}
        for reset in self._plan.containers_to_reset:
            if reset.kill:
                killed = await self._containers.kill_container(
                    self._pod,
                    reset.id.id,
                    reset.name,
                    message="killing",
                    reason=KillReason.RESTART_ALL_CONTAINERS,
                    deadline=trio.current_time(),
                )
                if killed.failed:
                    self._results.append(attrs.evolve(killed, action=SyncAction.REMOVE_CONTAINER))
                    return
            problem = await remove_container(self._parts.starter, by_id[reset.id], keep_logs=True)
            reason = REMOVE_CONTAINER_ERROR if problem else ""
            self._results.append(SyncResult(SyncAction.REMOVE_CONTAINER, reset.name, reason, problem))
            if problem:
                return

    async def _remove_old_init_containers(self) -> None:
        """Remove ended init containers: all when the pod starts over in a new sandbox, else all but each one's last."""
        starts_over = self._plan.kill_pod and self._plan.create_sandbox
        for container in self._pod.spec.init_containers:
            runs = [run for run in self._status.container_statuses if run.name == container.name]
            if not starts_over:
                runs = [run for run in runs if run.state in _ENDED][1:]
            for run in runs:
                if not await remove_container(self._parts.starter, run):
                    self._results.append(SyncResult(SyncAction.REMOVE_CONTAINER, container.name))

    # What is to run

    async def _start_all(self) -> None:
        if not self._plan.starts_containers:
            await self._try_sandbox()
            return
        async with self._parts.image_holds.hold(*self._images()):
            found: dict[str, v1.Image] = {}
            async with trio.open_nursery() as looking:
                if self._plan.create_sandbox:
                    looking.start_soon(self._look_at_images, found)
                sandbox = await self._try_sandbox()
                looking.cancel_scope.cancel()  # what is not answered by now is asked again in its turn
            if sandbox is None:
                return
            secrets = await fetch_pull_secrets(self._parts.objects, self._pod, self._parts.recorder)
            volumes = await pull_image_volumes(
                self._parts.images, self._pod, sandbox.config, secrets, problem=self._image_volume_problem
            )
            await self._start_containers(_Place(sandbox, secrets, volumes, found))

    async def _look_at_images(self, found: dict[str, v1.Image]) -> None:
        """Add those that are present, of the containers to start, by the names that the pod gives them."""
        spec, plan = self._pod.spec, self._plan
        containers = [spec.init_containers[index] for index in plan.init_containers_to_start]
        containers += [spec.containers[index] for index in plan.containers_to_start]
        pulls = [(container.image, container.image_pull_policy) for container in containers]
        pulls += [(volume.image.reference, volume.image.pull_policy) for volume in spec.volumes if volume.image]
        pulled_anyway = {name for name, policy in pulls if policy == "Always"}
        for name in dict.fromkeys(container.image for container in containers):
            image = None if name in pulled_anyway else await self._parts.images.look(self._pod, name)
            if image is not None:
                found[name] = image

    async def _try_sandbox(self) -> Sandbox | None:
        """None, with the result for it, where there is none."""
        try:
            return await self._sandbox()
        except SandboxError as error:
            creates = self._plan.create_sandbox
            action = SyncAction.CREATE_POD_SANDBOX if creates else SyncAction.CONFIG_POD_SANDBOX
            described = describe_pod(self._pod)
            self._results.append(SyncResult(action, described, error.reason, error.message, _retry_at(error)))
            return None

    def _images(self) -> set[str]:
        """All images of the pod."""
        spec = self._pod.spec
        containers: tuple[Container, ...] = (*spec.ephemeral_containers, *spec.init_containers, *spec.containers)
        volumes = (volume.image.reference for volume in spec.volumes if volume.image is not None)
        return {*(container.image for container in containers), *volumes}

    async def _sandbox(self) -> Sandbox:
        """Raises SandboxError."""
        pod, plan, ips = self._pod, self._plan, tuple(self._status.ips)
        if not plan.create_sandbox:
            return await self._parts.sandboxes.existing(pod, plan.sandbox_id, plan.attempt, ips)
        metrics = self._parts.metrics
        metrics.started_pods += 1
        metrics.started_user_namespaced_pods += pod.spec.host_users is False
        if self._parts.actuated is not None:
            self._parts.actuated.sandbox_made(pod)
        try:
            sandbox = await self._parts.sandboxes.create(pod, plan.attempt, ips)
        except SandboxNotMadeError:
            metrics.failed_pods += 1
            raise
        self._made[sandbox.id] = sandbox.id
        self._results.append(SyncResult(SyncAction.CREATE_POD_SANDBOX, describe_pod(pod)))
        if self._on_sandbox_ready is not None:
            try:
                self._on_sandbox_ready(pod, sandbox.ips)
            except Exception as error:
                log.error("cannot tell that a sandbox is ready", pod=pod.full_name, exc_info=error)
        return sandbox

    async def _start_containers(self, place: _Place) -> None:
        pod, plan = self._pod, self._plan
        for index in plan.ephemeral_containers_to_start:
            await self._start(pod.spec.ephemeral_containers[index], place)
        # Before all containers with resources: a sidecar that starts again needs the room, too.
        await self._resize(place.sandbox.id)
        for index in plan.init_containers_to_start:
            container = pod.spec.init_containers[index]
            result = await self._start(container, place)
            if result.failed and not is_sidecar(container):
                return
        for index in plan.containers_to_start:
            await self._start(pod.spec.containers[index], place)

    async def _resize(self, sandbox_id: str) -> None:
        if self._plan.resizes and self._parts.resizer is not None:
            resizer, began = self._parts.resizer, trio.current_time()
            result = await resizer.resize(self._pod, self._status_after_kills(), sandbox_id, self._plan.resize)
            success = "false" if result.failed else "true"
            self._parts.metrics.resizes.observe((success,), (trio.current_time() - began) * 1000)
            self._results.append(result)

    def _status_after_kills(self) -> PodRuntimeStatus:
        """The pod without what this sync ended. It uses no memory any more, and runtimes refuse to measure it."""
        ended = self._plan.containers_to_kill
        return attrs.evolve(
            self._status,
            container_statuses=tuple(one for one in self._status.container_statuses if one.id not in ended),
        )

    async def _start(self, container: Container, place: _Place) -> SyncResult:
        """Start a container unless it has to wait, and keep the reason where that fails."""
        result = self._parts.crash_loops.hold_back(self._pod, container, self._status)
        if result is None:
            result = SyncResult(SyncAction.START_CONTAINER, container.name)
            self._parts.metrics.started_containers[(container_kind(self._pod, container),)] += 1
            try:
                await self._start_now(container, place)
            except StartError as error:
                result = attrs.evolve(
                    result, reason=error.reason, message=error.message, retry_at=error.retry_at or _retry_at(error)
                )
        self._results.append(result)
        self._parts.waiting.record(self._pod.metadata.uid, result)
        return result

    async def _start_now(self, container: Container, place: _Place) -> None:
        """Raises StartError. One for want of an image that is mounted is not counted, as in the kubelet."""
        image_volumes, problems = mounted_images(place.volumes, container)
        for problem in problems:
            event = f"Error: {problem.reason}"
            if problem.reason == CREATE_CONTAINER_CONFIG_ERROR:
                event = f"Error: {problem.message}"
            self._parts.recorder.pod_event(self._pod, EventType.WARNING, "Failed", event, container=container.name)
        if problems:
            last = problems[-1]
            raise StartError(last.reason, last.message, last.retry_at) from last
        sandbox = place.sandbox
        handler = self._abilities.handler(sandbox.handler)
        request = StartRequest(
            self._pod,
            container,
            self._status,
            sandbox.id,
            sandbox.config,
            sandbox.ips,
            containers=self._containers,
            secrets=place.secrets,
            image=place.images.get(container.image),
            image_volumes=image_volumes,
            user_namespace=sandbox.user_namespace,
            recursive_read_only=handler.recursive_read_only_mounts,
        )
        told = ""
        try:
            self._made[await self._parts.starter.start(request)] = sandbox.id
        except StartError as error:
            told = error.message
            self._parts.metrics.failed_containers[container_kind(self._pod, container), error.reason] += 1
            raise
        finally:
            self._count_image_volumes(container, image_volumes, told)

    def _count_image_volumes(self, container: Container, images: Collection[str], problem: str) -> None:
        if images:
            refused = problem.startswith(IMAGE_VOLUME_REFUSED)
            mounts = sum(mount.name in images for mount in container.volume_mounts)
            metrics = self._parts.metrics
            metrics.image_volumes_requested += len(images)
            metrics.image_volumes_failed += mounts if refused else 0
            metrics.image_volumes_mounted += 0 if refused else mounts


@frozen
class _Place:
    """Where containers are started, and with what."""

    sandbox: Sandbox
    secrets: Sequence[Secret]
    volumes: ImageVolumes
    images: Mapping[str, v1.Image]
    """Those that were found present, by the names that the pod gives them."""


async def remove_container(starter: ContainerStarter, container: ContainerStatus, *, keep_logs: bool = False) -> str:
    """Remove a container; returns the problem, empty when there was none."""
    try:
        await starter.remove(container.id.id, keep_logs=keep_logs)
    except (CRIError, OSError) as error:
        problem = str(error)
        log.warning("container could not be removed", container_id=container.id.id, problem=problem)
        return problem
    return ""


def _retry_at(error: BaseException) -> float | None:
    """When to try again what the runtime did not do: soon, where that was for a reason that passes by itself."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CRIError) and _passes(cause):
            return trio.current_time() + RETRY_SOON
        cause = cause.__cause__
    return None


def _passes(error: CRIError) -> bool:
    """Whether the runtime was away, or is still at an earlier attempt of the same: that has reserved the name."""
    at_it = error.still_starting or "is reserved for" in error.message
    return at_it or error.status in (Status.UNAVAILABLE, Status.ALREADY_EXISTS)
