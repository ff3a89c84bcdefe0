"""Thresholds out of a configuration."""

from __future__ import annotations

import struct

import pytest

from tests.node.eviction.situations import amount, threshold
from trikubelet.api import Quantity
from trikubelet.config.eviction_thresholds import (
    DEFAULT_HARD,
    ThresholdsError,
    eviction_config,
    for_layout,
    parse_percentage,
    parse_thresholds,
    unused,
    with_allocatable,
)
from trikubelet.config.eviction_values import Amount, Layout, Signal, Threshold
from trikubelet.config.kubelet_configuration import KubeletConfiguration

S = Signal


def single(number: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def part(percent: float) -> float:
    return single(single(percent) / 100)


def parse(
    hard: dict[str, str] | None = None,
    soft: dict[str, str] | None = None,
    grace: dict[str, str] | None = None,
    reclaim: dict[str, str] | None = None,
    enforced: tuple[str, ...] = (),
) -> tuple[Threshold, ...]:
    return parse_thresholds(
        hard=hard or {}, soft=soft or {}, soft_grace=grace or {}, min_reclaim=reclaim or {}, enforced=enforced
    )


def test_of_nothing_there_is_nothing() -> None:
    assert parse() == ()


def test_memory_hard_and_soft_and_allocatable() -> None:
    memory = "memory.available"
    found = parse({memory: "150Mi"}, {memory: "300Mi"}, {memory: "30s"}, {memory: "0"}, ("pods",))
    assert found == (
        threshold(S.MEMORY, "150Mi", reclaim="0"),
        threshold(S.MEMORY, "300Mi", grace=30, reclaim="0"),
        threshold(S.ALLOCATABLE_MEMORY, "150Mi", reclaim="0"),
    )


def test_memory_in_percent() -> None:
    memory = "memory.available"
    assert parse({memory: "10%"}, {memory: "30%"}, {memory: "30s"}, {memory: "5%"}) == (
        threshold(S.MEMORY, part(10), reclaim=part(5)),
        threshold(S.MEMORY, part(30), grace=30, reclaim=part(5)),
    )


@pytest.mark.parametrize(
    ("image", "node", "signals"),
    [
        ("imagefs.available", "nodefs.available", (S.IMAGE_FS, S.NODE_FS)),
        ("imagefs.inodesFree", "nodefs.inodesFree", (S.IMAGE_FS_INODES, S.NODE_FS_INODES)),
    ],
)
def test_disks_and_inodes(image: str, node: str, signals: tuple[Signal, Signal]) -> None:
    found = parse(
        {image: "150Mi", node: "100Mi"},
        {image: "300Mi", node: "200Mi"},
        {image: "30s", node: "30s"},
        {image: "2Gi", node: "1Gi"},
    )
    assert found == (
        threshold(signals[0], "150Mi", reclaim="2Gi"),
        threshold(signals[1], "100Mi", reclaim="1Gi"),
        threshold(signals[0], "300Mi", grace=30, reclaim="2Gi"),
        threshold(signals[1], "200Mi", grace=30, reclaim="1Gi"),
    )


def test_disks_in_percent() -> None:
    image, node = "imagefs.available", "nodefs.available"
    found = parse(
        {image: "15%", node: "10.5%"},
        {image: "30%", node: "20.5%"},
        {image: "30s", node: "30s"},
        {image: "10%", node: "5%"},
    )
    assert found == (
        threshold(S.IMAGE_FS, part(15), reclaim=part(10)),
        threshold(S.NODE_FS, part(10.5), reclaim=part(5)),
        threshold(S.IMAGE_FS, part(30), grace=30, reclaim=part(10)),
        threshold(S.NODE_FS, part(20.5), grace=30, reclaim=part(5)),
    )


@pytest.mark.parametrize("off", ["0%", "100%"])
def test_some_percentages_mean_no_threshold_and_need_no_grace_period(off: str) -> None:
    assert parse({"memory.available": off}, {"memory.available": off}) == ()


@pytest.mark.parametrize(
    ("field", "entry", "value"),
    [
        ("hard", "mem.available", "150Mi"),
        ("hard", "memory.available", "-150Mi"),
        ("hard", "memory.available", "0"),
        ("hard", "memory.available", "-15%"),
        ("hard", "memory.available", "150%"),
        ("hard", "memory.available", ""),
        ("hard", "memory.available", "10..5%"),
        ("hard", "memory.available", "nan%"),
        ("hard", "memory.available", "1e99%"),
        ("soft", "memory.available", "-150Mi"),
        ("soft", "memory.available", "150Mi"),  # without a grace period
        ("grace", "mem.available", "30s"),
        ("grace", "memory.available", "30mins"),
        ("grace", "memory.available", "-30s"),
        ("reclaim", "mem.available", "300Mi"),
        ("reclaim", "memory.available", "-300Mi"),
        ("reclaim", "memory.available", ""),
        ("reclaim", "memory.available", "-15%"),
        ("reclaim", "memory.available", "0%"),
        ("reclaim", "memory.available", "10..5%"),
        ("reclaim", "memory.available", "1e999%"),
    ],
)
def test_what_is_no_threshold_is_refused(field: str, entry: str, value: str) -> None:
    names = {
        "hard": "evictionHard",
        "soft": "evictionSoft",
        "grace": "evictionSoftGracePeriod",
        "reclaim": "evictionMinimumReclaim",
    }
    with pytest.raises(ThresholdsError) as raised:
        parse(**{field: {entry: value}})  # type: ignore[arg-type]
    assert [problem.path for problem in raised.value.problems] == [f"{names[field]}[{entry}]"]


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ThresholdsError) as raised:
        parse(
            {"memory.available": "150Mi", "invalid.foo": "150Mi", "nodefs.available": "x"},
            {"memory.available": "150Mi"},
            {"memory.available": "-30s"},
        )
    assert [problem.path for problem in raised.value.problems] == [
        "evictionHard[invalid.foo]",
        "evictionHard[nodefs.available]",
        "evictionSoftGracePeriod[memory.available]",
    ]
    assert "evictionHard[invalid.foo]: is no eviction signal; known are memory.available, " in str(raised.value)


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([threshold(S.IMAGE_FS, "150Mi", reclaim="0")], []),
        ([threshold(S.MEMORY, "150Mi", grace=10, reclaim="0")], []),
        (
            [threshold(S.MEMORY, "150Mi", reclaim="0")],
            [threshold(S.ALLOCATABLE_MEMORY, "150Mi", reclaim="0")],
        ),
        (
            [threshold(S.MEMORY, "150Mi", reclaim="0"), threshold(S.MEMORY, "200Mi", reclaim="1Gi")],
            [
                threshold(S.ALLOCATABLE_MEMORY, "150Mi", reclaim="0"),
                threshold(S.ALLOCATABLE_MEMORY, "200Mi", reclaim="1Gi"),
            ],
        ),
    ],
    ids=["of images", "soft", "hard", "two hard ones"],
)
def test_hard_thresholds_of_memory_hold_for_all_pods_too(given: list[Threshold], added: list[Threshold]) -> None:
    assert with_allocatable(given) == (*given, *added)


DISKS = (
    threshold(S.NODE_FS, "100Mi", reclaim="1Gi"),
    threshold(S.NODE_FS, "200Mi", grace=1, reclaim="1Gi"),
    threshold(S.NODE_FS_INODES, "200Mi", grace=1, reclaim="2Gi"),
    threshold(S.NODE_FS_INODES, "100Mi", reclaim="1Gi"),
    threshold(S.IMAGE_FS, "150Mi", reclaim="1.5Gi"),
    threshold(S.IMAGE_FS, "300Mi", grace=1, reclaim="3Gi"),
    threshold(S.IMAGE_FS_INODES, "150Mi", grace=1, reclaim="2Gi"),
    threshold(S.IMAGE_FS_INODES, "300Mi", reclaim="2Gi"),
)
CONFIGURED = (
    threshold(S.CONTAINER_FS, "500Mi", reclaim="5Gi"),
    threshold(S.CONTAINER_FS, "500Mi", grace=1, reclaim="5Gi"),
    threshold(S.CONTAINER_FS_INODES, "500Mi", grace=1, reclaim="5Gi"),
    threshold(S.CONTAINER_FS_INODES, "500Mi", reclaim="5Gi"),
)
AS_NODE_FS = {
    threshold(S.CONTAINER_FS, "100Mi", reclaim="1Gi"),
    threshold(S.CONTAINER_FS, "200Mi", grace=1, reclaim="1Gi"),
    threshold(S.CONTAINER_FS_INODES, "100Mi", reclaim="1Gi"),
    threshold(S.CONTAINER_FS_INODES, "200Mi", grace=1, reclaim="2Gi"),
}
AS_IMAGE_FS = {
    threshold(S.CONTAINER_FS, "150Mi", reclaim="1.5Gi"),
    threshold(S.CONTAINER_FS, "300Mi", grace=1, reclaim="3Gi"),
    threshold(S.CONTAINER_FS_INODES, "300Mi", reclaim="2Gi"),
    threshold(S.CONTAINER_FS_INODES, "150Mi", grace=1, reclaim="2Gi"),
}


@pytest.mark.parametrize("configured", [(), CONFIGURED], ids=["", "configured"])
@pytest.mark.parametrize(
    ("layout", "expected"),
    [(Layout.SINGLE, AS_NODE_FS), (Layout.DEDICATED, AS_IMAGE_FS), (Layout.SPLIT, AS_NODE_FS)],
)
def test_layers_have_the_thresholds_of_the_disk_that_they_are_on(
    layout: Layout, expected: set[Threshold], configured: tuple[Threshold, ...]
) -> None:
    found = for_layout((*DISKS, *configured), layout)
    assert found[: len(DISKS)] == DISKS
    assert set(found[len(DISKS) :]) == expected
    assert len(found) == len(DISKS) + len(expected)


def test_configured_thresholds_of_layers_are_told_to_be_ignored() -> None:
    assert unused(DISKS) == ()
    assert unused((*DISKS, *CONFIGURED[:3])) == (
        "evictionHard[containerfs.available]",
        "evictionSoft[containerfs.available]",
        "evictionSoft[containerfs.inodesFree]",
    )


def test_layers_have_no_threshold_where_their_disk_has_none() -> None:
    memory = threshold(S.MEMORY, "100Mi")
    assert for_layout((memory, *CONFIGURED), Layout.SINGLE) == (memory,)


def test_percentages_are_kept_in_single_precision() -> None:
    assert parse_percentage("25.5%") == part(25.5)
    # 5% of 8 GiB would be 429496729 in double precision.
    assert amount(parse_percentage("5%")).of(8 * 2**30).value() == 429496736


@pytest.mark.parametrize("text", ["blah", "foo%", "12%345", "%", "1_0%", " 10%", "0x10%"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a percentage"):
        parse_percentage(text)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (Amount(Quantity(123)), Amount(Quantity("0.123k")), True),
        (Amount(Quantity(123)), Amount(Quantity(456)), False),
        (Amount(Quantity(123)), Amount(fraction=0.1), False),
        (Amount(fraction=0.1), Amount(fraction=0.1), True),
        (Amount(fraction=0.2), Amount(fraction=0.1), False),
    ],
)
def test_amounts_are_the_same_when_they_mean_the_same(a: Amount, b: Amount, same: bool) -> None:
    assert (a == b) is (b == a) is same


def test_an_empty_configuration_means_the_defaults() -> None:
    config = eviction_config(KubeletConfiguration())
    assert [(each.signal.value, each.hard) for each in config.thresholds] == [
        *((signal, True) for signal in DEFAULT_HARD),
        ("allocatableMemory.available", True),
    ]
    assert config.transition_period == 300
    assert config.local_limits


def test_a_configuration_replaces_the_defaults() -> None:
    one = KubeletConfiguration(eviction_hard={"nodefs.available": "1Gi"}, enforce_node_allocatable=())
    assert eviction_config(one).thresholds == (threshold(S.NODE_FS, "1Gi"),)


@pytest.mark.parametrize("hard", [{}, dict.fromkeys(DEFAULT_HARD, "0%")])
def test_a_node_may_have_no_thresholds_at_all(hard: dict[str, str]) -> None:
    off = KubeletConfiguration(eviction_hard=hard, local_storage_capacity_isolation=False)
    config = eviction_config(off)
    assert config.thresholds == ()
    assert not config.watches
