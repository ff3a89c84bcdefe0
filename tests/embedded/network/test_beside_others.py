"""A network beside what others have on the machine: subnets, sysctls, chains that drop, other runtimes."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import shutil
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.network.machine import (
    MACHINE4,
    MACHINE6,
    OUTSIDE4,
    OUTSIDE6,
    Machine,
    NamespacesProc,
    ask,
    machine,
    reconciled,
    specification,
)
from tests.network_namespace import network_namespace
from trikubelet.embedded.network.bridge.addresses import choose_ipv4
from trikubelet.embedded.network.bridge.forwarding import IP6_FORWARD, IP_FORWARD, ProcFiles
from trikubelet.embedded.network.bridge.host import look, make_bridge
from trikubelet.embedded.network.bridge.names import Names
from trikubelet.embedded.network.bridge.network import BridgeNetwork
from trikubelet.embedded.network.model import NetworkError, PortMapping
from trikubelet.linux.netlink import expressions, links, nftables, routes
from trikubelet.linux.netlink.client import NETLINK_NETFILTER
from trikubelet.linux.netlink.messages import NLM_F_CREATE, Request, attribute, nested, network32, text
from trikubelet.linux.netlink.nftables import NFNL_SUBSYS_NFTABLES

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator
    from pathlib import Path


pytestmark = pytest.mark.root
WEB = PortMapping(host_port=8080, container_port=80)
NAMES = Names("/runtime")
ACCEPT_RA = "sys/net/ipv6/conf/up0/accept_ra"


@pytest.fixture
async def on() -> AsyncIterator[Machine]:
    async with machine() as made:
        yield made


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


async def test_two_runtimes_that_start_at_the_same_time(on: Machine) -> None:
    """Both looked before either had a bridge, and would choose the same subnet."""
    one = Names("/one")
    wanted = choose_ipv4(one.root, [])
    rival = next(each for each in map(Names, map(str, itertools.count())) if choose_ipv4(each.root, []) == wanted)
    with on.host.netlink() as route:
        seen = await look(route)
        made = [await make_bridge(route, names, seen, on.proc, wanted=(), leased=()) for names in (one, rival)]
    assert made[0].subnets[0] == wanted
    assert not made[1].subnets[0].overlaps(wanted)


async def test_a_machine_that_cannot_forward(on: Machine, tmp_path: Path) -> None:
    network = BridgeNetwork("/runtime", open_socket=on.host.socket, proc=ProcFiles(tmp_path))
    with pytest.raises(NetworkError, match="/proc/sys/net/ipv4/ip_forward is not there"):
        await network.reconcile({})
    await network.close()


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


def forward_chain(family: int, table: str, name: str, *, accepts: int = 0) -> list[Request]:
    """A chain that drops what is forwarded, as `iptables -P FORWARD DROP` makes it."""
    place = network32(1, nftables.HOOK_FORWARD) + network32(2, 0)
    body = bytes([family, 0, 0, 0]) + text(1, table) + text(3, name) + nested(4, place) + network32(5, accepts)
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


async def test_firewalld_is_told_of(on: Machine) -> None:
    with on.host.netfilter() as netfilter:
        chain = forward_chain(nftables.INET, "firewalld", "filter_FORWARD", accepts=1)
        await netfilter.transact(NFNL_SUBSYS_NFTABLES, chain)
    network = await reconciled(on.network())
    (warning,) = network.warnings
    assert f"--zone=trusted --add-interface={NAMES.bridge}" in warning
    await network.close()


@pytest.mark.parametrize("program", ["iptables-legacy", "ip6tables-legacy"])
async def test_old_iptables_drops_what_it_does_not_know(on: Machine, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    inside = ["nsenter", f"--net={on.host.path}", program]
    made = await trio.run_process([*inside, "-N", "mine"], check=False, capture_stderr=True)
    if made.returncode != 0:
        pytest.skip(f"this kernel has no such tables: {made.stderr.decode()}")
    network = on.network()
    assert (await network.plans())[1] == []
    await trio.run_process([*inside, "-P", "FORWARD", "DROP"])
    await network.reconcile({})
    (warning,) = network.warnings
    assert warning.startswith(f"{program} drops what is forwarded, so pods may reach no other machine")
    assert (await network.plans())[1] == [warning]


async def test_what_will_be_changed_is_told_beforehand(on: Machine) -> None:
    with on.host.netfilter() as netfilter:
        chain = forward_chain(expressions.IPV4, "filter", "FORWARD")
        await netfilter.transact(NFNL_SUBSYS_NFTABLES, chain)
    before = await on.left()
    (forward, *others, iptables), warnings = await on.network().plans()
    assert warnings == []
    assert forward == "/proc/sys/net/ipv4/ip_forward will be 1 while the runtime is there"
    assert others[-1] == "/proc/sys/net/ipv6/conf/all/forwarding will be 1 while the runtime is there"
    assert iptables.startswith("iptables drops what is forwarded: two rules for the bridge")
    assert await on.left() == before
    assert await on.network().problem() == ""


async def test_only_the_next_version(on: Machine) -> None:
    network = await reconciled(on.network(subnets=["fd00:77::/64"]))
    await on.serve(on.outside, 80, "outside")
    async with on.pod(network, "a", WEB) as a:
        await on.serve(a.namespace, 80, "a")
        assert a.attachment.ips == ("fd00:77::2",)
        assert await ask(a.namespace, OUTSIDE6, 80) == f"outside sees {MACHINE6}"
        assert await ask(on.outside, MACHINE6, 8080) == f"a sees {OUTSIDE6}"
        with pytest.raises(ConnectionRefusedError):
            await ask(on.outside, MACHINE4, 8080)
    await network.close()


async def test_somebody_else_gave_the_bridge_an_address(on: Machine) -> None:
    network = await reconciled(on.network())
    theirs = ipaddress.ip_interface("10.66.0.7/32")
    async with on.pod(network, "a") as a:
        with on.host.netlink() as route:
            bridge = (await look(route)).bridge(NAMES)
            assert bridge is not None
            await route.change([routes.add_address(bridge.index, theirs)])
            again = await reconciled(on.network(), a)
            assert routes.AssignedAddress(bridge.index, theirs) in (await look(route)).addresses
        async with on.pod(again, "b") as b:
            assert a.attachment.state == b.attachment.state


async def test_a_kernel_without_nf_tables(on: Machine) -> None:
    async def refuse(family: int, kind: int, protocol: int) -> socket.socket:
        if protocol == NETLINK_NETFILTER:
            raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")
        return await on.host.socket(family, kind, protocol)

    before = await on.left()
    network = BridgeNetwork("/runtime", open_socket=refuse, proc=on.proc)
    for _ in range(2):
        assert (await network.problem()).startswith("the kernel has no nf_tables (CONFIG_NF_TABLES, module nf_tables)")
        with pytest.raises(NetworkError, match="the kernel has no nf_tables"):
            await network.reconcile({})
        with pytest.raises(NetworkError, match="the kernel has no nf_tables"):
            await network.attach(specification("a"), on.outside)
    await network.detach(specification("a"), None, None)
    await network.close()
    assert await on.left() == before


async def test_sysctls_that_cannot_be_set(on: Machine) -> None:
    class ReadOnly(NamespacesProc):
        def write(self, name: str, value: str) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

    before = await on.left()
    network = BridgeNetwork("/runtime", open_socket=on.host.socket, proc=ReadOnly(namespace=on.host))
    with pytest.raises(NetworkError, match=r"has to be . for pods to have a network, and cannot be set: Read-only"):
        await network.reconcile({})
    assert "cannot be set: Read-only file system" in await network.problem()
    await network.close()
    assert await on.left() == before


async def test_no_address_of_the_next_version(on: Machine) -> None:
    on.proc.write("sys/net/ipv6/conf/all/disable_ipv6", "1")
    network = await reconciled(on.network())
    async with on.pod(network, "a") as a:
        assert len(a.attachment.ips) == 1
    await network.close()
    assert on.proc.read(IP6_FORWARD) == "0"
