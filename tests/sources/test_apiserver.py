"""Situations of the kubelet's `apiserver_test.go`, and of the source with the merge behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from trikubelet.api import ObjectMeta, Pod, PodSpec, PodStatus, Problem
from trikubelet.clock import TrioClock
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import PODS, Undecodable, WatchEvent
from trikubelet.sources.apiserver import ApiServerSource
from trikubelet.sources.mux import PodOperation, PodUpdate, SourceMux
from trikubelet.telemetry.events import EventRecorder, EventType

if TYPE_CHECKING:
    from trio.testing import MockClock


def pod(name: str, version: int, namespace: str = "ns", phase: str = "") -> Pod:
    metadata = ObjectMeta(name=name, namespace=namespace, uid=f"{namespace}-{name}", resource_version=str(version))
    return Pod(metadata=metadata, spec=PodSpec(node_name="a"), status=PodStatus(phase=phase))


@attrs.define
class Node:
    store: Store[Pod]
    recorder: EventRecorder
    updates: trio.MemoryReceiveChannel[PodUpdate]
    mux: SourceMux

    async def next(self) -> tuple[PodOperation, list[str]]:
        update = await self.updates.receive()
        assert update.source == "api"
        return update.op, [known.metadata.name for known in update.pods]

    async def is_quiet(self) -> bool:
        with trio.move_on_after(5):
            await self.updates.receive()
            return False
        return True


@pytest.fixture
async def node(nursery: trio.Nursery) -> Node:
    store, recorder = Store(PODS), EventRecorder(TrioClock())
    mux = SourceMux([ApiServerSource(store, recorder)], clock=TrioClock())
    send, receive = trio.open_memory_channel[PodUpdate](0)
    await nursery.start(mux.run, send)
    return Node(store, recorder, receive, mux)


async def test_nothing_is_sent_before_the_pods_were_read(node: Node, autojump_clock: MockClock) -> None:
    assert await node.is_quiet()
    assert not node.mux.sources_ready({"api"})


async def test_a_first_set_without_pods_says_that_the_source_is_ready(node: Node, autojump_clock: MockClock) -> None:
    node.store.replace([], [], "1")
    assert await node.next() == (PodOperation.ADD, [])
    assert node.mux.sources_ready({"api"})


async def test_pods_come_change_and_go(node: Node, autojump_clock: MockClock) -> None:
    node.store.replace([pod("one", 1)], [], "1")
    assert await node.next() == (PodOperation.ADD, ["one"])
    node.store.apply(WatchEvent("ADDED", pod("two", 2)))
    assert await node.next() == (PodOperation.ADD, ["two"])
    node.store.apply(WatchEvent("MODIFIED", pod("one", 3, phase="Running")))
    assert await node.next() == (PodOperation.RECONCILE, ["one"])
    marked = pod("one", 4, phase="Running")
    marked = attrs.evolve(marked, metadata=attrs.evolve(marked.metadata, deletion_timestamp=TrioClock().now()))
    node.store.apply(WatchEvent("MODIFIED", marked))
    assert await node.next() == (PodOperation.DELETE, ["one"])
    node.store.apply(WatchEvent("DELETED", marked))
    assert await node.next() == (PodOperation.REMOVE, ["one"])
    namespace = marked.metadata.namespace
    assert [node.mux.has_pod_named("api", namespace, name) for name in ("one", "two")] == [False, True]


async def test_one_name_in_two_namespaces_is_two_pods(node: Node, autojump_clock: MockClock) -> None:
    node.store.replace([pod("one", 1), pod("one", 2, "other")], [], "2")
    assert await node.next() == (PodOperation.ADD, ["one", "one"])


async def test_changes_that_come_together_are_taken_together(node: Node, autojump_clock: MockClock) -> None:
    node.store.replace([], [], "1")
    await node.next()
    for number in range(100):
        node.store.apply(WatchEvent("ADDED", pod(f"pod-{number}", number + 2)))
    operation, names = await node.next()
    assert (operation, len(names)) == (PodOperation.ADD, 100)
    assert await node.is_quiet()


async def test_a_pod_that_was_replaced_between_two_sets_is_removed_and_added(
    node: Node, autojump_clock: MockClock
) -> None:
    node.store.replace([pod("one", 1)], [], "1")
    await node.next()
    again = pod("one", 3)
    again = attrs.evolve(again, metadata=attrs.evolve(again.metadata, uid="another"))
    node.store.apply(WatchEvent("DELETED", pod("one", 2)))
    node.store.apply(WatchEvent("ADDED", again))
    assert await node.next() == (PodOperation.REMOVE, ["one"])
    assert await node.next() == (PodOperation.ADD, ["one"])


async def test_a_pod_whose_new_version_cannot_be_read_stays_and_is_told_of(
    node: Node, autojump_clock: MockClock
) -> None:
    node.store.replace([pod("one", 1)], [], "1")
    await node.next()
    broken = Undecodable(pod("one", 2).metadata, (Problem("spec.containers", "expected a list, got 3"),))
    node.store.apply(WatchEvent("MODIFIED", broken))
    node.store.replace([], [broken], "3")
    assert await node.is_quiet()
    [event] = node.recorder.events_of("ns-one")
    assert (event.type, event.reason, event.count) == (EventType.WARNING, "FailedValidation", 1)
    assert event.message == (
        "Error reading pod one_ns(ns-one) from api, keeping the version before: spec.containers: expected a list, got 3"
    )


async def test_a_pod_that_was_never_read_is_ignored_and_told_of(node: Node, autojump_clock: MockClock) -> None:
    node.store.replace([], [Undecodable(pod("one", 2).metadata, (Problem("spec", "no"),))], "3")
    assert await node.next() == (PodOperation.ADD, [])
    [event] = node.recorder.events_of("ns-one")
    assert "ignoring" in event.message
