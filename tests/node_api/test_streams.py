from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing
from grpclib.const import Status

from tests.http.streaming.fake_runtime import SPDY_ANSWER, FakeRuntime, read_head
from trikubelet.api import Pod, pod_from_dict
from trikubelet.http.routing import Router
from trikubelet.http.server import HttpServer
from trikubelet.http.streaming.command import CommandStreams
from trikubelet.node_api.handlers.streams import StreamHandlers
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

UPGRADE = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
WEBSOCKET = (
    "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
URL = "http://127.0.0.1:4000/stream/t0ken"


@attrs.define
class FakeView:
    """One pod, `ns/pod` with the UID `u`, whose containers `main` and `tty` run."""

    asked: list[object] = attrs.field(factory=list)
    error: CRIError | None = None
    sandbox: bool = True

    def pod(self, namespace: str, name: str) -> Pod | None:
        if (namespace, name) != ("ns", "pod"):
            return None
        return pod_from_dict(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"namespace": "ns", "name": "pod", "uid": "u"},
                "spec": {
                    "containers": [{"name": "main", "image": "i"}, {"name": "gone", "image": "i"}],
                    "ephemeralContainers": [{"name": "tty", "image": "i", "tty": True}],
                },
            }
        )

    async def running_container(self, pod: Pod, uid: str, container: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return f"id-{container}" if uid in ("", "u") and container in ("main", "tty") else None

    async def exec_url(self, container_id: str, command: Sequence[str], streams: CommandStreams) -> str:
        return await self._url("exec", container_id, tuple(command), streams)

    async def attach_url(self, container_id: str, streams: CommandStreams) -> str:
        return await self._url("attach", container_id, streams)

    async def port_forward_url(self, pod: Pod, ports: Sequence[int]) -> str | None:
        url = await self._url("portforward", pod.metadata.uid, tuple(ports))
        return url if self.sandbox else None

    async def _url(self, *asked: object) -> str:
        await trio.lowlevel.checkpoint()
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return URL


def router(
    view: FakeView,
    runtime: FakeRuntime | None = None,
    counted: list[str] | None = None,
    *,
    translates: bool = True,
) -> Router:
    counts = counted if counted is not None else []
    connect = (runtime or FakeRuntime()).connect
    handlers = StreamHandlers(view, counts.append, connect, translates=translates)  # type: ignore[arg-type]
    router = Router()
    for method in ("GET", "POST"):
        for uid in ("", "/{uid}"):
            router.add(method, f"/exec/{{namespace}}/{{pod}}{uid}/{{container}}", handlers.exec)
            router.add(method, f"/attach/{{namespace}}/{{pod}}{uid}/{{container}}", handlers.attach)
            router.add(method, f"/portForward/{{namespace}}/{{pod}}{uid}", handlers.port_forward)
    return router


async def answer_to(
    view: FakeView, path: str, headers: str = UPGRADE, *, method: str = "POST"
) -> tuple[str, list[str], str]:
    """The whole answer to a request: status, header fields, text."""
    client, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(router(view, FakeRuntime(unreachable="no such runtime"))).serve_stream, theirs)
        await client.send_all(f"{method} {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n".encode())
        first, fields = await read_head(client)
        text = bytes(await client.receive_some()).decode()
        await client.aclose()
    return first.split()[1], fields, text


async def asked_of_the_runtime(path: str, headers: str = UPGRADE) -> list[object]:
    view = FakeView()
    await answer_to(view, path, headers)
    return view.asked


async def test_exec_asks_for_the_command_and_the_streams_of_the_query(autojump_clock: MockClock) -> None:
    path = "/exec/ns/pod/main?command=sh&command=-c&command=echo%20%26%20x+y&input=1&output=1&error=1"
    streams = CommandStreams(stdin=True, stdout=True, stderr=True)
    assert await asked_of_the_runtime(path) == [("exec", "id-main", ("sh", "-c", "echo & x y"), streams)]


@pytest.mark.parametrize(
    ("query", "streams"),
    [
        ("output=1", CommandStreams(stdout=True)),
        ("input=1&output=true&error=", CommandStreams(stdin=True)),
        ("input=1&output=1&error=1&tty=1", CommandStreams(stdin=True, stdout=True, tty=True)),
        ("output=1&tty=true", CommandStreams(stdout=True)),
        ("output=1&output=0&error=0&error=1", CommandStreams(stdout=True)),
    ],
)
async def test_only_a_1_asks_for_a_stream_and_a_terminal_has_no_stderr(
    query: str, streams: CommandStreams, autojump_clock: MockClock
) -> None:
    assert await asked_of_the_runtime(f"/exec/ns/pod/main?{query}") == [("exec", "id-main", (), streams)]


async def test_attach_has_a_terminal_when_the_container_has_one(autojump_clock: MockClock) -> None:
    streams = CommandStreams(stdin=True, stdout=True, tty=True)
    assert await asked_of_the_runtime("/attach/ns/pod/tty?input=1&output=1") == [("attach", "id-tty", streams)]
    streams = CommandStreams(stdin=True, stdout=True)
    assert await asked_of_the_runtime("/attach/ns/pod/main?input=1&output=1&tty=1") == [("attach", "id-main", streams)]


@pytest.mark.parametrize(
    ("query", "ports"),
    [
        ("port=80", (80,)),
        ("port=80&port=443", (80, 443)),
        ("port=80,443&port=1", (80, 443, 1)),
        ("port=65535", (65535,)),
    ],
)
async def test_a_websocket_names_its_ports_in_the_query(
    query: str, ports: tuple[int, ...], autojump_clock: MockClock
) -> None:
    assert await asked_of_the_runtime(f"/portForward/ns/pod?{query}", WEBSOCKET) == [("portforward", "u", ports)]


async def test_spdy_names_its_ports_stream_by_stream(autojump_clock: MockClock) -> None:
    assert await asked_of_the_runtime("/portForward/ns/pod?port=nonsense") == [("portforward", "u", ())]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", 'query parameter "port" is required'),
        ("port=", 'query parameter "port" cannot be empty'),
        ("port=x", 'unable to parse "x" as a port: expected a number from 1 to 65535'),
        ("port=65536", 'unable to parse "65536" as a port: expected a number from 1 to 65535'),
        ("port=-1", 'unable to parse "-1" as a port: expected a number from 1 to 65535'),
        ("port=80,", 'unable to parse "80," as a port: expected a number from 1 to 65535'),
        ("port=0", 'port "0" must be > 0'),
    ],
)
async def test_a_websocket_with_wrong_ports_is_refused(query: str, text: str, autojump_clock: MockClock) -> None:
    status, _, answer = await answer_to(FakeView(), f"/portForward/ns/pod?{query}", WEBSOCKET, method="GET")
    assert (status, answer) == ("400", f"{text}\n")


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/exec/ns/pod/main?command=sh", "400", "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/ns/pod/main?error=1&tty=1", "400", "you must specify at least 1 of stdin, stdout, stderr"),
        ("/attach/ns/pod/main", "400", "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/ns/other/main?output=1", "404", "pod does not exist"),
        ("/attach/other/pod/main?output=1", "404", "pod does not exist"),
        ("/portForward/ns/other", "404", "pod does not exist"),
        ("/exec/ns/pod/gone?output=1", "500", 'container not found ("gone")'),
        ("/exec/ns/pod/other-uid/main?output=1", "500", 'container not found ("main")'),
        ("/attach/ns/pod/gone?output=1", "500", "container gone not found in pod pod_ns"),
        ("/portForward/ns/pod/other-uid", "404", "pod not found"),
    ],
)
async def test_what_is_not_there_is_refused_in_the_kubelet_s_words(
    path: str, status: str, text: str, autojump_clock: MockClock
) -> None:
    view = FakeView()
    answer = await answer_to(view, path)
    assert (answer[0], answer[2]) == (status, f"{text}\n")
    assert not view.asked


@pytest.mark.parametrize(
    "path", ["/exec/ns/pod/u/main?output=1", "/attach/ns/pod/u/main?output=1", "/portForward/ns/pod/u"]
)
async def test_a_uid_in_the_path_may_be_the_pod_s(path: str, autojump_clock: MockClock) -> None:
    assert await asked_of_the_runtime(path)


async def test_a_pod_without_a_sandbox_forwards_nothing(autojump_clock: MockClock) -> None:
    status, _, text = await answer_to(FakeView(sandbox=False), "/portForward/ns/pod")
    assert (status, text) == ("500", 'pod not found ("pod_ns")\n')


@pytest.mark.parametrize("path", ["/exec/ns/pod/main?output=1", "/attach/ns/pod/main?output=1", "/portForward/ns/pod"])
@pytest.mark.parametrize("headers", ["", "Connection: Upgrade\r\n", "Upgrade: SPDY/3.1\r\n"])
async def test_a_request_without_an_upgrade_is_refused_before_the_runtime_is_asked(
    path: str, headers: str, autojump_clock: MockClock
) -> None:
    view = FakeView()
    status, _, text = await answer_to(view, path, headers, method="GET")
    assert (status, text) == ("500", "Upgrade request required\n")
    assert not view.asked


@pytest.mark.parametrize("path", ["/exec/ns/pod/main?output=1", "/attach/ns/pod/main?output=1", "/portForward/ns/pod"])
@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (Status.NOT_FOUND, "404"),
        (Status.RESOURCE_EXHAUSTED, "429"),
        (Status.INVALID_ARGUMENT, "500"),
        (Status.UNAVAILABLE, "500"),
    ],
)
async def test_what_the_runtime_says_decides_on_the_status(
    path: str, problem: Status, status: str, autojump_clock: MockClock
) -> None:
    answer = await answer_to(FakeView(error=CRIError("Exec", problem, "its words")), path)
    assert answer[0] == status
    assert "its words" in answer[2]
    assert ("Retry-After: 60" in answer[1]) == (status == "429")


async def test_a_runtime_that_cannot_be_reached_is_an_error(autojump_clock: MockClock) -> None:
    status, _, text = await answer_to(FakeView(), "/exec/ns/pod/main?output=1")
    assert (status, text) == ("500", "no such runtime\n")


# Which way it goes.


async def way_of(path: str, headers: str, *, translates: bool = True) -> tuple[list[str], str, str]:
    """What was counted, the request that reaches the runtime, and the upgrade in it."""
    counted: list[str] = []
    runtime = FakeRuntime()
    client, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        routes = router(FakeView(), runtime, counted, translates=translates)
        nursery.start_soon(HttpServer(routes).serve_stream, theirs)
        await client.send_all(f"GET {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n".encode())
        first, fields = await read_head(await runtime.accept())
        await client.aclose()
    return counted, first, next(field for field in fields if field.lower().startswith("upgrade:"))


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/exec/ns/pod/main?output=1", WEBSOCKET + "Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n"),
        ("/attach/ns/pod/main?output=1", WEBSOCKET),
        ("/portForward/ns/pod?port=80", WEBSOCKET + "Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n"),
        ("/portForward/ns/pod?port=80", WEBSOCKET + "Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n"),
        ("/portForward/ns/pod?port=80", WEBSOCKET + "Sec-WebSocket-Protocol: SPDY/3.1+example.org\r\n"),
    ],
)
async def test_websockets_that_runtimes_know_are_passed_through(
    path: str, headers: str, autojump_clock: MockClock
) -> None:
    assert await way_of(path, headers) == ([], "GET /stream/t0ken HTTP/1.1", "upgrade: WebSocket")


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
async def test_spdy_is_passed_through(protocol: str, autojump_clock: MockClock) -> None:
    headers = UPGRADE + f"X-Stream-Protocol-Version: {protocol}\r\nSec-WebSocket-Protocol: {protocol}\r\n"
    assert await way_of("/exec/ns/pod/main?output=1", headers) == (
        [],
        "GET /stream/t0ken HTTP/1.1",
        "upgrade: SPDY/3.1",
    )


@pytest.mark.parametrize(
    "protocols",
    [
        "Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
        "Sec-WebSocket-Protocol: v4.channel.k8s.io,v5.channel.k8s.io\r\n",
        "Sec-WebSocket-Protocol: v4.channel.k8s.io\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
    ],
)
@pytest.mark.parametrize("subresource", ["exec", "attach"])
async def test_v5_is_translated_and_counted(subresource: str, protocols: str, autojump_clock: MockClock) -> None:
    counted, first, upgrade = await way_of(f"/{subresource}/ns/pod/main?output=1", WEBSOCKET + protocols)
    assert counted == [subresource]
    assert (first, upgrade) == ("POST /stream/t0ken HTTP/1.1", "upgrade: SPDY/3.1")


async def test_a_tunnel_is_unpacked_and_counted_and_needs_no_ports(autojump_clock: MockClock) -> None:
    headers = WEBSOCKET + "Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n"
    counted, first, upgrade = await way_of("/portForward/ns/pod", headers)
    assert counted == ["portforward"]
    assert (first, upgrade) == ("POST /stream/t0ken HTTP/1.1", "upgrade: SPDY/3.1")


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/exec/ns/pod/main?output=1", "v5.channel.k8s.io"),
        ("/attach/ns/pod/main?output=1", "v5.channel.k8s.io"),
        ("/portForward/ns/pod?port=80", "SPDY/3.1+portforward.k8s.io"),
    ],
)
async def test_without_the_gate_all_websockets_are_passed_through(
    path: str, protocol: str, autojump_clock: MockClock
) -> None:
    headers = WEBSOCKET + f"Sec-WebSocket-Protocol: {protocol}\r\n"
    passed: tuple[list[str], str, str] = ([], "GET /stream/t0ken HTTP/1.1", "upgrade: WebSocket")
    assert await way_of(path, headers, translates=False) == passed


async def test_an_upgraded_request_is_connected_with_the_runtime(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    client, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(router(FakeView(), runtime)).serve_stream, theirs)
        await client.send_all(f"POST /exec/ns/pod/main?output=1 HTTP/1.1\r\nHost: h\r\n{UPGRADE}\r\n".encode())
        stream = await runtime.accept()
        await read_head(stream)
        await stream.send_all(SPDY_ANSWER + b"output")
        await read_head(client)
        assert await client.receive_some() == b"output"
        await client.aclose()
