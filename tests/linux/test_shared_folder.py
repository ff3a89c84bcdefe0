"""A folder made a shared mount and back, in a mount namespace of its own each time."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING, Final

import pytest

from tests.own_machine import run, run_there
from trikubelet.embedded.keeper import linux
from trikubelet.linux import mount_calls as calls
from trikubelet.linux.mount_table import MountTable
from trikubelet.linux.shared_folder import MountsInsideError, share_folder, unshare_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.root


def mounts_at(folder: Path) -> list[bool]:
    """Of each mount exactly there, whether it is shared."""
    return [mount.shared for mount in MountTable.read().mounts if mount.point == folder]


def a_folder_with_a_file(folder: Path) -> Path:
    run("mount", "--make-rprivate", "/")
    root = folder / "root folder"
    root.mkdir()
    (root / "file").write_text("mine")
    return root


def on_a_private_mount(folder: Path) -> None:
    root = a_folder_with_a_file(folder)
    assert share_folder(root)
    assert mounts_at(root) == [True]
    assert (root / "file").read_text() == "mine"
    assert not share_folder(root), "once is enough"
    inside = root / "inside"
    inside.mkdir()
    run("mount", "-t", "tmpfs", "inside", str(inside))
    assert not unshare_folder(root), "something is mounted inside"
    assert mounts_at(root) == [True]
    run("umount", str(inside))
    assert unshare_folder(root)
    assert mounts_at(root) == []
    assert (root / "file").read_text() == "mine"
    assert not unshare_folder(root)


def by_a_link(folder: Path) -> None:
    root = a_folder_with_a_file(folder)
    (folder / "link").symlink_to(root)
    assert share_folder(folder / "link")
    assert mounts_at(root) == [True]
    assert unshare_folder(folder / "link")


def on_a_shared_mount(folder: Path) -> None:
    root = a_folder_with_a_file(folder)
    run("mount", "--make-rshared", "/")
    before = MountTable.read()
    assert not share_folder(root)
    assert not unshare_folder(root)
    assert MountTable.read() == before


def after_an_interrupted_start(folder: Path) -> None:
    root = a_folder_with_a_file(folder)
    calls.mount(str(root), str(root), "none", calls.MS_BIND, "", name=root)
    assert not share_folder(root)
    assert mounts_at(root) == [True]
    assert unshare_folder(root)


def with_volumes_inside(folder: Path) -> None:
    root = a_folder_with_a_file(folder)
    run("mount", "-t", "tmpfs", "volume", str(root / "volume"), "-o", "X-mount.mkdir")
    with pytest.raises(MountsInsideError, match="has mounts inside, which a mount on it would hide"):
        share_folder(root)
    assert mounts_at(root) == []


def on_a_disk_of_its_own(folder: Path) -> None:
    root = a_folder_with_a_file(folder)
    run("mount", "-t", "tmpfs", "disk", str(root))
    assert not share_folder(root)
    assert mounts_at(root) == [True]
    assert not unshare_folder(root), "it is somebody else's"
    assert mounts_at(root) == [True]


def reaching_another_namespace(folder: Path) -> None:
    """What somebody with a mount namespace of their own mounts inside is seen here."""
    root = a_folder_with_a_file(folder)
    share_folder(root)
    (root / "volume").mkdir()
    program = f"mount -t tmpfs theirs '{root}/volume' && touch '{root}/volume/seen'"
    run("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", program)
    assert (root / "volume" / "seen").exists()


SCENARIOS: Final[tuple[Callable[[Path], None], ...]] = (
    on_a_private_mount,
    by_a_link,
    on_a_shared_mount,
    after_an_interrupted_start,
    with_volumes_inside,
    on_a_disk_of_its_own,
    reaching_another_namespace,
)


def each_in_a_namespace(folder: Path) -> None:
    """Run every scenario in a fork with a mount namespace of its own. A fork that fails has printed why."""
    failed = []
    for scenario in SCENARIOS:
        (folder / scenario.__name__).mkdir()
        child = os.fork()
        if child == 0:
            try:
                linux.unshare(linux.CLONE_NEWNS)
                scenario(folder / scenario.__name__)
            except BaseException:  # noqa: BLE001 - the process ends here
                os.write(2, f"{scenario.__name__}: {traceback.format_exc()}".encode())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            failed.append(scenario.__name__)
    assert failed == []


async def test_a_folder_is_a_shared_mount(tmp_path: Path) -> None:
    await run_there(each_in_a_namespace, tmp_path)
    assert not [mount for mount in MountTable.read().mounts if mount.point.is_relative_to(tmp_path)]
