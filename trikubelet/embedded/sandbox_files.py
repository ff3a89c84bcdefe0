"""What a pod sandbox is made of: the keeper's request, and the files that its containers see in /etc."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from trikubelet.embedded.network.model import PodNetworkSpec, PortMapping
from trikubelet.linux.durable_files import naming
from trikubelet.linux.resolver import RESOLV_CONF, resolv_conf_for_pods
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
_OF_THE_NETWORK: Final = "net."
# As containerd sets them: ports below 1024, and pings, are for every user of the pod.
_UNPRIVILEGED_PORTS: Final = {"net.ipv4.ip_unprivileged_port_start": "0"}
_UNPRIVILEGED_PINGS: Final = {"net.ipv4.ping_group_range": "0 2147483647"}
_HOSTS: Final = b"127.0.0.1 localhost\n::1 localhost\n"
_PROTOCOLS: Final = {v1.Protocol.TCP: "tcp", v1.Protocol.UDP: "udp", v1.Protocol.SCTP: "sctp"}


class SandboxConfigError(Exception):
    """A pod that this runtime cannot make a sandbox for. The text says why, and what to do."""


def sandbox_request(
    sandbox_id: str, config: v1.PodSandboxConfig, *, own_network: bool, all_groups: bool = True
) -> dict[str, Any]:
    """The fields of the keeper's `sandbox_start`. Raises SandboxConfigError.

    `own_network`: the pod gets a network namespace. `all_groups`: the runtime knows more than one group id.
    """
    security = config.linux.security_context
    namespaces = security.namespace_options
    if namespaces.userns_options.mode == v1.NamespaceMode.POD and namespaces.userns_options.uids:
        raise SandboxConfigError("hostUsers: false: the embedded runtime has no user namespaces for pods")
    hostname = config.hostname or os.uname().nodename
    if len(hostname.encode()) > _LONGEST_HOSTNAME:
        raise SandboxConfigError(f"host name {hostname!r} is longer than {_LONGEST_HOSTNAME} bytes")
    host_ipc = namespaces.ipc == v1.NamespaceMode.NODE
    for name in config.linux.sysctls:
        _check_sysctl(name, host_ipc=host_ipc, own_network=own_network)
    sysctls = dict(config.linux.sysctls)
    if own_network:
        sysctls = {**_UNPRIVILEGED_PORTS, **(_UNPRIVILEGED_PINGS if all_groups else {}), **sysctls}
    return {
        "sandbox": sandbox_id,
        "hostname": hostname,
        "sysctls": sysctls,
        "host_ipc": host_ipc,
        "host_uts": namespaces.network == v1.NamespaceMode.NODE,
        "shared_pid": namespaces.pid == v1.NamespaceMode.POD,
        "network": "pod" if own_network else "node",
    }


def expects_container(config: v1.PodSandboxConfig) -> bool:
    """Whether a process can be made ready for the first container of the pod before that is known."""
    security = config.linux.security_context
    return security.namespace_options.pid == v1.NamespaceMode.CONTAINER and not security.privileged


def pod_network_spec(sandbox_id: str, config: v1.PodSandboxConfig) -> PodNetworkSpec:
    """What a pod with a network of its own wants of it."""
    return PodNetworkSpec(
        sandbox_id=sandbox_id,
        namespace=config.metadata.namespace,
        name=config.metadata.name,
        uid=config.metadata.uid,
        ports=tuple(
            PortMapping(
                host_port=port.host_port,
                container_port=port.container_port,
                protocol=_PROTOCOLS[v1.Protocol(port.protocol)],
                host_ip=port.host_ip,
            )
            for port in config.port_mappings
            if port.host_port > 0
        ),
        annotations=dict(config.annotations),
        cgroup_parent=config.linux.cgroup_parent,
    )


def _check_sysctl(name: str, *, host_ipc: bool, own_network: bool) -> None:
    if not _SYSCTL.match(name):
        raise SandboxConfigError(f"sysctl {name!r}: expected a dotted name like kernel.shmmax")
    if name.startswith(_OF_THE_NETWORK):
        if not own_network:
            raise SandboxConfigError(f"sysctl {name}: it would change the whole node, whose network this pod is on")
    elif host_ipc or not name.startswith(_NAMESPACED):
        raise SandboxConfigError(
            f"sysctl {name}: it would change the whole node, whose namespace the embedded runtime's pods share"
        )


def write_sandbox_files(folder: Path, config: v1.PodSandboxConfig, *, own_network: bool) -> None:
    """hostname, resolv.conf and hosts: mounted into containers unless the kubelet mounts its own. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    hosts = Path("/etc/hosts")
    with naming(folder):
        (folder / "hostname").write_text(f"{config.hostname or os.uname().nodename}\n")
        (folder / "resolv.conf").write_text(_resolver(config.dns_config, own_network=own_network))
        (folder / "hosts").write_bytes(hosts.read_bytes() if hosts.is_file() else _HOSTS)


def _resolver(dns: v1.DnsConfig, *, own_network: bool) -> str:
    if not (dns.servers or dns.searches or dns.options):
        if not RESOLV_CONF.is_file():
            return ""
        return (resolv_conf_for_pods() if own_network else RESOLV_CONF).read_text(errors="replace")
    lines = [f"search {' '.join(dns.searches)}"] if dns.searches else []
    lines += [f"nameserver {server}" for server in dns.servers]
    lines += [f"options {' '.join(dns.options)}"] if dns.options else []
    return "".join(f"{line}\n" for line in lines)
