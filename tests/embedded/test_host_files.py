"""Which mounts of the machine a container on its own files may have."""

from __future__ import annotations

import pytest

from trikubelet.embedded.keeper.host_files import Mount, file_systems, reachable


def mounts(*lines: str) -> list[Mount]:
    """Make them of the number, the parent's number and the mount point."""
    found = []
    for line in lines:
        number, parent, path = line.split()
        found.append(Mount(f"{number} {parent} 0:1 / {path} rw - ext4 disk rw".encode()))
    return found


@pytest.mark.parametrize(
    ("table", "reached"),
    [
        (["5 1 /", "6 5 /etc", "7 6 /etc/x"], ["/", "/etc", "/etc/x"]),
        (["6 5 /etc", "5 1 /"], ["/etc", "/"]),
        (["5 1 /", "6 5 /etc/x", "7 5 /etc"], ["/", "/etc"]),
        (["5 1 /", "6 5 /etc", "7 6 /etc/x", "8 6 /etc", "9 8 /etc/y"], ["/", "/etc", "/etc/y"]),
        (["5 1 /", "6 5 /etc/x", "7 6 /etc/x/y", "8 5 /etc"], ["/", "/etc"]),
        (["5 1 /", "6 5 /var", "7 5 /var-2"], ["/", "/var", "/var-2"]),
        (["5 5 /", "6 5 /etc"], ["/", "/etc"]),
    ],
    ids=["one in another", "in any order", "over a file", "twice", "over two", "names alike", "its own parent"],
)
def test_what_is_hidden_by_a_later_mount_is_left_out(table: list[str], reached: list[str]) -> None:
    assert [mount.path for mount in reachable(mounts(*table))] == reached


def test_a_mount_below_one_that_is_taken_comes_with_it() -> None:
    assert file_systems(["/etc/secret"], mounts("5 1 /", "6 5 /etc", "7 6 /etc/x", "8 5 /home")) == ["/etc", "/home"]
