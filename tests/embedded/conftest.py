"""A node per test. At its end nothing may be left: no process, no mount, no cgroup."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cgroup_folders import cgroups_with
from tests.embedded.runtime_node import Node, is_alive, mounts_with, running_node, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    root = tmp_path / "runtime"
    async with running_node(root, tmp_path / "logs") as node:
        keeper = node.keeper_pid()
        yield node
        with trio.move_on_after(30, shield=True):
            await node.remove_everything()
            assert await node.runtime.shutdown()
    await wait_until(lambda: not is_alive(keeper), "the keeper has ended")
    assert mounts_with(str(root)) == []
    assert cgroups_with(hashlib.sha256(str(root).encode()).hexdigest()[:8]) == []
    assert list((root / "containers").iterdir()) == []
    assert list((root / "removing").iterdir()) == []
