"""A fault in any task of the embedded runtime: containers run on, and the task works again after a while."""

from __future__ import annotations

import errno
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from grpclib import GRPCError

from tests.embedded.runtime_node import is_alive, running_node, wait_until
from tests.throwing import is_ours, may_fail, throw_into, tree
from trikubelet.embedded.lifecycle import Lifecycle
from trikubelet.embedded.records import RecordStore
from trikubelet.rpc.cri import v1
from trikubelet.supervision import FAULTS, faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trio.lowlevel import Task

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root


def of_the_runtime() -> Iterator[tuple[tuple[str, ...], Task]]:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    for path, task in tree(root):
        if any(name.startswith("trikubelet.embedded") for name in path):
            yield path, task


def places() -> Counter[tuple[str, ...]]:
    """Where there is something that may fail."""
    return Counter(path for path, task in of_the_runtime() if is_ours(task) and may_fail(task))


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _are_told(number: int) -> bool:
    return sum(faults.values()) == number


async def test_a_fault_in_any_task_is_that_tasks_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        sandbox = await node.sandbox()
        container = await node.launch(sandbox, ["/bin/sh", "-c", "while :; do sleep 0.1; done"])
        pid, before = node.pid(container), places()
        assert len(before) >= 4
        for path in before:
            [task] = [task for found, task in of_the_runtime() if found == path]
            told = sum(faults.values())
            throw_into(task)
            await wait_until(partial(_are_told, told + 1), f"the fault in {path[-1]} is told")
            await wait_until(lambda: places() == before, f"{path[-1]} works again after {FAULTS.first:g} s")
            assert (await node.exec(container, ["/bin/echo", "here"])).stdout == b"here\n"
            assert node.pid(container) == pid
            assert is_alive(pid)
        await node.remove_everything()
        assert await node.runtime.shutdown()


async def test_networks_about_which_nobody_thought_keep_no_runtime_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stumble(_: Lifecycle) -> None:
        raise TypeError("what does this plugin say?")

    monkeypatch.setattr(Lifecycle, "has_networks", lambda _: True)
    monkeypatch.setattr(Lifecycle, "reconcile_networks", stumble)
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        monkeypatch.undo()
        sandbox = await node.sandbox()
        container = await node.launch(sandbox, ["/bin/sh", "-c", "while :; do sleep 0.1; done"])
        assert (await node.exec(container, ["/bin/echo", "here"])).stdout == b"here\n"
        await node.remove_everything()
        assert await node.runtime.shutdown()


async def test_what_cannot_be_written_down_is_not_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the keeper has been asked for it by then."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sandbox = await node.sandbox()
    with monkeypatch.context() as disk:
        disk.setattr(RecordStore, "save_container", full)
        with pytest.raises(GRPCError, match="No space left"):
            await node.create(sandbox, ["true"])
        assert (await node.cri.list_containers(v1.ListContainersRequest())).containers == []
    assert (await node.run(sandbox, ["true"])).exit_code == 0
    with monkeypatch.context() as disk:
        disk.setattr(RecordStore, "save_sandbox", full)
        with pytest.raises(GRPCError, match="No space left"):
            await node.sandbox("second")
    assert (await node.lifecycle.keeper.request("list"))["sandboxes"] == [sandbox]
    assert names(node.runtime.root / "sandboxes") == [sandbox]
    assert len(names(node.runtime.root / "containers")) == 1
    await wait_until(lambda: names(node.runtime.root / "removing") == [], "what was made of them is deleted")
    assert (await node.run(await node.sandbox("second"), ["true"])).exit_code == 0
