"""resolv.conf: reading the node's, making the pods'."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.api import ObjectMeta, Pod, PodDNSConfig, PodDNSConfigOption, PodSpec
from trikubelet.container.errors import SandboxConfigError
from trikubelet.runtime.sandboxes.name_resolution import (
    DNSSettings,
    cluster_servers,
    limits_exceeded,
    parse_resolv_conf,
    pod_dns,
)

HOST = DNSSettings(("192.168.0.1",), ("lan",), ("timeout:2",))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", DNSSettings()),
        ("nameserver 1.2.3.4\n\tnameserver\t5.6.7.8  ", DNSSettings(("1.2.3.4", "5.6.7.8"))),
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


def test_a_name_server_without_an_address_is_an_error_as_in_the_kubelet() -> None:
    with pytest.raises(SandboxConfigError) as caught:
        parse_resolv_conf("nameserver 1.2.3.4\nnameserver \n")
    assert str(caught.value) == ("Encountered error while parsing resolv conf file. Error: nameserver list is empty ")


def dns(host: DNSSettings | None = HOST, *, cluster: tuple[str, ...] | None = ("10.0.0.10",), **spec: Any) -> Any:
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
    said = (
        'kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. '
        'Falling back to "Default" policy.'
    )
    assert made.warnings == (("MissingClusterDNS", f'pod: "web_ns(1)". {said}'),)
    assert made.node_warnings == (("MissingClusterDNS", said),)


def test_without_a_cluster_there_is_nothing_to_say() -> None:
    made = dns(cluster=None, dns_policy="ClusterFirst")
    assert made.settings == HOST
    assert (made.warnings, made.node_warnings) == ((), ())


def test_with_cluster_dns_there_is_nothing_to_say_about_the_node() -> None:
    assert dns(dns_policy="ClusterFirst").node_warnings == ()


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


@pytest.mark.parametrize(
    ("searches", "cluster_domain", "problem"),
    [
        (["lan"] * 32, "", None),
        (["lan"] * 33, "", "Resolv.conf file '/r' contains search line consisting of more than 32 domains!"),
        (["lan"] * 29, "cluster.local", None),
        (
            ["lan"] * 30,
            "cluster.local",
            "Resolv.conf file '/r' contains search line consisting of more than 29 domains!",
        ),
        (
            ["a" * 254],
            "",
            'Resolv.conf file "/r" contains a search path which length is more than allowed 253 chars!',
        ),
        (
            ["a" * 250] * 9,
            "",
            "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!",
        ),
    ],
)
def test_what_is_too_much_in_the_nodes_own_file_is_said(
    searches: list[str], cluster_domain: str, problem: str | None
) -> None:
    assert limits_exceeded("/r", DNSSettings(searches=tuple(searches)), cluster_domain) == problem


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("10.0.0.10", "10.0.0.10"),
        ("010.0.0.010", "10.0.0.10"),
        ("0.0.0.0", "0.0.0.0"),
        ("FD00:0::A", "fd00::a"),
        ("::ffff:10.0.0.10", "10.0.0.10"),
        ("dns.example", None),
        ("fe80::1%eth0", None),
        ("", None),
    ],
)
def test_cluster_dns_is_addresses_only(entry: str, address: str | None) -> None:
    assert cluster_servers([entry]) == (((address,), ()) if address else ((), (entry,)))
