"""Name resolution in a pod: its resolv.conf, its host name, and its hosts file. Pure: the node's files come in as text.

The resolv.conf comes from the pod's DNS policy and dnsConfig, the cluster's settings and the node's own file. The
kubelet's limits apply (three name servers, 32 search domains with 2048 characters), and what is left out is said in
`PodDNS.warnings`, which become events.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api.name_formats import dns_label, dns_subdomain
from trikubelet.container.errors import SandboxConfigError
from trikubelet.container.messages import describe_pod
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trikubelet.api import HostAlias, Pod

MAX_RESOLV_CONF: Final = 10 * 1024 * 1024
"""Bytes of a resolv.conf that are read."""
_MAX_NAMESERVERS: Final = 3
_MAX_SEARCHES: Final = 32
_MAX_SEARCH_CHARACTERS: Final = 2048
_MAX_DOMAIN: Final = 253
_CLUSTER_DOMAINS: Final = 3
"""Search domains that a cluster adds to the node's."""
_CLUSTER_OPTIONS: Final = ("ndots:5",)

_MISSING_CLUSTER_DNS: Final = (
    'kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. '
    'Falling back to "Default" policy.'
)
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


@frozen
class DNSSettings:
    """The content of a resolv.conf."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@frozen
class PodDNS:
    """A pod's settings, and what had to be changed to get there."""

    settings: DNSSettings
    warnings: tuple[tuple[str, str], ...] = ()
    """Reason and message of an event about the pod each."""
    node_warnings: tuple[tuple[str, str], ...] = ()
    """The same for events about the node."""


def parse_resolv_conf(text: str) -> DNSSettings:
    """Read a resolv.conf: name servers add up, the last search line counts, later options replace earlier ones.

    Raises SandboxConfigError for a name server without an address: no pod can have such a file.
    """
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    for line in text.splitlines():
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if fields[0] == "nameserver":
            if len(fields) == 1:
                raise SandboxConfigError(
                    "Encountered error while parsing resolv conf file. Error: nameserver list is empty "
                )
            servers.append(fields[1])
        elif fields[0] == "search":
            searches = [domain.removesuffix(".") for domain in fields[1:] if domain != "."]
        elif fields[0] == "options":
            options.update((option.partition(":")[0], option) for option in fields[1:])
    return DNSSettings(tuple(servers), tuple(searches), tuple(options.values()))


def limits_exceeded(path: str, settings: DNSSettings, cluster_domain: str) -> str | None:
    """The event's message when the node's own resolv.conf exceeds a limit (kubelet: `CheckLimitsForResolvConf`)."""
    most = _MAX_SEARCHES - _CLUSTER_DOMAINS if cluster_domain else _MAX_SEARCHES
    if len(settings.searches) > most:
        return f"Resolv.conf file '{path}' contains search line consisting of more than {most} domains!"
    if any(len(domain) > _MAX_DOMAIN for domain in settings.searches):
        return (
            f'Resolv.conf file "{path}" contains a search path which length is more than allowed {_MAX_DOMAIN} chars!'
        )
    if len(" ".join(settings.searches)) > _MAX_SEARCH_CHARACTERS:
        return (
            f"Resolv.conf file '{path}' contains search line which length is more than allowed "
            f"{_MAX_SEARCH_CHARACTERS} chars!"
        )
    return None


def cluster_servers(entries: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The addresses of clusterDNS as pods get them, and the entries that are none.

    The numbers of an IPv4 address may begin with zeros.
    """
    addresses, others = [], []
    for entry in entries:
        text = re.sub(r"\b0+(?=\d)", "", entry) if ":" not in entry else entry
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            others.append(entry)
            continue
        if "%" in entry:
            others.append(entry)
            continue
        addresses.append(str(getattr(address, "ipv4_mapped", None) or address))
    return tuple(addresses), tuple(others)


def pod_dns(
    pod: Pod,
    *,
    host: DNSSettings | None,
    cluster_dns: Sequence[str] | None,
    cluster_domain: str,
    node_ips: Sequence[str] = (),
) -> PodDNS:
    """The pod's settings (kubelet: `GetPodDNS`). `host` is None where the node has no resolv.conf to share,
    `cluster_dns` where there is no cluster: then there is nothing to warn of."""
    warnings: list[tuple[str, str]] = []
    node_warnings: tuple[tuple[str, str], ...] = ()
    policy = pod.spec.dns_policy
    in_cluster = policy == "ClusterFirstWithHostNet" or (policy != "Default" and not pod.spec.host_network)
    if policy == "None":
        settings = DNSSettings()
    elif in_cluster and cluster_dns:
        settings = _cluster_settings(pod, host or DNSSettings(), cluster_dns, cluster_domain)
    else:
        if in_cluster and cluster_dns is not None:
            warnings.append(("MissingClusterDNS", f'pod: "{describe_pod(pod)}". {_MISSING_CLUSTER_DNS}'))
            node_warnings = (("MissingClusterDNS", _MISSING_CLUSTER_DNS),)
        settings = _local_settings(node_ips) if host is None else host
    settings = _merge_pod_config(settings, pod)
    return attrs.evolve(_within_limits(settings, warnings), node_warnings=node_warnings)


def _cluster_settings(pod: Pod, host: DNSSettings, cluster_dns: Sequence[str], cluster_domain: str) -> DNSSettings:
    searches = list(host.searches)
    if cluster_domain:
        services = f"svc.{cluster_domain}"
        searches = [f"{pod.metadata.namespace}.{services}", services, cluster_domain, *searches]
    return DNSSettings(tuple(cluster_dns), _without_repeats(searches), _CLUSTER_OPTIONS)


def _local_settings(node_ips: Sequence[str]) -> DNSSettings:
    """No resolv.conf at all means a name server on the machine itself."""
    servers = tuple("::1" if ":" in address else "127.0.0.1" for address in node_ips) or ("127.0.0.1",)
    return DNSSettings(servers, (".",))


def _merge_pod_config(settings: DNSSettings, pod: Pod) -> DNSSettings:
    config = pod.spec.dns_config
    if config is None:
        return settings
    options = {option.partition(":")[0]: option for option in settings.options}
    for option in config.options:
        options[option.name] = f"{option.name}:{option.value}" if option.value else option.name
    return DNSSettings(
        _without_repeats([*settings.servers, *config.nameservers]),
        _without_repeats([*settings.searches, *config.searches]),
        tuple(options.values()),
    )


def _within_limits(settings: DNSSettings, warnings: list[tuple[str, str]]) -> PodDNS:
    servers = settings.servers[:_MAX_NAMESERVERS]
    if servers != settings.servers:
        message = (
            "Nameserver limits were exceeded, some nameservers have been omitted, "
            f"the applied nameserver line is: {' '.join(servers)}"
        )
        warnings.append(("DNSConfigForming", message))
    searches = [domain for domain in settings.searches[:_MAX_SEARCHES] if len(domain) <= _MAX_DOMAIN]
    while len(" ".join(searches)) > _MAX_SEARCH_CHARACTERS:
        searches.pop()
    if tuple(searches) != settings.searches:
        message = (
            "Search Line limits were exceeded, some search paths have been omitted, "
            f"the applied search line is: {' '.join(searches)}"
        )
        warnings.append(("DNSConfigForming", message))
    return PodDNS(DNSSettings(servers, tuple(searches), settings.options), tuple(warnings))


def _without_repeats(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


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
    """The host name in the kernel (`uname -n`): the FQDN when the pod asks for it. Raises SandboxConfigError."""
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
