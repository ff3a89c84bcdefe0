"""kubectl on the embedded runtime's streams: exec, attach, cp and port-forward, over SPDY and WebSockets.

The API server and the node's agent between them are this file: they ask the runtime for a URL as the agent would, and
hand the client's request to whatever serves that URL.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.embedded.runtime_node import Node, processes_with, wait_until
from tests.embedded.test_port_forward import echo, pod_listening
from tests.patience import PATIENCE
from trikubelet.http.messages import JSON, AnyResponse, Request, Response
from trikubelet.http.server import HttpServer
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.root, pytest.mark.kubectl]

TRANSPORT = pytest.mark.parametrize("websockets", ["true", "false"], ids=["websocket", "spdy"])
PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "create"]}
DISCOVERY: dict[str, Any] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [PODS]},
}
ECHO = "while read line; do echo got-$line; done; echo end"


@attrs.define
class Cluster:
    """One pod with one container, behind an API server."""

    node: Node
    sandbox: str
    container: str
    url: str
    environment: dict[str, str]

    def pod(self) -> dict[str, Any]:
        config = self.node.cri._inventory.container(self.container).config
        container = {"name": "c", "image": "i", "stdin": config.stdin, "stdinOnce": config.stdin_once}
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "p", "namespace": "default", "uid": "1"},
            "spec": {"containers": [{**container, "tty": config.tty, "ports": [{"containerPort": 80}]}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
        }

    async def answer(self, request: Request) -> AnyResponse:
        if request.path in DISCOVERY:
            return Response(json.dumps(DISCOVERY[request.path]).encode(), content_type=JSON)
        if request.path == "/api/v1/namespaces/default/pods/p":
            return Response(json.dumps(self.pod()).encode(), content_type=JSON)
        url = await self.stream_url(request, request.path.rpartition("/")[2])
        path = "/" + url.split("/", 3)[3]
        token = path.rpartition("/")[2]
        return await self.node.runtime._streaming._serve(attrs.evolve(request, path=path, params={"token": token}))

    async def stream_url(self, request: Request, subresource: str) -> str:
        streams = {name: request.flag(name) for name in ("stdin", "stdout", "stderr", "tty")}
        if subresource == "exec":
            command = list(request.query["command"])
            reply = await self.node.cri.exec(v1.ExecRequest(container_id=self.container, cmd=command, **streams))
            return reply.url
        if subresource == "attach":
            return (await self.node.cri.attach(v1.AttachRequest(container_id=self.container, **streams))).url
        assert subresource == "portforward"
        return (await self.node.cri.port_forward(v1.PortForwardRequest(pod_sandbox_id=self.sandbox))).url

    async def kubectl(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return await trio.run_process(
            ["kubectl", f"--server={self.url}", *words],
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=self.environment,
        )

    async def in_terminal(self, line: str) -> bytes:
        """What a terminal shows of `kubectl LINE`; script(1) is the terminal."""
        command = f"stty cols 93 rows 31; kubectl --server={self.url} {line}; echo code:$?"
        done = await trio.run_process(
            ["script", "-qec", command, "/dev/null"], capture_stdout=True, check=False, env=self.environment
        )
        return bytes(done.stdout)


@asynccontextmanager
async def cluster(node: Node, home: Path, websockets: str, *command: str, **fields: Any) -> AsyncIterator[Cluster]:
    names = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
    environment = {**os.environ, "HOME": str(home), "KUBECONFIG": "", **dict.fromkeys(names, websockets)}
    sandbox = await node.sandbox()
    container = await node.launch(sandbox, command or ["sleep", "1000"], **fields)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    made = Cluster(node, sandbox, container, url, environment)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, HttpServer(made.answer).serve_stream, listeners)
        with trio.fail_after(3 * PATIENCE):
            yield made
        nursery.cancel_scope.cancel()


@TRANSPORT
async def test_exec_carries_stdin_output_and_exit_code(node: Node, tmp_path: Path, websockets: str) -> None:
    data = os.urandom(3 << 20)
    async with cluster(node, tmp_path, websockets) as made:
        done = await made.kubectl("exec", "-i", "p", "--", "sh", "-c", "cat; echo oops >&2; exit 42", stdin=data)
    assert (done.returncode, done.stdout == data) == (42, True), done.stderr
    # kubectl reads before it has its streams ready: on a busy machine it complains about the first, empty message.
    assert b"oops" in done.stderr.splitlines()


@TRANSPORT
async def test_exec_in_a_terminal_has_its_size(node: Node, tmp_path: Path, websockets: str) -> None:
    script = "until test $(stty size | cut -c1) != 0; do sleep 0.01; done; tty; stty size; exit 5"
    async with cluster(node, tmp_path, websockets) as made:
        shown = await made.in_terminal(f"exec -it p -- bash -c '{script}'")
    assert b"/dev/pts/0" in shown
    assert b"31 93" in shown
    assert b"code:5" in shown


@TRANSPORT
async def test_a_killed_kubectl_takes_its_command_along(node: Node, tmp_path: Path, websockets: str) -> None:
    marker = f"kubectl-{node.keeper_pid()}-{websockets}"
    in_container = ["python3", "-c", "import time; time.sleep(1000)", marker]

    def commands() -> list[int]:
        return [pid for pid in processes_with(marker) if is_python(pid)]

    async with cluster(node, tmp_path, websockets) as made, trio.open_nursery() as nursery:
        words = ["kubectl", f"--server={made.url}", "exec", "-i", "p", "--", *in_container]
        run = partial(trio.run_process, words, stdin=subprocess.PIPE, check=False, env=made.environment)
        kubectl: trio.Process = await nursery.start(run)
        await wait_until(lambda: bool(commands()), "the command runs")
        kubectl.kill()
        await wait_until(lambda: not commands(), "the command is gone")


def is_python(pid: int) -> bool:
    try:
        return "python" in str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return False


@TRANSPORT
async def test_attach_talks_to_the_container_until_stdin_ends(node: Node, tmp_path: Path, websockets: str) -> None:
    async with cluster(node, tmp_path, websockets, "bash", "-c", ECHO, stdin=True, stdin_once=True) as made:
        done = await made.kubectl("attach", "-i", "p", stdin=b"one\ntwo\n")
        assert (await node.ended(made.container)).exit_code == 0
    assert b"got-one\ngot-two\nend\n" in done.stdout, (done.stdout, done.stderr)


@TRANSPORT
async def test_cp_brings_a_folder_in_and_out_again(node: Node, tmp_path: Path, websockets: str) -> None:
    folder = tmp_path / "there"
    (folder / "deeper").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(2 << 20))
    (folder / "deeper" / "small").write_text("words\n")
    async with cluster(node, tmp_path, websockets) as made:
        into = await made.kubectl("cp", str(folder), "default/p:/tmp/copied")
        out_of = await made.kubectl("cp", "default/p:/tmp/copied", str(tmp_path / "back"))
    assert (into.returncode, out_of.returncode) == (0, 0), (into.stderr, out_of.stderr)
    assert (tmp_path / "back" / "large").read_bytes() == (folder / "large").read_bytes()
    assert (tmp_path / "back" / "deeper" / "small").read_text() == "words\n"


@TRANSPORT
async def test_port_forward_serves_connection_after_connection(node: Node, tmp_path: Path, websockets: str) -> None:
    async with (
        pod_listening(echo) as pod_port,
        cluster(node, tmp_path, websockets) as made,
        trio.open_nursery() as nursery,
    ):
        words = ["kubectl", f"--server={made.url}", "port-forward", "p", f":{pod_port}"]
        run = partial(trio.run_process, words, stdout=subprocess.PIPE, check=False, env=made.environment)
        kubectl: trio.Process = await nursery.start(run)
        assert kubectl.stdout is not None
        line = bytes(await kubectl.stdout.receive_some())
        port = int(line.split(b" -> ")[0].rpartition(b":")[2])
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"hello")
                await stream.send_eof()
                assert b"".join([bytes(block) async for block in stream]) == b"hello"
        nursery.cancel_scope.cancel()
