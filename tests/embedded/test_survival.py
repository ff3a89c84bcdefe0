"""Agents and keepers that die, folders that vanish, records that break."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.runtime_node import Node, children_named, is_alive, running_node, wait_until
from trikubelet.embedded.keeper import linux
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.root

FAULTS = (
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGSTKFLT, signal.SIGRTMIN, signal.SIGRTMAX),
)
"""Signals that say something of the process itself, stop it, or have no meaning that anybody sends by mistake."""


@asynccontextmanager
async def ending_node(folder: Path) -> AsyncIterator[Node]:
    """A node on `folder` that takes everything with it at its end."""
    async with running_node(folder / "runtime", folder / "logs") as node:
        try:
            yield node
        finally:
            with trio.move_on_after(30, shield=True):
                await node.remove_everything()
                await node.runtime.shutdown()


async def start_agent(folder: Path, script: str, nursery: trio.Nursery, *more: str) -> tuple[trio.Process, str]:
    """Another agent's process and the container that it started."""
    import subprocess

    command = [sys.executable, "-m", "tests.embedded.agent_process", str(folder), script, *more]
    run = functools.partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
    agent: trio.Process = await nursery.start(run)
    assert agent.stdout is not None
    output = b""
    while b"container=" not in output or not output.endswith(b"\n"):
        output += await agent.stdout.receive_some()
    return agent, output.decode().split("container=")[1].strip()


async def test_a_new_agent_adopts_containers_with_every_line_of_the_time_between(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        f"for i in $(seq 1 59); do echo line-$i; sleep 0.01; done; until [ -e {go} ]; do sleep 0.01; done; "
        "echo line-60; exit 7"
    )
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            agent, container = await start_agent(tmp_path, script, nursery)
            os.kill(agent.pid, signal.SIGKILL)
    exit_file = tmp_path / "runtime" / "containers" / container / "exit.json"
    assert not exit_file.exists()
    keeper = json.loads((tmp_path / "runtime" / "keeper.json").read_text())["pid"]
    (pid,) = children_named("bash", keeper)
    seen_by_it = Path(f"/proc/{pid}/root{go}")
    seen_by_it.parent.mkdir(parents=True, exist_ok=True)
    seen_by_it.touch()
    await wait_until(exit_file.exists, "the container ended while nobody was there")
    async with ending_node(tmp_path) as node:
        ended = await node.ended(container)
        assert ended.exit_code == 7
        assert ended.out == "".join(f"line-{number}\n" for number in range(1, 61))


async def test_stray_signals_end_no_keeper_and_containers_have_all_of_theirs(tmp_path: Path) -> None:
    async with ending_node(tmp_path) as node:
        container = await node.launch(await node.sandbox(), ["sh", "-c", "grep Sig /proc/self/status; sleep 1000"])
        await node.wait_for_output(container, "SigIgn")
        keeper = node.keeper_pid()
        for number in sorted(signal.Signals):
            if number not in (signal.SIGKILL, signal.SIGSTOP, *FAULTS):
                os.kill(keeper, number)
        told = await node.exec(container, ["grep", "SigIgn", "/proc/self/status"])
        (of_container,) = (line for _, _, line in node.log(container) if line.startswith("SigIgn"))
        for shown in (told.stdout.decode(), of_container):
            ignored = int(
                shown.split()[1], 16
            )  # signals 32 and 33, the C library's, come from whoever started the tests
            assert not ignored & sum(1 << (number - 1) for number in linux.IGNORED_SIGNALS)
        assert node.keeper_pid() == keeper
        assert is_alive(keeper)


async def test_a_new_agent_hears_the_end_of_an_adopted_container(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            agent, container = await start_agent(
                tmp_path, "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done", nursery
            )
            os.kill(agent.pid, signal.SIGKILL)
    async with ending_node(tmp_path) as node:
        status = await node.status(container)
        assert status.state == v1.ContainerState.CONTAINER_RUNNING
        assert is_alive(node.pid(container))
        await node.wait_for_output(container, "up")
        await node.stop(container, 20)
        assert (await node.status(container)).exit_code == 9


async def test_a_killed_keeper_takes_its_containers_along_and_a_new_one_says_so(tmp_path: Path) -> None:
    async with ending_node(tmp_path) as node:
        container = await node.launch(await node.sandbox(), ["sleep", "1000"])
        pid, keeper = node.pid(container), node.keeper_pid()
        os.kill(keeper, signal.SIGKILL)
        ended = await node.ended(container)
        assert (ended.exit_code, ended.status.reason) == (255, "Unknown")
        assert not is_alive(pid)
        assert node.keeper_pid() != keeper
        sandbox = (await node.cri.list_pod_sandbox(v1.ListPodSandboxRequest())).items[0]
        assert sandbox.state == v1.PodSandboxState.SANDBOX_NOTREADY
        assert (await node.run(await node.sandbox("next"), ["true"])).exit_code == 0


async def test_a_keeper_whose_folder_is_deleted_ends_with_its_containers(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        container = await node.launch(await node.sandbox(), ["sleep", "1000"])
        pid, keeper = node.pid(container), node.keeper_pid()
    shutil.rmtree(tmp_path / "runtime")
    await wait_until(lambda: not is_alive(pid) and not is_alive(keeper), "keeper and container are gone")


async def test_a_broken_record_is_moved_aside_and_its_process_ended(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        sandbox = await node.sandbox()
        broken, whole = await node.launch(sandbox, ["sleep", "1000"]), await node.launch(sandbox, ["sleep", "1000"])
        pid = node.pid(broken)
    record = tmp_path / "runtime" / "containers" / broken / "container.json"
    record.write_text(record.read_text()[:100])
    async with ending_node(tmp_path) as node:
        listed = (await node.cri.list_containers(v1.ListContainersRequest())).containers
        assert [container.id for container in listed] == [whole]
        await wait_until(lambda: not is_alive(pid), "the container without a record was ended")
        assert [path.name[:64] for path in (tmp_path / "runtime" / "corrupt").iterdir()] == [broken]


async def test_two_agents_find_one_keeper(tmp_path: Path) -> None:
    async with ending_node(tmp_path) as first, running_node(tmp_path / "runtime", tmp_path / "logs") as second:
        assert first.keeper_pid() == second.keeper_pid()


async def test_the_folder_is_for_its_owner_only_and_the_keeper_names_itself(tmp_path: Path) -> None:
    async with ending_node(tmp_path) as node:
        root = tmp_path / "runtime"
        assert root.stat().st_mode & 0o777 == 0o700
        assert json.loads((root / "keeper.json").read_text())["pid"] == node.keeper_pid()
        assert not await refuses_to_end(node)


async def refuses_to_end(node: Node) -> bool:
    """Whether the keeper would end while a container runs."""
    await node.launch(await node.sandbox(), ["sleep", "1000"])
    return await node.runtime.shutdown()
