"""What a pod calls itself, and the hosts file that its containers see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.name_formats import dns_label, dns_subdomain
from trikubelet.container.errors import SandboxConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import HostAlias, Pod

_MAX_HOSTNAME: Final = 63
_MAX_FQDN: Final = 64

_HEADER: Final = "# Kubernetes-managed hosts file.\n"
_HOST_NETWORK_HEADER: Final = "# Kubernetes-managed hosts file (host network).\n"
_LOCAL_LINES: Final = (
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)


def pod_hostname_and_domain(pod: Pod, cluster_domain: str) -> tuple[str, str]:
    """Host name and domain (kubelet: `GeneratePodHostNameAndDomain`). Raises SandboxConfigError for invalid names."""
    if pod.spec.hostname_override is not None:
        override = pod.spec.hostname_override
        _refuse(f'pod HostnameOverride "{override}" is not a valid DNS subdomain', dns_subdomain(override))
        return _truncate(pod, override), ""
    name = pod.metadata.name
    if pod.spec.hostname:
        _refuse(f'pod Hostname "{pod.spec.hostname}" is not a valid DNS label', dns_label(pod.spec.hostname))
        name = pod.spec.hostname
    domain = ""
    if pod.spec.subdomain:
        _refuse(f'pod Subdomain "{pod.spec.subdomain}" is not a valid DNS label', dns_label(pod.spec.subdomain))
        domain = f"{pod.spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}"
    return _truncate(pod, name), domain


def kernel_hostname(pod: Pod, hostname: str, domain: str) -> str:
    """What `uname -n` says in the pod: the full name when the pod asks for it. Raises SandboxConfigError."""
    if not pod.spec.set_hostname_as_fqdn or not domain:
        return hostname
    full = f"{hostname}.{domain}"
    if len(full) > _MAX_FQDN:
        raise SandboxConfigError(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long "
            f"({_MAX_FQDN} characters is the max, {len(full)} characters requested)"
        )
    return full


def managed_hosts_file(ips: Sequence[str], hostname: str, domain: str, aliases: Sequence[HostAlias]) -> str:
    """The hosts file of a pod with a network of its own."""
    names = f"{hostname}.{domain}\t{hostname}" if domain else hostname
    own = "".join(f"{address}\t{names}\n" for address in ips)
    return _HEADER + _LOCAL_LINES + own + _alias_lines(aliases)


def host_network_hosts_file(node_file: str, aliases: Sequence[HostAlias]) -> str:
    """The hosts file of a pod on the node's network: the node's, with the pod's aliases."""
    return _HOST_NETWORK_HEADER + node_file + _alias_lines(aliases)


def _alias_lines(aliases: Sequence[HostAlias]) -> str:
    if not aliases:
        return ""
    lines = "".join("\t".join((alias.ip, *alias.hostnames)) + "\n" for alias in aliases)
    return "\n# Entries added by HostAliases.\n" + lines


def _refuse(problem: str, details: Sequence[str]) -> None:
    if details:
        raise SandboxConfigError(f"{problem}: {';'.join(details)}")


def _truncate(pod: Pod, hostname: str) -> str:
    if len(hostname) <= _MAX_HOSTNAME:
        return hostname
    truncated = hostname[:_MAX_HOSTNAME].rstrip("-.")
    if not truncated:
        raise SandboxConfigError(f'hostname for pod "{pod.metadata.name}" was invalid: "{hostname}"')
    return truncated
