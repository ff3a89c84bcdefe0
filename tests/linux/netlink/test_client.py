"""The kernel's answers, in a network namespace of the test's own."""

from __future__ import annotations

import errno
import ipaddress
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.network_namespace import Namespace, network_namespace
from trikubelet.linux.netlink import conntrack, expressions, links, nftables, routes
from trikubelet.linux.netlink.client import NetlinkError, NetlinkSocket
from trikubelet.linux.netlink.nftables import INET, NFNL_SUBSYS_NFTABLES, Element, joined

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trikubelet.linux.netlink.messages import Request

pytestmark = pytest.mark.root
MAC = bytes.fromhex("0a5800000001")
ELEMENT = Element(joined(b"\6", b"\x1f\x90"), joined(bytes([10, 0, 0, 2]), b"\0\x50"), "default/web")


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with network_namespace() as made:
        yield made


@pytest.fixture
async def route(namespace: Namespace) -> AsyncIterator[NetlinkSocket]:
    with namespace.netlink() as opened:
        yield opened


@pytest.fixture
async def netfilter(namespace: Namespace) -> AsyncIterator[NetlinkSocket]:
    with namespace.netfilter() as opened:
        yield opened


async def link(route: NetlinkSocket, name: str) -> links.Link:
    return links.only_link(await route.get(links.get_link(name)))


async def test_a_bridge_as_it_was_asked_for(route: NetlinkSocket) -> None:
    await route.change([links.make_bridge("br", mac=MAC, mtu=1400), links.set_alias("br", "a note")])
    made = await link(route, "br")
    assert attrs.evolve(made, index=0) == links.Link(index=0, name="br", kind="bridge", mtu=1400, alias="a note")


async def test_packets_of_127_are_let_through(route: NetlinkSocket, namespace: Namespace) -> None:
    await route.change([links.make_bridge("br", mac=MAC, mtu=1500), links.allow_local_addresses("br")])
    with namespace.call(open, "/proc/sys/net/ipv4/conf/br/route_localnet") as setting:
        assert setting.read() == "1\n"


async def test_a_veth_pair_between_namespaces(route: NetlinkSocket) -> None:
    with network_namespace() as pod, pod.netlink() as inside, pod.opened() as descriptor:
        await route.change([links.make_bridge("br", mac=MAC, mtu=1500)])
        bridge = await link(route, "br")
        veth = links.make_veth(
            "v0", bridge=bridge.index, mtu=1400, peer_name="eth0", peer_mac=MAC, peer_namespace=descriptor
        )
        await route.change([veth, links.hairpin("v0")])
        await inside.change([links.set_up("eth0")])
        assert (await link(inside, "eth0")).mtu == 1400
        port = await link(route, "v0")
        assert (port.name, port.kind, port.up, port.master) == ("v0", "veth", True, bridge.index)
        assert await route.try_each([links.delete_link("v0")]) == [None]
        with pytest.raises(NetlinkError) as error:
            await inside.get(links.get_link("eth0"))
        assert error.value.errno == errno.ENODEV


async def test_addresses_and_routes_come_back(route: NetlinkSocket) -> None:
    await route.change([links.make_bridge("br", mac=MAC, mtu=1500), links.set_up("br")])
    index = (await link(route, "br")).index
    for interface in map(ipaddress.ip_interface, ("10.9.0.1/24", "fd00:9::1/64")):
        await route.change(
            [
                routes.add_link_route(index, interface.network),
                routes.add_address(index, interface, prefix_route=False),
                routes.add_default_route(index, interface.network[9]),
            ]
        )
        addresses = [routes.decode_address(each) for each in await route.dump(routes.list_addresses())]
        assert routes.AssignedAddress(index, interface) in addresses
        found = [routes.decode_route(each) for each in await route.dump(routes.list_routes())]
        assert routes.Route(interface.network, index, 254) in found
        everything = ipaddress.ip_network("0.0.0.0/0" if interface.version == 4 else "::/0")
        assert routes.Route(everything, index, 254) in found
        (error,) = await route.try_each([routes.add_link_route(index, interface.network)])
        assert error is not None
        assert error.errno == errno.EEXIST
        await route.change([routes.delete_address(index, interface)])


def table() -> list[Request]:
    return [
        *nftables.replace_table(INET, "t", "a note"),
        nftables.base_chain(INET, "t", "forward", kind="filter", hook=nftables.HOOK_FORWARD, priority=0),
        nftables.make_map(INET, "t", "m", [nftables.PROTOCOL, nftables.PORT], [nftables.ADDRESS4, nftables.PORT], 1),
        nftables.append_rule(INET, "t", "forward", expressions.from_interface("br"), expressions.accept()),
        *nftables.add_elements(INET, "t", "m", [ELEMENT]),
    ]


async def test_a_table_is_replaced_as_a_whole(netfilter: NetlinkSocket) -> None:
    for _ in range(2):
        await netfilter.transact(NFNL_SUBSYS_NFTABLES, table())
        (element,) = [
            each
            for message in await netfilter.dump(nftables.list_elements(INET, "t", "m"))
            for each in nftables.decode_elements(message)
        ]
        assert (element, element.comment) == (ELEMENT, ELEMENT.comment)
        (chain,) = filter(None, map(nftables.decode_chain, await netfilter.dump(nftables.list_chains())))
        assert chain == nftables.Chain(family=INET, table="t", name="forward", hook=nftables.HOOK_FORWARD, drops=False)
    for _ in range(2):
        await netfilter.transact(NFNL_SUBSYS_NFTABLES, nftables.delete_table(INET, "t"))
        assert await netfilter.dump(nftables.list_tables()) == []


async def test_a_refused_change_undoes_its_transaction(netfilter: NetlinkSocket) -> None:
    missing = nftables.delete_elements(INET, "t", "m", [Element(joined(b"\6", b"\0\1"))])
    with pytest.raises(NetlinkError, match="delete from map m of table t: No such file or directory") as error:
        await netfilter.transact(NFNL_SUBSYS_NFTABLES, [*table(), *missing])
    assert error.value.errno == errno.ENOENT
    assert await netfilter.dump(nftables.list_tables()) == []


async def test_an_inserted_rule_is_found_by_its_comment(netfilter: NetlinkSocket) -> None:
    rule = nftables.insert_rule(INET, "t", "forward", expressions.accept(), comment="ours")
    await netfilter.transact(NFNL_SUBSYS_NFTABLES, [*table(), rule])
    listed = nftables.list_rules(INET, "t", "forward")
    ours, other = filter(None, map(nftables.decode_rule, await netfilter.dump(listed)))
    assert (ours.comment, other.comment) == ("ours", "")
    await netfilter.transact(NFNL_SUBSYS_NFTABLES, [nftables.delete_rule(INET, "t", "forward", ours.handle)])
    assert list(filter(None, map(nftables.decode_rule, await netfilter.dump(listed)))) == [other]


async def test_udp_is_forgotten(netfilter: NetlinkSocket) -> None:
    address = ipaddress.ip_address("10.0.0.2")
    requests = [conntrack.forget_udp_to_port(4, 53), conntrack.forget_udp_answered_by(address, 53)]
    for error in await netfilter.try_each(requests):
        if error is not None:
            pytest.skip(f"a kernel before 6.8: {error}")


async def test_the_answer_to_who_was_cancelled_is_passed_over(route: NetlinkSocket) -> None:
    sent: list[bytes] = []
    with trio.CancelScope() as scope:

        async def send_and_be_cancelled(payload: bytes) -> None:
            sent.append(payload)
            route._plain.send(payload)
            scope.cancel()

        await route._exchange([(links.list_links(), 0x300)], {0}, send_and_be_cancelled)
    assert sent
    with pytest.raises(NetlinkError, match="look for nothing"):
        await route.get(links.get_link("nothing"))


async def test_nobody_answers(route: NetlinkSocket, autojump_clock: trio.testing.MockClock) -> None:
    unacknowledged = [(links.set_up("lo"), 0)]
    with pytest.raises(NetlinkError, match="bring lo up: no answer from the kernel within 10 s") as error:
        await route._exchange(unacknowledged, {0}, route._send)
    assert error.value.errno == errno.ETIMEDOUT
