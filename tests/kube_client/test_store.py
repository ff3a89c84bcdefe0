"""What readers of a store see and are told."""

from __future__ import annotations

from typing import Any

from trikubelet.api import ObjectMeta, Pod, Problem
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import PODS, Undecodable, WatchEvent


def pod(name: str, version: int, uid: str = "") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=uid or name, resource_version=str(version)))


def broken(name: str, version: int, uid: str = "") -> Undecodable:
    metadata = ObjectMeta(name=name, namespace="ns", uid=uid or name, resource_version=str(version))
    return Undecodable(metadata, (Problem("spec", "no"),))


def told(store: Store[Pod]) -> list[Any]:
    """Versions before and after each change, as they come."""
    changes: list[Any] = []

    def version(known: Pod | None) -> str:
        return "" if known is None else f"{known.metadata.uid}@{known.metadata.resource_version}"

    store.subscribe(lambda old, new: changes.append((version(old), version(new))))
    return changes


async def test_nothing_is_there_before_the_first_list() -> None:
    store: Store[Pod] = Store(PODS)
    assert not store.synced
    assert (store.values(), store.resource_version, store.get("a", "ns")) == ((), "", None)


async def test_an_empty_list_is_a_first_sync_too() -> None:
    store = Store(PODS)
    woken = store.changes.subscribe()
    store.replace([], [], "5")
    assert store.synced
    assert len(woken) == 1
    assert store.resource_version == "5"
    await store.wait_synced()


async def test_a_list_tells_what_differs_deletions_first() -> None:
    store = Store(PODS)
    store.replace([pod("same", 1), pod("changed", 2), pod("gone", 3), pod("replaced", 4, "old")], [], "5")
    changes = told(store)
    store.replace([pod("new", 6), pod("same", 1), pod("changed", 7), pod("replaced", 8, "new")], [], "9")
    assert changes == [
        ("gone@3", ""),
        ("", "new@6"),
        ("changed@2", "changed@7"),
        ("old@4", ""),
        ("", "new@8"),
    ]


async def test_a_list_that_shows_what_is_known_keeps_the_same_objects_quiet() -> None:
    store = Store(PODS)
    store.replace([pod("a", 1)], [], "5")
    woken, changes = store.changes.subscribe(), told(store)
    store.replace([pod("a", 1)], [], "6")
    assert not changes
    assert not woken
    assert store.resource_version == "6"


async def test_events_are_changes_and_bookmarks_only_versions() -> None:
    store = Store(PODS)
    store.replace([], [], "5")
    changes = told(store)
    events: list[WatchEvent[Pod]] = [
        WatchEvent("ADDED", pod("a", 6)),
        WatchEvent("MODIFIED", pod("a", 7)),
        WatchEvent("BOOKMARK", Pod(metadata=ObjectMeta(resource_version="20"))),
        WatchEvent("DELETED", pod("a", 21)),
    ]
    for event in events:
        store.apply(event)
    assert changes == [("", "a@6"), ("a@6", "a@7"), ("a@7", "")]
    assert store.resource_version == "21"
    assert store.values() == ()


async def test_a_pod_that_was_replaced_unseen_is_a_deletion_and_a_creation() -> None:
    store = Store(PODS)
    store.replace([pod("a", 1, "old")], [], "5")
    changes = told(store)
    store.apply(WatchEvent("MODIFIED", pod("a", 6, "new")))
    assert changes == [("old@1", ""), ("", "new@6")]


async def test_the_last_version_that_could_be_read_stays() -> None:
    store = Store(PODS)
    store.replace([pod("a", 1)], [], "5")
    changes = told(store)
    seen: list[tuple[str, bool]] = []
    store.subscribe_undecodable(lambda item, kept: seen.append((item.metadata.resource_version, kept is not None)))
    store.apply(WatchEvent("MODIFIED", broken("a", 6)))
    store.replace([], [broken("a", 6), broken("b", 7)], "8")
    assert not changes
    assert store.get("a", "ns") == pod("a", 1)
    assert seen == [("6", True), ("7", False)]
    store.apply(WatchEvent("MODIFIED", pod("a", 9)))
    assert changes == [("a@1", "a@9")]
    assert [item.metadata.name for item in store.undecodable()] == ["b"]


async def test_what_cannot_be_read_goes_when_it_is_deleted_or_another_object() -> None:
    store = Store(PODS)
    store.replace([pod("a", 1), pod("b", 2), pod("c", 3)], [], "5")
    changes = told(store)
    store.apply(WatchEvent("DELETED", broken("a", 6)))
    store.apply(WatchEvent("ADDED", broken("b", 7, "other")))
    store.replace([], [broken("c", 8, "other")], "9")
    assert changes == [("a@1", ""), ("b@2", ""), ("c@3", "")]


async def test_the_sequence_of_values_does_not_change_afterwards() -> None:
    store = Store(PODS)
    store.replace([pod("a", 1)], [], "5")
    before = store.values()
    store.apply(WatchEvent("ADDED", pod("b", 6)))
    assert len(before) == 1
    assert len(store.values()) == 2


async def test_a_listener_that_fails_keeps_no_change_from_the_others() -> None:
    store = Store(PODS)

    def fail(_old: Pod | None, _new: Pod | None) -> None:
        raise LookupError

    store.subscribe(fail)
    changes, woken = told(store), store.changes.subscribe()
    store.replace([pod("a", 1)], [], "5")
    assert changes == [("", "a@1")]
    assert len(woken) == 1
    assert store.synced
