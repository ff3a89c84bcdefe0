"""Events of a resize, word for word (facts: `events/resize_test.go`)."""

from __future__ import annotations

import json

from tests.allocation.situations import amounts, container, make_pod, sidecar
from trikubelet.allocation import messages
from trikubelet.api import Container, Quantity, ResourceRequirements

SIMPLE = make_pod("12345", container("c0", amounts("100m", "100"), amounts("100m", "100")))
SEVERAL = make_pod(
    "12345",
    container("c1", amounts(memory="100"), amounts(memory="200")),
    container("c2", amounts("200m", "100")),
    init=(sidecar("c0", amounts("100m"), amounts("200m")),),
)
BEST_EFFORT = make_pod("12345", container("c0"))

OF_SIMPLE = (
    '{"containers":[{"name":"c0","resources":{"limits":{"cpu":"100m","memory":"100"},'
    '"requests":{"cpu":"100m","memory":"100"}}}],"generation":1'
)
OF_SEVERAL = (
    '{"initContainers":[{"name":"c0","resources":{"limits":{"cpu":"200m"},"requests":{"cpu":"100m"}}}],'
    '"containers":[{"name":"c1","resources":{"limits":{"memory":"200"},"requests":{"memory":"100"}}},'
    '{"name":"c2","resources":{"requests":{"cpu":"200m","memory":"100"}}}],"generation":2'
)


def test_a_resize_that_started() -> None:
    assert messages.resize_started(SIMPLE, 1) == f"Pod resize started: {OF_SIMPLE}}}"
    assert messages.resize_started(SEVERAL, 2) == f"Pod resize started: {OF_SEVERAL}}}"


def test_a_resize_that_was_completed() -> None:
    assert messages.resize_completed(SIMPLE, 1) == f"Pod resize completed: {OF_SIMPLE}}}"
    assert messages.resize_completed(SEVERAL, 2) == f"Pod resize completed: {OF_SEVERAL}}}"


def test_containers_without_resources_are_told_too() -> None:
    expected = 'Pod resize completed: {"containers":[{"name":"c0","resources":{}}],"generation":3}'
    assert messages.resize_completed(BEST_EFFORT, 3) == expected


def test_a_generation_of_nought_is_told() -> None:
    assert messages.resize_started(BEST_EFFORT, 0).endswith('"generation":0}')


def test_a_resize_that_failed() -> None:
    error = "some error occurred"
    assert messages.resize_error(SIMPLE, 1, error) == f'Pod resize error: {OF_SIMPLE},"error":"{error}"}}'
    assert messages.resize_error(SEVERAL, 2, error) == f'Pod resize error: {OF_SEVERAL},"error":"{error}"}}'


def test_a_resize_that_has_to_wait() -> None:
    message = "Node didn't have enough resource: memory"
    text = messages.resize_pending(SIMPLE, "Deferred", message, 1)
    assert text == f'Pod resize Deferred: {OF_SIMPLE},"error":"{message}"}}'
    message = "In-place resize of containers with swap is not supported"
    text = messages.resize_pending(SEVERAL, "Infeasible", message, 2)
    assert text == f'Pod resize Infeasible: {OF_SEVERAL},"error":"{message}"}}'


def test_resources_are_told_by_name() -> None:
    unordered = ResourceRequirements(requests={"memory": Quantity("1Gi"), "cpu": Quantity("1")})
    pod = make_pod("12345", Container(name="c0", resources=unordered))
    assert '"requests":{"cpu":"1","memory":"1Gi"}' in messages.resize_started(pod, 1)


def test_an_error_is_escaped_as_go_does_it() -> None:
    error = 'a "b" < c & d > é \u2028'
    text = messages.resize_error(BEST_EFFORT, 1, error)
    assert text.endswith('"error":"a \\"b\\" \\u003c c \\u0026 d \\u003e é \\u2028"}')
    assert json.loads(text.removeprefix("Pod resize error: "))["error"] == error
