"""The configuration that a container is created with: from its spec and what was prepared for it, to the CRI's message.

Pure. Whoever calls has done the work that touches the machine: the image is there and its user known, volumes have
their paths, the hosts and termination files exist, the environment is resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from trikubelet.container.errors import ContainerConfigError
from trikubelet.container.expansion import expand_known
from trikubelet.container.labels import container_annotations, container_labels
from trikubelet.rpc.cri import v1
from trikubelet.runtime.containers.resources import container_resources
from trikubelet.runtime.containers.security import ImageUser, container_security_context, verify_run_as_non_root
from trikubelet.runtime.logs.paths import container_log_path

if TYPE_CHECKING:
    from trikubelet.api import Container, Pod
    from trikubelet.runtime.options import RuntimeOptions


@attrs.frozen
class ContainerExtras:
    """What the node adds to a container for devices that it was given. What the pod says wins over it."""

    devices: Sequence[v1.Device] = ()
    cdi_devices: Sequence[str] = ()
    """`vendor/class=device`."""
    mounts: Sequence[v1.Mount] = ()
    environment: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class ContainerInputs:
    """What a container's configuration needs beyond the pod's spec."""

    restart_count: int
    image_ref: str
    """What the runtime calls the image: its id, or what the pull returned."""
    image_user: ImageUser
    environment: Mapping[str, str]
    """That of `extras` included. Bytes that are not UTF-8 are surrogates in it."""
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
    config = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name=container.name, attempt=inputs.restart_count),
        image=v1.ImageSpec(image=inputs.image_ref, user_specified_image=container.image),
        command=[expand_known(word, environment) for word in container.command],
        args=[expand_known(word, environment) for word in container.args],
        working_dir=container.working_dir,
        envs=[v1.KeyValue(key=name, value=_bytes(name, value)) for name, value in environment.items()],
        mounts=[_in_user_namespace(mount, inputs.user_namespace) for mount in (*extras.mounts, *inputs.mounts)],
        devices=[*extras.devices, *inputs.devices],
        cdi_devices=[v1.CdiDevice(name=name) for name in extras.cdi_devices],
        labels=container_labels(container, pod),
        annotations={**extras.annotations, **container_annotations(container, pod, inputs.restart_count)},
        log_path=container_log_path(container.name, inputs.restart_count),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        linux=v1.LinuxContainerConfig(
            resources=container_resources(pod, container, options),
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


def _bytes(name: str, value: str) -> bytes:
    try:
        return value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ContainerConfigError(f"variable {name} is not valid UTF-8") from None


def _in_user_namespace(mount: v1.Mount, user_namespace: v1.UserNamespace | None) -> v1.Mount:
    """Files of the pod's users have them as owners in the container, whoever these are on the node."""
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
