"""Who goes for a critical pod."""

from __future__ import annotations

import attrs
import pytest

from tests.admission.situations import MI, make_pod, resources
from trikubelet.admission.preemption import NotEnoughToPreemptError, _Candidate, is_preemptable, pods_to_preempt
from trikubelet.admission.resources import Demand, Insufficient
from trikubelet.api import Container, Pod

CRITICAL = 2_000_000_000


def sized(uid: str, size: int, *, limited: bool = False, priority: int | None = None) -> Pod:
    """A pod that requests `size` thousandths of a CPU and as many MiB."""
    amounts = {"cpu": f"{size}m", "memory": f"{size}Mi"} if size else {}
    main = Container(name="main", resources=resources(amounts, amounts if limited else None))
    return make_pod(uid=uid, containers=(main,), priority=priority)


TINY = sized("tiny", 1)
BEST_EFFORT = sized("best-effort", 0)
BURSTABLE = sized("burstable", 100)
GUARANTEED = sized("guaranteed", 100, limited=True)
BIG_BURSTABLE = sized("big-burstable", 300)
BIG_GUARANTEED = sized("big-guaranteed", 300, limited=True)
CLUSTER_CRITICAL = sized("cluster-critical", 100, priority=CRITICAL)
NODE_CRITICAL = sized("node-critical", 100, priority=CRITICAL + 100)


def shortages(cpu: int = 0, memory: int = 0, pods: int = 0) -> list[Insufficient]:
    """So much CPU, MiB and pods too few."""
    amounts = {"cpu": cpu, "memory": memory * MI, "pods": pods}
    return [Insufficient(name, amount, 7, 7) for name, amount in amounts.items() if amount]


@pytest.mark.parametrize(
    ("preemptor", "pods", "missing", "expected"),
    [
        (CLUSTER_CRITICAL, [], shortages(), []),
        (CLUSTER_CRITICAL, [BURSTABLE], shortages(100, 100, 1), [BURSTABLE]),
        (CLUSTER_CRITICAL, [BURSTABLE, BEST_EFFORT], shortages(pods=1), [BEST_EFFORT]),
        (CLUSTER_CRITICAL, [BURSTABLE, GUARANTEED], shortages(pods=1), [BURSTABLE]),
        (CLUSTER_CRITICAL, [BEST_EFFORT, BIG_BURSTABLE, BURSTABLE], shortages(100, 100), [BURSTABLE]),
        (CLUSTER_CRITICAL, [BEST_EFFORT, BURSTABLE, BIG_BURSTABLE], shortages(150, 150), [BIG_BURSTABLE]),
        (
            CLUSTER_CRITICAL,
            [BEST_EFFORT, BURSTABLE, BIG_BURSTABLE, GUARANTEED, BIG_GUARANTEED],
            shortages(350, 350),
            [BIG_BURSTABLE, BURSTABLE],
        ),
        (
            CLUSTER_CRITICAL,
            [BEST_EFFORT, BURSTABLE, BIG_BURSTABLE, GUARANTEED, BIG_GUARANTEED],
            shortages(memory=550),
            [BIG_BURSTABLE, BIG_GUARANTEED],
        ),
        (
            CLUSTER_CRITICAL,
            [CLUSTER_CRITICAL, BEST_EFFORT, BURSTABLE, BIG_BURSTABLE, GUARANTEED, BIG_GUARANTEED],
            shortages(memory=550),
            [BIG_BURSTABLE, BIG_GUARANTEED],
        ),
        (NODE_CRITICAL, [CLUSTER_CRITICAL], shortages(100), [CLUSTER_CRITICAL]),
        (CLUSTER_CRITICAL, [BURSTABLE, TINY], shortages(pods=1), [TINY]),
        (
            CLUSTER_CRITICAL,
            [GUARANTEED, BEST_EFFORT, BURSTABLE],
            shortages(pods=3),
            [BEST_EFFORT, BURSTABLE, GUARANTEED],
        ),
    ],
)
def test_as_few_as_possible_go_and_the_least_promised_first(
    preemptor: Pod, pods: list[Pod], missing: list[Insufficient], expected: list[Pod]
) -> None:
    chosen = pods_to_preempt(preemptor, pods, missing)
    assert [pod.metadata.uid for pod in chosen] == [pod.metadata.uid for pod in expected]


@pytest.mark.parametrize(
    ("preemptor", "pods", "missing", "rest"),
    [
        (CLUSTER_CRITICAL, [], shortages(pods=1), "(res: pods, q: 1), "),
        (
            CLUSTER_CRITICAL,
            [BURSTABLE],
            shortages(200, 200, 2),
            f"(res: cpu, q: 100), (res: memory, q: {100 * MI}), (res: pods, q: 1), ",
        ),
        (CLUSTER_CRITICAL, [NODE_CRITICAL], shortages(100), "(res: cpu, q: 100), "),
        (CLUSTER_CRITICAL, [CLUSTER_CRITICAL], shortages(pods=1), "(res: pods, q: 1), "),
        (CLUSTER_CRITICAL, [BEST_EFFORT], shortages(memory=1), f"(res: memory, q: {MI}), "),
    ],
)
def test_nobody_goes_when_all_together_are_not_enough(
    preemptor: Pod, pods: list[Pod], missing: list[Insufficient], rest: str
) -> None:
    with pytest.raises(NotEnoughToPreemptError) as caught:
        pods_to_preempt(preemptor, pods, missing)
    assert str(caught.value) == f"no set of running pods found to reclaim resources: [{rest}]"


def test_critical_pods_are_spared_unless_a_higher_priority_asks() -> None:
    static = make_pod(static=True)
    assert is_preemptable(static, BURSTABLE)
    assert not is_preemptable(static, CLUSTER_CRITICAL)
    assert not is_preemptable(CLUSTER_CRITICAL, static)
    assert not is_preemptable(static, static)
    assert is_preemptable(NODE_CRITICAL, CLUSTER_CRITICAL)
    assert is_preemptable(sized("a", 1, priority=2), sized("b", 1, priority=1))
    assert not is_preemptable(sized("a", 1, priority=1), sized("b", 1, priority=1))
    assert not is_preemptable(sized("a", 1, priority=1), BURSTABLE)


def candidate(pod: Pod) -> _Candidate:
    return _Candidate(pod, Demand.of(pod).amounts)


@pytest.mark.parametrize(
    ("missing", "pod", "expected"),
    [
        (shortages(), BURSTABLE, 0),
        (shortages(100, 100, 1), BEST_EFFORT, 2),
        (shortages(100, 100, 1), BURSTABLE, 0),
        (shortages(50, 50), BURSTABLE, 0),
        (shortages(200, 100), BURSTABLE, 0.25),
    ],
)
def test_the_distance_counts_each_resource_the_same(missing: list[Insufficient], pod: Pod, expected: float) -> None:
    assert candidate(pod).distance({one.resource: one.missing for one in missing}) == expected


def test_of_two_equally_near_the_one_goes_that_requests_less_memory_then_less_cpu() -> None:
    def requesting(uid: str, memory: str, cpu: str) -> Pod:
        return make_pod({"memory": memory, "cpu": cpu}, uid=uid)

    low, high_memory, high_cpu = (
        requesting("low", "50Mi", "100m"),
        requesting("m", "200Mi", "1m"),
        requesting("c", "50Mi", "200m"),
    )
    missing = shortages(pods=1)
    for pods in ([high_memory, low], [low, high_memory], [low, high_cpu], [high_cpu, low]):
        assert pods_to_preempt(CLUSTER_CRITICAL, pods, missing) == (low,)
    assert pods_to_preempt(CLUSTER_CRITICAL, [high_memory, high_cpu], missing) == (high_cpu,)


def test_what_the_status_says_of_quality_of_service_counts() -> None:
    declared = attrs.evolve(BIG_BURSTABLE, status=attrs.evolve(BIG_BURSTABLE.status, qos_class="Guaranteed"))
    assert pods_to_preempt(CLUSTER_CRITICAL, [declared, BURSTABLE], shortages(pods=1)) == (BURSTABLE,)


def test_a_pod_of_unknown_quality_of_service_is_left_alone() -> None:
    odd = attrs.evolve(BIG_BURSTABLE, status=attrs.evolve(BIG_BURSTABLE.status, qos_class="Best"))
    assert pods_to_preempt(CLUSTER_CRITICAL, [odd, BURSTABLE], shortages(pods=1)) == (BURSTABLE,)
