"""A cluster of one node, and kubectl: the test API server on a port, and a whole agent as a process on a real runtime.

What kubectl asks of a pod goes its usual way: to the API server, from there with its client certificate to the node's
port, and from there to the runtime.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from tests.agent.private_cgroups import PrivateCgroups
from tests.agent.real_node import NODE_NAME, RealNode
from tests.apiserver.documents import Document, dig, items
from tests.apiserver.metrics_server import MetricsServer
from tests.free_ports import free_port
from tests.patience import PATIENCE
from tests.volumes.real.served_cluster import ServedCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.apiserver.identities import Certificate

UNTIL_TERM: Final = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


@attrs.define
class OneNode:
    """Its pods are asked for by the API, as users do."""

    node: RealNode
    cluster: ServedCluster
    address: tuple[str, int]
    """Of the node's port."""
    certificate: Path
    """PEM of an administrator, with the key."""
    cgroups: PrivateCgroups
    """Below which its pods have theirs."""
    web_port: int = 0
    """Of the pod's web server."""

    def container(self, name: str, script: str, **fields: Any) -> dict[str, Any]:
        return self.node.container(script, name, **fields)

    def start(self, name: str, *containers: dict[str, Any], **spec: Any) -> None:
        """Create a pod, and wait until it is ready."""
        volumes = [{"name": "shared", "hostPath": {"path": str(self.node.shared)}}]
        spec = {
            "nodeName": NODE_NAME,
            "terminationGracePeriodSeconds": 1,
            "dnsPolicy": "Default",
            "volumes": volumes,
            "containers": containers,
            **spec,
        }
        self.cluster.create("Pod", name, spec=spec)
        self.until(lambda: _is_ready(self.pod(name)), f"{name} is ready")

    def start_agent(self) -> None:
        self.node.start(
            f"--kubeconfig={self.node.folder / 'kubeconfig'}", "--drain-on-exit", "--host-image", "--pod-network=bridge"
        )

    def pod(self, name: str) -> Document:
        return self.cluster.find("pods", name) or {}

    def status(self, pod: str, container: str, kind: str = "containerStatuses") -> Document:
        return next((one for one in items(self.pod(pod), "status", kind) if one["name"] == container), {})

    def until(self, condition: Any, what: str) -> None:
        self.node.until(condition, what, PATIENCE)

    @property
    def environment(self) -> dict[str, str]:
        """For kubectl: who it is, and a home of its own."""
        home = self.node.folder / "home"
        return {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(home / "config")}

    def kubectl(self, *words: str, stdin: bytes = b"", code: int = 0) -> bytes:
        """What it wrote to stdout; it has to end with this code."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == code, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def run(self, *words: str, stdin: bytes = b"", folder: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["kubectl", *words],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=PATIENCE,
            env=self.environment,
            cwd=folder,
        )

    @contextlib.contextmanager
    def going(self, *words: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A kubectl that goes on, for the body of the `with`."""
        process = subprocess.Popen(["kubectl", *words], env=self.environment, **streams)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()

    @property
    def context(self) -> ssl.SSLContext:
        """For those who ask the node itself, as an administrator."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(self.certificate)
        return context

    def curl(self, path: str, *options: str) -> bytes:
        """What the node itself answered, with status 200."""
        status, body = self.answer(path, *options)
        assert status == 200, (path, status, body[-2000:])
        return body

    def answer(self, path: str, *options: str) -> tuple[int, bytes]:
        host, port = self.address
        command = ["curl", "-sS", "-k", "--cert", str(self.certificate), "--noproxy", "*", "-w", "%{http_code}"]
        done = subprocess.run(
            [*command, *options, f"https://{host}:{port}{path}"], capture_output=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 0, (path, done.stdout[-2000:], done.stderr[-2000:])
        return int(done.stdout[-3:]), done.stdout[:-3]

    def websocket_requests(self) -> dict[str, float]:
        """How many the node has translated or unpacked so far, by subresource."""
        found: dict[str, float] = {}
        for line in self.curl("/metrics").decode().splitlines():
            if line.startswith("kubelet_websocket_streaming_requests_total{"):
                name, value = line.rsplit(" ", 1)
                found[name.partition('subresource="')[2].partition('"')[0]] = float(value)
        return found

    def pass_websockets(self, on: bool) -> None:
        """Whether the API server gives clients' WebSockets to nodes."""

        def switch(server: Any) -> None:
            server.node_proxy.websockets = on

        self.cluster.do(switch)


@contextlib.contextmanager
def one_node(node: RealNode, cluster: ServedCluster, cgroups: PrivateCgroups) -> Iterator[OneNode]:
    """An agent that has joined, drained at the end: nothing is left of it."""
    authority = node.folder / "clients.pem"
    authority.write_bytes(cluster.do(lambda server: server.ca_pem))
    port = free_port()
    node.configure(
        enableServer=True,
        port=port,
        enableSystemLogQuery=True,
        authentication={"x509": {"clientCAFile": str(authority)}},
    )
    admin: Certificate = cluster.do(lambda server: server.admin_certificate())
    certificate = _secret(node.folder / "admin.pem", (admin.cert_pem + admin.key_pem).decode())
    (node.folder / "home").mkdir()
    _secret(node.folder / "home" / "config", cluster.do(lambda server: server.kubeconfig(admin, cluster.url)))
    _secret(node.folder / "kubeconfig", cluster.kubeconfig(NODE_NAME))
    cluster.do(MetricsServer)
    try:
        joined = OneNode(node, cluster, ("", port), certificate, cgroups)
        joined.start_agent()
        node.until(lambda: _address(cluster.find("nodes", NODE_NAME)), "the node has an address", PATIENCE)
        joined.address = (_address(cluster.find("nodes", NODE_NAME)), port)
        yield joined
        assert node.stop() == 0, node.told()
        node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")
    finally:
        node.clean()


def _secret(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _address(node: Document | None) -> str:
    addresses: Sequence[Document] = items(node, "status", "addresses")
    return next((str(entry["address"]) for entry in addresses if entry["type"] == "InternalIP"), "")


def _is_ready(pod: Document) -> bool:
    conditions = items(pod, "status", "conditions")
    return dig(pod, "status", "phase") == "Running" and any(
        one["type"] == "Ready" and one["status"] == "True" for one in conditions
    )
