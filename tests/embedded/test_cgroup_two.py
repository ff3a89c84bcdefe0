"""Containers on cgroup v2 alone: in a mount namespace without v1's hierarchies, where the machine has both."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
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
            hierarchies = [line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.split(":")[1]]
            told = any("not mounted here" in problem for problem in node.lifecycle.abilities.problems)
            assert told == bool(hierarchies), "v1's that exist though nobody sees them"
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


DISK = "/dev/loop7"
OPENED = (
    "for file; do for way in '<' '>'; do (eval \": $way$file\") 2>/dev/null && echo \"$way$file\"; done; done; true"
)
BY_MOUNT, BY_MKNOD, GIVEN = "/mnt/disk", "/disk", "/dev/disk"


def opening(*files: str) -> list[str]:
    return ["sh", "-c", f"mknod {BY_MKNOD} b 7 7; {OPENED}", "sh", *files]


def notes_on_devices(node: Node) -> list[str]:
    return [each for each in node.cri.capabilities()["notIsolated"] if "MKNOD" in each]


async def devices_are_its_own(folder: Path) -> None:
    async with node_on_v2(folder) as node:
        sandbox = await node.sandbox()
        files = (BY_MKNOD, BY_MOUNT, "/dev/zero")
        fields = {"mounts": [v1.Mount(container_path=BY_MOUNT, host_path=DISK)]}
        own = ["</dev/zero", ">/dev/zero"]
        found = await node.run(sandbox, opening(*files), **fields)
        assert found.out.splitlines() == own, found.records
        waiting = await node.launch(sandbox, ["sleep", "1000"], **fields)
        assert (await node.exec(waiting, opening(*files))).stdout.decode().splitlines() == own
        everything = await node.run(sandbox, opening(*files), security=PRIVILEGED, **fields)
        assert everything.out.splitlines() == [way + file for file in files for way in "<>"]
        device = v1.Device(container_path=GIVEN, host_path=DISK, permissions="r")
        given = await node.run(sandbox, opening(*files, GIVEN), devices=[device], **fields)
        reached = [f"<{BY_MKNOD}", f"<{BY_MOUNT}", *own, f"<{GIVEN}"]
        assert given.out.splitlines() == reached, "a device is its numbers, whatever file leads there"
        assert not notes_on_devices(node)
        assert node.lifecycle.abilities is not None
        node.lifecycle.abilities = attrs.evolve(node.lifecycle.abilities, devices_confined=False)
        assert notes_on_devices(node), "where the kernel takes no program that is told"


@pytest.mark.skipif(not Path(DISK).exists(), reason="needs a device")
async def test_a_container_opens_no_device_but_its_own(tmp_path: Path) -> None:
    await own_machine.run_there(devices_are_its_own, tmp_path)
