"""Commands with streams or a terminal in running containers (CRI Exec), without the wire."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import trio
from grpclib import GRPCError

from tests.cgroup_folders import cgroups_with
from tests.embedded.remote import OUTPUT, PLAIN, TTY, executing
from tests.embedded.runtime_node import (
    descriptors,
    is_alive,
    processes_with,
    running_node,
    wait_for_descriptors,
    wait_until,
)
from tests.embedded.test_endings import ESCAPER
from tests.embedded.test_survival import ending_node, start_agent
from tests.examples import examples
from trikubelet.http.streaming.command import CommandStreams, Exited, Failed, TerminalSize
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.remote import Client
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
async def container(node: Node) -> str:
    return await node.launch(await node.sandbox(), ["sleep", "1000"], env={"TERM": "dumb"})


async def run(node: Node, container: str, script: str, streams: CommandStreams = OUTPUT) -> Client:
    async with executing(node, container, ["bash", "-c", script], streams) as client:
        pass
    return client


async def test_what_is_typed_comes_back_until_stdin_is_closed(node: Node, container: str) -> None:
    async with executing(node, container, ["cat"]) as client:
        await client.type(b"hello\n")
        await client.wait_for(b"hello\n")
        assert not client.finished.is_set()
        await client.end_stdin()
    assert (bytes(client.out), client.result) == (b"hello\n", Exited(0))


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 1", 1), ("exit 137", 137), ("kill -SEGV $$", 139)])
async def test_the_client_hears_how_the_command_ended(node: Node, container: str, script: str, code: int) -> None:
    assert (await run(node, container, script)).result == Exited(code)


async def test_both_outputs_stay_apart_and_arrive_whole(node: Node, container: str) -> None:
    client = await run(node, container, "seq 1 50000; echo oops >&2")
    assert bytes(client.out) == "".join(f"{number}\n" for number in range(1, 50001)).encode()
    assert bytes(client.err) == b"oops\n"


async def test_streams_that_were_not_asked_for_are_the_null_device(node: Node, container: str) -> None:
    script = "for i in 0 1 2; do readlink /proc/$$/fd/$i; done > /tmp/streams; cat /tmp/streams >&2"
    client = await run(node, container, script, CommandStreams(stderr=True))
    links = bytes(client.err).decode().split()
    assert links[:2] == ["/dev/null", "/tmp/streams"]
    assert links[2].startswith("pipe:")


async def test_a_missing_command_is_a_failure_that_names_it(node: Node, container: str) -> None:
    async with executing(node, container, ["no-such-command"]) as client:
        pass
    assert isinstance(client.result, Failed)
    assert 'exec: "no-such-command": executable file not found in $PATH' in client.result.message


async def test_ten_mebibytes_through_stdin_come_back_unchanged(node: Node, container: str) -> None:
    data = os.urandom(10 << 20)
    async with executing(node, container, ["cat"]) as client:
        await client.type(data)
        await client.end_stdin()
    assert hashlib.sha256(client.out).digest() == hashlib.sha256(data).digest()
    assert client.result == Exited(0)


async def test_a_slow_client_makes_the_command_wait_and_misses_nothing(node: Node, container: str) -> None:
    async with executing(node, container, ["seq", "1", "60000"], OUTPUT, reading=False) as client:
        await trio.sleep(0.3)
        assert client.result is None
        await client.read()
    assert len(client.out.split()) == 60000
    assert client.result == Exited(0)


async def test_a_slow_client_gets_what_the_command_had_written_when_it_ended(node: Node, container: str) -> None:
    async with executing(node, container, ["seq", "1", "5000"], OUTPUT, reading=False) as client:
        await trio.sleep(0.8)  # much longer than a command's leftovers are listened to
        await client.read()
    assert len(client.out.split()) == 5000


async def test_a_command_that_leaves_something_behind_does_not_hold_the_client(node: Node, container: str) -> None:
    started = trio.current_time()
    client = await run(node, container, "sleep 1000 & echo $!")
    assert trio.current_time() - started < 5
    left_behind = bytes(client.out).decode().strip()
    reply = await node.exec(container, ["cat", f"/proc/{left_behind}/comm"])
    assert reply.stdout == b"sleep\n"


async def test_a_process_that_closes_its_stdin_does_not_end_the_session(node: Node, container: str) -> None:
    async with executing(node, container, ["bash", "-c", "exec 0<&-; echo closed; sleep 0.3; echo end"]) as client:
        await client.wait_for(b"closed")
        with pytest.raises(trio.BrokenResourceError):
            await client.type(b"x" * 1000, block=1)
    assert (bytes(client.out), client.result) == (b"closed\nend\n", Exited(0))


# -- terminals ---------------------------------------------------------------------------------------------------------


async def test_a_terminal_is_one_and_has_the_size_that_the_client_gave(node: Node, container: str) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && tty; echo $TERM; read go; stty size"
    async with executing(node, container, ["bash", "-c", script], TTY) as client:
        await client.wait_for(b"xterm")
        await client.sizes.send(TerminalSize(width=133, height=42))
        await trio.sleep(0.05)
        await client.type(b"go\r")
        await client.wait_for(b"42 133")
    assert b"/dev/pts/" in client.out
    assert client.result == Exited(0)


async def test_a_resize_reaches_the_process_as_a_signal(node: Node, container: str) -> None:
    script = "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.02; done"
    async with executing(node, container, ["bash", "-c", script], TTY) as client:
        await client.wait_for(b"ready")
        await client.sizes.send(TerminalSize(width=0, height=0))
        await client.sizes.send(TerminalSize(width=61, height=17))
    assert b"17 61" in client.out
    assert client.result == Exited(3)


async def test_control_c_interrupts_the_foreground_and_the_shell_goes_on(node: Node, container: str) -> None:
    async with executing(node, container, ["bash", "--norc", "-i"], TTY) as client:
        # Said by the one that is to be interrupted: by then it is in the foreground.
        await client.type(b"sh -c 'echo be\"\"gin; exec sleep 1000'\r")
        await client.wait_for(b"begin")
        await client.type(b"\x03")
        await client.type(b"echo code:$?\r")
        await client.wait_for(b"code:130")
        await client.type(b"exit 7\r")
    assert client.result == Exited(7)


async def test_everything_written_to_a_terminal_arrives(node: Node, container: str) -> None:
    client = await run(node, container, "seq 1 30000", CommandStreams(stdout=True, tty=True))
    assert client.out.split() == [str(number).encode() for number in range(1, 30001)]


async def test_a_terminal_that_nobody_reads_does_not_stop_the_command(node: Node, container: str) -> None:
    client = await run(node, container, "seq 1 30000; exit 5", CommandStreams(stdin=True, tty=True))
    assert client.result == Exited(5)


async def test_the_end_of_stdin_does_not_end_a_terminal(node: Node, container: str) -> None:
    async with executing(node, container, ["bash", "-c", "sleep 0.3; echo still here"], TTY) as client:
        await client.end_stdin()
    assert b"still here" in client.out


@pytest.mark.parametrize("streams", [PLAIN, TTY])
async def test_another_user_can_open_its_streams_by_name(node: Node, streams: CommandStreams) -> None:
    security = v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=1234))
    container = await node.launch(await node.sandbox(), ["sleep", "1000"], security=security)
    client = await run(node, container, "id -u > /dev/stdout && echo no > /dev/null; exit $?", streams)
    assert bytes(client.out).strip() == b"1234"
    assert client.result == Exited(0)


async def test_a_false_terminal_multiplexer_is_refused(node: Node, container: str) -> None:
    await node.exec(container, ["sh", "-c", "rm /dev/ptmx; ln -s /dev/zero /dev/ptmx"])
    client = await run(node, container, "true", TTY)
    assert isinstance(client.result, Failed)
    assert "not the terminal multiplexer" in client.result.message


# -- the end of either side --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [PLAIN, TTY])
async def test_a_client_that_goes_away_takes_everything_along(
    node: Node, container: str, streams: CommandStreams
) -> None:
    marker = f"escaper-{node.keeper_pid()}-{streams.tty}"
    async with executing(node, container, ["python3", "-c", ESCAPER, marker], streams) as client:
        await client.wait_for(b"running")
        assert processes_with(marker)
        await client.leave()
    await wait_for_the_end(container, marker)
    assert client.result is None
    assert (await node.status(container)).state == v1.ContainerState.CONTAINER_RUNNING


@pytest.mark.parametrize("mode", [v1.NamespaceMode.POD, v1.NamespaceMode.NODE])
async def test_a_client_that_goes_away_takes_everything_along_in_a_shared_pid_namespace(
    node: Node, mode: v1.NamespaceMode
) -> None:
    options = v1.NamespaceOption(pid=mode)
    security = v1.LinuxContainerSecurityContext(namespace_options=options)
    container = await node.create(await node.sandbox(options=options), ["sleep", "1000"], security=security)
    node.cri._inventory.container(container).spec["pid_namespace"] = {0: "pod", 2: "node"}[int(mode)]
    await node.start(container)
    marker = f"escaper-{node.keeper_pid()}-{mode.name}"
    async with executing(node, container, ["python3", "-c", ESCAPER, marker]) as client:
        await client.wait_for(b"running")
        await client.leave()
    await wait_for_the_end(container, marker)


async def test_an_agent_that_is_killed_takes_its_clients_commands_along(tmp_path: Path) -> None:
    marker = f"escaper-{tmp_path.name}"
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            agent, container = await start_agent(tmp_path, "sleep 1000", nursery, marker)
            assert processes_with(marker)
            os.kill(agent.pid, signal.SIGKILL)
    await wait_for_the_end(container, marker)
    async with ending_node(tmp_path) as node:
        assert (await node.status(container)).state == v1.ContainerState.CONTAINER_RUNNING


async def wait_for_the_end(container: str, marker: str) -> None:
    """Until nothing of a container's commands is left. A look at the processes alone may miss one that is being forked:
    their cgroup is gone only when they are."""
    await wait_until(lambda: command_groups(container) == [], "the commands' cgroups are gone")
    await wait_until(lambda: processes_with(marker) == [], "the commands' processes are gone")


def command_groups(container: str) -> list[Path]:
    return [group for group in cgroups_with("exec-") if container in str(group)]


async def test_a_command_has_a_cgroup_of_its_own_within_the_containers(node: Node, container: str) -> None:
    group = node.cri._inventory.container(container).cgroup
    if group is None or not group["unified"]:
        pytest.skip("this machine gives containers no v2 cgroup")
    client = await run(node, container, "grep ^0:: /proc/self/cgroup")
    assert f"/{container}/exec-" in bytes(client.out).decode()


async def test_what_a_command_left_in_the_background_outlives_the_agent(tmp_path: Path) -> None:
    options = v1.NamespaceOption(pid=v1.NamespaceMode.NODE)
    security = v1.LinuxContainerSecurityContext(namespace_options=options)
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        container = await node.create(await node.sandbox(options=options), ["sleep", "1000"], security=security)
        node.cri._inventory.container(container).spec["pid_namespace"] = "node"
        await node.start(container)
        left_behind = int((await run(node, container, "sleep 1000 > /dev/null 2>&1 & echo $!")).out)
    async with ending_node(tmp_path) as node:
        await node.exec(container, ["true"])  # by then the keeper has seen the first agent go
        assert is_alive(left_behind)
    assert not is_alive(left_behind)


async def test_a_command_ends_with_its_container(node: Node, container: str) -> None:
    async with executing(node, container, ["bash", "-c", "echo up; sleep 1000"]) as client:
        await client.wait_for(b"up")
        await node.stop(container, 0)
    assert client.result == Exited(137)


async def test_a_container_that_has_ended_takes_no_command(node: Node, container: str) -> None:
    await node.stop(container, 0)
    client = await run(node, container, "true")
    assert isinstance(client.result, Failed)


async def test_two_hundred_commands_leave_nothing(node: Node, container: str) -> None:
    keeper = node.keeper_pid()
    await run(node, container, "true")
    await wait_until(lambda: command_groups(container) == [], "the first command's cgroup is gone")
    before = descriptors(os.getpid(), keeper)
    async with trio.open_nursery() as nursery:
        limit = trio.CapacityLimiter(20)

        async def one(number: int) -> None:
            async with limit:
                client = await run(node, container, f"echo {number}; exit {number % 100}", TTY if number % 2 else PLAIN)
                assert (bytes(client.out).strip(), client.result) == (str(number).encode(), Exited(number % 100))

        for number in range(examples(200)):
            nursery.start_soon(one, number)
    await wait_for_descriptors(before, os.getpid(), keeper)
    await wait_until(lambda: command_groups(container) == [], "no cgroup is left")
    assert zombies_of(keeper) == []
    assert children_of(node.pid(container)) == []
    assert node.lifecycle.commands._running == {}


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def zombies_of(pid: int) -> list[int]:
    return [child for child in children_of(pid) if not is_alive(child)]


async def test_what_hinders_a_command_on_its_way_into_the_container_is_told(node: Node) -> None:
    script = "cd /; rmdir /made; touch /made; echo ready; sleep 1000"
    container = await node.launch(await node.sandbox(), ["sh", "-c", script], working_dir="/made")
    await node.wait_for_output(container, "ready")
    with pytest.raises(GRPCError) as failure:
        await node.exec(container, ["true"])
    assert failure.value.message == 'working directory "/made": not a directory'


ENTERER = """
import os, sys
from types import SimpleNamespace
from trikubelet.embedded.keeper import child, context

spec = {"cwd": sys.argv[1]}
about = SimpleNamespace(folder=None, machine=SimpleNamespace(isolated=False))
print(child._enter_working_folder(spec, about))
os.setresuid(1000, 1000, 1000)
print(child._enter_working_folder(spec, about), os.path.samefile(".", sys.argv[1]))
"""


@pytest.mark.parametrize("below", ["", "below"])
def test_a_working_directory_that_is_closed_to_root_is_entered_as_the_user(below: str) -> None:
    """As a file system of FUSE is: here for a root that may not look at the files of others."""
    rights = "-dac_override,-dac_read_search"
    command = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", sys.executable, "-c", ENTERER]
    with TemporaryDirectory() as name:
        closed = Path(name)
        (closed / "below").mkdir()
        for folder in (closed, closed / "below"):
            os.chown(folder, 1000, 1000)
            folder.chmod(0o700)
        done = subprocess.run([*command, str(closed / below)], capture_output=True, text=True, cwd=REPOSITORY)
    assert (done.stdout, done.stderr) == ("False\nTrue True\n", "")
