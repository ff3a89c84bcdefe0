"""resolv.conf: reading the node's, making the pods'."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.api import ObjectMeta, Pod, PodDNSConfig, PodDNSConfigOption, PodSpec
from trikubelet.runtime.dns import DNSSettings, parse_resolv_conf, pod_dns

HOST = DNSSettings(("192.168.0.1",), ("lan",), ("timeout:2",))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", DNSSettings()),
        ("nameserver 1.2.3.4\n\tnameserver\t5.6.7.8  \nnameserver", DNSSettings(("1.2.3.4", "5.6.7.8"))),
        ("# nameserver 1.1.1.1\nnameserver 1.2.3.4", DNSSettings(("1.2.3.4",))),
        ("search a b. .\n", DNSSettings((), ("a", "b"))),
        ("search foo\nsearch bar\n", DNSSettings((), ("bar",))),
        (
            "options ndots:5 attempts:2\noptions ndots:1 rotate",
            DNSSettings((), (), ("ndots:1", "attempts:2", "rotate")),
        ),
    ],
)
def test_resolv_conf_is_read(text: str, settings: DNSSettings) -> None:
    assert parse_resolv_conf(text) == settings


def dns(host: DNSSettings | None = HOST, *, cluster: tuple[str, ...] = ("10.0.0.10",), **spec: Any) -> Any:
    pod = Pod(metadata=ObjectMeta(name="web", namespace="ns", uid="1"), spec=PodSpec(**spec))
    return pod_dns(pod, host=host, cluster_dns=cluster, cluster_domain="cluster.local")


CLUSTER = DNSSettings(
    ("10.0.0.10",), ("ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan"), ("ndots:5",)
)


@pytest.mark.parametrize(
    ("policy", "host_network", "expected"),
    [
        ("ClusterFirst", False, CLUSTER),
        ("ClusterFirst", True, HOST),
        ("ClusterFirstWithHostNet", True, CLUSTER),
        ("Default", False, HOST),
        ("None", False, DNSSettings()),
        ("", False, CLUSTER),
    ],
)
def test_the_policy_chooses_whose_settings_count(policy: str, host_network: bool, expected: DNSSettings) -> None:
    assert dns(dns_policy=policy, host_network=host_network).settings == expected


def test_without_cluster_dns_the_nodes_settings_are_used_and_it_is_said() -> None:
    made = dns(cluster=(), dns_policy="ClusterFirst")
    assert made.settings == HOST
    [(reason, message)] = made.warnings
    assert reason == "MissingClusterDNS"
    assert message.endswith('Falling back to "Default" policy.')


def test_without_a_resolv_conf_names_are_asked_of_the_machine_itself() -> None:
    assert dns(None, dns_policy="Default").settings == DNSSettings(("127.0.0.1",), (".",))


def test_the_pods_own_settings_are_added() -> None:
    config = PodDNSConfig(
        nameservers=("1.1.1.1", "10.0.0.10"),
        searches=("lan", "more"),
        options=(PodDNSConfigOption(name="ndots", value="2"), PodDNSConfigOption(name="rotate")),
    )
    assert dns(dns_policy="ClusterFirst", dns_config=config).settings == DNSSettings(
        ("10.0.0.10", "1.1.1.1"), (*CLUSTER.searches, "more"), ("ndots:2", "rotate")
    )


def test_what_exceeds_the_limits_is_left_out_and_it_is_said() -> None:
    config = PodDNSConfig(
        nameservers=("1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"),
        searches=tuple(f"domain-{number}" for number in range(40)),
    )
    made = dns(dns_policy="None", dns_config=config)
    assert made.settings.servers == ("1.1.1.1", "1.1.1.2", "1.1.1.3")
    assert len(made.settings.searches) == 32
    assert [reason for reason, _ in made.warnings] == ["DNSConfigForming", "DNSConfigForming"]


def test_domains_are_left_out_when_they_or_all_together_are_too_long() -> None:
    one_too_long = PodDNSConfig(searches=("a" * 254, "b"))
    assert dns(dns_policy="None", dns_config=one_too_long).settings.searches == ("b",)
    together = PodDNSConfig(searches=tuple(str(number) * 250 for number in range(9)))
    assert len(dns(dns_policy="None", dns_config=together).settings.searches) == 8
