"""What holds of a pod, by the tables of the kubelet's status/generate_test.go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.status.builders import ended, observed, pod, running, seen, sidecar, waiting, with_rule
from trikubelet.api import ContainerStatus, PodCondition, PodReadinessGate, PodStatus
from trikubelet.container.model import PodRuntimeStatus, SandboxStatus
from trikubelet.status.conditions import (
    containers_ready_condition,
    initialized_condition,
    readiness_differs,
    ready_condition,
    ready_to_start_condition,
    restarting_condition,
)

if TYPE_CHECKING:
    from trikubelet.api import Pod

A, B, X, Y = "a", "b", "x", "y"


def ready(name: str) -> ContainerStatus:
    return ContainerStatus(name=name, ready=True)


def unready(name: str) -> ContainerStatus:
    return ContainerStatus(name=name)


def said(condition: PodCondition) -> tuple[str, str, str]:
    return condition.status, condition.reason, condition.message


UNKNOWN_A = ("False", "ContainersNotReady", "containers with unknown status: [a]")


@pytest.mark.parametrize(
    ("of", "statuses", "phase", "expected"),
    [
        (pod(), [], "Running", ("True", "", "")),
        (pod(A), [], "Running", UNKNOWN_A),
        (pod(A, B), [ready(A), ready(B)], "Running", ("True", "", "")),
        (pod(A, B), [ready(B)], "Running", UNKNOWN_A),
        (
            pod(A, B),
            [unready(A), unready(B)],
            "Running",
            ("False", "ContainersNotReady", "containers with unready status: [a b]"),
        ),
        (
            pod(A, B),
            [unready(A)],
            "Pending",
            ("False", "ContainersNotReady", "containers with unknown status: [b], containers with unready status: [a]"),
        ),
        (pod(A), [unready(A)], "Succeeded", ("False", "PodCompleted", "")),
        (pod(A), [], "Succeeded", UNKNOWN_A),
        (pod(A), [], "Failed", ("False", "PodFailed", "")),
        (
            pod(A, init=(sidecar(X),)),
            [ready(A)],
            "Running",
            ("False", "ContainersNotReady", "containers with unknown status: [x]"),
        ),
        (pod(A, init=(sidecar(X), Y)), [ready(X), ready(A)], "Running", ("True", "", "")),
        (
            pod(A, init=(sidecar(X), sidecar(Y))),
            [ready(X), unready(Y), ready(A)],
            "Running",
            ("False", "ContainersNotReady", "containers with unready status: [y]"),
        ),
    ],
)
def test_containers_ready_and_ready_agree_without_gates(
    of: Pod, statuses: list[ContainerStatus], phase: str, expected: tuple[str, str, str]
) -> None:
    assert said(containers_ready_condition(of, statuses, phase)) == expected
    assert said(ready_condition(of, (), statuses, phase)) == expected


def gated(*names: str) -> Pod:
    return pod(readiness_gates=tuple(PodReadinessGate(condition_type=name) for name in names))


@pytest.mark.parametrize(
    ("gates", "conditions", "message"),
    [
        (["g"], {}, 'corresponding condition of pod readiness gate "g" does not exist.'),
        (["g"], {"g": "False"}, 'the status of pod readiness gate "g" is not "True", but False'),
        (["g"], {"g": "True"}, ""),
        (["g", "h"], {"g": "True"}, 'corresponding condition of pod readiness gate "h" does not exist.'),
        (["g", "h"], {"g": "True", "h": "True"}, ""),
        (
            ["g", "h"],
            {"h": "Unknown"},
            'corresponding condition of pod readiness gate "g" does not exist., '
            'the status of pod readiness gate "h" is not "True", but Unknown',
        ),
    ],
)
def test_a_pod_with_gates_is_ready_when_all_are_open(
    gates: list[str], conditions: dict[str, str], message: str
) -> None:
    given = [PodCondition(type=name, status=status) for name, status in conditions.items()]
    reason = "ReadinessGatesNotReady" if message else ""
    assert said(ready_condition(gated(*gates), given, [], "Running")) == (
        "False" if message else "True",
        reason,
        message,
    )


NOT_INITIALIZED = ("False", "ContainersNotInitialized")


@pytest.mark.parametrize(
    ("of", "statuses", "phase", "expected"),
    [
        (pod(), [], "Running", ("True", "")),
        (pod(A, init=(X,)), [], "Running", NOT_INITIALIZED),
        (pod(A, init=(X, Y)), [ready(X), ready(Y)], "Running", ("True", "")),
        (pod(A, init=(X, Y)), [ready(X)], "Running", NOT_INITIALIZED),
        (pod(A, init=(X, Y)), [ready(X), unready(Y)], "Running", NOT_INITIALIZED),
        (pod(A, init=(X,)), [ready(X)], "Succeeded", ("True", "PodCompleted")),
        (pod(A, init=(sidecar(X),)), [ContainerStatus(name=X, started=False)], "Pending", NOT_INITIALIZED),
        (pod(A, init=(sidecar(X),)), [ContainerStatus(name=X, started=True)], "Running", ("True", "")),
        (pod(A, init=(sidecar(X),)), [running(X, started=False), running(A)], "Running", ("True", "")),
        (pod(A, init=(X,)), [waiting(X), ended(A)], "Running", ("True", "")),
    ],
)
def test_initialized(of: Pod, statuses: list[ContainerStatus], phase: str, expected: tuple[str, str]) -> None:
    condition = initialized_condition(of, PodStatus(), statuses, phase)
    assert (condition.status, condition.reason) == expected


def test_a_pod_that_was_initialized_stays_so_while_its_init_containers_run_again() -> None:
    before = PodStatus(conditions=(PodCondition(type="Initialized", status="True"),))
    assert initialized_condition(pod(A, init=(X,)), before, [running(X), waiting(A)], "Pending").status == "True"


def test_what_is_missing_for_initialization_is_listed() -> None:
    condition = initialized_condition(pod(A, init=(X, Y)), PodStatus(), [unready(Y)], "Pending")
    assert condition.message == "containers with unknown status: [x], containers with incomplete status: [y]"


@pytest.mark.parametrize(
    ("sandbox", "expected"),
    [
        (None, "False"),
        (SandboxStatus(id="s", attempt=0, ready=False), "False"),
        (SandboxStatus(id="s", attempt=0, ready=True, network_reported=True), "False"),
        (SandboxStatus(id="s", attempt=0, ready=True, network_reported=True, ips=("10.0.0.10",)), "True"),
    ],
)
def test_a_pod_is_ready_to_start_containers_when_its_sandbox_has_an_address(
    sandbox: SandboxStatus | None, expected: str
) -> None:
    now = PodRuntimeStatus("u", "p", "default", sandbox_statuses=() if sandbox is None else (sandbox,))
    assert ready_to_start_condition(pod(A), now).status == expected


RESTARTING = PodStatus(conditions=(PodCondition(type="AllContainersRestarting", status="True"),))


@pytest.mark.parametrize(
    ("now", "previous", "phase", "expected"),
    [
        (observed(), PodStatus(), "Pending", ("False", "", "")),
        (observed(), PodStatus(), "Failed", ("False", "PodFailed", "")),
        (observed(), PodStatus(), "Succeeded", ("False", "PodCompleted", "")),
        (
            observed(seen(A), seen(B, "exited", 42)),
            PodStatus(),
            "Running",
            ("True", "RestartAllContainersStarted", "container exited with restart policy rule"),
        ),
        (observed(seen(A), seen(B, "exited", 41)), PodStatus(), "Running", ("False", "", "")),
        (
            observed(seen(A, "exited")),
            RESTARTING,
            "Running",
            ("True", "RestartAllContainersStarted", "container exited with restart policy rule"),
        ),
        (observed(), RESTARTING, "Pending", ("False", "", "")),
    ],
)
def test_all_containers_restart_until_all_are_removed(
    now: PodRuntimeStatus, previous: PodStatus, phase: str, expected: tuple[str, str, str]
) -> None:
    assert said(restarting_condition(pod(A, with_rule(B)), now, previous, phase)) == expected


GATED = pod(A, init=(sidecar(X),), readiness_gates=(PodReadinessGate(condition_type="g"),))
OPEN = PodCondition(type="g", status="True")
SHOWN = PodCondition(type="Ready", status="False", message="the gate is closed")


@pytest.mark.parametrize(
    ("of", "conditions", "expected"),
    [
        (pod(A), (SHOWN,), False),
        (GATED, (OPEN,), False),
        (GATED, (OPEN, SHOWN), True),
        (GATED, (OPEN, PodCondition(type="Ready", status="True")), False),
        (GATED, (PodCondition(type="Ready", status="True"),), True),
        (GATED, (SHOWN,), True),
    ],
)
def test_a_pod_is_synced_when_its_readiness_is_not_what_its_gates_say(
    of: Pod, conditions: tuple[PodCondition, ...], expected: bool
) -> None:
    status = PodStatus(
        phase="Running",
        conditions=conditions,
        container_statuses=(ready(A),),
        init_container_statuses=(ready(X),),
    )
    assert readiness_differs(attrs.evolve(of, status=status)) is expected
