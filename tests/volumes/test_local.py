"""Local volumes: folders and devices of the node. Devices are loop devices on files of the test."""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.set_ups import UID, claimed, mounts_below, persistent_volume
from trikubelet.api import Quantity
from trikubelet.clock import SystemClock
from trikubelet.linux.mount_table import Mount
from trikubelet.linux.mounter import Mounter
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import FileSystemMismatchError, UncertainVolumeError, VolumeError
from trikubelet.volumes.kinds import file_systems
from trikubelet.volumes.kinds.block import DeviceMapper
from trikubelet.volumes.kinds.local import LocalKind
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from trikubelet.api import PersistentVolume
    from trikubelet.volumes.kinds.protocol import VolumeKind
    from trikubelet.volumes.model import MountedVolume, SetUpRequest

MI = 2**20
DISK = 32 * MI


def make_kind(root: Path, mounter: Mounter | None = None, recorder: EventRecorder | None = None) -> LocalKind:
    return LocalKind(
        root=root,
        mounter=mounter or FakeMounter(),
        disk=Disk(),
        meter=VolumeMeter(SystemClock()),
        recorder=recorder or EventRecorder(SystemClock()),
    )


def local(path: Path | str, name: str = "pv-1", **spec: Any) -> PersistentVolume:
    fs_type = spec.pop("fsType", None)
    source = {"path": str(path)} | ({} if fs_type is None else {"fsType": fs_type})
    return persistent_volume({"local": source, **spec}, name)


async def staged(kind: VolumeKind, asked: SetUpRequest) -> MountedVolume:
    """What the manager does: staged once, then set up."""
    return await kind.set_up(attrs.evolve(asked, staging_path=await kind.stage(asked)))


# Folders


async def test_a_folder_is_bound_into_the_pods_folder(tmp_path: Path) -> None:
    mounter, files = FakeMounter(), tmp_path / "files"
    files.mkdir()
    kind: VolumeKind = make_kind(tmp_path / "root", mounter)
    asked = claimed(kind, local(files))
    assert await kind.stage(asked) == files
    mounted = await staged(kind, asked)
    assert mounted.path == tmp_path / "root/pods/uid-1/volumes/kubernetes.io~local-volume/pv-1"
    assert mounter.mount_at(mounted.path).source == str(files)
    assert kind.unique_name(asked.spec, UID) == "kubernetes.io/local-volume/pv-1"
    await staged(kind, asked)
    assert mounter.calls == [f"bind {mounted.path}"]


@pytest.mark.parametrize(
    ("read_only", "options", "expected"),
    [
        (False, [], ()),
        (True, [], ("ro",)),
        (False, ["noexec", "discard"], ("noexec",)),
        (True, ["nosuid", "noatime", "data=ordered"], ("nosuid", "noatime", "ro")),
    ],
)
async def test_a_bind_has_the_options_that_a_bind_may_have(
    tmp_path: Path, read_only: bool, options: list[str], expected: tuple[str, ...]
) -> None:
    mounter = FakeMounter()
    kind = make_kind(tmp_path / "root", mounter)
    asked = claimed(kind, local(tmp_path, mountOptions=options), read_only=read_only)
    mounted = await staged(kind, asked)
    assert mounter.mount_at(asked.path).options == expected
    assert mounted.read_only == read_only


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "local volume source is nil or local path is not set"),
        ("/mnt/../etc", r"invalid path: /mnt/\.\./etc must not contain '\.\.'"),
        ("/dev/null", "only directory and block device are supported"),
        ("/no/such/folder", "local volume /no/such/folder: No such file or directory"),
    ],
)
async def test_a_path_that_cannot_be_a_volume_is_refused(tmp_path: Path, path: str, problem: str) -> None:
    kind = make_kind(tmp_path)
    with pytest.raises(VolumeError, match=problem):
        await kind.stage(claimed(kind, local(path)))


async def test_a_folder_that_cannot_be_bound_leaves_nothing(tmp_path: Path) -> None:
    kind = make_kind(tmp_path / "root", FakeMounter(failures={"bind": PermissionError(errno.EPERM, "not permitted")}))
    asked = claimed(kind, local(tmp_path))
    with pytest.raises(VolumeError, match="not permitted"):
        await staged(kind, asked)
    assert not asked.path.exists()


@pytest.mark.root
async def test_a_read_only_folder_is_that_for_root_too_and_stays_when_the_pod_goes(tmp_path: Path) -> None:
    kind, files = make_kind(tmp_path / "root", Mounter()), tmp_path / "files"
    files.mkdir()
    (files / "data").write_text("x")
    asked = claimed(kind, local(files), read_only=True)
    await staged(kind, asked)
    try:
        assert (asked.path / "data").read_text() == "x"
        with pytest.raises(OSError, match="Read-only file system"):
            (asked.path / "data").write_text("y")
        found = await make_kind(tmp_path / "root", Mounter()).reconstruct(UID, "pv-1")
        assert found is not None
        assert kind.unique_name(found, UID) == kind.unique_name(asked.spec, UID)
        usage = await kind.usage(await staged(kind, asked))
        assert usage is not None
        assert usage.capacity == os.statvfs(files).f_blocks * os.statvfs(files).f_frsize
    finally:
        await kind.tear_down(UID, "pv-1")
    assert mounts_below(tmp_path) == []
    assert not asked.path.exists()
    assert (files / "data").read_text() == "x"
    await kind.tear_down(UID, "pv-1")
    await kind.unstage(kind.unique_name(asked.spec, UID), asked.spec)
    assert (files / "data").exists()
    assert await kind.reconstruct(UID, "pv-1") is None


async def test_what_is_in_the_pods_folder_without_a_bind_is_never_removed(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    path = kind.path(UID, "pv-1")
    path.mkdir(parents=True)
    (path / "precious").write_text("x")
    with pytest.raises(VolumeError, match="Directory not empty"):
        await kind.tear_down(UID, "pv-1")
    assert (path / "precious").exists()


async def test_a_folder_has_no_size(tmp_path: Path) -> None:
    kind = make_kind(tmp_path / "root")
    await kind.expand(claimed(kind, local(tmp_path)), Quantity("2Gi"))


# Groups


@pytest.mark.root
@pytest.mark.parametrize("through_a_link", [False, True])
async def test_the_files_belong_to_the_first_pods_group(tmp_path: Path, through_a_link: bool) -> None:
    recorder = EventRecorder(SystemClock())
    kind, files = make_kind(tmp_path / "root", Mounter(), recorder), tmp_path / "files"
    files.mkdir()
    (files / "data").write_text("x")
    (tmp_path / "link").symlink_to("files")
    volume = local(tmp_path / "link" if through_a_link else files)
    first = claimed(kind, volume, group=4711, uid="uid-1")
    second = claimed(kind, volume, group=4712, uid="uid-2")
    third = claimed(kind, volume, group=4711, uid="uid-3")
    try:
        await staged(kind, first)
        assert ((files / "data").stat().st_gid, files.stat().st_gid) == (4711, 4711)
        assert files.stat().st_mode & 0o2770 == 0o2770
        await staged(kind, second)
        await staged(kind, third)
        assert (files / "data").stat().st_gid == 4711
    finally:
        for uid in ("uid-1", "uid-2", "uid-3"):
            await kind.tear_down(uid, "pv-1")
    assert [(event.uid, event.reason, event.message) for event in recorder.events_of("uid-2")] == [
        (
            "uid-2",
            "AlreadyMountedVolume",
            "The requested fsGroup is 4712, but the volume pv-1 has GID 4711. The volume may not be shareable.",
        )
    ]
    assert [*recorder.events_of("uid-1"), *recorder.events_of("uid-3")] == []


@pytest.mark.root
async def test_the_files_of_a_read_only_volume_keep_their_group(tmp_path: Path) -> None:
    kind, files = make_kind(tmp_path / "root"), tmp_path / "files"
    files.mkdir()
    await staged(kind, claimed(kind, local(files), group=4711, read_only=True))
    assert files.stat().st_gid == 0


# Devices


@contextmanager
def loop_device(file: Path, size: int = DISK) -> Iterator[Path]:
    with file.open("wb") as disk:
        disk.truncate(size)
    attach = ["losetup", "--find", "--show", str(file)]
    device = subprocess.run(attach, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    with loop_device(tmp_path / "disk") as device:
        yield device


def file_system_of(device: Path) -> str:
    return subprocess.run(["blkid", "-p", "-s", "TYPE", "-o", "value", device], capture_output=True, text=True).stdout


@pytest.mark.root
async def test_a_device_gets_a_file_system_once_and_keeps_its_data(tmp_path: Path, device: Path) -> None:
    kind = make_kind(tmp_path / "root", Mounter())
    volume = local(device, mountOptions=["noatime", "commit=7"])
    at = tmp_path / "root/plugins/kubernetes.io/local-volume/mounts/pv-1"
    for uid in ("uid-1", "uid-2"):
        asked = claimed(kind, volume, uid=uid, group=4711)
        assert await kind.stage(asked) == at
        try:
            mounted = await staged(kind, asked)
            assert mounted.path == asked.path
            [on_node, on_pod] = sorted(mounts_below(tmp_path / "root"), key=lambda mount: mount.point != at)
            assert (on_node.point, on_node.kind, on_pod.point) == (at, "ext4", asked.path)
            assert "commit=7" in on_node.super_options
            assert "noatime" in on_pod.options
            data = asked.path / "data"
            if uid == "uid-1":
                data.write_text("kept")
            assert data.read_text() == "kept"
            found = await make_kind(tmp_path / "root", Mounter()).reconstruct(uid, "pv-1")
            assert found is not None
            assert found.persistent is not None
            assert found.persistent.spec.local is not None
            assert found.persistent.spec.local.path == str(device)
        finally:
            await kind.tear_down(uid, "pv-1")
            await kind.unstage(kind.unique_name(asked.spec, uid), asked.spec)
        assert mounts_below(tmp_path) == []
        assert not at.exists()


@pytest.mark.root
async def test_a_device_that_others_have_mounted_is_not_taken_from_them(tmp_path: Path, device: Path) -> None:
    mounter = Mounter()
    kind, other = make_kind(tmp_path / "root", mounter), tmp_path / "other"
    asked = claimed(kind, local(device))
    at = await kind.stage(asked)
    assert at is not None
    other.mkdir()
    mounter.bind(at, other)
    try:
        with pytest.raises(VolumeError) as refused:
            await kind.unstage("", asked.spec)
        assert refused.value.problem == (f'the device mount path "{at}" is still mounted by other references [{other}]')
    finally:
        mounter.unmount(other)
        await kind.unstage("", asked.spec)
    assert mounts_below(tmp_path) == []


@pytest.mark.root
async def test_nothing_is_made_on_a_device_for_a_reader(tmp_path: Path, device: Path) -> None:
    kind = make_kind(tmp_path / "root", Mounter())
    with pytest.raises(VolumeError) as refused:
        await kind.stage(claimed(kind, local(device), read_only=True))
    at = tmp_path / "root/plugins/kubernetes.io/local-volume/mounts/pv-1"
    assert refused.value.problem == (
        f"local: failed to mount device {device} at {at} (fstype: ext4), error "
        f"cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
    )
    assert file_system_of(device) == ""
    assert not at.exists()


@pytest.mark.root
async def test_a_device_with_partitions_is_never_formatted(tmp_path: Path, device: Path) -> None:
    entry = bytes([0, 0, 2, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (2048).to_bytes(4, "little")
    device.write_bytes(bytes(446) + entry + bytes(48) + b"\x55\xaa")
    assert await file_systems.what_is_on("data", device) == file_systems.PARTITIONS
    kind = make_kind(tmp_path / "root", Mounter())
    with pytest.raises(VolumeError, match="local: failed to mount device"):
        await kind.stage(claimed(kind, local(device)))
    assert await file_systems.what_is_on("data", device) == file_systems.PARTITIONS
    assert mounts_below(tmp_path) == []


@pytest.mark.root
@pytest.mark.parametrize(("fs_type", "problem"), [("nosuch", "mkfs.nosuch is not installed"), ("../x", "expected a ")])
async def test_a_file_system_that_nobody_can_make_is_named(
    tmp_path: Path, device: Path, fs_type: str, problem: str
) -> None:
    kind = make_kind(tmp_path / "root", Mounter())
    with pytest.raises(VolumeError, match=problem):
        await kind.stage(claimed(kind, local(device, fsType=fs_type)))
    assert file_system_of(device) == ""


def may_resize() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, which root need not have in a container."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> 24 & 1)


@pytest.mark.root
async def test_a_file_system_grows_with_its_device(tmp_path: Path) -> None:
    if not may_resize():
        pytest.skip("needs CAP_SYS_RESOURCE")
    file = tmp_path / "disk"
    kind = make_kind(tmp_path / "root", Mounter())
    with loop_device(file) as device:
        asked = claimed(kind, local(device))
        at = await kind.stage(asked)
        assert at is not None
        try:
            before = os.statvfs(at).f_blocks
            os.truncate(file, 2 * DISK)
            await trio.run_process(["losetup", "--set-capacity", str(device)])
            await kind.expand(asked, Quantity("64Mi"))
            assert os.statvfs(at).f_blocks > before * 1.5
        finally:
            await kind.unstage("", asked.spec)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a script in the place of a program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("code", "refused"),
    [(0, False), (1, False), (2, False), (4, True), (8, False)],
)
async def test_a_file_system_with_errors_that_cannot_be_corrected_is_not_mounted(
    tmp_path: Path, program: Callable[[str, str], None], code: int, refused: bool
) -> None:
    program("blkid", "echo TYPE=ext4")
    program("fsck", f'echo "checked $*"; exit {code}')
    program("mount", f'echo "$*" > {tmp_path}/mounted')
    device = Path("/dev/disk")
    if refused:
        with pytest.raises(VolumeError, match="'fsck' found errors on device /dev/disk but could not correct them: ch"):
            await file_systems.format_and_mount("data", device, tmp_path, "ext4", ["noatime"])
        assert not (tmp_path / "mounted").exists()
    else:
        await file_systems.format_and_mount("data", device, tmp_path, "ext4", ["noatime"])
        assert (tmp_path / "mounted").read_text() == f"-t ext4 -o noatime,defaults /dev/disk {tmp_path}\n"


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ("TYPE=ext4", VolumeError),
        ("TYPE=xfs", FileSystemMismatchError),
        ("PTTYPE=gpt", FileSystemMismatchError),
    ],
)
async def test_a_disk_that_cannot_be_mounted_may_have_another_file_system(
    tmp_path: Path, program: Callable[[str, str], None], found: str, kind: type[VolumeError]
) -> None:
    program("blkid", f"echo {found}")
    program("fsck", "")
    program("mount", "echo wrong fs type >&2; exit 32")
    with pytest.raises(VolumeError, match=r"mounting /dev/disk at .* as ext4 failed: wrong fs type") as failed:
        await file_systems.format_and_mount("data", Path("/dev/disk"), tmp_path, "ext4", [])
    assert type(failed.value) is kind


@pytest.mark.root
async def test_that_it_has_another_is_known_above(
    tmp_path: Path, device: Path, program: Callable[[str, str], None]
) -> None:
    program("blkid", "echo TYPE=xfs")
    program("fsck", "")
    program("mount", "exit 32")
    kind = make_kind(tmp_path)
    with pytest.raises(FileSystemMismatchError, match=r"^volume \"data\": local: failed to mount device /dev/loop"):
        await kind.stage(claimed(kind, local(device)))


@pytest.mark.parametrize(
    ("fs_type", "expected"),
    [("ext3", "-F -m0 /dev/disk"), ("ext4", "-F -m0 /dev/disk"), ("xfs", "-f /dev/disk"), ("vfat", "/dev/disk")],
)
async def test_a_file_system_is_made_without_questions(
    tmp_path: Path, program: Callable[[str, str], None], fs_type: str, expected: str
) -> None:
    program("blkid", "exit 2")
    program(f"mkfs.{fs_type}", f'echo "$*" > {tmp_path}/made')
    program("mount", "")
    await file_systems.format_and_mount("data", Path("/dev/disk"), tmp_path, fs_type, [])
    assert (tmp_path / "made").read_text() == f"{expected}\n"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo broken >&2; exit 8", "failed to get disk format of disk /dev/disk: blkid: broken"),
        ("exec sleep 1000", "expected blkid to end within"),
    ],
)
async def test_a_device_of_which_nothing_is_known_is_not_formatted(
    tmp_path: Path,
    program: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    problem: str,
) -> None:
    monkeypatch.setattr(file_systems, "QUICK", 0.3)
    program("blkid", script)
    program("mkfs.ext4", f"touch {tmp_path}/made")
    with pytest.raises(VolumeError, match=problem):
        await file_systems.format_and_mount("data", Path("/dev/disk"), tmp_path, "ext4", [])
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("found", "name", "expected"),
    [
        ("ext4", "resize2fs", "/dev/disk"),
        ("xfs", "xfs_growfs", "-d /mnt/disk"),
        ("btrfs", "btrfs", "filesystem resize max /mnt/disk"),
    ],
)
async def test_each_file_system_has_a_program_that_grows_it(
    tmp_path: Path, program: Callable[[str, str], None], found: str, name: str, expected: str
) -> None:
    program("blkid", f"echo TYPE={found}")
    program(name, f'echo "$*" > {tmp_path}/grown')
    await file_systems.grow("data", Path("/dev/disk"), Path("/mnt/disk"))
    assert (tmp_path / "grown").read_text() == f"{expected}\n"
    program(name, "echo no space >&2; exit 1")
    with pytest.raises(VolumeError, match=f"resize of device /dev/disk failed: {name}: no space"):
        await file_systems.grow("data", Path("/dev/disk"), Path("/mnt/disk"))


async def test_a_file_system_that_cannot_grow_is_named(program: Callable[[str, str], None]) -> None:
    program("blkid", "echo TYPE=vfat")
    with pytest.raises(VolumeError, match="resize of format vfat is not supported for device /dev/disk"):
        await file_systems.grow("data", Path("/dev/disk"), Path("/mnt/disk"))


# Devices that stay devices


def loops_on(path: Path) -> list[str]:
    found = []
    for backing in Path("/sys").glob("block/loop*/loop/backing_file"):
        with suppress(OSError):  # it has been released meanwhile
            if backing.read_text().strip() == str(path):
                found.append(backing.parent.parent.name)
    return found


@pytest.mark.root
async def test_a_loop_device_that_somebody_looks_at_is_unmapped_when_they_are_done(
    tmp_path: Path, device: Path
) -> None:
    kind = make_kind(tmp_path / "root", Mounter())
    asked = claimed(kind, local(device, volumeMode="Block"), block=True)
    assert await kind.stage(asked) is None
    await kind.set_up(asked)
    [loop] = loops_on(tmp_path / "root/plugins/kubernetes.io~local-volume/volumeDevices/pv-1" / UID)
    onlooker = os.open(f"/dev/{loop}", os.O_RDONLY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(kind.tear_down, UID, "pv-1", block=True))
        await trio.sleep(0.2)
        os.close(onlooker)
    await kind.unstage("", asked.spec)
    assert mounts_below(tmp_path) == []


@pytest.mark.root
@pytest.mark.parametrize("read_only", [False, True])
async def test_a_block_device_is_mapped_held_open_and_unmapped(tmp_path: Path, device: Path, read_only: bool) -> None:
    kind = make_kind(tmp_path / "root", Mounter())
    (tmp_path / "link").symlink_to(device)
    asked = claimed(kind, local(tmp_path / "link", volumeMode="Block"), block=True, read_only=read_only)
    folder = tmp_path / "root/plugins/kubernetes.io~local-volume/volumeDevices/pv-1"
    assert await kind.stage(asked) is None
    try:
        for _ in range(2):
            mounted = await kind.set_up(asked)
            assert (mounted.path, mounted.device, mounted.read_only) == (None, str(device), read_only)
            assert asked.path == tmp_path / "root/pods/uid-1/volumeDevices/kubernetes.io~local-volume/pv-1"
            assert asked.path.readlink() == device
            assert (folder / UID).stat().st_rdev == device.stat().st_rdev
            assert len(loops_on(folder / UID)) == 1
            assert len(mounts_below(tmp_path)) == 1
        with pytest.raises(VolumeError, match="is still referenced from other Pods"):
            await kind.unstage("", asked.spec)
        usage = await kind.usage(mounted)
        assert usage is not None
        assert (usage.capacity, usage.used) == (DISK, None)
        await kind.expand(asked, Quantity("1Gi"))
        found = await make_kind(tmp_path / "root").reconstruct(UID, "pv-1", block=True)
        assert found is not None
        assert found.block
    finally:
        await kind.tear_down(UID, "pv-1", block=True)
    assert loops_on(folder / UID) == []
    assert mounts_below(tmp_path) == []
    assert not os.path.lexists(asked.path)
    await kind.tear_down(UID, "pv-1", block=True)
    await kind.unstage("", asked.spec)
    assert not folder.exists()
    await kind.unstage("", asked.spec)
    assert await kind.reconstruct(UID, "pv-1", block=True) is None


@pytest.mark.root
async def test_another_device_in_the_place_of_the_pods_is_replaced(tmp_path: Path, device: Path) -> None:
    kind = make_kind(tmp_path / "root", Mounter())
    asked = claimed(kind, local(device, volumeMode="Block"), block=True)
    bound = tmp_path / "root/plugins/kubernetes.io~local-volume/volumeDevices/pv-1" / UID
    bound.parent.mkdir(parents=True)
    bound.touch()
    with loop_device(tmp_path / "other", MI) as other:
        Mounter().bind(other, bound)
        try:
            await kind.set_up(asked)
            assert bound.stat().st_rdev == device.stat().st_rdev
            assert len(mounts_below(tmp_path)) == 1
        finally:
            await kind.tear_down(UID, "pv-1", block=True)


async def test_what_is_no_device_is_not_mapped(tmp_path: Path) -> None:
    kind = make_kind(tmp_path / "root")
    with pytest.raises(VolumeError, match=f"expected a block device, got {tmp_path}"):
        await kind.set_up(claimed(kind, local(tmp_path, volumeMode="Block"), block=True))


@pytest.mark.root
async def test_a_node_without_losetup_says_so_and_can_clean_up(
    tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = make_kind(tmp_path / "root", Mounter())
    asked = claimed(kind, local(device, volumeMode="Block"), block=True)
    with monkeypatch.context() as bare:
        bare.setattr("trikubelet.volumes.kinds.programs._SYSTEM", ())
        bare.setenv("PATH", str(tmp_path))
        with pytest.raises(VolumeError, match="losetup is not installed on the node: install util-linux"):
            await kind.set_up(asked)
        await kind.tear_down(UID, "pv-1", block=True)
    assert mounts_below(tmp_path) == []


async def test_a_loop_device_is_found_by_the_file_that_it_is_on(tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    for name, shown in (("loop0", "/else\n"), ("loop1", "/map/uid (deleted)\n")):
        (sysfs / f"block/{name}/loop").mkdir(parents=True)
        (sysfs / f"block/{name}/loop/backing_file").write_text(shown)
    (sysfs / "block/loop2").mkdir()
    mapper = DeviceMapper(FakeMounter(), Disk(), sysfs)
    assert mapper._loop_of(Path("/map/uid")) == "/dev/loop1"
    assert mapper._loop_of(Path("/map/other")) is None


# A path that does not answer


async def test_a_folder_that_never_answers_is_uncertain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_foreign(where: Hashable, work: Callable[[], object]) -> object:
        raise trio.TooSlowError

    kind = make_kind(tmp_path / "root")
    monkeypatch.setattr(kind._disk, "run_foreign", run_foreign)
    with pytest.raises(UncertainVolumeError, match="expected an answer within 120 s, got none"):
        await kind.stage(claimed(kind, local(tmp_path)))


async def test_a_mount_where_the_pods_bind_should_be_around_is_not_taken_along(tmp_path: Path) -> None:
    mounter = FakeMounter()
    kind = make_kind(tmp_path, mounter)
    mounter.mounts.append(Mount(point=kind.path(UID, "pv-1") / "inside", kind="tmpfs"))
    with pytest.raises(VolumeError, match="still mounted, unmount it first"):
        await kind.tear_down(UID, "pv-1")
    assert mounter.calls == []


@pytest.mark.root
async def test_what_came_back_into_a_folder_goes_with_the_pod_and_stays_for_others(tmp_path: Path) -> None:
    """As a termination message's file in a Bidirectional volume: on the node, another pod or somebody may use it."""
    mounter = Mounter()
    kind, files, message = make_kind(tmp_path / "root", mounter), tmp_path / "files", tmp_path / "message"
    files.mkdir()
    (files / "log").touch()
    message.write_text("last words")
    mounter.bind(files, files)
    await trio.run_process(["mount", "--make-shared", str(files)])
    one, other = [claimed(kind, local(files), uid=uid) for uid in ("uid-1", "uid-2")]
    try:
        for asked in (one, other):
            await staged(kind, asked)
        mounter.bind(message, one.path / "log")
        assert [(path / "log").read_text() for path in (one.path, other.path, files)] == ["last words"] * 3
        await kind.tear_down("uid-1", "pv-1")
        assert not one.path.exists()
        assert [(path / "log").read_text() for path in (other.path, files)] == ["last words"] * 2
        await kind.tear_down("uid-2", "pv-1")
        assert not other.path.exists()
    finally:
        for mount in reversed(mounts_below(tmp_path)):
            mounter.unmount(mount.point)
    assert (message.read_text(), (files / "log").read_text()) == ("last words", "")


@pytest.mark.root
async def test_what_came_back_into_a_device_goes_with_the_volume(tmp_path: Path, device: Path) -> None:
    mounter, message = Mounter(), tmp_path / "message"
    kind = make_kind(tmp_path / "root", mounter)
    message.write_text("last words")
    asked = claimed(kind, local(device))
    at = await kind.stage(asked)
    assert at is not None
    await trio.run_process(["mount", "--make-shared", str(at)])
    try:
        await staged(kind, asked)
        (asked.path / "log").touch()
        mounter.bind(message, asked.path / "log")
        assert (at / "log").read_text() == "last words"
        await kind.tear_down(UID, "pv-1")
        await kind.unstage("", asked.spec)
        assert mounts_below(tmp_path) == []
    finally:
        for mount in reversed(mounts_below(tmp_path)):
            mounter.unmount(mount.point)
    assert not asked.path.exists()
    assert message.read_text() == "last words"
