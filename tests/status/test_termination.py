"""The last status of a pod, by the kubelet's TestTerminatePod tables."""

from __future__ import annotations

import pytest

from tests.status.builders import ended, ended_state, pod, running, sidecar, waiting
from trikubelet.api import ContainerStatus, PodStatus
from trikubelet.status.generate import has_initialized, terminated_status

A, B, X, Y = "a", "b", "x", "y"


def ends(statuses: tuple[ContainerStatus, ...]) -> list[int | None]:
    return [None if one.state.terminated is None else one.state.terminated.exit_code for one in statuses]


def test_containers_that_vanished_have_failed_and_ends_are_kept() -> None:
    status = terminated_status(pod(A, B), PodStatus(phase="Running", container_statuses=(running(A), ended(B, 2))))
    assert status.phase == "Failed"
    assert ends(status.container_statuses) == [137, 2]
    end = status.container_statuses[0].state.terminated
    assert end is not None
    assert end.reason == "ContainerStatusUnknown"
    assert end.message == "The container could not be located when the pod was terminated"


@pytest.mark.parametrize(
    ("phase", "static", "expected"),
    [
        ("Pending", False, "Failed"),
        ("Running", False, "Failed"),
        ("", False, "Failed"),
        ("Succeeded", False, "Succeeded"),
        ("Failed", False, "Failed"),
        ("Running", True, "Running"),
    ],
)
def test_the_phase_becomes_final_except_for_static_pods(phase: str, static: bool, expected: str) -> None:
    assert terminated_status(pod(A, static=static), PodStatus(phase=phase)).phase == expected


def test_a_pod_that_was_never_initialized_keeps_its_waiting_containers() -> None:
    status = PodStatus(init_container_statuses=(running(X),), container_statuses=(waiting(A),))
    result = terminated_status(pod(A, init=(X,)), status)
    assert ends(result.init_container_statuses) == [137]
    assert ends(result.container_statuses) == [None]


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ([waiting(X), waiting(Y)], [137, None]),
        ([running(X), waiting(Y)], [137, None]),
        ([waiting(X), running(Y)], [137, 137]),
        ([ended(X), waiting(Y)], [0, None]),
        ([ended(X), waiting(Y, last=1)], [0, 137]),
    ],
)
def test_init_containers_that_have_begun_get_an_end(init: list[ContainerStatus], expected: list[int | None]) -> None:
    status = PodStatus(init_container_statuses=tuple(init), container_statuses=(waiting(A),))
    assert ends(terminated_status(pod(A, init=(X, Y)), status).init_container_statuses) == expected


@pytest.mark.parametrize(
    ("init", "main", "expected"),
    [
        ([ended(X)], [waiting(A)], True),
        ([ended(X, 1)], [waiting(A)], False),
        ([running(X)], [waiting(A)], False),
        ([running(X)], [running(A)], True),
        ([running(X)], [waiting(A, last=1)], True),
        ([ContainerStatus(name=X, last_state=ended_state(0))], [waiting(A)], True),
        ([], [waiting(A)], False),
        ([ended("unknown")], [waiting(A)], False),
    ],
)
def test_a_pod_has_initialized_when_there_is_a_sign_of_it(
    init: list[ContainerStatus], main: list[ContainerStatus], expected: bool
) -> None:
    status = PodStatus(init_container_statuses=tuple(init), container_statuses=tuple(main))
    assert has_initialized(pod(A, init=(X,)), status) is expected


def test_a_last_sidecar_that_has_started_is_such_a_sign() -> None:
    of = pod(A, init=(X, sidecar(Y)))
    for started in (True, False):
        init = (ended(X), running(Y, started=started))
        status = PodStatus(init_container_statuses=init, container_statuses=(waiting(A),))
        assert has_initialized(of, status) is started
