"""A pod's `/dev/shm` is its own: limited, nowhere on the machine, and nothing that a user puts in the place of an older
keeper's folder leads a deletion elsewhere.

| hole | here |
|---|---|
| a name in a folder that everybody may write, exchanged for a link, is deleted through by root | \
`test_what_another_user_puts…`, `test_links_in_the_folder…` |
| a pod fills the machine's memory or another pod's `/dev/shm` | `test_a_pods_shared_memory_is_limited…` |
| CVE-2022-0492, CVE-2024-21626 and the like need a path of the host; there is none | \
`test_a_pods_shared_memory_has_no_name_on_the_machine` |
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.escapes.attack import needs_isolation, nest
from tests.embedded.runtime_node import mounts_with, running_node

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

MIB = 1 << 20


def old_folder(root: Path) -> Path:
    """Where keepers of earlier releases had the shared memory of their pods."""
    return Path("/dev/shm") / f"trikubelet-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


async def test_a_pods_shared_memory_is_limited_and_shared_by_its_containers(node: Node) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox()
    fill = await node.run(sandbox, ["sh", "-c", "head -c 100M /dev/zero > /dev/shm/much; stat -c %s /dev/shm/much"])
    assert "No space left on device" in fill.err
    assert fill.out == f"{64 * MIB}\n"
    look = "stat -c %s /dev/shm/much; stat -c %a,%U /dev/shm; grep ' /dev/shm ' /proc/mounts"
    size, access, mount, _ = (await node.run(sandbox, ["sh", "-c", look])).out.split("\n")
    assert (size, access) == (f"{64 * MIB}", "1777,root")
    options = mount.split()[3].split(",")
    assert {"rw", "nosuid", "nodev", "noexec", "size=65536k"} <= set(options)


async def test_a_pods_shared_memory_has_no_name_on_the_machine(node: Node) -> None:
    needs_isolation(node)
    marker = f"escape-{os.getpid()}"
    sandbox = await node.sandbox()
    await node.run(sandbox, ["touch", f"/dev/shm/{marker}"])
    assert (await node.run(sandbox, ["ls", "/dev/shm"])).out == f"{marker}\n"
    name = "trikubelet-" + hashlib.sha256(str(node.runtime.root).encode()).hexdigest()[:8]  # as it was once called
    assert not {marker, name} & set(os.listdir("/dev/shm"))  # noqa: PTH208
    assert mounts_with(str(node.runtime.root)) == []


@pytest.mark.parametrize("kind", ["link", "folder"])
async def test_what_another_user_puts_in_the_place_of_an_old_folder_stays(tmp_path: Path, kind: str) -> None:
    root, victim = tmp_path / "runtime", tmp_path / "victim"
    victim.mkdir()
    (victim / "file").touch()
    place = old_folder(root)
    if kind == "link":
        place.symlink_to(victim)
    else:
        place.mkdir()
        (place / "file").touch()
    if (await trio.run_process(["chown", "-hR", "1234", str(place)], check=False)).returncode:
        await trio.run_process(["rm", "-r", str(place)])
        pytest.skip("there is no other user here")
    try:
        async with running_node(root, tmp_path / "logs") as node:
            assert await node.runtime.shutdown()
        assert place.is_symlink() or (place / "file").exists()
        assert (victim / "file").exists()
    finally:
        await trio.run_process(["rm", "-r", str(place)])


async def test_links_in_the_folder_of_an_older_keeper_are_removed_and_not_followed(tmp_path: Path) -> None:
    root, victim = tmp_path / "runtime", tmp_path / "victim"
    victim.mkdir()
    (victim / "file").touch()
    place = old_folder(root)
    (place / "pod").mkdir(parents=True)
    (place / "pod" / "link").symlink_to(victim)
    (place / "pod" / "file").write_text("x")
    nest(place / "pod", 1100)
    async with running_node(root, tmp_path / "logs") as node:
        assert await node.runtime.shutdown()
    assert not place.exists()
    assert (victim / "file").exists()
