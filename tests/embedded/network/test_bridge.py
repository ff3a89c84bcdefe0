"""Pods on the bridge: who reaches whom, and under which address. All in network namespaces of the test's own."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.network.machine import (
    MACHINE4,
    MACHINE6,
    OUTSIDE4,
    OUTSIDE6,
    Machine,
    ask,
    machine,
)
from tests.patience import PATIENCE
from trikubelet.embedded.network.model import NetworkError, PortMapping
from trikubelet.linux.netlink import conntrack, links, routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.embedded.network.bridge.network import BridgeNetwork

pytestmark = pytest.mark.root
WEB = PortMapping(host_port=8080, container_port=80)
DNS = PortMapping(host_port=5353, container_port=53, protocol="udp")
SCTP = 132

BRIDGED_PACKETS_ARE_FILTERED = tuple(f"sys/net/bridge/bridge-nf-call-{each}tables" for each in ("ip", "ip6"))


@pytest.fixture
async def on() -> AsyncIterator[Machine]:
    async with machine() as made:
        yield made


@pytest.fixture
async def network(on: Machine) -> AsyncIterator[BridgeNetwork]:
    """A network that is there; at the end it takes all of it back."""
    before = await on.left()
    made = on.network()
    await made.reconcile({})
    yield made
    await made.close()
    assert await on.left() == before
    assert on.proc.read("sys/net/ipv4/ip_forward") == "0"
    assert on.proc.read("sys/net/ipv6/conf/all/forwarding") == "0"


def gateways(pod_ips: tuple[str, ...]) -> list[str]:
    return [str(ipaddress.ip_network(f"{ip}/{24 if '.' in ip else 64}", strict=False)[1]) for ip in pod_ips]


async def test_pods_reach_each_other(on: Machine, network: BridgeNetwork) -> None:
    async with on.pod(network, "a") as a, on.pod(network, "b") as b:
        await on.serve(b.namespace, 80, "b")
        assert await ask(a.namespace, b.ip, 80) == f"b sees {a.ip}"
        assert await ask(a.namespace, b.ip6, 80) == f"b sees {a.ip6}"


async def test_machine_and_pod_reach_each_other(on: Machine, network: BridgeNetwork) -> None:
    await on.serve(on.host, 80, "machine")
    async with on.pod(network, "a") as a:
        await on.serve(a.namespace, 80, "a")
        for ip, gateway, address in zip(
            a.attachment.ips, gateways(a.attachment.ips), (MACHINE4, MACHINE6), strict=True
        ):
            assert await ask(on.host, ip, 80) == f"a sees {gateway}"
            assert await ask(a.namespace, gateway, 80) == f"machine sees {ip}"
            assert await ask(a.namespace, address, 80) == f"machine sees {ip}"


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
async def test_pods_go_out_by_the_machines_address(on: Machine, network: BridgeNetwork, protocol: str) -> None:
    await on.serve(on.outside, 53, "outside", protocol)
    async with on.pod(network, "a") as a:
        assert await ask(a.namespace, OUTSIDE4, 53, protocol) == f"outside sees {MACHINE4}"
        assert await ask(a.namespace, OUTSIDE6, 53, protocol) == f"outside sees {MACHINE6}"


async def test_pods_of_other_nodes_see_a_pods_own_address(on: Machine) -> None:
    """Outside is another node of the cluster, with routes to this one's pods; further outside there are none."""
    network = on.network(cluster=("192.0.2.0/24", "2001:db8::/64"))
    await network.reconcile({})
    with on.outside.netlink() as route:
        eth0 = links.only_link(await route.get(links.get_link("eth0")))
        for gateway in (MACHINE4, MACHINE6):
            await route.change([routes.add_default_route(eth0.index, ipaddress.ip_address(gateway))])
        await route.change([routes.add_address(eth0.index, ipaddress.ip_interface("198.51.100.1/32"))])
    await on.serve(on.outside, 53, "outside")
    async with on.pod(network, "a") as a:
        assert await ask(a.namespace, OUTSIDE4, 53) == f"outside sees {a.ip}"
        assert await ask(a.namespace, OUTSIDE6, 53) == f"outside sees {a.ip6}"
        assert await ask(a.namespace, "198.51.100.1", 53) == f"outside sees {MACHINE4}"
    await network.close()


def sctp_init(source: int, destination: int) -> bytes:
    """A packet that opens an association, with its checksum (RFC 4960)."""

    def packet(checksum: int) -> bytes:
        return struct.pack("!HHI", source, destination, 0) + struct.pack("<I", checksum) + chunk

    chunk = struct.pack("!BBHIIHHI", 1, 0, 20, 1, 65536, 1, 1, 1)
    crc = 0xFFFFFFFF
    for byte in packet(0):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return packet(crc ^ 0xFFFFFFFF)


async def test_a_host_port_of_sctp_leads_to_the_pod(on: Machine, network: BridgeNetwork) -> None:
    """The kernel of the machine need not speak SCTP itself: the packet arrives with the pod's address and port."""
    port = PortMapping(host_port=3868, container_port=3869, protocol="sctp")
    async with on.pod(network, "a", port) as a:
        with (
            trio.socket.from_stdlib_socket(a.namespace.open_socket(socket.AF_INET, socket.SOCK_RAW, SCTP)) as inside,
            on.outside.open_socket(socket.AF_INET, socket.SOCK_RAW, SCTP) as outside,
        ):
            outside.sendto(sctp_init(4000, 3868), (MACHINE4, 0))
            with trio.fail_after(PATIENCE):
                packet = await inside.recv(200)
        assert (ipaddress.ip_address(packet[12:16]), ipaddress.ip_address(packet[16:20])) == (
            ipaddress.ip_address(OUTSIDE4),
            ipaddress.ip_address(a.ip),
        )
        assert struct.unpack_from("!HH", packet, 20) == (4000, 3869)


@pytest.mark.parametrize(
    ("port", "protocol", "filtered"), [(WEB, "tcp", "1"), (WEB, "tcp", "0"), (DNS, "udp", "1"), (DNS, "udp", "0")]
)
async def test_a_host_port_leads_to_the_pod(
    on: Machine, network: BridgeNetwork, port: PortMapping, protocol: str, filtered: str
) -> None:
    """From everywhere; also where packets between ports of a bridge pass the rules for IP, as on many nodes."""
    for setting in BRIDGED_PACKETS_ARE_FILTERED:
        if on.proc.read(setting) is not None:
            on.proc.write(setting, filtered)
    async with on.pod(network, "web", port) as web, on.pod(network, "other") as other:
        await on.serve(web.namespace, port.container_port, "web", protocol)
        for ip, gateway, address, outside in zip(
            web.attachment.ips, gateways(web.attachment.ips), (MACHINE4, MACHINE6), (OUTSIDE4, OUTSIDE6), strict=True
        ):
            assert await ask(on.outside, address, port.host_port, protocol) == f"web sees {outside}"
            assert await ask(on.host, address, port.host_port, protocol) == f"web sees {address}"
            assert await ask(on.host, gateway, port.host_port, protocol) == f"web sees {gateway}"
            assert await ask(other.namespace, address, port.host_port, protocol) == f"web sees {gateway}"
            assert await ask(web.namespace, address, port.host_port, protocol) == f"web sees {gateway}"
            assert await ask(web.namespace, ip, port.container_port, protocol) == f"web sees {ip}"
        assert (
            await ask(on.host, "127.0.0.1", port.host_port, protocol) == f"web sees {gateways(web.attachment.ips)[0]}"
        )


async def test_a_host_port_of_one_address(on: Machine, network: BridgeNetwork) -> None:
    lan = PortMapping(host_port=8080, container_port=80, host_ip=MACHINE4)
    local = PortMapping(host_port=8080, container_port=80, host_ip="127.0.0.1")
    async with on.pod(network, "lan", lan) as at_lan, on.pod(network, "local", local) as at_local:
        await on.serve(at_lan.namespace, 80, "lan")
        await on.serve(at_local.namespace, 80, "local")
        assert await ask(on.outside, MACHINE4, 8080) == f"lan sees {OUTSIDE4}"
        assert await ask(on.host, MACHINE4, 8080) == f"lan sees {MACHINE4}"
        assert (await ask(on.host, "127.0.0.1", 8080)).startswith("local sees")
        with pytest.raises(ConnectionRefusedError):
            await ask(on.outside, MACHINE6, 8080)


async def test_a_closed_host_port(on: Machine, network: BridgeNetwork) -> None:
    async with on.pod(network, "web", WEB) as web:
        await on.serve(web.namespace, 80, "web")
        await ask(on.outside, MACHINE4, 8080)
    with pytest.raises(ConnectionRefusedError):
        await ask(on.outside, MACHINE4, 8080)


async def test_a_udp_client_that_goes_on_sending(on: Machine, network: BridgeNetwork) -> None:
    """The kernel remembers where its first packet went: here, to nobody, and then to a pod that is gone."""
    with on.host.netfilter() as netfilter:
        if (await netfilter.try_each([conntrack.forget_udp_to_port(4, 1)])) != [None]:
            pytest.skip("this kernel cannot forget connections by their port")
    with trio.socket.from_stdlib_socket(on.outside.open_socket(socket.AF_INET, socket.SOCK_DGRAM)) as client:
        await client.connect((MACHINE4, DNS.host_port))
        await client.send(b"?")
        with trio.fail_after(PATIENCE), pytest.raises(ConnectionRefusedError):
            await client.recv(100)
        for name in ("first", "second"):
            async with on.pod(network, name, DNS) as pod:
                await on.serve(pod.namespace, DNS.container_port, name, "udp")
                with trio.fail_after(PATIENCE):
                    await client.send(b"?")
                    assert await client.recv(100) == f"{name} sees {OUTSIDE4}".encode()


async def test_a_port_that_another_pod_has(on: Machine, network: BridgeNetwork) -> None:
    async with on.pod(network, "first", WEB) as first:
        await on.serve(first.namespace, 80, "first")
        with pytest.raises(NetworkError, match="host port 8080/tcp leads to pod default/first already"):
            async with on.pod(network, "second", WEB):
                pass
        assert await ask(on.outside, MACHINE4, 8080) == f"first sees {OUTSIDE4}"


async def test_a_pod_cannot_reach_the_loopback_address_of_the_machine(on: Machine, network: BridgeNetwork) -> None:
    """Although the bridge lets such packets pass: of what a pod sends to both, only the other comes."""
    async with on.pod(network, "a") as a:
        with a.namespace.netlink() as route:
            loopback = routes.delete_address(1, ipaddress.ip_interface("127.0.0.1/8"))
            await route.change([loopback, links.allow_local_addresses("eth0")])
        receiving = on.host.open_socket(socket.AF_INET, socket.SOCK_DGRAM)
        sending = a.namespace.open_socket(socket.AF_INET, socket.SOCK_DGRAM)
        with receiving, sending:
            receiving.bind(("0.0.0.0", 53))
            receiving.settimeout(PATIENCE)
            sending.bind((a.ip, 0))
            for address in ("127.0.0.1", MACHINE4):
                sending.sendto(address.encode(), (address, 53))
            assert receiving.recv(100) == MACHINE4.encode()
