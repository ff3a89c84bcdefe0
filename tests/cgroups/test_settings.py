"""The kubelet's tables: helpers_linux_test, cgroup_manager_linux_test, qos_container_manager_linux_test and
node_container_manager_linux_test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cgroups.pods import MI, amounts, best_effort, burstable, container, guaranteed, pod
from trikubelet.api import QOS_BEST_EFFORT, QOS_BURSTABLE, QOS_GUARANTEED, Quantity
from trikubelet.cgroups.settings import (
    UNBOUNDED_HUGEPAGES,
    CgroupOptions,
    CgroupReading,
    CgroupSettings,
    cpu_quota,
    cpu_shares,
    cpu_weight,
    hugepage_limits,
    merged,
    milli_of_quota,
    milli_of_shares,
    node_settings,
    pod_settings,
    qos_settings,
    shares_of_weight,
    v1_files,
    v2_files,
    without_overhead,
)

if TYPE_CHECKING:
    from trikubelet.api import Pod

TUNED = 5000
DEFAULT = 100_000
NONE: dict[str, str] = {}
SMALL, LARGE = amounts("100m", "100Mi"), amounts("200m", "200Mi")
PLAIN, LIMITED = container(SMALL), container(SMALL, LARGE)
EXACT = container(SMALL, SMALL)
INNER = container(amounts("10m", "50Mi"), amounts("50m", "100Mi"))
TINY = amounts("100m", "100m")
HALF_LIMITED = (container(TINY, SMALL), container(TINY))

# (pod, whether quotas are enforced, period) → (shares, quota, period, memory)
PODS: dict[str, tuple[Pod, bool, int, tuple[int, int | None, int | None, int | None]]] = {
    "best effort": (pod(container()), True, DEFAULT, (2, None, None, None)),
    "burstable, no limits": (pod(PLAIN), True, DEFAULT, (102, None, None, None)),
    "burstable, limits": (pod(LIMITED), True, DEFAULT, (102, 20_000, DEFAULT, 200 * MI)),
    "burstable, limits, no quotas": (pod(LIMITED), False, DEFAULT, (102, -1, DEFAULT, 200 * MI)),
    "burstable, some limits": (pod(LIMITED, PLAIN), True, DEFAULT, (204, None, None, None)),
    "burstable, limits, tuned": (pod(LIMITED), True, TUNED, (102, 1000, TUNED, 200 * MI)),
    "burstable, limits, no quotas, tuned": (pod(LIMITED), False, TUNED, (102, -1, TUNED, 200 * MI)),
    "burstable, some limits, tuned": (pod(LIMITED, PLAIN), True, TUNED, (204, None, None, None)),
    "guaranteed": (pod(EXACT), True, DEFAULT, (102, 10_000, DEFAULT, 100 * MI)),
    "guaranteed, no quotas": (pod(EXACT), False, DEFAULT, (102, -1, DEFAULT, 100 * MI)),
    "guaranteed, tuned": (pod(EXACT), True, TUNED, (102, 1000, TUNED, 100 * MI)),
    "guaranteed, no quotas, tuned": (pod(EXACT), False, TUNED, (102, -1, TUNED, 100 * MI)),
    "burstable, some limits, init": (pod(*HALF_LIMITED, init=HALF_LIMITED), True, TUNED, (204, None, None, None)),
    "best effort, pod level": (
        pod(container(), resources={"requests": {}, "limits": {}}),
        True,
        DEFAULT,
        (2, None, None, None),
    ),
    "burstable, pod requests": (
        pod(container(), resources={"requests": SMALL}),
        True,
        DEFAULT,
        (102, None, None, None),
    ),
    "burstable, pod and container requests": (
        pod(container(amounts("10m", "50Mi")), resources={"requests": SMALL}),
        True,
        DEFAULT,
        (102, None, None, None),
    ),
    "burstable, pod level": (
        pod(container(), resources={"requests": SMALL, "limits": LARGE}),
        True,
        DEFAULT,
        (102, 20_000, DEFAULT, 200 * MI),
    ),
    "burstable, pod and container level": (
        pod(INNER, resources={"requests": SMALL, "limits": LARGE}),
        True,
        DEFAULT,
        (102, 20_000, DEFAULT, 200 * MI),
    ),
    "burstable, pod requests, container limits": (
        pod(container(LARGE, LARGE), resources={"requests": amounts("200m", "300Mi")}),
        True,
        DEFAULT,
        (204, 20_000, DEFAULT, 200 * MI),
    ),
    "guaranteed, pod level": (
        pod(container(), resources={"requests": SMALL, "limits": SMALL}),
        True,
        DEFAULT,
        (102, 10_000, DEFAULT, 100 * MI),
    ),
    "guaranteed, pod and container level": (
        pod(INNER, resources={"requests": SMALL, "limits": SMALL}),
        True,
        DEFAULT,
        (102, 10_000, DEFAULT, 100 * MI),
    ),
    "guaranteed, pod level, init": (
        pod(
            container(amounts("10m", "50Mi"), amounts("50m", "50Mi")),
            init=(container(amounts("10m", "50Mi"), amounts("50m", "50Mi")),),
            resources={"requests": SMALL, "limits": SMALL},
        ),
        True,
        DEFAULT,
        (102, 10_000, DEFAULT, 100 * MI),
    ),
}


@pytest.mark.parametrize("case", PODS)
def test_a_pods_group_gets_what_its_containers_may_have(case: str) -> None:
    made, quotas, period, expected = PODS[case]
    found = pod_settings(made, CgroupOptions(cpu_cfs_quota=quotas, cpu_cfs_quota_period=period))
    assert (found.cpu_shares, found.cpu_quota, found.cpu_period, found.memory) == expected


def test_a_pod_with_cpus_of_its_own_has_no_quota() -> None:
    found = pod_settings(pod(LIMITED), CgroupOptions(has_exclusive_cpus=lambda _: True))
    assert (found.cpu_quota, found.cpu_period, found.cpu_shares) == (-1, DEFAULT, 102)


def test_an_init_container_without_limit_leaves_the_pod_without() -> None:
    made = pod(LIMITED, init=(PLAIN,))
    found = pod_settings(made, CgroupOptions())
    assert (found.cpu_quota, found.memory) == (None, None)


def test_limits_of_sidecars_cover_the_init_containers_after_them() -> None:
    sidecar = container(SMALL, LARGE, sidecar=True)
    found = pod_settings(pod(LIMITED, init=(sidecar, PLAIN)), CgroupOptions())
    assert (found.cpu_quota, found.memory) == (40_000, 400 * MI)
    assert pod_settings(pod(LIMITED, init=(PLAIN, sidecar)), CgroupOptions()).memory is None


def test_overhead_counts_in_requests_and_limits() -> None:
    found = pod_settings(pod(LIMITED, overhead=amounts("500m", "10Mi")), CgroupOptions())
    assert (found.cpu_shares, found.cpu_quota, found.memory) == (cpu_shares(600), 70_000, 210 * MI)


def test_processes_are_limited_only_where_asked() -> None:
    assert pod_settings(best_effort(), CgroupOptions(pod_pids_limit=100)).pids == 100
    for unlimited in (-1, -2, 0):
        assert pod_settings(best_effort(), CgroupOptions(pod_pids_limit=unlimited)).pids is None


@pytest.mark.parametrize(
    ("case", "unified"),
    [
        ("best effort", {}),
        ("burstable, no limits", {"memory.low": "104857600"}),
        ("burstable, limits", {"memory.low": "104857600"}),
        ("burstable, limits, no quotas", {"memory.low": "104857600"}),
        ("burstable, some limits", {"memory.low": "209715200"}),
        ("burstable, limits, tuned", {"memory.low": "104857600"}),
        ("burstable, limits, no quotas, tuned", {"memory.low": "104857600"}),
        ("burstable, some limits, tuned", {"memory.low": "209715200"}),
        ("guaranteed", {"memory.min": "104857600"}),
        ("guaranteed, no quotas", {"memory.min": "104857600"}),
        ("guaranteed, tuned", {"memory.min": "104857600"}),
        ("guaranteed, no quotas, tuned", {"memory.min": "104857600"}),
    ],
)
def test_requested_memory_is_protected_where_that_is_asked_for(case: str, unified: dict[str, str]) -> None:
    made, quotas, period, _ = PODS[case]
    options = CgroupOptions(cpu_cfs_quota=quotas, cpu_cfs_quota_period=period, memory_qos=True, tiered_reservation=True)
    assert pod_settings(made, options).unified == unified
    assert pod_settings(made, CgroupOptions(memory_qos=True)).unified == {}


@pytest.mark.parametrize(
    ("milli", "quota", "period"),
    [
        (0, 0, 0),
        (5, 1000, 100_000),
        (9, 1000, 100_000),
        (10, 1000, 100_000),
        (200, 20_000, 100_000),
        (500, 50_000, 100_000),
        (1000, 100_000, 100_000),
        (1500, 150_000, 100_000),
    ],
)
def test_quota_of_a_limit(milli: int, quota: int, period: int) -> None:
    assert cpu_quota(milli, period) == quota


@pytest.mark.parametrize(("weight", "shares"), [(1, 2), (2, 28), (3, 54), (4, 80), (245, 6398), (10_000, 262_144)])
def test_shares_of_a_weight(weight: int, shares: int) -> None:
    assert shares_of_weight(weight) == shares


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (1024, 39), (262_144, 10_000), (300_000, 10_000), (0, 1)])
def test_weight_of_shares(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


@given(st.integers(2, 262_144))
def test_a_weight_loses_less_than_one_step_of_shares(shares: int) -> None:
    weight = cpu_weight(shares)
    assert 1 <= weight <= 10_000
    assert shares_of_weight(weight) <= shares < shares_of_weight(weight) + 28


@given(st.integers(2, 262_144))
def test_a_weight_reads_back_as_itself_or_the_next_smaller_one(shares: int) -> None:
    weight = cpu_weight(shares)
    assert cpu_weight(shares_of_weight(weight)) in (weight, weight - 1)


@pytest.mark.parametrize(("shares", "milli"), [(0, 0), (1, 0), (2, 2), (102, 100), (1024, 1000), (1025, 1001)])
def test_requests_that_shares_stand_for(shares: int, milli: int) -> None:
    assert milli_of_shares(shares) == milli


@pytest.mark.parametrize(("quota", "period", "milli"), [(-1, 100_000, 0), (50_000, 100_000, 500), (1000, 100_000, 10)])
def test_limits_that_quotas_stand_for(quota: int, period: int, milli: int) -> None:
    assert milli_of_quota(quota, period) == milli


@pytest.mark.parametrize(
    ("given_amounts", "limits"),
    [
        ({"2Mi": "128"}, {}),
        ({"hugepages-2Mi": "128"}, {2 * MI: 128}),
        (
            {"hugepages-2Mi": "128", f"hugepages-{2 * MI}": "256", "hugepages-4Mi": "512", "4Mi": "1024"},
            {2 * MI: 384, 4 * MI: 512},
        ),
        ({"hugepages-many": "1"}, {}),
    ],
)
def test_huge_pages_are_limited_by_size(given_amounts: dict[str, str], limits: dict[int, int]) -> None:
    assert hugepage_limits({name: Quantity(amount) for name, amount in given_amounts.items()}) == limits
    if "hugepages-many" not in given_amounts:
        assert pod_settings(pod(container(given_amounts)), CgroupOptions()).hugepages == limits


TWO = burstable("b-2", cpu="2", memory="256Mi")


@pytest.mark.parametrize(
    ("pods", "shares"),
    [
        ([guaranteed()], 2),
        ([burstable()], 1024),
        ([best_effort()], 2),
        ([guaranteed(), burstable()], 1024),
        ([best_effort(), burstable()], 1024),
        ([guaranteed(), burstable(), TWO], 3072),
        ([], 2),
    ],
)
def test_the_burstable_class_weighs_what_its_pods_request(pods: list[Pod], shares: int) -> None:
    found = qos_settings(pods, CgroupOptions(hugepage_sizes=(2 * MI,)), allocatable_memory=None)
    assert found[QOS_BURSTABLE].cpu_shares == shares
    assert found[QOS_BEST_EFFORT].cpu_shares == 2
    assert found[QOS_GUARANTEED].cpu_shares is None
    assert found[QOS_BURSTABLE].hugepages == found[QOS_BEST_EFFORT].hugepages == {2 * MI: UNBOUNDED_HUGEPAGES}


@pytest.mark.parametrize(
    ("pods", "tiered", "everything", "burstable_class"),
    [
        ([guaranteed(), burstable(), TWO], True, 512 * MI, 384 * MI),
        ([best_effort()], True, 0, 0),
        ([burstable(memory="")], True, 0, 0),
        ([], True, 0, 0),
        ([guaranteed(), burstable(), TWO], False, 0, 0),
    ],
)
def test_classes_protect_what_their_pods_request(
    pods: list[Pod], tiered: bool, everything: int, burstable_class: int
) -> None:
    options = CgroupOptions(memory_qos=True, tiered_reservation=tiered)
    found = qos_settings(pods, options, allocatable_memory=None)
    assert found[QOS_GUARANTEED].unified == {"memory.min": str(everything)}
    assert found[QOS_BURSTABLE].unified == {"memory.low": str(burstable_class)}
    assert found[QOS_BEST_EFFORT].unified == {}


def test_memory_can_be_kept_for_the_classes_above() -> None:
    pods = [guaranteed(memory="100Mi"), burstable(memory="200Mi")]
    found = qos_settings(pods, CgroupOptions(qos_reserved_memory=50), allocatable_memory=1000 * MI)
    assert (found[QOS_BURSTABLE].memory, found[QOS_BEST_EFFORT].memory) == (950 * MI, 850 * MI)
    found = qos_settings(pods, CgroupOptions(qos_reserved_memory=100), allocatable_memory=150 * MI)
    assert (found[QOS_BURSTABLE].memory, found[QOS_BEST_EFFORT].memory) == (50 * MI, 0)
    for unknown in (None, 0):
        found = qos_settings(pods, CgroupOptions(qos_reserved_memory=50), allocatable_memory=unknown)
        assert (found[QOS_BURSTABLE].memory, found[QOS_BEST_EFFORT].memory) == (None, None)


def test_node_limits_say_no_more_than_what_is_reserved() -> None:
    both = {"cpu": Quantity("100m"), "memory": Quantity("200Mi"), "pid": Quantity(1000)}
    everything = node_settings(both, compressible=False, cpus="0-1")
    assert everything == CgroupSettings(cpu_shares=102, memory=200 * MI, pids=1000, cpus="0-1", hugepages={})
    assert node_settings(both, compressible=True, cpus=None) == CgroupSettings(cpu_shares=102)
    memory = node_settings({"memory": Quantity("200Mi")}, compressible=False, cpus=None)
    assert (memory.memory, memory.cpu_shares, memory.pids) == (200 * MI, None, None)


FULL = CgroupSettings(
    cpu_shares=1024,
    cpu_quota=50_000,
    cpu_period=100_000,
    memory=64 * MI,
    pids=100,
    cpus="0-1",
    hugepages={2 * MI: 4 * MI},
    unified={"memory.min": "1"},
)


def test_files_of_version_1_in_their_order() -> None:
    assert v1_files(FULL, (2 * MI, 1024 * MI)) == [
        ("cpu", "cpu.shares", "1024"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("cpu", "cpu.cfs_quota_us", "50000"),
        ("memory", "memory.limit_in_bytes", str(64 * MI)),
        ("pids", "pids.max", "100"),
        ("cpuset", "cpuset.cpus", "0-1"),
        ("hugetlb", "hugetlb.2MB.limit_in_bytes", str(4 * MI)),
        ("hugetlb", "hugetlb.2MB.rsvd.limit_in_bytes", str(4 * MI)),
        ("hugetlb", "hugetlb.1GB.limit_in_bytes", "0"),
        ("hugetlb", "hugetlb.1GB.rsvd.limit_in_bytes", "0"),
    ]


def test_files_of_version_2_in_their_order() -> None:
    assert v2_files(FULL, (2 * MI,)) == [
        ("cpu.weight", "39"),
        ("cpu.max", "50000 100000"),
        ("memory.max", str(64 * MI)),
        ("pids.max", "100"),
        ("cpuset.cpus", "0-1"),
        ("hugetlb.2MB.max", str(4 * MI)),
        ("hugetlb.2MB.rsvd.max", str(4 * MI)),
        ("memory.min", "1"),
    ]


def test_no_limit_has_a_word_of_its_own() -> None:
    unlimited = CgroupSettings(cpu_quota=-1, cpu_period=5000, memory=-1, pids=-1)
    assert v1_files(unlimited, ()) == [
        ("cpu", "cpu.cfs_period_us", "5000"),
        ("cpu", "cpu.cfs_quota_us", "-1"),
        ("memory", "memory.limit_in_bytes", "-1"),
        ("pids", "pids.max", "max"),
    ]
    assert v2_files(unlimited, ()) == [("cpu.max", "max 5000"), ("memory.max", "max"), ("pids.max", "max")]


@pytest.mark.parametrize("nothing", [CgroupSettings(), CgroupSettings(cpu_shares=0, cpu_quota=0, memory=0, pids=0)])
def test_what_is_not_asked_for_is_not_written(nothing: CgroupSettings) -> None:
    assert v1_files(nothing, (2 * MI,)) == []
    assert v2_files(nothing, (2 * MI,)) == []


def test_settings_are_merged_where_the_second_says_something() -> None:
    more = CgroupSettings(memory=1, hugepages={1024 * MI: 1}, unified={"memory.low": "2"})
    both = merged(FULL, more)
    assert (both.cpu_shares, both.memory, both.pids) == (1024, 1, 100)
    assert both.hugepages == {2 * MI: 4 * MI, 1024 * MI: 1}
    assert both.unified == {"memory.min": "1", "memory.low": "2"}
    assert merged(FULL, CgroupSettings()) == FULL
    assert merged(CgroupSettings(), FULL) == FULL


def test_a_reading_can_be_written_again() -> None:
    assert CgroupReading(1024, -1, 100_000, -1, 5).settings == CgroupSettings(1024, -1, 100_000, -1)


@pytest.mark.parametrize(
    ("settings", "overhead", "expected"),
    [
        (FULL, NONE, (1024, 50_000, 64 * MI)),
        (FULL, amounts("250m", "14Mi"), (768, 25_000, 50 * MI)),
        (FULL, amounts(memory="14Mi"), (1024, 50_000, 50 * MI)),
        (CgroupSettings(memory=-1, cpu_quota=-1, cpu_period=100_000), amounts("250m", "14Mi"), (None, -1, -1)),
        (CgroupSettings(), amounts("250m", "14Mi"), (None, None, None)),
    ],
)
def test_overhead_is_taken_off(settings: CgroupSettings, overhead: dict[str, str], expected: tuple[Any, ...]) -> None:
    found = without_overhead(settings, pod(container(), overhead=overhead))
    assert (found.cpu_shares, found.cpu_quota, found.memory) == expected
