"""Subnets, addresses, names, host ports and notes: what is decided without looking at the machine."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.embedded.network.bridge import rules
from trikubelet.embedded.network.bridge.addresses import (
    choose_ipv4,
    gateway,
    next_free,
    parse_subnets,
    private_ipv6,
)
from trikubelet.embedded.network.bridge.forwarding import (
    IP6_FORWARD,
    IP_FORWARD,
    ProcFiles,
    earlier_in_note,
    has_ipv6,
    note_of_earlier,
    wanted_sysctls,
)
from trikubelet.embedded.network.bridge.names import Names, pod_mac
from trikubelet.embedded.network.bridge.ports import bindings, conflict
from trikubelet.embedded.network.model import NetworkError, PodNetworkSpec, PortMapping
from trikubelet.linux.netlink.links import LONGEST_ALIAS, LONGEST_NAME
from trikubelet.linux.netlink.messages import Message
from trikubelet.linux.netlink.nftables import decode_elements

if TYPE_CHECKING:
    from pathlib import Path

PREFIXES = st.builds(
    lambda address, length: ipaddress.ip_network((address, length), strict=False),
    st.integers(0, 2**32 - 1),
    st.integers(0, 32),
)
POD4, POD6 = ipaddress.ip_address("10.0.0.2"), ipaddress.ip_address("fd00::2")


@given(st.text(), st.lists(PREFIXES, max_size=10))
def test_a_chosen_subnet_is_nobody_elses(seed: str, taken: list[ipaddress.IPv4Network]) -> None:
    try:
        chosen = choose_ipv4(seed, taken)
    except NetworkError:
        assert any(each.prefixlen and each.prefixlen < 24 for each in taken)
        return
    assert chosen == choose_ipv4(seed, taken)
    assert chosen.is_private
    assert not any(each.prefixlen and each.overlaps(chosen) for each in taken)


def test_a_default_route_takes_no_subnet() -> None:
    assert choose_ipv4("a", [ipaddress.IPv4Network("0.0.0.0/0")]) == choose_ipv4("a", [])
    assert choose_ipv4("a", []) != choose_ipv4("b", [])


def test_a_machine_with_routes_to_everything() -> None:
    taken = list(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
    with pytest.raises(NetworkError, match="no subnet for pods: the machine has routes to all of"):
        choose_ipv4("a", taken)
    assert choose_ipv4("a", taken[:2]).subnet_of(taken[2])


@given(st.text())
def test_the_own_ipv6_subnet(seed: str) -> None:
    subnet = private_ipv6(seed)
    assert subnet.subnet_of(ipaddress.IPv6Network("fd00::/8"))
    assert subnet.prefixlen == 64


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["10.0.0.1/24"], "has host bits set"),
        (["pods"], "does not appear to be"),
        (["10.0.0.0/31"], "has no room for a gateway and a pod"),
        (["fd00::/127"], "has no room"),
        (["10.0.0.0/24", "10.0.1.0/24"], "at most one of IPv4 and one of IPv6"),
    ],
)
def test_subnets_that_cannot_be(texts: list[str], problem: str) -> None:
    with pytest.raises(NetworkError, match=problem):
        parse_subnets(texts)


def test_subnets_of_both_families() -> None:
    assert [str(each) for each in parse_subnets(["fd00::/64", "10.0.0.0/30"])] == ["fd00::/64", "10.0.0.0/30"]


@pytest.mark.parametrize("text", ["10.0.0.0/29", "fd00::/125"])
def test_every_address_is_given_once_and_then_none(text: str) -> None:
    (subnet,) = parse_subnets([text])
    taken: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for _ in range(subnet.num_addresses - (3 if subnet.version == 4 else 2)):
        taken.append(next_free(subnet, taken, taken[-1] if taken else None))
    assert len(set(taken)) == len(taken)
    assert all(each in subnet for each in taken)
    assert gateway(subnet).ip not in taken
    assert subnet.network_address not in taken
    if subnet.version == 4:
        assert subnet.broadcast_address not in taken
    with pytest.raises(NetworkError, match=f"no address is free in {subnet}"):
        next_free(subnet, taken, taken[-1])
    assert next_free(subnet, taken[:2] + taken[3:], taken[-1]) == taken[2]


def test_an_address_rests_before_it_is_given_again() -> None:
    (subnet,) = parse_subnets(["10.0.0.0/29"])
    given_addresses = []
    last = None
    for _ in range(7):
        last = next_free(subnet, [], last)
        given_addresses.append(str(last))
    assert given_addresses == [f"10.0.0.{each}" for each in (2, 3, 4, 5, 6, 2, 3)]


@given(st.text(), st.text())
def test_names_fit_and_tell_who_made_what(root: str, sandbox: str) -> None:
    names = Names(root)
    for name in (names.bridge, names.veth(sandbox)):
        assert len(name) <= LONGEST_NAME
    assert names.veth(sandbox).startswith(names.veths)
    assert not names.bridge.startswith(names.veths)


def test_an_address_has_its_mac() -> None:
    assert pod_mac(ipaddress.ip_address("10.1.2.3")) == bytes([0x0A, 0x58, 10, 1, 2, 3])
    assert len(pod_mac(POD6)) == 6


def spec(*ports: PortMapping, name: str = "web") -> PodNetworkSpec:
    return PodNetworkSpec(sandbox_id=name, namespace="default", name=name, uid=name, ports=ports)


def port(number: int, host_ip: str = "", protocol: str = "tcp") -> PortMapping:
    return PortMapping(host_port=number, container_port=80, protocol=protocol, host_ip=host_ip)


@pytest.mark.parametrize(
    ("host_ip", "maps"),
    [
        ("", ["host-ports4", "host-ports6"]),
        ("0.0.0.0", ["host-ports4"]),
        ("::", ["host-ports6"]),
        ("192.0.2.1", ["address-ports4"]),
        ("2001:db8::1", ["address-ports6"]),
    ],
)
def test_which_addresses_a_host_port_is_for(host_ip: str, maps: list[str]) -> None:
    assert [each.map_name for each in bindings(spec(port(8080, host_ip)), [POD4, POD6])] == maps


def test_a_host_port_for_a_family_that_the_pod_has_not() -> None:
    assert bindings(spec(port(8080, "2001:db8::1")), [POD4]) == ()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (port(0), "cannot map host port 0 to 80 by 'tcp': expected ports of 1 to 65535"),
        (port(65536), "cannot map host port 65536"),
        (port(80, protocol="icmp"), "one of tcp, udp, sctp"),
        (port(80, "localhost"), "pod default/web: hostIP of host port 80: 'localhost' does not appear"),
    ],
)
def test_what_is_no_host_port(wrong: PortMapping, problem: str) -> None:
    with pytest.raises(NetworkError, match=problem):
        bindings(spec(wrong), [POD4])


@pytest.mark.parametrize(
    ("one", "other", "both_can"),
    [
        (port(80), port(80), False),
        (port(80), port(81), True),
        (port(80), port(80, protocol="udp"), True),
        (port(80), port(80, "127.0.0.1"), False),
        (port(80, "0.0.0.0"), port(80, "127.0.0.1"), False),
        (port(80, "0.0.0.0"), port(80, "::"), True),
        (port(80, "192.0.2.1"), port(80, "127.0.0.1"), True),
        (port(80, "::1"), port(80, "0:0::1"), False),
    ],
)
def test_who_stands_in_whose_way(one: PortMapping, other: PortMapping, both_can: bool) -> None:
    first, second = (bindings(spec(each, name=name), [POD4, POD6]) for each, name in ((one, "one"), (other, "other")))
    assert (conflict(second, first) == "") is both_can
    assert (conflict(first, second) == "") is both_can
    if not both_can:
        assert "leads to pod default/one already" in conflict(second, first)


def test_a_pod_in_its_own_way() -> None:
    assert conflict(bindings(spec(port(80), port(80, "127.0.0.1")), [POD4]), []) != ""


def test_the_table_has_the_ports_of_pods() -> None:
    opened = bindings(spec(port(8080), port(53, "192.0.2.1", "udp")), [POD4])
    requests = rules.table(Names("/runtime"), (), opened)
    elements = [each for request in requests for each in decode_elements(Message(request.kind, 0, 0, request.body))]
    assert [each.comment for each in elements] == ["default/web", "default/web"]
    assert [each.key for each in elements] == [
        b"\x06\0\0\0\x1f\x90\0\0",
        bytes([192, 0, 2, 1]) + b"\x11\0\0\0\0\x35\0\0",
    ]
    assert {each.data for each in elements} == {POD4.packed + b"\0\x50\0\0"}
    assert rules.close_ports(Names("/runtime"), ()) == rules.open_ports(Names("/runtime"), ()) == []


# --- Forwarding -------------------------------------------------------------------------------------------------------


def proc(tmp_path: Path, **files: str) -> ProcFiles:
    for name, value in files.items():
        path = tmp_path / "sys/net" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    return ProcFiles(tmp_path)


def test_forwarding_is_switched_on_last(tmp_path: Path) -> None:
    """Else an interface would forget its router for a moment."""
    files = proc(
        tmp_path,
        ipv4__ip_forward="0",
        ipv6__conf__all__forwarding="0",
        ipv6__conf__all__accept_ra="1",
        ipv6__conf__eth0__accept_ra="1",
        ipv6__conf__eth1__accept_ra="0",
    )
    eth0 = "sys/net/ipv6/conf/eth0/accept_ra"
    assert list(wanted_sysctls(files, ipv6=True).items()) == [(IP_FORWARD, "1"), (eth0, "2"), (IP6_FORWARD, "1")]
    assert wanted_sysctls(files, ipv6=False) == {IP_FORWARD: "1"}


def test_a_machine_that_forwards_already(tmp_path: Path) -> None:
    files = proc(tmp_path, ipv4__ip_forward="1", ipv6__conf__all__forwarding="1", ipv6__conf__eth0__accept_ra="1")
    assert wanted_sysctls(files, ipv6=True) == {}


def test_a_machine_without_ipv6(tmp_path: Path) -> None:
    assert not has_ipv6(proc(tmp_path, ipv4__ip_forward="1"))
    assert not has_ipv6(proc(tmp_path, ipv6__conf__all__disable_ipv6="1", ipv6__conf__default__disable_ipv6="0"))


def test_a_note_is_read_again() -> None:
    earlier = {IP_FORWARD: "0", "sys/net/ipv6/conf/eth0/accept_ra": "1", IP6_FORWARD: "0"}
    assert earlier_in_note(note_of_earlier(earlier)) == earlier
    assert note_of_earlier({}) == ""


def test_a_note_that_is_too_long_keeps_what_counts() -> None:
    many = {f"sys/net/ipv6/conf/interface{each}/accept_ra": "1" for each in range(20)}
    note = note_of_earlier({IP_FORWARD: "0", **many, IP6_FORWARD: "0"})
    assert len(note) <= LONGEST_ALIAS
    assert earlier_in_note(note).items() >= {IP_FORWARD: "0", IP6_FORWARD: "0"}.items()
    assert len(earlier_in_note(note)) > 2


@given(st.one_of(st.text(), st.text().map(lambda each: "trikubelet " + each)))
def test_a_note_of_somebody_else(note: str) -> None:
    earlier_in_note(note)


@pytest.mark.parametrize(
    "note",
    ['trikubelet {"sys/kernel/panic":"1"}', 'trikubelet {"sys/net/ipv4/../../kernel/panic":"1"}', "trikubelet []"],
)
def test_a_note_sets_nothing_but_what_is_noted(note: str) -> None:
    assert earlier_in_note(note) == {}
