from __future__ import annotations

from pathlib import Path

import pytest

from tests.cgroups.pods import MI
from tests.cgroups.test_hierarchy import V1, V2
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.cgroups.version import (
    CGROUP_V1_REFUSED,
    CGROUP_V1_WARNING,
    KERNEL_WARNING,
    SINGLE_OOM_KILL_REFUSED,
    CgroupFindings,
    examine,
    max_processes,
    online_cpus,
    read_hierarchies,
)

COMPLETE = Hierarchies(1, {name: Path("/sys/fs/cgroup") / name for name in ("cpu", "cpuacct", "cpuset", "memory")})


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for size in (2048, 1048576):
        (root / f"sys/kernel/mm/hugepages/hugepages-{size}kB").mkdir(parents=True)
    return root


@pytest.mark.parametrize(("controllers", "sizes"), [("cpu memory hugetlb\n", (2 * MI, 1024 * MI)), ("cpu\n", ())])
def test_a_machine_with_version_2(tmp_path: Path, controllers: str, sizes: tuple[int, ...]) -> None:
    root = machine(tmp_path, {"sys/fs/cgroup/cgroup.controllers": controllers, "proc/self/mountinfo": V2})
    assert read_hierarchies(root) == Hierarchies(2, {}, root / "sys/fs/cgroup", sizes)


def test_a_machine_with_version_1(tmp_path: Path) -> None:
    found = read_hierarchies(machine(tmp_path, {"proc/self/mountinfo": V1}))
    assert (found.version, found.page_sizes) == (1, (2 * MI, 1024 * MI))
    assert "memory" in found.controllers
    (tmp_path / "proc/self/mountinfo").write_text(V1.replace("hugetlb", "other"))
    assert read_hierarchies(tmp_path).page_sizes == ()


def test_version_1_runs_only_where_it_is_allowed() -> None:
    assert examine(COMPLETE, fail_cgroup_v1=True) == CgroupFindings(problem=CGROUP_V1_REFUSED)
    assert examine(COMPLETE, fail_cgroup_v1=False) == CgroupFindings(event=CGROUP_V1_WARNING)
    assert CGROUP_V1_REFUSED.startswith("kubelet is configured to not run on a host using cgroup v1. ")


def test_version_1_cannot_kill_all_processes_of_a_container_together() -> None:
    for asked, problem in ((False, SINGLE_OOM_KILL_REFUSED), (True, None), (None, None)):
        assert examine(COMPLETE, fail_cgroup_v1=False, single_process_oom_kill=asked).problem == problem


def test_controllers_that_are_not_mounted_stop_the_start() -> None:
    partly = Hierarchies(1, {"cpu": Path("/c"), "memory": Path("/m")})
    assert examine(partly, fail_cgroup_v1=False).problem == (
        "system validation failed - Following Cgroup subsystem not mounted: [cpuacct cpuset]"
    )


def test_an_old_kernel_of_version_2_is_named(tmp_path: Path) -> None:
    hierarchies = Hierarchies(2, {}, tmp_path)
    assert examine(hierarchies, fail_cgroup_v1=True) == CgroupFindings(warning=KERNEL_WARNING)
    (tmp_path / "cpu.stat").touch()
    assert examine(hierarchies, fail_cgroup_v1=True, single_process_oom_kill=False) == CgroupFindings()


def test_what_else_the_machine_says(tmp_path: Path) -> None:
    assert (online_cpus(tmp_path), max_processes(tmp_path)) == (None, None)
    machine(
        tmp_path,
        {
            "sys/devices/system/cpu/online": "0-3,8\n",
            "proc/sys/kernel/pid_max": "4194304\n",
            "proc/sys/kernel/threads-max": "126000\n",
        },
    )
    assert (online_cpus(tmp_path), max_processes(tmp_path)) == ("0-3,8", 126_000)
