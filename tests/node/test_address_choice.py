"""Which addresses a node has: the kubelet's tables, and `--node-ip`."""

from __future__ import annotations

import ipaddress

import pytest

from trikubelet.api import NodeAddress
from trikubelet.node.address_choice import (
    AddressSettings,
    HostAddresses,
    IPAddress,
    NodeAddressError,
    node_addresses,
    node_ip_problem,
    parse_address,
    parse_node_ips,
)

EXISTING = NodeAddress(type="InternalIP", address="10.1.1.2")


def ips(*texts: str) -> tuple[IPAddress, ...]:
    return tuple(ipaddress.ip_address(text) for text in texts)


def host(*preferred: str, local: tuple[str, ...] = (), resolved: tuple[str, ...] = ()) -> HostAddresses:
    known = frozenset(ips(*preferred, *local))
    return HostAddresses(local=known, preferred=ips(*preferred), resolved=ips(*resolved))


def settings(*node_ips: str, cloud: bool = False, hostname: str = "127-host") -> AddressSettings:
    return AddressSettings(node_name="n", hostname=hostname, node_ips=ips(*node_ips), external_cloud=cloud)


def told(found: tuple[NodeAddress, ...]) -> list[str]:
    assert found[-1].type == "Hostname"
    assert all(address.type == "InternalIP" for address in found[:-1])
    return [address.address for address in found[:-1]]


V4, V6 = "10.0.0.2", "2001:db2::2"


@pytest.mark.parametrize(
    ("flag", "cloud", "preferred", "expected"),
    [
        (("10.0.0.1",), True, (), ["10.0.0.1"]),
        (("0.0.0.0",), False, (V6, V4), [V4]),
        (("::",), False, (V4, V6), [V6]),
        (("0.0.0.0",), True, (V4,), [V4]),
        (("::",), True, (V4, V6), [V6]),
        ((), False, (V4,), [V4]),
        ((), False, (V6,), [V6]),
        ((), False, (V6, V4), [V4]),
        ((), True, (V4,), []),
        (("10.1.1.1",), False, (), ["10.1.1.1"]),
        (("2600::1", "10.1.1.2"), True, (), ["2600::1", "10.1.1.2"]),
        (("10.1.1.1", "fd01::1234"), False, (), ["10.1.1.1", "fd01::1234"]),
    ],
)
def test_addresses_follow_the_flag_then_the_default_route(
    flag: tuple[str, ...], cloud: bool, preferred: tuple[str, ...], expected: list[str]
) -> None:
    specified = tuple(text for text in flag if text not in ("0.0.0.0", "::"))
    assert told(node_addresses(settings(*flag, cloud=cloud), host(*preferred, local=specified), ())) == expected


def test_what_a_clouds_controller_wrote_stays() -> None:
    found = node_addresses(settings("10.1.1.1", cloud=True), host(local=("10.1.1.1",)), [EXISTING])
    assert found == (EXISTING,)


def test_without_a_cloud_old_addresses_are_replaced() -> None:
    assert told(node_addresses(settings(), host(V4), [EXISTING])) == [V4]


def test_a_hostname_that_is_an_address_is_the_address() -> None:
    assert told(node_addresses(settings(hostname="192.0.2.1"), host(V4), ())) == ["192.0.2.1"]
    assert not settings(hostname="192.0.2.1").needs_lookup
    assert settings().needs_lookup


def test_the_name_server_comes_before_the_default_route() -> None:
    known = host(V4, local=("10.9.9.9", V6), resolved=("127.0.1.1", V6, "10.9.9.9", "10.8.8.8"))
    assert told(node_addresses(settings(), known, ())) == ["10.9.9.9"]
    assert told(node_addresses(settings("::"), known, ())) == [V6]


@pytest.mark.parametrize(
    ("flag", "local", "message"),
    [
        (("127.0.0.1",), (), "failed to validate nodeIP: nodeIP can't be loopback address"),
        (("10.1.1.1", "ff02::1"), ("10.1.1.1",), "secondaryNodeIP: nodeIP can't be a multicast address"),
        (("10.1.1.1",), (), 'failed to validate nodeIP: node IP: "10.1.1.1" not found in the host\'s network'),
        ((), (), "can't get ip address of node n. error: unable to select an IP from default routes."),
    ],
)
def test_what_cannot_be_the_nodes_address_is_refused(
    flag: tuple[str, ...], local: tuple[str, ...], message: str
) -> None:
    with pytest.raises(NodeAddressError) as caught:
        node_addresses(settings(*flag), host(local=local), ())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("::1", "nodeIP can't be loopback address"),
        ("224.0.0.1", "nodeIP can't be a multicast address"),
        ("169.254.1.1", "nodeIP can't be a link-local unicast address"),
        ("fe80::1", "nodeIP can't be a link-local unicast address"),
        ("0.0.0.0", "nodeIP can't be an all zeros address"),
        ("1.2.3.4", 'node IP: "1.2.3.4" not found in the host\'s network interfaces'),
        ("10.0.0.1", None),
    ],
)
def test_node_ips_are_validated(text: str, problem: str | None) -> None:
    assert node_ip_problem(ipaddress.ip_address(text), ips("10.0.0.1")) == problem


@pytest.mark.parametrize(
    ("cloud", "flag", "annotation"),
    [
        (True, ("10.1.1.1",), "10.1.1.1"),
        (True, ("2600::1", "10.1.1.2"), "2600::1,10.1.1.2"),
        (True, (), None),
        (True, ("0.0.0.0",), None),
        (False, ("10.1.1.1",), None),
    ],
)
def test_a_cloud_is_told_the_flag(cloud: bool, flag: tuple[str, ...], annotation: str | None) -> None:
    assert settings(*flag, cloud=cloud).provided_node_ip == annotation


@pytest.mark.parametrize(
    ("text", "found", "ignored"),
    [
        ("", (), ()),
        ("10.0.0.1", ("10.0.0.1",), ()),
        (" 10.0.0.1 , fd00::1", ("10.0.0.1", "fd00::1"), ()),
        ("10.0.0.1,nonsense", ("10.0.0.1",), ("nonsense",)),
        ("::", ("::",), ()),
    ],
)
def test_the_flag_is_parsed(text: str, found: tuple[str, ...], ignored: tuple[str, ...]) -> None:
    assert parse_node_ips(text) == (ips(*found), ignored)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10.0.0.1,10.0.0.2", "must contain either a single IP or a dual-stack pair of IPs"),
        ("10.0.0.1,fd00::1,fd00::2", "must contain either a single IP or a dual-stack pair of IPs"),
        ("0.0.0.0,fd00::1", "dual-stack node IP cannot include '0.0.0.0' or '::'"),
    ],
)
def test_other_pairs_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="bad --node-ip") as caught:
        parse_node_ips(text)
    assert str(caught.value) == f'bad --node-ip "{text}": {message}'


def test_addresses_are_read_as_go_reads_them() -> None:
    assert parse_address("010.000.0.1") == ipaddress.ip_address("10.0.0.1")
    assert parse_address("::ffff:10.0.0.1") == ipaddress.ip_address("10.0.0.1")
    assert parse_address("host.example.com.net") is None
    assert parse_address("") is None
