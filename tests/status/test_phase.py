"""The phase of a pod, by the tables of the kubelet's TestPodPhase… tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.status.builders import ended, pod, restarting_all, running, sidecar, waiting, with_rule
from trikubelet.api import Container, ContainerStatus
from trikubelet.status.phase import pod_phase

if TYPE_CHECKING:
    from trikubelet.api import Pod

Statuses = list[ContainerStatus]
A, B, X, Y = "a", "b", "x", "y"


def phase(of: Pod, statuses: Statuses, *, terminal: bool = False, initialized: bool = False) -> str:
    return pod_phase(of, statuses, terminal=terminal, initialized=initialized)


@pytest.mark.parametrize(
    ("statuses", "terminal", "expected"),
    [
        ([], False, "Pending"),
        ([running(A), running(B)], False, "Running"),
        ([ended(A), ended(B)], False, "Running"),
        ([ended(A), ended(B)], True, "Succeeded"),
        ([ended(A), ended(B, -1)], True, "Failed"),
        ([running(A), ended(B)], False, "Running"),
        ([running(A)], False, "Pending"),
        ([running(A), waiting(B)], False, "Pending"),
        ([running(A), waiting(B, last=0)], False, "Running"),
        ([running(A), ContainerStatus(name=B)], False, "Pending"),
    ],
)
def test_with_restart_policy_always(statuses: Statuses, terminal: bool, expected: str) -> None:
    assert phase(pod(A, B), statuses, terminal=terminal) == expected


def test_a_static_pod_is_not_ended_by_its_end_on_this_node() -> None:
    assert phase(pod(A, static=True), [ended(A)], terminal=True) == "Running"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "Pending"),
        ([running(X)], "Pending"),
        ([ended(X, -1)], "Pending"),
        ([waiting(X, last=0)], "Pending"),
        ([waiting(X, last=-1)], "Pending"),
        ([waiting(X)], "Pending"),
        ([ended(X), running(A), running(B)], "Running"),
    ],
)
def test_with_init_containers_and_restart_policy_always(statuses: Statuses, expected: str) -> None:
    assert phase(pod(A, B, init=(X,)), statuses) == expected


@pytest.mark.parametrize(
    ("statuses", "terminal", "initialized", "expected"),
    [
        ([], False, False, "Pending"),
        ([running(X)], False, False, "Pending"),
        ([ended(X)], False, False, "Pending"),
        ([waiting(X, last=0)], False, False, "Pending"),
        ([waiting(X, last=-1)], False, False, "Pending"),
        ([waiting(X)], False, False, "Pending"),
        ([running(X, started=True), running(A)], False, True, "Pending"),
        ([running(X, started=True), running(A), running(B)], False, True, "Running"),
        ([running(X), running(A), running(B)], False, True, "Running"),
        ([ended(X), running(A), running(B)], False, True, "Running"),
        ([waiting(X, last=0), running(A), running(B)], False, True, "Running"),
        ([ended(X, -1), ended(A), ended(B)], True, True, "Succeeded"),
        ([ended(X), ended(A), ended(B)], True, True, "Succeeded"),
        # The sandbox was made anew, and the sidecar has not started in it.
        ([running(X), running(A), running(B)], False, False, "Pending"),
    ],
)
def test_with_a_sidecar_and_restart_policy_always(
    statuses: Statuses, terminal: bool, initialized: bool, expected: str
) -> None:
    assert phase(pod(A, B, init=(sidecar(X),)), statuses, terminal=terminal, initialized=initialized) == expected


@pytest.mark.parametrize(
    ("statuses", "initialized", "expected"),
    [
        ([running(X), running(Y), running(A)], False, "Pending"),
        ([running(X), running(Y), ended(A)], False, "Pending"),
        ([ended(X), running(Y), ended(A)], False, "Pending"),
        ([ended(X), running(Y), ended(A)], True, "Running"),
        ([ended(X), running(Y), running(A)], True, "Running"),
    ],
)
def test_when_the_pod_has_run_before(statuses: Statuses, initialized: bool, expected: str) -> None:
    assert phase(pod(A, init=(X, sidecar(Y))), statuses, initialized=initialized) == expected


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "Pending"),
        ([running(A), running(B)], "Running"),
        ([ended(A), ended(B)], "Succeeded"),
        ([ended(A, -1), ended(B, -1)], "Failed"),
        ([ended(A), ended(B, 1)], "Failed"),
        ([running(A), ended(B)], "Running"),
        ([running(A)], "Pending"),
        ([running(A), waiting(B)], "Pending"),
    ],
)
def test_with_restart_policy_never(statuses: Statuses, expected: str) -> None:
    assert phase(pod(A, B, restart="Never"), statuses) == expected


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "Pending"),
        ([running(X)], "Pending"),
        ([ended(X, -1)], "Failed"),
        ([waiting(X, last=0)], "Pending"),
        ([waiting(X, last=-1)], "Failed"),
        ([waiting(X)], "Pending"),
        ([ended(X), running(A), running(B)], "Running"),
    ],
)
def test_with_init_containers_and_restart_policy_never(statuses: Statuses, expected: str) -> None:
    assert phase(pod(A, B, init=(X,), restart="Never"), statuses) == expected


@pytest.mark.parametrize(
    ("statuses", "initialized", "expected"),
    [
        ([ended(X)], False, "Pending"),
        ([waiting(X, last=-1)], False, "Pending"),
        ([running(X, started=True), running(A)], True, "Pending"),
        ([running(X, started=True), ended(A), ended(B)], True, "Running"),
        ([running(X), ended(A), ended(B)], True, "Running"),
        ([ended(X), ended(A), ended(B)], True, "Succeeded"),
        ([ended(X, -1), ended(A), ended(B)], True, "Succeeded"),
        ([waiting(X, last=0), ended(A), ended(B)], True, "Succeeded"),
        ([waiting(X, last=-1), ended(A), ended(B)], True, "Succeeded"),
    ],
)
def test_with_a_sidecar_and_restart_policy_never(statuses: Statuses, initialized: bool, expected: str) -> None:
    of = pod(A, B, init=(sidecar(X),), restart="Never")
    assert phase(of, statuses, initialized=initialized) == expected


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "Pending"),
        ([running(A), running(B)], "Running"),
        ([ended(A), ended(B)], "Succeeded"),
        ([ended(A, -1), ended(B, -1)], "Running"),
        ([running(A), ended(B)], "Running"),
        ([running(A), waiting(B)], "Pending"),
        ([running(A), waiting(B, last=0)], "Running"),
    ],
)
def test_with_restart_policy_on_failure(statuses: Statuses, expected: str) -> None:
    assert phase(pod(A, B, restart="OnFailure"), statuses) == expected


@pytest.mark.parametrize(
    ("policies", "pod_policy", "codes", "expected"),
    [
        (["Never"], "Always", [-1], "Failed"),
        (["OnFailure"], "Always", [-1], "Running"),
        (["Always"], "Always", [-1], "Running"),
        (["Always", None], "Never", [0, -1], "Running"),
        (["Never", "OnFailure"], "Always", [-1, 0], "Failed"),
        (["Never", "OnFailure"], "Always", [0, 0], "Succeeded"),
    ],
)
def test_with_restart_policies_of_containers(
    policies: list[str | None], pod_policy: str, codes: list[int], expected: str
) -> None:
    containers = [Container(name=f"c{index}", restart_policy=policy) for index, policy in enumerate(policies)]
    statuses = [ended(f"c{index}", code) for index, code in enumerate(codes)]
    assert phase(pod(*containers, restart=pod_policy), statuses, initialized=True) == expected


@pytest.mark.parametrize(
    ("policy", "pod_policy", "expected"),
    [("Never", "Always", "Failed"), ("OnFailure", "Never", "Pending"), ("Always", "Never", "Pending")],
)
def test_with_restart_policies_of_init_containers(policy: str, pod_policy: str, expected: str) -> None:
    of = pod(A, init=(Container(name=X, restart_policy=policy),), restart=pod_policy)
    assert phase(of, [ended(X, -1)], initialized=True) == expected


RULE, SIDECAR_RULE = with_rule(X), with_rule(X, "Always")


@pytest.mark.parametrize(
    ("of", "statuses", "expected"),
    [
        (pod(RULE, restart="Never"), [ended(X, 42)], "Running"),
        (pod(init=(RULE,), restart="Never"), [ended(X, 42)], "Pending"),
        (pod(A, init=(SIDECAR_RULE,), restart="Never"), [ended(X, 42), waiting(A)], "Pending"),
        (pod(A, init=(SIDECAR_RULE, Y), restart="Never"), [ended(X, 42), waiting(Y), waiting(A)], "Pending"),
        (pod(RULE, restart="Never"), [restarting_all(X)], "Running"),
        (pod(init=(RULE,), restart="Never"), [restarting_all(X)], "Pending"),
        (pod(A, init=(SIDECAR_RULE,), restart="Never"), [restarting_all(X), waiting(A)], "Pending"),
        (pod(RULE, init=(Y,), restart="Never"), [ended(Y), restarting_all(X)], "Running"),
        (pod(RULE, init=(Y,), restart="Never"), [ended(Y, -1), restarting_all(X)], "Failed"),
        (pod(A, init=(RULE,), restart="Never"), [ended(X), waiting(A)], "Pending"),
        (pod(A, init=(SIDECAR_RULE,), restart="Never"), [restarting_all(X), restarting_all(A)], "Running"),
        (pod(A, init=(SIDECAR_RULE,), restart="Never"), [running(X), restarting_all(A)], "Running"),
        (pod(A, init=(SIDECAR_RULE, Y), restart="Never"), [running(X), restarting_all(Y), waiting(A)], "Pending"),
    ],
)
def test_while_all_containers_restart(of: Pod, statuses: Statuses, expected: str) -> None:
    assert phase(of, statuses, initialized=True) == expected
