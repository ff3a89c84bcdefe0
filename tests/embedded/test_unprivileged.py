"""The same runtime with less: in a user namespace, and where not even that is allowed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.embedded.runtime_node import mounts_with, processes_with

if TYPE_CHECKING:
    from pathlib import Path

IN_USER_NAMESPACE = ["unshare", "--user", "--map-root-user", "sh", "-c"]
needs_user_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*IN_USER_NAMESPACE, "true"], stderr=subprocess.DEVNULL).returncode != 0,
    reason="a user may not make user namespaces here",
)
# Root without the right to make namespaces, where users may not make any either.
WITHOUT_NAMESPACES = (
    "echo 0 > /proc/sys/user/max_user_namespaces; "
    "exec setpriv --inh-caps=-sys_admin --ambient-caps=-sys_admin --bounding-set=-sys_admin "
)

ESCAPER = "import os,time; os.fork() or (os.setsid(), os.fork() or time.sleep(1000)); time.sleep(1000)"


async def outcome(folder: Path, prefix: str, script: str, *, grace: int) -> dict[str, Any]:
    scenario = [sys.executable, "-m", "tests.embedded.scenario", str(folder), str(grace), "bash", "-c", script]
    command = [*IN_USER_NAMESPACE, f"{prefix} {shlex.join(scenario)}"]
    with trio.fail_after(30):
        result = await trio.run_process(command, capture_stdout=True, stderr=subprocess.DEVNULL)
    line = next(line for line in result.stdout.decode().splitlines() if line.startswith("outcome="))
    found: dict[str, Any] = json.loads(line.removeprefix("outcome="))
    return found


@needs_user_namespaces
async def test_a_user_namespace_gives_real_containers(tmp_path: Path) -> None:
    script = (
        "trap 'exit 4' TERM; echo $$; hostname; id -u; touch /usr/made; ls /sys/class/net; echo ready; "
        "while :; do sleep 0.01; done"
    )
    found = await outcome(tmp_path, "exec", script, grace=30)
    assert found["capabilities"]["mode"] == "user-namespace", found
    assert found["out"] == "1\npod-host\n0\nlo\nready\n"
    assert found["exec"] == "from exec\n"
    assert found["terminal"] == "/dev/pts/0\r\n0\r\n"
    assert found["machine's namespaces"] is True
    assert found["exit"] == 4
    assert found["ended"] is True
    assert mounts_with(str(tmp_path)) == []


@needs_user_namespaces
async def test_without_namespaces_there_are_plain_processes_and_none_escapes(tmp_path: Path) -> None:
    marker = f"plain-escaper-{tmp_path.name}"
    found = await outcome(
        tmp_path,
        WITHOUT_NAMESPACES,
        f"echo $HOSTNAME; python3 -c '{ESCAPER}' {marker} & trap '' TERM; echo ready; wait",
        grace=1,
    )
    assert found["capabilities"]["mode"] == "plain", found
    assert found["capabilities"]["network"] == "host"
    assert "containers are plain processes" in " ".join(found["capabilities"]["notIsolated"])
    assert found["out"] == "pod-host\nready\n"
    assert found["exec"] == "from exec\n"
    assert found["terminal"].startswith("/dev/pts/"), found["terminal"]
    assert found["exit"] == 137
    assert processes_with(marker) == []


@pytest.mark.root  # whose machine may have another network
async def test_pods_have_networks_by_pasta_without_root(tmp_path: Path) -> None:
    """In a network that looks like a machine's, and has no way out."""
    if shutil.which("pasta") is None:
        pytest.skip("pasta is not installed")
    machine = (
        "ip link set lo up; ip link add out type veth peer name peer; ip addr add 192.0.2.2/24 dev out; "
        "ip link set out up; ip link set peer up; ip route add default via 192.0.2.1; "
    )
    scenario = [sys.executable, "-m", "tests.embedded.behind_pasta", str(tmp_path)]
    command = ["unshare", "--net", "sh", "-c", machine + f"exec unshare --user --map-root-user {shlex.join(scenario)}"]
    with trio.fail_after(60):
        result = await trio.run_process(command, capture_stdout=True, stderr=subprocess.DEVNULL)
    line = next(line for line in result.stdout.decode().splitlines() if line.startswith("outcome="))
    assert json.loads(line.removeprefix("outcome=")) == {
        "at their addresses": ["first", "second"],
        "at the host port": "first",
        "interfaces": ["eth0", "lo"],
        "ready without pasta": [False, True],
        "ready for the next agent": [False, True],
        "made anew": True,
        "host port afterwards": "ConnectionRefusedError",
        "ended": True,
    }
    assert processes_with(str(tmp_path)) == []
