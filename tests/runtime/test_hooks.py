"""Hooks by themselves: commands and sleeps on the simulated runtime, requests to servers on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from grpclib.const import Status

from tests.probes.servers import OK, a_server, an_encrypted_server, listening
from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.api import (
    ContainerPort,
    ExecAction,
    HTTPGetAction,
    HTTPHeader,
    LifecycleHandler,
    SleepAction,
    TCPSocketAction,
)
from trikubelet.clock import SystemClock
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.hooks import HookError, HookRunner
from trikubelet.sim.programs import ExecOutcome, Program
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from trikubelet.api import Pod

WHERE = 'for Container "main" in Pod "web_default(uid-web)" failed - error: '


async def run_on(node: Node, handler: LifecycleHandler, **more: Any) -> str:
    """Run a hook in the main container of a pod; the failure's text, empty for none."""
    pod = make_pod()
    await node.sync(pod)

    async def pod_ips(_: Pod) -> Sequence[str]:
        raise AssertionError("nobody asks for addresses")

    runner = HookRunner(RuntimeClient(node.channel), node.recorder, pod_ips, **more)
    [container] = node.sim.running_containers()
    try:
        await runner.run(container.id, pod, pod.spec.containers[0], handler)
    except HookError as error:
        return str(error)
    return ""


def command(*words: str) -> LifecycleHandler:
    return LifecycleHandler(exec=ExecAction(command=words))


async def test_a_command_runs_in_the_container(autojump_clock: MockClock, node: Node) -> None:
    assert await run_on(node, command("sh", "-c", "true")) == ""
    [call] = node.sim.calls.of("ExecSync")
    assert call.ids[1:] == ("sh", "-c", "true")


async def test_a_command_may_take_its_time(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program(exec=lambda _: ExecOutcome(seconds=1000)))
    began = trio.current_time()
    assert await run_on(node, command("slow")) == ""
    assert trio.current_time() - began >= 1000


async def test_a_command_that_fails_is_told_with_all_it_said(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program(exec=lambda _: ExecOutcome(exit_code=1, stdout=b'so "far"\n', stderr=b"oh\xff")))
    problem = "command 'sh -c false' exited with 1: oh\ufffd"
    message = r'"so \"far\"\noh\xff"'
    assert await run_on(node, command("sh", "-c", "false")) == (
        f"Exec lifecycle hook ([sh -c false]) {WHERE}{problem}, message: {message}"
    )


async def test_a_commands_output_is_told_within_limits(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program(exec=lambda _: ExecOutcome(exit_code=1, stdout=b"x" * 10**6, stderr=b"y" * 10**6)))
    assert len(await run_on(node, command("chatty"))) < 40_000


async def test_a_runtime_that_refuses_is_quoted(autojump_clock: MockClock, node: Node) -> None:
    node.sim.faults.fail_next("ExecSync", message="no shell")
    assert await run_on(node, command("sh")) == (
        f'Exec lifecycle hook ([sh]) {WHERE}rpc error: code = Unknown desc = no shell, message: ""'
    )


@pytest.mark.parametrize("seconds", [0, 5])
async def test_a_sleep_takes_its_seconds(autojump_clock: MockClock, node: Node, seconds: int) -> None:
    began = trio.current_time()
    assert await run_on(node, LifecycleHandler(sleep=SleepAction(seconds=seconds))) == ""
    assert trio.current_time() - began == pytest.approx(seconds, abs=0.1)


async def test_a_hook_ends_with_its_container(autojump_clock: MockClock, node: Node) -> None:
    async def ended(pod_uid: str, container_id: str, *, delay: float = 0.0) -> None:
        assert pod_uid == "uid-web"
        await trio.sleep(3)

    began = trio.current_time()
    problem = await run_on(node, LifecycleHandler(sleep=SleepAction(seconds=100)), ended=ended)
    assert problem == f"Sleep lifecycle hook (100) {WHERE}container terminated before sleep hook finished"
    assert trio.current_time() - began == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("handler", [LifecycleHandler(), LifecycleHandler(tcp_socket=TCPSocketAction(port=80))])
async def test_nothing_else_can_be_run(autojump_clock: MockClock, node: Node, handler: LifecycleHandler) -> None:
    assert (await run_on(node, handler)).startswith("Cannot run handler: invalid handler: ")


# Requests


class Asking:
    """A runner of HTTP hooks for a pod with these addresses, on the real clock."""

    def __init__(self, *ips: str, error: CRIError | None = None) -> None:
        self.recorder = EventRecorder(SystemClock())
        self.pod = make_pod()
        self._ips = ips
        self._error = error

    async def run(self, **action: Any) -> str:
        """The failure's text, empty for none."""
        container = make_container(ports=(ContainerPort(name="web", container_port=action.pop("named_port", 1)),))
        handler = LifecycleHandler(http_get=HTTPGetAction(**action))
        runner = HookRunner(cast("RuntimeClient", None), self.recorder, self.pod_ips)
        try:
            await runner.run("id", self.pod, container, handler)
        except HookError as error:
            return str(error)
        return ""

    async def pod_ips(self, _: Pod) -> Sequence[str]:
        if self._error is not None:
            raise self._error
        return self._ips

    def said(self) -> list[tuple[str, str, str]]:
        return [(event.reason, event.message, event.type.value) for event in self.recorder.events_of("uid-web")]


async def test_a_server_in_the_pod_is_asked() -> None:
    async with a_server() as server:
        assert await Asking("127.0.0.1", "::1").run(path="/stop", port="web", named_port=server.port) == ""
        [request] = server.requests
        assert request.startswith("GET /stop HTTP/1.1")
        assert "User-Agent: kube-lifecycle/1.36" in request


async def test_a_host_of_its_own_is_asked_without_looking_for_the_pods_address() -> None:
    async with a_server(b"HTTP/1.1 500 Sorry\r\n\r\n") as server:
        unknown = Asking(error=CRIError("PodSandboxStatus", Status.UNAVAILABLE, "gone"))
        assert await unknown.run(host="127.0.0.1", port=server.port) == ""


async def test_a_pod_without_an_address_cannot_be_asked() -> None:
    assert (await Asking().run(path="/stop", port=80)).startswith(
        f"HTTP lifecycle hook (/stop) {WHERE}failed to find networking container: "
    )


async def test_a_pod_whose_address_cannot_be_had_cannot_be_asked() -> None:
    lost = Asking(error=CRIError("PodSandboxStatus", Status.UNAVAILABLE, "gone"))
    assert (await lost.run(path="/stop", port=80)).endswith(
        "unable to get pod status, event handlers may be invalid: rpc error: code = Unavailable desc = gone"
    )


async def test_a_wrong_port_is_told() -> None:
    assert await Asking("127.0.0.1").run(path="/", port=0) == (f"HTTP lifecycle hook (/) {WHERE}invalid port number: 0")


async def test_a_server_that_is_not_there_is_told() -> None:
    async with a_server() as server:
        port = server.port
    problem = f'Get "http://127.0.0.1:{port}/": dial tcp 127.0.0.1:{port}: connect: connection refused'
    assert await Asking("127.0.0.1").run(path="/", port=port) == f"HTTP lifecycle hook (/) {WHERE}{problem}"


async def test_an_encrypted_server_is_asked_once() -> None:
    async with an_encrypted_server() as server:
        asking = Asking("127.0.0.1")
        assert await asking.run(scheme="HTTPS", path="/", port=server.port) == ""
        assert asking.said() == []
        assert len(server.requests) == 1


class Plain:
    """A server that answers HTTPS in plain HTTP, as Go's and nginx do, and HTTP with `answer` (none: it hangs up)."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.requests: list[bytes] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            received = bytes(await stream.receive_some())
            if received.startswith(b"GET"):
                self.requests.append(received)
                await stream.send_all(self.answer)
            else:
                await stream.send_all(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request...")


async def test_https_answered_by_http_is_asked_again_without_credentials() -> None:
    server = Plain(OK)
    async with listening(server.serve) as port:
        asking = Asking("127.0.0.1")
        headers = (HTTPHeader(name="authorization", value="Bearer secret"), HTTPHeader(name="X-Other", value="kept"))
        assert await asking.run(scheme="HTTPS", path="/", port=port, http_headers=headers) == ""
    [request] = server.requests
    assert b"secret" not in request
    assert b"X-Other: kept" in request
    text = f"request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
    assert asking.said() == [("LifecycleHTTPFallback", text, "Warning")]


async def test_when_that_fails_too_the_first_problem_stands() -> None:
    server = Plain(b"")
    async with listening(server.serve) as port:
        asking = Asking("127.0.0.1")
        problem = await asking.run(scheme="HTTPS", path="/", port=port)
    assert problem.endswith("http: server gave HTTP response to HTTPS client")
    assert asking.said() == []
    assert len(server.requests) == 1
