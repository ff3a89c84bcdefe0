"""A web server as people run it, on the embedded runtime: its image from a registry, a volume that a sidecar fills, a
probe, and a port of the machine. The machine has no program but Python. The agent is killed while eight clients ask, by
the port of the machine and by the pod's address, and wait for answers."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pytest

from tests.agent.real_node import RealNode
from tests.oci_image import OciImage, make_root_folder
from tests.own_machine import run_there
from tests.registry_node import RegistryNode, needs_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = [pytest.mark.root, needs_registry]

LIBC: Final = ctypes.CDLL(None, use_errno=True)
MS_BIND: Final = 4096
MNT_DETACH: Final = 2
PORT: Final = 18080
PAUSE: Final = 0.02
"""Seconds between an answer and the next question of a client that does not wait for it anyway."""
SERVE: Final = "httpd -f -p 8080 -h /site & trap 'exit 0' TERM; wait"
QUICK: Final = "/n"
SLOW: Final = "/cgi-bin/slow"
"""Answers with a number of a second ago."""
WRITE: Final = f"""
mkdir /site/cgi-bin
cat > /site{SLOW} <<'END'
#!/bin/sh
n=$(cat /site/n)
sleep 1
echo Content-Type: text/plain
echo
echo $n
END
chmod +x /site{SLOW}
trap 'exit 0' TERM
n=0
while :; do n=$((n+1)); echo $n > /site/new; mv /site/new /site/n; sleep 0.05; done
"""
FETCH: Final = r"printf 'GET /n HTTP/1.0\r\n\r\n' | nc 127.0.0.1 8080 | tail -n 1"


async def test_a_web_server_from_a_registry_loses_no_request_while_its_agent_is_killed(tmp_path: Path) -> None:
    await run_there(scenario, tmp_path)


def scenario(folder: Path) -> None:
    registry = RegistryNode(folder / "registry", protected=False)
    registry.start()
    image = registry.push("web:1", OciImage.from_folder(make_root_folder(folder / "rootfs"), {"Cmd": ["sh"]}))
    node = RealNode(folder / "node", image)
    with ExitStack() as stack:
        stack.callback(registry.stop)
        stack.callback(node.clean)
        stack.enter_context(nothing_but_python())
        node.start()
        run_web(node)
        pod = node.until_running("web")
        before = ask("127.0.0.1", PORT)
        assert int(ask(pod.status.pod_ip, 8080)) >= int(before)
        inside = node.cli("exec", f"--root-dir={node.root}", "web", "-c", "server", "--", "sh", "-c", FETCH)
        assert inside.stdout.strip().isdigit(), inside
        assert int(inside.stdout) >= int(before)
        clients = [
            Client(*where, path)
            for where in (("127.0.0.1", PORT), (pod.status.pod_ip, 8080))
            for path in (QUICK, QUICK, SLOW, SLOW)
        ]
        with asking(clients):
            node.until(lambda: all(client.answers for client in clients), "everybody was answered")
            killed = time.monotonic()
            node.stop(signal.SIGKILL)
            node.until(answered_again(clients), "everybody is answered while there is no agent")
            node.start()
            node.until(answered_again(clients), "everybody is answered after that")
        for client in clients:
            assert client.failures == []
            assert client.answers == sorted(client.answers), "an older answer after a newer one"
            if client.path == SLOW:
                assert client.was_waiting(killed), "a request was in flight at the kill"
        assert node.until_running("web").status.container_statuses[0].restart_count == 0
        node.stop()
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
        node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")


def run_web(node: RealNode) -> None:
    site = {"name": "site", "mountPath": "/site"}
    writer = node.container(WRITE, name="writer", volumeMounts=[site], restartPolicy="Always")
    server = node.container(
        SERVE,
        name="server",
        volumeMounts=[site],
        ports=[{"containerPort": 8080, "hostPort": PORT}],
        readinessProbe={"httpGet": {"path": QUICK, "port": 8080}, "periodSeconds": 1},
        livenessProbe={"tcpSocket": {"port": 8080}},
    )
    node.run("web", server, initContainers=[writer], volumes=[{"name": "site", "emptyDir": {}}])


@contextmanager
def nothing_but_python() -> Iterator[None]:
    """No program is where programs are, but this Python. Elsewhere than on a machine of its own that would be rude."""
    here = os.open(sys.executable, os.O_RDONLY)
    names = [Path(sys.executable)]
    while names[-1].is_symlink():
        names.append(names[-1].parent / names[-1].readlink())
    folders = {Path(folder).resolve() for folder in (*os.environ["PATH"].split(":"), "/usr/sbin", "/usr/lib/cni")}
    hidden = [folder for folder in sorted(folders) if folder.is_dir() and folder != Path(sys.executable).parent]
    try:
        for folder in hidden:
            mount("none", folder, "tmpfs")
        for name in names:
            if name.parent.resolve() in hidden:
                name.touch()
                mount(f"/proc/self/fd/{here}", name, "", MS_BIND)
        assert shutil.which("sh") is None
        assert shutil.which("ip") is None
        yield
    finally:
        for folder in reversed(hidden):
            LIBC.umount2(os.fsencode(folder), MNT_DETACH)
        os.close(here)


def mount(source: str, target: Path, kind: str, flags: int = 0) -> None:
    """Raises OSError."""
    if LIBC.mount(source.encode(), os.fsencode(target), kind.encode(), flags, None):
        raise OSError(ctypes.get_errno(), f"mount {target}")


@attrs.define
class Client:
    """Somebody who asks again and again."""

    host: str
    port: int
    path: str
    answers: list[int] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    _times: list[tuple[float, float]] = attrs.field(factory=list)

    def go_on(self, enough: threading.Event) -> None:
        while not enough.is_set():
            began = time.monotonic()
            try:
                self.answers.append(int(ask(self.host, self.port, self.path)))
            except (OSError, HTTPException, AssertionError, ValueError) as error:
                self.failures.append(repr(error))
            self._times.append((began, time.monotonic()))
            if self.path == QUICK:
                time.sleep(PAUSE)

    def was_waiting(self, moment: float) -> bool:
        """Whether a request was not answered yet at that moment."""
        return any(began < moment < ended for began, ended in self._times)


def ask(host: str, port: int, path: str = "/n") -> str:
    """What the server says now. Raises OSError, HTTPException."""
    connection = HTTPConnection(host, port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        return answer.read().decode()
    finally:
        connection.close()


def answered_again(clients: Sequence[Client]) -> Callable[[], bool]:
    """Whether each has asked, and was answered, since this was called."""
    seen = [len(client.answers) for client in clients]
    return lambda: all(len(client.answers) > before + 1 for client, before in zip(clients, seen, strict=True))


@contextmanager
def asking(clients: Sequence[Client]) -> Iterator[None]:
    """All of them ask at once."""
    enough = threading.Event()
    threads = [threading.Thread(target=client.go_on, args=[enough]) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()
