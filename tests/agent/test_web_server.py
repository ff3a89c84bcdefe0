"""A web server as people run it, on the embedded runtime: its image from a registry, a volume that a sidecar fills, a
probe, and a port of the machine. The agent is killed while it is asked."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Final

import pytest

from tests.agent.real_node import RealNode
from tests.oci_image import OciImage, make_root_folder
from tests.own_machine import run_there
from tests.registry_node import RegistryNode, needs_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.root, needs_registry]

PORT: Final = 18080
SERVE: Final = "httpd -f -p 8080 -h /site & trap 'exit 0' TERM; wait"
WRITE: Final = (
    "trap 'exit 0' TERM; n=0; while :; do n=$((n+1)); echo $n > /site/new; mv /site/new /site/n; sleep 0.05; done"
)
FETCH: Final = r"printf 'GET /n HTTP/1.0\r\n\r\n' | nc 127.0.0.1 8080 | tail -n 1"


async def test_a_web_server_from_a_registry_loses_no_request_while_its_agent_is_killed(tmp_path: Path) -> None:
    await run_there(scenario, tmp_path)


def scenario(folder: Path) -> None:
    registry = RegistryNode(folder / "registry", protected=False)
    registry.start()
    image = registry.push("web:1", OciImage.from_folder(make_root_folder(folder / "rootfs"), {"Cmd": ["sh"]}))
    node = RealNode(folder / "node", image)
    try:
        node.start()
        run_web(node)
        pod = node.until_running("web")
        before = ask("127.0.0.1", PORT)
        assert int(ask(pod.status.pod_ip, 8080)) >= int(before)
        inside = node.cli("exec", f"--root-dir={node.root}", "web", "-c", "server", "--", "sh", "-c", FETCH)
        assert inside.stdout.strip().isdigit(), inside
        assert int(inside.stdout) >= int(before)
        with asking() as answers:
            node.stop(signal.SIGKILL)
            seen = len(answers)
            node.start()
            node.until(lambda: len(answers) > seen, "it is asked after that")
        assert answers == sorted(answers), "an older answer after a newer one"
        assert node.until_running("web").status.container_statuses[0].restart_count == 0
        node.stop()
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
        assert node.leftovers() == []
    finally:
        node.clean()
        registry.stop()


def run_web(node: RealNode) -> None:
    site = {"name": "site", "mountPath": "/site"}
    writer = node.container(WRITE, name="writer", volumeMounts=[site], restartPolicy="Always")
    server = node.container(
        SERVE,
        name="server",
        volumeMounts=[site],
        ports=[{"containerPort": 8080, "hostPort": PORT}],
        readinessProbe={"httpGet": {"path": "/n", "port": 8080}, "periodSeconds": 1},
        livenessProbe={"tcpSocket": {"port": 8080}},
    )
    node.run("web", server, initContainers=[writer], volumes=[{"name": "site", "emptyDir": {}}])


def ask(host: str, port: int) -> str:
    """What the server says now. Raises OSError, HTTPException."""
    connection = HTTPConnection(host, port, timeout=60)
    try:
        connection.request("GET", "/n")
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        return answer.read().decode()
    finally:
        connection.close()


@contextmanager
def asking() -> Iterator[list[int]]:
    """Somebody who asks again and again; the list grows with each answer. No request may fail."""
    answers: list[int] = []
    failures: list[str] = []
    enough = threading.Event()

    def go_on() -> None:
        while not enough.is_set():
            try:
                answers.append(int(ask("127.0.0.1", PORT)))
            except (OSError, HTTPException, AssertionError, ValueError) as error:
                failures.append(repr(error))

    asker = threading.Thread(target=go_on)
    asker.start()
    try:
        yield answers
    finally:
        enough.set()
        asker.join()
    assert failures == []
