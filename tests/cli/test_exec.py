"""`trikubelet exec` as a process with pipes and with a terminal, on an agent that the test plays."""

from __future__ import annotations

import os
import signal
import termios
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cli.conftest import a_pod, run_command
from tests.cli.streaming_agent import (
    StreamingAgent,
    arguments_of,
    run_cli,
    started_cli,
    streaming_agent,
    terminal,
)
from trikubelet.cli.failures import CommandError
from trikubelet.http.messages import HTTPError
from trikubelet.http.streaming.command import CommandResult, Exited, Failed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trikubelet.http.streaming.remote_command import RemoteCommand


@pytest.fixture
async def agent(root_dir: Path) -> AsyncIterator[StreamingAgent]:
    async with streaming_agent(root_dir) as agent:
        yield agent


# -- pipes -------------------------------------------------------------------------------------------------------------


async def test_a_command_has_its_arguments_and_its_outputs_apart(agent: StreamingAgent) -> None:
    script = "echo out $1; echo err >&2"
    done = await run_cli(agent.root_dir, "exec", "web", "--", "sh", "-c", script, "--", "-n x")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out -n x\n", b"err\n")


async def test_the_exit_code_is_the_commands(agent: StreamingAgent) -> None:
    done = await run_cli(agent.root_dir, "exec", "web", "--", "sh", "-c", "exit 42")
    assert (done.returncode, done.stderr) == (42, b"command terminated with exit code 42\n")


async def test_stdin_goes_to_the_command_to_its_end(agent: StreamingAgent) -> None:
    data = bytes(range(256)) * 4000
    done = await run_cli(agent.root_dir, "exec", "-i", "web", "--", "cat", stdin=data)
    assert (done.returncode, done.stdout == data) == (0, True), done.stderr


async def test_a_file_as_stdin_is_read_to_its_end(agent: StreamingAgent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from a file\n")
    with (tmp_path / "file").open("rb") as file:
        words = arguments_of(agent.root_dir, "exec", "-i", "web", "--", "cat")
        done = await trio.run_process(words, stdin=file, capture_stdout=True)
    assert done.stdout == b"from a file\n"


async def test_without_i_the_command_has_no_stdin(agent: StreamingAgent) -> None:
    done = await run_cli(agent.root_dir, "exec", "web", "--", "true", stdin=b"nobody reads this")
    assert done.returncode == 0
    query = agent.requests[-1].query
    assert {name: query.get(name) for name in ("input", "output", "error", "tty")} == {
        "input": None,
        "output": ["1"],
        "error": ["1"],
        "tty": None,
    }


async def test_output_beyond_every_buffer_arrives(agent: StreamingAgent) -> None:
    done = await run_cli(agent.root_dir, "exec", "web", "--", "head", "-c", "20000000", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 20_000_000)


async def test_a_reader_that_has_enough_ends_the_command_quietly(agent: StreamingAgent) -> None:
    async with started_cli(agent.root_dir, "exec", "web", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert (await process.stdout.receive_some(2)) == b"y\n"
        await process.stdout.aclose()
        assert await process.wait() != 0
        assert await process.stderr.receive_some() == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_session_and_the_command(agent: StreamingAgent, number: signal.Signals) -> None:
    ended = trio.Event()

    async def wait(command: RemoteCommand, _: list[str]) -> CommandResult:
        assert command.stdout is not None
        await command.stdout.send_all(b"up")
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    agent.commands["wait"] = wait
    async with started_cli(agent.root_dir, "exec", "web", "--", "wait") as process:
        assert process.stdout is not None
        assert await process.stdout.receive_some() == b"up"
        process.send_signal(number)
        assert await process.wait() == 128 + number
        await ended.wait()


# -- what is meant -----------------------------------------------------------------------------------------------------


async def test_the_default_container_is_named_when_there_are_others(agent: StreamingAgent) -> None:
    pod = a_pod()
    pod["spec"]["containers"].append({"name": "side", "image": "x:1"})
    pod["spec"]["initContainers"] = [{"name": "first", "image": "x:1"}]
    agent.pods = [pod]
    done = await run_cli(agent.root_dir, "exec", "web", "--", "true")
    assert done.stderr == b'Defaulted container "main" out of: main, side, first (init)\n'
    assert agent.requests[-1].path == "/exec/default/web-node/main"
    assert (await run_cli(agent.root_dir, "exec", "-q", "web", "--", "true")).stderr == b""
    assert (await run_cli(agent.root_dir, "exec", "web", "-c", "side", "--", "true")).stderr == b""
    assert agent.requests[-1].path == "/exec/default/web-node/side"
    done = await run_cli(agent.root_dir, "exec", "web", "-c", "x", "--", "true")
    assert b"container x is not valid for pod web-node out of: main, side, first (init)" in done.stderr


async def test_an_unknown_pod_is_said(agent: StreamingAgent) -> None:
    done = await run_cli(agent.root_dir, "exec", "nobody", "--", "true")
    assert (done.returncode, done.stderr) == (1, b"Error: the agent has no pod nobody: it has default/web-node\n")


async def test_a_pod_that_has_ended_runs_nothing(agent: StreamingAgent) -> None:
    agent.pods = [a_pod(phase="Succeeded")]
    done = await run_cli(agent.root_dir, "exec", "web", "--", "true")
    assert b"cannot exec into a container in a completed pod; current phase is Succeeded" in done.stderr


async def test_a_container_that_does_not_run_is_explained(agent: StreamingAgent) -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    status = {"name": "main", "image": "x:1", "imageID": "", "ready": False, "restartCount": 1, "state": waiting}
    agent.pods = [a_pod(containerStatuses=[status])]
    agent.refusal = HTTPError(500, 'container not found ("main")')
    done = await run_cli(agent.root_dir, "exec", "web", "--", "true")
    assert done.returncode == 1
    assert done.stderr.decode() == (
        'Error: container not found ("main"): container main of pod default/web-node '
        "is waiting to start: CrashLoopBackOff: back-off 10s\n"
    )


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('unable to start container process: exec: "x": executable file not found in $PATH: unknown', 127),
        ('unable to start container process: exec: "/x": stat /x: no such file or directory', 127),
        ('unable to start container process: exec: "/etc/passwd": permission denied', 126),
        ("the runtime is away: no such file or directory", 1),
    ],
)
async def test_a_command_that_cannot_be_run_has_a_shells_exit_code(
    agent: StreamingAgent, message: str, code: int
) -> None:
    async def fail(_: RemoteCommand, __: list[str]) -> CommandResult:
        return Failed(message)

    agent.commands["x"] = fail
    done = await run_cli(agent.root_dir, "exec", "web", "--", "x")
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.decode() == f"Error: Internal error occurred: {message}\n"


@pytest.mark.parametrize("words", [["web", "ls"], ["web"], ["web", "--"]])
def test_a_command_stands_behind_two_dashes(words: list[str]) -> None:
    outcome = run_command("exec", *words)
    assert outcome.code == 2


async def test_without_an_agent_there_is_one_sentence(root_dir: Path) -> None:
    done = await run_cli(root_dir, "exec", "web", "--", "true")
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: no agent answers on ")


async def test_an_agent_that_dies_is_a_failure(agent: StreamingAgent) -> None:
    async with started_cli(agent.root_dir, "exec", "web", "--", "sh", "-c", "echo up; exec sleep 100") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert await process.stdout.receive_some() == b"up\n"
        agent.stopping.set()
        assert await process.wait() == 1
        assert b"the connection ended before the server said how the command ended" in (
            await process.stderr.receive_some()
        )


# -- a terminal --------------------------------------------------------------------------------------------------------


async def _shell(command: RemoteCommand, _words: list[str]) -> CommandResult:
    """Prompts, tells sizes when asked by a line "size", and ends with a line "exit" or Ctrl-C."""
    stdin, stdout, resizes = command.stdin, command.stdout, command.resizes
    assert stdin is not None
    assert stdout is not None
    assert resizes is not None
    await stdout.send_all(b"$ ")
    typed = b""
    while data := await stdin.receive_some():
        await stdout.send_all(data)
        typed += data
        if b"\x03" in typed:
            return Exited(130)
        while b"\r" in typed:
            line, _, typed = typed.partition(b"\r")
            if line == b"exit":
                return Exited(7)
            if line == b"size":
                size = await resizes.receive()
                await stdout.send_all(f"\r\n{size.width}x{size.height}\r\n$ ".encode())
    return Exited(1)


async def test_a_shell_on_a_terminal_prompts_and_gives_the_terminal_back(agent: StreamingAgent) -> None:
    agent.commands["bash"] = _shell
    async with terminal(agent.root_dir, "exec", "-it", "web", "--", "bash") as person:
        before = person.modes()
        await person.until(b"$ ")
        assert person.is_raw
        await person.type(b"exit\r")
        assert await person.process.wait() == 7
        assert person.modes() == before
        await person.until(b"command terminated with exit code 7\r\n")
    query = agent.requests[-1].query
    assert (query["tty"], "error" in query) == (["1"], False)


async def test_ctrl_c_is_a_key_for_the_command(agent: StreamingAgent) -> None:
    agent.commands["bash"] = _shell
    async with terminal(agent.root_dir, "exec", "-it", "web", "--", "bash") as person:
        await person.until(b"$ ")
        await person.type(b"\x03")
        assert await person.process.wait() == 130
        await person.until(b"command terminated with exit code 130")


async def test_the_command_knows_the_terminals_size(agent: StreamingAgent) -> None:
    agent.commands["bash"] = _shell
    async with terminal(agent.root_dir, "exec", "-it", "web", "--", "bash", columns=93, lines=31) as person:
        await person.until(b"$ ")
        await person.type(b"size\r")
        await person.until(b"93x31\r\n$ ")
        person.resize(columns=120, lines=40)
        await person.type(b"size\r")
        await person.until(b"120x40\r\n$ ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
async def test_the_terminal_is_given_back_after_a_signal(agent: StreamingAgent, number: signal.Signals) -> None:
    agent.commands["bash"] = _shell
    async with terminal(agent.root_dir, "exec", "-it", "web", "--", "bash") as person:
        before = person.modes()
        await person.until(b"$ ")
        assert person.modes() != before
        person.process.send_signal(number)
        assert await person.process.wait() == 128 + number
        assert person.modes() == before


async def test_the_terminal_is_given_back_when_the_agent_dies(agent: StreamingAgent) -> None:
    agent.commands["bash"] = _shell
    async with terminal(agent.root_dir, "exec", "-it", "web", "--", "bash") as person:
        before = person.modes()
        await person.until(b"$ ")
        agent.stopping.set()
        assert await person.process.wait() == 1
        assert person.modes() == before
        await person.until(b"Error: ")


async def test_a_terminal_is_raw_again_after_a_stop(agent: StreamingAgent) -> None:
    agent.commands["bash"] = _shell
    async with terminal(agent.root_dir, "exec", "-it", "web", "--", "bash") as person:
        cooked = person.modes()
        await person.until(b"$ ")
        person.process.send_signal(signal.SIGSTOP)
        termios.tcsetattr(person._slave, termios.TCSANOW, cooked)
        person.process.send_signal(signal.SIGCONT)
        while not person.is_raw:
            await trio.sleep(0.01)


async def test_t_without_a_terminal_is_said_and_done_without(agent: StreamingAgent) -> None:
    done = await run_cli(agent.root_dir, "exec", "-it", "web", "--", "cat", stdin=b"x")
    assert (done.returncode, done.stdout) == (0, b"x")
    assert done.stderr == b"Unable to use a TTY - input is not a terminal or the right kind of file\n"
    assert "tty" not in agent.requests[-1].query


async def test_nobody_elses_descriptors_become_non_blocking(agent: StreamingAgent) -> None:
    """The shell that started the command goes on with the same terminal."""
    agent.commands["bash"] = _shell
    async with terminal(agent.root_dir, "exec", "-it", "web", "--", "bash") as person:
        await person.until(b"$ ")
        assert os.get_blocking(person._slave)


def test_errors_have_exit_codes() -> None:
    assert (CommandError("x").exit_code, CommandError("x", 127).exit_code) == (1, 127)
