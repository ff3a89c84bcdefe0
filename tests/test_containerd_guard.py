"""A containerd of the tests whose process is killed, and its pods, do not stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.containerd_guard import is_shim
from tests.containerd_node import PROJECT, ContainerdNode
from tests.containerd_programs import program
from tests.embedded.runtime_node import mounts_with, processes_with
from tests.patience import PATIENCE
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

pytestmark = pytest.mark.containerd

RUN: Final = "import sys; from tests.test_containerd_guard import main; main(*sys.argv[1:])"


def main(root: str, bridge: str) -> None:
    """Runs pods until it is killed. Prints the path of a pod's network namespace."""
    node = ContainerdNode(Path(root), bridge, network=2)
    node.start()
    node.import_images()
    print(trio.run(run_pod, node.socket), flush=True)
    time.sleep(PATIENCE)


async def run_pod(socket: Path) -> str:
    async with open_unix_channel(socket) as channel:
        client = RuntimeClient(channel, timeout=PATIENCE)
        pod = v1.PodSandboxMetadata(name="left", uid="left", namespace="default")
        sandbox = await client.run_pod_sandbox(v1.PodSandboxConfig(metadata=pod, linux=v1.LinuxPodSandboxConfig()))
        status = await client.pod_sandbox_status(sandbox, verbose=True)
    namespaces: list[dict[str, Any]] = json.loads(status.info["info"])["runtimeSpec"]["linux"]["namespaces"]
    (path,) = [each["path"] for each in namespaces if each["type"] == "network"]
    return str(path)


def test_nothing_is_left_of_a_containerd_whose_process_is_killed(tmp_path: Path) -> None:
    root, bridge = tmp_path / "node", f"br-test-k{os.getpid() % 10000}"
    state = Path("/run") / bridge

    def left(network: Path) -> list[str]:
        there = [str(each) for each in (root, state, network, Path("/sys/class/net") / bridge) if each.exists()]
        return [*there, *mounts_with(f"{root}/"), *mounts_with(f"{state}/"), *map(str, processes_with(str(root)))]

    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(root), bridge], stdout=subprocess.PIPE, cwd=PROJECT, text=True
    ) as killed:
        assert killed.stdout is not None
        network = Path(killed.stdout.readline().strip())
        there = left(network)
        killed.kill()
    assert {str(root), str(state), str(network)} < set(there), "it runs a pod"
    give_up = time.monotonic() + PATIENCE
    while (there := left(network)) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert there == []


def test_a_shim_that_containerd_knows_nothing_of_ends_with_it(tmp_path: Path) -> None:
    node = ContainerdNode(tmp_path / "node", f"br-test-f{os.getpid() % 10000}", network=3)
    node.start()
    (bundle := tmp_path / "bundle").mkdir()
    (bundle / "config.json").write_text("{}")
    os.mkfifo(bundle / "log")
    reader = os.open(bundle / "log", os.O_RDONLY | os.O_NONBLOCK)  # without one the shim ends by itself
    shim = program("containerd-shim-runc-v2")
    of_node = ["-namespace", "k8s.io", "-id", "forgotten", "-address", str(node.socket)]
    subprocess.run([shim, *of_node, "start"], cwd=bundle, check=True, timeout=PATIENCE, capture_output=True)
    end = time.monotonic() + PATIENCE
    while not any(map(is_shim, processes_with(str(node.socket)))):
        assert time.monotonic() < end
    node.stop()
    os.close(reader)
    while processes_with(str(node.socket)):
        assert time.monotonic() < end
        time.sleep(0.05)
