"""The status manager: what it holds, what it refuses, and what its readers see."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.status.builders import ended, pod, running, waiting
from trikubelet.api import Container, Pod, PodCondition, PodStatus, Probe
from trikubelet.clock import TrioClock
from trikubelet.pods.manager import PodManager
from trikubelet.status.manager import StatusChange, StatusManager

if TYPE_CHECKING:
    from trio.testing import MockClock

A = "a"


def named(uid: str, *containers: Container | str, **fields: object) -> Pod:
    of = pod(*(containers or (A,)), **fields)  # type: ignore[arg-type]
    return attrs.evolve(of, metadata=attrs.evolve(of.metadata, uid=uid, name=uid))


def manager_of(*pods: Pod) -> StatusManager:
    return StatusManager(TrioClock(), PodManager(pods))


def phase(name: str, *statuses: object) -> PodStatus:
    return PodStatus(phase=name, container_statuses=statuses)  # type: ignore[arg-type]


async def test_what_was_set_is_reported() -> None:
    of = named("u")
    manager = manager_of(of)
    assert manager.get_pod_status("u") is None
    status = manager.set_pod_status(of, phase("Running", running(A)))
    assert status.phase == "Running"
    assert status.start_time is not None
    assert manager.get_pod_status("u") == status


@pytest.mark.parametrize(("shown", "taken"), [("1", True), ("2", False)])
async def test_what_a_mirror_pod_of_an_earlier_version_says_is_not_of_this_one(shown: str, taken: bool) -> None:
    of = named("static", static=True)
    marks = {**of.metadata.annotations, "kubernetes.io/config.hash": "1"}
    static = attrs.evolve(of, metadata=attrs.evolve(of.metadata, annotations=marks))
    annotations = {"kubernetes.io/config.mirror": shown}
    mirror = attrs.evolve(of, metadata=attrs.evolve(of.metadata, uid="mirror", annotations=annotations))
    mirror = attrs.evolve(mirror, status=PodStatus(phase="Running"))
    manager = manager_of(static, mirror)
    assert manager.status_before(static).phase == ("Running" if taken else "")


async def test_a_mirror_pods_uid_stands_for_its_static_pod() -> None:
    of = named("static", static=True)
    annotations = {"kubernetes.io/config.mirror": ""}
    mirror = attrs.evolve(of, metadata=attrs.evolve(of.metadata, uid="mirror", annotations=annotations))
    mirror = attrs.evolve(mirror, status=PodStatus(start_time=TrioClock().now() - timedelta(days=1)))
    manager = manager_of(of, mirror)
    status = manager.set_pod_status(of, phase("Running"))
    assert manager.get_pod_status("mirror") == status
    assert status.start_time == mirror.status.start_time


async def test_the_same_status_again_is_no_change() -> None:
    of = named("u")
    manager = manager_of(of)
    with manager.subscribe() as changes:
        for _ in range(3):
            manager.set_pod_status(of, phase("Running"))
        assert (await changes.receive()).version == 1
        with trio.move_on_after(0):
            pytest.fail(str(await changes.receive()))
    assert manager.statistics().unchanged == 2


async def test_a_deleted_pod_is_handed_out_even_without_a_change() -> None:
    of = named("u", deleted=True)
    manager = manager_of(of)
    with manager.subscribe() as changes:
        for version in (1, 2):
            manager.set_pod_status(of, phase("Running"))
            assert (await changes.receive()).version == version


async def test_an_illegal_transition_leaves_the_old_status() -> None:
    of = named("u", restart="Never")
    manager = manager_of(of)
    old = manager.set_pod_status(of, phase("Running", ended(A)))
    assert manager.set_pod_status(of, phase("Running", running(A))) == old
    assert manager.get_pod_status("u") == old
    assert manager.statistics().refused == 1


async def test_a_transition_has_the_time_of_the_change(autojump_clock: MockClock) -> None:
    of = named("u")
    manager = manager_of(of)

    def ready(status: str) -> PodStatus:
        return PodStatus(conditions=(PodCondition(type="Ready", status=status),))

    first = manager.set_pod_status(of, ready("False"))
    await trio.sleep(30)
    assert manager.set_pod_status(of, ready("False")) == first
    await trio.sleep(30)
    last = manager.set_pod_status(of, ready("True"))
    before, after = first.conditions[0].last_transition_time, last.conditions[0].last_transition_time
    assert before is not None
    assert after is not None
    assert after - before == timedelta(seconds=60)
    assert last.start_time == first.start_time


async def test_a_slow_reader_sees_the_newest_status_of_each_pod_once(autojump_clock: MockClock) -> None:
    first, second = named("1"), named("2")
    manager = manager_of(first, second)
    with manager.subscribe() as changes:
        began = trio.current_time()
        manager.set_pod_status(first, phase("Pending"))
        manager.set_pod_status(second, phase("Pending"))
        await trio.sleep(1)
        manager.set_pod_status(first, phase("Running"))
        seen = [await changes.receive(), await changes.receive()]
    assert [(one.pod.metadata.uid, one.status.phase, one.version) for one in seen] == [
        ("1", "Running", 2),
        ("2", "Pending", 1),
    ]
    assert [one.first_changed_at for one in seen] == [began, began]


async def test_a_reader_is_woken_by_a_change_and_ends_with_its_subscription() -> None:
    of = named("u")
    manager = manager_of(of)
    seen: list[StatusChange] = []
    changes = manager.subscribe()

    async def read() -> None:
        async for change in changes:
            seen.append(change)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        manager.set_pod_status(of, phase("Running"))
        await wait_all_tasks_blocked()
        assert [one.status.phase for one in seen] == ["Running"]
        changes.close()
    assert manager.statistics().subscriptions == 0
    manager.set_pod_status(of, phase("Pending"))
    assert len(seen) == 1


async def test_a_cancelled_reader_loses_nothing() -> None:
    of = named("u")
    manager = manager_of(of)
    with manager.subscribe() as changes:
        manager.set_pod_status(of, phase("Running"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await changes.receive()
        assert scope.cancelled_caught
        assert (await changes.receive()).status.phase == "Running"


async def test_a_new_reader_begins_with_what_there_is() -> None:
    of = named("u")
    manager = manager_of(of)
    manager.set_pod_status(of, phase("Running"))
    with manager.subscribe() as changes:
        assert (await changes.receive()).status.phase == "Running"


PROBED = Container(name=A, readiness_probe=Probe(), startup_probe=Probe())


async def test_readiness_changes_the_container_and_the_pods_conditions() -> None:
    of = named("u", PROBED)
    manager = manager_of(of)
    conditions = tuple(PodCondition(type=type_, status="False") for type_ in ("Ready", "ContainersReady"))
    status = attrs.evolve(phase("Running", running(A, container_id="test://1")), conditions=conditions)
    manager.set_pod_status(of, status)
    manager.set_container_readiness("u", "test://1", True)
    now = manager.get_pod_status("u")
    assert now is not None
    assert now.container_statuses[0].ready
    assert [(one.type, one.status) for one in now.conditions] == [("Ready", "True"), ("ContainersReady", "True")]
    manager.set_container_readiness("u", "test://1", False)
    now = manager.get_pod_status("u")
    assert now is not None
    assert [one.reason for one in now.conditions] == ["ContainersNotReady", "ContainersNotReady"]


async def test_startup_changes_the_container() -> None:
    of = named("u", PROBED)
    manager = manager_of(of)
    manager.set_pod_status(of, phase("Running", running(A, started=False, container_id="test://1")))
    manager.set_container_startup("u", "test://1", True)
    now = manager.get_pod_status("u")
    assert now is not None
    assert now.container_statuses[0].started is True


async def test_probe_results_of_strangers_are_ignored() -> None:
    of = named("u")
    manager = manager_of(of)
    manager.set_container_readiness("u", "test://1", True)
    manager.set_pod_status(of, phase("Running", running(A, container_id="test://1")))
    before = manager.get_pod_status("u")
    manager.set_container_readiness("u", "test://2", True)
    manager.set_container_startup("u", "test://2", True)
    manager.set_container_readiness("nobody", "test://1", True)
    assert manager.get_pod_status("u") == before


async def test_a_terminated_pod_has_failed_and_stays_finished() -> None:
    of = named("u")
    manager = manager_of(of)
    manager.set_pod_status(of, phase("Running", running(A)))
    with manager.subscribe() as changes:
        status = manager.terminate_pod(of)
        assert status.phase == "Failed"
        assert (await changes.receive()).finished
        manager.set_pod_status(of, phase("Running", waiting(A)))
        assert (await changes.receive()).finished
    now = manager.get_pod_status("u")
    assert now is not None
    assert now.phase == "Failed"


async def test_pods_that_nobody_knows_are_forgotten_by_readers_too() -> None:
    first, second = named("1"), named("2")
    manager = manager_of(first, second)
    with manager.subscribe() as changes:
        manager.set_pod_status(first, phase("Running"))
        manager.set_pod_status(second, phase("Running"))
        manager.remove_orphaned({"2"})
        assert manager.get_pod_status("1") is None
        assert (await changes.receive()).pod.metadata.uid == "2"
    assert manager.statistics().pods == 1


async def test_a_rejected_pod_is_reported_with_its_rejection_and_nothing_else() -> None:
    of = named("u")
    of = attrs.evolve(of, metadata=attrs.evolve(of.metadata, generation=4))
    manager = manager_of(of)
    status = manager.reject_pod(of, "NodeAffinity", "no match")
    assert attrs.evolve(status, start_time=None) == PodStatus(
        observed_generation=4,
        phase="Failed",
        reason="NodeAffinity",
        message="Pod was rejected: no match",
        qos_class="BestEffort",
    )
    assert status.start_time is not None
    assert manager.change("u") == manager.changes()[0]


async def test_a_sync_does_not_overwrite_a_rejection() -> None:
    of = named("u")
    manager = manager_of(of)
    rejected = manager.reject_pod(of, "NodeAffinity", "no match")
    assert manager.set_pod_status(of, phase("Failed", waiting(A, "ContainerCreating"))) == rejected
    assert manager.terminate_pod(of) == rejected
    change = manager.change("u")
    assert change is not None
    assert (change.finished, change.rejected) == (True, True)


async def test_a_change_is_the_same_object_until_the_next_one() -> None:
    of = named("u")
    manager = manager_of(of)
    manager.set_pod_status(of, phase("Running"))
    first = manager.change("u")
    manager.set_pod_status(of, phase("Running"))
    assert manager.change("u") is first
    manager.set_pod_status(of, phase("Failed"))
    assert manager.change("u") is not first
    assert manager.change("other") is None
