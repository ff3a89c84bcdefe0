"""The configuration that a container is created with: from its spec and what was prepared for it, to the CRI's message.

Pure. Whoever calls has done the work that touches the machine: the image is there and its user known, volumes have
their paths, the hosts and termination files exist, the environment is resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from trikubelet.cri import v1
from trikubelet.runtime.errors import ContainerConfigError
from trikubelet.runtime.expansion import expand_known, expand_strictly
from trikubelet.runtime.labels import container_annotations, container_labels
from trikubelet.runtime.log_paths import container_log_path
from trikubelet.runtime.resources import container_resources
from trikubelet.runtime.security import ImageUser, container_security_context, verify_run_as_non_root

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import Container, Pod, Volume, VolumeMount
    from trikubelet.runtime.options import RuntimeOptions

ETC_HOSTS: Final = "/etc/hosts"


class PodMounts(Protocol):
    """Where the volumes of pods are on this machine."""

    def host_path(self, pod: Pod, volume_name: str) -> Path | None:
        """The prepared volume's path; None when the pod has no such volume or it is not ready."""
        ...

    def resolve_subpath(self, volume: Path, sub_path: str) -> Path:
        """A path in a volume, made when it is missing, that cannot lead out of it. Raises OSError or ValueError."""
        ...


@attrs.frozen
class ContainerInputs:
    """What a container's configuration needs beyond the pod's spec."""

    restart_count: int
    image_ref: str
    """What the runtime calls the image: its id, or what the pull returned."""
    image_user: ImageUser
    environment: Mapping[str, str]
    mounts: Sequence[v1.Mount] = ()
    target_id: str = ""
    """For an ephemeral container: the container whose processes it sees."""


def container_config(
    pod: Pod, container: Container, inputs: ContainerInputs, options: RuntimeOptions
) -> v1.ContainerConfig:
    """Build the message for CreateContainer (kubelet: `generateContainerConfig`). Raises ContainerConfigError."""
    verify_run_as_non_root(pod, container, inputs.image_user)
    config = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name=container.name, attempt=inputs.restart_count),
        image=v1.ImageSpec(image=inputs.image_ref, user_specified_image=container.image),
        command=[expand_known(word, inputs.environment) for word in container.command],
        args=[expand_known(word, inputs.environment) for word in container.args],
        working_dir=container.working_dir,
        envs=[v1.KeyValue(key=name, value=value.encode()) for name, value in inputs.environment.items()],
        mounts=list(inputs.mounts),
        labels=container_labels(container, pod),
        annotations=container_annotations(container, pod, inputs.restart_count),
        log_path=container_log_path(container.name, inputs.restart_count),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        linux=v1.LinuxContainerConfig(
            resources=container_resources(pod, container, options),
            security_context=container_security_context(pod, container, inputs.image_user, options, inputs.target_id),
        ),
    )
    _refuse_nul(config)
    if container.lifecycle is not None and container.lifecycle.stop_signal is not None:
        config.stop_signal = _stop_signal(container.lifecycle.stop_signal)
    return config


def sub_path_of(mount: VolumeMount, environment: Mapping[str, str]) -> str:
    """The part of the volume that is mounted, empty for all of it. Raises ContainerConfigError."""
    sub_path = mount.sub_path
    if mount.sub_path_expr:
        try:
            sub_path = expand_strictly(mount.sub_path_expr, environment)
        except KeyError as error:
            raise ContainerConfigError(f"missing value for {error.args[0]}") from None
    if sub_path.startswith("/"):
        raise ContainerConfigError(f"error SubPath `{sub_path}` must not be an absolute path")
    if ".." in sub_path.split("/"):
        raise ContainerConfigError(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
    return sub_path


def volume_mount(pod: Pod, mount: VolumeMount, host_path: Path) -> v1.Mount:
    """The message for one mount of a volume. Raises ContainerConfigError."""
    path = mount.mount_path if mount.mount_path.startswith("/") else f"/{mount.mount_path}"
    volume = next((volume for volume in pod.spec.volumes if volume.name == mount.name), None)
    if mount.recursive_read_only == "Enabled":
        raise ContainerConfigError(
            f'volume "{mount.name}" requested recursive read-only mode, but it is not supported by the runtime'
        )
    return v1.Mount(
        container_path=path,
        host_path=str(host_path),
        readonly=mount.read_only or (volume is not None and _always_read_only(volume)),
        propagation=_propagation(mount),
    )


def hosts_file_mount(host_path: Path) -> v1.Mount:
    return v1.Mount(container_path=ETC_HOSTS, host_path=str(host_path), selinux_relabel=True)


def termination_file_mount(container: Container, host_path: Path) -> v1.Mount:
    return v1.Mount(container_path=container.termination_message_path, host_path=str(host_path))


def wants_hosts_file(pod: Pod, container: Container, pod_ips: Sequence[str]) -> bool:
    """Whether the agent provides /etc/hosts (kubelet: `shouldMountHostsFile`)."""
    if any(mount.mount_path == ETC_HOSTS for mount in container.volume_mounts):
        return False
    return pod.spec.host_network or bool(pod_ips)


def _refuse_nul(config: v1.ContainerConfig) -> None:
    """The kernel takes words and paths that end with a NUL: none can contain one. Said here, while the field is known.

    Looks at what came out of the pod, since a variable can get its value from an annotation.
    """
    fields = [(f"command[{index}]", word) for index, word in enumerate(config.command)]
    fields += [(f"args[{index}]", word) for index, word in enumerate(config.args)]
    fields.append(("workingDir", config.working_dir))
    for variable in config.envs:
        fields += [("a variable's name", variable.key), (f"variable {variable.key}", variable.value.decode())]
    for mount in config.mounts:
        fields.append((f"mount path {mount.container_path!r}", mount.container_path))
        fields.append((f"mount of {mount.container_path!r}: host path {mount.host_path!r}", mount.host_path))
    for name, value in fields:
        if "\0" in value:
            raise ContainerConfigError(f"{name} contains a NUL character")


def _always_read_only(volume: Volume) -> bool:
    sources = (volume.config_map, volume.secret, volume.downward_api, volume.projected)
    return any(source is not None for source in sources)


def _propagation(mount: VolumeMount) -> v1.MountPropagation:
    match mount.mount_propagation:
        case None | "None":
            return v1.MountPropagation.PROPAGATION_PRIVATE
        case "HostToContainer":
            return v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER
        case "Bidirectional":
            return v1.MountPropagation.PROPAGATION_BIDIRECTIONAL
    raise ContainerConfigError(f'invalid MountPropagation mode: "{mount.mount_propagation}"')


def _stop_signal(name: str) -> v1.Signal:
    """`SIGRTMIN+3` is spelled SIGRTMINPLUS3 in the CRI."""
    try:
        return v1.Signal[name.replace("+", "PLUS").replace("-", "MINUS")]
    except KeyError:
        raise ContainerConfigError(f"lifecycle.stopSignal {name!r} is no signal of Linux") from None
