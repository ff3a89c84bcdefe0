"""What a pod sandbox is made of: the keeper's request, and the files that its containers see in /etc."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from trikubelet.rpc.cri import v1

_LONGEST_HOSTNAME: Final = 64
_SYSCTL: Final = re.compile(r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)+$")
# Those that belong to the IPC or UTS namespace; all others would change the host.
_NAMESPACED: Final = (
    "kernel.shm",
    "kernel.msg",
    "kernel.sem",
    "fs.mqueue.",
    "kernel.domainname",
)


class SandboxConfigError(Exception):
    """A pod that this runtime cannot make a sandbox for. The text says why, and what to do."""


def sandbox_request(sandbox_id: str, config: v1.PodSandboxConfig) -> dict[str, Any]:
    """The fields of the keeper's `sandbox_start`. Raises SandboxConfigError."""
    security = config.linux.security_context
    namespaces = security.namespace_options
    if namespaces.userns_options.mode == v1.NamespaceMode.POD and namespaces.userns_options.uids:
        raise SandboxConfigError("hostUsers: false: the embedded runtime has no user namespaces for pods")
    hostname = config.hostname or os.uname().nodename
    if len(hostname.encode()) > _LONGEST_HOSTNAME:
        raise SandboxConfigError(f"host name {hostname!r} is longer than {_LONGEST_HOSTNAME} bytes")
    host_ipc = namespaces.ipc == v1.NamespaceMode.NODE
    for name in config.linux.sysctls:
        _check_sysctl(name, host_ipc=host_ipc)
    return {
        "sandbox": sandbox_id,
        "hostname": hostname,
        "sysctls": dict(config.linux.sysctls),
        "host_ipc": host_ipc,
        "host_uts": namespaces.network == v1.NamespaceMode.NODE,
        "shared_pid": namespaces.pid == v1.NamespaceMode.POD,
    }


def _check_sysctl(name: str, *, host_ipc: bool) -> None:
    if not _SYSCTL.match(name):
        raise SandboxConfigError(f"sysctl {name!r}: expected a dotted name like kernel.shmmax")
    if host_ipc or not name.startswith(_NAMESPACED):
        raise SandboxConfigError(
            f"sysctl {name}: it would change the whole node, whose namespace the embedded runtime's pods share"
        )


def write_sandbox_files(folder: Path, config: v1.PodSandboxConfig) -> None:
    """hostname, resolv.conf and hosts: mounted into containers unless the kubelet mounts its own. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hostname").write_text(f"{config.hostname or os.uname().nodename}\n")
    (folder / "resolv.conf").write_text(_resolver(config.dns_config))
    hosts = Path("/etc/hosts")
    (folder / "hosts").write_bytes(hosts.read_bytes() if hosts.is_file() else b"127.0.0.1 localhost\n::1 localhost\n")


def _resolver(dns: v1.DnsConfig) -> str:
    if not (dns.servers or dns.searches or dns.options):
        host = Path("/etc/resolv.conf")
        return host.read_text(errors="replace") if host.is_file() else ""
    lines = [f"search {' '.join(dns.searches)}"] if dns.searches else []
    lines += [f"nameserver {server}" for server in dns.servers]
    lines += [f"options {' '.join(dns.options)}"] if dns.options else []
    return "".join(f"{line}\n" for line in lines)
