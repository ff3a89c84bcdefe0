"""Starting one container, and removing one.

A start is a line of steps: image, configuration, create, start, the postStart hook. Each has its reason when it fails,
which becomes the container's waiting reason, and its event. The configuration is built by `container_config`, which is
pure, after all work that touches the machine: the image is there and its user known, volumes have their paths, the
hosts and termination files exist, the environment is resolved.

What a failed or cancelled start leaves behind (a container that was created and never started) is seen by the next
inspection, and the plan starts another in its place, which has its number.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import Container, Pod, Secret
from trikubelet.container.downward import Addresses
from trikubelet.container.errors import ContainerConfigError, SandboxConfigError
from trikubelet.container.expansion import MOST_OF_ALL, MOST_OF_ONE, TOO_LONG, ExpansionError, expand_known
from trikubelet.container.labels import CONTAINER_NAME, container_annotations, container_labels, read_identity
from trikubelet.container.model import ContainerStatus, PodRuntimeStatus
from trikubelet.formats.values import frozen
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.attempt import next_attempt
from trikubelet.runtime.containers.environment import container_environment, gather_env_files, gather_objects
from trikubelet.runtime.containers.life import PodContainers
from trikubelet.runtime.containers.mounts import (
    container_devices,
    container_mounts,
    hosts_file_mount,
    termination_file_mount,
    wants_hosts_file,
)
from trikubelet.runtime.containers.resources import container_resources
from trikubelet.runtime.containers.security import ImageUser, container_security_context, verify_run_as_non_root
from trikubelet.runtime.convert import start_was_cut_off
from trikubelet.runtime.hooks import HookError
from trikubelet.runtime.images.manager import ImageError, ImageRequest, PresentImage
from trikubelet.runtime.logs.paths import container_log_path, legacy_symlink_name
from trikubelet.runtime.plan import KillReason
from trikubelet.runtime.results import CREATE_CONTAINER_CONFIG_ERROR, POST_START_HOOK_ERROR
from trikubelet.runtime.turns import CallKind, Turns
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.steps import TURN

if TYPE_CHECKING:
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.runtime.actuated import ActuatedResources
    from trikubelet.runtime.context import RuntimeContext
    from trikubelet.runtime.hooks import HookRunner
    from trikubelet.runtime.images.manager import ImageManager
    from trikubelet.runtime.options import RuntimeOptions

log = get_logger("runtime")

Extras = Callable[["Pod", "Container"], "Awaitable[ContainerExtras]"]
"""Gives the extras of a container, called for each start. Raises ContainerConfigError."""

CREATE_CONTAINER_ERROR: Final = "CreateContainerError"
RUN_CONTAINER_ERROR: Final = "RunContainerError"
_MOST_USUALLY: Final = 2 * 1024 * 1024
"""Bytes of all arguments and variables that the kernel takes with the usual stack."""


@frozen
class StartError(Exception):
    """A container could not be started. `reason` is what its status waits with."""

    reason: str
    message: str
    retry_at: float | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@frozen
class StartRequest:
    """A container to start, and where."""

    pod: Pod
    container: Container
    status: PodRuntimeStatus
    """The last observed status: for the restart count, and an ephemeral container's target."""
    sandbox_id: str
    sandbox_config: v1.PodSandboxConfig
    pod_ips: Sequence[str]
    """All that the runtime gave the pod, in its order."""
    containers: PodContainers
    """The pod's container instances: one is ended when its hook failed."""
    secrets: Sequence[Secret] = ()
    """To pull the image with."""
    image: v1.Image | None = None
    """The container's image, where it was found present beside the making of the sandbox."""
    image_volumes: Mapping[str, v1.ImageSpec] = attrs.field(factory=dict)
    """The pod's volumes that are images, which are present, by name."""
    user_namespace: v1.UserNamespace | None = None
    """The sandbox's."""
    recursive_read_only: bool = False
    """Whether the pod's runtime handler can mount volumes read-only with everything below them."""


async def no_extras(_pod: Pod, _container: Container) -> ContainerExtras:
    return ContainerExtras()


class ContainerStarter:
    """Starts and removes containers.

    `hooks` runs postStart hooks; without it, none is run. `seen_end` spares the question where a container that is to
    be removed keeps its log; what is answered otherwise is left with `remember_end`, as it cannot be asked again.
    `start_failed` gets the id of each container that the runtime refused to start, or did not start in time.
    `actuated` keeps what containers were started with.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        images: ImageManager,
        turns: Turns,
        context: RuntimeContext,
        *,
        hooks: HookRunner | None = None,
        seen_end: Callable[[str], ContainerStatus | None] = lambda _: None,
        remember_end: Callable[[v1.ContainerStatus, str], None] = lambda _, __: None,
        start_failed: Callable[[str], None] = lambda _: None,
        actuated: ActuatedResources | None = None,
    ) -> None:
        self._actuated = actuated
        self._runtime = runtime
        self._images = images
        self._recorder = context.recorder
        self._files = context.files
        self._mounts = context.mounts
        self._options = context.options
        self._turns = turns
        self._steps = context.steps
        self._objects = context.objects
        self._hooks = hooks
        self._node = context.node
        self._extras = context.extras
        self._seen_end = seen_end
        self._remember_end = remember_end
        self._start_failed = start_failed

    async def start(self, request: StartRequest) -> str:
        """Bring a container to run, its postStart hook included; returns its id (kubelet: `startContainer`).

        Raises StartError, after the event for it. Cancelled, it may leave a container that was created, or one that
        runs without the rest of its hook.
        """
        pod, container = request.pod, request.container
        image_request = ImageRequest(container.image, container.image_pull_policy, container)
        try:
            image = await self._images.ensure(
                pod, image_request, request.sandbox_config, request.secrets, found=request.image
            )
        except ImageError as error:
            self._failed(request, error.reason)
            raise StartError(error.reason, error.message, error.retry_at) from error
        attempt = next_attempt(request.status, container.name)
        restart_count = self._restart_count(request) if attempt.number is None else attempt.number
        config = await self._config_to_start(request, image, restart_count)
        again = attempt.replaces is not None
        if attempt.replaces is not None and not await self._remove_unstarted(request, attempt.replaces.id):
            again, config = False, await self._config_to_start(request, image, restart_count + 1)
        if problem := what_is_too_long(config):
            self._failed(request, problem)
        container_id = await self._create_and_start(request, config, again=again)
        self._files.link_log(pod, container.name, container_id, config.log_path)
        await self._run_post_start_hook(request, container_id)
        return container_id

    async def remove(self, container_id: str, *, pod_sandbox_id: str = "", keep_logs: bool = False) -> None:
        """Remove an ended container, its logs first, so that logs without a container cannot stay behind.

        With its sandbox's id, how it ended is remembered of one that was not looked at since.

        Raises CRIError and OSError. A container that is gone is removed.
        """
        if not keep_logs:
            status = self._seen_end(container_id) or await self._last_status(container_id, pod_sandbox_id)
            if status is None:
                return
            owner = read_identity(status.labels)
            name = status.labels.get(CONTAINER_NAME, "")
            link = legacy_symlink_name(container_id, name, owner.name, owner.namespace)
            await self._files.remove_logs(status.log_path, link)
        try:
            await self._runtime.remove_container(container_id)
        except CRIError as error:
            if not error.not_found:
                raise

    async def _last_status(self, container_id: str, pod_sandbox_id: str) -> v1.ContainerStatus | None:
        """None for a container that is gone. Raises CRIError."""
        try:
            status = (await self._runtime.container_status(container_id)).status
        except CRIError as error:
            if error.not_found:
                return None
            raise
        if pod_sandbox_id:
            self._remember_end(status, pod_sandbox_id)
        return status

    def _restart_count(self, request: StartRequest) -> int:
        """After a reboot that made the runtime forget the last run, the logs tell."""
        try:
            return self._files.restart_count(request.pod, request.container)
        except OSError as error:
            log.warning(
                "cannot tell the restart count from the logs",
                pod=request.pod.full_name,
                container=request.container.name,
                problem=str(error),
            )
            return 0

    async def _config_to_start(
        self, request: StartRequest, image: PresentImage, restart_count: int
    ) -> v1.ContainerConfig:
        """Return the configuration, and write down with which resources the container starts. Raises StartError."""
        try:
            config = await self._config(request, image, restart_count)
            if self._actuated is not None:
                await self._actuated.container_starts(request.pod, request.container)
        except (ContainerConfigError, SandboxConfigError, CheckpointError, OSError) as error:
            self._failed(request, str(error), error.__cause__)
            raise StartError(CREATE_CONTAINER_CONFIG_ERROR, str(error)) from error
        return config

    async def _config(self, request: StartRequest, image: PresentImage, restart_count: int) -> v1.ContainerConfig:
        """Raises ContainerConfigError, SandboxConfigError and OSError."""
        pod, container = request.pod, request.container
        target_id = self._target_id(request)
        extras = await self._extras(pod, container)
        devices = container_devices(pod, container, self._mounts)
        environment = {**extras.environment, **await self._environment(request)}
        selinux = self._options.machine.selinux
        mounts = await container_mounts(
            pod,
            container,
            environment,
            self._mounts,
            image_volumes=request.image_volumes,
            recursive_read_only=request.recursive_read_only,
            selinux=selinux,
        )
        if wants_hosts_file(pod, container, request.pod_ips):
            hosts_file = self._files.write_hosts_file(pod, request.pod_ips)
            mounts.append(hosts_file_mount(hosts_file, selinux=selinux))
        if container.termination_message_path:
            message_file = self._files.make_termination_file(pod, container)
            mounts.append(termination_file_mount(container, message_file, selinux=selinux))
        self._files.make_container_logs_directory(pod, container)
        inputs = ContainerInputs(
            restart_count=restart_count,
            image_ref=image.reference,
            image_user=image.user,
            environment=environment,
            mounts=mounts,
            devices=devices,
            target_id=target_id,
            user_namespace=request.user_namespace,
            volume_groups=self._mounts.supplemental_groups(pod),
            extras=extras,
        )
        return container_config(pod, container, inputs, self._options)

    async def _environment(self, request: StartRequest) -> dict[str, str]:
        pod, container = request.pod, request.container
        objects = await gather_objects(self._objects, pod, container)
        files = await gather_env_files(self._files, self._mounts, pod, container)
        return container_environment(
            pod,
            container,
            addresses=Addresses(request.pod_ips, self._node.host_ips(), ipv6_first=self._options.ipv6_first),
            allocatable=self._node.allocatable(),
            objects=attrs.evolve(objects, files=files),
        )

    def _target_id(self, request: StartRequest) -> str:
        target = getattr(request.container, "target_container_name", "")
        if not target:
            return ""
        status = request.status.find_container(target)
        if status is None:
            raise ContainerConfigError(f"unable to find target container {target}")
        return status.id.id

    async def _remove_unstarted(self, request: StartRequest, container_id: str) -> bool:
        """Make way for another one of the same number. False where the runtime refuses to remove it.

        Raises StartError when it cannot be told yet, also when it has been started after all: the last call of an agent
        that was killed may have been under way, or the runtime may still be giving it up.
        """
        try:
            status = (await self._runtime.container_status(container_id)).status
            if status.state != v1.ContainerState.CONTAINER_CREATED and not start_was_cut_off(status):
                message = f"container {request.container.name} has been started meanwhile"
                raise StartError(CREATE_CONTAINER_ERROR, message, retry_at=trio.current_time())
            await self._runtime.remove_container(container_id)
        except CRIError as error:
            if error.not_found:
                return True
            message = error.message.replace(container_id, request.container.name)
            if not error.still_starting:
                self._failed(request, message)
            if not (error.still_starting or error.unavailable or error.timed_out):
                return False
            raise StartError(CREATE_CONTAINER_ERROR, message) from error
        return True

    async def _create_and_start(self, request: StartRequest, config: v1.ContainerConfig, *, again: bool) -> str:
        """`again`: in place of one that was made and never started."""
        pod, container = request.pod, request.container
        step = partial(self._steps.step, pod.metadata.uid, container=container.name)
        try:
            with step(TURN):
                async with self._turns.take(CallKind.CREATE_CONTAINER):
                    with step("CreateContainer"):
                        container_id = await self._runtime.create_container(
                            request.sandbox_id, config, request.sandbox_config
                        )
        except CRIError as error:
            self._failed(request, error.message)
            raise StartError(CREATE_CONTAINER_ERROR, error.message) from error
        made = "Container created"
        if again:
            made += " again, with the same number: the agent went away before the last one had started"
        self._record(request, EventType.NORMAL, "Created", made)
        try:
            with step(TURN):
                async with self._turns.take(CallKind.START_CONTAINER):
                    with step("StartContainer"):
                        await self._runtime.start_container(container_id)
        except CRIError as error:
            if not error.unavailable:
                self._start_failed(container_id)
            # An id in an event's text would make each of them a new event.
            self._failed(request, error.message.replace(container_id, container.name))
            raise StartError(RUN_CONTAINER_ERROR, error.message) from error
        self._record(request, EventType.NORMAL, "Started", "Container started")
        log.info("container started", pod=pod.full_name, container=container.name, container_id=container_id)
        return container_id

    async def _run_post_start_hook(self, request: StartRequest, container_id: str) -> None:
        """Run the hook; a container whose hook failed is ended. Raises StartError."""
        pod, container = request.pod, request.container
        hook = None if container.lifecycle is None else container.lifecycle.post_start
        if hook is None or self._hooks is None:
            return
        try:
            with self._steps.step(pod.metadata.uid, "postStart hook", container=container.name):
                await self._hooks.run(container_id, pod, container, hook)
        except HookError as error:
            if error.container_ended and hook.sleep is not None:
                return  # the sleep has no purpose any more, and the end of the container says how it went
            # What the hook said is not for events: it may be secret.
            self._record(request, EventType.WARNING, "FailedPostStartHook", "PostStartHook failed")
            log.warning("postStart hook failed", pod=pod.full_name, container=container.name, container_id=container_id)
            await request.containers.kill_container(
                pod,
                container_id,
                container.name,
                message="FailedPostStartHook",
                reason=KillReason.FAILED_POST_START_HOOK,
            )
            raise StartError(POST_START_HOOK_ERROR, error.message) from error

    def _record(self, request: StartRequest, type_: EventType, reason: str, message: str) -> None:
        self._recorder.pod_event(request.pod, type_, reason, message, container=request.container.name)

    def _failed(self, request: StartRequest, problem: str, cause: BaseException | None = None) -> None:
        """`cause`: what only the node's own log is told."""
        self._record(request, EventType.WARNING, "Failed", f"Error: {problem}")
        log.warning(
            "container could not be started",
            pod=request.pod.full_name,
            container=request.container.name,
            problem=problem,
            cause=None if cause is None else str(cause),
        )


@frozen
class ContainerExtras:
    """Additions to a container for what it was given of the machine. The pod's spec wins over them."""

    devices: Sequence[v1.Device] = ()
    cdi_devices: Sequence[str] = ()
    """`vendor/class=device`."""
    mounts: Sequence[v1.Mount] = ()
    environment: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    """Lists of CPUs and of NUMA nodes, `0-3,8`; empty: all."""


@frozen
class ContainerInputs:
    """The inputs of a container's configuration beyond the pod's spec."""

    restart_count: int
    image_ref: str
    """What the runtime calls the image: its id, or what the pull returned."""
    image_user: ImageUser
    environment: Mapping[str, str]
    """With the variables of `extras`. Bytes that are not UTF-8 are surrogates in it."""
    mounts: Sequence[v1.Mount] = ()
    devices: Sequence[v1.Device] = ()
    target_id: str = ""
    """For an ephemeral container: the container whose processes it sees."""
    user_namespace: v1.UserNamespace | None = None
    """The pod's, as its sandbox got it."""
    volume_groups: Sequence[int] = ()
    """Groups that the pod's volumes want its containers in."""
    extras: ContainerExtras = attrs.field(factory=ContainerExtras)


def container_config(
    pod: Pod, container: Container, inputs: ContainerInputs, options: RuntimeOptions
) -> v1.ContainerConfig:
    """Build the message for CreateContainer (kubelet: `generateContainerConfig`).

    Raises ContainerConfigError, and SandboxConfigError for a pod without the user namespace that it asks for.
    """
    verify_run_as_non_root(pod, container, inputs.image_user)
    environment, extras = inputs.environment, inputs.extras
    resources = container_resources(pod, container, options)
    resources.cpuset_cpus, resources.cpuset_mems = extras.cpuset_cpus, extras.cpuset_mems
    config = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name=container.name, attempt=inputs.restart_count),
        image=v1.ImageSpec(image=inputs.image_ref, user_specified_image=container.image),
        command=_expanded(container.command, environment),
        args=_expanded(container.args, environment),
        working_dir=container.working_dir,
        envs=[v1.KeyValue(key=name, value=_bytes(name, value)) for name, value in environment.items()],
        mounts=[_in_user_namespace(mount, inputs.user_namespace) for mount in (*extras.mounts, *inputs.mounts)],
        devices=[*extras.devices, *inputs.devices],
        cdi_devices=[v1.CdiDevice(name=name) for name in extras.cdi_devices],
        labels=container_labels(container, pod),
        annotations={
            **extras.annotations,
            **container_annotations(container, pod, inputs.restart_count, options.owner),
        },
        log_path=container_log_path(container.name, inputs.restart_count),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        linux=v1.LinuxContainerConfig(
            resources=resources,
            security_context=container_security_context(
                pod,
                container,
                inputs.image_user,
                options,
                inputs.target_id,
                userns=inputs.user_namespace,
                volume_groups=inputs.volume_groups,
            ),
        ),
    )
    _refuse_impossible_words(config)
    if container.lifecycle is not None and container.lifecycle.stop_signal is not None:
        config.stop_signal = _stop_signal(container.lifecycle.stop_signal)
    return config


def _expanded(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words with their references expanded; `TOO_LONG` for each that no process can be given, and no more words
    than it takes to be refused."""
    expanded: list[str] = []
    size = 0
    for word in words:
        try:
            expanded.append(expand_known(word, environment))
        except ExpansionError:
            expanded.append(TOO_LONG)
        size += len(expanded[-1])
        if size > MOST_OF_ALL:
            break
    return expanded


def _bytes(name: str, value: str) -> bytes:
    try:
        return value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ContainerConfigError(f"variable {name} is not valid UTF-8") from None


def _in_user_namespace(mount: v1.Mount, user_namespace: v1.UserNamespace | None) -> v1.Mount:
    """Map owners: files of the pod's users show these users as owners in the container."""
    if user_namespace is None:
        return mount
    mount.uid_mappings = list(user_namespace.uids)
    mount.gid_mappings = list(user_namespace.gids)
    return mount


def _refuse_impossible_words(config: v1.ContainerConfig) -> None:
    """Refuse words and paths that the kernel, or the way to the runtime, cannot take: said while the field is known.

    The kernel's end with a NUL, so none can contain one, and the runtime takes only UTF-8. Looks at what came out of
    the pod, since a variable can get its value from an annotation or a secret.
    """
    fields = [(f"command[{index}]", word) for index, word in enumerate(config.command)]
    fields += [(f"args[{index}]", word) for index, word in enumerate(config.args)]
    fields.append(("workingDir", config.working_dir))
    fields += [("a variable's name", variable.key) for variable in config.envs]
    for mount in config.mounts:
        fields.append((f"mount path {mount.container_path!r}", mount.container_path))
        fields.append((f"mount of {mount.container_path!r}: host path {mount.host_path!r}", mount.host_path))
        fields.append((f"mount of {mount.container_path!r}: subPath {mount.image_sub_path!r}", mount.image_sub_path))
    for name, value in fields:
        if "\0" in value:
            raise ContainerConfigError(f"{name} contains a NUL character")
        if not _is_text(value):
            raise ContainerConfigError(f"{name} is not valid UTF-8")
    for variable in config.envs:
        if b"\0" in variable.value:
            raise ContainerConfigError(f"variable {variable.key} contains a NUL character")


def what_is_too_long(config: v1.ContainerConfig) -> str:
    """Name what no process can be given; empty if there is nothing. The runtime cannot start such a container, and
    says only that something is too long."""
    sizes = [(f"command[{index}]", len(word.encode()) + 1) for index, word in enumerate(config.command)]
    sizes += [(f"args[{index}]", len(word.encode()) + 1) for index, word in enumerate(config.args)]
    sizes += [(f"variable {one.key}", len(one.key.encode()) + len(one.value) + 2) for one in config.envs]
    for name, size in sizes:
        if size > MOST_OF_ONE:
            return f"{name} is longer than the {MOST_OF_ONE >> 10} KiB that a process can be given"
    if sum(size for _, size in sizes) > _MOST_USUALLY:
        return f"command, args and environment are longer than {_MOST_USUALLY >> 20} MiB together"
    return ""


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stop_signal(name: str) -> v1.Signal:
    """`SIGRTMIN+3` is spelled SIGRTMINPLUS3 in the CRI."""
    try:
        return v1.Signal[name.replace("+", "PLUS").replace("-", "MINUS")]
    except KeyError:
        raise ContainerConfigError(f"lifecycle.stopSignal {name!r} is no signal of Linux") from None
