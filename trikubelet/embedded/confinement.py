"""What confines a container beside its namespaces, as its CRI security context asks for it.

Privileged containers have no system call filter and no default AppArmor profile, whatever is asked, as on containerd.
Everything else that cannot be had is an error, so that nothing runs with less than it was promised.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import betterproto

from trikubelet.embedded.keeper import capabilities
from trikubelet.embedded.seccomp import filters
from trikubelet.embedded.seccomp.profile import ProfileError
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from trikubelet.embedded.keeper_client import KeeperAbilities

_KINDS: Final = v1.SecurityProfileProfileType
_LOCALHOST: Final = "localhost/"
APPARMOR_DEFAULT: Final = "cri-containerd.apparmor.d"


class ConfinementError(Exception):
    """A confinement that cannot be had here. The text says which, why, and what to do."""


def seccomp_filter(
    security: v1.LinuxContainerSecurityContext, bounding: int, abilities: KeeperAbilities
) -> dict[str, Any] | None:
    """The container's system call filter (program in base64, flags); None without one. Raises ConfinementError.

    `RuntimeDefault` depends on the container's bounding set, as containerd's does.
    """
    profile = _profile("seccomp", security.seccomp, security.seccomp_profile_path)
    if security.privileged or profile is None or profile.profile_type == _KINDS.Unconfined:
        return None
    if not abilities.seccomp:
        raise ConfinementError(
            "seccomp is not supported: this kernel has no system call filters, or the process that keeps the "
            "containers was started by an older version (it is replaced once its last pod has ended)"
        )
    held = [f"CAP_{name}" for name in capabilities.NAMES if bounding & capabilities.BITS[name]]
    try:
        if profile.profile_type == _KINDS.RuntimeDefault:
            return filters.runtime_default(held)
        return filters.from_file(profile.localhost_ref.removeprefix(_LOCALHOST), held)
    except ProfileError as error:
        raise ConfinementError(str(error)) from None


def apparmor_profile(security: v1.LinuxContainerSecurityContext, sys: Path = Path("/sys")) -> str | None:
    """The AppArmor profile that the container's program starts in; None without one. Raises ConfinementError.

    Profiles are loaded by tools of the machine. The default is that which containerd loads; where it is not loaded, a
    container that does not ask for one has none.
    """
    profile = _profile("AppArmor", security.apparmor, security.apparmor_profile)
    asked = profile is not None
    kind = _KINDS.RuntimeDefault if profile is None else profile.profile_type
    if kind == _KINDS.Unconfined or (kind == _KINDS.RuntimeDefault and security.privileged):
        return None
    name = APPARMOR_DEFAULT if profile is None or kind == _KINDS.RuntimeDefault else profile.localhost_ref
    name = name.removeprefix(_LOCALHOST)
    if not _apparmor_is_enabled(sys):
        if asked:
            raise ConfinementError(f"AppArmor profile {name}: AppArmor is not enabled on this machine")
        return None
    try:
        loaded = {line.rpartition(" (")[0] for line in (sys / "kernel/security/apparmor/profiles").open()}
    except OSError as error:
        if asked:
            raise ConfinementError(
                f"AppArmor profile {name}: cannot tell whether it is loaded: {error.strerror}"
            ) from None
        return None
    if name in loaded:
        return name
    if asked:
        raise ConfinementError(f"AppArmor profile {name}: not loaded on this machine; load it with apparmor_parser")
    return None


def _apparmor_is_enabled(sys: Path) -> bool:
    try:
        return (sys / "module/apparmor/parameters/enabled").read_text().startswith("Y")
    except OSError:
        return False


def selinux_is_enforcing(sys: Path = Path("/sys")) -> bool:
    """Whether SELinux decides here what processes may do."""
    try:
        return (sys / "fs/selinux/enforce").read_text().startswith("1")
    except OSError:
        return False


def refuse_selinux(security: v1.LinuxContainerSecurityContext) -> None:
    """Raises ConfinementError: this runtime labels neither processes nor files.

    That a mount is to be relabelled is no reason: clients ask for it wherever SELinux is on, so that a container that
    is confined by it can reach the files, and these are not.
    """
    if security.selinux_options != v1.SeLinuxOption():
        raise ConfinementError("seLinuxOptions: the embedded runtime does not confine by SELinux; use containerd")


def _profile(kind: str, profile: v1.SecurityProfile, text: str) -> v1.SecurityProfile | None:
    """What is asked for; older clients say it as a text."""
    if betterproto.serialized_on_wire(profile):
        if profile.localhost_ref and profile.profile_type != _KINDS.Localhost:
            raise ConfinementError(f"{kind}: a localhost profile is named, but the type is not Localhost")
        return profile
    if not text:
        return None
    if text in ("runtime/default", "docker/default"):
        return v1.SecurityProfile(profile_type=_KINDS.RuntimeDefault)
    if text == "unconfined":
        return v1.SecurityProfile(profile_type=_KINDS.Unconfined)
    if text.startswith(_LOCALHOST):
        return v1.SecurityProfile(profile_type=_KINDS.Localhost, localhost_ref=text.removeprefix(_LOCALHOST))
    raise ConfinementError(f"{kind}: invalid profile {text!r}")
