"""The root of a pod's first container, which is made without a copy of the machine's mounts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.escapes.attack import needs_isolation
from tests.oci_image import make_root_folder, write_oci_archive
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root
IMAGE = "docker.io/library/apart:1"


@pytest.fixture
async def image(node: Node, tmp_path: Path) -> str:
    needs_isolation(node)
    if node.cri.capabilities()["mode"] != "root":
        pytest.skip("there a container's mount namespace is a copy of the machine's")
    rootfs = make_root_folder(tmp_path / "rootfs")
    write_oci_archive(tmp_path / "image.tar", rootfs, IMAGE, {"Cmd": ["sh"]})
    await node.runtime.images.import_archive(tmp_path / "image.tar")
    return IMAGE


def mounts(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/mountinfo").read_text().splitlines()


def by_place(lines: list[str]) -> dict[tuple[str, str], str]:
    """Each by its id, which another may get later, and its mount point; of its peers only whether there are any."""
    return {
        (line.split()[0], line.split()[4]): re.sub(r" (shared|master|propagate_from):\d+", r" \1", line)
        for line in lines
    }


@pytest.mark.parametrize("propagation", list(v1.MountPropagation))
async def test_its_mounts_are_its_own_and_the_machines_stay_as_they_are(
    node: Node, image: str, tmp_path: Path, propagation: v1.MountPropagation
) -> None:
    """However they are made, which depends on how far its volumes reach."""
    (source := tmp_path / "volume").mkdir()
    before = mounts(node.keeper_pid())
    sandbox = await node.sandbox()
    container = await node.launch(
        sandbox,
        ["sh", "-c", "echo mine > /own; echo ours > /dev/shm/shared; echo up; exec sleep 1000"],
        image=image,
        mounts=[v1.Mount(container_path="/volume", host_path=str(source), propagation=propagation)],
    )
    await node.wait_for_output(container, "up")
    after = mounts(node.keeper_pid())
    assert [line for line in after if str(tmp_path) in line] == []
    # Others may mount and unmount here meanwhile. What stays is as it was, shared or not.
    kept = by_place(before).keys() & by_place(after).keys()
    assert kept
    assert {place: by_place(after)[place] for place in kept} == {place: by_place(before)[place] for place in kept}
    listed = mounts(node.pid(container))
    places = [line.split()[4] for line in listed]
    (root,) = (line for line in listed if line.split()[4] == "/")
    assert " - overlay overlay " in root
    assert {"/proc", "/sys", "/dev", "/dev/shm", "/volume"} < set(places)
    assert len(places) == len(set(places))
    assert not [place for place in places if place.startswith(str(tmp_path))]
    found = await node.exec(
        container, ["sh", "-c", "ls -d /..; cat /own /../own; stat -c %i / /proc/1/root/.; ls /dev/shm"]
    )
    parent, own, same, first, second, shared = found.stdout.decode().split()
    assert (parent, own, same, shared) == ("/..", "mine", "mine", "shared")
    assert first == second


async def test_it_may_make_user_namespaces_with_mounts_and_roots_of_their_own(node: Node, image: str) -> None:
    """The kernel denies them to a process whose root is not that of its mount namespace."""
    script = "mkdir /inner && mount -t tmpfs none /inner && mkdir /inner/old && pivot_root /inner /inner/old && echo in"
    security = v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=1234))
    sandbox = await node.sandbox()
    plain = await node.run(sandbox, ["unshare", "-U", "true"], image=image, security=security)
    assert (plain.exit_code, plain.err) == (0, "")
    root = v1.LinuxContainerSecurityContext(
        capabilities=v1.Capability(add_capabilities=["SYS_ADMIN"]),
        # The profile that is the default where the kernel has AppArmor denies mounts.
        apparmor=v1.SecurityProfile(profile_type=v1.SecurityProfileProfileType.Unconfined),
    )
    ended = await node.run(sandbox, ["unshare", "-m", "sh", "-c", script], image=image, security=root)
    assert (ended.out, ended.err) == ("in\n", "")


LEAVE = """
import os, sys
from trikubelet.embedded.keeper import linux

linux.setns(os.pidfd_open(int(sys.argv[1])), linux.CLONE_NEWNS)
os.chdir("/")
above = os.open("/", os.O_PATH)
os.chroot("/bin")
os.fchdir(above)
for _ in range(9):
    os.chdir("..")
os.chroot(".")
print(*os.listdir("/"))
"""


async def test_who_leaves_its_root_comes_to_its_root_again(node: Node, image: str) -> None:
    """What lies under it, the pod's memory, is reached by no `..` and by no other way into its mount namespace."""
    container = await node.launch(
        await node.sandbox(),
        ["sh", "-c", "echo mine > /own; echo > /dev/shm/below; echo up; exec sleep 1000"],
        image=image,
    )
    await node.wait_for_output(container, "up")
    found = await trio.run_process([sys.executable, "-c", LEAVE, str(node.pid(container))], capture_stdout=True)
    names = found.stdout.split()
    assert b"own" in names
    assert b"below" not in names
