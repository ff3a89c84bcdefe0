"""Descriptors, sockets and limits of groups' processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.node.stats.open_files import OpenFiles, read_open_files

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            {}          1048576              files
"""


def process(proc: Path, pid: int, *targets: str, limit: str = "1024") -> None:
    folder = proc / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)
    (proc / str(pid) / "limits").write_text(LIMITS.format(limit))


def test_descriptors_of_all_processes_count_and_the_limit_is_the_firsts(tmp_path: Path) -> None:
    process(tmp_path, 7, "/dev/null", "socket:[1]", "pipe:[2]")
    process(tmp_path, 8, "socket:[3]", limit="9")
    process(tmp_path, 9, "anon_inode:[eventpoll]", limit="unlimited")
    found = read_open_files(tmp_path, {"web": (7, 8), "other": (9,), "empty": (), "gone": (99,)})
    assert found == {
        "web": OpenFiles(4, 2, 1024),
        "other": OpenFiles(1, 0, -1),
        "empty": OpenFiles(0, 0, None),
        "gone": OpenFiles(0, 0, None),
    }


@pytest.mark.parametrize(("limit", "soft"), [("0", 0), ("unlimited", -1), ("many", None), ("", None)])
def test_a_limit_is_a_number_or_none(tmp_path: Path, limit: str, soft: int | None) -> None:
    process(tmp_path, 7, limit=limit)
    assert read_open_files(tmp_path, {"web": (7,)})["web"].soft_limit == soft


def test_what_is_too_much_to_count_is_left_out(tmp_path: Path) -> None:
    process(tmp_path, 7, *["/dev/null"] * 5)
    process(tmp_path, 8, "socket:[1]", "socket:[2]")
    process(tmp_path, 9, "socket:[3]")
    groups = {"greedy": (7,), "modest": (8,), "last": (9,)}
    found = read_open_files(tmp_path, groups, most=6, most_of_group=4)
    assert found == {
        "greedy": OpenFiles(None, None, 1024),
        "modest": OpenFiles(2, 2, 1024),
        "last": OpenFiles(None, None, 1024),
    }, "four were looked at of the first group, two of the second, and none is left for the third"
