"""Who ends when: tables from the kubelet's nodeshutdown_manager_test.go and nodeshutdown_manager_linux_test.go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from trikubelet.api import Pod, PodStatus, pod_from_dict
from trikubelet.config.kubelet_configuration import KubeletConfiguration, ShutdownGracePeriod
from trikubelet.node.shutdown.groups import (
    MESSAGE,
    grace_period,
    group_by_priority,
    late_groups,
    shutdown_periods,
    terminated_status,
    time_for_all,
)

CRITICAL = 2_000_000_000
HIGHEST_OF_USERS = 1_000_000_000


def pod(name: str, priority: int | None = None, grace: int | None = None) -> Pod:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "test:1"}]}
    if priority is not None:
        spec["priority"] = priority
    if grace is not None:
        spec["terminationGracePeriodSeconds"] = grace
    return pod_from_dict({"metadata": {"name": name, "uid": name}, "spec": spec})


def periods(*pairs: tuple[int, int]) -> tuple[ShutdownGracePeriod, ...]:
    return tuple(ShutdownGracePeriod(priority=one, shutdown_grace_period_seconds=seconds) for one, seconds in pairs)


def configured(total: float = 0, critical: float = 0, **fields: Any) -> KubeletConfiguration:
    return KubeletConfiguration(
        shutdown_grace_period=timedelta(seconds=total),
        shutdown_grace_period_critical_pods=timedelta(seconds=critical),
        **fields,
    )


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (configured(300, 120), ((0, 180), (CRITICAL, 120))),
        (configured(100, 0), ((0, 100), (CRITICAL, 0))),
        (configured(5, 5), ((0, 0), (CRITICAL, 5))),
        (configured(0, 0), ()),
        (configured(1, 100), ()),
        (configured(100, 0, feature_gates={"GracefulNodeShutdown": False}), ()),
        (
            configured(shutdown_grace_period_by_pod_priority=periods((100, 20), (0, 10), (7, 15))),
            ((0, 10), (7, 15), (100, 20)),
        ),
        (
            configured(
                30,
                10,
                shutdown_grace_period_by_pod_priority=periods((100, 20)),
                feature_gates={"GracefulNodeShutdownBasedOnPodPriority": False},
            ),
            ((0, 20), (CRITICAL, 10)),
        ),
    ],
)
def test_periods_of_a_configuration(configuration: KubeletConfiguration, expected: tuple[tuple[int, int], ...]) -> None:
    assert shutdown_periods(configuration) == periods(*expected)
    assert time_for_all(periods(*expected)) == sum(seconds for _, seconds in expected)


@pytest.mark.parametrize(
    ("pairs", "priorities", "expected"),
    [
        (
            ((0, 180), (CRITICAL, 120)),
            {"normal": 0, "none": None, "highest-of-users": HIGHEST_OF_USERS, "critical": CRITICAL},
            [["normal", "none", "highest-of-users"], ["critical"]],
        ),
        (
            ((1, 10), (2, 20), (3, 30), (4, 40)),
            {f"pod-{number}": number for number in range(6)},
            [["pod-0", "pod-1"], ["pod-2"], ["pod-3"], ["pod-4", "pod-5"]],
        ),
        (((10, 1), (10, 2), (20, 3)), {"at": 10, "between": 15, "below": -5}, [["at", "below"], ["between"], []]),
    ],
)
def test_groups_by_priority(
    pairs: tuple[tuple[int, int], ...], priorities: dict[str, int | None], expected: list[list[str]]
) -> None:
    groups = group_by_priority(periods(*pairs), [pod(name, priority) for name, priority in priorities.items()])
    assert [[one.metadata.name for one in group.pods] for group in groups] == expected
    assert [(group.priority, group.seconds) for group in groups] == list(pairs)


@pytest.mark.parametrize(
    ("total", "critical", "own", "expected"),
    [
        (30, 10, (None, None), (20, 10)),
        (30, 10, (2, 2), (2, 2)),
        (30, 10, (1000, None), (20, 10)),
        (30, 0, (None, None), (30, 0)),
        (5, 5, (None, None), (0, 5)),
    ],
)
def test_no_pod_gets_more_than_its_group_or_than_it_asks_for(
    total: int, critical: int, own: tuple[int | None, int | None], expected: tuple[int, int]
) -> None:
    pods = [pod("normal", 0, own[0]), pod("critical", CRITICAL, own[1])]
    groups = group_by_priority(shutdown_periods(configured(total, critical)), pods)
    assert tuple(grace_period(group.pods[0], group.seconds) for group in groups) == expected


@pytest.mark.parametrize(
    ("late", "expected"), [(0, [20, 10, 5]), (0.4, [19, 10, 5]), (20, [0, 10, 5]), (27, [0, 3, 5]), (99, [0, 0, 0])]
)
def test_time_that_is_gone_is_taken_from_those_that_come_first(late: float, expected: list[int]) -> None:
    groups = group_by_priority(periods((0, 20), (1, 10), (2, 5)), [])
    assert [group.seconds for group in late_groups(groups, late)] == expected


@pytest.mark.parametrize(("before", "after"), [("Running", "Failed"), ("Failed", "Failed"), ("Succeeded", "Succeeded")])
def test_the_status_of_a_pod_that_was_ended(before: str, after: str) -> None:
    status = terminated_status(PodStatus(phase=before), generation=3)
    assert (status.phase, status.reason, status.message) == (after, "Terminated", MESSAGE)
    assert MESSAGE == "Pod was terminated in response to imminent node shutdown."
    (condition,) = terminated_status(status, generation=3).conditions
    assert (condition.type, condition.status, condition.reason) == ("DisruptionTarget", "True", "TerminationByKubelet")
    assert (condition.message, condition.observed_generation) == (MESSAGE, 3)
