"""A container that mounts a hierarchy of cgroup v1 for itself finds its own group there, and nothing above it.

When a process unshares its cgroup namespace, the groups that it is in become the roots of what it mounts. So a process
in the root group of a hierarchy would get the groups of the whole machine, and may write them as the machine's root.

| hole | here |
|---|---|
| CVE-2022-0492 (kernel): the release agent is written from a user namespace | kernels of then are not asked for; \
the file is in the root group alone, which no container is in: `test_its_own_group_is_all…` |
| containers are in no group of a hierarchy without limits (`freezer`, `blkio`) | \
`test_its_own_group_is_all…`, `test_every_process_of_a_pod…` |
"""

from __future__ import annotations

import select
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from grpclib import GRPCError, Status

from tests.cgroup_folders import cgroups_with
from tests.embedded.runtime_node import is_alive, processes_with, wait_until
from tests.patience import PATIENCE
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

SHARED_PID = v1.NamespaceOption(pid=v1.NamespaceMode.POD)
MADE_BY_ATTACK = "made-by-attack-41c7"
FOREIGN = "foreign-group-41c7"


def hierarchies() -> dict[str, Path]:
    """Mount points of v1, by the option that mounts the same hierarchy once more."""
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    names = {line.split(":")[1] for line in groups} - {""}
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, (kind, _, options) = line.split(" - ")[0].split(), line.split(" - ")[1].split(" ", 2)
        if kind == "cgroup":
            found.update({name: Path(fields[4]) for name in names if set(name.split(",")) <= set(options.split(","))})
    return found


def attack(hierarchy: str) -> list[str]:
    """Mounts it and writes whatever is in there, as a container with default rights can."""
    script = f"""
        mount -t cgroup -o {hierarchy} none /mnt || exit
        echo mounted
        find /mnt -name '{FOREIGN}*'
        mkdir /mnt/{MADE_BY_ATTACK}
        for state in /mnt/{FOREIGN}*/freezer.state; do [ -e $state ] && echo FROZEN > $state; done
        for file in /mnt/release_agent /mnt/{FOREIGN}*/tasks; do
            (echo 0 > $file) 2>/dev/null && echo written $file
        done
        echo tried
    """
    return ["unshare", "--user", "--map-root-user", "--mount", "--cgroup", "sh", "-c", script]


@contextmanager
def foreign_process(group: Path) -> Iterator[subprocess.Popen[str]]:
    """One that answers, in a group of its own."""
    group.mkdir()
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            if group.parent.name == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (group / name).write_text((group.parent / name).read_text())
            (group / "cgroup.procs").write_text(str(process.pid))
            try:
                yield process
            finally:
                process.kill()
                if (group / "freezer.state").exists():
                    (group / "freezer.state").write_text("THAWED")
    finally:
        group.rmdir()


def answers(process: subprocess.Popen[str]) -> bool:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("ping\n")
    process.stdin.flush()
    return bool(select.select([process.stdout], [], [], PATIENCE)[0]) and process.stdout.readline() == "ping\n"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def root_node(node: Node) -> Node:
    if node.cri.capabilities()["mode"] != "root":
        pytest.skip("a container there is root of nothing that the machine's groups belong to")
    return node


@pytest.mark.parametrize("hierarchy", sorted(hierarchies()))
@pytest.mark.parametrize("way", ["container", "exec"])
async def test_its_own_group_is_all_that_a_container_finds(
    root_node: Node, tmp_path: Path, hierarchy: str, way: str
) -> None:
    node, mounted = root_node, hierarchies()[hierarchy]
    with foreign_process(mounted / f"{FOREIGN}-{tmp_path.name}") as process:
        sandbox = await node.sandbox()
        if way == "container":
            container = await node.launch(sandbox, ["sh", "-c", '"$@"; sleep 1000', "sh", *attack(hierarchy)])
            await node.wait_for_output(container, "tried")
            said = "".join(text + "\n" for stream, _, text in node.log(container) if stream == "stdout")
        else:
            container = await node.launch(sandbox, ["sleep", "1000"])
            said = (await node.exec(container, attack(hierarchy))).stdout.decode()
        assert said == "mounted\ntried\n"
        assert answers(process)
        made = [path for path in cgroups_with(MADE_BY_ATTACK) if path.is_relative_to(mounted)]
        assert len(made) == 1 or (way, hierarchy) == ("exec", "freezer"), "there a command's group goes with it"
        assert all(container in str(path) for path in made), "in the container's own group"
    await node.remove(container)
    await wait_until(lambda: cgroups_with(MADE_BY_ATTACK) == [], "its groups are gone with it")


async def test_every_process_of_a_pod_is_in_a_group_of_its_pod(root_node: Node) -> None:
    node = root_node
    sandbox = await node.sandbox(options=SHARED_PID)
    keeper = node.keeper_pid()
    first, second = [await node.launch(sandbox, ["sleep", "1000"]) for _ in range(2)]
    own = {line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.split(":")[1]}
    own |= {line for line in Path(f"/proc/{keeper}/cgroup").read_text().splitlines() if line.split(":")[1]}
    checked = 0
    (holder,) = [pid for pid in processes_with("trikube-holder") if keeper == parent_of(pid)]
    for owner, pid in ((sandbox, holder), (first, node.pid(first)), (second, node.pid(second))):
        groups = {line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.split(":")[1]}
        assert groups & own == set()
        assert all(line.endswith(f"/{owner}") for line in groups)
        checked += len(groups)
    assert checked >= len(hierarchies())
    said = (await node.exec(first, ["cat", "/proc/self/cgroup"])).stdout.decode().splitlines()
    assert [line for line in said if line.split(":")[1] and f"/{first}" not in line] == []
    await node.cri.remove_pod_sandbox(v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    await wait_until(lambda: cgroups_with(sandbox) == [], "the groups of its first process are gone")


@pytest.mark.skipif("freezer" not in hierarchies(), reason="needs cgroup v1")
@pytest.mark.parametrize("options", [v1.NamespaceOption(pid=v1.NamespaceMode.CONTAINER), SHARED_PID])
async def test_a_container_that_freezes_itself_ends_like_any_other(
    root_node: Node, options: v1.NamespaceOption
) -> None:
    node = root_node
    script = "mount -t cgroup -o freezer none /mnt; mkdir /mnt/deep; echo 0 > /mnt/deep/tasks; "
    script += "echo frozen now; echo FROZEN > /mnt/deep/freezer.state"
    command = ["unshare", "--user", "--map-root-user", "--mount", "--cgroup", "sh", "-c", script]
    container = await node.launch(await node.sandbox(options=options), command)
    await node.wait_for_output(container, "frozen now")
    (deep,) = [path for path in cgroups_with("deep") if container in str(path)]
    await wait_until(lambda: (deep / "freezer.state").read_text() == "FROZEN\n", "it is frozen")
    pid = node.pid(container)
    await node.stop(container, 1)
    assert not is_alive(pid)


@pytest.mark.skipif("freezer" not in hierarchies(), reason="needs cgroup v1")
async def test_a_command_in_a_container_that_froze_itself_ends_when_it_is_killed(root_node: Node) -> None:
    node = root_node
    container = await node.launch(await node.sandbox(), ["sleep", "1000"])
    (group,) = [path for path in cgroups_with(container) if (path / "freezer.state").exists()]

    async def freeze() -> None:
        await wait_until(lambda: processes_with("frozen-31f6") != [], "the command runs")
        (group / "freezer.state").write_text("FROZEN")

    async def run() -> None:
        with pytest.raises(GRPCError) as failed:
            await node.exec(container, ["sh", "-c", "sleep 1000; : frozen-31f6"], timeout=2)
        assert failed.value.status is Status.DEADLINE_EXCEEDED

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        nursery.start_soon(freeze)
    await wait_until(lambda: processes_with("frozen-31f6") == [], "the command ended")
    assert is_alive(node.pid(container))


@pytest.mark.skipif("freezer" not in hierarchies(), reason="needs cgroup v1")
async def test_a_command_that_is_frozen_on_its_way_to_its_program_ends_when_it_is_killed(root_node: Node) -> None:
    node = root_node
    container = await node.launch(await node.sandbox(), ["sleep", "1000"])
    (group,) = [path for path in cgroups_with(container) if (path / "freezer.state").exists()]
    (group / "freezer.state").write_text("FROZEN")
    with pytest.raises(GRPCError):
        await node.exec(container, ["true"], timeout=1)
    assert (await node.exec(container, ["echo", "thawed"])).stdout == b"thawed\n"
