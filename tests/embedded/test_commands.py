"""Commands in running containers (ExecSync)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib import GRPCError
from grpclib.const import Status

from tests.embedded.runtime_node import processes_with, wait_until
from trikubelet.embedded import exec_sync
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root


@pytest.fixture
async def container(node: Node) -> str:
    return await node.launch(
        await node.sandbox(),
        ["sleep", "1000"],
        env={"COLOUR": "green"},
        working_dir="/usr",
        security=v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=1234)),
    )


async def test_a_command_returns_both_streams_and_its_exit_code(node: Node, container: str) -> None:
    reply = await node.exec(container, ["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (reply.stdout, reply.stderr, reply.exit_code) == (b"out\n", b"err\n", 7)


async def test_a_command_sees_the_container_as_its_own_process_does(node: Node, container: str) -> None:
    reply = await node.exec(container, ["sh", "-c", "echo $COLOUR; pwd; id -u; hostname; cat /proc/1/comm"])
    assert reply.stdout.decode().split() == ["green", "/usr", "1234", "pod-host", "sleep"]


async def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(node: Node, container: str) -> None:
    marker = f"slow-{node.keeper_pid()}"
    script = f"python3 -c 'import os,time; os.fork() or os.setsid(); time.sleep(1000)' {marker}"
    with pytest.raises(GRPCError) as failure:
        await node.exec(container, ["sh", "-c", f"{script} & {script}"], timeout=1)
    assert failure.value.status is Status.DEADLINE_EXCEEDED
    await wait_until(lambda: processes_with(marker) == [], "the command's processes are gone")
    assert (await node.status(container)).state == v1.ContainerState.CONTAINER_RUNNING


async def test_a_cancelled_command_is_killed(node: Node, container: str) -> None:
    marker = f"cancelled-{node.keeper_pid()}"
    with trio.move_on_after(0.5):
        await node.exec(container, ["python3", "-c", "import time; time.sleep(1000)", marker], timeout=0)
    await wait_until(lambda: processes_with(marker) == [], "the command is gone")


async def test_what_a_command_leaves_in_the_background_lives_on(node: Node, container: str) -> None:
    reply = await node.exec(container, ["sh", "-c", "sleep 1000 & echo $!"])
    assert (await node.exec(container, ["cat", f"/proc/{reply.stdout.decode().strip()}/comm"])).stdout == b"sleep\n"


async def test_output_beyond_the_limit_is_dropped(node: Node, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_sync, "OUTPUT_LIMIT", 1000)
    reply = await node.exec(container, ["sh", "-c", "head -c 500000 /dev/zero; echo end >&2"])
    assert (len(reply.stdout), reply.stderr, reply.exit_code) == (1000, b"end\n", 0)


async def test_a_missing_command_is_named(node: Node, container: str) -> None:
    with pytest.raises(GRPCError, match="executable file not found"):
        await node.exec(container, ["no-such-command"])


async def test_a_container_that_does_not_run_takes_no_command(node: Node, container: str) -> None:
    await node.stop(container, 0)
    with pytest.raises(GRPCError) as failure:
        await node.exec(container, ["true"])
    assert failure.value.status is Status.FAILED_PRECONDITION
