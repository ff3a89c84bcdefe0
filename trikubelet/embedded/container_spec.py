"""From a CRI container configuration to the plain specification that the keeper carries out.

Pure but for what is looked up on the host: device nodes that are asked for (`host_devices.py`), profiles
(`confinement.py`), and folders of images that are to be mounted. The result is JSON and lies in the container's record,
so that it starts after a restart of the agent as it would have before.

    container, sandbox, directory, runtime_root, log_path
    hidden: what a container of the host image does not see, besides runtime_root; earlier releases have none
    argv, env, cwd, tty, stdin
    rootfs: layers (lowest first), overlay, readonly, host
    mounts: source, target, readonly, recursive_readonly, propagation (private, rslave, rshared, or image: then also
            image (its id), layers, sub_path)
    volumes: paths that the image declares as volumes and the pod mounts nothing at; earlier releases have none
    devices: path, kind (c, b), major, minor, mode, rule
    user: uid, gid (or null), name, groups, strict      bounding, ambient: capability masks
    privileged, no_new_privs, masked_paths, readonly_paths, oom_score_adj
    apparmor: a profile's name, or null
    selinux: labels of process (empty: the keeper's) and files; or null. mounts have relabel, if their files get that
    seccomp: program (base64), flags; or null       write_only_below: paths, or null; only for plain processes
    pid_namespace (container, pod, node, target), pid_target, cgroup_namespace, cgroup_parent, resources
"""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import betterproto

from trikubelet.embedded.confinement import ConfinementError, apparmor_profile, seccomp_filter, selinux_labels
from trikubelet.embedded.host_devices import all_host_devices, host_device
from trikubelet.embedded.images.lower import LowerLayers
from trikubelet.embedded.keeper import capabilities
from trikubelet.embedded.keeper_client import KeeperAbilities
from trikubelet.formats.values import frozen
from trikubelet.rpc.cri import v1
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.embedded.images.model import StoredImage

log = get_logger("embedded")

# Files that the kubelet mounts into every container; a plain process lives with the host's.
_OPTIONAL_WHEN_PLAIN: Final = frozenset(
    {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log", "/dev/shm"}
)
_RUNTIMES_OWN: Final = frozenset({"/dev", "/dev/shm", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"})
_PROPAGATION: Final = {
    v1.MountPropagation.PROPAGATION_PRIVATE: "private",
    v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER: "rslave",
    v1.MountPropagation.PROPAGATION_BIDIRECTIONAL: "rshared",
}
_PID_NAMESPACES: Final = {
    v1.NamespaceMode.POD: "pod",
    v1.NamespaceMode.CONTAINER: "container",
    v1.NamespaceMode.NODE: "node",
    v1.NamespaceMode.TARGET: "target",
}
_SIGNAL_NUMBER: Final = re.compile(r"SIGRT(MIN|MAX)(?:(?:PLUS|\+|MINUS|-)(\d+))?$")


class SpecError(Exception):
    """A configuration that this runtime cannot carry out here. The text says what, and what to do."""


@frozen
class SpecContext:
    """What a specification depends on besides the container's own configuration."""

    container_id: str
    directory: Path
    runtime_root: Path
    hidden: Sequence[Path]
    sandbox_id: str
    sandbox_folder: Path
    sandbox: v1.PodSandboxConfig
    hostname: str
    abilities: KeeperAbilities
    selinux_level: str = ""
    """The pod's; empty where there are none."""


def container_spec(
    context: SpecContext,
    config: v1.ContainerConfig,
    image: StoredImage,
    image_volumes: Mapping[str, StoredImage] | None = None,
) -> dict[str, Any]:
    """The specification of one container. `image_volumes`: what its mounts' images mean. Raises SpecError."""
    security = config.linux.security_context
    abilities = context.abilities
    _refuse_unsupported(config, image, abilities)
    privileged = security.privileged
    spec: dict[str, Any] = {
        "container": context.container_id,
        "sandbox": context.sandbox_id,
        "directory": str(context.directory),
        "runtime_root": str(context.runtime_root),
        "hidden": [str(path) for path in context.hidden],
        "log_path": _log_path(context.sandbox, config),
        "argv": _argv(config, image),
        "env": _environment(config, image, context.hostname),
        "cwd": config.working_dir or image.config.working_dir or "/",
        "tty": config.tty,
        "stdin": config.stdin,
        "rootfs": {
            "layers": [str(layer) for layer in image.layers],
            "overlay": abilities.overlay,
            "readonly": security.readonly_rootfs,
            "host": image.is_host,
        },
        "mounts": _mounts(context, config, image, image_volumes or {}),
        "volumes": _declared_volumes(config, image) if abilities.isolated else [],
        "devices": _devices(config, privileged=privileged, abilities=abilities),
        "user": _user(security, image),
        "privileged": privileged,
        "no_new_privs": security.no_new_privs,
        "write_only_below": _writable_places(config) if security.readonly_rootfs and not abilities.isolated else None,
        "masked_paths": [] if privileged else list(security.masked_paths),
        "readonly_paths": [] if privileged else list(security.readonly_paths),
        "oom_score_adj": config.linux.resources.oom_score_adj,  # said even of 0: the keeper has the agent's
        "pid_namespace": _PID_NAMESPACES[security.namespace_options.pid],
        "pid_target": security.namespace_options.target_id,
        "cgroup_namespace": abilities.isolated and abilities.cgroup_v2 and not abilities.cgroup_v1 and not privileged,
        "cgroup_parent": context.sandbox.linux.cgroup_parent,
        "resources": resources_to_json(config.linux.resources),
    }
    try:
        wanted = security.capabilities
        spec["ambient"] = capabilities.mask(wanted.add_ambient_capabilities)
        bounding = capabilities.bounding_set(
            [*wanted.add_capabilities, *wanted.add_ambient_capabilities],
            wanted.drop_capabilities,
            privileged=privileged,
            devices_confined=abilities.devices_confined,
        )
        if spec["ambient"] & ~bounding:
            raise SpecError("capabilities: what is to be ambient cannot be dropped")
        spec["bounding"] = bounding
        of_pod = context.sandbox.linux.security_context.selinux_options
        spec["selinux"] = selinux_labels(security, of_pod, context.selinux_level, abilities)
        spec["apparmor"] = apparmor_profile(security)
        if spec["apparmor"] and not abilities.apparmor:
            raise SpecError("AppArmor: the process that keeps the containers was started by an older version")
        spec["seccomp"] = seccomp_filter(security, bounding, abilities)
    except (capabilities.UnknownCapabilityError, ConfinementError) as error:
        raise SpecError(str(error)) from None
    return spec


def resources_to_json(resources: v1.LinuxContainerResources) -> dict[str, Any]:
    """The limits that are set, by their CRI names."""
    names = (
        "cpu_period",
        "cpu_quota",
        "cpu_shares",
        "memory_limit_in_bytes",
        "memory_swap_limit_in_bytes",
        "cpuset_cpus",
        "cpuset_mems",
    )
    values = {name: getattr(resources, name) for name in names if getattr(resources, name)}
    if resources.hugepage_limits:
        values["hugepage_limits"] = {one.page_size: one.limit for one in resources.hugepage_limits}
    if resources.unified:
        values["unified"] = dict(resources.unified)
    return values


def changed_limits(before: Mapping[str, Any], changes: v1.LinuxContainerResources) -> dict[str, Any]:
    """What `changes` sets, each together with what it means nothing without: kernels take a quota with its period, and
    swap is what memory with swap leaves beyond memory."""
    limits = resources_to_json(changes)
    for pair in (("cpu_period", "cpu_quota"), ("memory_limit_in_bytes", "memory_swap_limit_in_bytes")):
        if limits.keys() & set(pair):
            limits.update({name: before[name] for name in pair if name in before and name not in limits})
    return limits


def stop_signal(config: v1.ContainerConfig, image: StoredImage) -> int:
    """The number of the signal that asks the container to end: its own, its image's, or SIGTERM."""
    if config.stop_signal != v1.Signal.RUNTIME_DEFAULT:
        name = v1.Signal(config.stop_signal).name or ""
        return signal_number(name)
    return signal_number(image.config.stop_signal) if image.config.stop_signal else int(signal.SIGTERM)


def signal_number(text: str) -> int:
    """`SIGTERM`, `term`, `15`, `SIGRTMIN+3` or CRI's `SIGRTMINPLUS3`. Raises SpecError."""
    if text.isascii() and text.isdigit() and 0 < int(text) <= signal.SIGRTMAX:
        return int(text)
    name = text.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    realtime = _SIGNAL_NUMBER.match(name)
    if realtime:
        offset = int(realtime[2] or 0)
        number = signal.SIGRTMIN + offset if realtime[1] == "MIN" else signal.SIGRTMAX - offset
        if signal.SIGRTMIN <= number <= signal.SIGRTMAX:
            return int(number)
    elif name in signal.Signals.__members__:
        return int(signal.Signals[name])
    raise SpecError(f"unknown stop signal {text!r}: expected a name like SIGTERM or a number up to {signal.SIGRTMAX}")


def _refuse_unsupported(config: v1.ContainerConfig, image: StoredImage, abilities: KeeperAbilities) -> None:
    if not abilities.isolated:
        if not image.is_host:
            raise SpecError(
                f"image {image.name}: this machine lets the runtime make no namespaces, so only localhost/host runs; "
                f"run the agent as root, allow user namespaces, or use containerd ({'; '.join(abilities.problems)})"
            )
        if config.linux.security_context.readonly_rootfs and not abilities.landlock:
            raise SpecError(
                "readOnlyRootFilesystem: containers are plain processes here, and this kernel has no Landlock that "
                "would keep them from writing; run the agent as root, or allow user namespaces"
            )
        if config.tty:
            raise SpecError("tty: not available where the runtime can make no namespaces")
    elif not abilities.overlay and len(image.layers) > 1:
        raise SpecError(f"image {image.name} has several layers, and overlayfs does not work in the runtime's folder")


def _present(message: Any) -> bool:
    return betterproto.serialized_on_wire(message)


def _argv(config: v1.ContainerConfig, image: StoredImage) -> list[str]:
    """A container's command replaces the image's entrypoint and its arguments; arguments alone replace only those."""
    if config.command:
        return [*config.command, *config.args]
    argv = [*image.config.entrypoint, *(config.args or image.config.cmd)]
    if not argv:
        raise SpecError(f"no command specified: neither the container nor image {image.name} has one")
    return argv


def _environment(config: v1.ContainerConfig, image: StoredImage, hostname: str) -> list[str]:
    values: dict[str, str] = {}
    for assignment in image.config.env:
        name, equals, value = assignment.partition("=")
        if equals:  # a name alone is no variable, as in containerd
            values[name] = value
    values["HOSTNAME"] = hostname
    if config.tty:
        values["TERM"] = "xterm"
    for variable in config.envs:
        values[variable.key] = variable.value.decode("utf-8", "surrogateescape")
    for name, value in values.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise SpecError(
                f"environment variable {name!r}: a name must not be empty or hold '=', nothing may hold NUL"
            )
    return [f"{name}={value}" for name, value in values.items()]


def _log_path(sandbox: v1.PodSandboxConfig, config: v1.ContainerConfig) -> str:
    if not config.log_path or not sandbox.log_directory:
        return ""
    return str(Path(sandbox.log_directory) / config.log_path)


def _user(security: v1.LinuxContainerSecurityContext, image: StoredImage) -> dict[str, Any]:
    uid = security.run_as_user.value if _present(security.run_as_user) else None
    gid = security.run_as_group.value if _present(security.run_as_group) else None
    if gid is not None and uid is None and not security.run_as_username:
        raise SpecError("run_as_group needs run_as_user or run_as_username")
    name = security.run_as_username or image.config.user
    return {
        "uid": uid,
        "gid": gid,
        "name": name,
        "groups": list(security.supplemental_groups),
        "strict": security.supplemental_groups_policy == v1.SupplementalGroupsPolicy.Strict,
    }


def _mounts(
    context: SpecContext, config: v1.ContainerConfig, image: StoredImage, image_volumes: Mapping[str, StoredImage]
) -> list[dict[str, Any]]:
    mounts = [_image_mount(mount, image_volumes) if mount.image.image else _mount(mount) for mount in config.mounts]
    if not context.abilities.isolated:
        _refuse_mounts(config)
        return []
    taken = {mount["target"].rstrip("/") for mount in mounts}
    own_names = context.sandbox.dns_config.servers or not image.is_host
    files = ["hostname", *(["resolv.conf"] if own_names else []), *([] if image.is_host else ["hosts"])]
    for name in files:
        source = context.sandbox_folder / name
        if f"/etc/{name}" not in taken and source.exists():
            mounts.append(
                {
                    "source": str(source),
                    "target": f"/etc/{name}",
                    "readonly": config.linux.security_context.readonly_rootfs,
                    "recursive_readonly": False,
                    "propagation": "private",
                    "relabel": True,
                }
            )
    return mounts


def _declared_volumes(config: v1.ContainerConfig, image: StoredImage) -> list[str]:
    """As containerd's CRI has them, but for those in place of what the runtime itself mounts."""
    taken = {posixpath.normpath(mount.container_path) for mount in config.mounts} | _RUNTIMES_OWN
    paths = {posixpath.normpath("/" + path.lstrip("/")) for path in image.config.volumes}
    if impossible := paths & {"/", "/proc"}:
        raise SpecError(
            f"image {image.name} declares the volume {min(impossible)}: expected one below it; "
            "change VOLUME in the image's Dockerfile"
        )
    return sorted(paths - taken)


def _mount(mount: v1.Mount) -> dict[str, Any]:
    if not mount.container_path.startswith("/") or not mount.host_path.startswith("/"):
        raise SpecError(
            f"mount: expected absolute paths, got {mount.host_path!r} on the host, {mount.container_path!r} inside"
        )
    if mount.recursive_read_only and not mount.readonly:
        raise SpecError(f"mount {mount.container_path}: a recursive read-only mount must be read-only itself")
    if mount.recursive_read_only and mount.propagation != v1.MountPropagation.PROPAGATION_PRIVATE:
        raise SpecError(
            f"mount {mount.container_path}: a recursive read-only mount needs private propagation, "
            f"got {_PROPAGATION[mount.propagation]}"
        )
    return {
        "source": mount.host_path,
        "target": mount.container_path,
        "readonly": mount.readonly,
        "recursive_readonly": mount.recursive_read_only,
        "propagation": _PROPAGATION[mount.propagation],
        "relabel": mount.selinux_relabel,
    }


def _image_mount(mount: v1.Mount, images: Mapping[str, StoredImage]) -> dict[str, Any]:
    """An image as a read-only volume, by containerd's rules."""
    image = images.get(mount.image.image)
    failed = f"ImageVolumeMountFailed: mount {mount.container_path}: image {mount.image.image}"
    if image is None:
        raise SpecError(f"{failed}: not found")
    if image.is_host:
        raise SpecError(f"{failed}: the machine's own files are no volume; use a hostPath")
    if mount.host_path or not mount.readonly or not mount.container_path.startswith("/"):
        raise SpecError(f"{failed}: expected no host path, an absolute path inside, and readonly")
    if mount.image_sub_path.startswith("/") or ".." in mount.image_sub_path.split("/"):
        raise SpecError(f"{failed}: expected a path within the image, got {mount.image_sub_path!r}")
    if not LowerLayers([str(layer) for layer in image.layers]).has_folder(mount.image_sub_path):
        raise SpecError(f"{failed}: it has no folder {mount.image_sub_path!r}")
    return {
        "source": str(image.layers[-1]),
        "target": mount.container_path,
        "readonly": True,
        "recursive_readonly": False,
        "propagation": "image",
        "image": image.id,
        "layers": [str(layer) for layer in image.layers],
        "sub_path": mount.image_sub_path,
    }


def _refuse_mounts(config: v1.ContainerConfig) -> None:
    """A plain process sees the host's files where they are; it can do without some of the kubelet's own mounts."""
    for mount in config.mounts:
        if _is_in_place(mount):
            if mount.readonly and not config.linux.security_context.readonly_rootfs:
                log.warning(
                    "a plain process may write to its read-only mount, unless its root is read-only too",
                    container=config.metadata.name,
                    path=mount.container_path,
                )
        elif mount.container_path.rstrip("/") not in _OPTIONAL_WHEN_PLAIN:
            raise SpecError(
                f"cannot mount {mount.host_path or mount.image.image} at {mount.container_path}: "
                "this machine lets the runtime make no namespaces; run the agent as root, "
                "allow user namespaces, or use containerd"
            )


def _writable_places(config: v1.ContainerConfig) -> list[str]:
    """Where a plain process with a read-only root may write: as in a container, and in its writable mounts."""
    own = [mount.container_path for mount in config.mounts if not mount.readonly and _is_in_place(mount)]
    return ["/dev", "/proc", *own]


def _is_in_place(mount: v1.Mount) -> bool:
    return mount.container_path.rstrip("/") == mount.host_path.rstrip("/")


def _devices(config: v1.ContainerConfig, *, privileged: bool, abilities: KeeperAbilities) -> list[dict[str, Any]]:
    if not abilities.isolated or (not config.devices and not privileged):
        return []
    if abilities.mode == "user-namespace":
        if config.devices:
            raise SpecError("devices: device nodes need a runtime that runs as root")
        return []
    found = list(all_host_devices()) if privileged else []
    for device in config.devices:
        try:
            found.append(host_device(device.host_path, device.container_path, device.permissions or "rwm"))
        except FileNotFoundError:
            raise SpecError(f"device {device.host_path}: expected a device of this machine, there is none") from None
        except (OSError, ValueError) as error:
            raise SpecError(f"device {device.host_path}: {getattr(error, 'strerror', None) or error}") from None
    return found
