"""A pod's resolv.conf: from its DNS policy, its dnsConfig, the cluster's settings and the node's own resolv.conf.

Pure: the node's file comes in as text. The kubelet's limits apply (three name servers, 32 search domains with 2048
characters), and what is left out is said in `PodDNS.warnings`, which become events.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.container.errors import SandboxConfigError
from trikubelet.container.messages import describe_pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trikubelet.api import Pod

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


@attrs.frozen
class DNSSettings:
    """What a resolv.conf says."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@attrs.frozen
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
    """What is too much in the node's own resolv.conf (kubelet: `CheckLimitsForResolvConf`, that event's message)."""
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
    pod: Pod, *, host: DNSSettings | None, cluster_dns: Sequence[str], cluster_domain: str, node_ips: Sequence[str] = ()
) -> PodDNS:
    """The pod's settings (kubelet: `GetPodDNS`). `host` is None where the node has no resolv.conf to share."""
    warnings: list[tuple[str, str]] = []
    node_warnings: tuple[tuple[str, str], ...] = ()
    policy = pod.spec.dns_policy
    in_cluster = policy == "ClusterFirstWithHostNet" or (policy != "Default" and not pod.spec.host_network)
    if policy == "None":
        settings = DNSSettings()
    elif in_cluster and cluster_dns:
        settings = _cluster_settings(pod, host or DNSSettings(), cluster_dns, cluster_domain)
    else:
        if in_cluster:
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
