"""What is left of a network by a crash or by somebody else is found and mended, and nothing stays in the end."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.network.machine import (
    MACHINE4,
    OUTSIDE4,
    Machine,
    Pod,
    ask,
    machine,
    specification,
)
from tests.network_namespace import network_namespace
from tests.patience import PATIENCE
from trikubelet.embedded.network.bridge.forwarding import IP6_FORWARD, IP_FORWARD
from trikubelet.embedded.network.bridge.host import look
from trikubelet.embedded.network.bridge.names import Names
from trikubelet.embedded.network.model import NetworkError, PortMapping
from trikubelet.linux.netlink import expressions, links, nftables, routes
from trikubelet.linux.netlink.messages import NLM_F_CREATE, Request, attribute, nested, network32, text
from trikubelet.linux.netlink.nftables import NFNL_SUBSYS_NFTABLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.embedded.network.bridge.network import BridgeNetwork
    from trikubelet.embedded.network.model import Attachment, PodNetworkSpec

pytestmark = pytest.mark.root
WEB = PortMapping(host_port=8080, container_port=80)
NAMES = Names("/runtime")
ACCEPT_RA = "sys/net/ipv6/conf/up0/accept_ra"


@pytest.fixture
async def on() -> AsyncIterator[Machine]:
    async with machine() as made:
        yield made


def recorded(*pods: Pod) -> dict[str, tuple[PodNetworkSpec, Attachment | None]]:
    return {each.spec.sandbox_id: (each.spec, each.attachment) for each in pods}


async def reconciled(network: BridgeNetwork, *pods: Pod) -> BridgeNetwork:
    await network.reconcile(recorded(*pods))
    return network


async def test_a_new_agent_finds_what_the_killed_one_made(on: Machine) -> None:
    killed = await reconciled(on.network())
    async with on.pod(killed, "a", WEB) as a:
        await on.serve(a.namespace, 80, "a")
        network = await reconciled(on.network(), a)
        assert await ask(on.outside, MACHINE4, 8080) == f"a sees {OUTSIDE4}"
        with pytest.raises(NetworkError, match="host port 8080/tcp leads to pod default/a already"):
            async with on.pod(network, "b", WEB):
                pass
        async with on.pod(network, "b") as b:
            assert not set(a.attachment.ips) & set(b.attachment.ips)
            assert b.attachment.state == a.attachment.state
        await network.detach(a.spec, a.attachment, None)
        with pytest.raises(ConnectionRefusedError):
            await ask(on.outside, MACHINE4, 8080)


async def test_somebody_deletes_all_rules(on: Machine) -> None:
    network = await reconciled(on.network())
    async with on.pod(network, "a", WEB) as a:
        await on.serve(a.namespace, 80, "a")
        with on.host.netfilter() as netfilter:
            await netfilter.transact(NFNL_SUBSYS_NFTABLES, nftables.delete_table(nftables.INET, NAMES.table))
        with pytest.raises(ConnectionRefusedError):
            await ask(on.outside, MACHINE4, 8080)
        other = PortMapping(host_port=8081, container_port=80)
        async with on.pod(network, "b", other):  # which finds no table to put its port into
            assert await ask(on.outside, MACHINE4, 8080) == f"a sees {OUTSIDE4}"
            with on.host.netfilter() as netfilter:
                await netfilter.transact(NFNL_SUBSYS_NFTABLES, nftables.delete_table(nftables.INET, NAMES.table))
        await reconciled(network, a)
        assert await ask(on.outside, MACHINE4, 8080) == f"a sees {OUTSIDE4}"


@pytest.mark.parametrize("restarted", [False, True])
async def test_somebody_deletes_the_bridge(on: Machine, restarted: bool) -> None:
    network = await reconciled(on.network())
    await on.serve(on.outside, 80, "outside")
    async with on.pod(network, "a") as a:
        with on.host.netlink() as route:
            await route.change([links.delete_link(NAMES.bridge)])
        await reconciled(on.network() if restarted else network, a)
        assert await ask(a.namespace, OUTSIDE4, 80) == f"outside sees {MACHINE4}"


async def test_half_an_attachment_goes(on: Machine) -> None:
    killed = await reconciled(on.network())
    spec = specification("half", WEB)
    with network_namespace() as namespace:
        before = await on.left()
        await killed.attach(spec, namespace)
        assert await on.left() != before
        network = on.network()
        await network.reconcile({spec.sandbox_id: (spec, None)})
        assert await on.left() == before
        await network.detach(spec, None, None)
        async with on.pod(network, "other", WEB):
            pass


async def test_a_pod_that_is_being_recorded_is_kept(on: Machine) -> None:
    network = await reconciled(on.network())
    await on.serve(on.outside, 80, "outside")
    async with on.pod(network, "a") as a:
        await reconciled(network)
        assert await ask(a.namespace, OUTSIDE4, 80) == f"outside sees {MACHINE4}"


async def test_attaching_fails_half_way(on: Machine) -> None:
    """A namespace that has an `eth0` already: nothing of the attempt is left, and its port is free."""
    network = await reconciled(on.network())
    spec = specification("a", WEB)
    with network_namespace() as namespace:
        first = await network.attach(spec, namespace)
        before = await on.left()
        with pytest.raises(
            NetworkError, match=r"cannot attach pod default/b to the network: make veth .*: File exists"
        ):
            await network.attach(specification("b", PortMapping(host_port=8081, container_port=80)), namespace)
        assert await on.left() == before
        async with on.pod(network, "c", PortMapping(host_port=8081, container_port=80)):
            pass
        await network.detach(spec, first, namespace)


async def test_attaching_is_cancelled(on: Machine) -> None:
    network = await reconciled(on.network())
    before = await on.left()
    with network_namespace() as namespace:
        for checkpoints in range(25):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(network.attach, specification("a", WEB), namespace)
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await network.detach(specification("a", WEB), None, namespace)
            assert await on.left() == before


async def test_detaching_what_is_gone(on: Machine) -> None:
    network = await reconciled(on.network())
    async with on.pod(network, "a", WEB) as a:
        pass
    await network.detach(a.spec, a.attachment, None)
    await network.detach(specification("never seen", WEB), None, None)


async def test_two_runtimes_side_by_side(on: Machine) -> None:
    before = await on.left()
    on.proc.write(ACCEPT_RA, "1")
    one, other = await reconciled(on.network("/one")), await reconciled(on.network("/other"))
    await on.serve(on.outside, 80, "outside")
    async with on.pod(one, "a") as a, on.pod(other, "b") as b:
        assert not set(a.attachment.state["subnets"]) & set(b.attachment.state["subnets"])
        for pod in (a, b):
            assert await ask(pod.namespace, OUTSIDE4, 80) == f"outside sees {MACHINE4}"
    assert on.proc.read(ACCEPT_RA) == "2"
    await one.close()
    async with on.pod(other, "c") as c:
        assert await ask(c.namespace, OUTSIDE4, 80) == f"outside sees {MACHINE4}"
    await other.close()
    assert await on.left() == before
    assert [on.proc.read(name) for name in (IP_FORWARD, IP6_FORWARD, ACCEPT_RA)] == ["0", "0", "1"]


async def test_what_was_forwarded_before_still_is(on: Machine) -> None:
    on.proc.write(IP_FORWARD, "1")
    network = await reconciled(on.network())
    await network.close()
    assert [on.proc.read(name) for name in (IP_FORWARD, IP6_FORWARD)] == ["1", "0"]


async def test_a_killed_agent_knows_what_was_before(on: Machine) -> None:
    await reconciled(on.network())
    network = await reconciled(on.network())
    await network.close()
    assert [on.proc.read(name) for name in (IP_FORWARD, IP6_FORWARD)] == ["0", "0"]


async def test_a_subnet_that_the_machine_has_a_route_to_is_not_chosen(on: Machine) -> None:
    first = await reconciled(on.network())
    async with on.pod(first, "a") as a:
        usual = ipaddress.ip_network(a.attachment.state["subnets"][0])
    await first.close()
    with on.host.netlink() as route:
        lan = links.decode_link((await route.get(links.get_link("lan")))[0])
        assert lan is not None
        await route.change([routes.add_link_route(lan.index, usual.supernet(3))])
    network = await reconciled(on.network())
    async with on.pod(network, "a") as a:
        assert not ipaddress.ip_network(a.attachment.state["subnets"][0]).overlaps(usual.supernet(3))


async def test_two_runtimes_never_have_the_same_subnet(on: Machine) -> None:
    """Even when both chose it before either had it: the kernel allows one route to it."""
    usual = "10.88.0.0/24"
    await reconciled(on.network("/one", [usual]))
    other = on.network("/other", [usual])
    with pytest.raises(NetworkError, match=f"another route to the pods' subnet {usual}"):
        await other.reconcile({})
    assert "another route" in await other.problem()
    with network_namespace() as namespace, pytest.raises(NetworkError, match="another route"):
        await other.attach(specification("a"), namespace)


async def test_other_subnets_for_new_pods(on: Machine) -> None:
    network = await reconciled(on.network())
    await on.serve(on.outside, 80, "outside")
    async with on.pod(network, "before") as before:
        await network.set_subnets(["10.77.1.0/24"])
        async with on.pod(network, "after") as after:
            assert after.attachment.ips == ("10.77.1.2",)
            await on.serve(before.namespace, 80, "before")
            assert await ask(after.namespace, before.ip, 80) == "before sees 10.77.1.2"
            for pod in (before, after):
                assert await ask(pod.namespace, OUTSIDE4, 80) == f"outside sees {MACHINE4}"
    await network.reconcile({})
    with on.host.netlink() as route:
        found = await look(route)
    bridge = found.bridge(NAMES)
    assert bridge is not None
    assert [str(each.interface) for each in found.addresses if each.link == bridge.index] == ["10.77.1.1/24"]


def forward_chain(family: int, table: str, name: str) -> list[Request]:
    """A chain that drops what is forwarded, as `iptables -P FORWARD DROP` makes it."""
    place = network32(1, nftables.HOOK_FORWARD) + network32(2, 0)
    body = bytes([family, 0, 0, 0]) + text(1, table) + text(3, name) + nested(4, place) + network32(5, 0)
    chain = Request(10 << 8 | 3, body + attribute(7, b"filter\0"), NLM_F_CREATE)
    return [*nftables.replace_table(family, table, "")[:1], chain]


async def test_iptables_drops_what_it_does_not_know(on: Machine) -> None:
    chains = forward_chain(expressions.IPV4, "filter", "FORWARD") + forward_chain(expressions.IPV6, "filter", "FORWARD")
    with on.host.netfilter() as netfilter:
        await netfilter.transact(NFNL_SUBSYS_NFTABLES, chains)
        network = await reconciled(on.network())
        assert network.warnings == ()
        await on.serve(on.outside, 80, "outside")
        async with on.pod(network, "a", WEB) as a:
            await on.serve(a.namespace, 80, "a")
            await reconciled(network, a)
            assert await ask(a.namespace, OUTSIDE4, 80) == f"outside sees {MACHINE4}"
            assert await ask(on.outside, MACHINE4, 8080) == f"a sees {OUTSIDE4}"
        for family, left in ((expressions.IPV4, 2), (expressions.IPV6, 2)):
            assert len(await netfilter.dump(nftables.list_rules(family, "filter", "FORWARD"))) == left
        await network.close()
        for family in (expressions.IPV4, expressions.IPV6):
            assert await netfilter.dump(nftables.list_rules(family, "filter", "FORWARD")) == []


async def test_another_table_drops_what_it_does_not_know(on: Machine) -> None:
    with on.host.netfilter() as netfilter:
        await netfilter.transact(NFNL_SUBSYS_NFTABLES, forward_chain(nftables.INET, "mine", "guard"))
    network = await reconciled(on.network())
    (warning,) = network.warnings
    assert warning.startswith("the chain inet mine guard of nf_tables drops what is forwarded")
    await network.close()


async def test_counters_as_the_pods_see_them(on: Machine) -> None:
    network = await reconciled(on.network())
    async with on.pod(network, "a") as a, on.pod(network, "b") as b:
        with a.namespace.open_socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            for _ in range(50):
                sending.sendto(bytes(1000), (b.ip, 9))
        with trio.fail_after(PATIENCE):
            while True:
                counted = await network.statistics([a.spec.sandbox_id, b.spec.sandbox_id, "unknown"])
                sender, receiver = counted[a.spec.sandbox_id], counted[b.spec.sandbox_id]
                if receiver.rx_bytes >= 50_000:
                    break
                await trio.sleep(0.01)
        assert len(counted) == 2
        assert (sender.name, sender.tx_errors, receiver.rx_errors) == ("eth0", 0, 0)
        assert sender.tx_bytes >= 50_000
        assert sender.rx_bytes < 50_000


async def test_no_address_of_the_next_version(on: Machine) -> None:
    on.proc.write("sys/net/ipv6/conf/all/disable_ipv6", "1")
    network = await reconciled(on.network())
    async with on.pod(network, "a") as a:
        assert len(a.attachment.ips) == 1
    await network.close()
    assert on.proc.read(IP6_FORWARD) == "0"
