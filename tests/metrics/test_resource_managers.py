"""Which families there are of the resource managers, and what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from tests.allocation.managed import container, make_pod, managers
from trikubelet.allocation.managers import ManagerSettings, ResourceManagers
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.allocation.topology.policy import BEST_EFFORT, SINGLE_NUMA_NODE
from trikubelet.metrics.resource_managers import collect_resource_managers
from trikubelet.telemetry.families import Family

if TYPE_CHECKING:
    from trikubelet.telemetry.families import AnyFamily


def families(given: ResourceManagers) -> dict[str, AnyFamily]:
    """Those that are shown: the others have no samples."""
    return {one.name: one for one in collect_resource_managers(given.counts, given.cpu_usage()) if one.samples}


def kinds(given: ResourceManagers) -> set[str]:
    return {name.removeprefix("kubelet_").split("_")[0] for name in families(given)}


def node(settings: ManagerSettings) -> ResourceManagers:
    return ResourceManagers(settings, None, needed=lambda _: False, sources_ready=lambda: False)


def test_a_manager_whose_policy_is_off_has_no_metrics() -> None:
    settings = managers(topology=BEST_EFFORT).counts.settings
    off = ManagerSettings()
    assert kinds(node(off)) == set()
    assert kinds(node(attrs.evolve(off, cpus=settings.cpus))) == {"cpu", "container"}
    assert kinds(node(attrs.evolve(off, memory=settings.memory))) == {"memory"}
    assert kinds(node(attrs.evolve(off, topology=settings.topology))) == {"topology", "container"}


def test_pod_level_metrics_are_behind_their_gate() -> None:
    for pod_level in (False, True):
        given = managers(pod_level=pod_level)
        given.admit(make_pod(container("main", "2", "1Gi")), NothingToGive())
        assert ("resource" in kinds(given)) is pod_level


def test_they_say_what_was_given_and_what_is_left() -> None:
    given = managers(topology=SINGLE_NUMA_NODE)
    given.admit(make_pod(container("main", "2", "1Gi")), NothingToGive())
    found = families(given)

    def values(name: str) -> dict[tuple[str, ...], float]:
        family = found[f"kubelet_{name}"]
        assert isinstance(family, Family)
        return {sample.labels: sample.value for sample in family.samples}

    assert values("cpu_manager_shared_pool_size_millicores") == {(): 5000}
    assert values("cpu_manager_exclusive_cpu_allocation_count") == {(): 2}
    assert values("cpu_manager_allocation_per_numa") == {("0",): 2, ("1",): 0}
    assert values("cpu_manager_pinning_errors_total") == {(): 0}
    assert values("topology_manager_admission_requests_total") == {(): 1}
    assert values("container_aligned_compute_resources_count")["container", "numa_node"] == 1
    assert found["kubelet_topology_manager_admission_duration_ms"].samples
