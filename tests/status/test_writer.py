"""Statuses reach an API server: which requests are made, when, and what is there afterwards."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.kube_client.scripted_client import Call, ScriptedClient, lost, status_error
from tests.status.builders import pod, running
from trikubelet.api import Pod, PodCondition, PodStatus
from trikubelet.api.pod_kinds import CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION
from trikubelet.clock import TrioClock
from trikubelet.kube_client.reflector import Reflector
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import PODS, PatchType, Urgency
from trikubelet.pods.manager import PodManager
from trikubelet.status.manager import StatusManager
from trikubelet.status.writer import StatusWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trikubelet.kube_client.errors import ApiError

READY = PodCondition(type="Ready", status="True")
RUNNING = PodStatus(phase="Running", container_statuses=(running("a"),), conditions=(READY,), pod_ip="10.0.0.1")
DONE = PodStatus(phase="Succeeded")


def with_metadata(of: Pod, **changes: Any) -> Pod:
    return attrs.evolve(of, metadata=attrs.evolve(of.metadata, **changes))


def named(name: str, **fields: Any) -> Pod:
    of = pod("a", status=PodStatus(phase="Pending"), node_name="n", **fields)
    return with_metadata(of, name=name, uid=name)


def mirror_of(static: Pod, uid: str) -> Pod:
    return with_metadata(static, uid=uid, annotations={CONFIG_MIRROR_ANNOTATION: "h"})


class Stage:
    """An agent's statuses beside a server; the pod manager follows the server."""

    def __init__(self, *served: Pod, local: tuple[Pod, ...] = ()) -> None:
        self.client = ScriptedClient()
        for one in served:
            self.client.put(one)
        self.store = Store(PODS)
        self.pods = PodManager(local)
        self.store.subscribe(self._follow)
        self.statuses = StatusManager(TrioClock(), self.pods)
        self.running: set[str] = set()
        rng = Random(1)
        self.reflector = Reflector(self.client, PODS, self.store, rng=rng)
        self.writer = StatusWriter(
            self.client,
            self.statuses,
            self.pods,
            self.store,
            may_run=lambda uid: uid in self.running,
            clock=TrioClock(),
            rng=rng,
        )

    def _follow(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self.pods.remove_pod(old)
        elif new is not None:
            self.pods.update_pod(new)

    def set(self, name: str, status: PodStatus) -> None:
        of = self.pods.pod_by_uid(name)
        assert of is not None
        self.statuses.set_pod_status(of, status)

    def terminate(self, name: str) -> None:
        of = self.pods.pod_by_uid(name)
        assert of is not None
        self.statuses.terminate_pod(of)

    def served(self, name: str) -> Pod | None:
        return self.client.stored(PODS, name, "default")

    def status(self, name: str) -> PodStatus:
        served = self.served(name)
        assert served is not None
        return served.status

    @property
    def requests(self) -> list[str]:
        return [call.verb for call in self.client.calls if call.verb not in ("watch", "list")]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.reflector.run)
            await self.store.wait_synced()
            await nursery.start(self.writer.run)
            yield
            nursery.cancel_scope.cancel()


async def test_a_status_is_written_with_one_patch_and_the_uid_as_its_condition(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.set("x", RUNNING)
        await trio.sleep(1)
    assert stage.requests == ["patch"]
    call = stage.client.called("patch")[0]
    assert (call.subresource, call.options["patch_type"], call.urgency) == (
        "status",
        PatchType.STRATEGIC,
        Urgency.URGENT,
    )
    assert call.body["metadata"] == {"uid": "x"}
    assert call.body["status"]["phase"] == "Running"
    assert call.at == 0
    assert stage.status("x").phase == "Running"
    assert stage.writer.statistics().writes == 1


async def test_what_the_server_has_already_is_not_written(autojump_clock: MockClock) -> None:
    stage = Stage(attrs.evolve(named("x"), status=attrs.evolve(RUNNING, start_time=TrioClock().now())))
    async with stage.open():
        stage.set("x", RUNNING)
        await trio.sleep(30)
        assert stage.requests == []
        stage.set("x", attrs.evolve(RUNNING, message="new"))
        await trio.sleep(30)
    assert stage.requests == ["patch"]


async def test_conditions_of_others_stay_even_when_they_came_unseen(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    theirs = PodCondition(type="example.com/x", status="True")
    async with stage.open():
        gate = stage.client.hold("watch", PODS)
        stage.client.end_watches()
        await wait_all_tasks_blocked()
        of = stage.served("x")
        assert of is not None
        stage.client.put(attrs.evolve(of, status=attrs.evolve(of.status, conditions=(theirs,))))
        stage.set("x", RUNNING)
        await trio.sleep(0.5)
        assert {one.type for one in stage.status("x").conditions} == {"example.com/x", "Ready"}
        gate.set()


async def test_changes_during_a_write_become_one_more_write(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    gate = stage.client.hold("patch", PODS)
    async with stage.open():
        stage.set("x", RUNNING)
        await wait_all_tasks_blocked()
        for count in range(5):
            stage.set("x", attrs.evolve(RUNNING, container_statuses=(running("a", restart_count=count),)))
        gate.set()
        await trio.sleep(1)
        assert stage.requests == ["patch", "patch"]
        assert stage.status("x").container_statuses[0].restart_count == 4


async def test_ordinary_changes_gather_for_a_moment_and_an_urgent_one_takes_them_along(
    autojump_clock: MockClock,
) -> None:
    stage = Stage(named("x"), named("y"))
    initialized = PodStatus(phase="Pending", conditions=(PodCondition(type="Initialized", status="True"),))
    async with stage.open():
        stage.set("x", initialized)
        stage.set("y", initialized)
        await trio.sleep(0.02)
        assert stage.requests == []
        stage.set("y", RUNNING)
        await wait_all_tasks_blocked()
        assert [call.name for call in stage.client.called("patch")] == ["y"]
        await trio.sleep(0.05)
        assert [(call.name, call.urgency) for call in stage.client.called("patch")] == [
            ("y", Urgency.URGENT),
            ("x", Urgency.ORDINARY),
        ]


async def test_a_sandbox_is_told_of_with_the_start_of_containers_if_that_comes_soon(
    autojump_clock: MockClock,
) -> None:
    stage = Stage(named("x"), named("y"), named("z"))
    ready = PodCondition(type="PodReadyToStartContainers", status="True")
    with_sandbox = PodStatus(phase="Pending", conditions=(ready,))
    async with stage.open():
        for name in ("x", "y", "z"):
            stage.set(name, PodStatus(phase="Pending", conditions=(attrs.evolve(ready, status="False"),)))
        await trio.sleep(0.1)
        stage.client.calls.clear()
        for name in ("x", "y", "z"):
            stage.set(name, with_sandbox)
        await trio.sleep(0.5)
        stage.set("x", attrs.evolve(RUNNING, conditions=(ready,)))
        stage.set("y", attrs.evolve(with_sandbox, container_statuses=(running("a", restart_count=1),)))
        await trio.sleep(0.01)
        assert [call.name for call in stage.client.called("patch")] == ["x", "y"]
        await trio.sleep(0.5)
        assert [call.name for call in stage.client.called("patch")] == ["x", "y", "z"]
        assert stage.status("z").conditions[0].status == "True"


async def test_a_deletion_is_acknowledged_with_the_end_if_that_comes_soon(autojump_clock: MockClock) -> None:
    now = TrioClock().now()
    deleted = [with_metadata(named(name), deletion_timestamp=now, generation=2) for name in ("x", "y", "z")]
    stage = Stage(*(attrs.evolve(each, status=RUNNING) for each in deleted))
    acknowledged = attrs.evolve(RUNNING, observed_generation=2)
    async with stage.open():
        for each in deleted:
            stage.set(each.metadata.name, acknowledged)
        await trio.sleep(0.5)
        stage.set("x", attrs.evolve(DONE, observed_generation=2))
        stage.set("y", attrs.evolve(acknowledged, container_statuses=(running("a", restart_count=1),)))
        await trio.sleep(0.01)
        assert [call.name for call in stage.client.called("patch")] == ["x", "y"]
        await trio.sleep(0.5)
        assert [call.name for call in stage.client.called("patch")] == ["x", "y", "z"]
        assert stage.status("z").observed_generation == 2


async def test_an_ordinary_write_that_waits_long_is_given_up_for_an_urgent_one(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    gate = stage.client.hold("patch", PODS)  # as the client's rate limit does
    async with stage.open():
        stage.set("x", PodStatus(phase="Pending", message="m"))
        await trio.sleep(5)
        stage.set("x", RUNNING)
        await trio.sleep(0.05)
        assert stage.requests == ["patch"]
        await trio.sleep(0.06)
        # Whether the write took place is not known.
        assert stage.requests == ["patch", "get", "patch"]
        gate.set()
        await trio.sleep(1)
        assert stage.status("x").phase == "Running"


async def test_a_deleted_pod_goes_when_it_has_ended_and_everything_is_released(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.set("x", RUNNING)
        await trio.sleep(1)
        await stage.client.delete(PODS, "x", "default")
        await wait_all_tasks_blocked()
        stage.running.add("x")
        stage.set("x", DONE)
        await trio.sleep(1)
        assert stage.status("x").phase == "Running"  # something may still run
        stage.running.clear()
        stage.terminate("x")
        await wait_all_tasks_blocked()
        assert stage.served("x") is None
    last = stage.client.calls[-1]
    assert (last.verb, last.body, last.options["grace_period"]) == ("delete", "x", 0)
    assert stage.requests[-2:] == ["patch", "delete"]


async def test_a_pod_is_not_deleted_before_the_server_has_seen_its_end(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        await stage.client.delete(PODS, "x", "default")
        await wait_all_tasks_blocked()
        stage.client.fail("patch", PODS, status_error(500), times=3)
        stage.terminate("x")
        await trio.sleep(5)
        assert stage.served("x") is None
    assert [verb for verb in stage.requests if verb != "get"] == [
        "delete",
        "patch",
        "patch",
        "patch",
        "patch",
        "delete",
    ]


async def test_the_deletion_comes_last_and_fails_until_it_succeeds(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.client.fail("delete", PODS, lost(sent=False), times=2)
        of = stage.pods.pod_by_uid("x")
        assert of is not None
        stage.client.put(with_metadata(of, deletion_timestamp=TrioClock().now(), deletion_grace_period_seconds=30))
        await wait_all_tasks_blocked()
        stage.terminate("x")
        await trio.sleep(5)
        assert stage.served("x") is None
    assert stage.requests == ["patch", "delete", "delete", "delete"]


async def test_a_deleted_pod_whose_finalizers_hold_it_is_deleted_once(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))

    def held(call: Call) -> ApiError | None:
        return None

    async with stage.open():
        of = stage.served("x")
        assert of is not None
        stage.client.put(with_metadata(of, deletion_timestamp=TrioClock().now(), finalizers=("f",)))
        await wait_all_tasks_blocked()
        stage.client.fail("delete", PODS, held, times=1)
        stage.terminate("x")
        await trio.sleep(1)
        kept = attrs.evolve(of, status=attrs.evolve(of.status, phase="Failed"))
        stage.client.put(with_metadata(kept, deletion_timestamp=TrioClock().now(), finalizers=("f",)))
        await trio.sleep(60)
    assert stage.requests == ["patch", "delete"]


async def test_a_static_pod_is_written_to_its_mirror_pod_only(autojump_clock: MockClock) -> None:
    static = with_metadata(
        named("s", static=True),
        annotations={"kubernetes.io/config.source": "file", CONFIG_HASH_ANNOTATION: "h"},
    )
    stage = Stage(local=(static,))
    async with stage.open():
        stage.statuses.set_pod_status(static, RUNNING)
        await trio.sleep(30)
        assert stage.requests == []
        stage.client.put(mirror_of(static, "m1"))
        await trio.sleep(1)
        assert stage.status("s").phase == "Running"
        stage.client.put(with_metadata(mirror_of(static, "m1"), deletion_timestamp=TrioClock().now()))
        stage.statuses.terminate_pod(static)
        await trio.sleep(30)
        assert "delete" not in stage.requests  # mirror pods are deleted by whoever makes them
        stage.client.remove(PODS, "s", "default")
        stage.client.put(mirror_of(static, "m2"))
        await trio.sleep(1)
        assert (stage.served("s") or static).metadata.uid == "m2"
        assert stage.status("s").container_statuses != ()
        assert [call.body["metadata"]["uid"] for call in stage.client.called("patch")][-1] == "m2"


async def test_a_pod_with_the_name_of_a_static_pod_is_left_alone(autojump_clock: MockClock) -> None:
    static = with_metadata(named("s", static=True), uid="static")
    stage = Stage(named("s"), local=(static,))
    async with stage.open():
        stage.statuses.set_pod_status(static, RUNNING)
        await trio.sleep(30)
    assert stage.requests == []


async def test_a_pod_that_was_replaced_gets_nothing_of_the_old_one(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.set("x", RUNNING)
        await trio.sleep(1)
        old = stage.pods.pod_by_uid("x")
        assert old is not None
        stage.client.remove(PODS, "x", "default")
        stage.client.put(with_metadata(named("x"), uid="new"))
        stage.statuses.set_pod_status(old, DONE)  # its worker has not heard of it
        await trio.sleep(30)
        assert stage.status("x").phase == "Pending"
    assert stage.requests == ["patch"]


async def test_a_replacement_that_the_watch_has_not_told_of_is_protected_by_the_uid(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        gate = stage.client.hold("watch", PODS)
        stage.client.end_watches()
        await wait_all_tasks_blocked()
        stage.client.remove(PODS, "x", "default")
        stage.client.put(with_metadata(named("x"), uid="new"))
        stage.set("x", RUNNING)
        await trio.sleep(30)
        assert stage.requests == ["patch"]
        assert stage.status("x").phase == "Pending"
        gate.set()


async def test_a_pod_that_is_not_on_the_server_is_ignored(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.client.fail("patch", PODS, status_error(404, "NotFound"), times=math.inf)
        stage.set("x", RUNNING)
        await trio.sleep(60)
    assert stage.requests == ["patch"]


async def test_what_somebody_else_overwrites_is_written_again_at_once_but_not_in_a_race(
    autojump_clock: MockClock,
) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.set("x", RUNNING)
        await trio.sleep(20)
        for _ in range(10):  # somebody insists
            of = stage.served("x")
            assert of is not None
            stage.client.put(attrs.evolve(of, status=attrs.evolve(of.status, phase="Unknown")))
            await trio.sleep(1)
        assert stage.requests == ["patch", "patch"]
        await trio.sleep(20)
        assert stage.status("x").phase == "Running"
    assert len(stage.requests) == 3


async def test_fields_that_an_old_server_drops_are_not_sent_again(autojump_clock: MockClock) -> None:
    stage = Stage(with_metadata(named("x"), generation=3))

    class OldServer(ScriptedClient):
        async def patch(self, *arguments: Any, **options: Any) -> Any:
            arguments[4]["status"].pop("observedGeneration", None)
            return await super().patch(*arguments, **options)

    stage.client.__class__ = OldServer
    async with stage.open():
        stage.set("x", RUNNING)
        await trio.sleep(60)
        assert stage.status("x").observed_generation == 0
        assert stage.requests == ["patch"]
        of = stage.pods.pod_by_uid("x")
        assert of is not None
        # A pod that is being deleted is offered with each sync, though nothing is new.
        for _ in range(3):
            stage.statuses.set_pod_status(with_metadata(of, deletion_timestamp=TrioClock().now()), RUNNING)
            await trio.sleep(1)
    assert stage.requests == ["patch"]


@pytest.mark.parametrize(
    ("error", "requests", "seconds"),
    [
        (status_error(409, "Conflict", "the object has been modified"), ["patch", "get", "patch"], 0.01),
        (status_error(500, "InternalError"), ["patch", "get", "patch"], 0.2),
        (status_error(429, "TooManyRequests", retry_after=3), ["patch", "patch"], 4),
        (status_error(401, "Unauthorized"), ["patch", "patch"], 0.2),
        (status_error(403, "Forbidden"), ["patch", "patch"], 13),
        (lost(sent=True), ["patch", "get", "patch"], 0.2),
        (lost(sent=False), ["patch", "patch"], 0.2),
        (status_error(422, "Invalid"), ["patch", "get", "patch"], 0.01),
    ],
)
async def test_a_write_that_failed_is_tried_again(
    error: ApiError, requests: list[str], seconds: float, autojump_clock: MockClock
) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.client.fail("patch", PODS, error)
        stage.set("x", RUNNING)
        await trio.sleep(seconds)
        assert stage.requests == requests
        assert stage.status("x").phase == "Running"
        assert stage.writer.statistics().failures == 1


async def test_a_status_that_the_server_finds_invalid_waits_for_a_new_one_or_a_minute(
    autojump_clock: MockClock,
) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.client.fail("patch", PODS, status_error(422, "Invalid"), times=math.inf)
        stage.set("x", RUNNING)
        await trio.sleep(40)
        assert stage.requests.count("patch") == 2
        stage.set("x", attrs.evolve(RUNNING, message="new"))
        await trio.sleep(0.1)
        assert stage.requests.count("patch") == 3
        stage.client.heal()
        await trio.sleep(80)
        assert stage.status("x").message == "new"


async def test_a_lost_reply_does_not_hide_what_was_written(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        gate = stage.client.hold("watch", PODS)
        stage.client.end_watches()
        await wait_all_tasks_blocked()
        stage.client.fail("patch", PODS, lost(), after=True)
        stage.set("x", attrs.evolve(RUNNING, message="first"))
        await wait_all_tasks_blocked()
        stage.set("x", attrs.evolve(RUNNING, message=""))
        await trio.sleep(1)
        assert stage.status("x").message == ""
        gate.set()


async def test_after_an_outage_all_pods_are_written_within_a_second_with_what_is_true_then(
    autojump_clock: MockClock,
) -> None:
    names = [f"p{number}" for number in range(60)]
    stage = Stage(*map(named, names))
    async with stage.open():
        for name in names:
            stage.set(name, RUNNING)
        await trio.sleep(2)
        stage.client.unreachable()
        for count in range(60):
            for name in names:
                stage.set(name, attrs.evolve(RUNNING, container_statuses=(running("a", restart_count=count),)))
            await trio.sleep(10)
        stage.client.back()
        await stage.client.get_text("/healthz")  # whatever is answered first
        before = len(stage.client.called("patch"))
        await trio.sleep(1.1)
        assert {stage.status(name).container_statuses[0].restart_count for name in names} == {59}
        assert len(stage.client.called("patch")) - before == 60
        assert stage.writer.statistics().pausing == 0


async def test_pods_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"), named("y"))
    async with stage.open():
        stage.client.set_latency(2)
        stage.set("x", RUNNING)
        stage.set("y", RUNNING)
        await trio.sleep(2.1)
        assert {stage.status("x").phase, stage.status("y").phase} == {"Running"}


async def test_a_rejected_pod_is_written_with_nothing_but_its_rejection(autojump_clock: MockClock) -> None:
    stage = Stage(with_metadata(named("x"), generation=2))
    scheduled = PodCondition(type="PodScheduled", status="True")
    async with stage.open():
        of = stage.served("x")
        assert of is not None
        stage.client.put(attrs.evolve(of, status=attrs.evolve(of.status, conditions=(scheduled,))))
        await wait_all_tasks_blocked()
        of = stage.pods.pod_by_uid("x")
        assert of is not None
        stage.statuses.reject_pod(of, "OutOfcpu", "Node didn't have enough resource: cpu")
        await trio.sleep(1)
        status = stage.status("x")
        assert attrs.evolve(status, start_time=None) == PodStatus(
            phase="Failed",
            reason="OutOfcpu",
            message="Pod was rejected: Node didn't have enough resource: cpu",
            qos_class="BestEffort",
            observed_generation=2,
        )
        assert status.start_time is not None


async def test_an_agent_that_starts_anew_writes_only_what_differs(autojump_clock: MockClock) -> None:
    stage = Stage(named("x"))
    async with stage.open():
        stage.set("x", RUNNING)
        await trio.sleep(1)
    again = Stage()
    again.client = stage.client
    again.reflector = Reflector(stage.client, PODS, again.store, rng=Random(2))
    again.writer = StatusWriter(
        stage.client,
        again.statuses,
        again.pods,
        again.store,
        may_run=lambda _: False,
        clock=TrioClock(TrioClock().now() + timedelta(hours=1)),
        rng=Random(3),
    )
    async with again.open():
        again.set("x", RUNNING)
        await trio.sleep(30)
    assert stage.requests == ["patch"]
