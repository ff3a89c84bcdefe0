"""What objects of the API server cost: a watch event of a pod parsed, decoded and compared, and a status patch made.

    python -m benchmarks.objects [--json FILE] [--rounds N]

Times are CPU time of this process for one object, the least of all rounds: what else runs does not count. Beside them
is what parsers alone take for the same bytes. The pod is a common one, as a watch tells of it: two containers with
probes, resources and a token, and a status; its event has 4 kB, managedFields not counted.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import msgspec
import orjson

from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from trikubelet.api import Pod, PodStatus, from_dict, pod_from_dict
from trikubelet.kube_client.decoding import Known, decode_answer, decode_event
from trikubelet.kube_client.types import PODS, WatchEvent
from trikubelet.status.manager import StatusChange
from trikubelet.status.write_decisions import PatchStatus, Record, accepted, next_action

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST: Final = "GET /api/v1/pods"
NOW: Final = datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC)
EVENT_AIM: Final = 5.0
"""Times `json.loads`, of an event of a pod that was seen before."""
WRITE_AIM: Final = 6.0
"""Times `json.loads` of the event: a status patch is made, and its answer taken in."""


def _container(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"registry.example.com/team/{name}:1.27.4",
        "command": ["/bin/server", "--listen=:8080"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": "MODE", "value": "production"}, {"name": "LIMIT", "value": "100"}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "volumeMounts": [
            {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
            "timeoutSeconds": 1,
            "periodSeconds": 10,
            "successThreshold": 1,
            "failureThreshold": 3,
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _status(*names: str) -> dict[str, Any]:
    began = "2026-01-31T12:00:00Z"
    types = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "conditions": [
            {"type": one, "status": "True", "observedGeneration": 1, "lastTransitionTime": began} for one in types
        ],
        "hostIP": "192.0.2.17",
        "hostIPs": [{"ip": "192.0.2.17"}],
        "podIP": "10.0.0.23",
        "podIPs": [{"ip": "10.0.0.23"}],
        "startTime": began,
        "containerStatuses": [
            {
                "name": name,
                "state": {"running": {"startedAt": began}},
                "lastState": {},
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": f"registry.example.com/team/{name}:1.27.4",
                "imageID": f"registry.example.com/team/{name}@sha256:{64 * 'a'}",
                "containerID": f"containerd://{64 * 'b'}",
            }
            for name in names
        ],
        "qosClass": "Burstable",
        "observedGeneration": 1,
    }


def pod_document(version: int) -> dict[str, Any]:
    """A pod that runs, with so high a resource version."""
    projected = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "web-7d4b9c6f5d-x2x7p",
            "generateName": "web-7d4b9c6f5d-",
            "namespace": "default",
            "uid": "3f1c2a54-9b1e-4a27-8a45-0c4f7a2b9d10",
            "resourceVersion": str(version),
            "generation": 1,
            "creationTimestamp": "2026-01-31T11:59:58Z",
            "labels": {"app": "web", "pod-template-hash": "7d4b9c6f5d"},
        },
        "spec": {
            "volumes": [{"name": "token", "projected": {"sources": projected, "defaultMode": 420}}],
            "containers": [_container("web"), _container("sidecar")],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "nodeName": "node-1",
            "securityContext": {"runAsNonRoot": True},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": _status("web", "sidecar"),
    }


def event_line(version: int) -> bytes:
    """As a watch tells of it."""
    return json.dumps({"type": "MODIFIED", "object": pod_document(version)}, separators=(",", ":")).encode()


def microseconds(call: Callable[[int], object], rounds: int, times: int = 40) -> float:
    """CPU time of one call, which is told its number, in the quickest round."""
    best = float("inf")
    for number in range(rounds):
        began = time.process_time_ns()
        for turn in range(times):
            call(number * times + turn)
        best = min(best, (time.process_time_ns() - began) / times)
    return best / 1000


@attrs.frozen
class Written:
    """What there is before and after a status is written."""

    change: StatusChange
    copy: Pod
    reply: Pod

    @classmethod
    def of_a_start(cls) -> Written:
        """A pod that the server has pending, which runs."""
        reply = pod_from_dict(pod_document(11))
        pending = from_dict(PodStatus, {"phase": "Pending", "qosClass": "Burstable"})
        copy = attrs.evolve(reply, metadata=attrs.evolve(reply.metadata, resource_version="10"), status=pending)
        return cls(StatusChange(reply, version=1, finished=False, first_changed_at=0.0), copy, reply)

    def patch(self) -> PatchStatus:
        record = Record(self.copy.metadata.uid)
        facts: dict[str, Any] = {"may_fetch": False, "may_run": True, "now": NOW, "time": 0.0}
        action = next_action(self.change, record, self.copy, **facts)
        assert isinstance(action, PatchStatus)
        return action

    def whole(self) -> Record:
        patch = self.patch()
        json.dumps(patch.body)
        return accepted(Record(self.copy.metadata.uid), patch, self.reply, 0.0)


def measure(rounds: int) -> dict[str, float]:
    """Microseconds of each step."""
    lines = [event_line(version) for version in range(10, 12)]
    line, document = lines[0], json.loads(lines[0])["object"]
    answers = [json.dumps(json.loads(line)["object"], separators=(",", ":")).encode() for line in lines]
    one, other = pod_from_dict(document), pod_from_dict(pod_document(10))
    written = Written.of_a_start()
    patch = written.patch()

    known = Known()
    kept = [Pod()]
    turns = itertools.cycle(lines)
    writes = itertools.cycle(zip(answers, lines, strict=True))

    def event(_: int) -> None:
        decoded = decode_event(PODS, next(turns), REQUEST, known)
        assert isinstance(decoded, WatchEvent)
        assert isinstance(decoded.object, Pod)
        assert decoded.object != kept[0]
        kept[0] = decoded.object

    def write_and_event(_: int) -> None:
        answer, line = next(writes)
        kept[0] = decode_answer(Pod, answer, REQUEST, known)
        decoded = decode_event(PODS, line, REQUEST, known)
        assert isinstance(decoded, WatchEvent)
        assert decoded.object is kept[0]

    calls: dict[str, Callable[[int], object]] = {
        "json.loads alone": lambda _: json.loads(line),
        "orjson alone": lambda _: orjson.loads(line),
        "msgspec alone, to dicts": lambda _: msgspec.json.decode(line),
        "pod decoded from dicts": lambda _: from_dict(Pod, document),
        "pod compared with an equal one": lambda _: one == other,
        "event parsed, decoded and compared with the last": event,
        "the first of a pod": lambda _: decode_event(PODS, line, REQUEST, Known()),
        "answer to a write, and its event": write_and_event,
        "status patch made": lambda _: written.patch(),
        "answer to it taken in": lambda _: accepted(Record(), patch, written.reply, 0.0),
        "status patch made, written as JSON, answer taken in": lambda _: written.whole(),
    }
    for call in calls.values():
        call(0)
    return {name: microseconds(call, rounds) for name, call in calls.items()}


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
@click.option("--rounds", type=click.IntRange(min=1), default=100, show_default=True, help="Of each step.")
def main(json_file: Path | None, rounds: int) -> None:
    """Measure what objects of the API server cost."""
    times = measure(rounds)
    floor = times["json.loads alone"]
    rows = [[name, f"{value:.1f}", f"{value / floor:.1f}"] for name, value in times.items()]
    print_table(f"CPU time of one, with an event of {len(event_line(10))} bytes", ["", "µs", "times json.loads"], rows)
    event, write = times["event parsed, decoded and compared with the last"], times[list(times)[-1]]
    results = [
        Result("a pod's event parsed, decoded and compared, beside json.loads", "times", event / floor, EVENT_AIM),
        Result("a pod's status written, beside json.loads of its event", "times", write / floor, WRITE_AIM),
    ]
    sys.exit(0 if report(results, json_file) else 1)


if __name__ == "__main__":
    main()
