"""`trikubelet port-forward` as a process, on an agent that the test plays."""

from __future__ import annotations

import re
import signal
import socket
import struct
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.cli.conftest import a_pod
from tests.cli.streaming_agent import PipedProcess, StreamingAgent, run_cli, started_cli, streaming_agent
from trikubelet.cli.failures import CommandError
from trikubelet.cli.forwarding import ListenAddress, listen_addresses
from trikubelet.http.messages import HTTPError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trikubelet.http.streaming.port_forward import ForwardedPort

FORWARDING = re.compile(rb"Forwarding from (?P<host>\S+):(?P<port>\d+) -> (?P<remote>\d+)\n")


@pytest.fixture
async def agent(root_dir: Path) -> AsyncIterator[StreamingAgent]:
    async with streaming_agent(root_dir) as agent:
        pod = a_pod()
        pod["spec"]["containers"][0]["ports"] = [
            {"name": "http", "containerPort": 80},
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
        ]
        agent.pods = [pod]
        agent.ports[80] = shout
        yield agent


async def shout(forwarded: ForwardedPort) -> None:
    while data := await forwarded.data.receive_some():
        await forwarded.data.send_all(data.upper())
    await forwarded.finish()


@attrs.define
class Running:
    process: PipedProcess
    out: bytes = b""
    err: bytes = b""

    async def port(self, remote: int = 80) -> int:
        """Where the first address leads to a port."""
        assert self.process.stdout is not None
        while not (found := [match for match in FORWARDING.finditer(self.out) if int(match["remote"]) == remote]):
            data = await self.process.stdout.receive_some()
            assert data, self.out
            self.out += data
        return int(found[0]["port"])

    async def told(self, text: bytes) -> None:
        assert self.process.stderr is not None
        while text not in self.err:
            data = await self.process.stderr.receive_some()
            assert data, self.err
            self.err += data


@asynccontextmanager
async def forwarding(agent: StreamingAgent, *words: str) -> AsyncIterator[Running]:
    async with started_cli(agent.root_dir, "port-forward", "web", *words) as process:
        yield Running(process)


async def ask(port: int, host: str = "127.0.0.1") -> bytes:
    async with await trio.open_tcp_stream(host, port) as stream:
        with suppress(trio.BrokenResourceError):  # it was reset, since nobody read what was sent
            await stream.send_all(b"hello")
            await stream.send_eof()
            return b"".join([bytes(data) async for data in stream])
    return b""


async def test_many_connections_go_to_the_port_until_ctrl_c(agent: StreamingAgent) -> None:
    async with forwarding(agent, ":80") as running:
        port = await running.port()
        answers = []

        async def one() -> None:
            answers.append(await ask(port))

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one)
        assert answers == [b"HELLO"] * 30
        running.process.send_signal(signal.SIGINT)
        assert await running.process.wait() == 130
    assert {request.path for request in agent.requests[1:]} == {"/portForward/default/web-node"}


async def test_a_named_port_is_the_containers(agent: StreamingAgent) -> None:
    async with forwarding(agent, ":http") as running:
        assert await ask(await running.port(80)) == b"HELLO"


async def test_several_ports_are_forwarded_at_once(agent: StreamingAgent) -> None:
    async def greet(forwarded: ForwardedPort) -> None:
        await forwarded.data.send_all(b"other")
        await forwarded.finish()

    agent.ports[81] = greet
    async with forwarding(agent, ":80", ":81") as running:
        assert await ask(await running.port(81)) == b"other"
        assert await ask(await running.port(80)) == b"HELLO"


async def test_only_the_given_addresses_are_listened_on(agent: StreamingAgent) -> None:
    async with forwarding(agent, "--address", "127.0.0.2", ":80") as running:
        port = await running.port()
        assert running.out == f"Forwarding from 127.0.0.2:{port} -> 80\n".encode()
        assert await ask(port, "127.0.0.2") == b"HELLO"
        with pytest.raises(OSError, match="all attempts to connect"):
            await ask(port)


async def test_an_error_ends_one_connection_only(agent: StreamingAgent) -> None:
    async with forwarding(agent, ":80", ":81") as running:
        refused, good = await running.port(81), await running.port(80)
        assert await ask(refused) == b""
        await running.told(f"an error occurred forwarding {refused} -> 81: nobody listens on 81".encode())
        assert await ask(good) == b"HELLO"
        agent.refusal = HTTPError(500, "the runtime is away")
        assert await ask(good) == b""
        await running.told(b"the runtime is away\n")
        agent.refusal = None
        assert await ask(good) == b"HELLO"


async def test_a_client_that_does_not_read_keeps_nobody_waiting(agent: StreamingAgent) -> None:
    async def flood(forwarded: ForwardedPort) -> None:
        while True:
            await forwarded.data.send_all(bytes(2**16))

    agent.ports[81] = flood
    async with forwarding(agent, ":80", ":81") as running:
        async with await trio.open_tcp_stream("127.0.0.1", await running.port(81)) as stalled:
            assert await stalled.receive_some(1)
            assert await ask(await running.port(80)) == b"HELLO"


async def test_a_client_that_resets_its_connection_ends_it_in_the_pod(agent: StreamingAgent) -> None:
    ended = trio.Event()

    async def wait(forwarded: ForwardedPort) -> None:
        try:
            assert await forwarded.data.receive_some() == b"x"
            await forwarded.data.receive_some()
        except trio.BrokenResourceError:
            ended.set()

    agent.ports[81] = wait
    async with forwarding(agent, ":81") as running:
        stream = await trio.open_tcp_stream("127.0.0.1", await running.port(81))
        await stream.send_all(b"x")
        assert running.process.stdout is not None
        while b"Handling connection for " not in running.out:
            running.out += await running.process.stdout.receive_some()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        await ended.wait()


@pytest.mark.parametrize(
    ("port", "why"),
    [
        ("nothing", "pod web-node has no port named 'nothing'"),
        ("8080:99999", "pod web-node has no port named '99999'"),
        ("8080:", "pod web-node has no port named ''"),
        (":0", "remote port must be > 0"),
        ("x:80", "expected a port from 0 to 65535 as local port, got 'x'"),
        ("1:2:80", "expected a port from 0 to 65535 as local port, got '1:2'"),
        (":dns", "UDP protocol is not supported for dns"),
        (":53", "UDP protocol is not supported for 53"),
    ],
)
async def test_a_wrong_port_is_explained(agent: StreamingAgent, port: str, why: str) -> None:
    done = await run_cli(agent.root_dir, "port-forward", "web", port)
    assert done.returncode == 1
    assert why in done.stderr.decode()


async def test_a_pod_that_does_not_run_is_refused(agent: StreamingAgent) -> None:
    agent.refusal = HTTPError(500, 'pod not found ("web-node_default")')
    done = await run_cli(agent.root_dir, "port-forward", "web", ":80")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b'Error: pod not found ("web-node_default")\n'
    agent.pods = [a_pod(phase="Pending")]
    done = await run_cli(agent.root_dir, "port-forward", "web", ":80")
    assert b"unable to forward port because pod is not running. Current status=Pending" in done.stderr


async def test_a_port_that_is_taken_is_said(agent: StreamingAgent) -> None:
    [taken] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = taken.socket.getsockname()[1]
    done = await run_cli(agent.root_dir, "port-forward", "web", "--address", "127.0.0.1", f"{port}:80")
    await taken.aclose()
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == f"Error: unable to listen on 127.0.0.1:{port}: something else listens there\n".encode()


async def test_of_two_loopback_addresses_one_that_is_taken_is_said(agent: StreamingAgent) -> None:
    if not _has_ipv6_loopback():
        pytest.skip("this machine has one loopback address")
    [taken] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = taken.socket.getsockname()[1]
    async with forwarding(agent, f"{port}:80") as running:
        await running.port()
        assert running.out == f"Forwarding from [::1]:{port} -> 80\n".encode()
        await running.told(f"Warning: not listening on 127.0.0.1:{port}: something else listens there".encode())
    await taken.aclose()


def _has_ipv6_loopback() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def test_localhost_is_both_loopback_addresses_and_either_will_do() -> None:
    assert listen_addresses("localhost,::1,10.0.0.1,localhost") == [
        ListenAddress("127.0.0.1", optional=True),
        ListenAddress("::1"),
        ListenAddress("10.0.0.1"),
    ]


@pytest.mark.parametrize("text", ["", ",", "host.example", "300.1.1.1"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(CommandError):
        listen_addresses(text)
