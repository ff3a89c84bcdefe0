"""How limits are written into the files of cgroups, on both versions."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cgroup_folders import cgroups_with
from trikubelet.embedded.keeper import cgroups
from trikubelet.embedded.keeper.cgroups import Cgroups, ContainerCgroup
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

CHANGES = {
    "cpu_period": 50_000,
    "cpu_quota": 10_000,
    "memory_limit_in_bytes": 100,
    "memory_swap_limit_in_bytes": 150,
    "cpuset_cpus": "1-2",
    "cpuset_mems": "0",
    "hugepage_limits": {"2MB": 4096},
}


def test_v2_takes_a_change_in_its_own_files(tmp_path: Path) -> None:
    expected = {
        "cpu.max": "10000 50000",
        "memory.max": "100",
        "memory.swap.max": "50",
        "cpuset.cpus": "1-2",
        "cpuset.mems": "0",
        "hugetlb.2MB.max": "4096",
    }
    for name in expected:
        (tmp_path / name).touch()
    ContainerCgroup(str(tmp_path), {}).update(CHANGES)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == expected


def test_v1_writes_a_period_that_the_old_quota_exceeds_after_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel does beneath a pod's group that has half a processor."""
    files = {"cpu.cfs_period_us": 100_000, "cpu.cfs_quota_us": 50_000}
    written = []

    def write(path: str, text: str) -> None:
        name = Path(path).name
        after = {**files, name: int(text)} if name in files else files
        if after["cpu.cfs_quota_us"] / after["cpu.cfs_period_us"] > 0.5:
            raise OSError(errno.EINVAL, "Invalid argument")
        files.update(after)
        written.append(name)

    monkeypatch.setattr(cgroups, "write_file", write)
    group = ContainerCgroup(None, {"cpu": "/cpu", "cpuset": "/cpuset"})
    group.update({"cpu_period": 50_000, "cpu_quota": 25_000, "cpuset_cpus": "0"})
    assert files == {"cpu.cfs_period_us": 50_000, "cpu.cfs_quota_us": 25_000}
    assert written == ["cpu.cfs_quota_us", "cpuset.cpus", "cpu.cfs_period_us"]
    with pytest.raises(OSError, match="Invalid argument"):
        group.update({"cpu_period": 100_000, "cpu_quota": 90_000})


OWN_GROUPS = {
    "net_cls": "/",
    "net_prio": "/",
    "perf_event": "/agent",
    "name=systemd": "/agent",
    "name=mine": "/",
    "": "/",
}


def cgroups_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroups:
    """Those of a machine that has hierarchies without limits alone, mounted in folders."""
    mounted = {
        "net": {"rw", "net_cls", "net_prio"},
        "perf_event": {"rw", "perf_event"},
        "systemd": {"rw", "xattr", "name=systemd"},
        "mine": {"rw", "name=mine"},
        "elsewhere/perf_event": {"rw", "perf_event"},
    }
    mounts = [("cgroup", str(folder / name), "/", options) for name, options in mounted.items()]
    monkeypatch.setattr(cgroups, "_cgroup_mounts", lambda: mounts)
    monkeypatch.setattr(cgroups, "_own_groups", lambda: OWN_GROUPS)
    return Cgroups("runtime")


def folders(top: Path, name: str) -> list[str]:
    return sorted(str(path.parent.relative_to(top)) for path in top.rglob(name))


def test_a_container_gets_a_group_in_every_hierarchy_of_v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cgroups_of(tmp_path, monkeypatch)
    assert (made.usable, made.limits, made.problems) == (True, [], [])
    (tmp_path / "net" / "kubepods" / "pod").mkdir(parents=True)
    group = made.create("c1", "/kubepods/pod", {}, privileged=False, devices=[])
    below_runtime = ["mine/runtime", "perf_event/agent/runtime", "systemd/runtime"]
    assert folders(tmp_path, "c1") == [below_runtime[0], "net/kubepods/pod", *below_runtime[1:]]
    assert group.views == {}
    assert group.remove()
    assert folders(tmp_path, "c1") == []
    made.remove()
    assert folders(tmp_path, "runtime") == []


def test_what_cannot_be_made_as_a_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cgroups_of(tmp_path, monkeypatch)
    made._others["last"] = str(tmp_path / "file" / "runtime")
    made._mounts["last"] = str(tmp_path / "file")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        made.create("c1", "", {}, privileged=False, devices=[])
    assert folders(tmp_path, "c1") == []


def test_a_hierarchy_that_is_mounted_nowhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN_GROUPS, "freezer", "/")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    expected = "cgroup freezer: not mounted here, so containers have no groups of their own"
    assert cgroups_of(tmp_path, monkeypatch).problems == [expected]


@pytest.mark.root
async def test_a_container_starts_in_a_group_of_a_pod_that_nobody_prepared(node: Node, tmp_path: Path) -> None:
    name = f"trikubelet-test-{tmp_path.name[-20:]}"
    try:
        sandbox = await node.sandbox(cgroup_parent=f"/{name}/pod")
        container = await node.launch(sandbox, ["sleep", "1000"])
        group = node.cri._inventory.container(container).cgroup or {}
        cpuset = (group.get("controllers") or {}).get("cpuset")
        if cpuset is not None:  # v1, which takes no process without CPUs
            assert f"/{name}/pod/" in cpuset
            assert (Path(cpuset) / "cpuset.cpus").read_text().strip() != ""
        limits = v1.LinuxContainerResources(cpuset_cpus="0")
        await node.cri.update_container_resources(
            v1.UpdateContainerResourcesRequest(container_id=container, linux=limits)
        )
        allowed = await node.exec(container, ["grep", "Cpus_allowed_list", "/proc/1/status"])
        if "cpuset" in node.cri.capabilities()["limits"]:
            assert allowed.stdout.split() == [b"Cpus_allowed_list:", b"0"]
        await node.remove_everything()
    finally:
        for path in sorted(cgroups_with(name), key=lambda path: -len(path.parts)):
            for below in (*path.glob("*/"), path):
                below.rmdir()
