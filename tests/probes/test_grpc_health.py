"""Health asked by gRPC: the kubelet's `TestGrpcProber_Probe`, misbehaving servers, and the wire as others speak it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import grpc
import pytest
import trio
import trio.testing
from grpclib import GRPCError, Status
from h2.events import RequestReceived
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.test_prober import make_target
from tests.rpc.grpc.peer import Peer
from trikubelet.api import GRPCAction
from trikubelet.probes.grpc_health import ask_grpc
from trikubelet.probes.types import Outcome, ProbeAnswer
from trikubelet.rpc.grpc import Server
from trikubelet.rpc.health.v1 import (
    HealthBase,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

SERVING = HealthCheckResponseServingStatus.SERVING
HEALTHY = ProbeAnswer(Outcome.SUCCESS, "service healthy")
UNREACHED = 'timeout: failed to connect service "10.0.0.1:9090" within {}: context deadline exceeded'
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def failure(output: str) -> ProbeAnswer:
    return ProbeAnswer(Outcome.FAILURE, output)


@attrs.define(eq=False)
class Health(HealthBase):
    """Answers as told; notes which services it was asked for, and how each call ended."""

    status: HealthCheckResponseServingStatus = SERVING
    error: GRPCError | None = None
    seconds: float = 0.0
    asked: list[str] = attrs.Factory(list)
    cancelled: bool = False

    async def check(self, health_check_request: HealthCheckRequest) -> HealthCheckResponse:
        self.asked.append(health_check_request.service)
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return HealthCheckResponse(status=self.status)


@attrs.define
class Network:
    """One port in memory. `serve` gets each connection; before `up_at` the port refuses."""

    nursery: trio.Nursery
    serve: Callable[[trio.abc.Stream], Awaitable[object]]
    up_at: float = 0.0
    dials: list[tuple[str, int, float]] = attrs.Factory(list)
    open: int = 0
    """Connections that the client has not closed yet."""

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dials.append((host, port, trio.current_time()))
        if trio.current_time() < self.up_at:
            raise ConnectionRefusedError(111, "Connection refused")
        near, far = trio.testing.memory_stream_pair()
        self.open += 1
        near.send_stream.close_hook = self._closed
        self.nursery.start_soon(self.serve, far)
        return near

    def _closed(self) -> None:
        self.open -= 1


@asynccontextmanager
async def network(serve: Callable[[trio.abc.Stream], Awaitable[object]]) -> AsyncIterator[Network]:
    async with trio.open_nursery() as nursery:
        yield Network(nursery, serve)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(service: Any) -> AsyncIterator[Network]:
    async with network(Server([service]).serve_stream) as net:
        yield net


def answers(
    message: bytes, headers: dict[bytes, bytes] | None = None
) -> Callable[[trio.abc.Stream], Awaitable[object]]:
    """A server with this answer; it notes the request's headers, and says nothing more until the client hangs up."""

    async def serve(stream: trio.abc.Stream) -> None:
        peer = Peer(stream, client_side=False)
        await peer.start()
        request = await peer.expect(RequestReceived)
        if headers is not None:
            headers.update(request.headers)
        assert request.stream_id is not None
        await peer.reply(request.stream_id, message)
        while await stream.receive_some():
            pass

    return serve


async def ask(net: Network, service: str | None = None, *, timeout: float = 1) -> ProbeAnswer:
    return await ask_grpc(make_target(), GRPCAction(port=9090, service=service), timeout, connect=net.connect)


async def test_a_server_that_serves_is_healthy(autojump_clock: MockClock) -> None:
    async with served(Health()) as net:
        assert await ask(net) == HEALTHY
        assert [(host, port) for host, port, _ in net.dials] == [("10.0.0.1", 9090)]


@pytest.mark.parametrize(("service", "asked"), [(None, ""), ("", ""), ("shop.v1.Cart", "shop.v1.Cart")])
async def test_the_service_of_the_spec_is_asked_for(service: str | None, asked: str, autojump_clock: MockClock) -> None:
    health = Health()
    async with served(health) as net:
        assert await ask(net, service) == HEALTHY
    assert health.asked == [asked]


@pytest.mark.parametrize("status", [status for status in HealthCheckResponseServingStatus if status != SERVING])
async def test_any_other_status_is_unhealthy_and_told(
    status: HealthCheckResponseServingStatus, autojump_clock: MockClock
) -> None:
    async with served(Health(status=status)) as net:
        assert await ask(net) == failure(f'service unhealthy (responded with "{status.name}")')


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (
            GRPCError(Status.UNIMPLEMENTED, "unknown service grpc.health.v1.Health"),
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "
            "unknown service grpc.health.v1.Health",
        ),
        (GRPCError(Status.DEADLINE_EXCEEDED, "mine"), "timeout: health rpc did not complete within 1s"),
        (
            GRPCError(Status.NOT_FOUND, "unknown service"),
            "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
        ),
        (
            GRPCError(Status.CANCELLED, "enough"),
            "error: health rpc probe failed: rpc error: code = Canceled desc = enough",
        ),
    ],
)
async def test_an_error_of_the_server_is_a_failure(error: GRPCError, output: str, autojump_clock: MockClock) -> None:
    async with served(Health(error=error)) as net:
        assert await ask(net) == failure(output)


async def test_a_server_without_the_health_service_is_told_so(autojump_clock: MockClock) -> None:
    async with network(Server([]).serve_stream) as net:
        answer = await ask(net)
    assert answer.outcome is Outcome.FAILURE
    assert answer.output.startswith("error: this server does not implement the grpc health protocol")


async def test_a_server_that_takes_too_long_is_given_up_at_the_timeout(autojump_clock: MockClock) -> None:
    health = Health(seconds=4)
    began = trio.current_time()
    async with served(health) as net:
        assert await ask(net, timeout=2) == failure("timeout: health rpc did not complete within 2s")
        assert trio.current_time() - began == pytest.approx(2)
        await trio.testing.wait_all_tasks_blocked()
        assert health.cancelled


async def test_connecting_and_asking_share_one_timeout(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with served(Health(seconds=1.5)) as net:
        net.up_at = began + 1
        assert await ask(net, timeout=2) == failure("timeout: health rpc did not complete within 2s")
        assert trio.current_time() - began == pytest.approx(2)


async def test_a_port_that_refuses_is_tried_each_second_until_the_timeout(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with served(Health()) as net:
        net.up_at = began + 100
        assert await ask(net, timeout=90) == failure(UNREACHED.format("1m30s"))
        assert trio.current_time() - began == pytest.approx(90)
        assert [at - began for _, _, at in net.dials] == pytest.approx(list(range(90)), abs=1e-6)


async def test_a_server_that_comes_up_within_the_timeout_is_healthy(autojump_clock: MockClock) -> None:
    async with served(Health()) as net:
        net.up_at = trio.current_time() + 2.5
        assert await ask(net, timeout=5) == HEALTHY
        assert len(net.dials) == 4


async def _says_nothing(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def _speaks_http_1(stream: trio.abc.Stream) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await trio.sleep_forever()


async def _hangs_up(stream: trio.abc.Stream) -> None:
    await stream.aclose()


async def _talks_rubbish(stream: trio.abc.Stream) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(b"\xff" * 100)
        await trio.sleep_forever()


@pytest.mark.parametrize("serve", [_says_nothing, _speaks_http_1, _hangs_up, _talks_rubbish])
async def test_a_port_that_does_not_speak_http_2_is_not_connected(
    serve: Callable[[trio.abc.Stream], Awaitable[object]], autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    async with network(serve) as net:
        assert await ask(net) == failure(UNREACHED.format("1s"))
        assert trio.current_time() - began == pytest.approx(1)
        assert net.open == 0


async def test_a_server_that_takes_its_time_to_speak_is_not_dialled_twice(autojump_clock: MockClock) -> None:
    async with network(_says_nothing) as net:
        assert await ask(net, timeout=15) == failure(UNREACHED.format("15s"))
        assert len(net.dials) == 1


async def test_a_server_that_hangs_up_on_the_call_is_a_failure(autojump_clock: MockClock) -> None:
    async def serve(stream: trio.abc.Stream) -> None:
        peer = Peer(stream, client_side=False)
        await peer.start()
        await peer.expect(RequestReceived)
        await stream.aclose()

    async with network(serve) as net:
        answer = await ask(net)
    assert answer.outcome is Outcome.FAILURE
    assert answer.output.startswith("error: health rpc probe failed: rpc error: code = Unavailable desc = ")


async def test_the_call_says_that_it_is_a_probe_and_to_whom_it_goes(autojump_clock: MockClock) -> None:
    headers: dict[bytes, bytes] = {}
    async with network(answers(b"\x08\x01", headers)) as net:
        target = attrs.evolve(make_target(), pod_ip="fd00::1")
        assert await ask_grpc(target, GRPCAction(port=9090), 1, connect=net.connect) == HEALTHY
        assert net.dials[0][:2] == ("fd00::1", 9090)
    assert headers[b":authority"] == b"[fd00::1]:9090"
    assert headers[b":path"] == b"/grpc.health.v1.Health/Check"
    assert headers[b"user-agent"].startswith(b"kube-probe/1.36 ")
    assert b"grpc-timeout" in headers


async def test_each_probe_has_a_connection_of_its_own_and_closes_it(autojump_clock: MockClock) -> None:
    async with served(Health()) as net:
        for _ in range(3):
            await ask(net)
            assert net.open == 0
        assert len(net.dials) == 3


@pytest.mark.parametrize("serve", [_says_nothing, Server([Health(seconds=100)]).serve_stream])
async def test_cancelling_closes_the_connection_at_once(
    serve: Callable[[trio.abc.Stream], Awaitable[object]], autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    async with network(serve) as net:
        with trio.move_on_after(0.25) as scope:
            await ask(net, timeout=10)
        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(0.25)
        assert net.open == 0


@given(message=st.binary(max_size=12))
def test_whatever_the_server_answers_is_an_answer(message: bytes) -> None:
    async def main() -> ProbeAnswer:
        async with network(answers(message)) as net:
            return await ask(net)

    answer = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not answer.error
    if answer.outcome is not Outcome.SUCCESS:
        assert answer.outcome is Outcome.FAILURE
        assert answer.output.startswith(("service unhealthy", "error: health rpc probe failed"))


@pytest.mark.parametrize(
    ("message", "said"),
    [(b"", "UNKNOWN"), (b"\x08\x07", "7"), (b"\x0a\x01\x01", "UNKNOWN")],
    ids=["no status", "one from the future", "one that is no enum"],
)
async def test_a_status_without_a_name_is_told_by_its_number(
    message: bytes, said: str, autojump_clock: MockClock
) -> None:
    async with network(answers(message)) as net:
        assert await ask(net) == failure(f'service unhealthy (responded with "{said}")')


# Over TCP, on the real clock.


def on_loopback(port: int, service: str = "") -> tuple[Any, GRPCAction]:
    return attrs.evolve(make_target(), pod_ip="127.0.0.1"), GRPCAction(port=port, service=service)


@contextlib.contextmanager
def grpcio_server(check: Callable[[bytes, Any], bytes]) -> Iterator[int]:
    """gRPC's own server with this health service; gives its port."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait(10)


async def test_grpcs_own_server_understands_the_question_and_is_understood() -> None:
    seen: list[tuple[bytes, str]] = []

    def check(request: bytes, context: Any) -> bytes:
        agent = next(value for key, value in context.invocation_metadata() if key == "user-agent")
        seen.append((request, agent))
        if request == b"\x0a\x04nope":
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown service nope")
        return b"\x08\x01"

    with grpcio_server(check) as port:
        assert await ask_grpc(*on_loopback(port), 10) == HEALTHY
        answer = await ask_grpc(*on_loopback(port, "nope"), 10)
    assert answer == failure("error: health rpc probe failed: rpc error: code = NotFound desc = unknown service nope")
    assert [request for request, _ in seen] == [b"", b"\x0a\x04nope"]
    assert all(agent.startswith("kube-probe/1.36 ") for _, agent in seen)


def waiting_ports(port: int) -> int:
    """How many closed connections to this port of 127.0.0.1 the kernel keeps in TIME-WAIT."""
    ours = f"0100007F:{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(ours in row[1:3] and row[3] == "06" for row in rows)


async def test_probes_over_tcp_leave_no_port_in_time_wait() -> None:
    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, answers(b"\x08\x01"), 0, host="127.0.0.1")
        [listener] = await nursery.start(listen)
        port = listener.socket.getsockname()[1]
        before = waiting_ports(port)  # of another test that had the same port
        for _ in range(20):
            assert await ask_grpc(*on_loopback(port), 10) == HEALTHY
        await trio.testing.wait_all_tasks_blocked()
        assert waiting_ports(port) <= before
        nursery.cancel_scope.cancel()


async def test_a_port_that_nobody_listens_on_is_a_failure_at_the_timeout() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        answer = await ask_grpc(*on_loopback(port), 0.05)
    text = f'timeout: failed to connect service "127.0.0.1:{port}" within 50ms: context deadline exceeded'
    assert answer == failure(text)
