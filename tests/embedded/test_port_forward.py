"""Connections to pods' ports (CRI PortForward), without the wire."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.remote import Forwarded
from tests.embedded.runtime_node import descriptors, wait_for_descriptors
from tests.patience import PATIENCE
from trikubelet.embedded.forwarding import forward

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

MEBIBYTES = 5


@asynccontextmanager
async def pod_listening(
    handler: Callable[[trio.SocketStream], Awaitable[object]], host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """A server in the network that the pods share with the node."""
    listeners = await trio.open_tcp_listeners(0, host=host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handler, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def forwarding(node: Node, sandbox: str, port: int) -> AsyncIterator[Forwarded]:
    """One forwarded connection; when the body ends, it is waited for."""
    forwarded = Forwarded(port)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward, node.lifecycle.keeper, sandbox, forwarded)
            yield forwarded


async def echo(stream: trio.SocketStream) -> None:
    async with stream:
        async for block in stream:
            await stream.send_all(block)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([bytes(block) async for block in stream])


async def test_five_mebibytes_go_there_and_come_back(node: Node) -> None:
    data = os.urandom(MEBIBYTES << 20)
    sandbox = await node.sandbox()
    async with pod_listening(echo) as port, forwarding(node, sandbox, port) as forwarded:
        received = bytearray()

        async def collect() -> None:
            received.extend(await read_all(forwarded.near))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            await forwarded.near.send_all(data)
            await forwarded.near.send_eof()
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
    assert forwarded.error == ""


async def test_a_client_that_has_sent_everything_still_gets_the_answer(node: Node) -> None:
    async def answer_late(stream: trio.SocketStream) -> None:
        async with stream:
            request = await read_all(stream)
            await trio.sleep(1.3)  # longer than containerd gives the other direction
            await stream.send_all(b"answer to " + request)

    sandbox = await node.sandbox()
    async with pod_listening(answer_late) as port, forwarding(node, sandbox, port) as forwarded:
        await forwarded.near.send_all(b"question")
        await forwarded.near.send_eof()
        assert await read_all(forwarded.near) == b"answer to question"


async def test_a_server_on_the_other_ip_family_is_found(node: Node) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    sandbox = await node.sandbox()
    async with pod_listening(echo, "::1") as port, forwarding(node, sandbox, port) as forwarded:
        await forwarded.near.send_all(b"six")
        await forwarded.near.send_eof()
        assert await read_all(forwarded.near) == b"six"
    assert forwarded.error == ""


async def test_a_closed_port_is_reported_in_containerds_words(node: Node) -> None:
    sandbox = await node.sandbox()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with forwarding(node, sandbox, port) as forwarded:
            pass
    assert forwarded.error is not None
    assert forwarded.error.startswith(
        f"error forwarding port {port} to pod {sandbox}, uid : "
        'failed to execute portforward in network namespace "host": '
        f'failed to connect to localhost:{port} inside namespace "{sandbox}", '
        f"IPv4: dial tcp4 127.0.0.1:{port}: connect: connection refused IPv6 dial tcp6 [::1]:{port}: "
    )


async def test_a_reset_by_the_pod_is_an_error(node: Node) -> None:
    async def reset(stream: trio.SocketStream) -> None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()

    sandbox = await node.sandbox()
    async with pod_listening(reset) as port, forwarding(node, sandbox, port) as forwarded:
        pass
    assert forwarded.error is not None
    assert "connection reset by peer" in forwarded.error


async def test_a_client_that_goes_away_is_not_waited_for_by_a_silent_pod(node: Node) -> None:
    connected = trio.Event()

    async def stay_silent(stream: trio.SocketStream) -> None:
        connected.set()
        await trio.sleep_forever()

    sandbox = await node.sandbox()
    async with pod_listening(stay_silent) as port, forwarding(node, sandbox, port) as forwarded:
        await connected.wait()
        forwarded.break_off()


async def test_once_the_pod_has_ended_an_idle_client_is_not_waited_for_long(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikubelet.embedded.forwarding._AFTER_THE_POD", 0.2)

    async def say_goodbye(stream: trio.SocketStream) -> None:
        await stream.send_all(b"bye")
        await stream.aclose()

    sandbox = await node.sandbox()
    async with pod_listening(say_goodbye) as port, forwarding(node, sandbox, port) as forwarded:
        assert await read_all(forwarded.near) == b"bye"
    assert forwarded.error == ""


async def test_many_connections_leave_no_descriptor(node: Node) -> None:
    sandbox, keeper = await node.sandbox(), node.keeper_pid()
    async with pod_listening(echo) as port:
        before = descriptors(os.getpid(), keeper)
        for number in range(50):
            async with forwarding(node, sandbox, port if number % 2 else 1) as forwarded:
                await forwarded.near.send_eof()
        await wait_for_descriptors(before, os.getpid(), keeper)


async def test_the_ports_of_a_pod_that_is_gone_are_closed(node: Node) -> None:
    async with pod_listening(echo) as port, forwarding(node, "0" * 64, port) as forwarded:
        pass
    assert forwarded.error is not None
    assert "no pod sandbox" in forwarded.error
