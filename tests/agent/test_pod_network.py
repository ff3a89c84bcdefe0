"""Networks of pods on the embedded runtime's bridge: a whole agent on a machine of its own, as far as networks go."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.agent.real_node import COMMAND, REPOSITORY, RealNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.root, pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")]

PORT = 8080
HOST_PORT = 18080
FETCH = (
    "import sys, urllib.request as r;"
    "print(r.build_opener(r.ProxyHandler({})).open('http://' + sys.argv[1], timeout=10).read().decode(), end='')"
)
SERVE = f"trap 'exit 0' TERM; python3 -m http.server --directory /site {PORT} & wait"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    """An agent whose machine has nothing but a loopback interface; what is there of links at the end is its doing."""
    script = "ip link set lo up; echo up; exec sleep 1000"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE) as machine:
        try:
            assert machine.stdout is not None
            assert machine.stdout.readline() == b"up\n"
            node = RealNode(tmp_path, "localhost/host", prefix=("nsenter", f"--net=/proc/{machine.pid}/ns/net"))
            try:
                node.start()
                yield node
            finally:
                if node.agent is not None:
                    node.stop()
            assert links(node) == ["lo"]
            node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")
        finally:
            machine.kill()


def on_machine(node: RealNode, *command: str) -> str:
    """What a command prints that is run on the agent's machine."""
    done = subprocess.run([*node.prefix, *command], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout


def links(node: RealNode) -> list[str]:
    words = [line.split()[0] for line in on_machine(node, "ip", "-brief", "link").splitlines()]
    return sorted(word.partition("@")[0] for word in words)


def fetch(node: RealNode, where: str) -> str:
    return on_machine(node, "python3", "-c", FETCH, where)


def in_pod(node: RealNode, name: str, *command: str) -> str:
    """What a command prints that is run in the container beside the server."""
    words = [*COMMAND, "exec", f"--root-dir={node.root}", name, "-c", f"{name}-aside", "--", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False, cwd=REPOSITORY).stdout


def run_web(node: RealNode, name: str, **ports: int) -> None:
    """A web server with a volume that another container fills, and a probe."""
    site = {"name": "site", "mountPath": "/site"}
    write = node.container(f"echo from {name} > /site/index.html", name=f"{name}-writer", volumeMounts=[site])
    aside = node.container("trap 'exit 0' TERM; while :; do sleep 0.1; done", name=f"{name}-aside")
    server = node.container(
        SERVE,
        name=f"{name}-server",
        volumeMounts=[site],
        ports=[{"containerPort": PORT, **ports}],
        readinessProbe={"httpGet": {"port": PORT}, "periodSeconds": 1},
    )
    node.run(name, server, aside, initContainers=[write], volumes=[{"name": "site", "emptyDir": {}}])


def address(node: RealNode, name: str) -> str:
    return node.until_running(name).status.pod_ip


def test_two_pods_listen_on_one_port_and_are_reached_from_everywhere(node: RealNode) -> None:
    run_web(node, "one", hostPort=HOST_PORT)
    run_web(node, "two")
    one, two = address(node, "one"), address(node, "two")
    assert one != two
    assert fetch(node, f"{one}:{PORT}") == "from one\n"
    assert fetch(node, f"{two}:{PORT}") == "from two\n"
    assert fetch(node, f"127.0.0.1:{HOST_PORT}") == "from one\n"
    assert in_pod(node, "two", "python3", "-c", FETCH, f"{one}:{PORT}") == "from one\n"
    assert in_pod(node, "two", "python3", "-c", FETCH, f"127.0.0.1:{PORT}") == "from two\n"
    assert in_pod(node, "one", "grep", one, "/etc/hosts") == f"{one}\tone-node-1\n"


def test_networks_outlive_the_agent_and_are_made_anew_after_their_keeper(node: RealNode) -> None:
    run_web(node, "web", hostPort=HOST_PORT)
    before = address(node, "web")
    node.stop(signal.SIGKILL)
    assert fetch(node, f"{before}:{PORT}") == "from web\n"
    node.start()
    assert address(node, "web") == before
    assert fetch(node, f"127.0.0.1:{HOST_PORT}") == "from web\n"
    os.kill(node.runtime_pid, signal.SIGKILL)
    node.until(lambda: fetch(node, f"127.0.0.1:{HOST_PORT}") == "from web\n", "the pod is back behind its host port")
    assert len(links(node)) == 3, "loopback, the bridge, and one pod's"


def test_an_agent_that_died_in_the_middle_leaves_nothing(node: RealNode) -> None:
    for name in ("a", "b", "c", "d"):
        node.run(name, node.container("sleep 1000"))
    node.until(lambda: len(links(node)) > 2, "a pod has a link")
    node.stop(signal.SIGKILL)
    for name in ("a", "b", "c", "d"):
        node.delete(name)
    run_web(node, "web")
    node.start()
    address(node, "web")
    node.until(lambda: len(links(node)) == 3, "loopback, the bridge, and one pod's")
