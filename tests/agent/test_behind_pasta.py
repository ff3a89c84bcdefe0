"""A whole agent without root: its pods are behind pasta, and are probed, entered and forwarded to as on any network."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.agent.real_node import COMMAND, REPOSITORY, RealNode
from tests.embedded.runtime_node import processes_with
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.root,  # to have a machine of its own
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2"),
    pytest.mark.skipif(shutil.which("pasta") is None, reason="needs pasta"),
]

PORT = 8080
HOST_PORT = 18090
MACHINE = (
    "ip link set lo up; ip link add out type veth peer name peer; ip addr add 192.0.2.2/24 dev out; "
    "ip link set out up; ip link set peer up; ip route add default via 192.0.2.1; echo up; exec sleep 1000"
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    """The agent is root of a user namespace alone, in a network that looks like a machine's."""
    with subprocess.Popen(["unshare", "--net", "sh", "-c", MACHINE], stdout=subprocess.PIPE) as machine:
        try:
            assert machine.stdout is not None
            assert machine.stdout.readline() == b"up\n"
            entered = ("nsenter", f"--net=/proc/{machine.pid}/ns/net")
            node = RealNode(tmp_path, "localhost/host", prefix=(*entered, "unshare", "--user", "--map-root-user"))
            try:
                node.start()
                yield node
            finally:
                if node.agent is not None:
                    node.stop()
            node.until(lambda: pastas() == [], "no pasta is left")
            node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")
        finally:
            machine.kill()


def pastas() -> list[int]:
    return processes_with(f"{HOST_PORT}:{PORT}")


def run_web(node: RealNode) -> None:
    serve = f"trap 'exit 0' TERM; cd /usr/share; python3 -m http.server {PORT} & echo serving; wait"
    probe = {"httpGet": {"port": PORT}, "periodSeconds": 1}
    ports = [{"containerPort": PORT, "hostPort": HOST_PORT}]
    node.run("web", node.container(serve, readinessProbe=probe, ports=ports))


def test_a_pod_is_probed_entered_and_forwarded_to(node: RealNode) -> None:
    run_web(node)
    node.until_running("web")
    node.until(lambda: node.status("web").ready, "the probe found its server")
    assert node.lines("web")[0] == "serving"
    words = [*COMMAND, "exec", f"--root-dir={node.root}", "web", "--", "ls", "/sys/class/net"]
    assert subprocess.check_output(words, text=True, cwd=REPOSITORY, timeout=PATIENCE).split() == ["eth0", "lo"]
    words = [*COMMAND, "port-forward", f"--root-dir={node.root}", "web", f"0:{PORT}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as forward:
        try:
            assert forward.stdout is not None
            port = int(forward.stdout.readline().split(" -> ")[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.0 200 OK")
        finally:
            forward.send_signal(signal.SIGINT)


def test_a_pod_whose_pasta_dies_gets_another_network(node: RealNode) -> None:
    run_web(node)
    node.until_running("web")
    node.until(lambda: node.status("web").ready, "the probe found its server")
    node.until(lambda: len(pastas()) == 1, "one pasta serves the pod")
    (before,) = pastas()
    os.kill(before, signal.SIGKILL)
    node.until(lambda: pastas() not in ([], [before]), "another pasta serves the pod")

    def is_back() -> bool:
        status = node.status("web")
        return status.ready and status.restart_count == 1

    node.until(is_back, "the probe found its server again")
