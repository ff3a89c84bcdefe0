from __future__ import annotations

from typing import Any

import pytest

from trikubelet.api import PodStatus, from_dict, pod_from_dict
from trikubelet.node_api.log_location import LogNotAvailableError, container_for_logs, default_container

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def ended(container_id: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": 1, **({"containerID": container_id} if container_id else {})}}


def status(state: dict[str, Any], last: dict[str, Any] | None = None, *, kind: str = "containerStatuses") -> PodStatus:
    container = {
        "name": "main",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 1,
        "containerID": "containerd://now",
        "state": state,
        "lastState": last or {},
    }
    return from_dict(PodStatus, {kind: [container]})


@pytest.mark.parametrize(
    ("found", "previous", "expected"),
    [
        (status(RUNNING), False, "now"),
        (status(RUNNING, ended("containerd://before")), False, "now"),
        (status(RUNNING, ended("containerd://before")), True, "before"),
        (status(ended("containerd://ended")), False, "ended"),
        (status(ended(), ended("containerd://before")), False, "before"),
        (status(waiting("CrashLoopBackOff"), ended("containerd://before")), False, "before"),
        (status(waiting("CrashLoopBackOff"), ended("containerd://before")), True, "before"),
        (status(RUNNING, kind="initContainerStatuses"), False, "now"),
        (status(RUNNING, kind="ephemeralContainerStatuses"), False, "now"),
    ],
)
def test_the_container_whose_log_is_meant(found: PodStatus, previous: bool, expected: str) -> None:
    assert container_for_logs("web", found, "main", previous=previous) == expected


@pytest.mark.parametrize(
    ("found", "previous", "message"),
    [
        (PodStatus(), False, 'container "main" in pod "web" is not available'),
        (status(RUNNING), True, 'previous terminated container "main" in pod "web" not found'),
        (status(RUNNING, ended()), True, 'previous terminated container "main" in pod "web" not found'),
        (status(ended()), False, 'container "main" in pod "web" is terminated'),
        (status(waiting("X"), ended()), False, 'container "main" in pod "web" is terminated'),
        (status({}), False, 'container "main" in pod "web" is waiting to start - no logs yet'),
        (
            status(waiting("PodInitializing")),
            False,
            'container "main" in pod "web" is waiting to start: PodInitializing',
        ),
        (
            status(waiting("ErrImagePull")),
            False,
            'container "main" in pod "web" is waiting to start: image can\'t be pulled',
        ),
        (
            status(waiting("ImagePullBackOff")),
            False,
            'container "main" in pod "web" is waiting to start: trying and failing to pull image',
        ),
    ],
)
def test_why_there_is_no_log(found: PodStatus, previous: bool, message: str) -> None:
    with pytest.raises(LogNotAvailableError) as caught:
        container_for_logs("web", found, "main", previous=previous)
    assert str(caught.value) == message


@pytest.mark.parametrize(("annotated", "expected"), [(None, "a"), ("b", "b"), ("setup", "setup"), ("gone", "a")])
def test_the_default_container_is_the_annotated_or_the_first(annotated: str | None, expected: str) -> None:
    annotations = {} if annotated is None else {"kubectl.kubernetes.io/default-container": annotated}
    spec = {
        "initContainers": [{"name": "setup", "image": "x"}],
        "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}],
    }
    assert default_container(pod_from_dict({"metadata": {"annotations": annotations}, "spec": spec})) == expected
