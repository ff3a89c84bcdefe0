"""`trikubelet attach` as a process, on an agent that the test plays."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cli.conftest import a_pod
from tests.cli.streaming_agent import StreamingAgent, run_cli, started_cli, streaming_agent, terminal
from trikubelet.cli.failures import CommandError
from trikubelet.cli.terminal import DetachKeys
from trikubelet.http.messages import HTTPError
from trikubelet.http.streaming.command import CommandResult, Exited

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trikubelet.http.streaming.remote_command import RemoteCommand

HINT = b"If you don't see a command prompt, try pressing enter.\n"


@pytest.fixture
async def agent(root_dir: Path) -> AsyncIterator[StreamingAgent]:
    async with streaming_agent(root_dir) as agent:
        yield agent


def has_terminal(agent: StreamingAgent) -> None:
    pod = a_pod()
    pod["spec"]["containers"][0] |= {"stdin": True, "tty": True}
    agent.pods = [pod]


async def greet(command: RemoteCommand, _: list[str]) -> CommandResult:
    assert command.stdout is not None
    await command.stdout.send_all(b"hello\n")
    if command.stderr is not None:
        await command.stderr.send_all(b"oops\n")
    return Exited(0)


async def echo(command: RemoteCommand, _: list[str]) -> CommandResult:
    assert command.stdin is not None
    assert command.stdout is not None
    await command.stdout.send_all(b"> ")
    while data := await command.stdin.receive_some():
        await command.stdout.send_all(data)
    return Exited(0)


async def test_what_a_container_prints_is_shown(agent: StreamingAgent) -> None:
    agent.attached = greet
    done = await run_cli(agent.root_dir, "attach", "web")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\n", HINT + b"oops\n")
    assert agent.requests[-1].path == "/attach/default/web-node/main"
    assert (await run_cli(agent.root_dir, "attach", "-q", "web")).stderr == b"oops\n"


async def test_stdin_goes_to_the_container(agent: StreamingAgent) -> None:
    agent.attached = echo
    done = await run_cli(agent.root_dir, "attach", "-i", "web", stdin=b"typed")
    assert (done.returncode, done.stdout) == (0, b"> typed")


async def test_a_container_without_a_terminal_gives_none(agent: StreamingAgent) -> None:
    agent.attached = greet
    done = await run_cli(agent.root_dir, "attach", "-it", "web")
    assert done.stderr.startswith(b"error: Unable to use a TTY - container main did not allocate one\n")
    assert "tty" not in agent.requests[-1].query


async def test_a_containers_terminal_is_ours_with_i_alone_and_is_left_by_the_detach_keys(agent: StreamingAgent) -> None:
    has_terminal(agent)
    agent.attached = echo
    async with terminal(agent.root_dir, "attach", "-i", "web") as person:
        before = person.modes()
        await person.until(b"> ")
        assert person.is_raw
        await person.type(b"\x10x\x03\x10")
        await person.until(b"\x10x\x03")
        await person.type(b"\x11")
        assert await person.process.wait() == 0
        assert person.modes() == before
        await person.until(b"resume using 'trikubelet attach default/web-node -c main -i -t' command")


async def test_a_screen_is_drawn_again_since_its_size_seems_to_change(agent: StreamingAgent) -> None:
    has_terminal(agent)

    async def tell_sizes(command: RemoteCommand, _: list[str]) -> CommandResult:
        assert command.stdout is not None
        assert command.resizes is not None
        async for size in command.resizes:
            await command.stdout.send_all(f"{size.width}x{size.height}\r\n".encode())
            if size.width == 93:
                return Exited(0)
        raise AssertionError

    agent.attached = tell_sizes
    async with terminal(agent.root_dir, "attach", "-it", "web", columns=93, lines=31) as person:
        await person.until(b"93x31")
        assert await person.process.wait() == 0


async def test_a_containers_terminal_without_one_of_ours_is_said(agent: StreamingAgent) -> None:
    has_terminal(agent)
    agent.attached = echo
    done = await run_cli(agent.root_dir, "attach", "-it", "web", stdin=b"x")
    assert (done.returncode, done.stdout) == (0, b"> x")
    assert done.stderr.startswith(b"Unable to use a TTY - input is not a terminal or the right kind of file\n")


async def test_ctrl_c_ends_an_attachment_without_a_terminal(agent: StreamingAgent) -> None:
    async def print_on(command: RemoteCommand, _: list[str]) -> CommandResult:
        assert command.stdout is not None
        await command.stdout.send_all(b"up")
        await trio.sleep_forever()
        raise AssertionError

    agent.attached = print_on
    async with started_cli(agent.root_dir, "attach", "web") as process:
        assert process.stdout is not None
        assert await process.stdout.receive_some() == b"up"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130


async def test_an_ended_pod_and_a_container_that_does_not_run_are_refused(agent: StreamingAgent) -> None:
    agent.refusal = HTTPError(500, "container main not found in pod web-node_default")
    done = await run_cli(agent.root_dir, "attach", "-q", "web")
    assert done.returncode == 1
    assert done.stderr.endswith(b": container main of pod default/web-node has not been created yet\n")
    agent.pods = [a_pod(phase="Failed")]
    done = await run_cli(agent.root_dir, "attach", "web")
    assert b"cannot attach a container in a completed pod; current phase is Failed" in done.stderr


# -- detach keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "passed", "complete"),
    [
        ([b"abc"], b"abc", False),
        ([b"a\x10\x11b"], b"a", True),
        ([b"a\x10", b"\x11"], b"a", True),
        ([b"\x10", b"x"], b"\x10x", False),
        ([b"\x10\x10\x11"], b"\x10", True),
        ([b"\x11\x10"], b"\x11", False),
    ],
)
def test_keys_are_held_back_only_while_they_may_be_the_detach_keys(
    typed: list[bytes], passed: bytes, complete: bool
) -> None:
    keys, seen, found = DetachKeys("ctrl-p,ctrl-q"), b"", False
    for data in typed:
        more, found = keys.feed(data)
        seen += more
    assert (seen, found) == (passed, complete)


def test_detach_keys_may_be_characters() -> None:
    assert DetachKeys("q,ctrl-]").feed(b"aq\x1d") == (b"a", True)


@pytest.mark.parametrize("text", ["", "ctrl-", "ctrl-1", "ctrl-p,", "alt-x", "é"])
def test_other_detach_keys_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match="--detach-keys"):
        DetachKeys(text)
