"""exec, attach, cp, port-forward and top, as a person types them, into containers of real runtimes."""

from __future__ import annotations

import re
import signal
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from tests.agent.conftest import RUNTIMES, node_on, until_clean
from tests.cli.streaming_agent import run_cli, started_cli, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.real_node import RealNode

PORT = 8080
GREET = (
    f"import socket; listener = socket.create_server(('127.0.0.1', {PORT})); print('up', flush=True);"
    "connection, _ = listener.accept(); connection.sendall(b'welcome'); connection.close()"
)
WAIT = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


@pytest.fixture(scope="module", params=RUNTIMES)
def waiting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """With a pod that runs, for all tests that leave it so."""
    node = node_on(request, tmp_path_factory.mktemp("waiting"))
    with contextmanager(until_clean)(node):
        start_pod(node)
        yield node


def start_pod(node: RealNode) -> None:
    node.start()
    node.run("web", node.container(WAIT))
    node.until_running("web")


async def test_exec_passes_streams_and_codes(waiting: RealNode) -> None:
    data = bytes(range(256)) * 20_000
    done = await run_cli(waiting.root, "exec", "-i", "web", "--", "sh", "-c", "cat; echo end >&2; exit 9", stdin=data)
    assert (done.returncode, done.stdout == data) == (9, True)
    assert done.stderr == b"end\ncommand terminated with exit code 9\n"
    done = await run_cli(waiting.root, "exec", "web", "--", "no-such-command")
    assert done.returncode == 127, done.stderr
    assert b"executable file not found in $PATH" in done.stderr
    done = await run_cli(waiting.root, "exec", "web", "--", "/shared")
    assert done.returncode == 126, done.stderr


async def test_a_shell_on_a_terminal(waiting: RealNode) -> None:
    with trio.fail_after(30):
        async with terminal(waiting.root, "exec", "-it", "web", "--", "sh", columns=93, lines=31) as person:
            before = person.modes()
            await person.type(b"PS1=ready:; echo $((40 + 2))\r")
            await person.until(b"42\r\n")
            await person.until(b"ready:")
            assert person.is_raw
            await person.type(b"sleep 1000\r")
            await person.until(b"sleep 1000\r\n")
            await trio.sleep(0.2)
            await person.type(b"\x03")
            await person.until(b"ready:")
            await person.type(b"exit 5\r")
            assert await person.process.wait() == 5
            assert person.modes() == before


async def test_the_terminal_is_given_back_when_the_container_or_the_agent_dies(node: RealNode) -> None:
    start_pod(node)
    with trio.fail_after(30):
        async with terminal(node.root, "exec", "-it", "web", "--", "sh") as person:
            before = person.modes()
            await person.type(b"echo $((40 + 2))\r")
            await person.until(b"42\r\n")
            assert node.agent is not None
            node.agent.kill()
            node.agent.wait()
            node.agent = None
            assert await person.process.wait() == 1
            assert person.modes() == before
    node.start()


async def test_attach_types_to_a_container(node: RealNode) -> None:
    node.start()
    script = "while read line; do echo got-$line; done; echo over; sleep 1"
    node.run("talk", node.container(script, stdin=True, stdinOnce=True), restartPolicy="Never")
    await trio.to_thread.run_sync(node.until_running, "talk")
    done = await run_cli(node.root, "attach", "-qi", "talk", stdin=b"one\ntwo\n")
    assert (done.returncode, done.stdout) == (0, b"got-one\ngot-two\nover\n"), done.stderr


async def test_cp_brings_back_what_it_took(waiting: RealNode, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "data").write_bytes(bytes(range(256)) * 10_000)
    (source / "data").chmod(0o640)
    done = await run_cli(waiting.root, "cp", source, "web:/shared/copy")
    if done.returncode == 127:
        pytest.skip("there is no tar in this image")
    assert done.returncode == 0, done.stderr
    done = await run_cli(waiting.root, "cp", "web:/shared/copy", tmp_path / "back")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back" / "data").read_bytes() == (source / "data").read_bytes()
    assert (tmp_path / "back" / "data").stat().st_mode & 0o777 == 0o640


async def test_top_knows_what_pods_use(waiting: RealNode) -> None:
    done = await run_cli(waiting.root, "top", "pods", "web", "--no-headers")
    assert re.fullmatch(rb"default +web-node-1 +\d+m +\d+Mi\n", done.stdout), (done.stdout, done.stderr)
    done = await run_cli(waiting.root, "top", "node", "--no-headers")
    assert re.fullmatch(rb"node-1 +\d+m +\d+% +\d+Mi +\d+%\n", done.stdout), (done.stdout, done.stderr)
    assert b"web-node-1" in (await run_cli(waiting.root, "stats")).stdout


async def test_port_forward_reaches_a_server_and_explains_where_there_is_none(waiting: RealNode) -> None:
    """Only the embedded runtime's image has a program that can be a server."""
    with trio.fail_after(60):
        async with AsyncExitStack() as stack:
            if waiting.containerd is None:
                command = ("exec", "web", "--", "python3", "-c", GREET)
                server = await stack.enter_async_context(started_cli(waiting.root, *command))
                assert server.stdout is not None
                assert await server.stdout.receive_some() == b"up\n"
            process = await stack.enter_async_context(
                started_cli(waiting.root, "port-forward", "web", f":{PORT}", ":1")
            )
            assert process.stdout is not None
            assert process.stderr is not None
            out = b""
            while out.count(b"-> 1\n") < 1:
                out += await process.stdout.receive_some()
            local = {int(remote): int(here) for here, remote in re.findall(rb":(\d+) -> (\d+)\n", out)}
            if waiting.containerd is None:
                assert await received(local[PORT]) == b"welcome"
            assert await received(local[1]) == b""
            assert b"connection refused" in (await process.stderr.receive_some()).lower()
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130


async def received(port: int) -> bytes:
    try:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            return b"".join([bytes(data) async for data in stream])
    except trio.BrokenResourceError:
        return b""
