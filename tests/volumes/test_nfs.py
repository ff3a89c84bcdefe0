"""NFS volumes, with a stand-in for the helper: it mounts a tmpfs, or fails."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.set_ups import UID, claimed, mounts_below, persistent_volume, pod_with, request
from trikubelet.clock import SystemClock
from trikubelet.linux.mount_table import Mount, MountTable
from trikubelet.linux.mounter import Mounter
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError
from trikubelet.volumes.kinds import nfs
from trikubelet.volumes.kinds.nfs import NFSKind
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.volumes.kinds.protocol import VolumeKind

MOUNTS = 'mount -t tmpfs share "$2"'
FAILS = 'echo "mount.nfs: access denied by server while mounting $1" >&2; exit 32'


def make_kind(root: Path, mounter: Mounter | None = None) -> NFSKind:
    return NFSKind(root=root, mounter=mounter or FakeMounter(), disk=Disk(), meter=VolumeMeter(SystemClock()))


def share(**source: Any) -> dict[str, Any]:
    return {"name": "data", "nfs": {"server": "files.example", "path": "/export", **source}}


@attrs.frozen
class Helper:
    """The stand-in."""

    folder: Path

    def does(self, script: str) -> None:
        program = self.folder / "mount.nfs"
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.folder}/asked\n{script}\n')
        program.chmod(0o755)

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helper:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Helper(folder)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, ["files.example:/export"]),
        ({"readOnly": True}, ["files.example:/export", "-o", "ro"]),
        ({"server": "fd00::1"}, ["[fd00::1]:/export"]),
    ],
)
async def test_the_helper_is_told_what_the_pod_says(
    tmp_path: Path, helper: Helper, source: dict[str, Any], expected: list[str]
) -> None:
    helper.does("")
    kind: VolumeKind = make_kind(tmp_path)
    asking = request(kind, pod_with(share(**source)))
    mounted = await kind.set_up(asking)
    assert helper.asked() == [expected[0], str(asking.path), *expected[1:]]
    assert (mounted.path, mounted.read_only) == (asking.path, "readOnly" in source)
    assert asking.path == tmp_path / "pods/uid-1/volumes/kubernetes.io~nfs/data"
    assert asking.path.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("annotated", [False, True])
async def test_a_persistent_share_has_the_options_of_its_volume(
    tmp_path: Path, helper: Helper, annotated: bool
) -> None:
    helper.does("")
    source: dict[str, Any] = {"nfs": {"server": "files.example", "path": "/export", "readOnly": True}}
    metadata: dict[str, Any] = {}
    if annotated:
        metadata["annotations"] = {"volume.beta.kubernetes.io/mount-options": "soft,nfsvers=4.1"}
    else:
        source["mountOptions"] = ["soft", "nfsvers=4.1"]
    kind = make_kind(tmp_path)
    await kind.set_up(claimed(kind, persistent_volume(source, **metadata)))
    assert helper.asked()[2:] == ["-o", "nfsvers=4.1,soft"], "only the claim says that it is read-only"
    await kind.tear_down(UID, "pv-1")
    await kind.set_up(claimed(kind, persistent_volume(source, **metadata), read_only=True))
    assert helper.asked()[2:] == ["-o", "nfsvers=4.1,ro,soft"]


async def test_a_share_that_is_mounted_is_not_mounted_again(tmp_path: Path) -> None:
    mounter = FakeMounter()
    kind = make_kind(tmp_path, mounter)
    asking = request(kind, pod_with(share()))
    mounter.mounts.append(Mount(point=asking.path, kind="nfs4"))
    mounted = await kind.set_up(asking)
    assert mounted.path == asking.path
    assert not asking.path.exists(), "nobody looked there"


async def test_a_node_without_the_helper_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trikubelet.volumes.kinds.programs._SYSTEM", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    kind = make_kind(tmp_path)
    asking = request(kind, pod_with(share()))
    with pytest.raises(VolumeError) as failed:
        await kind.set_up(asking)
    assert failed.value.problem == "mount.nfs is not installed on the node: install nfs-common or nfs-utils"
    assert not asking.path.exists()


async def test_what_the_helper_says_is_told_and_nothing_is_left(tmp_path: Path, helper: Helper) -> None:
    helper.does(FAILS)
    kind = make_kind(tmp_path)
    asking = request(kind, pod_with(share()))
    with pytest.raises(VolumeError) as failed:
        await kind.set_up(asking)
    assert failed.value.problem == (
        "mounting files.example:/export failed: mount.nfs ended with 32: "
        "mount.nfs: access denied by server while mounting files.example:/export"
    )
    assert not isinstance(failed.value, UncertainVolumeError)
    assert not asking.path.exists()


async def test_a_helper_that_does_not_end_is_ended(
    tmp_path: Path, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nfs, "MOUNT_DEADLINE", 0.2)
    helper.does("exec sleep 1000")
    kind = make_kind(tmp_path)
    asking = request(kind, pod_with(share()))
    with pytest.raises(UncertainVolumeError, match=r"expected mount\.nfs to end within 0 s"):
        await kind.set_up(asking)
    assert not asking.path.exists()


@pytest.mark.root
async def test_a_mount_of_a_helper_that_failed_is_undone(tmp_path: Path, helper: Helper) -> None:
    helper.does(f"{MOUNTS}; {FAILS}")
    kind = make_kind(tmp_path, Mounter())
    asking = request(kind, pod_with(share()))
    with pytest.raises(VolumeError, match="access denied"):
        await kind.set_up(asking)
    assert mounts_below(tmp_path) == []
    assert not asking.path.exists()


@attrs.define
class LateMounter(FakeMounter):
    """From the second look on something is mounted, that cannot be unmounted."""

    late: list[Mount] = attrs.field(factory=list)
    looks: int = 0

    def table(self) -> MountTable:
        self.looks += 1
        return MountTable(tuple(self.mounts if self.looks == 1 else self.late))


async def test_a_mount_that_cannot_be_undone_is_uncertain(tmp_path: Path, helper: Helper) -> None:
    helper.does(FAILS)
    mounter = LateMounter(failures={"unmount": OSError(5, "Input/output error")})
    kind = make_kind(tmp_path, mounter)
    asking = request(kind, pod_with(share()))
    mounter.late.append(Mount(point=asking.path, kind="nfs4"))
    with pytest.raises(UncertainVolumeError, match="Input/output error"):
        await kind.set_up(asking)


@pytest.mark.root
async def test_a_share_is_mounted_measured_and_unmounted(tmp_path: Path, helper: Helper) -> None:
    helper.does(MOUNTS)
    kind = make_kind(tmp_path, Mounter())
    asking = request(kind, pod_with(share()))
    mounted = await kind.set_up(asking)
    try:
        [mount] = mounts_below(tmp_path)
        assert mount.point == asking.path
        (asking.path / "precious").write_text("x")
        usage = await kind.usage(mounted)
        assert usage is not None
        assert usage.used == 4096
        found = await make_kind(tmp_path, Mounter()).reconstruct(UID, "data")
        assert found is not None
        assert kind.unique_name(found, UID) == kind.unique_name(asking.spec, UID) == "kubernetes.io/nfs/uid-1-data"
    finally:
        await kind.tear_down(UID, "data")
    assert mounts_below(tmp_path) == []
    assert not asking.path.exists()
    await kind.tear_down(UID, "data")
    assert await kind.reconstruct(UID, "data") is None


async def test_what_is_in_the_folder_without_a_mount_is_nobodys_to_remove(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    path = kind.path(UID, "data")
    path.mkdir(parents=True)
    (path / "precious").write_text("x")
    with pytest.raises(VolumeError, match=r"cannot remove .*/data: Directory not empty"):
        await kind.tear_down(UID, "data")
    assert (path / "precious").exists()


async def test_a_mount_inside_of_a_share_goes_along(tmp_path: Path) -> None:
    mounter = FakeMounter()
    kind = make_kind(tmp_path, mounter)
    path = kind.path(UID, "data")
    path.mkdir(parents=True)
    inside = Mount(point=path / "inside", kind="ext4", id=2, parent=1)
    mounter.mounts += [Mount(point=path, kind="nfs4", id=1), inside]
    await kind.tear_down(UID, "data")
    assert (mounter.calls, mounter.mounts) == ([f"unmount {path}"], [])
    mounter.mounts.append(inside)
    with pytest.raises(VolumeError, match="still mounted, unmount it first"):
        await kind.tear_down(UID, "data")


@attrs.define
class HangingMounter(FakeMounter):
    """Unmounting never ends, but by force."""

    asked: list[bool] = attrs.field(factory=list)
    released: threading.Event = attrs.field(factory=threading.Event)
    also_by_force: bool = False

    def unmount(self, at: Path, *, force: bool = False) -> None:
        self.asked.append(force)
        if not force or self.also_by_force:
            self.released.wait()
            return
        FakeMounter.unmount(self, at, force=force)


@pytest.mark.parametrize("also_by_force", [False, True])
async def test_a_share_that_is_away_is_unmounted_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also_by_force: bool
) -> None:
    monkeypatch.setattr(nfs, "UNMOUNT_DEADLINE", 1 if also_by_force else 2)
    mounter = HangingMounter(also_by_force=also_by_force)
    kind = make_kind(tmp_path, mounter)
    path = kind.path(UID, "data")
    path.mkdir(parents=True)
    mounter.mounts.append(Mount(point=path, kind="nfs4"))
    try:
        if also_by_force:
            with pytest.raises(UncertainVolumeError, match="its server is away"):
                await kind.tear_down(UID, "data")
        else:
            await kind.tear_down(UID, "data")
            assert not path.exists()
    finally:
        mounter.released.set()
    assert mounter.asked == [False, True]


async def test_a_share_that_is_away_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at it hangs."""
    mounter = FakeMounter()
    kind = make_kind(tmp_path, mounter)
    asking = request(kind, pod_with(share()))
    asking.path.mkdir(parents=True)
    mounter.mounts.append(Mount(point=asking.path, kind="nfs4"))
    looked = []

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *rest: Any, **more: Any) -> Any:
            if str(path) == str(asking.path):
                looked.append(call.__name__)
            return call(path, *rest, **more)

        return look

    for name in ("stat", "lstat", "open", "listdir", "scandir", "statvfs"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    await kind.set_up(asking)
    assert await kind.reconstruct(UID, "data") is not None
    await kind.tear_down(UID, "data")
    monkeypatch.undo()
    assert looked == []
    assert not asking.path.exists()


async def test_a_set_up_that_is_cancelled_ends_the_helper(tmp_path: Path, helper: Helper) -> None:
    helper.does(f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    kind = make_kind(tmp_path)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kind.set_up, request(kind, pod_with(share())))
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_volume_without_a_share_is_refused(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    with pytest.raises(VolumeError, match="expected an nfs volume"):
        await kind.set_up(claimed(kind, persistent_volume({})))
