"""Checks of security contexts, pod's and containers'."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trikubelet.api.name_formats import user_or_group_id
from trikubelet.api.paths import check_descending_path

if TYPE_CHECKING:
    from trikubelet.api.field_errors import Place
    from trikubelet.api.pod_spec import PodSpec
    from trikubelet.api.security import (
        AppArmorProfile,
        PodSecurityContext,
        SeccompProfile,
        SecurityContext,
        Sysctl,
    )

_PROFILE_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_SYSCTL_SEGMENT: Final = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL: Final = rf"({_SYSCTL_SEGMENT}[\./])*{_SYSCTL_SEGMENT}"
_SYSCTL_MAX_LENGTH: Final = 253
_MAX_PROFILE_PATH: Final = 4095


def validate_pod_security(context: PodSecurityContext, spec: PodSpec, place: Place) -> None:
    for name, number in (
        ("fsGroup", context.fs_group),
        ("runAsUser", context.run_as_user),
        ("runAsGroup", context.run_as_group),
    ):
        if number is not None:
            place.at(name).invalid(number, *user_or_group_id(number))
    for index, group in enumerate(context.supplemental_groups):
        place.at("supplementalGroups").index(index).invalid(group, *user_or_group_id(group))
    if spec.share_process_namespace and spec.host_pid:
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        place.at("shareProcessNamespace").invalid(True, detail)
    _validate_sysctls(context.sysctls, spec, place.at("sysctls"))
    for name, value, supported in (
        ("fsGroupChangePolicy", context.fs_group_change_policy, ("Always", "OnRootMismatch")),
        ("supplementalGroupsPolicy", context.supplemental_groups_policy, ("Merge", "Strict")),
        ("seLinuxChangePolicy", context.se_linux_change_policy, ("MountOption", "Recursive")),
    ):
        if value is not None and value not in supported:
            place.at(name).unsupported(value, supported)
    _validate_seccomp(context.seccomp_profile, place.at("seccompProfile"))
    _validate_app_armor(context.app_armor_profile, place.at("appArmorProfile"))


def validate_container_security(context: SecurityContext | None, host_users: bool, place: Place) -> None:
    if context is None:
        return
    for name, number in (("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)):
        if number is not None:
            place.at(name).invalid(number, *user_or_group_id(number))
    if context.proc_mount is not None:
        mount = place.at("procMount")
        if context.proc_mount not in ("Default", "Unmasked"):
            mount.unsupported(context.proc_mount, ("Default", "Unmasked"))
        if host_users and context.proc_mount == "Unmasked":
            mount.invalid(context.proc_mount, "`hostUsers` must be false to use `Unmasked`")
    _validate_seccomp(context.seccomp_profile, place.at("seccompProfile"))
    _validate_app_armor(context.app_armor_profile, place.at("appArmorProfile"))
    if context.allow_privilege_escalation is False:
        escalation = place.at("allowPrivilegeEscalation")
        if context.privileged:
            escalation.invalid(False, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
        if context.capabilities is not None and "CAP_SYS_ADMIN" in context.capabilities.add:
            detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            escalation.invalid(False, detail)


def _validate_sysctls(sysctls: tuple[Sysctl, ...], spec: PodSpec, place: Place) -> None:
    names: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        name = place.index(index).at("name")
        if not sysctl.name:
            name.required()
        elif len(sysctl.name) > _SYSCTL_MAX_LENGTH or not re.fullmatch(_SYSCTL, sysctl.name, re.ASCII):
            name.invalid(sysctl.name, f"must have at most {_SYSCTL_MAX_LENGTH} characters and match regex ^{_SYSCTL}$")
        elif sysctl.name in names:
            name.duplicate(sysctl.name)
        names.add(sysctl.name)
        namespace = _sysctl_namespace(sysctl.name)
        if spec.host_network and namespace == "net":
            name.invalid(sysctl.name, "may not be specified when 'hostNetwork' is true")
        if spec.host_ipc and namespace == "ipc":
            name.invalid(sysctl.name, "may not be specified when 'hostIPC' is true")


def _sysctl_namespace(name: str) -> str:
    dotted = name.replace("/", ".")
    if dotted.startswith("net."):
        return "net"
    if dotted == "kernel.sem" or dotted.startswith(("kernel.shm", "kernel.msg", "fs.mqueue.")):
        return "ipc"
    return ""


def _validate_seccomp(profile: SeccompProfile | None, place: Place) -> None:
    if profile is None:
        return
    place.at("type").one_of(profile.type, _PROFILE_TYPES)
    path = place.at("localhostProfile")
    if profile.type == "Localhost":
        if profile.localhost_profile is None:
            path.required("must be set when seccomp type is Localhost")
        else:
            check_descending_path(profile.localhost_profile, path)
    elif profile.localhost_profile is not None:
        path.invalid(profile.localhost_profile, "can only be set when seccomp type is Localhost")


def _validate_app_armor(profile: AppArmorProfile | None, place: Place) -> None:
    if profile is None:
        return
    name = place.at("localhostProfile")
    if profile.type == "Localhost":
        if not (profile.localhost_profile or "").strip():
            name.required("must be set when AppArmor type is Localhost")
        elif profile.localhost_profile is not None:
            if profile.localhost_profile != profile.localhost_profile.strip():
                name.invalid(profile.localhost_profile, "must not be padded with whitespace")
            if len(profile.localhost_profile) > _MAX_PROFILE_PATH:
                name.too_long(_MAX_PROFILE_PATH)
    elif not profile.type:
        place.at("type").required("type is required when appArmorProfile is set")
    elif profile.type not in _PROFILE_TYPES:
        place.at("type").unsupported(profile.type, _PROFILE_TYPES)
    elif profile.localhost_profile is not None:
        name.invalid(profile.localhost_profile, "can only be set when AppArmor type is Localhost")
