from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trikubelet.api import Pod, pod_from_dict
from trikubelet.cli.pod_columns import human_duration, pod_row, pod_status
from trikubelet.cli.pod_description import describe_pod

NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)


def status(name: str = "c", ready: bool = False, restarts: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "", "imageID": "", "ready": ready, "restartCount": restarts, **more}


def running(**more: Any) -> dict[str, Any]:
    return status(ready=True, state={"running": {}}, **more)


def ended(**terminated: Any) -> dict[str, Any]:
    return status(state={"terminated": {"exitCode": 0, **terminated}})


def waiting(reason: str) -> dict[str, Any]:
    return status(state={"waiting": {"reason": reason}})


def make(*, init: list[dict[str, Any]] | None = None, meta: dict[str, Any] | None = None, **more: Any) -> Pod:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "x"}, {"name": "d", "image": "x"}]}
    if init is not None:
        spec["initContainers"] = init
    return pod_from_dict({"metadata": {"name": "p", **(meta or {})}, "spec": spec, "status": more})


def with_sidecar(
    sidecar: dict[str, Any], container: dict[str, Any], *, initialized: bool = True, phase: str = "Pending"
) -> Pod:
    """A pod with a sidecar and two containers, of which one says something."""
    return make(
        init=[{"name": "c", "image": "x", "restartPolicy": "Always"}],
        phase=phase,
        conditions=[{"type": "Initialized", "status": str(initialized)}],
        initContainerStatuses=[sidecar],
        containerStatuses=[container],
    )


def sidecar_ended(code: int) -> dict[str, Any]:
    reason = "Error" if code else "Completed"
    return status(started=False, state={"terminated": {"exitCode": code, "reason": reason}})


DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
GATED = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
INIT = [{"name": "i", "image": "x"}, {"name": "j", "image": "x"}]
READY = [{"type": "Ready", "status": "True"}]


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        (make(phase="Pending"), "Pending"),
        (make(phase="Pending", reason="Evicted"), "Evicted"),
        (make(phase="Running", containerStatuses=[running()]), "Running"),
        (make(phase="Pending", containerStatuses=[waiting("ContainerCreating")]), "ContainerCreating"),
        (make(phase="Running", containerStatuses=[running(), waiting("CrashLoopBackOff")]), "CrashLoopBackOff"),
        (make(phase="Failed", containerStatuses=[ended(exitCode=3)]), "ExitCode:3"),
        (make(phase="Failed", containerStatuses=[ended(exitCode=137, signal=9)]), "Signal:9"),
        (make(phase="Failed", containerStatuses=[ended(exitCode=1, reason="Error")]), "Error"),
        (make(phase="Succeeded", containerStatuses=[ended(reason="Completed")]), "Completed"),
        (make(phase="Running", containerStatuses=[ended(reason="Completed"), running()]), "NotReady"),
        (make(phase="Running", conditions=READY, containerStatuses=[ended(reason="Completed"), running()]), "Running"),
        (make(init=INIT, phase="Pending", initContainerStatuses=[running(), waiting("PodInitializing")]), "Init:0/2"),
        (make(init=INIT, phase="Pending", initContainerStatuses=[ended(), waiting("PodInitializing")]), "Init:1/2"),
        (make(init=INIT, phase="Pending", initContainerStatuses=[ended(exitCode=2)]), "Init:ExitCode:2"),
        (
            make(init=INIT, phase="Pending", initContainerStatuses=[waiting("CrashLoopBackOff")]),
            "Init:CrashLoopBackOff",
        ),
        (
            make(
                init=[{"name": "c", "image": "x", "restartPolicy": "Always"}],
                phase="Running",
                initContainerStatuses=[{**running(), "started": True}],
                containerStatuses=[running()],
            ),
            "Running",
        ),
        (make(meta=DELETED, phase="Running"), "Terminating"),
        (make(meta=DELETED, phase="Running", reason="NodeLost"), "Unknown"),
        (make(meta=DELETED, phase="Succeeded", containerStatuses=[ended(reason="Completed")]), "Completed"),
        (make(phase="Pending", conditions=GATED), "SchedulingGated"),
        (with_sidecar(sidecar_ended(137), ended(reason="Completed"), phase="Succeeded"), "Completed"),
        (with_sidecar(sidecar_ended(1), ended(exitCode=1, reason="Error"), phase="Failed"), "Error"),
        (with_sidecar(sidecar_ended(137), ended(exitCode=9, signal=9), phase="Failed"), "Signal:9"),
        (with_sidecar(sidecar_ended(0), ended(reason="Completed"), phase="Succeeded"), "Completed"),
        (with_sidecar(waiting("CrashLoopBackOff"), running(), phase="Running"), "Init:CrashLoopBackOff"),
        (with_sidecar(sidecar_ended(1), waiting("PodInitializing"), initialized=False), "Init:Error"),
        (with_sidecar(status(), waiting("PodInitializing"), initialized=False), "Init:0/1"),
        (make(init=INIT, phase="Pending", initContainerStatuses=[ended(exitCode=9, signal=9)]), "Init:Signal:9"),
    ],
)
def test_a_pod_is_called_what_kubectl_calls_it(pod: Pod, word: str) -> None:
    assert pod_status(pod) == word


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 1800, "3h30m"),
        (8 * 3600 + 1800, "8h"),
        (48 * 3600 + 4 * 3600, "2d4h"),
        (8 * 86400, "8d"),
        (2 * 365 * 86400, "2y"),
        (2 * 365 * 86400 + 5 * 86400, "2y5d"),
        (9 * 365 * 86400, "9y"),
        (-5, "<invalid>"),
        (-1, "0s"),
    ],
)
def test_ages_are_written_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert human_duration(timedelta(seconds=seconds)) == text


def test_restarts_tell_when_the_last_one_was() -> None:
    last = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:55:00Z"}}
    row = pod_row(make(phase="Running", containerStatuses=[running(restarts=3, lastState=last)]), NOW)
    assert (row.restarts, row.ready) == ("3 (5m ago)", "1/2")


@pytest.mark.parametrize(
    ("pod", "ready", "restarts"),
    [
        (with_sidecar({**running(restarts=1), "started": True}, running(restarts=2), phase="Running"), "2/3", "3"),
        (with_sidecar({**status(restarts=1), "started": True}, running(), phase="Running"), "1/3", "1"),
        (with_sidecar(waiting("CrashLoopBackOff"), running(), phase="Running"), "1/3", "0"),
        (with_sidecar(sidecar_ended(137), ended(reason="Completed"), phase="Succeeded"), "0/3", "0"),
        (make(init=INIT, phase="Running", initContainerStatuses=[ended() | {"restartCount": 4}] * 2), "0/2", "0"),
        (make(init=INIT, phase="Pending", initContainerStatuses=[ended(), status(restarts=4)]), "0/2", "4"),
    ],
)
def test_sidecars_count_as_containers_do(pod: Pod, ready: str, restarts: str) -> None:
    row = pod_row(pod, NOW)
    assert (row.ready, row.restarts) == (ready, restarts)


def test_the_age_begins_when_the_pod_started() -> None:
    assert pod_row(make(phase="Running", startTime="2026-01-01T00:00:00Z"), NOW).age == "60m"


def test_a_description_has_every_part() -> None:
    pod = pod_from_dict(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"a": "b"}},
            "spec": {
                "nodeName": "n",
                "volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}],
                "containers": [
                    {
                        "name": "c",
                        "image": "x",
                        "command": ["sleep", "1"],
                        "ports": [{"containerPort": 80}],
                        "env": [
                            {"name": "A", "value": "b"},
                            {"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
                        ],
                        "resources": {"limits": {"cpu": "100m"}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
                        "livenessProbe": {"httpGet": {"path": "/", "port": 80}},
                    }
                ],
            },
            "status": {
                "phase": "Running",
                "qosClass": "Burstable",
                "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
            },
        }
    )
    text = describe_pod(pod, [], NOW)
    for fragment in (
        "Name:                 p",
        "a=b",
        "QoS Class:            Burstable",
        "80/TCP",
        "cpu: 100m",
        "A: b",
        "P: <fieldRef=fieldPath=x>",
        "/data from data (ro)",
        "httpGet path=/ port=80",
        "Ready  False   ContainersNotReady",
        "emptyDir medium=Memory",
        "Events:               <none>",
    ):
        assert fragment in text, text
