"""kubectl as a peer: its SPDY is moby/spdystream, its WebSockets are gorilla's. Its API server is this file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from tests.examples import examples
from trikubelet.http.messages import JSON, AnyResponse, Request, Response, Takeover, UpgradeResponse
from trikubelet.http.server import HttpServer
from trikubelet.http.streaming.command import CommandResult, CommandStreams, Exited, Failed, TerminalSize
from trikubelet.http.streaming.port_forward import ForwardedPort, serve_port_forward
from trikubelet.http.streaming.remote_command import RemoteCommand, serve_remote_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
]

TRANSPORT = pytest.mark.parametrize("websockets", ["true", "false"], ids=["websocket", "spdy"])
POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "p", "namespace": "default", "uid": "1"},
    "spec": {"containers": [{"name": "c", "image": "i", "stdin": True, "ports": [{"containerPort": 80}]}]},
    "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
}


PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "create"]}
DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [PODS]},
    "/api/v1/namespaces/default/pods/p": POD,
}


async def _run_command(request: Request, takeover: Takeover) -> None:
    streams = CommandStreams(*(request.flag(name) for name in ("stdin", "stdout", "stderr", "tty")))
    words = list(request.query["command"])
    async with serve_remote_command(request, takeover, streams) as command:
        await command.finish(await COMMANDS[words[0]](command, words[1:]))


async def _cat(command: RemoteCommand, _words: list[str]) -> CommandResult:
    assert command.stdin is not None
    assert command.stdout is not None
    while data := await command.stdin.receive_some():
        await command.stdout.send_all(data)
    return Exited(0)


async def _exit(command: RemoteCommand, words: list[str]) -> CommandResult:
    assert command.stderr is not None
    await command.stderr.send_all(b"going\n")
    return Exited(int(words[0]))


async def _fail(_command: RemoteCommand, _words: list[str]) -> CommandResult:
    return Failed("no such file")


async def _yes(command: RemoteCommand, words: list[str]) -> CommandResult:
    assert command.stdout is not None
    for _ in range(int(words[0])):
        await command.stdout.send_all(b"y" * 1000)
    return Exited(0)


async def _ignore_stdin(_command: RemoteCommand, _words: list[str]) -> CommandResult:
    await trio.sleep(0.2)
    return Exited(0)


async def _size(command: RemoteCommand, _words: list[str]) -> CommandResult:
    assert command.stdout is not None
    assert command.resizes is not None
    size: TerminalSize = await command.resizes.receive()
    await command.stdout.send_all(f"{size.width}x{size.height}\n".encode())
    return Exited(0)


COMMANDS = {"cat": _cat, "exit": _exit, "fail": _fail, "yes": _yes, "ignore": _ignore_stdin, "size": _size}


async def _forward(request: Request, takeover: Takeover) -> None:
    async with serve_port_forward(request, takeover) as forwards, trio.open_nursery() as nursery:
        async for forwarded in forwards:
            nursery.start_soon(_shout, forwarded)


async def _shout(forwarded: ForwardedPort) -> None:
    if forwarded.port == 81:
        await forwarded.finish("nobody listens on 81")
        return
    while data := await forwarded.data.receive_some():
        await forwarded.data.send_all(data.upper())
    await forwarded.finish()


async def _api(request: Request) -> AnyResponse:
    if request.path in DISCOVERY:
        return Response(json.dumps(DISCOVERY[request.path]).encode(), content_type=JSON)
    if request.path.endswith(("/exec", "/attach")):
        return UpgradeResponse(partial(_run_command, request))
    if request.path.endswith("/portforward"):
        return UpgradeResponse(partial(_forward, request))
    return Response(b"{}", 404, JSON)


@asynccontextmanager
async def _api_server() -> AsyncIterator[str]:
    server = HttpServer(_api)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve_stream, listeners)
        with trio.fail_after(30):
            yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def _environment(tmp_path: Path, websockets: str) -> dict[str, str]:
    names = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
    return {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": "", **dict.fromkeys(names, websockets)}


async def _kubectl(
    tmp_path: Path, websockets: str, *words: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    async with _api_server() as url:
        return await trio.run_process(
            ["kubectl", f"--server={url}", *words],
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=_environment(tmp_path, websockets),
        )


@TRANSPORT
async def test_exec_copies_stdin_to_its_end(tmp_path: Path, websockets: str) -> None:
    data = bytes(range(256)) * 8000
    done = await _kubectl(tmp_path, websockets, "exec", "-i", "p", "--", "cat", stdin=data)
    assert (done.returncode, done.stdout == data) == (0, True), done.stderr


@TRANSPORT
async def test_exec_gives_the_exit_code_and_stderr(tmp_path: Path, websockets: str) -> None:
    done = await _kubectl(tmp_path, websockets, "exec", "p", "--", "exit", "42")
    assert done.returncode == 42
    # kubectl reads before it has its streams ready: on a busy machine it complains about the first, empty message.
    assert b"going" in done.stderr.splitlines()


@TRANSPORT
async def test_exec_tells_why_nothing_ran(tmp_path: Path, websockets: str) -> None:
    done = await _kubectl(tmp_path, websockets, "exec", "p", "--", "fail")
    assert done.returncode == 1
    assert b"no such file" in done.stderr


@TRANSPORT
async def test_exec_gives_all_output_before_the_end(tmp_path: Path, websockets: str) -> None:
    lines = examples(20_000)
    done = await _kubectl(tmp_path, websockets, "exec", "p", "--", "yes", str(lines))
    assert (done.returncode, len(done.stdout)) == (0, lines * 1000), done.stderr


@TRANSPORT
async def test_exec_ends_with_a_command_that_reads_no_stdin(tmp_path: Path, websockets: str) -> None:
    done = await _kubectl(tmp_path, websockets, "exec", "-i", "p", "--", "ignore", stdin=b"x" * 2**23)
    assert done.returncode == 0, done.stderr


@TRANSPORT
async def test_exec_tells_the_size_of_its_terminal(tmp_path: Path, websockets: str) -> None:
    async with _api_server() as url:
        # script(1) gives it a terminal.
        line = f"stty cols 93 rows 31; kubectl --server={url} exec -it p -- size"
        done = await trio.run_process(
            ["script", "-qec", line, "/dev/null"],
            capture_stdout=True,
            check=False,
            env=_environment(tmp_path, websockets),
        )
    assert b"93x31" in done.stdout, done.stdout


async def _answer_of(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some())
    except trio.BrokenResourceError:
        return b""


@TRANSPORT
async def test_port_forward_connects_again_and_again_and_ends_refused_ones(tmp_path: Path, websockets: str) -> None:
    async with _api_server() as url, trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                ["kubectl", f"--server={url}", "port-forward", "p", ":80", ":81"],
                stdout=subprocess.PIPE,
                check=False,
                env=_environment(tmp_path, websockets),
            )
        )
        assert process.stdout is not None
        text = b""
        while text.count(b" -> 80\n") == 0 or text.count(b" -> 81\n") == 0:
            text += await process.stdout.receive_some()
        local = {target: int(re.findall(rb"127.0.0.1:(\d+) -> %d" % target, text)[0]) for target in (80, 81)}
        for target in (80, 80, 80, 81):
            async with await trio.open_tcp_stream("127.0.0.1", local[target]) as stream:
                await stream.send_all(b"hello")
                assert await _answer_of(stream) == (b"HELLO" if target == 80 else b"")
        nursery.cancel_scope.cancel()
