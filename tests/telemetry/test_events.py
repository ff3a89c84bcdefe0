"""Events are kept, counted, and told of."""

from __future__ import annotations

import attrs
import trio

from trikubelet.api import Container, EphemeralContainer, ObjectMeta, ObjectReference, Pod, PodSpec
from trikubelet.clock import TrioClock
from trikubelet.telemetry.events import NODE_EVENTS, AnyEvent, EventRecorder, EventType, NodeEvent

POD = Pod(
    metadata=ObjectMeta(name="web", namespace="prod", uid="u1", resource_version="41"),
    spec=PodSpec(containers=(Container(name="main"),), ephemeral_containers=(EphemeralContainer(name="debug"),)),
)


async def test_a_pods_event_refers_to_the_version_that_it_was_last_seen_with() -> None:
    recorder = EventRecorder(TrioClock())
    recorder.pod_event(POD, EventType.NORMAL, "Pulled", "done", container="main")
    newer = attrs.evolve(POD, metadata=attrs.evolve(POD.metadata, resource_version="42"))
    recorder.pod_event(newer, EventType.NORMAL, "Pulled", "done", container="main")
    (event,) = recorder.events_of("u1")
    assert event.count == 2
    assert event.api_reference == ObjectReference(
        kind="Pod",
        namespace="prod",
        name="web",
        uid="u1",
        api_version="v1",
        resource_version="42",
        field_path="spec.containers{main}",
    )


async def test_an_event_may_have_annotations() -> None:
    recorder = EventRecorder(TrioClock())
    recorder.pod_event(POD, EventType.WARNING, "Evicted", "x", annotations={"starved_resource": "memory"})
    recorder.pod_event(POD, EventType.NORMAL, "Pulled", "y")
    assert [event.annotations for event in recorder.events_of("u1")] == [{"starved_resource": "memory"}, {}]


async def test_an_ephemeral_containers_event_names_its_list() -> None:
    recorder = EventRecorder(TrioClock())
    recorder.pod_event(POD, EventType.NORMAL, "Started", "x", container="debug")
    assert recorder.events_of("u1")[0].api_reference.field_path == "spec.ephemeralContainers{debug}"


async def test_a_nodes_repeated_event_is_counted_and_told_each_time(autojump_clock: trio.testing.MockClock) -> None:
    recorder = EventRecorder(TrioClock())
    told: list[AnyEvent] = []
    recorder.add_listener(told.append)
    recorder.node_event(EventType.WARNING, "ImageGCFailed", "disk full")
    await trio.sleep(60)
    recorder.node_event(EventType.NORMAL, "Starting", "Starting kubelet.")
    recorder.node_event(EventType.WARNING, "ImageGCFailed", "disk full")
    starting, failed = recorder.node_events()
    assert (starting.reason, starting.count) == ("Starting", 1)
    assert (failed.reason, failed.count) == ("ImageGCFailed", 2)
    assert (failed.last_seen - failed.first_seen).total_seconds() == 60
    assert [event.count for event in told if isinstance(event, NodeEvent)] == [1, 1, 2]


async def test_only_the_newest_events_of_the_node_are_kept() -> None:
    recorder = EventRecorder(TrioClock())
    for number in range(NODE_EVENTS + 5):
        recorder.node_event(EventType.NORMAL, "Rebooted", str(number))
    kept = recorder.node_events()
    assert len(kept) == NODE_EVENTS
    assert kept[0].message == "5"
