"""Slow, greedy, silent and curious clients on every port of a running agent."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
import trio
from trio.testing import MockClock

from tests.agent.serving import client_context
from tests.agent.siege import (
    CHUNKED,
    CONTEXT,
    EVERYWHERE,
    EXEC,
    GET,
    HELLO,
    MIB,
    besieged,
    exchange,
    raw,
    read_all,
    resident,
)
from tests.examples import examples
from tests.node_api.auth.people import client
from trikubelet.http.limits import Limits
from trikubelet.http.messages import AnyResponse, Request, Takeover, UpgradeResponse
from trikubelet.http.server import HttpServer
from trikubelet.node_api.handlers import node_logs
from trikubelet.node_api.handlers.node_logs import NodeLogHandlers
from trikubelet.node_api.listeners import HEALTH_LIMITS, NODE_LIMITS
from trikubelet.rpc.cri.client import RuntimeClient

if TYPE_CHECKING:
    from pathlib import Path

SLOW: Final = examples(200)


@pytest.fixture
def running_clock() -> MockClock:
    return MockClock(rate=1.0)


# Slow ones.


@pytest.mark.parametrize("port", [*EVERYWHERE, "node, before TLS"])
async def test_many_that_send_a_byte_now_and_then_are_sent_away_in_time(
    port: str, tmp_path: Path, running_clock: MockClock
) -> None:
    name, _, early = port.partition(", ")
    async with besieged(tmp_path) as siege:
        before = siege.accepted(name)

        async def slow() -> None:
            stream = await (raw(siege.node, name) if early else siege.node.dial(name, CONTEXT))
            async with trio.open_nursery() as both:
                both.start_soon(drip, stream, HELLO if early else GET[:-1])
                await read_all(stream)
                both.cancel_scope.cancel()
            await trio.aclose_forcefully(stream)

        async with trio.open_nursery() as nursery:
            for _ in range(SLOW):
                nursery.start_soon(slow)
            while siege.accepted(name) < before + SLOW:
                await trio.sleep(0.01)
            await siege.still_works()
            running_clock.jump(NODE_LIMITS.header_timeout + 1)


async def drip(stream: trio.abc.SendStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        for byte in data:
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.2)
    await trio.sleep_forever()


async def test_connections_that_say_nothing_do_not_stay(tmp_path: Path, running_clock: MockClock) -> None:
    async with besieged(tmp_path) as siege:
        silent = [await raw(siege.node, port) for port in EVERYWHERE for _ in range(50)]
        await siege.still_works()
        running_clock.jump(NODE_LIMITS.header_timeout + 1)
        for stream in silent:
            await read_all(stream)
            await trio.aclose_forcefully(stream)


# Greedy ones.


LINES: Final = {"many lines": b"a: b\r\n", "one line": b"x" * 1000}


async def test_heads_of_a_gigabyte_are_refused_early(tmp_path: Path, running_clock: MockClock) -> None:
    answers, sent = {}, dict.fromkeys(((port, kind) for port in EVERYWHERE for kind in LINES), 0)

    async def send(stream: trio.abc.SendStream, port: str, kind: str) -> None:
        block = LINES[kind] * (64 * 2**10 // len(LINES[kind]))
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while sent[port, kind] < 2**30:
                await stream.send_all(block)
                sent[port, kind] += len(block)

    async with besieged(tmp_path) as siege:
        before = resident()
        for port, kind in sent:
            stream = await siege.node.dial(port, CONTEXT)
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\nX: ")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, stream, port, kind)
                answers[port, kind] = (await read_all(stream))[:13]
            await trio.aclose_forcefully(stream)
        assert answers == dict.fromkeys(sent, b"HTTP/1.1 431 ")
        assert max(sent.values()) < 32 * MIB
        assert resident() - before < 32 * MIB


ANOTHER: Final = b"GET /healthz?another HTTP/1.1\r\nHost: h\r\n\r\n"
MOST: Final = {"socket": Limits().body_size, "health": HEALTH_LIMITS.body_size}


def bodies(most: int) -> dict[str, tuple[bytes, int]]:
    """What is sent, and the answer, where a body may have so many bytes."""
    begin, more = b"POST /healthz HTTP/1.1\r\nHost: h\r\n", most + 50_000
    return {
        "a chunk that ends too early": (CHUNKED + b"\r\nff\r\nabc", 408),
        "chunks without end": (CHUNKED + b"\r\n" + 5 * b"3\r\nabc\r\n", 408),
        "a chunk larger than any body": (CHUNKED + b"\r\n7fffffff\r\n" + b"x" * more, 413),
        "many chunks": (CHUNKED + b"\r\n" + more // 4096 * (b"1000\r\n" + b"x" * 4096 + b"\r\n"), 413),
        "a chunk whose size is no number": (CHUNKED + b"\r\nxyz\r\n", 400),
        "a chunk whose size has no end": (CHUNKED + b"\r\n" + b"f" * 70_000, 431),
        "a length and chunks": (CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + ANOTHER, 400),
        "two lengths": (begin + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        "a length that is none": (begin + b"Content-Length: -1\r\n\r\n", 400),
        "a length beyond all": (begin + b"Content-Length: 99999999999\r\n\r\n" + b"x" * more, 413),
        "a length that is not kept": (begin + b"Content-Length: 100\r\n\r\n" + b"x" * 99, 408),
    }


async def test_bodies_that_are_none_are_refused_and_end_their_connection(
    tmp_path: Path, running_clock: MockClock
) -> None:
    async with besieged(tmp_path) as siege:
        answers: dict[tuple[str, str], bytes] = {}
        sent = {
            (port, name): body
            for port in EVERYWHERE
            for name, body in bodies(MOST.get(port, NODE_LIMITS.body_size)).items()
        }

        async def send(port: str, name: str) -> None:
            answers[port, name] = await exchange(siege.node, port, sent[port, name][0])

        async with trio.open_nursery() as nursery:
            for port, name in sent:
                nursery.start_soon(send, port, name)
            while len(answers) < sum(status != 408 for _, status in sent.values()):
                await trio.sleep(0.01)
            await siege.still_works()
            running_clock.jump(NODE_LIMITS.body_timeout + 1)
        for key, (_, status) in sent.items():
            assert answers[key].startswith(f"HTTP/1.1 {status} ".encode()), (key, answers[key])
            assert len(re.findall(rb"HTTP/1\.1 \d", answers[key])) == 1, f"{key}: what followed was taken for a request"


async def test_a_connection_cut_within_a_chunk_leaves_nothing(tmp_path: Path, running_clock: MockClock) -> None:
    async with besieged(tmp_path) as siege:
        for port in EVERYWHERE:
            stream = await siege.node.dial(port, CONTEXT)
            await stream.send_all(CHUNKED + b"\r\nff\r\nabc")
            await trio.aclose_forcefully(stream)


# Silent ones.


class Shell:
    """A runtime's streaming server. Whoever comes is listened to, and told nothing."""

    def __init__(self) -> None:
        self.sessions = 0

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address, port = listener.socket.getsockname()
        task_status.started(f"http://{address}:{port}/exec/token")
        await trio.serve_listeners(HttpServer(self._handle).serve_stream, [listener])

    async def _handle(self, _: Request) -> AnyResponse:
        async def listen(takeover: Takeover) -> None:
            stream = await takeover.accept([("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")])
            self.sessions += 1
            try:
                await read_all(stream)
            finally:
                self.sessions -= 1

        return UpgradeResponse(listen)


@pytest.mark.parametrize("port", ["node", "socket"])
async def test_sessions_without_a_word_keep_nobody_out_and_end_with_either_side(
    port: str, tmp_path: Path, running_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell()
    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(shell.run)

        async def exec_(_client: RuntimeClient, _request: object) -> str:
            return url

        monkeypatch.setattr(RuntimeClient, "exec", exec_)
        async with besieged(tmp_path) as siege:
            context = client_context(tmp_path, client("ann", "system:masters"))
            sessions = [await siege.node.dial(port, context) for _ in range(60)]
            for session in sessions:
                await session.send_all(EXEC)
                assert (await session.receive_some()).startswith(b"HTTP/1.1 101 ")
            while shell.sessions < 60:
                await trio.sleep(0.01)
            running_clock.jump(NODE_LIMITS.idle_timeout + 10)  # longer than anybody else may be silent
            await siege.still_works()
            assert shell.sessions == 60
            for session in sessions:
                await trio.aclose_forcefully(session)
            with trio.fail_after(60):
                while shell.sessions:
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


# Curious ones.

SECRET: Final = "the secret outside"


@pytest.mark.parametrize("port", ["node", "socket"])
async def test_no_path_leads_out_of_the_log_folder(
    port: str, tmp_path: Path, running_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "log"
    (logs / "pods").mkdir(parents=True)
    (logs / "syslog").write_text("of the node")
    (tmp_path / "secret").write_text(SECRET)
    (logs / "link").symlink_to(tmp_path / "secret")
    (logs / "relative").symlink_to("../secret")
    (logs / "up").symlink_to("..")
    (logs / "root").symlink_to("/")
    (logs / "process").symlink_to("/proc/self")
    os.mkfifo(logs / "fifo")
    monkeypatch.setattr(node_logs, "NodeLogHandlers", partial(NodeLogHandlers, folder=logs))
    async with besieged(tmp_path) as siege:
        caller = siege.master if port == "node" else siege.node.caller("socket")
        assert (await caller.ask("GET", "/logs/syslog")).text == "of the node"
        ways_up = (
            "..",
            "%2e%2e",
            ".%2e",
            "%2E.",
            "..%2f..",
            "%2e%2e%2f",
            "..%00",
            "..;",
            "....",
            "up",
            "..\\",
            "%c0%ae%c0%ae",
        )
        steps = [f"/logs/{way}{slash}secret" for way in ways_up for slash in ("/", "//", "%2f", "/./", "%5c")]
        others = [
            "link",
            "relative",
            "root/etc/passwd",
            "process/environ",
            "process/root/etc/passwd",
            "fifo",
            "pods/../../secret",
        ]
        absolute = [
            f"/logs/{tmp_path}/secret",
            f"/logs//{tmp_path}/secret",
            "/logs/%2fetc%2fpasswd",
            "/../logs/../secret",
        ]
        proxied = ["http://h/logs/../secret", "http://h/../secret"]
        for path in (*steps, *(f"/logs/{other}" for other in others), *absolute, *proxied):
            answer = await caller.ask("GET", path)
            assert answer.status == 404, (path, answer)
            assert SECRET not in answer.text
        await caller.hang_up()
