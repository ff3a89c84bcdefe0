"""What is counted when pods get CPUs, memory and NUMA nodes, or do not."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.allocation.managed import container, make_pod, managers, resources
from trikubelet.allocation.cpus.options import StaticPolicyOptions
from trikubelet.allocation.manager_metrics import CpuUsage, ManagerCounts
from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
from trikubelet.allocation.topology.admit import CONTAINER_SCOPE, POD_SCOPE, NothingToGive
from trikubelet.allocation.topology.hints import AllocationError, TopologyHint
from trikubelet.allocation.topology.policy import BEST_EFFORT, SINGLE_NUMA_NODE

if TYPE_CHECKING:
    from collections import Counter

    from trikubelet.api import Container, Pod


@attrs.frozen
class NoDevices(NothingToGive):
    """Devices that are wanted, and are not there."""

    def is_settled(self, pod: Pod, container: Container) -> bool:
        return False

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> NoDevices:
        raise AllocationError("no device")


def refuse(given: ResourceManagers, pod: Pod, devices: NothingToGive | None = None) -> None:
    with pytest.raises(AllocationError):
        given.admit(pod, devices or NothingToGive())


def some(counts: Counter[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    """What is not 0."""
    return {labels: number for labels, number in counts.items() if number}


THREE = make_pod(
    container("own", "2", "1Gi"),
    container("part", "500m", "1Gi"),
    init=(container("init", "2", "1Gi"),),
)
"""Two of its containers have CPUs of their own, all three have memory."""


def test_containers_that_have_something_for_themselves() -> None:
    given = managers()
    given.admit(THREE, NothingToGive())
    given.admit(make_pod({"name": "main"}, uid="2"), NothingToGive())
    assert given.counts.requests == {("cpu",): 2, ("memory",): 3}
    assert not given.counts.errors
    assert (given.counts.admissions, given.counts.refusals) == (2, 0)


def test_a_pod_that_has_everything_counts_again() -> None:
    given = managers()
    for _ in range(2):
        given.admit(THREE, NothingToGive())
    assert given.counts.requests == {("cpu",): 4, ("memory",): 6}
    assert given.counts.allocations == {("cpu", "node"): 2, ("memory", "node"): 3}, "it was given once"
    assert given.counts.admissions == 2


def test_what_could_not_be_given() -> None:
    given = managers()
    refuse(given, make_pod(container("one", "2", "1Gi"), container("two", "6", "1Gi")))
    assert given.counts.requests == given.counts.errors == {("cpu",): 1}
    refuse(given, make_pod(container("one", "1", "64Gi")))
    assert given.counts.requests == given.counts.errors == {("cpu",): 1, ("memory",): 1}
    refuse(given, make_pod(container("one", "1", "1Gi")), NoDevices())
    assert given.counts.errors.total() == 2, "it was neither"
    assert given.counts.refusals == 3
    assert given.counts.allocation_errors == {("cpu", "node"): 1, ("memory", "node"): 1}
    assert not given.counts.allocations


@pytest.mark.parametrize(
    ("scope", "aligned"),
    [(CONTAINER_SCOPE, 4), (POD_SCOPE, 2)],
)
def test_numa_nodes_that_a_policy_promises(scope: str, aligned: int) -> None:
    given = managers(topology=SINGLE_NUMA_NODE, scope=scope)
    for uid in ("1", "2"):
        given.admit(
            make_pod(container("main", "2", "1Gi"), {"name": "side"} | resources_of("1"), uid=uid), NothingToGive()
        )
    refuse(given, make_pod(container("main", "4", "1Gi"), uid="3"))
    assert some(given.counts.aligned)[scope, "numa_node"] == aligned
    assert some(given.counts.misaligned) == {(scope, "numa_node"): 1}
    assert given.counts.refusals == 1
    assert given.counts.errors == {}


def resources_of(cpu: str) -> dict[str, object]:
    return {"resources": resources(cpu, "500Mi")}


def test_a_policy_that_promises_nothing_has_nothing_to_keep() -> None:
    given = managers(topology=BEST_EFFORT)
    given.admit(THREE, NothingToGive())
    refuse(given, make_pod(container("main", "20", "1Gi"), uid="2"))
    assert ("container", "numa_node") not in some(given.counts.aligned)
    assert some(given.counts.misaligned) == {}
    assert given.counts.refusals == 1


def test_whole_cores() -> None:
    given = managers(options=StaticPolicyOptions(full_cores=True))
    given.admit(THREE, NothingToGive())
    refuse(given, make_pod(container("main", "1", "1Gi"), uid="2"))
    assert given.counts.aligned["container", "physical_cpu"] == 2
    assert some(given.counts.misaligned) == {("container", "physical_cpu"): 1}
    assert given.counts.errors == {("cpu",): 1}


def test_cpus_that_share_a_cache() -> None:
    """Where no cache is told of, the socket is one."""
    given = managers()
    given.admit(make_pod(container("one", "2", "1Gi")), NothingToGive())
    assert given.counts.aligned["container", "uncore_cache"] == 1
    given.admit(make_pod(container("two", "5", "1Gi"), uid="2"), NothingToGive())
    assert given.counts.aligned["container", "uncore_cache"] == 1


def test_counts_of_what_policies_promise_begin_at_0() -> None:
    scopes = {("container", "numa_node"): 0, ("pod", "numa_node"): 0}
    cores = {("container", "physical_cpu"): 0}
    counts = managers(topology=BEST_EFFORT).counts
    assert counts.aligned == {**scopes, **cores, ("container", "uncore_cache"): 0}
    assert counts.misaligned == {**scopes, **cores}
    assert ManagerCounts(ManagerSettings()).aligned.keys() == set()


def test_pods_with_resources_of_their_own() -> None:
    given = managers(topology=BEST_EFFORT, scope=POD_SCOPE, pod_level=True)
    whole = resources("4", "3Gi")
    given.admit(make_pod(container("own", "2", "1Gi"), {"name": "shares"}, resources=whole), NothingToGive())
    assert given.counts.requests == {("cpu",): 1, ("memory",): 2}
    assert given.counts.allocations == {("cpu", "pod"): 2, ("memory", "pod"): 2}
    assert given.counts.assignments == {
        ("cpu", "pod_exclusive"): 1,
        ("cpu", "pod_shared"): 1,
        ("memory", "pod_exclusive"): 1,
        ("memory", "pod_shared"): 1,
    }
    refuse(given, make_pod(container("own", "2", "1Gi"), {"name": "shares"}, uid="2", resources=whole))
    assert given.counts.allocation_errors == {("cpu", "pod"): 1}
    given.admit(make_pod(container("main", "1", "1Gi"), uid="3"), NothingToGive())
    assert (
        given.counts.assignments["cpu", "node_exclusive"] == given.counts.assignments["memory", "node_exclusive"] == 1
    )


def test_answers_take_milliseconds() -> None:
    seconds = count(step=0.003)
    counts = ManagerCounts(ManagerSettings(), lambda: next(seconds))
    with counts.admission(make_pod({"name": "main"})):
        pass
    with pytest.raises(AllocationError), counts.admission(make_pod({"name": "main"})):
        raise AllocationError("no")
    assert counts.durations.sum == pytest.approx(6)
    assert counts.durations.bounds[:3] == (0.05, 0.1, 0.2)
    assert len(counts.durations.bounds) == 15


def test_how_cpus_are_used() -> None:
    given = managers()
    assert given.cpu_usage() == CpuUsage(7, 0, {0: 0, 1: 0})
    given.admit(make_pod(container("main", "4", "1Gi"), init=(container("init", "4", "1Gi"),)), NothingToGive())
    assert given.cpu_usage() == CpuUsage(3, 4, {0: 0, 1: 4}), "what an init container had is counted once"
    given.forget("1")
    assert given.cpu_usage() == CpuUsage(7, 0, {0: 0, 1: 0})
    nothing = ResourceManagers(ManagerSettings(), None, needed=lambda _: False, sources_ready=lambda: False)
    assert nothing.cpu_usage() is None
