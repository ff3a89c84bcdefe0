"""Containers on cgroup v2 alone: in a mount namespace without v1's hierarchies, where the machine has both."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import own_machine
from tests.embedded.runtime_node import Node, running_node
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif("cgroup2" not in Path("/proc/mounts").read_text(), reason="needs cgroup v2"),
]

CGROUPS = "/sys/fs/cgroup"
PRIVILEGED = v1.LinuxContainerSecurityContext(privileged=True)


def have_v2_alone() -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    if f"{CGROUPS}/memory" in mounts or f"{CGROUPS}/unified" in mounts:
        for place in reversed([each for each in mounts if each == CGROUPS or each.startswith(f"{CGROUPS}/")]):
            own_machine.run("umount", place)
        own_machine.run("mount", "-t", "cgroup2", "none", CGROUPS)


@asynccontextmanager
async def node_on_v2(folder: Path) -> AsyncIterator[Node]:
    have_v2_alone()
    async with running_node(folder / "runtime", folder / "logs") as node:
        try:
            assert node.lifecycle.abilities is not None
            assert (node.lifecycle.abilities.cgroup_v2, node.lifecycle.abilities.cgroup_v1) == (True, ())
            yield node
        finally:
            await node.remove_everything()
            assert await node.runtime.shutdown()


SEE_GROUPS = f"cd {CGROUPS}; cat cgroup.procs | wc -l; mkdir nested 2>/dev/null && rmdir nested && echo written; true"


async def groups_are_seen(folder: Path) -> None:
    async with node_on_v2(folder) as node:
        sandbox = await node.sandbox()
        own = (await node.run(sandbox, ["sh", "-c", SEE_GROUPS])).out.split()
        assert own[1:] == [], "its own group can be read"
        assert int(own[0]) < 10
        everything = (await node.run(sandbox, ["sh", "-c", SEE_GROUPS], security=PRIVILEGED)).out.split()
        assert everything[1:] == ["written"], "a privileged container has the machine's groups"


async def test_a_container_sees_its_own_group_and_a_privileged_one_all(tmp_path: Path) -> None:
    await own_machine.run_there(groups_are_seen, tmp_path)
