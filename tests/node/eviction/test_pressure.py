"""Nodes that run short of something and recover, round by round: who goes, and what the node says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.node.eviction.situations import (
    DEFAULT,
    HIGH,
    LOW,
    MINUTE,
    Node,
    amounts,
    disk,
    left,
    make_pod,
    memory,
    processes,
    size,
    threshold,
)
from trikubelet.admission.handlers import under_pressure
from trikubelet.api.pod_kinds import FILE_SOURCE, SYSTEM_CRITICAL_PRIORITY
from trikubelet.config.eviction_values import Layout, Signal, Threshold
from trikubelet.node.eviction.model import Observation, PodUsage
from trikubelet.node.eviction.rounds import Reclaim

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import Pod
    from trikubelet.node.eviction.choice import Eviction

S = Signal

GUARANTEED = amounts("100m", "1Gi")
BURSTABLE = (amounts("100m", "100Mi"), amounts("200m", "1Gi"))
FIVE = (
    make_pod("guaranteed-low-priority-high-usage", LOW, GUARANTEED, GUARANTEED),
    make_pod("burstable-below-requests", DEFAULT, *BURSTABLE),
    make_pod("burstable-above-requests", DEFAULT, *BURSTABLE),
    make_pod("best-effort-high-priority-high-usage", HIGH),
    make_pod("best-effort-low-priority-low-usage", LOW),
)
USED_MEMORY = {
    pod.metadata.uid: memory(used) for pod, used in zip(FIVE, ("900Mi", "50Mi", "400Mi", "400Mi", "100Mi"), strict=True)
}
TO_ADMIT = (make_pod("best-effort"), make_pod("burstable", DEFAULT, *BURSTABLE))


def of_memory(available: str) -> dict[Signal, Observation]:
    return dict.fromkeys((S.MEMORY, S.ALLOCATABLE_MEMORY), left(available))


def of_processes(running: str) -> dict[Signal, Observation]:
    return {S.PIDS: Observation(available=2000 - size(running), capacity=2000)}


def went(eviction: Eviction | None) -> tuple[str, int] | None:
    """Who, and with how many seconds."""
    return None if eviction is None else (eviction.pod.metadata.name, eviction.grace)


def admits(node: Node) -> tuple[bool, ...]:
    return tuple(under_pressure(pod, node.conditions()) is None for pod in TO_ADMIT)


def test_memory() -> None:
    node = Node((threshold(S.MEMORY, "1Gi"), threshold(S.MEMORY, "2Gi", grace=2 * MINUTE)), FIVE, USED_MEMORY)
    to_evict = "best-effort-low-priority-low-usage"

    assert node.evicts(of_memory("2Gi")) is None
    assert (node.conditions(), admits(node)) == ((), (True, True))

    # Below the soft threshold: the condition at once, a pod only after the grace period, and with a grace period.
    assert node.evicts(of_memory("1500Mi"), later=MINUTE) is None
    assert node.conditions() == ("MemoryPressure",)
    assert went(node.evicts(of_memory("1500Mi"), later=3 * MINUTE)) == (to_evict, 5)
    assert node.conditions() == ("MemoryPressure",)

    assert node.evicts(of_memory("3Gi"), later=20 * MINUTE) is None
    assert node.conditions() == ()

    # Below the hard one: at once.
    assert went(node.evicts(of_memory("500Mi"), later=MINUTE)) == (to_evict, 1)
    assert (node.conditions(), admits(node)) == (("MemoryPressure",), (False, True))

    # There is enough again: the condition stays for a while.
    assert node.evicts(of_memory("2Gi"), later=MINUTE) is None
    assert (node.conditions(), admits(node)) == (("MemoryPressure",), (False, True))
    assert node.evicts(of_memory("2Gi"), later=5 * MINUTE) is None
    assert (node.conditions(), admits(node)) == ((), (True, True))


def test_memory_of_all_pods() -> None:
    node = Node((threshold(S.ALLOCATABLE_MEMORY, "1Gi"),), FIVE, USED_MEMORY)
    assert node.evicts(of_memory("4Gi")) is None
    assert (node.conditions(), admits(node)) == ((), (True, True))

    assert went(node.evicts(of_memory("500Mi"), later=MINUTE)) == ("best-effort-low-priority-low-usage", 1)
    assert (node.conditions(), admits(node)) == (("MemoryPressure",), (False, True))

    assert node.evicts(of_memory("2Gi"), later=MINUTE) is None
    assert (node.conditions(), admits(node)) == (("MemoryPressure",), (False, True))
    assert node.evicts(of_memory("2Gi"), later=5 * MINUTE) is None
    assert (node.conditions(), admits(node)) == ((), (True, True))


def test_processes() -> None:
    given = {
        "high-priority-high-usage": (HIGH, 900),
        "default-priority-low-usage": (DEFAULT, 100),
        "default-priority-medium-usage": (DEFAULT, 400),
        "low-priority-high-usage": (LOW, 600),
        "low-priority-low-usage": (LOW, 50),
    }
    pods = [make_pod(name, priority) for name, (priority, _) in given.items()]
    usage = {name: processes(count) for name, (_, count) in given.items()}
    node = Node((threshold(S.PIDS, "1200"), threshold(S.PIDS, "1500", grace=2 * MINUTE)), pods, usage)
    to_evict = "low-priority-high-usage"

    assert node.evicts(of_processes("300")) is None
    assert (node.conditions(), admits(node)) == ((), (True, True))
    assert node.evicts(of_processes("700"), later=MINUTE) is None
    assert node.conditions() == ("PIDPressure",)
    assert went(node.evicts(of_processes("700"), later=3 * MINUTE)) == (to_evict, 5)
    assert node.conditions() == ("PIDPressure",)
    assert node.evicts(of_processes("300"), later=20 * MINUTE) is None
    assert node.conditions() == ()
    assert went(node.evicts(of_processes("1200"), later=MINUTE)) == (to_evict, 1)
    assert (node.conditions(), admits(node)) == (("PIDPressure",), (False, False))
    assert node.evicts(of_processes("300"), later=MINUTE) is None
    assert (node.conditions(), admits(node)) == (("PIDPressure",), (False, False))
    assert node.evicts(of_processes("300"), later=5 * MINUTE) is None
    assert (node.conditions(), admits(node)) == ((), (True, True))


DISK_PODS = (
    make_pod("low-priority-high-usage", LOW, GUARANTEED, GUARANTEED),
    make_pod("below-requests", DEFAULT, *BURSTABLE),
    make_pod("above-requests", DEFAULT, *BURSTABLE),
    make_pod("high-priority-high-usage", HIGH),
    make_pod("low-priority-low-usage", LOW),
)


def used_disk(of: str) -> dict[str, PodUsage]:
    return {
        "low-priority-high-usage": disk("low-priority-high-usage", "900Mi", of=of),
        "below-requests": disk("below-requests", "", "50Mi", of=of),
        "above-requests": disk("above-requests", "400Mi", of=of),
        "high-priority-high-usage": disk("high-priority-high-usage", "", "", "400Mi", of=of),
        "low-priority-low-usage": disk("low-priority-low-usage", "100Mi", of=of),
    }


LAYOUTS = [
    pytest.param(Layout.SINGLE, S.NODE_FS, S.NODE_FS, id="all on one"),
    pytest.param(Layout.DEDICATED, S.IMAGE_FS, S.IMAGE_FS, id="images apart"),
    pytest.param(Layout.SPLIT, S.NODE_FS, S.CONTAINER_FS, id="images apart from layers"),
]
"""The layout, whose thresholds there are, and what runs short. Layers have the thresholds of the disk they are on."""
INODES = {
    S.NODE_FS: S.NODE_FS_INODES,
    S.IMAGE_FS: S.IMAGE_FS_INODES,
    S.CONTAINER_FS: S.CONTAINER_FS_INODES,
}


def disks(short: Signal, available: str, *, others: str = "16Gi") -> dict[Signal, Observation]:
    return {**dict.fromkeys((S.NODE_FS, S.IMAGE_FS, S.CONTAINER_FS), left(others)), short: left(available)}


def inodes(short: Signal, available: str) -> dict[Signal, Observation]:
    plenty = left("3Mi", "4Mi")
    return {**dict.fromkeys(INODES.values(), plenty), short: left(available, "4Mi")}


def recover(
    node: Node, observe: Callable[[str], dict[Signal, Observation]], *, plenty: str, soft: str, hard: str
) -> None:
    """A node whose disk runs short, softly and then hard, and recovers each time."""
    to_evict = "low-priority-high-usage"
    assert node.evicts(observe(plenty)) is None
    assert (node.conditions(), admits(node)) == ((), (True, True))
    assert node.evicts(observe(soft), later=MINUTE) is None
    assert node.conditions() == ("DiskPressure",)
    assert went(node.evicts(observe(soft), later=3 * MINUTE)) == (to_evict, 5)
    assert node.evicts(observe(plenty), later=20 * MINUTE) is None
    assert node.conditions() == ()
    assert went(node.evicts(observe(hard), later=MINUTE)) == (to_evict, 1)
    assert (node.conditions(), admits(node)) == (("DiskPressure",), (False, False))
    assert node.evicts(observe(plenty), later=MINUTE) is None
    assert (node.conditions(), admits(node)) == (("DiskPressure",), (False, False))
    assert node.evicts(observe(plenty), later=5 * MINUTE) is None
    assert (node.conditions(), admits(node)) == ((), (True, True))


@pytest.mark.parametrize(("layout", "configured", "short"), LAYOUTS)
def test_disk(layout: Layout, configured: Signal, short: Signal) -> None:
    thresholds = (threshold(configured, "1Gi"), threshold(configured, "2Gi", grace=2 * MINUTE))
    node = Node(thresholds, DISK_PODS, used_disk("bytes"), layout)
    recover(node, lambda available: disks(short, available), plenty="16Gi", soft="1.5Gi", hard="750Mi")


@pytest.mark.parametrize(("layout", "configured", "short"), LAYOUTS)
def test_inodes(layout: Layout, configured: Signal, short: Signal) -> None:
    signal = INODES[configured]
    thresholds = (threshold(signal, "1Mi"), threshold(signal, "2Mi", grace=2 * MINUTE))
    usage = {name: disk(name, used, of="inodes") for name, used in ROOT_INODES.items()}
    node = Node(thresholds, DISK_PODS, usage, layout)
    recover(node, lambda available: inodes(INODES[short], available), plenty="3Mi", soft="1.5Mi", hard="0.5Mi")


ROOT_INODES = {
    "low-priority-high-usage": "900Mi",
    "below-requests": "50Mi",
    "above-requests": "400Mi",
    "high-priority-high-usage": "400Mi",
    "low-priority-low-usage": "100Mi",
}


def test_pods_go_until_the_minimum_is_reclaimed() -> None:
    node = Node((threshold(S.MEMORY, "1Gi", reclaim="500Mi"),), FIVE, USED_MEMORY)
    to_evict = ("best-effort-low-priority-low-usage", 1)
    assert node.evicts(of_memory("2Gi")) is None
    assert node.conditions() == ()
    assert went(node.evicts(of_memory("500Mi"), later=MINUTE)) == to_evict
    assert went(node.evicts(of_memory("1.2Gi"), later=MINUTE)) == to_evict
    assert node.conditions() == ("MemoryPressure",)
    assert node.evicts(of_memory("2Gi"), later=MINUTE) is None
    assert node.conditions() == ("MemoryPressure",)
    assert node.evicts(of_memory("2Gi"), later=5 * MINUTE) is None
    assert node.conditions() == ()


@pytest.mark.parametrize(
    ("layout", "signal", "frees"),
    [
        (Layout.SINGLE, S.NODE_FS, tuple(Reclaim)),
        (Layout.DEDICATED, S.IMAGE_FS, tuple(Reclaim)),
        (Layout.SPLIT, S.NODE_FS, (Reclaim.DEAD_CONTAINERS,)),
        (Layout.SPLIT, S.IMAGE_FS, (Reclaim.UNUSED_IMAGES,)),
    ],
)
def test_nobody_goes_if_enough_is_free_without_that(layout: Layout, signal: Signal, frees: tuple[Reclaim, ...]) -> None:
    node = Node((threshold(signal, "1Gi", reclaim="500Mi"),), DISK_PODS, used_disk("bytes"), layout)
    plenty, short = disks(signal, "16Gi"), disks(signal, "750Mi")
    to_evict = ("low-priority-high-usage", 1)
    assert node.evicts(plenty) is None
    assert (node.conditions(), node.reclaims()) == ((), ())

    # What was unused is enough.
    assert node.evicts(short, later=MINUTE, reclaimed=plenty) is None
    assert (node.conditions(), node.reclaims()) == (("DiskPressure",), frees)
    assert node.evicts(plenty, later=20 * MINUTE) is None
    assert (node.conditions(), node.reclaims()) == ((), ())

    # It is above the threshold, but not by the minimum.
    assert went(node.evicts(short, later=MINUTE, reclaimed=disks(signal, "1.1G"))) == to_evict
    assert node.evicts(plenty, later=20 * MINUTE) is None

    # Nothing could be freed.
    assert went(node.evicts(short, later=MINUTE)) == to_evict
    assert (node.conditions(), node.reclaims()) == (("DiskPressure",), frees)
    assert node.evicts(plenty, later=MINUTE) is None
    assert (node.conditions(), node.reclaims()) == (("DiskPressure",), ())
    assert node.evicts(plenty, later=5 * MINUTE) is None
    assert (node.conditions(), node.reclaims()) == ((), ())


@pytest.mark.parametrize(
    "critical",
    [
        make_pod("static", SYSTEM_CRITICAL_PRIORITY, GUARANTEED, GUARANTEED, source=FILE_SOURCE),
        make_pod("static-without-priority", None, GUARANTEED, GUARANTEED, source=FILE_SOURCE),
        make_pod("critical", SYSTEM_CRITICAL_PRIORITY, GUARANTEED, GUARANTEED),
    ],
    ids=lambda pod: pod.metadata.name,
)
def test_critical_pods_are_spared(critical: Pod) -> None:
    thresholds = (threshold(S.MEMORY, "1Gi"), threshold(S.MEMORY, "2Gi", grace=2 * MINUTE))
    node = Node(thresholds, [critical], {critical.metadata.uid: memory("800Mi")})
    assert node.evicts(of_memory("1500Mi")) is None
    assert node.conditions() == ("MemoryPressure",)
    assert node.evicts(of_memory("1500Mi"), later=3 * MINUTE) is None
    assert node.conditions() == ("MemoryPressure",)
    assert node.evicts(of_memory("3Gi"), later=20 * MINUTE) is None
    assert node.conditions() == ()
    assert node.evicts(of_memory("500Mi"), later=MINUTE) is None
    assert node.conditions() == ("MemoryPressure",)


def test_the_next_one_goes_in_the_place_of_a_critical_one() -> None:
    critical = make_pod("static", LOW, source=FILE_SOURCE)
    node = Node((threshold(S.MEMORY, "1Gi"),), [critical, make_pod("other", HIGH)])
    node.usage = {"static": memory("9Gi"), "other": memory("1Mi")}
    assert went(node.evicts(of_memory("1Mi"))) == ("other", 1)


@pytest.mark.parametrize(("own", "grace"), [(None, 5), (30, 5), (3, 3), (0, 0)])
def test_a_soft_threshold_leaves_a_pod_its_time_up_to_a_maximum(own: int | None, grace: int) -> None:
    soft: tuple[Threshold, ...] = (threshold(S.MEMORY, "1Gi", grace=1),)
    node = Node(soft, [make_pod("p", termination_grace_period_seconds=own)])
    assert node.evicts(of_memory("1Mi")) is None
    assert went(node.evicts(of_memory("1Mi"), later=1)) == ("p", grace)


def test_nobody_goes_twice_for_one_measurement() -> None:
    node = Node((threshold(S.MEMORY, "1Gi"),), FIVE, USED_MEMORY)
    assert node.evicts({S.MEMORY: left("1Mi", at=50.0)}) is not None
    assert node.evicts({S.MEMORY: left("1Mi", at=50.0)}, later=1) is None
    assert node.conditions() == ("MemoryPressure",)
    assert node.evicts({S.MEMORY: left("1Mi", at=51.0)}, later=1) is not None
