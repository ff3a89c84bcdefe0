"""Exec, attach and port-forward through our server to a real containerd, by every way that a client may come."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
import trio.testing

from tests.patience import PATIENCE
from tests.runtime.containerd_stage import POLL, ContainerdStage, manifest, stage_on
from trikubelet.api import Pod
from trikubelet.container.model import ContainerState
from trikubelet.http.messages import Peer
from trikubelet.http.routing import Router
from trikubelet.http.server import HttpServer
from trikubelet.http.streaming.client import ClientCommand, Transport, open_command, open_port_forward
from trikubelet.http.streaming.command import CommandStreams, Exited, Failed, TerminalSize
from trikubelet.node_api.handlers.streams import StreamHandlers
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from tests.containerd_node import ContainerdNode

pytestmark = [pytest.mark.containerd, pytest.mark.root]

SIZE: Final = 5 * 2**20
DATA: Final = os.urandom(SIZE)
IN_OUT: Final = CommandStreams(stdin=True, stdout=True)
OUT: Final = CommandStreams(stdout=True)
ALL: Final = CommandStreams(stdin=True, stdout=True, stderr=True)
TERMINAL: Final = CommandStreams(stdin=True, stdout=True, tty=True)
WAYS: Final = ["spdy", "websocket"]
"""Passed through; v5, translated or tunnelled."""
PORT: Final = 8080
SPEC: Final = f"""
    terminationGracePeriodSeconds: 0
    containers:
    - name: main
      command: ["sh", "-c", "while :; do sleep 1; done"]
    - name: reads
      stdin: true
      command: ["sh", "-c", "while read line; do echo got $line; done; sleep 1000"]
    - name: tty
      stdin: true
      tty: true
      command: ["sh"]
    - name: echoes
      command: ["nc", "-ll", "-p", "{PORT}", "-e", "cat"]
"""


@attrs.define
class StageView:
    """One pod on a stage, as the handlers see it."""

    stage: ContainerdStage
    runtime: RuntimeClient
    the_pod: Pod

    def pod(self, namespace: str, name: str) -> Pod | None:
        metadata = self.the_pod.metadata
        return self.the_pod if (namespace, name) == (metadata.namespace, metadata.name) else None

    async def running_container(self, pod: Pod, uid: str, container: str) -> str | None:
        found = (await self.stage.status(pod)).find_container(container)
        if found is None or found.state is not ContainerState.RUNNING or uid not in ("", pod.metadata.uid):
            return None
        return found.id.id

    async def exec_url(self, container_id: str, command: Sequence[str], streams: CommandStreams) -> str:
        request = v1.ExecRequest(container_id=container_id, cmd=list(command), **attrs.asdict(streams))
        return await self.runtime.exec(request)

    async def attach_url(self, container_id: str, streams: CommandStreams) -> str:
        return await self.runtime.attach(v1.AttachRequest(container_id=container_id, **attrs.asdict(streams)))

    async def port_forward_url(self, pod: Pod, ports: Sequence[int]) -> str | None:
        sandboxes = (await self.stage.status(pod)).sandbox_statuses
        return await self.runtime.port_forward(v1.PortForwardRequest(pod_sandbox_id=sandboxes[0].id, port=list(ports)))


@attrs.define
class Served:
    """Our server on a port of this machine."""

    view: StageView
    port: int
    counted: list[str]

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    @asynccontextmanager
    async def command(
        self, way: Transport, streams: CommandStreams, *command: str, container: str = "main"
    ) -> AsyncIterator[ClientCommand]:
        path = f"/exec/{self._pod}/{container}?{_query(streams)}"
        with trio.fail_after(PATIENCE):
            target = path + "".join(f"&command={_escaped(part)}" for part in command)
            async with open_command(await self.connect(), target, streams, transport=way) as opened:
                yield opened

    @asynccontextmanager
    async def attached(self, way: Transport, streams: CommandStreams, container: str) -> AsyncIterator[ClientCommand]:
        with trio.fail_after(PATIENCE):
            target = f"/attach/{self._pod}/{container}?{_query(streams)}"
            async with open_command(await self.connect(), target, streams, transport=way) as opened:
                yield opened

    @property
    def _pod(self) -> str:
        metadata = self.view.the_pod.metadata
        return f"{metadata.namespace}/{metadata.name}"

    async def processes(self) -> str:
        """What runs in the main container."""
        return await self._output("main", "ps")

    async def until_listening(self) -> None:
        """Until the container that echoes does so."""
        with trio.fail_after(PATIENCE):
            while f":{PORT:04X} " not in await self._output("echoes", "cat", "/proc/net/tcp", "/proc/net/tcp6"):
                await trio.sleep(POLL)

    async def _output(self, name: str, *command: str) -> str:
        container = await self.view.running_container(self.view.the_pod, "", name)
        assert container is not None
        return (await self.view.runtime.exec_sync(container, command, 10)).stdout.decode()


def _query(streams: CommandStreams) -> str:
    asked = {"input": streams.stdin, "output": streams.stdout, "error": streams.stderr, "tty": streams.tty}
    return "&".join(f"{name}=1" for name, wanted in asked.items() if wanted)


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


@asynccontextmanager
async def served_on(containerd: ContainerdNode, folder: Path) -> AsyncIterator[Served]:
    """The pod runs, and the server listens."""
    pod = manifest("streams", SPEC)
    async with stage_on(containerd, folder) as stage, open_unix_channel(containerd.socket) as channel:
        for container in pod.spec.containers:
            await stage.until_running(pod, container.name)
        view = StageView(stage, RuntimeClient(channel), pod)
        counted: list[str] = []
        server = HttpServer(_router(StreamHandlers(view, counted.append)))  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            serve = partial(server.serve_stream, peer=Peer("127.0.0.1:1"))
            [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            yield Served(view, listener.socket.getsockname()[1], counted)
            nursery.cancel_scope.cancel()
        await stage.destroy(pod)


def _router(handlers: StreamHandlers) -> Router:
    router = Router()
    for method in ("GET", "POST"):
        router.add(method, "/exec/{namespace}/{pod}/{container}", handlers.exec)
        router.add(method, "/attach/{namespace}/{pod}/{container}", handlers.attach)
        router.add(method, "/portForward/{namespace}/{pod}", handlers.port_forward)
    return router


async def read_all(stream: trio.abc.ReceiveStream | None) -> bytes:
    """To the end, which runtimes tell by resetting the stream."""
    assert stream is not None
    data = bytearray()
    try:
        while block := await stream.receive_some():
            data += block
    except trio.BrokenResourceError:
        pass
    return bytes(data)


async def until(stream: trio.abc.ReceiveStream | None, text: bytes) -> bytes:
    assert stream is not None
    data = b""
    while text not in data:
        block = await stream.receive_some()
        assert block, f"expected {text!r}, got {data!r}"
        data += block
    return data


async def test_commands_on_every_way(containerd: ContainerdNode, tmp_path: Path) -> None:
    async with served_on(containerd, tmp_path) as served:
        for way in WAYS:
            await _an_exit_code(served, way)
            await _output_and_errors(served, way)
            await _five_mebibytes_through_a_pipe(served, way)
            await _a_terminal(served, way)
            await _what_cannot_be_started(served, way)
        assert served.counted == ["exec"] * 6


async def _an_exit_code(served: Served, way: Any) -> None:
    async with served.command(way, OUT, "sh", "-c", "exit 3") as command:
        assert await command.result() == Exited(3)
    async with served.command(way, OUT, "true") as command:
        assert await command.result() == Exited(0)


async def _output_and_errors(served: Served, way: Any) -> None:
    async with served.command(way, ALL, "sh", "-c", "echo out; echo err >&2") as command:
        assert await read_all(command.stdout) == b"out\n"
        assert await read_all(command.stderr) == b"err\n"
        assert await command.result() == Exited(0)


async def _five_mebibytes_through_a_pipe(served: Served, way: Any) -> None:
    """The command ends because its stdin does."""
    async with served.command(way, IN_OUT, "cat") as command, trio.open_nursery() as nursery:
        assert command.stdin is not None

        async def send() -> None:
            assert command.stdin is not None
            await command.stdin.send_all(DATA)
            await command.stdin.send_eof()

        nursery.start_soon(send)
        assert await read_all(command.stdout) == DATA
        assert await command.result() == Exited(0)


async def _a_terminal(served: Served, way: Any) -> None:
    async with served.command(way, TERMINAL, "sh") as command:
        assert command.stdin is not None
        await command.resize(TerminalSize(97, 31))
        # The size arrives on another stream than what is typed.
        size = b""
        while b"31 97" not in size:
            await command.stdin.send_all(b"stty size; echo en''d\n")
            size = await until(command.stdout, b"end")
        await command.stdin.send_all(b"exit 4\n")
        await read_all(command.stdout)
        assert await command.result() == Exited(4)


async def _what_cannot_be_started(served: Served, way: Any) -> None:
    async with served.command(way, OUT, "no-such-command") as command:
        result = await command.result()
    assert isinstance(result, Failed)
    assert "no-such-command" in result.message
    assert result.message.count("Internal error occurred") == 1


async def test_attaching_on_every_way(containerd: ContainerdNode, tmp_path: Path) -> None:
    async with served_on(containerd, tmp_path) as served:
        for way in WAYS:
            async with served.attached(way, ALL, "reads") as command:  # type: ignore[arg-type]
                assert command.stdin is not None
                await command.stdin.send_all(f"{way}\n".encode())
                await until(command.stdout, f"got {way}\n".encode())
            async with served.attached(way, TERMINAL, "tty") as command:  # type: ignore[arg-type]
                assert command.stdin is not None
                await command.resize(TerminalSize(101, 41))
                size = b""
                while b"41 101" not in size:
                    await command.stdin.send_all(b"stty size; echo en''d\n")
                    size = await until(command.stdout, b"end")


async def test_port_forwards_on_every_way(containerd: ContainerdNode, tmp_path: Path) -> None:
    async with served_on(containerd, tmp_path) as served:
        await served.until_listening()
        for way in WAYS:
            with trio.fail_after(PATIENCE):
                async with open_port_forward(
                    await served.connect(),
                    "/portForward/default/streams",
                    transport=way,  # type: ignore[arg-type]
                ) as forwarder:
                    async with trio.open_nursery() as nursery:
                        for _ in range(2):
                            nursery.start_soon(_five_mebibytes_both_ways, forwarder.forward)
                    local, remote = trio.testing.memory_stream_pair()
                    assert "refused" in await forwarder.forward(remote, 9)
                    await local.aclose()
        assert served.counted == ["portforward"]


async def _five_mebibytes_both_ways(
    forward: Callable[[trio.abc.HalfCloseableStream, int], Awaitable[str]],
) -> None:
    local, remote = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(forward, remote, PORT)

        async def send() -> None:
            await local.send_all(DATA)
            await local.send_eof()

        nursery.start_soon(send)
        assert await read_all(local) == DATA


async def test_a_websocket_of_v4_is_passed_through(containerd: ContainerdNode, tmp_path: Path) -> None:
    """By a client that knows nothing of ours."""
    from websockets.sync.client import connect

    def run(port: int) -> tuple[str | None, list[bytes], int | None]:
        size = 2**20
        target = f"ws://127.0.0.1:{port}/exec/default/streams/main?input=1&output=1&error=1"
        target += f"&command=sh&command=-c&command={_escaped(f'head -c {size} | sha256sum; exit 5')}"
        messages = []
        with connect(target, subprotocols=["v4.channel.k8s.io"], compression=None, max_size=None) as websocket:  # type: ignore[list-item]
            for start in range(0, size, 2**15):
                websocket.send(b"\0" + DATA[start : start + 2**15])
            for message in websocket:
                assert isinstance(message, bytes)
                messages.append(message)
            return websocket.subprotocol, messages, websocket.close_code

    async with served_on(containerd, tmp_path) as served:
        protocol, messages, _ = await trio.to_thread.run_sync(run, served.port)
        assert served.counted == []
    assert protocol == "v4.channel.k8s.io"
    output = b"".join(message[1:] for message in messages if message[0] == 1)
    assert output.split() == [hashlib.sha256(DATA[: 2**20]).hexdigest().encode(), b"-"]
    [status] = [json.loads(message[1:]) for message in messages if message[0] == 3 and message[1:]]
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "5"}]


async def test_a_websocket_of_v5_is_translated(containerd: ContainerdNode, tmp_path: Path) -> None:
    """By a client that knows nothing of ours."""
    from websockets.sync.client import connect

    def run(port: int) -> tuple[str | None, list[bytes], int | None]:
        target = f"ws://127.0.0.1:{port}/exec/default/streams/main?input=1&output=1&error=1"
        target += f"&command=sh&command=-c&command={_escaped('sha256sum; exit 5')}"
        messages = []
        with connect(target, subprotocols=["v5.channel.k8s.io"], compression=None) as websocket:  # type: ignore[list-item]
            for start in range(0, SIZE, 2**15):
                websocket.send(b"\0" + DATA[start : start + 2**15])
            websocket.send(b"\xff\0")
            for message in websocket:
                assert isinstance(message, bytes)
                messages.append(message)
            return websocket.subprotocol, messages, websocket.close_code

    async with served_on(containerd, tmp_path) as served:
        protocol, messages, code = await trio.to_thread.run_sync(run, served.port)
    assert (protocol, code) == ("v5.channel.k8s.io", 1000)
    assert messages[0] == b"\x01"
    output = b"".join(message[1:] for message in messages if message[0] == 1)
    assert output.split() == [hashlib.sha256(DATA).hexdigest().encode(), b"-"]
    [status] = [json.loads(message[1:]) for message in messages if message[0] == 3]
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "5"}]


async def test_a_client_that_vanishes_ends_its_command(containerd: ContainerdNode, tmp_path: Path) -> None:
    async with served_on(containerd, tmp_path) as served:
        for way in WAYS:
            stream = await served.connect()
            async with open_command(
                stream,
                f"/exec/default/streams/main?{_query(IN_OUT)}&command=cat&command=-u",
                IN_OUT,
                transport=way,  # type: ignore[arg-type]
            ) as command:
                assert command.stdin is not None
                await command.stdin.send_all(b"x")
                await until(command.stdout, b"x")
                assert "cat -u" in await served.processes()
                await trio.aclose_forcefully(stream)
            with trio.fail_after(PATIENCE):
                while "cat -u" in await served.processes():
                    await trio.sleep(POLL)


async def test_what_a_client_does_not_read_is_not_kept(containerd: ContainerdNode, tmp_path: Path) -> None:
    size = 64 * 2**20
    async with served_on(containerd, tmp_path) as served:
        for way in WAYS:
            before = _resident()
            async with served.command(way, OUT, "head", "-c", str(size), "/dev/zero") as command:  # type: ignore[arg-type]
                await trio.sleep(1)
                assert _resident() - before < 16 * 2**20
                assert command.stdout is not None
                got = 0
                try:
                    while data := await command.stdout.receive_some():
                        got += len(data)
                except trio.BrokenResourceError:
                    pass
                assert got == size
                assert await command.result() == Exited(0)


def _resident() -> int:
    """Bytes of this process, its garbage included."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_runtime_that_dies_breaks_the_streams(containerd: ContainerdNode, tmp_path: Path) -> None:
    async with served_on(containerd, tmp_path) as served:
        async with AsyncExitStack() as commands:
            running = []
            for way in WAYS:
                command = await commands.enter_async_context(served.command(way, IN_OUT, "cat"))  # type: ignore[arg-type]
                assert command.stdin is not None
                await command.stdin.send_all(b"x")
                await until(command.stdout, b"x")
                running.append(command)
            try:
                containerd.kill()
                for command in running:
                    assert isinstance(await command.result(), Failed)
            finally:
                await trio.to_thread.run_sync(containerd.start)


async def test_what_the_runtime_refuses_is_told(containerd: ContainerdNode, tmp_path: Path) -> None:
    async with served_on(containerd, tmp_path) as served:
        stream = await served.connect()
        await stream.send_all(
            f"POST /exec/default/streams/main?{_query(OUT)}&command=true HTTP/1.1\r\nHost: h\r\n"
            "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v9.channel.k8s.io\r\n\r\n".encode()
        )
        with trio.fail_after(PATIENCE):
            answer = await until(stream, b"unable to upgrade")
        await stream.aclose()
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"X-Accepted-Stream-Protocol-Versions: v4.channel.k8s.io" in answer
