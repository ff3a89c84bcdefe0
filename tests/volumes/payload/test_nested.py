"""Volumes that are mounted inside of others."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from trikubelet.api import Container, Pod, PodSpec, VolumeMount
from trikubelet.volumes.payload.files import PayloadError
from trikubelet.volumes.payload.nested import make_mount_points, nested_mount_points

if TYPE_CHECKING:
    from pathlib import Path


def container(name: str, **mounts: str) -> Container:
    """Volumes by name, with the path in the container; `a_2` is the volume `a` once more."""
    return Container(
        name=name,
        volume_mounts=tuple(VolumeMount(name=volume.split("_")[0], mount_path=path) for volume, path in mounts.items()),
    )


@pytest.mark.parametrize(
    ("mounts", "points"),
    [
        ({"a": "/dir", "b": "/other"}, ()),
        ({"a": "/dir", "b": "/dir/nested"}, ("nested",)),
        ({"a": "/dir", "b": "/dir/deep/er"}, ("deep/er",)),
        ({"a": "/dir", "b": "/dir2/nested", "c": "/dirty"}, ()),
        ({"a": "/dir", "b": "/dir/nested", "c": "/dir/nested/double"}, ("nested",)),
        (
            {"a": "/dir", "b": "/dir/nested/double", "c": "/dir/nested-vol", "d": "/dir/nested", "e": "/dir/nested2"},
            ("nested", "nested-vol", "nested2"),
        ),
        ({"a": "//dir/", "b": "/dir/./x//y/../nested/"}, ("x/nested",)),
        ({"a": "/dir", "a_2": "/dir/self"}, ("self",)),
        ({"a": "/one", "a_2": "/two", "b": "/one/x", "c": "/two/x", "d": "/two/y"}, ("x", "y")),
        ({"b": "/dir", "a": "/dir/nested"}, ()),
        ({"a": "/dir", "b": "dir/nested"}, ()),
        ({"a": "/dir", "b": "/dir/../../dir/nested"}, ("nested",)),
    ],
)
def test_the_outermost_places_inside_are_found(mounts: dict[str, str], points: tuple[str, ...]) -> None:
    pod = Pod(spec=PodSpec(containers=(container("main", **mounts),)))
    assert nested_mount_points(pod, "a") == points


def test_every_container_counts_for_itself() -> None:
    pod = Pod(
        spec=PodSpec(
            init_containers=(container("init", a="/a", b="/a/init"),),
            containers=(container("one", a="/a", b="/b/x"), container("two", a="/b", b="/b/two")),
        )
    )
    assert nested_mount_points(pod, "a") == ("init", "two")


def test_a_place_outside_of_the_container_is_refused() -> None:
    pod = Pod(spec=PodSpec(containers=(container("main", a="../../etc", b="../../etc/x"),)))
    with pytest.raises(PayloadError, match=r"^invalid container mount point ../../etc$"):
        nested_mount_points(pod, "a")


def test_mount_points_are_made_whatever_the_umask_is_and_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "link").symlink_to("..data")
    (tmp_path / "there").mkdir(mode=0o700)
    old = os.umask(0o077)
    try:
        for _ in range(2):
            make_mount_points(tmp_path, ("a/b", "there/x", "link/y"))
    finally:
        os.umask(old)
    modes = {path: stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("a", "a/b", "there", "there/x")}
    assert modes == {"a": 0o755, "a/b": 0o755, "there": 0o700, "there/x": 0o755}
    assert list((tmp_path / "..data").iterdir()) == []
