from __future__ import annotations

from pathlib import Path

from trikubelet.cgroups.hierarchy import parse_hierarchies

V1 = """\
24 30 0:22 / /proc rw,nosuid - proc proc rw
30 1 8:1 / / rw,relatime - ext4 /dev/root rw
31 30 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs ro,mode=755
32 31 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:28 / /sys/fs/cgroup/systemd rw,nosuid shared:10 - cgroup cgroup rw,xattr,name=systemd
34 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:11 - cgroup cgroup rw,cpu,cpuacct
35 31 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:12 - cgroup cgroup rw,memory
36 30 0:30 / /mnt/a\\040longer\\040way/to/memory rw - cgroup cgroup rw,memory
37 31 0:31 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb
"""
V2 = "31 30 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


def test_controllers_of_version_1_are_where_they_are_mounted() -> None:
    found = parse_hierarchies(V1, version=1)
    together = Path("/sys/fs/cgroup/cpu,cpuacct")
    assert found.controllers == {
        "systemd": Path("/sys/fs/cgroup/systemd"),
        "cpu": together,
        "cpuacct": together,
        "memory": Path("/sys/fs/cgroup/memory"),
        "hugetlb": Path("/sys/fs/cgroup/hugetlb"),
    }
    assert found.unified == Path("/sys/fs/cgroup/unified")


def test_hierarchies_are_listed_once() -> None:
    names = [point.name for point in parse_hierarchies(V1, version=1).mount_points]
    assert names == ["systemd", "cpu,cpuacct", "memory", "hugetlb", "unified"]


def test_the_shortest_of_several_mounts_counts() -> None:
    lines = V1.splitlines(keepends=True)
    turned = "".join(reversed(lines))
    assert parse_hierarchies(turned, version=1).controllers["memory"] == Path("/sys/fs/cgroup/memory")
    only_far = "".join(line for line in lines if "/sys/fs/cgroup/memory" not in line)
    assert parse_hierarchies(only_far, version=1).controllers["memory"] == Path("/mnt/a longer way/to/memory")


def test_what_is_missing_of_version_1_is_named() -> None:
    assert parse_hierarchies(V1, version=1).lacking == ("cpuset",)
    assert parse_hierarchies(V2, version=1).lacking == ("cpu", "cpuacct", "cpuset", "memory")


def test_version_2_has_one_hierarchy() -> None:
    found = parse_hierarchies(V2, version=2)
    assert (found.controllers, found.unified, found.lacking) == ({}, Path("/sys/fs/cgroup"), ())
