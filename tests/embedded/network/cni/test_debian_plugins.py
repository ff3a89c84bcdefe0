"""Pods on the plugins that Debian packages, on a machine of their own. Needs root and these plugins."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.embedded.network.cni.attaching import NamespaceAt, attaching_command, folders_in
from tests.embedded.network.cni.scripted import ScriptedPlugins
from tests.own_machine import DEBIAN, ask, pod_namespace, run, run_there, served
from tests.patience import PATIENCE
from trikubelet.embedded.network.cni.network import CniNetwork
from trikubelet.embedded.network.model import PodNetworkSpec, PortMapping

_PLUGINS: Final = ("bridge", "host-local", "portmap", "bandwidth")
_PROGRAMS: Final = ("ip", "iptables-save", "nsenter", "tc", "unshare")
_MISSING: Final = [
    *(f"{DEBIAN / name}" for name in _PLUGINS if not (DEBIAN / name).is_file()),
    *(name for name in _PROGRAMS if shutil.which(name) is None),
]
_PACKAGES: Final = "apt-get install containernetworking-plugins iproute2 iptables util-linux"
_WITH_IPV6: Final = Path("/proc/sys/net/ipv6").exists()

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(_MISSING), reason=f"no {', '.join(_MISSING)}: {_PACKAGES}"),
]


def agent(folder: Path) -> CniNetwork:
    return CniNetwork(folder / "runtime", folders_in(folder, DEBIAN))


def configure(folder: Path, *more: dict[str, Any]) -> None:
    """The network of a usual single node: its configuration is of the newest version, its plugins are older."""
    ipam = {
        "type": "host-local",
        "dataDir": str(folder / "leases"),
        "ranges": [[{"subnet": "10.123.0.0/24"}], *([[{"subnet": "fd00:123::/64"}]] if _WITH_IPV6 else [])],
        "routes": [{"dst": "0.0.0.0/0"}, *([{"dst": "::/0"}] if _WITH_IPV6 else [])],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "ipam": ipam}
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    bandwidth = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
    listed = {"cniVersion": "1.1.0", "name": "debian", "plugins": [bridge, portmap, bandwidth, *more]}
    (folder / "net.d").mkdir()
    (folder / "net.d/10-debian.conflist").write_text(json.dumps(listed))


def pod(sandbox_id: str, **changes: Any) -> PodNetworkSpec:
    return PodNetworkSpec(sandbox_id=sandbox_id, namespace="default", name=sandbox_id, uid=sandbox_id, **changes)


def leases(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "leases/debian").iterdir() if path.name[0].isdigit())


def links() -> set[str]:
    """Those of the machine, but for what the plugins leave on purpose."""
    return {link["ifname"] for link in json.loads(run("ip", "-json", "link"))} - {"lo", "cni0"}


def rules() -> list[str]:
    """Those that are for a pod."""
    return [line for line in run("iptables-save").splitlines() if "10.123.0" in line or " id: " in line]


def left(folder: Path) -> list[Any]:
    """Everything that a pod may have left."""
    kept = [sorted(path.name for path in (folder / name).iterdir()) for name in ("cache/results", "netns")]
    return [each for each in (leases(folder), links(), rules(), *kept) if each]


async def test_pods_reach_each_other_and_are_reached_on_a_port_of_the_machine(tmp_path: Path) -> None:
    await run_there(two_pods, tmp_path)


async def two_pods(folder: Path) -> None:
    configure(folder)
    network = agent(folder)
    assert await network.problem() == ""
    annotations = {"kubernetes.io/egress-bandwidth": "100M"}
    server = pod("server", ports=(PortMapping(host_port=8080, container_port=80),), annotations=annotations)
    client = pod("client")
    with pod_namespace() as first, pod_namespace() as second:
        served_at = await network.attach(server, NamespaceAt(first))
        asked_from = await network.attach(client, NamespaceAt(second))
        assert served_at.ips == ("10.123.0.2", *(["fd00:123::2"] if _WITH_IPV6 else []))
        with served(first):
            assert ask(served_at.ips[0], namespace=second) == asked_from.ips[0]
            assert ask("10.123.0.1", 8080) == "10.123.0.1"
        assert "tbf" in run("tc", "qdisc")
        assert leases(folder) == ["10.123.0.2", "10.123.0.3"]
        await network.reconcile({"server": (server, served_at), "client": (client, asked_from)})
        assert leases(folder) == ["10.123.0.2", "10.123.0.3"]
        await network.detach(server, served_at, NamespaceAt(first))
        assert leases(folder) == ["10.123.0.3"]
    # The keeper and its namespaces are gone.
    await agent(folder).detach(client, asked_from, None)
    assert left(folder) == []
    await network.close()


async def test_a_pod_whose_namespace_is_gone_for_good_gives_its_address_and_ports_back(tmp_path: Path) -> None:
    await run_there(lost_namespace, tmp_path)


async def lost_namespace(folder: Path) -> None:
    """As when somebody unmounts it. The bridge plugin then forgets the rule that masquerades the pod's address."""
    configure(folder)
    network = agent(folder)
    lost = pod("lost", ports=(PortMapping(host_port=8080, container_port=80),))
    with pod_namespace() as namespace:
        attachment = await network.attach(lost, NamespaceAt(namespace))
        assert [rule for rule in rules() if "8080" in rule]
        [name] = (folder / "netns").iterdir()
        run("umount", str(name))
    await agent(folder).detach(lost, attachment, None)
    assert leases(folder) == []
    assert [rule for rule in rules() if "8080" in rule] == []
    assert list((folder / "netns").iterdir()) == list((folder / "cache/results").iterdir()) == []


async def test_what_a_killed_agent_had_begun_is_taken_down(tmp_path: Path) -> None:
    await run_there(killed_agent, tmp_path)


async def killed_agent(folder: Path) -> None:
    """The address is leased and the link is made when its last plugin hangs, and so does that of the next agent."""
    configure(folder, {"type": "hangs"})
    plugins = ScriptedPlugins(folder / "bin")
    plugins.install("hangs")
    ready = plugins.folder / "ready"
    plugins.script("hangs", "ADD", "touch ready; sleep 1000")
    with pod_namespace() as namespace, trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            command = attaching_command(folder, pod("half"), namespace, DEBIAN)
            process = await nursery.start(partial(trio.run_process, command, check=False))
            while not ready.exists():
                await trio.sleep(0.01)
            process.kill()
        assert leases(folder) == ["10.123.0.2"]
        assert len(links()) == 1
        await agent(folder).reconcile({})
        assert left(folder) == []
        assert "eth0" not in run("nsenter", f"--net={namespace}", "ip", "link")
