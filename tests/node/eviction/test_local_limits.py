"""Pods beyond what they may use of the node's disk."""

from __future__ import annotations

import attrs
import pytest

from tests.node.eviction.situations import Node, amounts, container, disk, left, make_pod, size, threshold
from trikubelet.api import EmptyDirVolumeSource, Pod, Quantity, Volume
from trikubelet.api.pod_kinds import FILE_SOURCE
from trikubelet.config.eviction_values import Layout, Signal
from trikubelet.node.eviction.local_limits import is_limited, over_their_limits, overfills
from trikubelet.node.eviction.model import ContainerUsage, FsUsage, Measurement, PodUsage

GI = 2**30
EMPTY_DIR = Volume(name="v", empty_dir=EmptyDirVolumeSource(size_limit=Quantity("1Gi")))
STORAGE = amounts(disk="1Gi")


def found(pod: Pod, usage: PodUsage, layout: Layout = Layout.SINGLE) -> list[tuple[str, str]]:
    measured = Measurement(observations={}, pods={pod.metadata.uid: usage}, layout=layout)
    return [(each.limit, each.message) for each in over_their_limits([pod], measured)]


def in_volume(used: str) -> PodUsage:
    return PodUsage(volumes={"v": FsUsage(bytes=size(used))})


OF_EMPTY_DIR = ("emptydirfs.limit", 'Usage of EmptyDir volume "v" exceeds the limit "1Gi". ')
OF_POD = (
    "ephemeralpodfs.limit",
    "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
)
OF_CONTAINER = (
    "ephemeralcontainerfs.limit",
    'Container p exceeded its local ephemeral storage limit "1Gi". ',
)


def test_an_empty_dir_may_be_full_but_not_fuller() -> None:
    pod = make_pod("p", volumes=(EMPTY_DIR,))
    assert found(pod, in_volume("1Gi")) == []
    assert found(pod, PodUsage(volumes={"v": FsUsage(bytes=GI + 1)})) == [OF_EMPTY_DIR]


def test_an_overfull_empty_dir_is_told_from_its_volumes_alone() -> None:
    pod = make_pod("p", volumes=(EMPTY_DIR,))
    assert overfills(pod, {"v": GI + 1})
    assert not overfills(pod, {"v": GI})
    assert not overfills(pod, {"v": None, "other": 2 * GI})


@pytest.mark.parametrize(
    ("pod", "limited"),
    [
        (make_pod("p"), False),
        (make_pod("p", limits=amounts(memory="1Gi")), False),
        (make_pod("p", limits=amounts(disk="1Gi")), True),
        (make_pod("p", volumes=(Volume(name="v", empty_dir=EmptyDirVolumeSource()),)), False),
        (make_pod("p", volumes=(Volume(name="v", empty_dir=EmptyDirVolumeSource(size_limit=Quantity(1))),)), True),
    ],
)
def test_what_there_is_to_look_at(pod: Pod, limited: bool) -> None:
    assert is_limited(pod) is limited


def test_an_empty_dir_in_memory_has_its_limit_too() -> None:
    source = EmptyDirVolumeSource(medium="Memory", size_limit=Quantity("1Gi"))
    assert found(make_pod("p", volumes=(Volume(name="v", empty_dir=source),)), in_volume("2Gi")) == [OF_EMPTY_DIR]


@pytest.mark.parametrize("limit", [None, Quantity(0)])
def test_an_empty_dir_may_have_no_limit(limit: Quantity | None) -> None:
    volume = Volume(name="v", empty_dir=EmptyDirVolumeSource(size_limit=limit))
    assert found(make_pod("p", volumes=(volume,)), in_volume("2Gi")) == []


def test_what_was_not_measured_is_within_its_limit() -> None:
    pod = make_pod("p", limits=STORAGE, volumes=(EMPTY_DIR,))
    assert found(pod, PodUsage(volumes={"v": FsUsage()}, containers={"p": ContainerUsage()})) == []
    assert over_their_limits([pod], Measurement(observations={})) == ()


def test_containers_share_the_sum_of_their_limits() -> None:
    pod = make_pod("p", containers=(container("a", limits=amounts(disk="1Gi")), container("b", limits=STORAGE)))
    assert found(pod, PodUsage(ephemeral=2 * GI)) == []
    assert found(pod, PodUsage(ephemeral=2 * GI + 1)) == [(OF_POD[0], OF_POD[1].replace("1Gi", "2Gi"))]


def test_a_pod_without_limits_may_use_what_it_likes() -> None:
    assert found(make_pod("p"), attrs.evolve(disk("p", "9Gi", "9Gi"), ephemeral=20 * GI)) == []


@pytest.mark.parametrize(
    ("root", "logs", "layout", "beyond"),
    [
        ("1Gi", "", Layout.SINGLE, False),
        ("2Gi", "", Layout.SINGLE, True),
        ("", "2Gi", Layout.SINGLE, True),
        ("600Mi", "600Mi", Layout.SINGLE, True),
        ("600Mi", "600Mi", Layout.DEDICATED, False),
        ("2Gi", "", Layout.DEDICATED, False),
        ("", "2Gi", Layout.DEDICATED, True),
        ("2Gi", "", Layout.SPLIT, False),
    ],
)
def test_a_container_has_its_limit(root: str, logs: str, layout: Layout, beyond: bool) -> None:
    """Of layers that are not on the node's disk nothing is counted."""
    pod = make_pod("p", limits=STORAGE)
    assert found(pod, disk("p", root, logs), layout) == ([OF_CONTAINER] if beyond else [])


def test_the_first_limit_is_told() -> None:
    pod = make_pod("p", limits=STORAGE, volumes=(EMPTY_DIR,))
    everything = attrs.evolve(disk("p", "2Gi"), volumes={"v": FsUsage(bytes=2 * GI)}, ephemeral=4 * GI)
    assert found(pod, everything) == [OF_EMPTY_DIR]
    assert found(pod, attrs.evolve(everything, volumes={})) == [OF_POD]
    assert found(pod, attrs.evolve(everything, volumes={}, ephemeral=None)) == [OF_CONTAINER]


def test_critical_pods_may_exceed_their_limits() -> None:
    assert found(make_pod("p", limits=STORAGE, source=FILE_SOURCE), PodUsage(ephemeral=4 * GI)) == []


def three() -> Node:
    """Each is beyond another limit."""
    pods = [
        make_pod("empty-dir", volumes=(EMPTY_DIR,)),
        make_pod("pod", limits=STORAGE),
        make_pod("container", limits=STORAGE),
        make_pod("good", limits=STORAGE, volumes=(EMPTY_DIR,)),
    ]
    node = Node((threshold(Signal.NODE_FS, "1Gi"),), pods, local_limits=True)
    node.usage = {
        "empty-dir": in_volume("2Gi"),
        "pod": PodUsage(ephemeral=2 * GI),
        "container": disk("container", "2Gi"),
        "good": in_volume("1Mi"),
    }
    return node


def test_all_of_them_go_at_once_and_nothing_else_is_done() -> None:
    node = three()
    found = node.look({Signal.NODE_FS: left("200Mi")})
    assert [each.pod.metadata.name for each in found.local] == ["empty-dir", "pod", "container"]
    assert found.conditions == ("DiskPressure",)


def test_limits_hold_on_a_node_that_is_short_of_nothing() -> None:
    node = three()
    assert len(node.look({Signal.NODE_FS: left("16Gi")}).local) == 3
    node.thresholds = ()
    assert len(node.look({}).local) == 3


def test_limits_may_be_switched_off() -> None:
    node = three()
    node.local_limits = False
    assert node.look({Signal.NODE_FS: left("16Gi")}).local == ()
