"""What confines a container beside its namespaces, as its CRI security context asks for it.

Privileged containers have no system call filter, no default AppArmor profile and a SELinux label that allows all,
whatever is asked, as on containerd.
Everything else that cannot be had is an error, so that nothing runs with less than it was promised.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import betterproto

from trikubelet.embedded import selinux
from trikubelet.embedded.keeper import capabilities
from trikubelet.embedded.seccomp import filters
from trikubelet.embedded.seccomp.profile import ProfileError
from trikubelet.linux.selinux import ContainerLabels, LabelError
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

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


def pod_level(
    options: v1.SeLinuxOption, used: Callable[[], Collection[str]], abilities: KeeperAbilities, root: Path = Path("/")
) -> str:
    """The SELinux level of a pod's containers that ask for no other; empty without any. Raises ConfinementError.

    `used()`: those of other pods, which are looked for when one is to be chosen. One that is asked for may be among
    them.
    """
    if not _has_labels(options, abilities, root):
        return ""
    try:
        selinux.check_options(options)
        has_levels = selinux.level_of(ContainerLabels.read(root).process)
    except LabelError as error:
        raise ConfinementError(f"seLinuxOptions: {error}") from None
    return options.level or (selinux.new_level(used()) if has_levels else "")


def selinux_labels(
    security: v1.LinuxContainerSecurityContext,
    of_pod: v1.SeLinuxOption,
    level: str,
    abilities: KeeperAbilities,
    root: Path = Path("/"),
) -> dict[str, str] | None:
    """The SELinux labels of the container's process (empty: the keeper's) and of its files; None without any.

    What the pod asks for is for containers that ask for nothing. `level`: the pod's. Raises ConfinementError.

    That a mount is to be relabelled is no reason to refuse where there are no labels: clients ask for it wherever
    SELinux is on, so that a container that is confined by it can reach the files.
    """
    options = of_pod if security.selinux_options == v1.SeLinuxOption() else security.selinux_options
    if not _has_labels(options, abilities, root):
        return None
    try:
        defaults = ContainerLabels.read(root)
        process, files = selinux.labels(defaults, options, level)
        if security.privileged:
            free = selinux.privileged_label(defaults)
            process = free if selinux.is_known(free, root) else ""
    except LabelError as error:
        raise ConfinementError(f"seLinuxOptions: {error}") from None
    for label in filter(None, (process, files)):
        if not selinux.is_known(label, root):
            raise ConfinementError(f"seLinuxOptions: the policy of this machine knows no label {label}")
    return {"process": process, "files": files}


def _has_labels(options: v1.SeLinuxOption, abilities: KeeperAbilities, root: Path) -> bool:
    """Whether containers get labels here. Raises ConfinementError if they do not and some are asked for."""
    problem = selinux.why_not(abilities, root)
    if problem and options != v1.SeLinuxOption():
        raise ConfinementError(f"seLinuxOptions: {problem}")
    return not problem


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
