from __future__ import annotations

import errno
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing

from tests.captured_logs import capture_logs
from tests.node_api.tls_peers import Shown, authority, client_context, client_stream, serving_pair
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.http.limits import Limits
from trikubelet.http.messages import AnyResponse, Request, Response, StreamResponse, Takeover, UpgradeResponse, Writer
from trikubelet.http.server import HttpServer
from trikubelet.node_api import listeners as listeners_module
from trikubelet.node_api.listeners import NodeListeners, Port, PortError, node_ports, open_port
from trikubelet.node_api.serving_tls import ServingTls
from trikubelet.node_api.tls_settings import TlsSettings, TlsSettingsError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from typing import Any

    from trio.testing import MockClock

BUNDLE = authority("clients").cert_pem.bytes()
GET = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


async def who(request: Request) -> AnyResponse:
    peer = request.peer
    return Response(f"{peer.address} {peer.encrypted} {len(peer.certificates)}".encode())


def tls_port(**changes: Any) -> Port:
    serving = ServingTls(TlsSettings(), Shown(serving_pair()), lambda: BUNDLE)
    return attrs.evolve(Port(name="node", address="127.0.0.1", number=0, handler=who, secure=serving.begin), **changes)


def plain_port(**changes: Any) -> Port:
    return attrs.evolve(Port(name="read-only", address="127.0.0.1", number=0, handler=who), **changes)


@asynccontextmanager
async def listening(*ports: Port) -> AsyncIterator[NodeListeners]:
    listeners = NodeListeners(ports)
    async with trio.open_nursery() as nursery:
        await nursery.start(listeners.run)
        yield listeners
        nursery.cancel_scope.cancel()


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    with trio.fail_after(20):
        return b"".join([bytes(block) async for block in stream])


async def ask(listeners: NodeListeners, name: str, sent: bytes = GET, context: ssl.SSLContext | None = None) -> bytes:
    """The answer; over TLS when there is a context."""
    stream: trio.abc.Stream = await trio.open_tcp_stream(*listeners.addresses[name])
    if context is not None:
        stream = client_stream(stream, context)
    async with stream:
        await stream.send_all(sent)
        return await read_all(stream)


async def test_each_port_serves_its_own_and_says_who_is_there() -> None:
    async def healthy(_: Request) -> AnyResponse:
        return Response(b"ok")

    me = client_context(authority("strangers").issue_cert("me@example.org"))
    async with listening(tls_port(), plain_port(), plain_port(name="health", handler=healthy)) as listeners:
        assert b"\r\n\r\n127.0.0.1:" in await ask(listeners, "node", context=client_context())
        assert (await ask(listeners, "node", context=client_context())).endswith(b" True 0")
        assert (await ask(listeners, "node", context=me)).endswith(b" True 1")
        assert (await ask(listeners, "read-only")).endswith(b" False 0")
        assert (await ask(listeners, "health")).endswith(b"\r\n\r\nok")
        accepted = {name: found.accepted for name, found in listeners.statistics().items()}
    assert accepted == {"node": 3, "read-only": 1, "health": 1}


async def test_plain_http_on_the_tls_port_is_answered_as_in_go() -> None:
    async with listening(tls_port()) as listeners:
        answer = await ask(listeners, "node")
    assert answer.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert answer.endswith(b"\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")


async def test_the_end_of_an_answer_over_tls_differs_from_a_cut() -> None:
    """`trio.SSLStream` raises where the server closes without close_notify."""

    async def produce(writer: Writer) -> None:
        await writer.write(b"all of it")

    async def stream(_: Request) -> AnyResponse:
        return StreamResponse(produce)

    async def fail(writer: Writer) -> None:
        await writer.write(b"half of i")
        raise OSError("the disk is gone")

    async def break_off(_: Request) -> AnyResponse:
        return StreamResponse(fail)

    old = b"GET / HTTP/1.0\r\n\r\n"  # whose answer ends with the connection
    async with listening(tls_port(handler=stream), tls_port(name="broken", handler=break_off)) as listeners:
        assert (await ask(listeners, "node", old, client_context())).endswith(b"all of it")
        with pytest.raises(trio.BrokenResourceError):
            await ask(listeners, "broken", old, client_context())


async def test_a_connection_that_was_taken_over_ends_as_agreed_and_with_its_last_words() -> None:
    async def exit_soon(takeover: Takeover) -> None:
        stream = await takeover.accept([("Connection", "Upgrade"), ("Upgrade", "shell")])
        await stream.receive_some()
        await stream.send_all(b"exit code 7")

    async def upgrade(_: Request) -> AnyResponse:
        return UpgradeResponse(exit_soon)

    request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: shell\r\n\r\n"
    async with listening(tls_port(handler=upgrade)) as listeners:
        tcp = await trio.open_tcp_stream(*listeners.addresses["node"])
        async with client_stream(tcp) as stream:
            await stream.send_all(request)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")
            await stream.send_all(b"x" * 300_000)  # more than is read
            assert await read_all(stream) == b"exit code 7"


# Ports.


async def test_both_families_are_served_on_every_address() -> None:
    for address in ("0.0.0.0", "::"):
        async with listening(plain_port(address=address)) as listeners:
            number = listeners.addresses["read-only"][1]
            for host, shown in (("127.0.0.1", b"127.0.0.1:"), ("::1", b"[::1]:")):
                stream = await trio.open_tcp_stream(host, number)
                await stream.send_all(GET)
                assert b"\r\n\r\n" + shown in await read_all(stream)


async def test_a_port_that_is_taken_tells_what_to_change() -> None:
    async with listening(plain_port()) as first:
        number = first.addresses["read-only"][1]
        wanted = pytest.RaisesExc(PortError, match=rf"127\.0\.0\.1:{number} .* already in use.*--port")
        with pytest.RaisesGroup(wanted, flatten_subgroups=True):
            await NodeListeners([tls_port(number=number)]).run()


@pytest.mark.parametrize("address", ["192.0.2.77", "localhost", ""])
async def test_an_address_that_is_not_here_tells_what_to_change(address: str) -> None:
    with pytest.raises(PortError, match="--address"):
        await open_port(plain_port(address=address))


async def test_a_health_port_that_is_taken_is_told_once_and_tried_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = await open_port(plain_port())
    number = blocker.getsockname()[1]
    tries: list[Port] = []

    async def counted(port: Port) -> trio.socket.SocketType:
        tries.append(port)
        return await open_port(port)

    monkeypatch.setattr(listeners_module, "open_port", counted)
    health = plain_port(name="health", number=number, tried_again=True)
    with capture_logs() as lines:
        async with listening(health) as listeners:
            while len(tries) < 4:
                await trio.sleep(1)
            assert listeners.addresses == {}
            blocker.close()
            while "health" not in listeners.addresses:
                await trio.sleep(1)
            assert listeners.addresses["health"][1] == number
    [error, good] = [line for line in lines if line["log_level"] in ("error", "warning")]
    assert f"with pid {os.getpid()}: end it, or set another" in error["event"]
    assert good["event"] == f"listening on 127.0.0.1:{number} (health) after all"


async def test_a_peer_that_vanished_is_noticed_by_the_kernel() -> None:
    listener = await open_port(plain_port())
    client = socket.create_connection(listener.getsockname())
    connection, _ = await listener.accept()
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
    for sock in (listener, client, connection):
        sock.close()


async def test_a_lack_of_descriptors_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, failures = trio.SocketListener.accept, [errno.EMFILE, errno.ENFILE, errno.ENOMEM]

    async def scarce(self: trio.SocketListener) -> trio.SocketStream:
        if failures:
            raise OSError(failures.pop(), "too many")
        return await accept(self)

    monkeypatch.setattr(trio.SocketListener, "accept", scarce)
    async with listening(plain_port()) as listeners:
        assert (await ask(listeners, "read-only")).endswith(b" False 0")
    assert not failures


# What the configuration says.


async def nobody(_: Request) -> AnyResponse:
    raise AssertionError


def ports(configuration: KubeletConfiguration) -> list[tuple[str, str, int, bool]]:
    found = node_ports(configuration, node=who, read_only=nobody, health=nobody, certificate=Shown(None))
    return [(port.name, port.address, port.number, port.secure is not None) for port in found]


def test_the_ports_are_those_of_the_configuration() -> None:
    assert ports(KubeletConfiguration()) == [("node", "0.0.0.0", 10250, True), ("health", "127.0.0.1", 10248, False)]
    everything = KubeletConfiguration(
        address="::1", port=1, read_only_port=2, healthz_port=3, healthz_bind_address="::"
    )
    assert ports(everything) == [("node", "::1", 1, True), ("read-only", "::1", 2, False), ("health", "::", 3, False)]
    assert ports(KubeletConfiguration(enable_server=False, healthz_port=0)) == []


async def test_clients_that_come_together_wait_for_one_context(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[ServingTls]()
    init = ServingTls.__init__

    def counted(serving: ServingTls, *arguments: Any) -> None:
        made.append(serving)
        init(serving, *arguments)

    monkeypatch.setattr(ServingTls, "__init__", counted)
    [port, *_] = node_ports(
        KubeletConfiguration(), node=who, read_only=who, health=who, certificate=Shown(serving_pair())
    )
    answers: list[bytes] = []
    async with listening(attrs.evolve(port, address="127.0.0.1", number=0)) as listeners:
        context = client_context(None)

        async def come() -> None:
            answers.append(await ask(listeners, "node", context=context))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(come)
    assert len(made) == 1
    assert [b" True 0" in answer for answer in answers] == [True] * 5


def test_tls_that_cannot_be_had_is_refused_before_anybody_listens() -> None:
    with pytest.raises(TlsSettingsError):
        ports(KubeletConfiguration(tls_cipher_suites=("TLS_NULL",)))


def test_without_a_certificate_to_come_the_node_has_no_port_for_tls() -> None:
    found = node_ports(KubeletConfiguration(), node=who, read_only=nobody, health=nobody)
    assert [port.name for port in found] == ["health"]


# Beginnings and ends.


async def test_a_handshake_has_as_long_as_the_head_of_a_request(autojump_clock: MockClock) -> None:
    client, transport = trio.testing.memory_stream_pair()
    secure = tls_port().secure
    assert secure is not None
    server = HttpServer(who)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_transport, transport, lambda: secure(transport, ""))
        await client.send_all(b"\x16\x03\x01")
        assert await client.receive_some() == b""
    assert trio.current_time() == pytest.approx(Limits().header_timeout)


async def test_a_handshake_that_waits_gives_its_place_to_whoever_comes() -> None:
    async with listening(tls_port(limits=Limits(connections=1))) as listeners:
        silent = await trio.open_tcp_stream(*listeners.addresses["node"])
        await silent.send_all(b"\x16\x03\x01")
        assert (await ask(listeners, "node", context=client_context())).endswith(b" True 0")
        assert await read_all(silent) == b""
        assert listeners.statistics()["node"].lost == 1


async def test_shutdown_lets_answers_finish_and_nobody_in() -> None:
    asked, go_on = trio.Event(), trio.Event()

    async def slow(_: Request) -> AnyResponse:
        asked.set()
        await go_on.wait()
        return Response(b"finished")

    listeners = NodeListeners([tls_port(handler=slow), plain_port(name="health", tried_again=True)])
    answers: list[bytes] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(listeners.run)
        await trio.testing.wait_all_tasks_blocked()
        address = listeners.addresses["node"]
        silent = await trio.open_tcp_stream(*address)

        async def client() -> None:
            answers.append(await ask(listeners, "node", context=client_context()))

        nursery.start_soon(client)
        await asked.wait()
        nursery.start_soon(listeners.shutdown, 20)
        assert await read_all(silent) == b""
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream(*address)
        go_on.set()
    assert answers[0].endswith(b"finished")
    assert b"Connection: close" in answers[0]
