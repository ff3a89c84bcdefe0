"""Which resizes are granted, deferred and refused, and what is told of it (facts: `allocation_manager_test.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.allocation.situations import (
    Amounts,
    amounts,
    container,
    make_pod,
    of_generation,
    requirements,
    resized,
    sidecar,
    simple_pod,
)
from tests.allocation.stage import Stage
from trikubelet.allocation.metrics import PODS_REMOVED
from trikubelet.allocation.model import ResizeGates, allocation_of
from trikubelet.api import (
    POD_RESIZE_IN_PROGRESS,
    POD_RESIZE_PENDING,
    Container,
    ContainerResizePolicy,
    Pod,
    PodCondition,
    PodStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


CPU_FULL = "Node didn't have enough resource: cpu"
MEMORY_FULL = "Node didn't have enough resource: memory"
OLD_PROGRESS = PodCondition(type=POD_RESIZE_IN_PROGRESS, status="True", message="original in-progress")
OLD_PENDING = PodCondition(type=POD_RESIZE_PENDING, status="True", reason="Deferred", message="original pending")
IN_PROGRESS = ("InProgress", "", "", 0)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def _init(name: str, requests: Amounts, limits: Amounts) -> Pod:
    return make_pod("pod1", init=(container(name, requests, limits),))


def _sidecar(name: str, requests: Amounts, limits: Amounts) -> Pod:
    return make_pod("pod1", init=(sidecar(name, requests, limits),))


def _main(name: str, requests: Amounts, limits: Amounts) -> Pod:
    return make_pod("pod1", container(name, requests, limits))


NEIGHBOURS = (simple_pod("pod2"), make_pod("pod3", init=(container("c1", amounts("1", "1Gi")),)))
"""Half of the node's CPUs and memory."""


@attrs.frozen
class Row:
    """A resize of a container from requests and limits to others, and what users see of it."""

    before: Amounts
    after: Amounts
    shown: tuple[tuple[str, str, str], ...]
    """Type, reason and the beginning of the message of each condition."""
    limits_before: Amounts = attrs.field(factory=dict)
    limits_after: Amounts = attrs.field(factory=dict)
    reported: tuple[PodCondition, ...] = ()
    """What the status says when the agent starts."""

    @property
    def granted(self) -> bool:
        return all(type_ != "Pending" for type_, _, _ in self.shown)


STARTED = (("InProgress", "", ""),)
ROWS = {
    "less of both": Row(amounts("1", "1Gi"), amounts("500m", "500Mi"), STARTED),
    "more cpu, less memory": Row(amounts("1", "1Gi"), amounts("1500m", "500Mi"), STARTED),
    "less cpu, more memory": Row(amounts("1", "1Gi"), amounts("500m", "1500Mi"), STARTED),
    "more of both than there is": Row(
        amounts("1", "1Gi"), amounts("2500m", "2500Mi"), (("Pending", "Deferred", CPU_FULL),)
    ),
    "less cpu, more memory than there is": Row(
        amounts("1", "1Gi"), amounts("500m", "2500Mi"), (("Pending", "Deferred", MEMORY_FULL),)
    ),
    "more memory than the node has": Row(
        amounts("1", "1Gi"),
        amounts("1", "4500Mi"),
        (("Pending", "Deferred", f"{MEMORY_FULL}, requested: 4718592000, used: 2147483648, capacity: 4294967296"),),
    ),
    "more cpu than the node has": Row(
        amounts("1", "1Gi"),
        amounts("5", "1Gi"),
        (("Pending", "Deferred", f"{CPU_FULL}, requested: 5000, used: 2000, capacity: 4000"),),
    ),
    "another one is granted": Row(
        amounts("1", "1Gi"), amounts("1500m", "1Gi"), STARTED, reported=(OLD_PROGRESS, OLD_PENDING)
    ),
    "another one is deferred": Row(
        amounts("1", "1Gi"),
        amounts("500m", "2500Mi"),
        (("Pending", "Deferred", MEMORY_FULL), ("InProgress", "", "original in-progress")),
        reported=(OLD_PROGRESS, OLD_PENDING),
    ),
    "nothing changes": Row(amounts("1", "1Gi"), amounts("1", "1Gi"), ()),
    "up from the least shares": Row(amounts("2m"), amounts("1"), STARTED),
    "down to the least shares": Row(amounts("1"), amounts("2m"), STARTED),
    "up from the least quota": Row(amounts("10m"), amounts("10m"), STARTED, amounts("10m"), amounts("20m")),
    "down to the least quota": Row(amounts("10m"), amounts("10m"), STARTED, amounts("20m"), amounts("10m")),
}


def check(stage: Stage, row: Row, before: Pod, after: Pod, synced: list[str]) -> None:
    shown = stage.conditions("pod1")
    assert [(type_, reason) for type_, reason, _, _ in shown] == [(type_, reason) for type_, reason, _ in row.shown]
    for (_, _, text, _), (_, _, expected) in zip(shown, row.shown, strict=True):
        assert text.startswith(expected)
        assert bool(text) == bool(expected)
    assert stage.store.get("pod1") == allocation_of(after if row.granted else before)
    assert stage.manager.allocated(after) == (after if row.granted else before)
    assert synced == (["pod1"] if row.shown else [])
    assert list(stage.manager.waiting) == ([] if row.granted else ["pod1"])


@pytest.mark.parametrize("kind", [_main, _init, _sidecar])
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_a_resize_of_a_pod_that_an_agent_finds(
    stage: Stage, row: Row, kind: Callable[[str, Amounts, Amounts], Pod]
) -> None:
    before, after = kind("c1", row.before, row.limits_before), kind("c1", row.after, row.limits_after)
    stage.allocate(before)
    after = attrs.evolve(after, status=PodStatus(phase="Running", conditions=row.reported))
    before = attrs.evolve(before, status=after.status)
    stage.add(*NEIGHBOURS, after)
    check(stage, row, before, after, stage.retry())


@pytest.mark.parametrize("kind", [_main, _init, _sidecar])
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items() if not row.reported])
def test_a_resize_of_a_pod_that_runs(stage: Stage, row: Row, kind: Callable[[str, Amounts, Amounts], Pod]) -> None:
    before, after = kind("c1", row.before, row.limits_before), kind("c1", row.after, row.limits_after)
    stage.add(*NEIGHBOURS, before)
    check(stage, row, before, after, stage.change(after))


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        (amounts("2", "2Gi"), STARTED),
        (amounts("1200m", "1200Mi"), STARTED),
        (amounts("2500m", "1500Mi"), (("Pending", "Deferred", CPU_FULL),)),
        (
            amounts("1500m", "4500Mi"),
            (("Pending", "Deferred", f"{MEMORY_FULL}, requested: 4718592000, used: 2147483648, capacity: 4294967296"),),
        ),
    ],
)
def test_a_resize_of_a_pod_as_a_whole(stage: Stage, after: Amounts, shown: tuple[tuple[str, str, str], ...]) -> None:
    before = simple_pod("pod1", pod_level=requirements(amounts("1500m", "1500Mi")))
    wanted = resized(before, pod=requirements(after))
    stage.add(*NEIGHBOURS, before)
    check(stage, Row({}, {}, shown), before, wanted, stage.change(wanted))


def test_a_resize_that_was_granted_before_the_agent_died_is_only_in_progress(stage: Stage) -> None:
    status = PodStatus(phase="Running", conditions=(OLD_PROGRESS, OLD_PENDING))
    pod = simple_pod("pod1", cpu="1500m", status=status)
    stage.allocate(pod)
    stage.add(pod)
    assert stage.conditions("pod1") == [("InProgress", "", "original in-progress", 0)]
    assert not stage.wakes
    assert not stage.heard()


def test_a_pod_level_resize_is_infeasible_where_its_gate_is_off(tmp_path: Path) -> None:
    stage = Stage(tmp_path, gates=ResizeGates(pod_level=False))
    before = simple_pod("pod1", pod_level=requirements(amounts("1")))
    wanted = of_generation(4, resized(before, pod=requirements(amounts("2"))))
    stage.add(before)
    assert stage.change(wanted) == ["pod1"]
    message = "InPlacePodLevelResourcesVerticalScaling is disabled"
    assert stage.conditions("pod1") == [("Pending", "Infeasible", message, 4)]
    assert stage.manager.allocated(wanted).spec == before.spec
    assert not stage.manager.waiting
    assert stage.heard() == [
        'Warning ResizeInfeasible Pod resize Infeasible: {"containers":[{"name":"c1","resources":{"requests":'
        f'{{"cpu":"1","memory":"1Gi"}}}}}}],"generation":4,"error":"{message}"}}'
    ]
    assert stage.manager.counts.infeasible == {("plr_feature_gate_off",): 1}
    assert stage.manager.statistics().pending == {("infeasible",): 1}


@pytest.mark.parametrize(
    ("swaps", "policy", "granted"),
    [(False, "RestartContainer", True), (True, "RestartContainer", True), (True, "NotRequired", False)],
)
def test_memory_of_a_container_that_may_swap_is_resized_by_a_restart_only(
    tmp_path: Path, swaps: bool, policy: str, granted: bool
) -> None:
    def may_swap(pod: Pod, container: Container) -> bool:
        return swaps

    stage = Stage(tmp_path, admission={"may_swap": may_swap})
    policies = (ContainerResizePolicy(resource_name="memory", restart_policy=policy),)
    before = make_pod("pod1", container("c1", amounts("1", "1Gi"), resize_policy=policies))
    stage.add(before)
    assert stage.change(resized(before, c1=requirements(amounts("500m", "500Mi")))) == ["pod1"]
    refusal = ("Pending", "Infeasible", "In-place resize of containers with swap is not supported.", 0)
    assert stage.conditions("pod1") == [IN_PROGRESS if granted else refusal]
    assert stage.manager.counts.infeasible == ({} if granted else {("swap_limitation",): 1})


def test_one_resize_in_progress_and_the_next_one_waiting(stage: Stage) -> None:
    def wants(cpu: str, memory: str, generation: int) -> Pod:
        return simple_pod("pod1", cpu, memory, generation=generation)

    def told(cpu: str, memory: str, generation: int) -> str:
        requests = f'"requests":{{"cpu":"{cpu}","memory":"{memory}"}}'
        return f'{{"containers":[{{"name":"c1","resources":{{{requests}}}}}],"generation":{generation}'

    stage.add(wants("500m", "500Mi", 1))
    assert stage.change(wants("1", "1Gi", 1)) == ["pod1"]
    assert stage.conditions("pod1") == [("InProgress", "", "", 1)]
    assert stage.heard() == [f"Normal ResizeStarted Pod resize started: {told('1', '1Gi', 1)}}}"]

    # Another one that does not fit: both are shown.
    message = f"{CPU_FULL}, requested: 5000, used: 0, capacity: 4000"
    deferred = [("Pending", "Deferred", message, 2), ("InProgress", "", "", 1)]
    assert stage.change(wants("5", "4500Mi", 2)) == ["pod1"]
    assert stage.conditions("pod1") == deferred
    error = f'"error":"{message}"'
    assert stage.heard() == [f"Warning ResizeDeferred Pod resize OutOfcpu: {told('5', '4500Mi', 2)},{error}}}"]

    # The same answer once more is no news.
    stage.clock.go_on()
    stage.manager.room_appeared(PODS_REMOVED)
    before = stage.manager.conditions("pod1")
    assert stage.retry() == []
    assert stage.manager.conditions("pod1") is before
    assert not stage.heard()

    # Back to what is allocated.
    stage.change(wants("1", "1Gi", 3))
    assert stage.conditions("pod1") == [("InProgress", "", "", 1)]
    assert not stage.manager.waiting
    stage.change(wants("1", "1Gi", 4))
    assert stage.conditions("pod1") == [("InProgress", "", "", 1)]
    assert not stage.heard()

    # A new one takes the place of the one in progress.
    assert stage.change(wants("500m", "500Mi", 5)) == ["pod1"]
    assert stage.conditions("pod1") == [("InProgress", "", "", 5)]
    assert stage.heard() == [f"Normal ResizeStarted Pod resize started: {told('500m', '500Mi', 5)}}}"]


def test_a_deferred_resize_that_asks_for_something_else_is_told_again(stage: Stage) -> None:
    stage.add(simple_pod("pod1"))
    stage.change(simple_pod("pod1", "5", generation=2))
    assert len(stage.heard()) == 1
    assert stage.change(simple_pod("pod1", "6", generation=3)) == ["pod1"]
    assert [event.split(": ")[0] for event in stage.heard()] == ["Warning ResizeDeferred Pod resize OutOfcpu"]
    assert stage.conditions("pod1")[0][2].startswith(f"{CPU_FULL}, requested: 6000")
