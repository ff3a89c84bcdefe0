"""Events on their way to the API server."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kube_client.scripted_client import Call, ScriptedClient, lost, status_error
from trikubelet.api import Event, ObjectMeta, PersistentVolumeClaim, Pod, StatusCause, StatusDetails
from trikubelet.clock import TrioClock
from trikubelet.kube_client import event_sender
from trikubelet.kube_client.errors import ApiAnswerError, CredentialsError
from trikubelet.kube_client.event_sender import AT_ONCE, TRIES, EventSender
from trikubelet.kube_client.types import EVENTS
from trikubelet.telemetry.events import EventRecorder, EventType

if TYPE_CHECKING:
    from collections.abc import Callable

WEB = Pod(metadata=ObjectMeta(name="web", namespace="prod", uid="u1"))


@attrs.define
class Stage:
    client: ScriptedClient
    recorder: EventRecorder
    sender: EventSender

    def say(self, reason: str, message: str = "x", pod: Pod = WEB) -> None:
        self.recorder.pod_event(pod, EventType.NORMAL, reason, message)

    def served(self) -> dict[tuple[str, str], Event]:
        """The server's events by reason and message."""
        events = [call.name for call in self.client.called("create", EVENTS)]
        stored = [self.client.stored(EVENTS, name, "prod") for name in dict.fromkeys(events)]
        return {(event.reason, event.message): event for event in stored if event is not None}


@pytest.fixture
async def stage(nursery: trio.Nursery) -> Stage:
    clock = TrioClock()
    recorder, client = EventRecorder(clock), ScriptedClient(clock=clock)
    sender = EventSender(client, "n1", rng=random.Random(1))
    recorder.add_listener(sender.offer)
    await nursery.start(sender.run)
    return Stage(client, recorder, sender)


async def test_an_event_is_created_and_counted_there_when_it_comes_again(
    stage: Stage, autojump_clock: MockClock
) -> None:
    for _ in range(3):
        stage.say("Pulled")
        await trio.sleep(1)
    assert [call.verb for call in stage.client.calls] == ["create", "patch", "patch"]
    event = stage.served()["Pulled", "x"]
    assert event.count == 3
    assert event.first_timestamp is not None
    assert event.last_timestamp is not None
    assert (event.last_timestamp - event.first_timestamp).total_seconds() == 2


async def test_what_an_event_is_annotated_with_is_told(stage: Stage, autojump_clock: MockClock) -> None:
    for _ in range(2):
        stage.recorder.pod_event(WEB, EventType.WARNING, "Evicted", "x", annotations={"starved_resource": "memory"})
        await trio.sleep(1)
    stage.say("Pulled")
    await trio.sleep(1)
    assert stage.served()["Evicted", "x"].metadata.annotations == {"starved_resource": "memory"}
    assert stage.served()["Pulled", "x"].metadata.annotations == {}


@pytest.mark.parametrize(("namespace", "goes_to"), [("prod", "prod"), ("", "default")])
async def test_an_event_of_what_a_pod_uses_is_about_that(
    stage: Stage, autojump_clock: MockClock, namespace: str, goes_to: str
) -> None:
    metadata = ObjectMeta(name="data", namespace=namespace, uid="uid-1", resource_version="7")
    for _ in range(2):
        stage.recorder.object_event(PersistentVolumeClaim(metadata=metadata), EventType.WARNING, "Resized", "x")
        await trio.sleep(1)
    created, patched = stage.client.calls
    assert (created.verb, patched.verb, created.namespace) == ("create", "patch", goes_to)
    about = created.body.involved_object
    assert (about.kind, about.api_version, about.namespace, about.name, about.uid, about.resource_version) == (
        "PersistentVolumeClaim",
        "v1",
        namespace,
        "data",
        "uid-1",
        "7",
    )
    assert patched.body["count"] == 2


async def test_a_nodes_event_goes_to_the_default_namespace(stage: Stage, autojump_clock: MockClock) -> None:
    stage.recorder.node_event(EventType.NORMAL, "Starting", "Starting kubelet.")
    await trio.sleep(1)
    (call,) = stage.client.calls
    assert call.namespace == "default"
    assert (call.body.involved_object.kind, call.body.involved_object.name, call.body.involved_object.uid) == (
        "Node",
        "n1",
        "",
    )


async def test_an_event_that_the_server_forgot_is_created_again_with_its_count(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.say("Pulled")
    await trio.sleep(1)
    stage.client.remove(EVENTS, stage.client.calls[0].name, "prod")
    stage.say("Pulled")
    await trio.sleep(1)
    assert [call.verb for call in stage.client.calls] == ["create", "patch", "create"]
    assert stage.served()["Pulled", "x"].count == 2


async def test_an_outage_costs_one_request_for_each_event(stage: Stage, autojump_clock: MockClock) -> None:
    stage.client.unreachable()
    for _ in range(20):
        for reason in ("BackOff", "Unhealthy", "Pulled"):
            stage.say(reason, pod=attrs.evolve(WEB, metadata=attrs.evolve(WEB.metadata, uid=reason)))
        await trio.sleep(30)
    assert stage.sender.statistics().waiting == 3
    stage.client.back()
    before = len(stage.client.calls)
    stage.client.health.answered()
    await trio.sleep(5)
    assert [call.verb for call in stage.client.calls[before:]] == ["create"] * 3
    assert {reason: event.count for (reason, _), event in stage.served().items()} == {
        "BackOff": 20,
        "Unhealthy": 20,
        "Pulled": 20,
    }
    assert stage.sender.statistics().waiting == 0


async def test_a_recovery_that_nobody_else_sees_is_found(stage: Stage, autojump_clock: MockClock) -> None:
    stage.client.unreachable()
    stage.say("Pulled")
    await trio.sleep(60)
    stage.client.back()
    await trio.sleep(12)
    assert ("Pulled", "x") in stage.served()


async def test_a_dead_server_is_asked_seldom(stage: Stage, autojump_clock: MockClock) -> None:
    stage.client.unreachable()
    for number in range(50):
        stage.say("Pulled", str(number))
    await trio.sleep(600)
    assert len(stage.client.calls) <= AT_ONCE * 70


async def test_a_lost_reply_does_not_make_a_second_event(stage: Stage, autojump_clock: MockClock) -> None:
    stage.client.fail("create", EVENTS, lost(), after=True)
    stage.say("Pulled")
    await trio.sleep(30)
    assert [call.verb for call in stage.client.calls] == ["create", "create", "patch"]
    assert stage.served()["Pulled", "x"].count == 1


@pytest.mark.parametrize(
    "error",
    [
        status_error(500, "InternalError"),
        status_error(503),
        status_error(429, "TooManyRequests", retry_after=2),
        status_error(401, "Unauthorized"),
        CredentialsError("x", "plugin failed"),
    ],
    ids=lambda error: str(getattr(error, "code", "credentials")),
)
async def test_a_server_in_trouble_is_asked_again(stage: Stage, autojump_clock: MockClock, error: Any) -> None:
    stage.client.fail("create", EVENTS, error, times=3)
    stage.say("Pulled")
    await trio.sleep(60)
    assert ("Pulled", "x") in stage.served()
    assert stage.sender.statistics().refused == 0


async def test_trouble_without_end_ends_with_the_event_dropped(stage: Stage, autojump_clock: MockClock) -> None:
    stage.client.fail("create", EVENTS, status_error(500), times=math.inf)
    stage.say("Pulled")
    await trio.sleep(600)
    assert len(stage.client.calls) == TRIES
    assert stage.sender.statistics().refused == 1


def terminating() -> Any:
    details = StatusDetails(causes=(StatusCause(reason="NamespaceTerminating"),))
    return attrs.evolve(status_error(403, "Forbidden", "namespace prod is being terminated"), details=details)


@pytest.mark.parametrize("refusal", [lambda: status_error(422, "Invalid"), terminating])
async def test_a_refusal_is_final(stage: Stage, autojump_clock: MockClock, refusal: Callable[[], Any]) -> None:
    stage.client.fail("create", EVENTS, refusal())
    stage.say("Pulled")
    await trio.sleep(1)
    stage.say("Started")
    await trio.sleep(60)
    assert [reason for reason, _ in stage.served()] == ["Started"]
    assert stage.sender.statistics().refused == 1


async def test_an_answer_that_is_no_event_counts_as_written(stage: Stage, autojump_clock: MockClock) -> None:
    stage.client.fail("create", EVENTS, ApiAnswerError("x", "no JSON"), after=True)
    stage.say("Pulled")
    await trio.sleep(1)
    stage.say("Pulled")
    await trio.sleep(1)
    assert [call.verb for call in stage.client.calls] == ["create", "patch"]


async def test_writes_of_one_event_are_one_after_the_other_and_the_newest_is_last(
    stage: Stage, autojump_clock: MockClock
) -> None:
    gate = stage.client.hold("create", EVENTS)
    for _ in range(4):
        stage.say("Pulled")
        await wait_all_tasks_blocked()
    assert len(stage.client.calls) == 1
    gate.set()
    await trio.sleep(1)
    assert [call.verb for call in stage.client.calls] == ["create", "patch"]
    assert stage.served()["Pulled", "x"].count == 4


async def test_only_some_are_written_at_a_time(stage: Stage, autojump_clock: MockClock) -> None:
    gate = stage.client.hold("create", EVENTS)
    for number in range(AT_ONCE + 3):
        stage.say("Pulled", str(number))
    await wait_all_tasks_blocked()
    assert len(stage.client.calls) == AT_ONCE
    gate.set()
    await trio.sleep(1)
    assert len(stage.served()) == AT_ONCE + 3


async def test_a_full_queue_drops_what_waited_longest(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_sender, "QUEUED", 3)
    gate = stage.client.hold("create", EVENTS)
    for number in range(AT_ONCE):
        stage.say("Pulled", str(number))
        await wait_all_tasks_blocked()
    for number in range(5):
        stage.say("Started", str(number))
    assert stage.sender.statistics().dropped == 2
    gate.set()
    await trio.sleep(1)
    assert {message for reason, message in stage.served() if reason == "Started"} == {"2", "3", "4"}


async def test_an_outage_changes_nothing_of_what_is_told_at_last(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Two agents see the same; one of them without its server for ten minutes."""
    clock = TrioClock()
    recorder, clients = EventRecorder(clock), (ScriptedClient(clock=clock), ScriptedClient(clock=clock))
    for client in clients:
        sender = EventSender(client, "n1", rng=random.Random(1))
        recorder.add_listener(sender.offer)
        await nursery.start(sender.run)
    clients[1].unreachable()
    for step in range(120):
        recorder.pod_event(WEB, EventType.WARNING, "BackOff", "Back-off restarting")
        recorder.pod_event(WEB, EventType.WARNING, "Unhealthy", f"probe failed: {step // 3}")
        await trio.sleep(5)
    clients[1].back()
    await trio.sleep(30)
    assert final(clients[0]) == final(clients[1])
    assert any(told and told[2] > 1 for told in final(clients[1]).values())


def final(client: ScriptedClient) -> dict[str, Any]:
    def told(call: Call) -> Any:
        event = client.stored(EVENTS, call.name, "prod")
        return event and (event.reason, event.message, event.count, event.first_timestamp, event.last_timestamp)

    return {call.name: told(call) for call in client.called("create", EVENTS)}
