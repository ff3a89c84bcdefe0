"""Servers on loopback, good and bad, and who is to be probed there. The clock is the real one: sockets do not jump."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio
import trustme

from trikubelet.api import Container, ContainerPort, ObjectMeta, Pod
from trikubelet.container.model import ContainerID
from trikubelet.http.client.request import HTTPRequest
from trikubelet.probes.types import ProbeKind, ProbeTarget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

HOST: Final = "127.0.0.1"
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TIME_WAIT: Final = "06"
"""As /proc/net/tcp has it."""


@attrs.define
class Server:
    """Answers each connection's request with the next answer, the last one for ever."""

    port: int
    answers: list[bytes]
    requests: list[str] = attrs.field(factory=list)
    stays_open: bool = False
    """It does not close after its answer."""

    def request(self, path: str = "/", scheme: str = "http", host: str = "127.0.0.1") -> HTTPRequest:
        return HTTPRequest(scheme, host, self.port, path)

    async def serve(self, stream: trio.abc.Stream) -> None:
        received = b""
        try:
            async with stream:
                while b"\r\n\r\n" not in received:
                    data = await stream.receive_some()
                    if not data:
                        return
                    received += bytes(data)
                self.requests.append(received.decode())
                await stream.send_all(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
                if self.stays_open:
                    await trio.sleep_forever()
        except trio.BrokenResourceError:
            pass  # the client has seen enough


@asynccontextmanager
async def listening(handler: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    """A port that connections to are handled."""
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, handler, [listener])
            yield listener.socket.getsockname()[1]
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def a_server(*answers: bytes, stays_open: bool = False) -> AsyncIterator[Server]:
    server = Server(0, list(answers or [OK]), stays_open=stays_open)
    async with listening(server.serve) as server.port:
        yield server


@asynccontextmanager
async def an_encrypted_server(*answers: bytes) -> AsyncIterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("somebody.else").configure_cert(context)
    server = Server(0, list(answers or [OK]))

    async def serve(stream: trio.SocketStream) -> None:
        await server.serve(trio.SSLStream(stream, context, server_side=True, https_compatible=True))

    async with listening(serve) as server.port:
        yield server


@attrs.frozen
class Request:
    """What a server was asked."""

    path: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, head: bytes) -> Request:
        line, *rest = head.decode().rstrip("\r\n").split("\r\n")
        headers = [header.partition(":") for header in rest]
        return cls(line.split()[1], tuple((name, value.strip()) for name, _, value in headers))

    def header(self, name: str) -> str:
        return dict(self.headers)[name]


def reply(status: int = 200, body: str = "", **headers: object) -> bytes:
    """An answer; the length of its body is told."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body]).encode()


@asynccontextmanager
async def serving(answer: Callable[[Request], bytes | None]) -> AsyncIterator[int]:
    """The port of a server that closes after its answer; None is no answer at all, on an open connection."""

    async def serve(stream: trio.SocketStream) -> None:
        head = b""
        try:
            async with stream:
                while not head.endswith(b"\r\n\r\n"):
                    data = await stream.receive_some()
                    if not data:
                        return
                    head += bytes(data)
                said = answer(Request.read(head))
                if said is None:
                    await trio.sleep_forever()
                else:
                    await stream.send_all(said)
        except trio.BrokenResourceError:
            pass  # the client has seen enough

    async with listening(serve) as port:
        yield port


@contextmanager
def a_closed_port() -> Iterator[int]:
    """Nobody listens there, and nobody else gets it."""
    with closing(socket.socket()) as held:
        held.bind((HOST, 0))
        yield held.getsockname()[1]


@contextmanager
def a_silent_port() -> Iterator[int]:
    """Its packets are dropped: too many wait for being accepted already."""
    with closing(socket.socket()) as listener, closing(socket.socket()) as waiting:
        listener.bind((HOST, 0))
        listener.listen(0)
        waiting.connect(listener.getsockname())
        yield listener.getsockname()[1]


async def reset(stream: trio.SocketStream) -> None:
    """A handler that ends its connection with a reset."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def ports_in_time_wait(server_port: int) -> int:
    """How many clients of a server have ports that cannot be used for a while.

    The kernel may have given the server the port of an earlier connection: compare with what was there before.
    """
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[3] == TIME_WAIT and int(fields[2].partition(":")[2], 16) == server_port for fields in lines)


def target(pod_ip: str = HOST, **ports: int) -> ProbeTarget:
    """A container with named ports."""
    declared = tuple(ContainerPort(name=name, container_port=number) for name, number in ports.items())
    meta: dict[str, Any] = {"name": "web", "namespace": "default", "uid": "uid-web"}
    container = Container(name="main", ports=declared)
    pod_id = ContainerID("simulated", "c1")
    return ProbeTarget(Pod(metadata=ObjectMeta(**meta)), container, pod_id, pod_ip, ProbeKind.LIVENESS)
