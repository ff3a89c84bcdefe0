"""Folders that a container nests by the thousand end nothing and hide nothing.

| hole | here |
|---|---|
| the runtime's own recursion: a keeper or agent that fails at every start | `test_a_container_with_deep_folders_…`, \
`test_deep_folders_that_an_earlier_runtime_left…` |
| CVE-2024-45310 and the like, a path exchanged while it is walked | every step is by descriptor, no link is followed |
| groups that a container nests in a cgroup hierarchy that it may write | `test_groups_nested_by_the_thousand…` |
| usage below PATH_MAX is hidden from eviction | `test_what_lies_deep_is_counted` |
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.escapes.attack import needs_isolation, nest
from tests.embedded.runtime_node import running_node, wait_until
from trikubelet.embedded.keeper.cgroups import ContainerCgroup
from trikubelet.linux.trees import remove_tree
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

DEPTH = 1100
DEEP = f"""
import os
for place in {"/usr/local", "/dev/shm"}:
    os.chdir(place)
    for _ in range({DEPTH}):
        os.mkdir("d" * 10)
        os.chdir("d" * 10)
    with open("file", "wb") as file:
        file.write(bytes(1 << 20))
print("ready", flush=True)
"""


@pytest.fixture(autouse=True)
def nothing_too_deep_for_pytest(tmp_path: Path) -> Iterator[None]:
    yield
    remove_tree(tmp_path / "runtime")


async def test_a_container_with_deep_folders_is_removed_like_any_other(node: Node) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox()
    ended = await node.run(sandbox, ["python3", "-c", DEEP])
    assert (ended.out, ended.exit_code) == ("ready\n", 0)
    # The fixture looks whether anything stays.


def test_groups_nested_by_the_thousand_are_removed(tmp_path: Path) -> None:
    roots = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/freezer")]
    for root in (root for root in roots if (root / "cgroup.procs").exists()):
        top = root / f"trikubelet-deep-{os.getpid()}"
        try:
            top.mkdir()
        except OSError:
            continue
        nest(top, DEPTH)
        (top / "d" / "beside").mkdir()
        group = ContainerCgroup(None, {"freezer": str(top)})
        assert group.processes() == []
        assert group.remove()
        assert not top.exists()
        return
    pytest.skip("no cgroup hierarchy can be written")


async def test_what_lies_deep_is_counted(node: Node) -> None:
    needs_isolation(node)
    container = await node.launch(await node.sandbox(), ["python3", "-c", DEEP + "import time; time.sleep(1000)"])
    await node.wait_for_output(container, "ready")
    stats = (await node.cri.container_stats(v1.ContainerStatsRequest(container_id=container))).stats
    assert stats.writable_layer.used_bytes.value >= 1 << 20
    assert stats.writable_layer.inodes_used.value > DEPTH
    await node.stop(container, 0)


async def test_deep_folders_that_an_earlier_runtime_left_are_removed_at_the_start(tmp_path: Path) -> None:
    left = tmp_path / "runtime" / "removing" / "old"
    staged = tmp_path / "runtime" / "images" / "staging" / "removed-old"
    for folder in (left, staged):
        folder.mkdir(parents=True)
        nest(folder, DEPTH)
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        await wait_until(lambda: not left.exists() and not staged.exists(), "the folders are gone")
        assert await node.runtime.shutdown()


async def test_what_cannot_be_removed_keeps_nothing_else_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikubelet.embedded.runtime._TIDY_EVERY", 0.05)
    left = tmp_path / "runtime" / "removing"
    for name in ("a", "b", "c"):
        (left / name / "d" / "mounted").mkdir(parents=True)
        (left / name / "file").touch()
    mounted = left / "b" / "d" / "mounted"
    mount = ["mount", "-t", "tmpfs", "none", str(mounted)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:  # noqa: ASYNC221
        pytest.skip("nothing can be mounted here")
    try:
        async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
            await wait_until(lambda: [path.name for path in left.iterdir()] == ["b"], "all else is gone")
            await wait_until(lambda: not (left / "b" / "file").exists(), "what is beside it is gone")
            await trio.run_process(["umount", str(mounted)])
            await wait_until(lambda: list(left.iterdir()) == [], "the rest is gone")
            assert await node.runtime.shutdown()
    finally:
        await trio.run_process(["umount", "-q", str(mounted)], check=False)
