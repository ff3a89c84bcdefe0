"""Finding the groups of containers and pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

import pytest

from tests.node.stats.node_files import Layout, NodeFiles
from trikubelet.node.stats.cgroup_places import CgroupPlaces, pod_group, processes_of

if TYPE_CHECKING:
    from pathlib import Path

ID: Final = "9be25294016e2dc0340dd605ce1f57b492039b267a6a618a7ad2a7a58a740f32"
UID: Final = "2fc932ce-fdcc-454b-97bd-aadfdeb4c340"
LAYOUTS: Final = get_args(Layout)

PATHS: Final = (
    f"/kubepods/burstable/pod{UID}/{ID}",
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
    f"/cri-containerd-{ID}.scope",
    f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope",
    f"/trikubelet-9ead2ba1/{ID}",
    f"/k8s.io/{ID}",
    f"/system.slice/containerd.service/kubepods-besteffort-pod{UID}.slice:cri-containerd:{UID}/{ID}",
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("path", PATHS)
def test_a_container_is_found_by_its_id_wherever_the_driver_puts_it(tmp_path: Path, layout: Layout, path: str) -> None:
    node = NodeFiles(tmp_path, layout)
    node.group("/other/" + "0" * 64, pid=6)
    node.group(path, pid=7)
    places = node.places()
    places.locate({ID})
    place = places.find(ID)
    assert place is not None
    assert place.path == path
    assert processes_of(place) == [7]
    if layout == "v2":
        assert place.unified == f"{tmp_path}/cgroup{path}"
    else:
        assert place.controllers["memory"] == f"{tmp_path}/cgroup/memory{path}"
        assert place.controllers["cpuacct"] == place.controllers["cpu"] == f"{tmp_path}/cgroup/cpu,cpuacct{path}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("path", PATHS[:3])
def test_a_pod_is_found_by_its_uid(tmp_path: Path, layout: Layout, path: str) -> None:
    node = NodeFiles(tmp_path, layout)
    node.group(path, pid=7)
    places = node.places()
    places.locate({pod_group(UID)})
    place = places.find(pod_group(UID))
    assert place is not None
    assert place.path == path.rpartition("/")[0]


def test_in_v1_a_container_may_be_at_another_place_in_each_tree(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path, "v1")
    node.write(f"cgroup/cpu,cpuacct/k8s/{ID}/cgroup.procs", "7\n")
    node.write(f"cgroup/memory/user.slice/k8s/{ID}/cgroup.procs", "7\n")
    node.process(7, {"cpu,cpuacct": f"/k8s/{ID}", "memory": f"/user.slice/k8s/{ID}/below", "pids": "/", "blkio": "/"})
    places = node.places()
    places.locate({ID})
    place = places.find(ID)
    assert place is not None
    assert place.controllers == {
        "memory": f"{tmp_path}/cgroup/memory/user.slice/k8s/{ID}",
        "cpu": f"{tmp_path}/cgroup/cpu,cpuacct/k8s/{ID}",
        "cpuacct": f"{tmp_path}/cgroup/cpu,cpuacct/k8s/{ID}",
    }, "the process's own sub-group is not the container, and the root is not either"


def test_processes_may_all_be_in_groups_below(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    node.group(f"/k8s.io/{ID}")
    node.group(f"/k8s.io/{ID}/init.scope", pid=11)
    node.group(f"/k8s.io/{ID}/system.slice/a.service", pid=12)
    places = node.places()
    places.locate({ID})
    place = places.find(ID)
    assert place is not None
    assert sorted(processes_of(place)) == [11, 12]


def test_conmon_is_not_the_container_that_it_watches(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    node.group(f"/a/crio-conmon-{ID}.scope", pid=1)
    places = node.places()
    places.locate({ID})
    assert places.find(ID) is None


def test_what_is_known_is_not_looked_for_again_and_what_left_is_forgotten(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    node.group(f"/a/{ID}", pid=7)
    places = node.places()
    places.locate({ID})
    node.group(f"/b/{ID}", pid=7)
    places.locate({ID})
    place = places.find(ID)
    assert place is not None
    assert place.path == f"/a/{ID}"
    places.locate(set())
    assert places.find(ID) is None


def test_after_three_walks_in_vain_a_container_counts_as_one_without_a_group(tmp_path: Path) -> None:
    node = NodeFiles(tmp_path)
    places = node.places()
    for _ in range(3):
        places.locate({ID})
    node.group(f"/a/{ID}", pid=7)
    places.locate({ID})
    assert places.find(ID) is None
    places.locate(set())
    places.locate({ID})
    assert places.find(ID) is not None, "it is looked for again when it came anew"


def test_a_mount_of_a_part_of_the_tree_shows_paths_below_it(tmp_path: Path) -> None:
    folder = tmp_path / "cgroup"
    (folder / f"pods/{ID}").mkdir(parents=True)
    (folder / f"pods/{ID}/cgroup.procs").write_text("")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"20 1 0:1 /docker/x {folder} rw - cgroup2 cgroup2 rw\n")
    places = CgroupPlaces(tmp_path)
    assert places.at("/elsewhere") is None
    places.locate({ID})
    place = places.find(ID)
    assert place is not None
    assert (place.path, place.unified) == (f"/docker/x/pods/{ID}", f"{folder}/pods/{ID}")


def test_a_machine_without_cgroups_has_no_places(tmp_path: Path) -> None:
    places = CgroupPlaces(tmp_path)
    assert not places.usable
    assert places.root() is None
    places.locate({ID})
    assert places.find(ID) is None


@pytest.mark.parametrize(
    ("layout", "where", "own"),
    [
        ("v2", "/system.slice/agent.service", "/system.slice/agent.service"),
        ("v2", "/", None),
        ("v1", "/system.slice/agent.service", "/system.slice/agent.service"),
        ("hybrid", {"cpu,cpuacct": "/a", "memory": "/a", "pids": "/", "": "/user.slice"}, "/a"),
        ("v1", {"cpu,cpuacct": "/", "memory": "/user.slice"}, None),
    ],
)
def test_the_agents_own_group_is_one_that_it_has_for_itself(
    tmp_path: Path, layout: Layout, where: str | dict[str, str], own: str | None
) -> None:
    node = NodeFiles(tmp_path, layout)
    for path in ("/system.slice/agent.service", "/a", "/user.slice"):
        node.group(path)
    node.process(5, where)
    (node.proc / "self/cgroup").write_text((node.proc / "5/cgroup").read_text())
    place = node.places().own()
    assert (None if place is None else place.path) == own
