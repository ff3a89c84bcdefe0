"""The user that a container runs as, and what the kernel lets it do."""

from __future__ import annotations

from attrs import field

from trikubelet.api.schema import REQUIRED, APIObject
from trikubelet.formats.values import frozen


@frozen(repr=False)
class Capabilities(APIObject):
    """Kernel capabilities that are added to or taken from the runtime's default set."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


@frozen(repr=False)
class SELinuxOptions(APIObject):
    """The SELinux label of a process."""

    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


@frozen(repr=False)
class WindowsSecurityContextOptions(APIObject):
    """Settings that only Windows nodes know."""

    gmsa_credential_spec_name: str | None = None
    gmsa_credential_spec: str | None = None
    run_as_user_name: str | None = None
    host_process: bool | None = None


@frozen(repr=False)
class SeccompProfile(APIObject):
    """Which system call filter applies: none, the runtime's, or a file of the node."""

    type: str = field(default="", metadata=REQUIRED)
    localhost_profile: str | None = None


@frozen(repr=False)
class AppArmorProfile(APIObject):
    """Which AppArmor profile applies: none, the runtime's, or one loaded on the node."""

    type: str = field(default="", metadata=REQUIRED)
    localhost_profile: str | None = None


@frozen(repr=False)
class SecurityContext(APIObject):
    """Security settings of one container; where set they win over the pod's."""

    capabilities: Capabilities | None = None
    privileged: bool | None = None
    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool | None = None
    allow_privilege_escalation: bool | None = None
    proc_mount: str | None = None
    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None


@frozen(repr=False)
class Sysctl(APIObject):
    """A kernel parameter of the pod's namespaces."""

    name: str = field(default="", metadata=REQUIRED)
    value: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PodSecurityContext(APIObject):
    """Security settings that all containers of a pod share."""

    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[int, ...] = ()
    supplemental_groups_policy: str | None = None
    fs_group: int | None = None
    sysctls: tuple[Sysctl, ...] = ()
    fs_group_change_policy: str | None = None
    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None
    se_linux_change_policy: str | None = None
