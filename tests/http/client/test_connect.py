"""Connections to real sockets on loopback, names and numbers, and how they end."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.probes.servers import HOST, a_closed_port, a_silent_port, listening, ports_in_time_wait
from trikubelet.http.client import connect
from trikubelet.http.client.connect import close_quietly, connect_socket, connect_tcp, dial_problem, dial_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


async def echo(stream: trio.SocketStream) -> None:
    try:
        async with stream:
            while data := await stream.receive_some():
                await stream.send_all(data)
    except trio.BrokenResourceError:
        pass  # the client has heard enough


def found(*addresses: tuple[str, int]) -> Callable[..., list[Any]]:
    """A resolver that knows one name."""

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "several"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

    return look_up


@pytest.fixture
def stuck_lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """No name is resolved any more, until the end. The names that somebody tried."""
    over, tried = threading.Event(), list[str]()

    def stuck(host: str, *_: Any, **__: Any) -> list[Any]:
        tried.append(host)
        over.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    yield tried
    over.set()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1"])
async def test_a_stream_carries_both_ways(host: str) -> None:
    async with listening(echo) as port:
        stream = await connect_tcp(host, port)
        await stream.send_all(b"there and back")
        assert await stream.receive_some() == b"there and back"
        close_quietly(stream)


async def test_an_address_of_version_six_is_a_number_too() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="::1")
    async with listener:
        sock = await connect_socket("0:0::1", listener.socket.getsockname()[1])
        assert sock.getpeername()[0] == "::1"
        close_quietly(sock)


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
async def test_numbers_are_not_looked_up(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("nobody asks for names")

    async with listening(echo) as port:
        monkeypatch.setattr(socket, "getaddrinfo", fails)
        close_quietly(await connect_socket(host, port))


async def test_lookups_that_hang_can_be_cancelled_and_do_not_take_the_agents_threads(stuck_lookups: list[str]) -> None:
    with trio.move_on_after(0.2) as scope:
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(connect_socket, f"some.name{number}", 80)
    assert scope.cancelled_caught
    assert 0 < len(stuck_lookups) < 30
    assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
    with trio.fail_after(5):
        assert await trio.to_thread.run_sync(lambda: "free") == "free"


@pytest.mark.parametrize("host", ["bad..name", "x" * 300, "nul\0"])
async def test_a_name_that_is_none_is_an_os_error(host: str) -> None:
    with pytest.raises(socket.gaierror) as caught:
        await connect_socket(host, 80)
    told = dial_problem(host, 80, caught.value)
    assert told.removeprefix(f"dial tcp: lookup {host}: ") in ("no such host", "temporary failure in name resolution")


async def test_a_closed_port_is_refused() -> None:
    with a_closed_port() as port, pytest.raises(ConnectionRefusedError) as caught:
        await connect_socket(HOST, port)
    assert dial_problem(HOST, port, caught.value) == f"dial tcp {HOST}:{port}: connect: connection refused"


def test_an_address_of_version_six_is_told_in_brackets() -> None:
    error = OSError(errno.EHOSTUNREACH, "whatever")
    assert dial_problem("fd00::1", 80, error) == "dial tcp [fd00::1]:80: connect: no route to host"
    assert dial_timeout("fd00::1", 80) == "dial tcp [fd00::1]:80: i/o timeout"


async def test_a_connection_that_takes_time_is_waited_for() -> None:
    """The first packet is dropped; the system sends it again after a second."""
    with closing(socket.socket()) as listener, closing(socket.socket()) as waiting:
        listener.bind((HOST, 0))
        listener.listen(0)
        waiting.connect(listener.getsockname())
        async with trio.open_nursery() as nursery:

            async def make_room() -> None:
                await trio.sleep(0.1)
                listener.accept()[0].close()

            nursery.start_soon(make_room)
            with trio.fail_after(10):
                sock = await connect_socket(*listener.getsockname())
        sock.getpeername()
        close_quietly(sock)


async def test_cancelling_a_connection_closes_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    new_socket = connect._new_socket

    def noted(family: int) -> socket.socket:
        made.append(new_socket(family))
        return made[-1]

    monkeypatch.setattr(connect, "_new_socket", noted)
    with a_silent_port() as port, trio.move_on_after(0.1):
        await connect_socket(HOST, port)
    assert [sock.fileno() for sock in made] == [-1]


async def test_the_next_address_of_a_name_is_tried_when_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_closed_port() as closed:
        async with listening(echo) as port:
            monkeypatch.setattr(socket, "getaddrinfo", found((HOST, closed), (HOST, port)))
            sock = await connect_socket("several", 80)
            assert sock.getpeername() == (HOST, port)
            close_quietly(sock)


async def test_an_address_that_is_silent_delays_the_next_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_silent_port() as silent:
        async with listening(echo) as port:
            monkeypatch.setattr(socket, "getaddrinfo", found((HOST, silent), (HOST, port)))
            began = trio.current_time()
            sock = await connect_socket("several", 80)
            assert sock.getpeername() == (HOST, port)
            assert trio.current_time() - began >= 0.3
            close_quietly(sock)


async def test_the_problem_of_a_name_is_that_of_its_first_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_closed_port() as closed:
        monkeypatch.setattr(socket, "getaddrinfo", found((HOST, closed), ("255.255.255.255", 80)))
        with pytest.raises(ConnectionRefusedError):
            await connect_socket("several", 80)


async def test_a_socket_that_is_connected_to_itself_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_closed_port() as held:
        pass  # nobody has it now, so sockets can take it
    attempts: list[int] = []

    def on_that_port(family: int) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, held))
        attempts.append(held)
        return sock

    monkeypatch.setattr(connect, "_new_socket", on_that_port)
    with pytest.raises(ConnectionRefusedError):
        await connect_socket(HOST, held)
    assert len(attempts) == 3


@pytest.mark.parametrize("end", [close_quietly, trio.SocketStream.aclose], ids=["quietly", "as usual"])
async def test_only_closing_quietly_gives_the_port_back(end: Callable[[trio.SocketStream], Any]) -> None:
    """That the usual way keeps it shows that it would be seen."""
    ends: list[bytes] = []

    async def reads(stream: trio.SocketStream) -> None:
        async with stream:
            ends.append(bytes(await stream.receive_some()))

    async with listening(reads) as port:
        before = ports_in_time_wait(port)
        for _ in range(20):
            ending = end(await connect_tcp(HOST, port))
            if ending is not None:
                await ending
        while len(ends) < 20:
            await trio.sleep(0.01)
        await trio.sleep(0.05)
        left = ports_in_time_wait(port)
        assert left <= before if end is close_quietly else left > 10
    assert ends == [b""] * 20


async def test_closing_twice_and_after_the_other_side_does_no_harm() -> None:
    closed = trio.Event()

    async def closes(stream: trio.SocketStream) -> None:
        await stream.aclose()
        closed.set()

    async with listening(closes) as port:
        before = ports_in_time_wait(port)
        stream = await connect_tcp(HOST, port)
        await closed.wait()
        close_quietly(stream)
        close_quietly(stream)
        await stream.aclose()
        assert ports_in_time_wait(port) <= before


async def test_a_task_that_waits_on_a_stream_is_told_that_it_was_closed() -> None:
    async with listening(echo) as port:
        stream = await connect_tcp(HOST, port)
        async with trio.open_nursery() as nursery:

            async def reads() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await stream.receive_some()

            nursery.start_soon(reads)
            await trio.testing.wait_all_tasks_blocked()
            close_quietly(stream)


def test_a_problem_of_the_name_server_is_told_as_the_system_does() -> None:
    error = socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution")
    assert dial_problem("shop", 80, error) == "dial tcp: lookup shop: temporary failure in name resolution"


ENDS_AT_ONCE = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    with listener.accept()[0] as connection:
        connection.recv(1)
"""


@pytest.fixture
def server_that_ends_at_once() -> Iterator[int]:
    """Its port; a process of its own, which the kernel may prefer to ours whenever something comes for it."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", ENDS_AT_ONCE], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        server.kill()


async def test_no_port_is_kept_for_a_server_that_answers_the_end_at_once_by_its_own(
    server_that_ends_at_once: int,
) -> None:
    before = ports_in_time_wait(server_that_ends_at_once)
    for _ in range(60):
        sock = await connect_socket(HOST, server_that_ends_at_once)
        await trio.sleep(0.002)  # the server waits
        close_quietly(sock)
    assert ports_in_time_wait(server_that_ends_at_once) <= before + 1  # both sides may have ended in the same moment
