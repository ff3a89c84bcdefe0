"""What running containers and pods have: the kubelet's `TestConvertToAPIContainerStatusesForResources` as facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.status.builders import observed, pod, seen
from trikubelet.allocation.model import PodAllocation
from trikubelet.api import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from trikubelet.cgroups.interface import CgroupReading
from trikubelet.container import model
from trikubelet.container.model import RuntimeResources
from trikubelet.status.generate import generate_pod_status
from trikubelet.status.resources import ActualResources, with_pod_resources

if TYPE_CHECKING:
    from collections.abc import Mapping

GI = 2**30
ONE = {"cpu": "1", "memory": "1Gi"}
TWO = {"cpu": "2", "memory": "2Gi"}
STORAGE = {"ephemeral-storage": "2Gi", "storage": "2Gi"}
EXTENDED = {"dummy.io/dummy": "1"}
NOTHING: dict[str, str] = {}
RUNNING = ContainerState(running=ContainerStateRunning())
SAID_ONE = RuntimeResources(1000, 1000, GI)


def amounts(of: Mapping[str, str] | None) -> dict[str, Quantity]:
    return {name: Quantity(amount) for name, amount in (of or {}).items()}


def resources(requests: Mapping[str, str] | None, limits: Mapping[str, str] | None = None) -> ResourceRequirements:
    return ResourceRequirements(requests=amounts(requests), limits=amounts(limits))


@attrs.frozen
class Row:
    allocated: ResourceRequirements
    said: RuntimeResources | None
    shown: ResourceRequirements | None = None
    """None: what is allocated."""
    old: ResourceRequirements | None = None
    old_state: ContainerState = RUNNING
    state: model.ContainerState = model.ContainerState.RUNNING
    told: ResourceRequirements | None = None
    same_run: bool = True


SMALL = resources({"memory": "100M", "cpu": "1m"}, {"cpu": "5m"})
FULL = {**ONE, **STORAGE}
FULL_TWO = {**TWO, **STORAGE}
TABLE = {
    "guaranteed": Row(resources(ONE, ONE), SAID_ONE, old=resources(ONE, ONE)),
    "burstable": Row(resources(ONE, ONE), SAID_ONE, old=resources(ONE, TWO)),
    "without cpu": Row(
        resources({"memory": "100M"}), RuntimeResources(cpu_request=2), old=resources({"memory": "100M"})
    ),
    "less cpu than a kernel tells apart": Row(SMALL, RuntimeResources(2, 10), old=SMALL),
    "guaranteed, with storage": Row(resources(FULL, FULL), SAID_ONE, old=resources(ONE, ONE)),
    "burstable, with storage": Row(
        resources(FULL, FULL), SAID_ONE, old=resources(FULL_TWO, FULL_TWO), told=resources(ONE, ONE)
    ),
    "with storage, and nothing reported before": Row(resources(FULL, FULL), SAID_ONE),
    "best effort": Row(resources(NOTHING), None, old=resources(NOTHING)),
    "best effort, with shares that every container has": Row(resources(NOTHING), RuntimeResources(cpu_request=2)),
    "best effort, extended": Row(
        resources({**EXTENDED, "cpu": "0", "memory": "0"}), RuntimeResources(cpu_request=2), old=resources(NOTHING)
    ),
    "burstable, extended": Row(resources({**ONE, **EXTENDED}), RuntimeResources(1000), old=resources(NOTHING)),
    "burstable, extended, with storage": Row(
        resources({**FULL, **EXTENDED}), RuntimeResources(1000), old=resources(NOTHING)
    ),
    "guaranteed, extended": Row(resources({**ONE, **EXTENDED}, {**ONE, **EXTENDED}), SAID_ONE, old=resources(NOTHING)),
    "newly made": Row(resources(FULL, FULL), SAID_ONE, state=model.ContainerState.CREATED),
    "newly running": Row(resources(FULL, FULL), SAID_ONE, old_state=ContainerState(waiting=ContainerStateWaiting())),
    "newly ended, where it had others": Row(
        resources(FULL_TWO, FULL_TWO), SAID_ONE, old=resources(FULL, FULL), state=model.ContainerState.EXITED
    ),
    "being resized": Row(
        resources(FULL_TWO, FULL_TWO), SAID_ONE, resources({**FULL, "memory": "2Gi"}, FULL), told=None
    ),
    "being resized, where the memory request was told": Row(
        resources(FULL_TWO, FULL_TWO), SAID_ONE, resources(FULL, FULL), told=resources(ONE, ONE)
    ),
    "being resized, on a runtime that says nothing": Row(
        resources(FULL_TWO, FULL_TWO), None, resources(FULL, FULL), told=resources(ONE, ONE)
    ),
    "nothing is known but what was reported": Row(
        resources(FULL_TWO, FULL_TWO), None, resources(FULL, FULL), old=resources(FULL, FULL)
    ),
    "what was reported was of an earlier run": Row(
        resources(FULL_TWO, FULL_TWO), None, old=resources(FULL, FULL), same_run=False
    ),
    "a limit of the pod, in a container with limits": Row(
        resources({"memory": "1Gi"}, {"memory": "1Gi"}),
        RuntimeResources(cpu_request=2, cpu_limit=2000, memory_limit=GI),
        resources({"memory": "1Gi"}, {"memory": "1Gi", "cpu": "2"}),
    ),
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_a_container_shows_what_is_known_of_what_it_has(row: Row) -> None:
    container = attrs.evolve(seen("c"), state=row.state, resources=row.said)
    old = ContainerStatus(
        name="c",
        state=row.old_state,
        container_id=str(container.id) if row.same_run else "test://other",
        resources=row.old,
    )
    of = pod(Container(name="c", resources=row.allocated))
    told = None if row.told is None else PodAllocation({"c": row.told})
    status = generate_pod_status(
        of,
        observed(container),
        previous=PodStatus(container_statuses=(old,)),
        waiting_reasons={},
        actual=ActualResources(told),
    ).container_statuses[0]
    assert status.resources == (row.allocated if row.shown is None else row.shown)
    assert status.allocated_resources == row.allocated.requests


def test_amounts_that_are_the_same_stay_as_they_were_written() -> None:
    allocated = resources({"cpu": "0.1", "memory": "1024Mi"}, {"cpu": "0.1", "memory": "1024Mi"})
    container = attrs.evolve(seen("c"), resources=RuntimeResources(100, 100, GI))
    assert ActualResources().of_container(Container(name="c", resources=allocated), container, None) is allocated


# The pod as a whole


def shown(
    of_pod: ResourceRequirements | None, actual: ActualResources, previous: ResourceRequirements | None = None
) -> ResourceRequirements | None:
    of = pod(Container(name="c", resources=resources(ONE, ONE)), resources=of_pod)
    return with_pod_resources(of, PodStatus(phase="Running"), actual, previous).resources


def test_a_pod_shows_what_its_cgroup_says() -> None:
    group = CgroupReading(cpu_shares=512, cpu_quota=150_000, cpu_period=100_000, memory_limit=2 * GI)
    expected = resources({"cpu": "500m", "memory": "1Gi"}, {"cpu": "1500m", "memory": "2Gi"})
    assert shown(None, ActualResources(group=group)) == expected
    assert shown(resources(ONE, TWO), ActualResources(group=group)) == expected


def test_a_cgroup_without_limits_shows_what_was_reported_before() -> None:
    group = CgroupReading(cpu_shares=1024, cpu_quota=-1, cpu_period=100_000, memory_limit=-1)
    assert shown(None, ActualResources(group=group)) == resources(ONE)
    assert shown(None, ActualResources(group=group), resources(TWO, TWO)) == resources(ONE, TWO)


def test_less_cpu_than_a_kernel_tells_apart_is_shown_as_asked_for() -> None:
    group = CgroupReading(cpu_shares=2, cpu_quota=1000, cpu_period=100_000, memory_limit=GI)
    asked = resources({"cpu": "1m", "memory": "1Gi"}, {"cpu": "5m", "memory": "1Gi"})
    assert shown(asked, ActualResources(group=group)) == asked


def test_a_pod_whose_cgroup_was_not_read_shows_what_it_was_set_from() -> None:
    told = PodAllocation({"c": resources(TWO, TWO)})
    assert shown(None, ActualResources(told)) == resources(TWO, TWO)
    whole = PodAllocation({"c": resources(ONE, ONE)}, resources(TWO, TWO))
    assert shown(resources(ONE, ONE), ActualResources(whole)) == resources(TWO, TWO)
