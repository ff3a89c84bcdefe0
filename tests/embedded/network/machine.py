"""A machine, what is outside of it, and pods: each a network namespace, and what is said between them.

    pod ── bridge of the runtime ── machine ── lan ── outside
                                 192.0.2.1     192.0.2.2
                                 2001:db8::1   2001:db8::2

Outside has no route to the pods.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from tests.network_namespace import Namespace, network_namespace
from tests.patience import PATIENCE
from trikubelet.embedded.network.bridge.forwarding import IP_FORWARD, ProcFiles
from trikubelet.embedded.network.bridge.host import look
from trikubelet.embedded.network.bridge.network import BridgeNetwork
from trikubelet.embedded.network.model import Attachment, PodNetworkSpec, PortMapping
from trikubelet.linux.netlink import links, nftables, routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator

MACHINE4, OUTSIDE4 = "192.0.2.1", "192.0.2.2"
MACHINE6, OUTSIDE6 = "2001:db8::1", "2001:db8::2"
_TYPES = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


@attrs.frozen
class NamespacesProc(ProcFiles):
    """The files of /proc as a namespace's threads see them."""

    namespace: Namespace = attrs.field(kw_only=True)

    def read(self, name: str) -> str | None:
        return self.namespace.call(ProcFiles().read, name)

    def write(self, name: str, value: str) -> None:
        self.namespace.call(ProcFiles().write, name, value)

    def names(self, folder: str) -> list[str]:
        return self.namespace.call(ProcFiles().names, folder)


@attrs.frozen
class Pod:
    """A pod with its network."""

    spec: PodNetworkSpec
    namespace: Namespace
    attachment: Attachment

    @property
    def ip(self) -> str:
        return self.attachment.ips[0]

    @property
    def ip6(self) -> str:
        return self.attachment.ips[1]


@attrs.define
class Machine:
    """What a runtime would run on."""

    host: Namespace
    outside: Namespace
    nursery: trio.Nursery

    @property
    def proc(self) -> NamespacesProc:
        return NamespacesProc(namespace=self.host)

    def network(
        self, root: str = "/runtime", subnets: Collection[str] = (), cluster: Collection[str] = ()
    ) -> BridgeNetwork:
        return BridgeNetwork(
            root, subnets=tuple(subnets), cluster=tuple(cluster), open_socket=self.host.socket, proc=self.proc
        )

    @contextmanager
    def pod_namespace(self) -> Iterator[Namespace]:
        with network_namespace() as namespace:
            yield namespace

    @asynccontextmanager
    async def pod(self, network: BridgeNetwork, name: str, *ports: PortMapping) -> AsyncIterator[Pod]:
        """A pod that is attached, and detached at the end."""
        spec = specification(name, *ports)
        with network_namespace() as namespace:
            with namespace.netlink() as route:
                await route.change([links.set_up("lo")])
            attachment = await network.attach(spec, namespace)
            try:
                yield Pod(spec, namespace, attachment)
            finally:
                with trio.move_on_after(PATIENCE, shield=True):
                    await network.detach(spec, attachment, namespace)

    async def serve(self, where: Namespace, port: int, label: str, protocol: str = "tcp") -> None:
        """Answer who comes with the label and the address that it came from."""
        await self.nursery.start(_serve, where, port, label, protocol)

    async def left(self) -> tuple[list[str], list[str]]:
        """The names of all links and of all tables, when the kernel has removed those of pods, which all are gone."""
        with self.host.netlink() as route, trio.fail_after(PATIENCE):
            while any(each.kind == "veth" and each.name != "up0" for each in (await look(route)).links):
                await trio.sleep(0.001)
        return await self.there()

    async def there(self) -> tuple[list[str], list[str]]:
        """The names of all links and of all tables."""
        with self.host.netlink() as route, self.host.netfilter() as netfilter:
            machine = await look(route)
            tables = [nftables.decode_table_name(each) for each in await netfilter.dump(nftables.list_tables())]
        return [each.name for each in machine.links], [each for each in tables if each is not None]


@asynccontextmanager
async def machine() -> AsyncIterator[Machine]:
    with network_namespace() as host, network_namespace() as outside:
        with host.netlink() as route, outside.netlink() as beyond, outside.opened() as descriptor:
            # A namespace begins with what the machine's is set to.
            NamespacesProc(namespace=host).write(IP_FORWARD, "0")
            mac = bytes.fromhex("0a0000000001")
            await route.change([links.set_up("lo"), links.make_bridge("lan", mac=mac, mtu=1400)])
            NamespacesProc(namespace=host).write("sys/net/ipv6/conf/lan/accept_dad", "0")
            await route.change([links.set_up("lan")])
            lan = links.only_link(await route.get(links.get_link("lan")))
            veth = links.make_veth(
                "up0", bridge=lan.index, mtu=1400, peer_name="eth0", peer_mac=b"\x0a" + bytes(5),
                peer_namespace=descriptor,
            )  # fmt: skip
            await route.change([veth])
            await beyond.change([links.set_up("lo"), links.set_up("eth0")])
            eth0 = links.only_link(await beyond.get(links.get_link("eth0")))
            for here, there in ((MACHINE4 + "/24", OUTSIDE4 + "/24"), (MACHINE6 + "/64", OUTSIDE6 + "/64")):
                await route.change([routes.add_address(lan.index, ipaddress.ip_interface(here))])
                await route.change([routes.add_default_route(lan.index, ipaddress.ip_interface(there).ip)])
                await beyond.change([routes.add_address(eth0.index, ipaddress.ip_interface(there))])
            with trio.fail_after(PATIENCE):
                while not links.only_link(await route.get(links.get_link("up0"))).running:
                    await trio.sleep(0.001)
        async with trio.open_nursery() as nursery:
            yield Machine(host, outside, nursery)
            nursery.cancel_scope.cancel()


def specification(name: str, *ports: PortMapping) -> PodNetworkSpec:
    return PodNetworkSpec(
        sandbox_id=f"sandbox of {name}", namespace="default", name=name, uid=f"uid-{name}", ports=ports
    )


def recorded(*pods: Pod) -> dict[str, tuple[PodNetworkSpec, Attachment | None]]:
    """What a runtime has written down of its pods."""
    return {each.spec.sandbox_id: (each.spec, each.attachment) for each in pods}


async def reconciled(network: BridgeNetwork, *pods: Pod) -> BridgeNetwork:
    """The same network, after it saw what a runtime has written down."""
    await network.reconcile(recorded(*pods))
    return network


async def ask(where: Namespace, address: str, port: int, protocol: str = "tcp") -> str:
    """What one hears there: the label of who answers, and which address it sees. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with trio.socket.from_stdlib_socket(where.open_socket(family, _TYPES[protocol])) as asking:
        with trio.fail_after(PATIENCE):
            await asking.connect((address, port))
            await asking.send(b"?")
            return (await asking.recv(100)).decode()


async def _serve(where: Namespace, port: int, label: str, protocol: str, *, task_status: trio.TaskStatus[None]) -> None:
    plain = where.open_socket(socket.AF_INET6, _TYPES[protocol])
    with trio.socket.from_stdlib_socket(plain) as serving:
        serving.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        serving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        await serving.bind(("::", port))
        if protocol == "tcp":
            serving.listen()
        task_status.started()
        while True:
            if protocol == "tcp":
                connection, client = await serving.accept()
                with connection:
                    await connection.send(_answer(label, client))
            else:
                _, client = await serving.recvfrom(100)
                await serving.sendto(_answer(label, client), client)


def _answer(label: str, client: tuple[str, int]) -> bytes:
    return f"{label} sees {client[0].removeprefix('::ffff:')}".encode()
