"""How long pods of an API server take to start, by what the watch and the events say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import Pod, pod_from_dict
from trikubelet.pods.start_latency import PodStartLatency, covered
from trikubelet.telemetry.events import EventRecorder, EventType

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.define
class Clock:
    time: datetime = CREATED

    def now(self) -> datetime:
        return self.time

    def pass_by(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return (CREATED + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(status: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Pod:
    metadata = {
        "name": "web",
        "namespace": "default",
        "uid": "u",
        "creationTimestamp": stamp(0),
        "annotations": annotations or {},
    }
    body = {"containers": [{"name": "main", "image": "i"}], **spec}
    return pod_from_dict({"metadata": metadata, "spec": body, "status": status or {"phase": "Pending"}})


def running(**more: Any) -> dict[str, Any]:
    state = {"running": {"startedAt": stamp(1)}}
    main = {"name": "main", "state": state, "image": "i", "imageID": "", "ready": True, "restartCount": 0}
    return {"phase": "Running", "startTime": stamp(1), "containerStatuses": [main], **more}


@attrs.define
class Follower:
    clock: Clock = attrs.field(factory=Clock)
    latency: PodStartLatency = attrs.field(init=False)
    recorder: EventRecorder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.latency = PodStartLatency(self.clock)
        self.recorder = EventRecorder(self.clock)
        self.recorder.add_listener(self.latency.heard)

    def start(self, arriving: Pod, started: Pod, *, after: float) -> None:
        self.latency.served(None, arriving)
        self.clock.pass_by(after)
        self.latency.served(arriving, started)

    def sums(self) -> tuple[float, float]:
        """What took all in all, and of what was promised."""
        return self.latency.total.sum, self.latency.promised.sum


def test_a_pod_has_started_when_the_watch_brings_it_with_all_containers_running() -> None:
    follower = Follower()
    follower.start(pod(), pod({"phase": "Pending", "startTime": stamp(1)}), after=2)
    assert follower.sums() == (0, 0)
    follower.clock.pass_by(3)
    follower.latency.served(pod(), pod(running()))
    assert follower.sums() == (5, 5)
    assert follower.latency.first_with_network == 5
    assert follower.latency.followed == 0
    follower.latency.served(pod(), pod(running()))
    assert follower.latency.total.count == 1


def test_pulls_and_init_containers_are_not_promised() -> None:
    follower = Follower()
    web = pod()
    follower.latency.served(None, web)
    for seconds, reason, container in (
        (1, "Pulling", "a"),
        (1, "Pulling", "main"),
        (2, "Pulled", "a"),  # two seconds alone, two of both
        (4, "Failed", "main"),
        (1, "Pulling", "main"),  # an attempt that failed, and the wait for another, are pulling too
        (2, "Pulled", "main"),
        (5, "Pulled", "main"),  # it was there already
    ):
        follower.clock.pass_by(seconds)
        follower.recorder.pod_event(web, EventType.NORMAL, reason, "text", container=container)
    end = {"exitCode": 0, "startedAt": stamp(10), "finishedAt": stamp(13)}
    first = {
        "name": "first",
        "state": {"terminated": end},
        "image": "i",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
    }
    status = running(initContainerStatuses=[first])
    follower.latency.served(web, pod(status, initContainers=[{"name": "first", "image": "i"}]))
    assert follower.sums() == (16, 16 - 10 - 3)


@pytest.mark.parametrize(
    ("volumes", "promised"),
    [
        ([{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s"}}], 1),
        ([{"name": "v", "hostPath": {"path": "/x"}}], 0),
        ([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}], 0),
    ],
)
def test_a_pod_with_volumes_that_last_is_not_promised_anything(volumes: list[dict[str, Any]], promised: int) -> None:
    follower = Follower()
    follower.start(pod(volumes=volumes), pod(running(), volumes=volumes), after=2)
    assert (follower.latency.total.count, follower.latency.promised.count) == (1, promised)


def test_the_first_pod_with_a_network_is_not_one_of_the_nodes_network() -> None:
    follower = Follower()
    follower.start(pod(hostNetwork=True), pod(running(), hostNetwork=True), after=2)
    assert follower.latency.promised.count == 1
    assert follower.latency.first_with_network is None


@pytest.mark.parametrize(
    "arriving",
    [
        pod(running()),
        pod({"phase": "Failed"}),
        pod({"conditions": [{"type": "PodScheduled", "status": "False"}]}),
        pod(annotations={"kubernetes.io/config.mirror": "hash"}),
    ],
    ids=["ran before", "has ended", "waited for room", "mirror pod"],
)
def test_pods_that_are_not_followed(arriving: Pod) -> None:
    follower = Follower()
    follower.start(arriving, pod(running()), after=2)
    assert follower.latency.total.count == 0


@pytest.mark.parametrize("last", [None, pod({"phase": "Failed"})], ids=["gone", "failed"])
def test_nothing_is_kept_of_a_pod_that_does_not_start(last: Pod | None) -> None:
    follower = Follower()
    follower.latency.served(None, pod())
    assert follower.latency.followed == 1
    follower.latency.served(pod(), last)
    assert follower.latency.followed == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))))
def test_what_intervals_cover_is_counted_once(spans: list[tuple[int, int]]) -> None:
    intervals = [
        (CREATED + timedelta(seconds=begin), CREATED + timedelta(seconds=begin + length)) for begin, length in spans
    ]
    seconds = {second for begin, length in spans for second in range(begin, begin + length)}
    assert covered(intervals) == len(seconds)
