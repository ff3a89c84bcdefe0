"""hostPath volumes, of pods and persistent."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import trio

from tests.volumes.set_ups import UID, claimed, persistent_volume, pod_with, request
from trikubelet.volumes.disk import MAX_THREADS, Disk
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.kinds.host_path import HostPathKind
from trikubelet.volumes.kinds.image import ImageKind

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.volumes.kinds.protocol import VolumeKind
    from trikubelet.volumes.model import SetUpRequest


def make_kind(root: Path) -> HostPathKind:
    return HostPathKind(root=root, disk=Disk())


def asked(kind: HostPathKind, path: Path | str, type_: str | None = None) -> SetUpRequest:
    source: dict[str, Any] = {"path": str(path)} | ({} if type_ is None else {"type": type_})
    return request(kind, pod_with({"name": "host", "hostPath": source}))


@pytest.mark.parametrize(
    ("kind", "present", "expected"),
    [
        ("", "nothing", None),
        ("DirectoryOrCreate", "nothing", None),
        ("DirectoryOrCreate", "folder", None),
        ("DirectoryOrCreate", "file", "is not a directory"),
        ("Directory", "folder", None),
        ("Directory", "link", None),
        ("Directory", "nothing", "is not a directory: it does not exist"),
        ("Directory", "file", "is not a directory"),
        ("FileOrCreate", "nothing", None),
        ("FileOrCreate", "file", None),
        ("FileOrCreate", "folder", "is not a file"),
        ("File", "file", None),
        ("File", "nothing", "is not a file: it does not exist"),
        ("Socket", "socket", None),
        ("Socket", "file", "is not a socket file"),
        ("CharDevice", "character device", None),
        ("CharDevice", "file", "is not a character device"),
        ("BlockDevice", "folder", "is not a block device"),
        ("Nonsense", "file", "invalid hostPath type"),
    ],
)
async def test_a_path_is_what_its_type_says(tmp_path: Path, kind: str, present: str, expected: str | None) -> None:
    target = tmp_path / "target"
    match present:
        case "folder":
            target.mkdir()
        case "link":
            target.symlink_to(tmp_path)
        case "file":
            target.write_text("")
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(target))
        case "character device":
            target.symlink_to("/dev/null")
    host_path = make_kind(tmp_path / "root")
    if expected is None:
        mounted = await host_path.set_up(asked(host_path, target, kind))
        assert mounted.path == target
        assert os.path.lexists(target) == (kind != "" or present != "nothing")
    else:
        with pytest.raises(VolumeError, match=expected):
            await host_path.set_up(asked(host_path, target, kind))


async def test_what_is_created_has_the_modes_of_the_kubelet(tmp_path: Path) -> None:
    kind, mask = make_kind(tmp_path / "root"), os.umask(0)
    try:
        await kind.set_up(asked(kind, tmp_path / "folder", "DirectoryOrCreate"))
        await kind.set_up(asked(kind, tmp_path / "file", "FileOrCreate"))
    finally:
        os.umask(mask)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


async def test_a_path_without_a_type_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("there was a thread or a look")

    kind = make_kind(tmp_path)
    asking = asked(kind, "/away/share")
    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)
    monkeypatch.setattr(os, "stat", refuse)
    mounted = await kind.set_up(asking)
    await kind.tear_down(UID, "host")
    monkeypatch.undo()
    assert str(mounted.path) == "/away/share"


@pytest.mark.parametrize("kind", ["", "DirectoryOrCreate"])
@pytest.mark.parametrize(
    ("path", "problem"), [("a/../b", r"must not contain '\.\.'"), ("a\0b", "must not contain a NUL character")]
)
async def test_a_path_that_no_path_may_be_is_refused(tmp_path: Path, kind: str, path: str, problem: str) -> None:
    host_path = make_kind(tmp_path / "root")
    with pytest.raises(VolumeError, match=f"invalid HostPath .*{problem}"):
        await host_path.set_up(asked(host_path, f"{tmp_path}/{path}", kind))
    assert not (tmp_path / "b").exists()


async def test_a_path_that_never_answers_fails_at_the_deadline(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("trikubelet.volumes.kinds.host_path.prepare_host_path", lambda *_: answered.wait())
    kind = make_kind(tmp_path)
    try:
        for _ in range(MAX_THREADS + 1):
            with pytest.raises(VolumeError, match="/share: expected an answer of its file system within 120 s"):
                await kind.set_up(asked(kind, "/share", "Directory"))
    finally:
        answered.set()


async def test_nothing_is_left_of_it_and_nothing_of_the_node_is_removed(tmp_path: Path) -> None:
    kind: VolumeKind = make_kind(tmp_path / "root")
    (tmp_path / "data").write_text("x")
    await kind.set_up(asked(make_kind(tmp_path / "root"), tmp_path, "Directory"))
    await kind.tear_down(UID, "host")
    assert (tmp_path / "data").exists()
    assert not (tmp_path / "root").exists()
    assert await kind.reconstruct(UID, "host") is None


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_persistent_one_is_checked_alike(tmp_path: Path, read_only: bool) -> None:
    kind = make_kind(tmp_path / "root")
    source = {"hostPath": {"path": str(tmp_path / "made"), "type": "DirectoryOrCreate"}}
    asking = claimed(kind, persistent_volume(source), read_only=read_only)
    mounted = await kind.set_up(asking)
    assert (mounted.path, mounted.read_only) == (tmp_path / "made", read_only)
    assert (tmp_path / "made").is_dir()
    assert kind.unique_name(asking.spec, UID) == "kubernetes.io/host-path/uid-1-pv-1"


async def test_a_volume_without_a_host_path_is_refused(tmp_path: Path) -> None:
    kind = make_kind(tmp_path)
    with pytest.raises(VolumeError, match="expected a hostPath volume"):
        await kind.set_up(claimed(kind, persistent_volume({})))


async def test_an_image_is_the_runtimes_business(tmp_path: Path) -> None:
    kind: VolumeKind = ImageKind(root=tmp_path)
    mounted = await kind.set_up(request(kind, pod_with({"name": "models", "image": {"reference": "models:1"}})))
    assert (mounted.path, mounted.read_only) == (None, True)
    await kind.tear_down(UID, "models")
    assert list(tmp_path.iterdir()) == []
