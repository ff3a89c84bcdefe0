"""Which dead containers and sandboxes go, with the outcomes of the kubelet's `TestContainerGC` and `TestSandboxGC`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import pytest

from trikubelet.container.model import ContainerID, ContainerState, ContainerStatus, PodRuntimeStatus
from trikubelet.runtime.gc_choice import (
    ContainerGCPolicy,
    DeadContainer,
    SeenSandbox,
    containers_to_collect,
    dead_containers_beyond,
    sandboxes_to_collect,
)

NOW = 1_000_000.0
HOUR = 3600.0
DEFAULT = ContainerGCPolicy(min_age=HOUR, max_per_pod_container=2, max_containers=6)


def dead(pod: str, name: str, *ages: float) -> list[DeadContainer]:
    return [DeadContainer(f"{pod}-{name}-{age:g}", name, pod, age) for age in ages]


CONTAINERS: dict[str, tuple[list[DeadContainer], ContainerGCPolicy, list[str]]] = {
    "a limit of none removes all": (dead("foo", "bar", 0), ContainerGCPolicy(60, 1, 0), []),
    "the limit for all counts without one for each": (
        dead("foo", "bar", 4, 3, 2, 1, 0),
        ContainerGCPolicy(60, -1, 4),
        ["foo-bar-4", "foo-bar-3", "foo-bar-2", "foo-bar-1"],
    ),
    "no limits, no removal": (
        dead("foo", "bar", 2, 1, 0),
        ContainerGCPolicy(60, -1, -1),
        ["foo-bar-2", "foo-bar-1", "foo-bar-0"],
    ),
    "young containers stay": (
        [attrs.evolve(one, created_at=NOW) for one in dead("foo", "bar", 2, 1, 0)],
        DEFAULT,
        ["foo-bar-2", "foo-bar-1", "foo-bar-0"],
    ),
    "the oldest go beyond the limit of each": (
        dead("foo", "bar", 0, 2, 1),
        DEFAULT,
        ["foo-bar-2", "foo-bar-1"],
    ),
    "the limit counts for each pod and container name": (
        [*dead("foo", "bar", 2, 1, 0), *dead("foo1", "baz", 2, 1, 0), *dead("foo2", "bar", 2, 1, 0)],
        DEFAULT,
        ["foo-bar-2", "foo-bar-1", "foo1-baz-2", "foo1-baz-1", "foo2-bar-2", "foo2-bar-1"],
    ),
    "the limit for all leaves something of each": (
        [one for number in range(5) for one in dead(f"foo{number}", "bar", 1, 0)],
        DEFAULT,
        [f"foo{number}-bar-1" for number in range(5)],
    ),
    "the oldest of all go when one of each is too much": (
        [
            *dead("foo", "bar", 2, 1),
            *dead("foo1", "bar", 2, 1),
            *dead("foo2", "bar", 1),
            *dead("foo3", "bar", 0),
            *dead("foo4", "bar", 1),
            *dead("foo5", "bar", 0),
            *dead("foo6", "bar", 2),
            *dead("foo7", "bar", 1),
        ],
        DEFAULT,
        ["foo-bar-2", "foo1-bar-2", "foo2-bar-1", "foo4-bar-1", "foo6-bar-2", "foo7-bar-1"],
    ),
    "all of a removed pod go, unless they are young": (
        [*dead("foo", "bar", 1, 0), *dead("deleted", "bar", 1, 0), DeadContainer("young", "bar", "deleted", NOW)],
        DEFAULT,
        ["foo-bar-1", "foo-bar-0", "young"],
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_that_stay(name: str) -> None:
    containers, policy, remain = CONTAINERS[name]
    doomed = containers_to_collect(containers, policy, now=NOW, is_removed=lambda uid: uid == "deleted")
    assert len(doomed) == len(set(doomed))
    assert sorted(one.id for one in containers if one not in doomed) == sorted(remain)


def test_by_default_each_container_keeps_its_last_dead_run() -> None:
    doomed = containers_to_collect(
        [*dead("foo", "a", 3, 2, 1), *dead("foo", "b", 1)], ContainerGCPolicy(), now=NOW, is_removed=lambda uid: False
    )
    assert [one.id for one in doomed] == ["foo-a-2", "foo-a-1"]


@pytest.mark.parametrize(
    ("never_started", "doomed"),
    [
        ("foo-a-4", ["foo-a-2", "foo-a-1"]),
        ("foo-a-4 foo-a-3", ["foo-a-3", "foo-a-1"]),
        ("foo-a-4 foo-a-3 foo-a-2", ["foo-a-3", "foo-a-2"]),
        ("foo-a-2", ["foo-a-2", "foo-a-3", "foo-a-1"]),
    ],
)
def test_the_last_run_stays_whatever_was_made_and_never_started_after_it(never_started: str, doomed: list[str]) -> None:
    containers = [
        attrs.evolve(one, never_started=one.id in never_started.split()) for one in dead("foo", "a", 4, 3, 2, 1)
    ]
    found = containers_to_collect(containers, ContainerGCPolicy(), now=NOW, is_removed=lambda uid: False)
    assert [one.id for one in found] == doomed


def test_what_may_be_starting_stays_unless_its_pod_is_removed() -> None:
    starting = [attrs.evolve(one, never_started=True) for one in (*dead("foo", "a", 1), *dead("deleted", "a", 1))]
    found = containers_to_collect(
        starting, ContainerGCPolicy(0, 0, 0), now=NOW, is_removed=lambda uid: uid == "deleted"
    )
    assert [one.id for one in found] == ["deleted-a-1"]


def test_a_clock_that_was_set_back_keeps_nothing_of_ended_pods() -> None:
    """As the campaign of kills found it: what was left of a pod stayed for an hour."""
    future = [attrs.evolve(one, created_at=NOW + 3600) for one in dead("deleted", "a", 1)]
    found = containers_to_collect(future, ContainerGCPolicy(), now=NOW, is_removed=lambda uid: True)
    assert found == future
    young = containers_to_collect(future, ContainerGCPolicy(min_age=60), now=NOW, is_removed=lambda uid: True)
    assert young == [], "where an age is asked for, they have to wait"


SANDBOXES: dict[str, tuple[list[SeenSandbox], list[str]]] = {
    "a dead one of a removed pod goes": ([SeenSandbox("a", "deleted", 0, active=False)], []),
    "one in use of a removed pod stays": ([SeenSandbox("a", "deleted", 0, active=True)], ["a"]),
    "the only one of a pod stays": (
        [SeenSandbox("a", "one", 0, active=True), SeenSandbox("b", "two", 0, active=False)],
        ["a", "b"],
    ),
    "older dead ones go": (
        [SeenSandbox("old", "one", 0, active=False), SeenSandbox("new", "one", 1, active=False)],
        ["new"],
    ),
    "older ones in use stay": (
        [SeenSandbox("old", "one", 0, active=True), SeenSandbox("new", "one", 1, active=False)],
        ["old", "new"],
    ),
    "an older dead one goes beside one in use": (
        [SeenSandbox("old", "one", 0, active=False), SeenSandbox("new", "one", 1, active=True)],
        ["new"],
    ),
}


@pytest.mark.parametrize("name", SANDBOXES)
def test_sandboxes_that_stay(name: str) -> None:
    sandboxes, remain = SANDBOXES[name]
    doomed = sandboxes_to_collect(sandboxes, is_removed=lambda uid: uid == "deleted")
    assert [one.id for one in sandboxes if one not in doomed] == remain


def seen(name: str, identifier: str, minute: int, state: ContainerState = ContainerState.EXITED) -> ContainerStatus:
    created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
    return ContainerStatus(ContainerID("x", identifier), name, state, created_at=created)


STATUS = PodRuntimeStatus(
    "uid",
    "foo",
    "ns",
    container_statuses=(
        seen("a", "a1", 1),
        seen("a", "a3", 3),
        seen("a", "a2", 2),
        seen("b", "b1", 4),
        seen("a", "a4", 5, ContainerState.RUNNING),
    ),
)


@pytest.mark.parametrize(
    ("container_id", "keep", "expected"),
    [
        ("a4", 1, ["a2", "a1"]),
        ("a4", 2, ["a1"]),
        ("b1", 1, []),
        ("", 1, ["a3", "a2", "a1"]),
        ("", 0, ["b1", "a3", "a2", "a1"]),
        ("unknown", 0, []),
    ],
)
def test_dead_runs_beyond_the_newest(container_id: str, keep: int, expected: list[str]) -> None:
    assert [one.id.id for one in dead_containers_beyond(STATUS, container_id=container_id, keep=keep)] == expected
