"""A pod's network by scripted plugins: what is on disk and mounted, and what is left after failures. Needs root."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.embedded.network.cni.attaching import NamespaceAt, attaching_command, folders_in
from tests.embedded.network.cni.scripted import ADDRESS, ScriptedPlugins, network_list
from tests.patience import PATIENCE
from trikubelet.embedded.network.cni.network import CniFolders, CniNetwork
from trikubelet.embedded.network.cni.plugin import end_left_plugins
from trikubelet.embedded.network.model import Attachment, NetworkError, NetworkNamespace, PodNetworkSpec, PortMapping
from trikubelet.linux.mount_calls import MNT_DETACH, umount
from trikubelet.linux.mount_table import MountTable

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

DEBIAN: Final = ("0.3.1", "0.4.0", "1.0.0")
HERE: Final = NamespaceAt("/proc/self/ns/net")
"""As good as a pod's: nothing here changes it."""
SANDBOX: Final = f"{os.getpid():x}a"
"""Plugins of a sandbox are looked for on the whole machine, so two runs of these tests need two names."""


@attrs.define
class Machine:
    """Folders of a machine, and plugins on it."""

    root: Path
    plugins: ScriptedPlugins

    @property
    def folders(self) -> CniFolders:
        return folders_in(self.root)

    def configure(self, data: bytes, name: str = "10-net.conflist") -> None:
        (self.root / "net.d").mkdir(exist_ok=True)
        (self.root / "net.d" / name).write_bytes(data)

    def agent(self, runtime: str = "runtime", **options: Any) -> CniNetwork:
        """A new one, which knows nothing of what another did."""
        return CniNetwork(self.root / runtime, self.folders, **options)

    @property
    def cached(self) -> list[str]:
        folder = self.root / "cache/results"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    @property
    def named(self) -> list[str]:
        """Namespaces that have a name."""
        folder = self.root / "netns"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    @property
    def clean(self) -> bool:
        return self.cached == self.named == []


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, ScriptedPlugins(tmp_path / "bin"))
    for name in ("bridge", "portmap"):
        machine.plugins.install(name)
    machine.configure(network_list("bridge", "portmap"))
    yield machine
    for mount in MountTable.read().below(tmp_path):
        umount(mount.point, MNT_DETACH)


def pod(sandbox_id: str = SANDBOX, **changes: Any) -> PodNetworkSpec:
    return PodNetworkSpec(sandbox_id=sandbox_id, namespace="default", name=f"pod-{sandbox_id}", uid="u", **changes)


async def attached(network: CniNetwork, spec: PodNetworkSpec, namespace: NetworkNamespace | None = None) -> Attachment:
    attachment = await network.attach(spec, namespace or HERE)
    # The runtime keeps it as JSON.
    return attrs.evolve(attachment, state=json.loads(json.dumps(dict(attachment.state))))


async def test_a_pod_is_attached_and_detached(machine: Machine) -> None:
    network = machine.agent()
    machine.configure(network_list("bridge", {"type": "portmap", "capabilities": {"portMappings": True}}))
    attachment = await attached(network, pod(ports=(PortMapping(host_port=8080, container_port=80),)))
    assert (attachment.ips, attachment.interface) == (("10.9.0.2",), "eth0")
    path = machine.plugins.environment("bridge", "ADD")["CNI_NETNS"]
    assert Path(path).samefile("/proc/self/ns/net")
    assert machine.named == [Path(path).name]
    mount = MountTable.read().at(machine.root / "netns")
    assert mount is not None
    assert mount.shared
    assert machine.plugins.stdin("portmap", "ADD")["runtimeConfig"]["portMappings"][0]["hostPort"] == 8080
    assert machine.plugins.environment("bridge", "ADD")["CNI_ARGS"].endswith("K8S_POD_UID=u")
    await network.detach(pod(), attachment, HERE)
    assert machine.plugins.asked == ["bridge ADD", "portmap ADD", "portmap DEL", "bridge DEL"]
    assert machine.plugins.environment("bridge", "DEL")["CNI_NETNS"] == path
    assert machine.plugins.stdin("portmap", "DEL")["runtimeConfig"]["portMappings"][0]["hostPort"] == 8080
    assert machine.clean


async def test_a_daemon_in_a_container_sees_the_namespace(machine: Machine) -> None:
    """One that started before the first pod."""
    network = machine.agent()
    await network.reconcile({})
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo started; exec sleep 1000"]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            start = partial(trio.run_process, command, check=False, stdout=subprocess.PIPE)
            daemon = await nursery.start(start)
            assert await daemon.stdout.receive_some() == b"started\n"
            attachment = await attached(network, pod())
            seen = Path(f"/proc/{daemon.pid}/root{machine.root}/netns/{machine.named[0]}")
            assert seen.samefile(HERE.path)
            await network.detach(pod(), attachment, None)
            assert not seen.exists()
            daemon.kill()


async def test_the_cache_is_what_other_tools_read(machine: Machine) -> None:
    await attached(machine.agent(), pod())
    [name] = machine.cached
    assert name == f"net-{SANDBOX}-eth0"
    path = machine.root / "cache/results" / name
    assert path.stat().st_mode & 0o777 == 0o600
    cached = json.loads(path.read_text())
    assert base64.b64decode(cached.pop("config")) == network_list("bridge", "portmap")
    assert cached.pop("netns") == machine.plugins.environment("bridge", "ADD")["CNI_NETNS"]
    assert ["K8S_POD_NAME", f"pod-{SANDBOX}"] in cached.pop("cniArgs")
    assert cached == {
        "kind": "cniCacheV1",
        "containerId": SANDBOX,
        "ifName": "eth0",
        "networkName": "net",
        "capabilityArgs": {},
        "result": {"cniVersion": "1.1.0", **ADDRESS},
    }


async def test_detaching_is_as_attaching_was(machine: Machine) -> None:
    """Whatever the configuration is by then."""
    network = machine.agent()
    attachment = await attached(network, pod())
    machine.plugins.install("other")
    machine.configure(network_list("other", name="other"))
    await network.detach(pod(), attachment, None)
    assert machine.plugins.asked[2:] == ["portmap DEL", "bridge DEL"]
    assert machine.clean


async def test_detaching_works_without_cache_and_namespace(machine: Machine) -> None:
    """After a reboot, or when somebody emptied the folder."""
    attachment = await attached(machine.agent(), pod())
    (machine.root / f"cache/results/net-{SANDBOX}-eth0").unlink()
    umount(machine.root / "netns" / machine.named[0], MNT_DETACH)
    network = machine.agent()
    await network.detach(pod(), attachment, None)
    assert machine.plugins.environment("bridge", "DEL")["CNI_NETNS"] == ""
    assert machine.plugins.stdin("bridge", "DEL")["prevResult"] == {"cniVersion": "1.1.0", **ADDRESS}
    assert machine.clean
    await network.detach(pod(), None, None)
    await network.detach(pod(), attachment, HERE)
    assert machine.clean


async def test_a_failed_detach_is_asked_for_again(machine: Machine) -> None:
    network = machine.agent()
    attachment = await attached(network, pod())
    machine.plugins.fail("bridge", "DEL", "busy")
    with pytest.raises(NetworkError, match="plugin bridge, DEL: busy"):
        await network.detach(pod(), attachment, HERE)
    assert (len(machine.cached), len(machine.named)) == (1, 1)
    machine.plugins.script("bridge", "DEL", "true")
    await network.detach(pod(), attachment, None)
    assert machine.clean


@pytest.mark.parametrize("failing", ["bridge", "portmap"])
async def test_a_failed_attach_is_undone(machine: Machine, failing: str) -> None:
    machine.plugins.fail(failing, "ADD", "no address left")
    with pytest.raises(NetworkError, match=f"plugin {failing}, ADD: no address left"):
        await machine.agent().attach(pod(), HERE)
    assert machine.plugins.asked[-2:] == ["portmap DEL", "bridge DEL"]
    assert "prevResult" not in machine.plugins.stdin("bridge", "DEL")
    assert machine.clean


async def test_a_pod_without_an_address_is_not_attached(machine: Machine) -> None:
    machine.plugins.install("portmap", result={"ips": []})
    with pytest.raises(NetworkError, match="gave eth0 no address"):
        await machine.agent().attach(pod(), HERE)
    assert machine.plugins.asked[-1] == "bridge DEL"
    assert machine.clean


async def test_what_a_failed_attach_leaves_is_taken_down_later(machine: Machine) -> None:
    network = machine.agent()
    machine.plugins.fail("bridge", "ADD", "first")
    machine.plugins.fail("bridge", "DEL", "second")
    with pytest.raises(NetworkError, match="first"):
        await network.attach(pod(), HERE)
    assert len(machine.cached) == 1
    with pytest.raises(NetworkError, match="second"):
        await network.detach(pod(), None, None)
    machine.plugins.script("bridge", "DEL", "true")
    machine.plugins.install("bridge")
    # Another attempt begins with taking it down.
    machine.plugins.forget()
    await network.attach(pod(), HERE)
    assert machine.plugins.asked == ["portmap DEL", "bridge DEL", "bridge ADD", "portmap ADD"]


async def test_a_cancelled_attach_is_undone(machine: Machine) -> None:
    machine.plugins.script("portmap", "ADD", "touch ready; sleep 1000")
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(machine.agent().attach, pod(), HERE)
            while not (machine.plugins.folder / "ready").exists():
                await trio.sleep(0.01)
            assert len(machine.cached) == 1
            nursery.cancel_scope.cancel()
    assert machine.plugins.asked[-2:] == ["portmap DEL", "bridge DEL"]
    assert machine.clean


async def test_pods_are_attached_at_the_same_time(machine: Machine) -> None:
    """Each waits for the other in its plugin."""
    wait = 'touch "$CNI_CONTAINERID"; while ! { [ -e 1a ] && [ -e 2b ]; }; do sleep 0.05; done; '
    script = (machine.plugins.folder / "bridge.ADD.do").read_text()
    machine.plugins.script("bridge", "ADD", wait + script)
    network = machine.agent()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(network.attach, pod("1a"), HERE)
            nursery.start_soon(network.attach, pod("2b"), HERE)
    assert machine.cached == ["net-1a-eth0", "net-2b-eth0"]
    assert len(machine.named) == 2


async def test_several_networks_are_several_interfaces(machine: Machine) -> None:
    machine.plugins.install("second", result={"ips": [{"address": "fd00::2/64"}]})
    machine.configure(network_list("second", name="more"), "20-more.conflist")
    network = machine.agent(most_networks=2)
    attachment = await attached(network, pod())
    assert machine.cached == [f"more-{SANDBOX}-eth1", f"net-{SANDBOX}-eth0"]
    assert attachment.ips == ("10.9.0.2",)
    await network.detach(pod(), attachment, None)
    assert machine.plugins.asked[3:] == ["second DEL", "portmap DEL", "bridge DEL"]
    assert machine.clean


async def test_a_problem_says_what_is_missing(machine: Machine) -> None:
    network = machine.agent()
    assert await network.problem() == ""
    machine.plugins.fail("portmap", "STATUS", "daemon is down", code=50)
    assert "plugin portmap, STATUS: daemon is down" in await network.problem()
    machine.plugins.uninstall("bridge")
    assert "CNI plugin bridge is not installed" in await network.problem()
    machine.configure(b"{")
    assert "10-net.conflist: expected JSON" in await network.problem()
    (machine.root / "net.d/10-net.conflist").unlink()
    assert "no CNI network is configured" in await network.problem()
    with pytest.raises(NetworkError, match="no CNI network is configured"):
        await network.attach(pod(), HERE)
    # A new configuration needs no restart.
    machine.plugins.install("bridge", versions=DEBIAN)
    machine.configure(network_list("bridge"))
    assert await network.problem() == ""


async def test_plugins_need_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "need root" in await machine.agent().problem()


async def test_reconciling_takes_down_what_belongs_to_no_pod(machine: Machine) -> None:
    before = machine.agent()
    kept = {each: (pod(each), await attached(before, pod(each))) for each in ("1a", "2b")}
    await attached(before, pod("3c"))
    await attached(machine.agent("another runtime"), pod("4d"))
    (machine.root / "cache/results/net-broken-eth0").write_text("{")
    machine.plugins.forget()
    await machine.agent().reconcile({**kept, "9f": (pod("9f"), None)})
    assert machine.plugins.asked == ["portmap DEL", "bridge DEL", "bridge GC", "portmap GC"]
    assert machine.plugins.environment("bridge", "DEL")["CNI_CONTAINERID"] == "3c"
    assert machine.cached == ["net-1a-eth0", "net-2b-eth0", "net-4d-eth0", "net-broken-eth0"]
    assert len(machine.named) == 3
    valid = machine.plugins.stdin("bridge", "GC")["cni.dev/valid-attachments"]
    assert [each["containerID"] for each in valid] == ["1a", "2b", "4d"]


async def test_garbage_is_nothing_that_a_pod_has(machine: Machine) -> None:
    """Also where somebody emptied the cache."""
    attachment = await attached(machine.agent(), pod())
    (machine.root / f"cache/results/net-{SANDBOX}-eth0").unlink()
    await machine.agent().reconcile({SANDBOX: (pod(), attachment)})
    valid = machine.plugins.stdin("bridge", "GC")["cni.dev/valid-attachments"]
    assert valid == [{"containerID": SANDBOX, "ifname": "eth0"}]
    assert len(machine.named) == 1


async def test_an_agent_does_not_take_down_what_it_attached_itself(machine: Machine) -> None:
    """The list of pods may be older than the newest of them."""
    network = machine.agent()
    await attached(network, pod())
    machine.plugins.script("bridge", "ADD", "touch ready; while [ ! -e go ]; do sleep 0.05; done; exit 1")
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def fails() -> None:
                with pytest.raises(NetworkError):
                    await network.attach(pod("6b"), HERE)

            nursery.start_soon(fails)
            while not (machine.plugins.folder / "ready").exists():
                await trio.sleep(0.01)
            nursery.start_soon(network.reconcile, {})
            await trio.testing.wait_all_tasks_blocked()
            (machine.plugins.folder / "go").touch()
    assert machine.cached == [f"net-{SANDBOX}-eth0"]


@pytest.mark.parametrize("known", [True, False])
async def test_half_an_attachment_of_a_killed_agent_is_taken_down(machine: Machine, known: bool) -> None:
    """Its plugin still runs, and would make more of it."""
    machine.plugins.script("portmap", "ADD", "touch ready; sleep 1000; touch late")
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            start = partial(trio.run_process, attaching_command(machine.root, pod(), HERE.path), check=False)
            agent = await nursery.start(start)
            while not (machine.plugins.folder / "ready").exists():
                await trio.sleep(0.01)
            agent.kill()
        assert (len(machine.cached), len(machine.named)) == (1, 1)
        await machine.agent().reconcile({SANDBOX: (pod(), None)} if known else {})
    assert machine.plugins.asked[2:] == ["portmap DEL", "bridge DEL", "bridge GC", "portmap GC"]
    assert machine.clean
    wanted = f"CNI_CONTAINERID={SANDBOX}\0".encode()
    assert not any(wanted in environment and b"CNI_COMMAND=ADD" in environment for environment in _environments())


async def test_a_process_in_a_container_is_no_plugin() -> None:
    """Whatever its environment says."""
    variables = ["CNI_CONTAINERID=contained", "CNI_COMMAND=ADD"]
    command = ["unshare", "--pid", "--fork", "--kill-child", "env", *variables, "sleep", "1000"]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, check=False))
            while not any(b"CNI_CONTAINERID=contained" in environment for environment in _environments()):
                await trio.sleep(0.01)
            await end_left_plugins("contained", ("ADD",))
            assert process.poll() is None
            process.kill()


async def test_a_name_without_an_attachment_goes(machine: Machine) -> None:
    network = machine.agent()
    attachment = await attached(network, pod())
    name = machine.root / "netns" / machine.named[0]
    await network.detach(pod(), attachment, None)
    name.touch()
    (machine.root / "netns/other").touch()
    await machine.agent().reconcile({})
    assert machine.named == ["other"]


async def test_reconciling_goes_on_after_an_error(machine: Machine) -> None:
    before = machine.agent()
    for each in ("1a", "2b"):
        await attached(before, pod(each))
    machine.plugins.script("bridge", "DEL", 'if [ "$CNI_CONTAINERID" = 1a ]; then exit 1; fi')
    with pytest.raises(NetworkError, match="plugin bridge, DEL: exit status 1"):
        await machine.agent().reconcile({})
    assert machine.cached == ["net-1a-eth0"]


async def test_closing_leaves_nothing(machine: Machine) -> None:
    network = machine.agent()
    await attached(network, pod())
    await network.close()
    assert machine.clean
    assert not (machine.root / "netns").exists()


def _environments() -> list[bytes]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                found.append((process / "environ").read_bytes())
            except OSError:
                continue
    return found
