"""The node's port without an API server between: curl, a WebSocket library, and SPDY, on each route into containers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import pytest
import trio
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from trikubelet.http.streaming.client import Transport, open_command, open_port_forward
from trikubelet.http.streaming.command import CommandStreams, Exited

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from tests.kubectl.one_node import OneNode

pytestmark = pytest.mark.kubectl

PATIENCE: Final = 30.0
POD: Final = "default/web"
ASK: Final = b"GET /greeting HTTP/1.0\r\n\r\n"
OUT: Final = CommandStreams(stdout=True)
IN_OUT: Final = CommandStreams(stdin=True, stdout=True)


@pytest.fixture(autouse=True)
def greeting(node: OneNode) -> None:
    node.kubectl("exec", "web", "-c", "www", "--", "sh", "-c", "echo hello from the pod > /tmp/www/greeting")


# curl.

PAGES: Final = [
    ("GET", "/containerLogs/default/web/main?tailLines=1", ""),
    ("POST", "/run/default/web/main?cmd=echo+hello", "hello\n"),
    ("GET", "/pods", '"name":"web"'),
    ("GET", "/runningpods/", '"name":"web"'),
    ("GET", "/healthz", "ok"),
    ("GET", "/healthz/log", "ok"),
    ("GET", "/metrics", "kubelet_node_name{"),
    ("GET", "/metrics/resource", "container_memory_working_set_bytes{"),
    ("GET", "/metrics/cadvisor", "machine_cpu_cores"),
    ("GET", "/metrics/probes", ""),
    ("GET", "/metrics/slis", "kubernetes_healthcheck"),
    ("GET", "/stats/summary?only_cpu_and_memory=true", '"usageNanoCores"'),
    ("GET", "/configz", '"kubeletconfig"'),
    ("GET", "/statusz", "statusz"),
    ("GET", "/flagz", "kubeconfig"),
    ("GET", "/logs/", "<pre>"),
    ("GET", "/debug/tasks", ""),
    ("GET", "/debug/pprof/cmdline", "\0run\0--config="),
]


@pytest.mark.parametrize(("method", "path", "expected"), PAGES, ids=[path for _, path, _ in PAGES])
def test_curl(node: OneNode, method: str, path: str, expected: str) -> None:
    # What a pod uses is known after two looks at it.
    node.until(lambda: expected in node.curl(path, "-X", method).decode(), f"{path} holds {expected!r}")


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/exec/default/web/main?command=ls&output=1", 500, "Upgrade request required"),
        ("POST", "/attach/default/web/main?output=1", 500, "Upgrade request required"),
        ("GET", "/portForward/default/web", 500, "Upgrade request required"),
        ("GET", "/exec/default/nobody/main?command=ls&output=1", 404, "pod does not exist"),
        ("POST", "/checkpoint/default/nobody/main", 404, "pod does not exist"),
        ("GET", "/run/default/web/main?cmd=ls", 405, ""),
        ("GET", "/containerLogs/default/web/other", 404, 'container "other" not found in pod "web"'),
    ],
)
def test_curl_is_told_what_does_not_work(node: OneNode, method: str, path: str, status: int, text: str) -> None:
    found, body = node.answer(path, "-X", method)
    assert found == status
    assert text in body.decode()


# WebSockets.


def websocket(node: OneNode, path: str, protocol: str) -> ClientConnection:
    host, port = node.address
    url = f"wss://{host}:{port}{path}"
    offered = [Subprotocol(protocol)]
    opened = connect(url, ssl=node.context, subprotocols=offered, compression=None, proxy=None, open_timeout=PATIENCE)
    assert opened.subprotocol == protocol
    return opened


def messages(connection: ClientConnection) -> dict[int, bytes]:
    """Everything up to the end, by channel."""
    found: dict[int, bytes] = {}
    for message in connection:
        assert isinstance(message, bytes)
        found[message[0]] = found.get(message[0], b"") + message[1:]
    return found


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
def test_exec_by_websocket(node: OneNode, protocol: str) -> None:
    query = urlencode([("command", "sh"), ("command", "-c"), ("command", "read a; echo got $a; exit 3"), *_ALL])
    with websocket(node, f"/exec/{POD}/main?{query}", protocol) as connection:
        connection.send(b"\0hello\n")
        found = messages(connection)
    assert found[1] == b"got hello\n"
    status = json.loads(found[3])
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


def test_the_end_of_stdin_by_websocket(node: OneNode) -> None:
    with websocket(node, f"/exec/{POD}/main?command=cat&input=1&output=1", "v5.channel.k8s.io") as connection:
        connection.send(b"\0all of it")
        connection.send(b"\xff\0")
        found = messages(connection)
    assert found[1] == b"all of it"
    assert json.loads(found[3])["status"] == "Success"


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
def test_attach_by_websocket(node: OneNode, protocol: str) -> None:
    with websocket(node, f"/attach/{POD}/reads?input=1&output=1", protocol) as connection:
        connection.send(f"\0{protocol}\n".encode())
        got = b""
        while b"\n" not in got:
            message = connection.recv(PATIENCE)
            assert isinstance(message, bytes)
            got += message[1:] if message[0] == 1 else b""
    assert got == f"got {protocol}\n".encode()


def test_port_forward_by_websocket(node: OneNode) -> None:
    with websocket(node, f"/portForward/{POD}?port={node.web_port}", "v4.channel.k8s.io") as connection:
        connection.send(b"\0" + ASK)
        found = messages(connection)
    port = node.web_port.to_bytes(2, "little")
    assert found[0].startswith(port + b"HTTP/1.")
    assert found[0].endswith(b"hello from the pod\n")
    assert found[1] == port


_ALL: Final = [("input", "1"), ("output", "1"), ("error", "1")]

# SPDY, and SPDY in a WebSocket.


async def dialled(node: OneNode) -> trio.abc.Stream:
    stream = trio.SSLStream(await trio.open_tcp_stream(*node.address), node.context, https_compatible=True)
    await stream.do_handshake()
    return stream


async def test_exec_by_spdy(node: OneNode) -> None:
    with trio.fail_after(PATIENCE):
        target = f"/exec/{POD}/main?command=cat&input=1&output=1"
        async with open_command(await dialled(node), target, IN_OUT, transport="spdy") as command:
            assert command.stdin is not None
            await command.stdin.send_all(b"all of it")
            await command.stdin.send_eof()
            assert await _read(command.stdout) == b"all of it"
            assert await command.result() == Exited(0)


async def test_attach_by_spdy(node: OneNode) -> None:
    with trio.fail_after(PATIENCE):
        target = f"/attach/{POD}/reads?input=1&output=1"
        async with open_command(await dialled(node), target, IN_OUT, transport="spdy") as command:
            assert command.stdin is not None
            assert command.stdout is not None
            await command.stdin.send_all(b"spdy\n")
            got = b""
            while not got.endswith(b"\n"):
                got += await command.stdout.receive_some()
            assert got == b"got spdy\n"


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
async def test_port_forward_by_spdy(node: OneNode, transport: Transport) -> None:
    with trio.fail_after(PATIENCE):
        async with open_port_forward(await dialled(node), f"/portForward/{POD}", transport=transport) as forwarder:
            errors, data = await forwarder.open(node.web_port)
            await data.send_all(ASK)
            assert (await _read(data)).endswith(b"hello from the pod\n")
            assert await _read(errors) == b""


async def _read(stream: trio.abc.ReceiveStream | None) -> bytes:
    """To its end; some servers end streams by resetting them."""
    assert stream is not None
    found = b""
    try:
        while data := await stream.receive_some():
            found += data
    except trio.BrokenResourceError:
        pass
    return found
