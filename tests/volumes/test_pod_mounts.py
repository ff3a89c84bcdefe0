"""Volumes on a real file system, in a folder of the test."""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.volumes.test_removal import nest
from trikubelet.api import Pod, Quantity, ResourceRequirements, pod_from_dict
from trikubelet.embedded.keeper import linux
from trikubelet.volumes import PodMounts, VolumeError
from trikubelet.volumes.mount_table import mount_tmpfs, mounts_below, unmount
from trikubelet.volumes.pod_mounts import MAX_THREADS
from trikubelet.volumes.removal import StillMountedError

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


def pod_with(*volumes: dict[str, Any], **security: Any) -> Pod:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}], "volumes": list(volumes)}
    if security:
        spec["securityContext"] = security
    return pod_from_dict({"metadata": {"name": "pod", "uid": "uid-1"}, "spec": spec})


def prepared(mounts: PodMounts, pod: Pod, name: str) -> Path:
    path = mounts.host_path(pod, name)
    assert path is not None
    return path


async def test_an_empty_dir_is_where_the_kubelet_puts_it_and_everybody_may_write(tmp_path: Path) -> None:
    mounts, pod = PodMounts(tmp_path), pod_with({"name": "scratch", "emptyDir": {}})
    assert mounts.host_path(pod, "scratch") is None
    await mounts.prepare(pod)
    path = prepared(mounts, pod, "scratch")
    assert path == tmp_path / "pods/uid-1/volumes/kubernetes.io~empty-dir/scratch"
    assert stat.S_IMODE(path.stat().st_mode) == 0o777
    assert await mounts.pod_uids() == {"uid-1"}


async def test_the_next_agent_keeps_the_data_of_an_empty_dir(tmp_path: Path) -> None:
    pod = pod_with({"name": "scratch", "emptyDir": {}})
    first = PodMounts(tmp_path)
    await first.prepare(pod)
    (prepared(first, pod, "scratch") / "data").write_text("kept")
    prepared(first, pod, "scratch").chmod(0o700)
    second = PodMounts(tmp_path)
    await second.prepare(pod)
    assert (prepared(second, pod, "scratch") / "data").read_text() == "kept"
    assert stat.S_IMODE(prepared(second, pod, "scratch").stat().st_mode) == 0o700, "the pod's own mode stays"


@pytest.mark.root
async def test_an_fs_group_owns_the_empty_dir(tmp_path: Path) -> None:
    mounts, pod = PodMounts(tmp_path), pod_with({"name": "scratch", "emptyDir": {}}, fsGroup=4711)
    await mounts.prepare(pod)
    status = prepared(mounts, pod, "scratch").stat()
    assert status.st_gid == 4711
    assert status.st_mode & stat.S_ISGID


async def test_an_fs_group_that_cannot_be_given_does_not_stop_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, user: int, group: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(os, "chown", refuse)
    mounts, pod = PodMounts(tmp_path), pod_with({"name": "scratch", "emptyDir": {}}, fsGroup=4711)
    await mounts.prepare(pod)
    assert stat.S_IMODE(prepared(mounts, pod, "scratch").stat().st_mode) & 0o777 == 0o777


@pytest.mark.root
async def test_memory_is_a_tmpfs_of_the_given_size_that_goes_with_the_pod(tmp_path: Path) -> None:
    mounts = PodMounts(tmp_path)
    pod = pod_with({"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    await mounts.prepare(pod)
    path = prepared(mounts, pod, "fast")
    assert path.is_mount()
    assert stat.S_IMODE(path.stat().st_mode) == 0o777
    figures = os.statvfs(path)
    assert figures.f_blocks * figures.f_frsize == 2**20
    (path / "data").write_text("x")
    await mounts.remove("uid-1")
    assert mounts_below(tmp_path) == []
    assert not (tmp_path / "pods/uid-1").exists()


@pytest.mark.root
async def test_memory_is_no_more_than_the_pod_may_take_and_the_fs_group_owns_it(tmp_path: Path) -> None:
    mounts, pod = PodMounts(tmp_path), pod_with({"name": "fast", "emptyDir": {"medium": "Memory"}}, fsGroup=4711)
    main = attrs.evolve(pod.spec.containers[0], resources=ResourceRequirements(limits={"memory": Quantity("2Mi")}))
    await mounts.prepare(attrs.evolve(pod, spec=attrs.evolve(pod.spec, containers=(main,))))
    path = prepared(mounts, pod, "fast")
    figures, status = os.statvfs(path), path.stat()
    await mounts.remove("uid-1")
    assert figures.f_blocks * figures.f_frsize == 2 * 2**20
    assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (4711, 0o2777)


@pytest.mark.root
@pytest.mark.parametrize("where", ["volumes/foreign", "volumes/kubernetes.io~empty-dir/scratch/foreign"])
async def test_a_foreign_mount_in_a_pods_folder_is_an_error_and_its_files_stay(tmp_path: Path, where: str) -> None:
    mounts, pod = PodMounts(tmp_path), pod_with({"name": "scratch", "emptyDir": {}})
    await mounts.prepare(pod)
    foreign = tmp_path / "pods/uid-1" / where
    foreign.mkdir()
    mount_tmpfs(foreign, size=None, mode=0o755, group=None)
    try:
        (foreign / "precious").write_text("x")
        with pytest.raises(StillMountedError, match="still mounted, unmount it first") as caught:
            await mounts.remove("uid-1")
        assert caught.value.filename == str(foreign)
        assert (foreign / "precious").exists()
    finally:
        unmount(foreign)
    await mounts.remove("uid-1")
    assert await mounts.pod_uids() == set()


@pytest.mark.root
async def test_a_mount_made_after_the_look_at_the_mounts_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts, pod = PodMounts(tmp_path / "root"), pod_with({"name": "scratch", "emptyDir": {}})
    await mounts.prepare(pod)
    outside, inside = tmp_path / "outside", prepared(mounts, pod, "scratch") / "inside"
    for folder in (outside, inside):
        folder.mkdir()
    (outside / "precious").write_text("x")
    linux.mount(str(outside), str(inside), None, linux.MS_BIND)
    monkeypatch.setattr("trikubelet.volumes.pod_mounts.mounts_below", lambda _: [])
    try:
        with pytest.raises(StillMountedError):
            await mounts.remove("uid-1")
    finally:
        unmount(inside)
    assert (outside / "precious").exists()


async def test_a_cancelled_removal_of_many_folders_ends_soon_and_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts, pod = PodMounts(tmp_path), pod_with({"name": "scratch", "emptyDir": {}})
    await mounts.prepare(pod)
    nest(prepared(mounts, pod, "scratch"), 3000)
    check, scope, checks = trio.from_thread.check_cancelled, trio.CancelScope(), 0

    def cancel_at_the_hundredth() -> None:
        nonlocal checks
        checks += 1
        if checks == 100:
            trio.from_thread.run_sync(scope.cancel)
        check()

    monkeypatch.setattr(trio.from_thread, "check_cancelled", cancel_at_the_hundredth)
    with scope:
        await mounts.remove("uid-1")
    assert scope.cancelled_caught
    assert checks == 100
    assert await mounts.pod_uids() == {"uid-1"}
    await mounts.remove("uid-1")
    assert await mounts.pod_uids() == set()


async def test_removal_follows_no_link(tmp_path: Path) -> None:
    mounts, pod = PodMounts(tmp_path / "root"), pod_with({"name": "scratch", "emptyDir": {}})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").write_text("x")
    await mounts.prepare(pod)
    (prepared(mounts, pod, "scratch") / "link").symlink_to(tmp_path / "outside")
    await mounts.remove("uid-1")
    await mounts.remove("uid-1")
    assert (tmp_path / "outside/precious").exists()


@pytest.mark.parametrize(
    ("kind", "present", "expected"),
    [
        ("", "nothing", None),
        ("DirectoryOrCreate", "nothing", None),
        ("DirectoryOrCreate", "folder", None),
        ("DirectoryOrCreate", "file", "is not a directory"),
        ("Directory", "folder", None),
        ("Directory", "nothing", "is not a directory: it does not exist"),
        ("Directory", "file", "is not a directory"),
        ("FileOrCreate", "nothing", None),
        ("FileOrCreate", "folder", "is not a file"),
        ("File", "file", None),
        ("File", "nothing", "is not a file: it does not exist"),
        ("Socket", "file", "is not a socket file"),
        ("CharDevice", "file", "is not a character device"),
        ("BlockDevice", "folder", "is not a block device"),
        ("Nonsense", "file", "invalid hostPath type"),
    ],
)
async def test_a_host_path_is_what_its_type_says(tmp_path: Path, kind: str, present: str, expected: str | None) -> None:
    target = tmp_path / "target"
    if present == "folder":
        target.mkdir()
    elif present == "file":
        target.write_text("")
    mounts = PodMounts(tmp_path / "root")
    pod = pod_with({"name": "host", "hostPath": {"path": str(target), "type": kind}})
    if expected is None:
        await mounts.prepare(pod)
        assert mounts.host_path(pod, "host") == target
        assert target.exists() == (kind != "" or present != "nothing")
    else:
        with pytest.raises(VolumeError, match=expected):
            await mounts.prepare(pod)


async def test_a_host_path_that_climbs_is_refused(tmp_path: Path) -> None:
    source = {"path": f"{tmp_path}/a/../b", "type": "DirectoryOrCreate"}
    with pytest.raises(VolumeError, match="must not contain"):
        await PodMounts(tmp_path / "root").prepare(pod_with({"name": "host", "hostPath": source}))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("kind", ["", "Directory", "FileOrCreate"])
async def test_a_host_path_that_no_path_can_be_is_refused(tmp_path: Path, kind: str) -> None:
    source = {"path": f"{tmp_path}/a\0b", "type": kind}
    with pytest.raises(VolumeError, match="must not contain a NUL character"):
        await PodMounts(tmp_path / "root").prepare(pod_with({"name": "host", "hostPath": source}))


async def test_a_host_path_that_never_answers_fails_at_the_deadline_and_blocks_no_other_pod(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("trikubelet.volumes.pod_mounts.prepare_host_path", lambda *_: answered.wait())
    mounts, stuck = PodMounts(tmp_path), pod_with({"name": "host", "hostPath": {"path": "/share"}})
    try:
        for _ in range(MAX_THREADS + 1):
            with pytest.raises(VolumeError, match="/share: expected an answer of its file system within 120 s"):
                await mounts.prepare(stuck)
        await mounts.prepare(pod_with({"name": "scratch", "emptyDir": {}}))
        await mounts.remove("uid-1")
    finally:
        answered.set()


async def test_a_kind_that_is_not_there_yet_is_named(tmp_path: Path) -> None:
    pod = pod_with({"name": "config", "configMap": {"name": "settings"}})
    with pytest.raises(VolumeError, match='volume "config": this agent cannot provide configMap volumes yet'):
        await PodMounts(tmp_path).prepare(pod)


@pytest.mark.parametrize("uid", ["", ".", "..", "../outside", "a/b"])
async def test_a_uid_that_names_no_folder_makes_and_removes_nothing(tmp_path: Path, uid: str) -> None:
    mounts = PodMounts(tmp_path / "root")
    await mounts.prepare(pod_with())
    (tmp_path / "root/outside").mkdir()
    pod = pod_with()
    with pytest.raises(VolumeError, match="UID that can name a folder"):
        await mounts.prepare(attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, uid=uid)))
    await mounts.remove(uid)
    assert await mounts.pod_uids() == {"uid-1"}
    assert (tmp_path / "root/outside").exists()


def test_a_sub_path_is_made_in_its_volume_and_not_outside(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    mounts = PodMounts(tmp_path)
    assert mounts.resolve_subpath(tmp_path, "a/b") == tmp_path / "a/b"
    assert (tmp_path / "a/b").is_dir()
    with pytest.raises(ValueError, match="leads out"):
        mounts.resolve_subpath(tmp_path, "link/passwd")


async def test_a_pod_that_comes_back_waits_until_its_old_folder_is_gone(tmp_path: Path) -> None:
    mounts, pod = PodMounts(tmp_path), pod_with({"name": "scratch", "emptyDir": {}})
    await mounts.prepare(pod)
    old = prepared(mounts, pod, "scratch")
    for number in range(2000):
        (old / f"file-{number}").write_text("")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mounts.remove, "uid-1")
        nursery.start_soon(mounts.remove, "uid-1")
        await trio.testing.wait_all_tasks_blocked()
        await mounts.prepare(pod)
    assert list(prepared(mounts, pod, "scratch").iterdir()) == []
