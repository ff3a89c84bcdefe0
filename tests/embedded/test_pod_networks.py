"""Pods with networks of their own: what the runtime makes, keeps, and takes down. The network itself is a fake."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from grpclib import GRPCError
from grpclib.const import Status

from tests import own_machine
from tests.embedded.fake_network import FakeNetwork
from tests.embedded.remote import Forwarded
from tests.embedded.runtime_node import Node, running_node, wait_until
from tests.patience import PATIENCE
from trikubelet.embedded.forwarding import forward
from trikubelet.embedded.network.bridge.network import BridgeNetwork
from trikubelet.embedded.network.choice import BRIDGE, HOST, Choice, NetworkOptions
from trikubelet.embedded.network.model import NetworkError
from trikubelet.embedded.pod_namespace import make_socket
from trikubelet.embedded.pod_networks import PodNetworks
from trikubelet.embedded.records import RecordStore
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.embedded.network.model import PodNetwork

pytestmark = pytest.mark.root


def machine() -> str:
    """Return the network of the machine that the test is on."""
    return str(Path("/proc/self/ns/net").readlink())


HOST_NETWORK = v1.NamespaceOption(network=v1.NamespaceMode.NODE, pid=v1.NamespaceMode.CONTAINER)


@asynccontextmanager
async def network_node(folder: Path, network: FakeNetwork, *, ends: bool = True) -> AsyncIterator[Node]:
    """A node whose pods get this network; with `ends` nothing of it stays."""
    async with running_node(folder / "runtime", folder / "logs", networks={"fake": network}) as node:
        try:
            yield node
        finally:
            if ends:
                network.sticks = ""
                with trio.move_on_after(30, shield=True):
                    await node.remove_everything()
                    assert await node.runtime.shutdown()


async def pod_status(node: Node, sandbox: str) -> v1.PodSandboxStatus:
    return (await node.cri.pod_sandbox_status(v1.PodSandboxStatusRequest(pod_sandbox_id=sandbox))).status


async def test_each_pod_has_interfaces_addresses_and_ports_of_its_own(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network) as node:
        first, second = await node.sandbox("a"), await node.sandbox("b")
        listen = "import socket, time; s = socket.create_server(('', 80)); print('up'); time.sleep(999)"
        for sandbox in (first, second):
            await node.wait_for_output(await node.launch(sandbox, ["python3", "-uc", listen]), "up")
        ended = await node.run(first, ["sh", "-c", "ls /sys/class/net; grep -c : /proc/net/dev"])
        assert ended.out == "lo\n1\n"
        status = await pod_status(node, first)
        assert (status.network.ip, [ip.ip for ip in status.network.additional_ips]) == ("10.66.0.1", ["fd00:66::1"])
        assert (await pod_status(node, second)).network.ip == "10.66.0.2"
        assert len({*network.inodes, Path("/proc/self/ns/net").stat().st_ino}) == 3


async def test_commands_and_pods_with_shared_processes_are_in_the_pods_network(tmp_path: Path) -> None:
    async with network_node(tmp_path, FakeNetwork()) as node:
        shared = v1.NamespaceOption(pid=v1.NamespaceMode.POD)
        sandbox = await node.sandbox(options=shared)
        container = await node.launch(sandbox, ["sleep", "1000"])
        show = ["readlink", "/proc/self/ns/net"]
        inside = (await node.exec(container, show)).stdout
        assert inside == (await node.run(sandbox, show)).out.encode()
        assert inside.strip().decode() != machine()
        # What procfs shows of the network of the namespace's first process.
        assert (await node.exec(container, ["sh", "-c", "grep -c : /proc/1/net/dev"])).stdout == b"1\n"


async def test_a_pod_on_the_nodes_network_has_no_address_and_is_not_attached(tmp_path: Path) -> None:
    network = FakeNetwork(trouble="not yet")
    async with network_node(tmp_path, network) as node:
        sandbox = await node.sandbox(options=HOST_NETWORK)
        ended = await node.run(sandbox, ["readlink", "/proc/self/ns/net"])
        assert ended.out.strip() == machine()
        assert (await pod_status(node, sandbox)).network.ip == ""
        assert network.specs == []


async def test_a_sandbox_whose_network_is_gone_is_not_ready(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network) as node:
        lost, other = await node.sandbox("a"), await node.sandbox("b")
        network.gone = {lost}
        await node.lifecycle.reconcile_networks()
        states = [(await pod_status(node, sandbox)).state for sandbox in (lost, other)]
        assert states == [v1.PodSandboxState.SANDBOX_NOTREADY, v1.PodSandboxState.SANDBOX_READY]
        await node.cri.stop_pod_sandbox(v1.StopPodSandboxRequest(pod_sandbox_id=lost))
        assert lost not in network.attached


async def test_host_ports_come_to_the_network(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network) as node:
        ports = [
            v1.PortMapping(protocol=v1.Protocol.UDP, container_port=53, host_port=5353, host_ip="127.0.0.1"),
            v1.PortMapping(protocol=v1.Protocol.TCP, container_port=80),
        ]
        await node.sandbox(port_mappings=ports)
        (mapping,) = network.specs[0].ports
        assert (mapping.protocol, mapping.container_port, mapping.host_port) == ("udp", 53, 5353)
        assert mapping.host_ip == "127.0.0.1"


async def test_sysctls_of_the_network_are_the_pods(tmp_path: Path) -> None:
    async with network_node(tmp_path, FakeNetwork()) as node:
        sandbox = await node.sandbox(sysctls={"net.ipv4.ip_default_ttl": "42"})
        read = "cat /proc/sys/net/ipv4/ip_default_ttl /proc/sys/net/ipv4/ip_unprivileged_port_start"
        assert (await node.run(sandbox, ["sh", "-c", read])).out == "42\n0\n"
        with pytest.raises(GRPCError, match=r"net\.ipv4\.ip_default_ttl: it would change the whole node"):
            await node.sandbox("on-the-node", options=HOST_NETWORK, sysctls={"net.ipv4.ip_default_ttl": "42"})


async def test_a_forwarded_port_leads_into_the_pods_network(tmp_path: Path) -> None:
    async with network_node(tmp_path, FakeNetwork()) as node:
        sandbox = await node.sandbox()
        serve = (
            "import socket; s = socket.create_server(('127.0.0.1', 8080)); print('up');"
            "c, _ = s.accept(); c.sendall(b'from the pod'); c.close()"
        )
        await node.wait_for_output(await node.launch(sandbox, ["python3", "-uc", serve]), "up")
        forwarded = Forwarded(8080)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(forward, node.lifecycle.keeper, sandbox, forwarded)
                received = b"".join([bytes(block) async for block in forwarded.near])
                await forwarded.near.send_eof()
        assert (received, forwarded.error) == (b"from the pod", "")


async def test_statistics_count_the_pods_interfaces(tmp_path: Path) -> None:
    async with network_node(tmp_path, FakeNetwork()) as node:
        sandbox = await node.sandbox()
        await node.launch(sandbox, ["sleep", "1000"])
        request = v1.PodSandboxStatsRequest(pod_sandbox_id=sandbox)
        stats = (await node.cri.pod_sandbox_stats(request)).stats
        assert stats.linux.network.timestamp > 0
        assert stats.linux.network.interfaces == []  # this one has loopback alone, which does not count


async def test_what_lacks_is_told_until_it_is_there(tmp_path: Path) -> None:
    network = FakeNetwork(trouble="no plugins")
    options = NetworkOptions(way="fake")
    async with running_node(
        tmp_path / "runtime", tmp_path / "logs", networks={"fake": network}, network=options
    ) as node:
        condition = (await node.cri.status(v1.StatusRequest())).status.conditions[1]
        assert (condition.status, condition.reason) == (False, "NetworkPluginNotReady")
        assert "no plugins" in condition.message
        network.trouble = ""
        assert (await node.cri.status(v1.StatusRequest())).status.conditions[1].status
        assert await node.runtime.shutdown()


async def test_a_network_that_cannot_be_made_leaves_no_sandbox(tmp_path: Path) -> None:
    network = FakeNetwork(fails="no address is left")
    async with network_node(tmp_path, network) as node:
        with pytest.raises(GRPCError, match="no address is left") as caught:
            await node.sandbox()
        assert caught.value.status is Status.UNKNOWN
        assert network.attached == {}
        assert (await node.cri.list_pod_sandbox(v1.ListPodSandboxRequest())).items == []
        assert (await node.lifecycle.keeper.request("list"))["sandboxes"] == []
        assert list((tmp_path / "runtime" / "sandboxes").iterdir()) == []


async def test_a_cancelled_start_takes_down_what_it_made(tmp_path: Path) -> None:
    network = FakeNetwork(hold=trio.Event())
    async with network_node(tmp_path, network) as node:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.sandbox)
                await network.attaching.wait()
                nursery.cancel_scope.cancel()
        assert network.attached == {}
        assert (await node.cri.list_pod_sandbox(v1.ListPodSandboxRequest())).items == []


async def test_a_network_that_stays_is_told_and_taken_down_later(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network) as node:
        sandbox = await node.sandbox()
        network.sticks = "the plugin is gone"
        with pytest.raises(GRPCError, match="the plugin is gone"):
            await node.cri.stop_pod_sandbox(v1.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        status = await pod_status(node, sandbox)
        assert status.state == v1.PodSandboxState.SANDBOX_NOTREADY
        network.sticks = ""
        await node.lifecycle.tidy()
        assert network.attached == {}


@pytest.mark.parametrize("phase", ["attaching", "detaching"])
async def test_the_next_agent_adopts_networks_and_takes_down_half_made_ones(tmp_path: Path, phase: str) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network, ends=False) as node:
        whole, half = await node.sandbox("whole"), await node.sandbox("half")
        process = await node.launch(whole, ["sleep", "1000"])
    record = tmp_path / "runtime" / "sandboxes" / half / "network.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "phase": phase, "attachment": None}))
    async with network_node(tmp_path, network) as node:
        assert (await pod_status(node, whole)).network.ip == "10.66.0.1"
        assert (await pod_status(node, half)).state == v1.PodSandboxState.SANDBOX_NOTREADY
        await wait_until(lambda: half not in network.attached, "the half made network is taken down")
        assert network.attached == {whole: "10.66.0.1"}
        assert (await node.exec(process, ["sh", "-c", "grep -c : /proc/net/dev"])).stdout == b"1\n"
        assert {whole, half} in network.reconciled_with


async def test_networks_of_a_killed_keeper_are_taken_down_without_their_namespaces(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network) as node:
        sandbox = await node.sandbox()
        os.kill(node.keeper_pid(), signal.SIGKILL)
        await wait_until(lambda: network.attached == {}, "the network of the lost pod is taken down")
        assert network.detached_without_namespace == [sandbox]
        await node.cri.stop_pod_sandbox(v1.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        assert network.detached_without_namespace == [sandbox]


async def test_a_pod_of_an_earlier_release_stays_on_the_machines_network(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs", networks={}) as node:
        sandbox = await node.sandbox()
        container = await node.launch(sandbox, ["sleep", "1000"])
    network = FakeNetwork()
    async with network_node(tmp_path, network) as node:
        shown = (await node.exec(container, ["readlink", "/proc/self/ns/net"])).stdout
        assert shown.decode().strip() == machine()
        assert (await pod_status(node, sandbox)).network.ip not in ("", "10.66.0.1")
        assert network.specs == []


async def test_the_end_of_the_runtime_closes_its_networks(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network) as node:
        await node.sandbox()
    assert network.closed


@asynccontextmanager
async def after_a_killed_one(
    folder: Path, network: FakeNetwork, way: str, networks: dict[str, PodNetwork]
) -> AsyncIterator[Node]:
    """A node that follows one that had a pod with this network, and was killed without pods."""
    async with network_node(folder, network, ends=False) as node:
        await node.sandbox()
        await node.remove_everything()
    assert not network.closed
    options = NetworkOptions(way=way)
    async with running_node(folder / "runtime", folder / "logs", networks=networks, network=options) as node:
        yield node
        assert await node.runtime.shutdown()


@pytest.mark.parametrize("way", ["fake", "other", HOST])
async def test_what_a_killed_agent_left_is_taken_down_whatever_network_pods_get_now(tmp_path: Path, way: str) -> None:
    network, other = FakeNetwork(), FakeNetwork()
    async with after_a_killed_one(tmp_path, network, way, {"fake": network, "other": other}):
        await wait_until(lambda: network.closed, "what an earlier agent left is taken down")
        assert not other.closed, "there was nothing of it"


async def test_what_a_killed_agent_left_is_taken_down_by_a_clean_end_too(tmp_path: Path) -> None:
    network = FakeNetwork(stays="the machine is busy")
    async with after_a_killed_one(tmp_path, network, HOST, {"fake": network}) as node:
        await node.lifecycle.tidy()
        assert not network.closed
        network.stays = ""
    assert network.closed


async def test_a_network_goes_with_its_last_pod_once_pods_get_another(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network, ends=False) as node:
        await node.sandbox()
    networks, options = {"fake": network}, NetworkOptions(way=HOST)
    async with running_node(tmp_path / "runtime", tmp_path / "logs", networks=networks, network=options) as node:
        closed = []
        for step in (node.lifecycle.tidy, node.remove_everything, node.lifecycle.tidy):
            await step()
            closed.append(network.closed)
        assert closed == [False, False, True]
        assert await node.runtime.shutdown()


async def a_bridge_that_nobody_needs_any_more(folder: Path) -> None:
    forwarding = Path("/proc/sys/net/ipv4/ip_forward")
    forwarding.write_text("0\n")
    for way, bridges in ((BRIDGE, 1), (HOST, 0)):
        options = NetworkOptions(way=way)
        async with running_node(folder / "runtime", folder / "logs", networks=None, network=options) as node:
            if way == BRIDGE:
                await node.sandbox()
                await node.remove_everything()
            await node.lifecycle.tidy()
            found = [name for _, name in socket.if_nameindex() if name.startswith("tkb-")]
            assert len(found) == bridges, found
            assert forwarding.read_text() == f"{bridges}\n"
    async with running_node(folder / "runtime", folder / "logs") as node:
        assert await node.runtime.shutdown()


async def test_a_bridge_goes_when_pods_are_on_the_machines_network_now(tmp_path: Path) -> None:
    await own_machine.run_there(a_bridge_that_nobody_needs_any_more, tmp_path)


async def test_a_network_is_made_with_the_first_pod_and_not_again_after_the_end(tmp_path: Path) -> None:
    network = FakeNetwork()
    async with network_node(tmp_path, network, ends=False) as node:
        await node.lifecycle.tidy()
        assert network.reconciled_with == []
        await node.sandbox()
        assert len(network.reconciled_with) == 1
        await node.lifecycle.tidy()
        assert len(network.reconciled_with) == 2
        await node.remove_everything()
        assert await node.runtime.shutdown()
        await node.lifecycle.tidy()
        assert network.closed


async def test_the_keeper_stays_in_the_machines_network(tmp_path: Path) -> None:
    async with network_node(tmp_path, FakeNetwork()) as node:
        sandbox = await node.sandbox()
        with await make_socket(node.lifecycle.keeper, sandbox, socket.AF_INET, socket.SOCK_DGRAM) as made:
            made.bind(("127.0.0.1", 0))
            assert (made.family, made.type, made.getblocking()) == (socket.AF_INET, socket.SOCK_DGRAM, False)
        assert str(Path(f"/proc/{node.keeper_pid()}/ns/net").readlink()) == machine()


async def test_a_bridge_in_a_cluster_waits_for_the_nodes_addresses(tmp_path: Path) -> None:
    options = NetworkOptions(way=BRIDGE, in_cluster=True)
    networks = {BRIDGE: BridgeNetwork(str(tmp_path / "bridge"))}
    async with running_node(tmp_path / "runtime", tmp_path / "logs", networks={"fake": FakeNetwork()}) as node:
        found = PodNetworks(node.lifecycle.keeper, networks, options, RecordStore(tmp_path / "other"))
        assert "podCIDR" in await found.problem(Choice(BRIDGE))
        with pytest.raises(NetworkError, match="somewhere"):
            await found.set_pod_cidr("somewhere")
        await found.set_pod_cidr("10.246.1.0/24,fd00:246::/64")
        assert "podCIDR" not in await found.problem(Choice(BRIDGE))
        assert await node.runtime.shutdown()
