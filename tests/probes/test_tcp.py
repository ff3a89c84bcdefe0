"""tcpSocket probes of real sockets: the kubelet's tables, and what is left behind."""

from __future__ import annotations

import pytest
import trio

from tests.probes.servers import a_closed_port, a_silent_port, listening, ports_in_time_wait, reset, target
from trikubelet.api import TCPSocketAction
from trikubelet.probes.tcp import ask_tcp
from trikubelet.probes.types import Outcome, ProbeAnswer

SUCCESS = ProbeAnswer(Outcome.SUCCESS)


async def until_closed(stream: trio.SocketStream) -> None:
    async with stream:
        while await stream.receive_some():
            pass


async def test_a_port_that_can_be_connected_to_is_success() -> None:
    async with listening(until_closed) as port:
        assert await ask_tcp(target(), TCPSocketAction(port=port), 5) == SUCCESS


@pytest.mark.parametrize("port_of", [lambda port: "named", str], ids=["a name", "digits"])
async def test_a_port_may_be_a_name_of_the_container_or_digits(port_of: type[str]) -> None:
    async with listening(until_closed) as port:
        assert await ask_tcp(target(named=port), TCPSocketAction(port=port_of(port)), 5) == SUCCESS


async def test_the_host_of_the_action_is_asked_instead_of_the_pod() -> None:
    async with listening(until_closed) as port:
        assert await ask_tcp(target("192.0.2.1"), TCPSocketAction(port=port, host="localhost"), 5) == SUCCESS


@pytest.mark.parametrize("port", [-1, 0, 65536, "", "-1", "not-found"])
async def test_a_port_that_is_none_says_nothing_about_the_container(port: int | str) -> None:
    answer = await ask_tcp(target(found=93), TCPSocketAction(port=port), 5)
    assert answer.outcome is Outcome.UNKNOWN
    assert "port" in answer.error


async def test_a_pod_without_an_address_is_not_looked_for_on_the_node() -> None:
    async with listening(until_closed) as port:
        answer = await ask_tcp(target(""), TCPSocketAction(port=port), 5)
    assert answer == ProbeAnswer(Outcome.UNKNOWN, error="the pod has no IP address")


async def test_a_closed_port_is_a_failure() -> None:
    with a_closed_port() as port:
        answer = await ask_tcp(target(), TCPSocketAction(port=port), 5)
    assert answer == ProbeAnswer(Outcome.FAILURE, f"dial tcp 127.0.0.1:{port}: connect: connection refused")


async def test_a_port_that_does_not_answer_costs_the_timeout() -> None:
    with a_silent_port() as port:
        began = trio.current_time()
        answer = await ask_tcp(target(), TCPSocketAction(port=port), 0.2)
        assert 0.2 <= trio.current_time() - began < 5
    assert answer == ProbeAnswer(Outcome.FAILURE, f"dial tcp 127.0.0.1:{port}: i/o timeout")


async def test_a_name_that_is_none_is_a_failure() -> None:
    answer = await ask_tcp(target(), TCPSocketAction(port=80, host="bad..name"), 5)
    assert answer == ProbeAnswer(Outcome.FAILURE, "dial tcp: lookup bad..name: no such host")


async def test_a_server_that_resets_has_been_connected_to() -> None:
    async with listening(reset) as port:
        for _ in range(20):
            assert await ask_tcp(target(), TCPSocketAction(port=port), 5) == SUCCESS


async def test_a_server_sees_an_orderly_end() -> None:
    ends: list[bytes] = []

    async def reads(stream: trio.SocketStream) -> None:
        async with stream:
            ends.append(bytes(await stream.receive_some()))
            done.set()

    done = trio.Event()
    async with listening(reads) as port:
        await ask_tcp(target(), TCPSocketAction(port=port), 5)
        await done.wait()
    assert ends == [b""]


async def test_a_hundred_probes_leave_no_port_behind() -> None:
    async with listening(until_closed) as port:
        before = ports_in_time_wait(port)
        for _ in range(100):
            assert await ask_tcp(target(), TCPSocketAction(port=port), 5) == SUCCESS
        await trio.sleep(0.05)  # what TIME-WAIT begins with comes from the other side
        assert ports_in_time_wait(port) <= before
