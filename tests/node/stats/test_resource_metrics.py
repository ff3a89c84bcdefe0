"""`/metrics/resource`: the kubelet's cases (`resource_metrics_test.go`)."""

from __future__ import annotations

from trikubelet.node.stats.exposition import text_of
from trikubelet.node.stats.model import (
    ContainerStats,
    CpuStats,
    MemoryStats,
    NodeStats,
    PodRef,
    PodStats,
    Summary,
    SwapStats,
)
from trikubelet.node.stats.resource_metrics import resource_families

AT = 1_624_396_278_302_000_000
LATER = AT + 10_000_000_000
STARTED = 1_624_396_248_302_000_000


def _text(summary: Summary | None) -> str:
    return text_of(resource_families(summary)).decode()


def _series(summary: Summary | None) -> list[str]:
    return [line for line in _text(summary).splitlines() if not line.startswith("#")]


def _container(name: str, seconds: int, **fields: object) -> ContainerStats:
    return ContainerStats(
        name=name,
        cpu=CpuStats(time=AT, usage_core_nano_seconds=seconds * 1_000_000_000),
        memory=MemoryStats(time=AT, working_set_bytes=1000),
        **fields,  # type: ignore[arg-type]
    )


def test_a_summary_that_cannot_be_had_is_told_by_one_series() -> None:
    assert _text(None) == (
        "# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise\n"
        "# TYPE resource_scrape_error gauge\n"
        "resource_scrape_error 1\n"
    )


def test_the_node_has_its_use_each_with_its_time() -> None:
    node = NodeStats(
        node_name="n",
        cpu=CpuStats(time=AT, usage_core_nano_seconds=10_000_000_000),
        memory=MemoryStats(time=AT, working_set_bytes=1000),
        swap=SwapStats(time=LATER, swap_usage_bytes=500),
    )
    assert _text(Summary(node=node)) == (
        "# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds\n"
        "# TYPE node_cpu_usage_seconds_total counter\n"
        "node_cpu_usage_seconds_total 10 1624396278302\n"
        "# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes\n"
        "# TYPE node_memory_working_set_bytes gauge\n"
        "node_memory_working_set_bytes 1000 1624396278302\n"
        "# HELP node_swap_usage_bytes [ALPHA] Current swap usage of the node in bytes. "
        "Reported only on non-windows systems\n"
        "# TYPE node_swap_usage_bytes gauge\n"
        "node_swap_usage_bytes 500 1624396288302\n"
        "# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise\n"
        "# TYPE resource_scrape_error gauge\n"
        "resource_scrape_error 0\n"
    )


def test_what_is_not_known_has_no_series() -> None:
    node = NodeStats(node_name="n", cpu=CpuStats(time=AT), memory=MemoryStats(time=AT), swap=SwapStats(time=AT))
    assert _series(Summary(node=node)) == ["resource_scrape_error 0"]


def test_containers_and_pods_have_theirs() -> None:
    pods = (
        PodStats(
            pod_ref=PodRef(name="pod_a", namespace="ns", uid="1"),
            cpu=CpuStats(time=AT, usage_core_nano_seconds=30_000_000_000),
            memory=MemoryStats(time=AT, working_set_bytes=2000),
            swap=SwapStats(time=AT, swap_usage_bytes=7),
            containers=(
                _container(
                    "a",
                    10,
                    start_time=STARTED,
                    swap=SwapStats(time=AT, swap_usage_bytes=1000, swap_available_bytes=9000),
                ),
                _container("b", 20, swap=SwapStats(time=AT, swap_available_bytes=5)),
            ),
        ),
        PodStats(pod_ref=PodRef(name="pod_b", namespace="other", uid="2"), containers=(_container("a", 5),)),
    )
    a, b, other = (
        '{container="a",namespace="ns",pod="pod_a"}',
        '{container="b",namespace="ns",pod="pod_a"}',
        '{container="a",namespace="other",pod="pod_b"}',
    )
    assert _series(Summary(node=NodeStats(node_name="n"), pods=pods)) == [
        f"container_cpu_usage_seconds_total{a} 10 1624396278302",
        f"container_cpu_usage_seconds_total{other} 5 1624396278302",
        f"container_cpu_usage_seconds_total{b} 20 1624396278302",
        f"container_memory_working_set_bytes{a} 1000 1624396278302",
        f"container_memory_working_set_bytes{other} 1000 1624396278302",
        f"container_memory_working_set_bytes{b} 1000 1624396278302",
        f"container_start_time_seconds{a} 1.624396248302e+09",
        f"container_swap_limit_bytes{a} 10000 1624396278302",
        f"container_swap_limit_bytes{b} 5 1624396278302",
        f"container_swap_usage_bytes{a} 1000 1624396278302",
        'pod_cpu_usage_seconds_total{namespace="ns",pod="pod_a"} 30 1624396278302',
        'pod_memory_working_set_bytes{namespace="ns",pod="pod_a"} 2000 1624396278302',
        'pod_swap_usage_bytes{namespace="ns",pod="pod_a"} 7 1624396278302',
        "resource_scrape_error 0",
    ]


def test_a_start_before_1970_and_one_second_is_none() -> None:
    for started in (None, 0, -5):
        pod = PodStats(
            pod_ref=PodRef(name="p", namespace="ns", uid="1"),
            containers=(ContainerStats(name="c", start_time=started),),
        )
        assert _series(Summary(node=NodeStats(node_name="n"), pods=(pod,))) == ["resource_scrape_error 0"]


def test_a_summary_that_lacks_something_is_given_and_is_an_error() -> None:
    node = NodeStats(node_name="n", memory=MemoryStats(time=AT, working_set_bytes=1))
    assert _series(Summary(node=node, problems=("lists: no connection",))) == [
        "node_memory_working_set_bytes 1 1624396278302",
        "resource_scrape_error 1",
    ]
