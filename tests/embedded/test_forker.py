"""The processes that everything is forked from: there are two, so that one may be killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.escapes.attack import start_fails
from tests.embedded.runtime_node import children_named, is_alive, wait_until

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root


def forkers(node: Node) -> list[int]:
    return children_named("trikube-forker", node.keeper_pid())


async def two_forkers(node: Node) -> list[int]:
    await wait_until(lambda: len(forkers(node)) == 2, "there are two")
    return forkers(node)


async def ended(pid: int) -> None:
    await wait_until(lambda: not is_alive(pid), "it has ended")


async def test_a_killed_one_is_replaced_while_containers_start(node: Node) -> None:
    sandbox = await node.sandbox()
    container = await node.launch(sandbox, ["sleep", "1000"])
    for _ in range(3):
        first, second = await two_forkers(node)
        os.kill(first, signal.SIGKILL)
        await ended(first)
        assert (await node.run(sandbox, ["sh", "-c", "exit 7"])).exit_code == 7
        assert (await node.exec(container, ["true"])).exit_code == 0
        assert second in await two_forkers(node)


async def test_the_spare_one_is_replaced(node: Node) -> None:
    first, second = await two_forkers(node)
    os.kill(second, signal.SIGKILL)
    await wait_until(lambda: not Path(f"/proc/{second}").exists(), "it has ended, and is collected")
    assert first in await two_forkers(node)


async def test_without_any_nothing_starts_until_all_has_ended(node: Node) -> None:
    sandbox = await node.sandbox()
    container = await node.launch(sandbox, ["sh", "-c", "while sleep 0.05; do echo alive; done"])
    keeper, both = node.keeper_pid(), await two_forkers(node)
    for pid in both:
        os.kill(pid, signal.SIGSTOP)
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: forkers(node) == [], "both have ended")
    await start_fails(node, await node.create(sandbox, ["true"]), "forks for the keeper")
    said = len(node.log(container))
    await wait_until(lambda: len(node.log(container)) > said, "what ran goes on")
    await node.stop(container, 0)
    await wait_until(lambda: node.keeper_pid() != keeper, "another keeper can start something")
    assert (await node.run(await node.sandbox("next"), ["true"])).exit_code == 0


async def test_they_have_no_descriptor_of_a_pod(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["sleep", "1000"])
    await node.exec(container, ["true"])
    for pid in await two_forkers(node):
        open_ones = {str(path.readlink()).split(":")[0] for path in Path(f"/proc/{pid}/fd").iterdir()}
        expected = {"/dev/null", f"/proc/{pid}/oom_score_adj", "/memfd", "socket"}
        assert open_ones <= expected
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) <= 6
    await trio.lowlevel.checkpoint()
