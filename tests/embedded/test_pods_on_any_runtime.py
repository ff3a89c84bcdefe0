"""Networks, mounts and confinement of pods, on the embedded runtime and on containerd, each behind its socket."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import trio

from tests.embedded.any_runtime import MACHINES_NETWORK, OWN_NETWORK, Runtime
from tests.free_ports import free_port
from tests.own_machine import run
from tests.patience import PATIENCE
from trikubelet.http.streaming.client import open_port_forward
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PORT = 8080
# Without -f, httpd goes to the background when it listens, not before.
SERVE = "mkdir /site; echo {0} > /site/name; httpd -p {1} -h /site && echo ready; exec sleep 1000"
FETCH = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open(f"http://{sys.argv[1]}/name", timeout=30).read().decode(), end="")
"""
NETWORKS = pytest.mark.parametrize("network", [MACHINES_NETWORK, OWN_NETWORK], ids=["machines-network", "own-network"])
KINDS = v1.SecurityProfileProfileType
PRIVATE = v1.MountPropagation.PROPAGATION_PRIVATE
FROM_HOST = v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER
BOTH_WAYS = v1.MountPropagation.PROPAGATION_BIDIRECTIONAL


def fetch(runtime: Runtime, where: str) -> str:
    """What a server says to the runtime's machine."""
    return run("nsenter", f"--net={runtime.machine}", sys.executable, "-c", FETCH, where).strip()


async def address(runtime: Runtime, pod: str) -> str:
    return (await runtime.calls.pod_sandbox_status(pod)).status.network.ip


async def serving(runtime: Runtime, name: str, port: int = PORT, **fields: object) -> tuple[str, v1.PodSandboxConfig]:
    """A pod with a network of its own, in which a server says the pod's name."""
    pod = await runtime.pod(name, options=OWN_NETWORK, **fields)
    await runtime.until_written(await runtime.start(pod, SERVE.format(name, port)), "ready")
    return pod


# --- Networks ---------------------------------------------------------------------------------------------------------


async def test_pods_have_addresses_of_their_own_and_listen_on_one_port(runtime: Runtime) -> None:
    one, two = await serving(runtime, "one"), await serving(runtime, "two")
    addresses = [await address(runtime, pod[0]) for pod in (one, two)]
    assert len({*addresses}) == 2
    for name, ip in zip(("one", "two"), addresses, strict=True):
        with trio.fail_after(PATIENCE):
            assert await trio.to_thread.run_sync(fetch, runtime, f"{ip}:{PORT}") == name
    (shown,) = await runtime.run(one, f"ip -o address show dev eth0 | grep -c ' {addresses[0]}/'")
    assert shown == "1"
    assert await runtime.run(two, f"wget -q -O - http://{addresses[0]}:{PORT}/name") == ["one"]
    assert await runtime.run(two, f"wget -q -O - http://127.0.0.1:{PORT}/name") == ["two"]


async def test_a_pod_on_the_machines_network_has_no_address_of_its_own(runtime: Runtime) -> None:
    pod = await runtime.pod(options=MACHINES_NETWORK)
    assert await address(runtime, pod[0]) == ""


async def test_an_address_is_somebody_elses_when_its_pod_is_gone(runtime: Runtime) -> None:
    pod = await serving(runtime, "one")
    ip = await address(runtime, pod[0])
    await runtime.calls.stop_pod_sandbox(pod[0])
    with pytest.raises(AssertionError, match="URLError"):
        await trio.to_thread.run_sync(fetch, runtime, f"{ip}:{PORT}")


@pytest.mark.parametrize("host_ip", ["", "127.0.0.1"])
async def test_a_port_of_the_machine_leads_to_a_pod(runtime_with_host_ports: Runtime, host_ip: str) -> None:
    runtime = runtime_with_host_ports
    port = free_port()
    mapping = v1.PortMapping(protocol=v1.Protocol.TCP, container_port=PORT, host_port=port, host_ip=host_ip)
    pod = await serving(runtime, "mapped", port_mappings=[mapping])
    assert await trio.to_thread.run_sync(fetch, runtime, f"127.0.0.1:{port}") == "mapped"
    await runtime.calls.stop_pod_sandbox(pod[0])
    with pytest.raises(AssertionError, match="refused"):
        await trio.to_thread.run_sync(fetch, runtime, f"127.0.0.1:{port}")


async def test_a_forwarded_port_is_one_of_the_pods_loopback(runtime: Runtime) -> None:
    pod = await serving(runtime, "forwarded", port=f"127.0.0.1:{PORT}")  # type: ignore[arg-type]
    request = v1.PortForwardRequest(pod_sandbox_id=pod[0], port=[PORT])
    url = urlsplit(await runtime.calls.port_forward(request))
    assert url.hostname is not None
    assert url.port is not None
    with trio.fail_after(PATIENCE):
        stream = await trio.open_tcp_stream(url.hostname, url.port)
        async with open_port_forward(stream, url.path) as forwarder:
            errors, data = await forwarder.open(PORT)
            await data.send_all(b"GET /name HTTP/1.0\r\n\r\n")
            received = b""
            while block := await data.receive_some():
                received += block
            assert received.endswith(b"\r\n\r\nforwarded\n")
            assert await errors.receive_some() == b""


async def test_sysctls_of_the_network_are_the_pods(runtime: Runtime) -> None:
    pod = await runtime.pod(options=OWN_NETWORK, sysctls={"net.ipv4.ip_default_ttl": "42"})
    assert await runtime.run(pod, "cat /proc/sys/net/ipv4/ip_default_ttl") == ["42"]
    other = await runtime.pod("other", options=OWN_NETWORK)
    assert await runtime.run(other, "cat /proc/sys/net/ipv4/ip_default_ttl") == ["64"]


@NETWORKS
async def test_names_are_looked_up_where_the_pod_says(runtime: Runtime, network: v1.NamespaceOption) -> None:
    dns = v1.DnsConfig(servers=["192.0.2.53", "2001:db8::53"], searches=["a.example", "b.example"], options=["ndots:3"])
    pod = await runtime.pod(options=network, dns_config=dns)
    lines = await runtime.run(pod, "cat /etc/resolv.conf")
    assert sorted(line for line in lines if line) == [
        "nameserver 192.0.2.53",
        "nameserver 2001:db8::53",
        "options ndots:3",
        "search a.example b.example",
    ]


async def test_a_pod_has_the_host_name_that_it_is_given(runtime: Runtime) -> None:
    pod = await runtime.pod(options=OWN_NETWORK, hostname="given-name")
    assert await runtime.run(pod, "hostname; cat /etc/hostname; echo $HOSTNAME") == ["given-name"] * 3
    container = await runtime.start(pod)
    assert (await runtime.exec(container, ["hostname"])).stdout == b"given-name\n"
    machine = socket.gethostname()
    assert await runtime.run(await runtime.pod("other", options=MACHINES_NETWORK), "hostname") == [machine]


# --- Mounts -----------------------------------------------------------------------------------------------------------


@contextmanager
def shared_mount(folder: Path) -> Iterator[Path]:
    """A file system whose mounts others may see."""
    folder.mkdir()
    run("mount", "-t", "tmpfs", "none", str(folder))
    try:
        run("mount", "--make-rshared", str(folder))
        yield folder
    finally:
        subprocess.run(["umount", "-R", "-l", str(folder)], check=False)


async def test_a_read_only_mount_cannot_be_written_to(runtime: Runtime, tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    (folder / "file").write_text("content\n")
    script = "cat file; touch new && echo written; echo more >> file && echo appended"
    pod = await runtime.pod()
    for readonly, expected in ((True, ["content"]), (False, ["content", "written", "appended"])):
        mount = v1.Mount(host_path=str(folder), container_path="/mounted", readonly=readonly)
        assert await runtime.run(pod, f"cd /mounted; ({script}) 2> /dev/null", mounts=[mount]) == expected
        assert (folder / "new").exists() is not readonly
    single = v1.Mount(host_path=str(folder / "file"), container_path="/etc/single", readonly=True)
    lines = await runtime.run(pod, "(echo lost > /etc/single) 2> /dev/null; head -n 1 /etc/single", mounts=[single])
    assert lines == ["content"]


@pytest.mark.parametrize(("propagation", "seen"), [(PRIVATE, False), (FROM_HOST, True), (BOTH_WAYS, True)])
async def test_mounts_of_the_machine_are_seen_as_asked(
    runtime: Runtime, tmp_path: Path, propagation: v1.MountPropagation, seen: bool
) -> None:
    with shared_mount(tmp_path / "shared") as folder:
        (folder / "below").mkdir()
        mount = v1.Mount(host_path=str(folder), container_path="/shared", propagation=propagation)
        security = v1.LinuxContainerSecurityContext(privileged=True)
        container = await runtime.start(await runtime.pod(), mounts=[mount], security=security)
        run("mount", "-t", "tmpfs", "none", str(folder / "below"))
        (folder / "below" / "file").touch()
        shown = (await runtime.exec(container, ["ls", "/shared/below"])).stdout
        assert shown == (b"file\n" if seen else b"")
        inside = "mkdir /shared/inner; mount -t tmpfs none /shared/inner; touch /shared/inner/file"
        assert (await runtime.exec(container, ["sh", "-c", inside])).exit_code == 0
        assert (folder / "inner" / "file").exists() is (propagation is BOTH_WAYS)
        await runtime.calls.stop_container(container, 0)
        await runtime.ended(container)


async def test_shared_memory_is_the_pods_and_limited(runtime: Runtime) -> None:
    pod = await runtime.pod()
    first = await runtime.start(pod, "echo hello > /dev/shm/file; echo written; sleep 1000")
    await runtime.until_written(first, "written")
    lines = await runtime.run(pod, "cat /dev/shm/file; df -k /dev/shm | tail -n 1")
    assert lines[0] == "hello"
    assert lines[1].split()[1] == str(64 * 1024)
    assert await runtime.run(await runtime.pod("other"), "ls /dev/shm") == []


# --- Confinement ------------------------------------------------------------------------------------------------------

STATUS = "sed -n 's/^\\(Seccomp\\|NoNewPrivs\\):\\t//p' /proc/self/status"
"""The two in the kernel's order: no new privileges, then the filter."""


@pytest.mark.parametrize("no_new_privs", [False, True])
async def test_privileges_are_not_gained_where_that_is_asked(runtime: Runtime, no_new_privs: bool) -> None:
    security = v1.LinuxContainerSecurityContext(no_new_privs=no_new_privs)
    pod = await runtime.pod()
    assert (await runtime.run(pod, STATUS, security=security))[0] == str(int(no_new_privs))


@pytest.mark.parametrize(("kind", "mode"), [(KINDS.RuntimeDefault, "2"), (KINDS.Unconfined, "0")])
async def test_the_runtimes_own_filter_is_used_as_asked(
    runtime: Runtime, kind: v1.SecurityProfileProfileType, mode: str
) -> None:
    security = v1.LinuxContainerSecurityContext(seccomp=v1.SecurityProfile(profile_type=kind))
    pod = await runtime.pod()
    container = await runtime.start(pod, f"{STATUS}; echo shown; sleep 1000", security=security)
    await runtime.until_written(container, "shown")
    assert (await runtime.exec(container, ["sh", "-c", STATUS])).stdout.split()[1].decode() == mode
    security.capabilities = v1.Capability(add_capabilities=["SYS_ADMIN"])
    lines = await runtime.run(pod, "unshare -n true && echo done", security=security)
    assert lines == ["done"]  # the filter lets those who have the capability
    security.capabilities = v1.Capability()
    lines = await runtime.run(pod, "unshare -n true && echo done; chroot / true && echo done", security=security)
    assert "done" in lines  # what comes from two streams may come in any order
    assert any("not permitted" in line for line in lines)


async def test_a_filter_of_the_nodes_is_used(runtime: Runtime, tmp_path: Path) -> None:
    profile = tmp_path / "denying.json"
    denied = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 37}
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [denied]}))
    chosen = v1.SecurityProfile(profile_type=KINDS.Localhost, localhost_ref=str(profile))
    security = v1.LinuxContainerSecurityContext(seccomp=chosen)
    script = f"mkdir /new; touch /file && echo touched; {STATUS}"
    lines = await runtime.run(await runtime.pod(), script, security=security)
    assert any("No locks available" in line for line in lines)  # of another stream than the others, in any order
    assert [line for line in lines if "mkdir" not in line] == ["touched", "0", "2"]
