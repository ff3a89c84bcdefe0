"""What is left of a network by a crash or by somebody else is found and mended, and nothing stays in the end."""

from __future__ import annotations

import itertools
import socket
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.embedded.network.machine import (
    MACHINE4,
    OUTSIDE4,
    Machine,
    ask,
    machine,
    reconciled,
    recorded,
    specification,
)
from tests.network_namespace import network_namespace
from tests.patience import PATIENCE
from trikubelet.embedded.network.bridge.forwarding import IP6_FORWARD, IP_FORWARD
from trikubelet.embedded.network.bridge.names import Names
from trikubelet.embedded.network.model import Attachment, NetworkError, PortMapping
from trikubelet.linux.netlink import links, nftables
from trikubelet.linux.netlink.client import NetlinkSocket
from trikubelet.linux.netlink.nftables import NFNL_SUBSYS_NFTABLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


pytestmark = pytest.mark.root
WEB = PortMapping(host_port=8080, container_port=80)
NAMES = Names("/runtime")
ACCEPT_RA = "sys/net/ipv6/conf/up0/accept_ra"


@pytest.fixture
async def on() -> AsyncIterator[Machine]:
    async with machine() as made:
        yield made


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
        assert await on.there() != before
        network = on.network()
        await network.reconcile({spec.sandbox_id: (spec, None)})
        assert await on.left() == before
        await network.detach(spec, None, None)
        async with on.pod(network, "other", WEB):
            pass


async def test_an_agent_is_killed_at_any_point(on: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each time that it speaks to the kernel: what it made is found, and nothing stays."""
    before = await on.left()
    spec = specification("a", WEB)
    exchange = NetlinkSocket._exchange
    lived = False
    for step in range(100):
        with network_namespace() as namespace:
            attached: list[Attachment] = []
            with monkeypatch.context() as patch, suppress(Killed):
                patch.setattr(NetlinkSocket, "_exchange", killed_after(step, exchange))
                killed = await reconciled(on.network())
                attached.append(await killed.attach(spec, namespace))
                await killed.detach(spec, attached[0], namespace)
                await killed.close()
                lived = True
            network = on.network()
            await network.reconcile({spec.sandbox_id: (spec, attached[0] if attached else None)})
            with pytest.raises(NetworkError) if attached else nullcontext():
                async with on.pod(network, "b", WEB):
                    pass
            await network.detach(spec, attached[0] if attached else None, None)
            async with on.pod(network, "c", WEB):
                pass
            await network.close()
        assert await on.left() == before
        assert [on.proc.read(name) for name in (IP_FORWARD, IP6_FORWARD)] == ["0", "0"]
        if lived:
            break
    assert lived
    assert step > 20


class Killed(BaseException):
    """From here on this process does nothing any more."""


def killed_after(step: int, exchange: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    steps = itertools.count()

    async def until_then(*args: object) -> Any:
        if next(steps) >= step:
            raise Killed
        return await exchange(*args)

    return until_then


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
        before = await on.there()
        with pytest.raises(
            NetworkError, match=r"cannot attach pod default/b to the network: make veth .*: File exists"
        ):
            await network.attach(specification("b", PortMapping(host_port=8081, container_port=80)), namespace)
        assert await on.there() == before
        async with on.pod(network, "c", PortMapping(host_port=8081, container_port=80)):
            pass
        await network.detach(spec, first, namespace)


async def test_a_link_that_somebody_holds_goes_later_and_its_address_rests(on: Machine) -> None:
    """It goes with the pod's namespace, for which nobody waits; here another process is still in that."""
    network = await reconciled(on.network(subnets=["10.9.9.0/29"]))
    before = await on.left()
    with network_namespace() as namespace:
        spec = specification("a", WEB)
        attachment = await network.attach(spec, namespace)
        await network.detach(spec, attachment, namespace)
        assert await on.there() != before
        for name in "bcd":
            async with on.pod(network, name, WEB) as pod:
                assert pod.ip != attachment.ips[0]
        async with on.pod(network, "e", WEB), on.pod(network, "f"):
            pass  # four addresses were given and not looked after: now they are
        await network.reconcile({})
        assert await on.left() == before


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


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("delay", range(0, 12, 3))
async def test_reconciling_while_a_pod_is_being_detached(on: Machine, known: bool, delay: int) -> None:
    """The runtime forgets it only afterwards, so it is among those to be reconciled."""
    before = await on.left()
    first = await reconciled(on.network())
    network = first if known else on.network()
    async with on.pod(first, "a", WEB) as a:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(network.detach, a.spec, a.attachment, a.namespace)
            for _ in range(delay):
                await trio.lowlevel.checkpoint()
            nursery.start_soon(network.reconcile, recorded(a))
        assert await network.reconcile({}) == frozenset()
        with on.host.netfilter() as netfilter:
            assert await opened_ports(netfilter) == []
        async with on.pod(network, "b", WEB):
            pass
    await network.close()
    assert await on.left() == before


async def opened_ports(netfilter: NetlinkSocket) -> list[nftables.Element]:
    listed = await netfilter.dump(nftables.list_elements(nftables.INET, NAMES.table, "host-ports4"))
    return [element for each in listed for element in nftables.decode_elements(each)]


async def test_somebody_deletes_a_pods_link(on: Machine) -> None:
    network = await reconciled(on.network())
    async with on.pod(network, "a") as a, on.pod(network, "b"):
        assert await network.reconcile({}) == frozenset()
        with a.namespace.netlink() as inside:
            await inside.change([links.delete_link("eth0")])
        assert await network.reconcile({}) == {a.spec.sandbox_id}


async def test_connections_survive_what_is_made_again(on: Machine) -> None:
    network = await reconciled(on.network())
    async with on.pod(network, "a", WEB) as a:
        listening = a.namespace.open_socket(socket.AF_INET, socket.SOCK_STREAM)
        with trio.socket.from_stdlib_socket(listening) as serving:
            await serving.bind(("0.0.0.0", 80))
            serving.listen()
            plain = on.outside.open_socket(socket.AF_INET, socket.SOCK_STREAM)
            with trio.fail_after(PATIENCE), trio.socket.from_stdlib_socket(plain) as client:
                await client.connect((MACHINE4, 8080))
                connection, _ = await serving.accept()
                with connection:
                    for each in (b"before", b"after"):
                        await client.send(each)
                        assert await connection.recv(100) == each
                        await reconciled(network, a)


async def test_a_pod_that_another_network_attached(on: Machine) -> None:
    network = on.network()
    spec = specification("a")
    await network.reconcile({spec.sandbox_id: (spec, Attachment(ips=("10.1.1.1",), state={"cni": "x"}))})
    assert await network.problem() == ""
