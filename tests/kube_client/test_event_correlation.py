"""What is told of many sightings: the outcomes of client-go's correlator."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from trikubelet.api import Event, ObjectReference, to_dict
from trikubelet.kube_client.event_correlation import (
    BURST,
    COMBINED_FROM,
    COMBINED_PREFIX,
    REMEMBERED,
    CorrelatedEvent,
    EventCorrelator,
    Sighting,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
POD = ObjectReference(kind="Pod", namespace="my-ns", name="my-pod", uid="u1", api_version="v1", resource_version="7")


def sighting(reason: str, message: str, about: ObjectReference = POD, type_: str = "Normal") -> Sighting:
    return Sighting(about, type_, reason, message, EPOCH)


class Correlating:
    """Shows one sighting after another, always the same time apart."""

    def __init__(self, interval: float = 5.0) -> None:
        self.correlator = EventCorrelator("kubelet", "n1", rng=random.Random(1))
        self._interval = interval
        self._now = 0.0

    def see(self, seen: Sighting) -> CorrelatedEvent | None:
        self._now += self._interval
        return self.correlator.correlate(attrs.evolve(seen, at=EPOCH + timedelta(seconds=self._now)), self._now)

    def told(self, seen: Sighting) -> Event:
        correlated = self.see(seen)
        assert correlated is not None
        return correlated.event


FIRST = sighting("first", "i am first")
DUPLICATE = sighting("duplicate", "me again")
UNIQUE = sighting("unique", "snowflake")
SIMILAR = sighting("similar", "similar message", attrs.evolve(POD, field_path="spec.containers{container1}"))
OTHER_CONTAINER = attrs.evolve(SIMILAR, about=attrs.evolve(POD, field_path="spec.containers{container2}"))


def similar(number: int) -> list[Sighting]:
    return [attrs.evolve(SIMILAR, message=f"{SIMILAR.message}-{index}") for index in range(number)]


def unique(number: int) -> list[Sighting]:
    pods = [attrs.evolve(POD, name=f"pod-{index}", namespace=f"ns-{index}") for index in range(number)]
    return [sighting(f"reason-{index}", f"message-{index}", pod) for index, pod in enumerate(pods)]


@pytest.mark.parametrize(
    ("before", "seen", "interval", "message", "count"),
    [
        pytest.param([], FIRST, 5, "i am first", 1, id="one"),
        pytest.param([DUPLICATE], DUPLICATE, 5, "me again", 2, id="the same again is counted"),
        pytest.param(
            [DUPLICATE] * COMBINED_FROM, DUPLICATE, 30, "me again", COMBINED_FROM + 1, id="the same is never combined"
        ),
        pytest.param(unique(30), UNIQUE, 5, "snowflake", 1, id="many objects"),
        pytest.param(
            similar(COMBINED_FROM - 1), SIMILAR, 5, COMBINED_PREFIX + "similar message", 1, id="the tenth is combined"
        ),
        pytest.param(
            similar(COMBINED_FROM), SIMILAR, 5, COMBINED_PREFIX + "similar message", 2, id="combined ones are counted"
        ),
        pytest.param([OTHER_CONTAINER], SIMILAR, 5, "similar message", 1, id="containers have events of their own"),
        pytest.param(similar(COMBINED_FROM - 1), SIMILAR, 601, "similar message", 1, id="seldom ones are not combined"),
    ],
)
def test_what_is_told(before: list[Sighting], seen: Sighting, interval: float, message: str, count: int) -> None:
    correlating = Correlating(interval)
    for earlier in before:
        correlating.see(earlier)
    event = correlating.told(seen)
    assert (event.message, event.count) == (message, count)
    assert event.involved_object == seen.about
    assert event.first_timestamp is not None
    assert event.last_timestamp is not None
    assert (event.last_timestamp > event.first_timestamp) is (count > 1)


def test_more_than_a_burst_is_not_told_but_counted() -> None:
    correlating = Correlating(interval=1)
    told = [correlating.see(DUPLICATE) for _ in range(BURST + 5)]
    assert [correlated is not None for correlated in told] == [True] * BURST + [False] * 5
    correlating._now += 300
    assert correlating.told(DUPLICATE).count == BURST + 6


def test_the_burst_is_shared_by_all_reasons_of_an_object_but_not_with_warnings() -> None:
    correlating = Correlating(interval=1)
    for number in range(BURST):
        assert correlating.see(sighting(f"reason-{number}", "x")) is not None
    assert correlating.see(sighting("another", "x")) is None
    assert correlating.see(sighting("another", "x", type_="Warning")) is not None


def test_messages_that_had_events_of_their_own_keep_them_when_others_are_combined() -> None:
    correlating = Correlating()
    messages = similar(COMBINED_FROM + 3)
    for seen in messages:
        correlating.see(seen)
    assert correlating.told(messages[0]).message == messages[0].message
    assert correlating.told(messages[-1]).message == COMBINED_PREFIX + messages[-1].message


def test_an_event_is_written_as_the_kubelet_writes_it() -> None:
    event = Correlating(interval=1.5).told(OTHER_CONTAINER)
    stamp = int((EPOCH + timedelta(seconds=1.5)).timestamp() * 10**9)
    assert to_dict(event) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"my-pod.{stamp:x}", "namespace": "my-ns"},
        "involvedObject": {
            "kind": "Pod",
            "namespace": "my-ns",
            "name": "my-pod",
            "uid": "u1",
            "apiVersion": "v1",
            "resourceVersion": "7",
            "fieldPath": "spec.containers{container2}",
        },
        "reason": "similar",
        "message": "similar message",
        "source": {"component": "kubelet", "host": "n1"},
        "firstTimestamp": "2026-01-01T00:00:01Z",
        "lastTimestamp": "2026-01-01T00:00:01Z",
        "count": 1,
        "type": "Normal",
        "reportingComponent": "kubelet",
        "reportingInstance": "n1",
    }


def test_a_nodes_event_is_in_the_default_namespace() -> None:
    node = ObjectReference(kind="Node", name="n1", api_version="v1")
    assert Correlating().told(sighting("Starting", "Starting kubelet.", node)).metadata.namespace == "default"


def test_events_of_one_instant_have_different_names() -> None:
    correlating = Correlating(interval=0)
    names = {correlating.told(sighting("Pulled", str(number))).metadata.name for number in range(5)}
    assert len(names) == 5


@pytest.mark.parametrize("name", ["a" * 250, "Not-A-Name"])
def test_an_object_whose_name_does_not_do_gives_its_events_random_names(name: str) -> None:
    event = Correlating().told(sighting("x", "y", attrs.evolve(POD, name=name)))
    assert len(event.metadata.name) == 36


def test_the_changes_are_count_time_and_message() -> None:
    correlating = Correlating(interval=10)
    correlating.see(DUPLICATE)
    correlated = correlating.see(DUPLICATE)
    assert correlated is not None
    assert correlated.changes() == {"count": 2, "lastTimestamp": "2026-01-01T00:00:20Z", "message": "me again"}


def test_what_was_not_seen_for_longest_is_forgotten() -> None:
    correlating = Correlating()
    name = correlating.told(FIRST).metadata.name
    for number in range(REMEMBERED):
        correlating.see(sighting("x", "y", attrs.evolve(POD, name=f"p{number}")))
    again = correlating.told(FIRST)
    assert again.count == 1
    assert again.metadata.name != name
