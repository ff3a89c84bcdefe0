"""The user that a container runs as, and what it may do, in the runtime's terms.

A container's own security context wins over the pod's, field by field. What the pod shares with the node, and which
paths of /proc and /sys are hidden, follows the kubelet (`kuberuntime/security_context.go`, `pkg/securitycontext`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.security_context import apparmor_profile, effective_security_context
from trikubelet.container.errors import ContainerConfigError, SandboxConfigError
from trikubelet.formats.values import frozen
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.hidden_paths import MASKED_PATHS, READONLY_PATHS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trikubelet.api import (
        Container,
        Pod,
        PodSecurityContext,
        SeccompProfile,
        SELinuxOptions,
    )
    from trikubelet.runtime.options import RuntimeOptions

_MAX_UID: Final = 2**31 - 1


@frozen
class ImageUser:
    """The user that an image asks for: a number, else a name, else root."""

    uid: int | None = 0
    name: str = ""


def container_security_context(
    pod: Pod,
    container: Container,
    user: ImageUser,
    options: RuntimeOptions,
    target_id: str = "",
    *,
    userns: v1.UserNamespace | None = None,
    volume_groups: Sequence[int] = (),
) -> v1.LinuxContainerSecurityContext:
    """The security part of a container's configuration. Raises ContainerConfigError or SandboxConfigError.

    `target_id`: the container whose process namespace an ephemeral container joins. `userns`: the pod's, the same as
    its sandbox's (`UserNamespaces.for_pod`). `volume_groups`: those that own the pod's volumes.
    """
    settings = effective_security_context(pod, container)
    context = v1.LinuxContainerSecurityContext(
        privileged=bool(settings.privileged),
        readonly_rootfs=bool(settings.read_only_root_filesystem),
        no_new_privs=settings.allow_privilege_escalation is False,
        namespace_options=namespace_options(pod, userns),
    )
    if settings.capabilities is not None:
        context.capabilities = v1.Capability(
            add_capabilities=list(settings.capabilities.add), drop_capabilities=list(settings.capabilities.drop)
        )
    if settings.se_linux_options is not None:
        context.selinux_options = _selinux(settings.se_linux_options)
    if settings.run_as_group is not None:
        context.run_as_group = v1.Int64Value(value=settings.run_as_group)
    uid = user.uid if settings.run_as_user is None else settings.run_as_user
    if uid is not None:
        context.run_as_user = v1.Int64Value(value=uid)
    if settings.run_as_user is None:
        context.run_as_username = user.name
    if settings.proc_mount != "Unmasked":
        context.masked_paths = [*MASKED_PATHS, *options.machine.masked_paths]
        context.readonly_paths = list(READONLY_PATHS)
    context.seccomp = _seccomp(pod, container, options)
    _set_apparmor(context, pod, container)
    if pod.spec.security_context is not None:
        context.supplemental_groups = supplemental_groups(pod.spec.security_context)
        context.supplemental_groups_policy = _groups_policy(pod.spec.security_context)
    context.supplemental_groups += volume_groups
    if target_id and context.namespace_options.pid == v1.NamespaceMode.CONTAINER:
        context.namespace_options.pid = v1.NamespaceMode.TARGET
        context.namespace_options.target_id = target_id
    return context


def sandbox_security_context(
    pod: Pod, *, userns: v1.UserNamespace | None = None, volume_groups: Sequence[int] = ()
) -> v1.LinuxSandboxSecurityContext:
    """The security part of a sandbox's configuration. Raises SandboxConfigError.

    `userns`: the pod's (`UserNamespaces.for_pod`). `volume_groups`: those that own the pod's volumes.
    """
    context = v1.LinuxSandboxSecurityContext(
        privileged=any_privileged(pod),
        # The sandbox's own process needs nothing that the runtime's default filter forbids.
        seccomp=v1.SecurityProfile(profile_type=v1.SecurityProfileProfileType.RuntimeDefault),
        namespace_options=namespace_options(pod, userns),
    )
    shared = pod.spec.security_context
    if shared is None:
        return context
    if shared.run_as_user is not None:
        context.run_as_user = v1.Int64Value(value=shared.run_as_user)
    if shared.run_as_group is not None:
        context.run_as_group = v1.Int64Value(value=shared.run_as_group)
    if shared.se_linux_options is not None:
        context.selinux_options = _selinux(shared.se_linux_options)
    context.supplemental_groups = supplemental_groups(shared, volume_groups)
    context.supplemental_groups_policy = _groups_policy(shared)
    return context


def namespace_options(pod: Pod, userns: v1.UserNamespace | None = None) -> v1.NamespaceOption:
    """Which namespaces the pod shares with the node, and its containers with each other.

    Raises SandboxConfigError for a pod that asks for users of its own and was given none: it must not run as the
    node's users.
    """
    node, in_pod = v1.NamespaceMode.NODE, v1.NamespaceMode.POD
    if pod.spec.host_users is False and (userns is None or userns.mode != in_pod):
        raise SandboxConfigError(f"pod {pod.full_name} asks for a user namespace (hostUsers: false) and was given none")
    pid = in_pod if pod.spec.share_process_namespace else v1.NamespaceMode.CONTAINER
    return v1.NamespaceOption(
        network=node if pod.spec.host_network else in_pod,
        ipc=node if pod.spec.host_ipc else in_pod,
        pid=node if pod.spec.host_pid else pid,
        userns_options=userns or v1.UserNamespace(mode=node),
    )


def any_privileged(pod: Pod) -> bool:
    containers = (*pod.spec.containers, *pod.spec.init_containers, *pod.spec.ephemeral_containers)
    return any(
        container.security_context is not None and bool(container.security_context.privileged)
        for container in containers
    )


def supplemental_groups(context: PodSecurityContext, volume_groups: Sequence[int] = ()) -> list[int]:
    """fsGroup first, then those of volumes, then the others (a sandbox's order: a container's has volumes' last)."""
    first = [] if context.fs_group is None else [context.fs_group]
    return [*first, *volume_groups, *context.supplemental_groups]


def verify_run_as_non_root(pod: Pod, container: Container, user: ImageUser) -> None:
    """Raises ContainerConfigError when the container must not run as root and would, or might."""
    settings = effective_security_context(pod, container)
    if not settings.run_as_non_root:
        return
    where = f'(pod: "{pod.metadata.name}_{pod.metadata.namespace}({pod.metadata.uid})", container: {container.name})'
    if settings.run_as_user is not None:
        if settings.run_as_user == 0:
            raise ContainerConfigError(f"container's runAsUser breaks non-root policy {where}")
        return
    if user.uid is None:
        if user.name:
            raise ContainerConfigError(
                f"container has runAsNonRoot and image has non-numeric user ({user.name}), "
                f"cannot verify user is non-root {where}"
            )
        return
    if user.uid == 0:
        raise ContainerConfigError(f"container has runAsNonRoot and image will run as root {where}")
    if not 0 <= user.uid <= _MAX_UID:
        raise ContainerConfigError(
            f"container has runAsNonRoot and image has an invalid user id ({user.uid}). "
            f"(Must be 1-({_MAX_UID})) {where}"
        )


def _selinux(options: SELinuxOptions) -> v1.SeLinuxOption:
    return v1.SeLinuxOption(user=options.user, role=options.role, type=options.type, level=options.level)


def _groups_policy(context: PodSecurityContext) -> v1.SupplementalGroupsPolicy:
    match context.supplemental_groups_policy:
        case None | "Merge":
            return v1.SupplementalGroupsPolicy.Merge
        case "Strict":
            return v1.SupplementalGroupsPolicy.Strict
    raise SandboxConfigError(f"unsupported supplementalGroupsPolicy: {context.supplemental_groups_policy}")


def _seccomp(pod: Pod, container: Container, options: RuntimeOptions) -> v1.SecurityProfile:
    for context in (container.security_context, pod.spec.security_context):
        if context is not None and context.seccomp_profile is not None:
            return _seccomp_profile(context.seccomp_profile, options.seccomp_profile_root)
    kinds = v1.SecurityProfileProfileType
    return v1.SecurityProfile(profile_type=kinds.RuntimeDefault if options.seccomp_default else kinds.Unconfined)


def _seccomp_profile(profile: SeccompProfile, root: Path) -> v1.SecurityProfile:
    kinds = v1.SecurityProfileProfileType
    if profile.type == "RuntimeDefault":
        return v1.SecurityProfile(profile_type=kinds.RuntimeDefault)
    if profile.type != "Localhost":
        return v1.SecurityProfile(profile_type=kinds.Unconfined)
    if not profile.localhost_profile:
        raise ContainerConfigError("localhostProfile must be set if seccompProfile type is Localhost.")
    return v1.SecurityProfile(profile_type=kinds.Localhost, localhost_ref=str(root / profile.localhost_profile))


def _set_apparmor(context: v1.LinuxContainerSecurityContext, pod: Pod, container: Container) -> None:
    """Older runtimes read only the deprecated text field, so both are set."""
    profile = apparmor_profile(pod, container)
    if profile is None:
        return
    kinds = v1.SecurityProfileProfileType
    match profile.type:
        case "RuntimeDefault":
            context.apparmor = v1.SecurityProfile(profile_type=kinds.RuntimeDefault)
            context.apparmor_profile = "runtime/default"
        case "Unconfined":
            context.apparmor = v1.SecurityProfile(profile_type=kinds.Unconfined)
            context.apparmor_profile = "unconfined"
        case "Localhost":
            if profile.localhost_profile is None:
                raise ContainerConfigError("missing localhost apparmor profile name")
            context.apparmor = v1.SecurityProfile(profile_type=kinds.Localhost, localhost_ref=profile.localhost_profile)
            context.apparmor_profile = f"localhost/{profile.localhost_profile}"
        case _:
            raise ContainerConfigError(f'unknown apparmor profile type: "{profile.type}"')
