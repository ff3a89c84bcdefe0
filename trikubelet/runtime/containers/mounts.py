"""The mounts and devices of a container: its volumes, image volumes, block devices, and files of the agent."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final, Protocol

from trikubelet.container.errors import ContainerConfigError
from trikubelet.container.expansion import ExpansionError, expand_strictly
from trikubelet.rpc.cri import v1
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trikubelet.api import Container, Pod, VolumeMount
    from trikubelet.volumes.model import MountedVolume

log = get_logger("runtime")

ETC_HOSTS: Final = "/etc/hosts"


class PodMounts(Protocol):
    """Where the volumes of pods are on this machine."""

    def mounted(self, pod: Pod, volume_name: str) -> MountedVolume | None:
        """None when the pod has no such volume or it is not there."""
        ...

    def host_path(self, pod: Pod, volume_name: str) -> Path | None:
        """The path of `mounted`."""
        ...

    async def bind_subpath(self, pod: Pod, container: str, index: int, volume_name: str, sub_path: str) -> Path:
        """What a container gets for its volume mount number `index`: something in the volume, made when it is missing,
        by a path that cannot lead out of it. Raises OSError or ValueError."""
        ...

    def supplemental_groups(self, pod: Pod) -> tuple[int, ...]:
        """Groups that the pod's volumes want its containers in."""
        ...


def container_devices(pod: Pod, container: Container, mounts: PodMounts) -> list[v1.Device]:
    """The messages for a container's volumeDevices (kubelet: `makeBlockVolumes`). Raises ContainerConfigError."""
    made = []
    for wanted in container.volume_devices:
        if not wanted.device_path.startswith("/"):
            raise ContainerConfigError(f"error DevicePath `{wanted.device_path}` must be an absolute path")
        volume = mounts.mounted(pod, wanted.name)
        if volume is None or volume.device is None:
            raise ContainerConfigError(f'cannot find volume "{wanted.name}" to pass into container "{container.name}"')
        permissions = "r" if volume.read_only else "mrw"
        made.append(v1.Device(container_path=wanted.device_path, host_path=volume.device, permissions=permissions))
    return made


async def container_mounts(
    pod: Pod,
    container: Container,
    environment: Mapping[str, str],
    mounts: PodMounts,
    *,
    image_volumes: Mapping[str, v1.ImageSpec] = {},
    recursive_read_only: bool = False,
    selinux: bool = False,
) -> list[v1.Mount]:
    """The messages for a container's volumeMounts, in their order (kubelet: `makeMounts`).

    `image_volumes`: the volumes that are images, which the runtime mounts. `recursive_read_only`: whether the runtime
    can mount a volume read-only with everything that is mounted in it. `selinux`: whether the machine has it on. Raises
    ContainerConfigError.
    """
    made = []
    for index, mount in enumerate(container.volume_mounts):
        sub_path = sub_path_of(mount, environment)
        message = volume_mount(mount, recursive_read_only=recursive_read_only)
        if mount.name in image_volumes:
            message.image, message.image_sub_path = image_volumes[mount.name], sub_path
            message.readonly = True
        else:
            volume = mounts.mounted(pod, mount.name)
            if volume is None or volume.path is None:
                raise ContainerConfigError(
                    f'cannot find volume "{mount.name}" to mount into container "{container.name}"'
                )
            message.readonly = mount.read_only or volume.read_only
            source = await _bound(pod, container, index, sub_path, mounts) if sub_path else volume.path
            message.host_path = str(source)
            message.selinux_relabel = selinux and volume.relabel
        made.append(message)
    return made


def volume_mount(mount: VolumeMount, *, recursive_read_only: bool = False) -> v1.Mount:
    """The message for one mount of a volume, but for what is mounted. Raises ContainerConfigError."""
    return v1.Mount(
        container_path=absolute(mount.mount_path),
        readonly=mount.read_only,
        propagation=_propagation(mount),
        recursive_read_only=_recursive_read_only(mount, supported=recursive_read_only),
    )


def sub_path_of(mount: VolumeMount, environment: Mapping[str, str]) -> str:
    """The part of the volume that is mounted, empty for all of it. Raises ContainerConfigError."""
    sub_path = mount.sub_path
    if mount.sub_path_expr:
        try:
            sub_path = expand_strictly(mount.sub_path_expr, environment)
        except KeyError as error:
            raise ContainerConfigError(f"missing value for {error.args[0]}") from None
        except ExpansionError as error:
            raise ContainerConfigError(f"subPathExpr: {error}") from None
    if sub_path.startswith("/"):
        raise ContainerConfigError(f"error SubPath `{sub_path}` must not be an absolute path")
    if ".." in sub_path.split("/"):
        raise ContainerConfigError(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
    return sub_path


def hosts_file_mount(host_path: Path, *, selinux: bool = False) -> v1.Mount:
    return v1.Mount(container_path=ETC_HOSTS, host_path=str(host_path), selinux_relabel=selinux)


def termination_file_mount(container: Container, host_path: Path, *, selinux: bool = False) -> v1.Mount:
    path = termination_path(container.termination_message_path)
    return v1.Mount(container_path=path, host_path=str(host_path), selinux_relabel=selinux)


def termination_path(path: str) -> str:
    """Where a container writes its last message. Without `//` and `..` (kubelet: `MakeAbsolutePath`)."""
    return absolute(path.lstrip("/"))


def absolute(path: str) -> str:
    """A path in a container: one that is not absolute begins at the container's root."""
    return path if path.startswith("/") else posixpath.normpath(f"/{path}")


def wants_hosts_file(pod: Pod, container: Container, pod_ips: Sequence[str]) -> bool:
    """Whether the agent provides /etc/hosts (kubelet: `shouldMountHostsFile`)."""
    if any(mount.mount_path == ETC_HOSTS for mount in container.volume_mounts):
        return False
    return pod.spec.host_network or bool(pod_ips)


async def _bound(pod: Pod, container: Container, index: int, sub_path: str, mounts: PodMounts) -> Path:
    name = container.volume_mounts[index].name
    try:
        return await mounts.bind_subpath(pod, container.name, index, name, sub_path)
    except (OSError, ValueError) as error:
        # The details are about the node's files, which are not the pod's to know.
        log.warning("subPath is not usable", pod=pod.full_name, volume=name, problem=str(error))
        raise ContainerConfigError(
            f'failed to prepare subPath for volumeMount "{name}" of container "{container.name}"'
        ) from error


def _recursive_read_only(mount: VolumeMount, *, supported: bool) -> bool:
    """Kubelet: `resolveRecursiveReadOnly` (KEP-3857)."""
    mode = mount.recursive_read_only
    if mode in (None, "Disabled"):
        return False
    problem = ""
    asked = f'volume "{mount.name}" requested recursive read-only mode, but it is not'
    if not mount.read_only:
        problem = f"{asked} read-only"
    elif mount.mount_propagation not in (None, "None"):
        problem = f'{asked} compatible with propagation "{mount.mount_propagation}"'
    elif mode not in ("IfPossible", "Enabled"):
        problem = f'unknown recursive read-only mode "{mode}"'
    elif mode == "Enabled" and not supported:
        problem = f"{asked} supported by the runtime"
    if problem:
        raise ContainerConfigError(f"failed to resolve recursive read-only mode: {problem}")
    return supported


def _propagation(mount: VolumeMount) -> v1.MountPropagation:
    match mount.mount_propagation:
        case None | "None":
            return v1.MountPropagation.PROPAGATION_PRIVATE
        case "HostToContainer":
            return v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER
        case "Bidirectional":
            return v1.MountPropagation.PROPAGATION_BIDIRECTIONAL
    raise ContainerConfigError(f'invalid MountPropagation mode: "{mount.mount_propagation}"')
