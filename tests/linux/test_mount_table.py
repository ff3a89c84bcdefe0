"""The kernel's table of mounts, read."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from trikubelet.linux.mount_table import Mount, MountTable

ROOT = Mount(point=Path("/"), kind="ext4", device=(98, 0), id=1, parent=0)
PODS = Mount(point=Path("/pods"), kind="xfs", device=(98, 1), id=2, parent=1)


def mount(point: str, number: int, parent: int, *, root: str = "/", device: tuple[int, int] = (0, 9)) -> Mount:
    return Mount(point=Path(point), kind="tmpfs", id=number, parent=parent, root=root, device=device)


def points(mounts: list[Mount]) -> list[str]:
    return [str(found.point) for found in mounts]


def test_a_line_is_read_with_all_that_it_says(tmp_path: Path) -> None:
    line = b"36 35 98:4 /sub\\040folder /mnt/here ro,noatime shared:7 master:1 - nfs4 server:/a rw,vers=4.2\n"
    (tmp_path / "table").write_bytes(line)
    assert MountTable.read(tmp_path / "table").mounts == (
        Mount(
            point=Path("/mnt/here"),
            root="/sub folder",
            source="server:/a",
            kind="nfs4",
            options=("ro", "noatime"),
            super_options=("rw", "vers=4.2"),
            device=(98, 4),
            id=36,
            parent=35,
            shared=True,
        ),
    )


@pytest.mark.parametrize("propagation", ["", "shared:1 ", "shared:1 master:2 propagate_from:3 unbindable "])
def test_a_line_may_have_any_number_of_fields_on_propagation(tmp_path: Path, propagation: str) -> None:
    (tmp_path / "table").write_text(f"36 35 0:9 / /mnt rw {propagation}- tmpfs  rw\n")
    (found,) = MountTable.read(tmp_path / "table").mounts
    assert (found.kind, found.source, found.options) == ("tmpfs", "", ("rw",))


def test_names_are_read_as_they_are_whatever_bytes_they_have(tmp_path: Path) -> None:
    names = [
        b"plain",
        rb"a\040blank",
        rb"a\012line",
        rb"a\134slash",
        b"vertical\x0btab",
        b"no-\xff-text",
        rb"x\040-\040y",
    ]
    lines = [b"36 35 98:0 / /pods/uid/%b rw shared:1 master:2 - tmpfs tmpfs rw\n" % name for name in names]
    (tmp_path / "table").write_bytes(b"".join(lines))
    expected = [b"plain", b"a blank", b"a\nline", b"a\\slash", b"vertical\x0btab", b"no-\xff-text", b"x - y"]
    found = MountTable.read(tmp_path / "table").mounts
    assert [os.fsencode(mount.point.name) for mount in found] == expected


def test_the_table_of_this_process_is_read() -> None:
    root = MountTable.read().at(Path("/"))
    assert root is not None
    assert os.makedev(*root.device) == Path("/").stat().st_dev or root.kind in ("overlay", "btrfs")


def test_a_mount_is_found_exactly_where_it_is() -> None:
    table = MountTable((ROOT, PODS))
    assert table.at(Path("/pods")) == PODS
    assert table.at(Path("/pods/uid")) is None


@pytest.mark.parametrize("reverse", [False, True])
def test_of_several_mounts_at_one_place_the_visible_one_is_found_in_any_order(reverse: bool) -> None:
    stacked = [ROOT, mount("/a", 7, 1), mount("/a", 5, 7), mount("/a", 6, 5)]
    assert MountTable(tuple(reversed(stacked) if reverse else stacked)).at(Path("/a")) == stacked[-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_below_a_folder_comes_in_the_order_to_unmount_it(reverse: bool) -> None:
    mounts = [ROOT, PODS, mount("/pods/uid/v", 9, 2), mount("/pods/uid/v/inner", 4, 9), mount("/pods/uid/v", 3, 9)]
    found = MountTable(tuple(reversed(mounts) if reverse else mounts)).below(Path("/pods/uid"))
    assert points(found)[-1] == "/pods/uid/v"
    assert found[-1].id == 9
    assert {mount.id for mount in found} == {9, 4, 3}


def test_a_folder_whose_name_only_begins_the_same_is_not_below() -> None:
    table = MountTable((ROOT, mount("/pods/uid-2/v", 4, 1), mount("/pods/uid", 5, 1)))
    assert points(table.below(Path("/pods/uid"))) == ["/pods/uid"]


def test_newer_mounts_side_by_side_come_first() -> None:
    table = MountTable((ROOT, mount("/a/1", 2, 1), mount("/a/2", 3, 1)))
    assert points(table.below(Path("/a"))) == ["/a/2", "/a/1"]


def test_mounts_that_name_each_other_as_parents_end_no_search() -> None:
    table = MountTable((mount("/a", 2, 3), mount("/a", 3, 2), mount("/a", 4, 4)))
    assert len(table.below(Path("/a"))) == 3


def test_references_are_the_other_mounts_of_the_same_folder_of_the_same_file_system() -> None:
    device = (98, 1)
    bound = mount("/pods/uid/v", 5, 1, root="/disk/data", device=device)
    again = mount("/pods/other/v", 6, 1, root="/disk/data", device=device)
    other_folder = mount("/pods/other/w", 7, 1, root="/disk", device=device)
    other_device = mount("/pods/other/x", 8, 1, root="/disk/data", device=(98, 2))
    table = MountTable((ROOT, attrs.evolve(PODS, device=device), bound, again, other_folder, other_device))
    assert table.references(Path("/pods/uid/v")) == [again]
    assert table.references(Path("/pods/disk/data")) == [bound, again]
    assert table.references(Path("/pods/disk/data/deeper")) == []


def test_a_file_system_mounted_twice_refers_to_itself() -> None:
    first, second = (
        mount("/plugins/globalmount", 5, 1, device=(8, 1)),
        mount("/pods/uid/v/mount", 6, 1, device=(8, 1)),
    )
    assert MountTable((ROOT, first, second)).references(first.point) == [second]


def test_nothing_refers_to_what_no_mount_holds() -> None:
    assert MountTable(()).references(Path("/a")) == []
