"""Kernel settings that pods may ask for (kubelet: `sysctl/allowlist.go`, `component-helpers/node/util/sysctl`). Pure.

A setting can be given to a pod only when the kernel keeps it per namespace: otherwise it would change the whole node.
Those that do no harm are allowed everywhere (the safe list), others where the node's configuration allows them
(allowedUnsafeSysctls: names, or prefixes with a `*`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import Pod

IPC: Final = "IPC"
NET: Final = "Net"

SAFE_SYSCTLS: Final[Mapping[str, tuple[int, ...]]] = {
    "kernel.shm_rmid_forced": (),
    "net.ipv4.ip_local_port_range": (),
    "net.ipv4.tcp_syncookies": (),
    "net.ipv4.ping_group_range": (),
    "net.ipv4.ip_unprivileged_port_start": (),
    "net.ipv4.ip_local_reserved_ports": (3, 16),
    "net.ipv4.tcp_keepalive_time": (4, 5),
    "net.ipv4.tcp_fin_timeout": (4, 6),
    "net.ipv4.tcp_keepalive_intvl": (4, 5),
    "net.ipv4.tcp_keepalive_probes": (4, 5),
    "net.ipv4.tcp_rmem": (4, 15),
    "net.ipv4.tcp_wmem": (4, 15),
}
"""By name: the first kernel that keeps it per namespace, empty where all do that matter."""

_IN_IPC: Final = frozenset(
    {
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.shm",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.msg",
    }
)
"""Names, and the beginnings `kernel.shm` and `kernel.msg` as they stand in patterns like `kernel.shm*`."""
_MAX_LENGTH: Final = 253
_PATTERN: Final = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]"


@frozen
class SysctlPatternError(ValueError):
    """An entry of allowedUnsafeSysctls that cannot be allowed to pods."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class SysctlAllowList:
    """The settings that pods of this node may ask for, and the namespace that each is kept in."""

    names: Mapping[str, str]
    prefixes: Mapping[str, str]

    @classmethod
    def of_node(cls, allowed_unsafe: Iterable[str] = (), kernel: tuple[int, ...] = ()) -> SysctlAllowList:
        """The safe ones of this kernel (its version's first numbers; empty: not known) and those that are configured.

        Raises SysctlPatternError.
        """
        names: dict[str, str] = {}
        prefixes: dict[str, str] = {}
        safe = [name for name, since in SAFE_SYSCTLS.items() if since <= kernel]
        for pattern in (*safe, *allowed_unsafe):
            if len(pattern) > _MAX_LENGTH or re.fullmatch(_PATTERN, pattern) is None:
                raise SysctlPatternError(
                    f'sysctl "{pattern}" must have at most {_MAX_LENGTH} characters and match regex {_PATTERN}'
                )
            name, star, _ = dotted_sysctl(pattern).partition("*")
            namespace = sysctl_namespace(name)
            if namespace is None:
                raise SysctlPatternError(f'the sysctls "{name}" are not known to be namespaced')
            (prefixes if star else names)[name] = namespace
        return cls(names, prefixes)

    def problem(self, pod: Pod) -> str | None:
        """Why the pod cannot have the settings that it asks for; None when it can."""
        if pod.spec.security_context is None:
            return None
        for sysctl in pod.spec.security_context.sysctls:
            name = dotted_sysctl(sysctl.name)
            namespace = self._namespace_of_allowed(name)
            if namespace is None:
                return f'"{name}" not allowlisted'
            if (namespace == IPC and pod.spec.host_ipc) or (namespace == NET and pod.spec.host_network):
                return f'"{name}" not allowed with host {namespace} enabled'
        return None

    def _namespace_of_allowed(self, name: str) -> str | None:
        if name in self.names:
            return self.names[name]
        return next((namespace for prefix, namespace in self.prefixes.items() if name.startswith(prefix)), None)


def dotted_sysctl(name: str) -> str:
    """A sysctl's name with dots between its parts; with slashes before, dots in a part become slashes."""
    first = re.search(r"[./]", name)
    if first is None or first[0] == ".":
        return name
    return name.translate(str.maketrans("./", "/."))


def sysctl_namespace(name: str) -> str | None:
    """The namespace that the kernel keeps a setting in, or those that begin so; None: in none that is known."""
    if name in _IN_IPC or name.startswith("fs.mqueue."):
        return IPC
    return NET if name.startswith("net.") else None
