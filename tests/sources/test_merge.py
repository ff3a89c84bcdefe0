"""Situations of the kubelet's `config_test.go`, as calls of a pure function."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import Pod, pod_from_dict
from trikubelet.sources.mux import Merged, PodOperation, merge_source

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = datetime(2026, 2, 2, tzinfo=UTC)


def make(name: str, uid: str | None = None, namespace: str = "new", image: str = "x", **metadata: Any) -> Pod:
    return pod_from_dict(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", **metadata},
            "spec": {"containers": [{"name": "a", "image": image}]},
        }
    )


def merge(known: Merged | None, *pods: Pod, source: str = "test", now: datetime = NOW) -> Merged:
    return merge_source(source, known, pods, now=now)


def operations(merged: Merged) -> list[tuple[PodOperation, list[str]]]:
    return [(update.op, [pod.metadata.name for pod in update.pods]) for update in merged.updates]


ADD, UPDATE, DELETE = PodOperation.ADD, PodOperation.UPDATE, PodOperation.DELETE
REMOVE, RECONCILE = PodOperation.REMOVE, PodOperation.RECONCILE


def test_a_new_pod_is_added_with_source_and_first_seen_time() -> None:
    merged = merge(None, make("foo"))
    assert operations(merged) == [(ADD, ["foo"])]
    assert merged.updates[0].source == "test"
    assert merged.updates[0].pods[0].metadata.annotations == {
        "kubernetes.io/config.source": "test",
        "kubernetes.io/config.seen": "2026-01-02T03:04:05.678901000Z",
    }


def test_one_name_in_two_namespaces_is_two_pods() -> None:
    merged = merge(None, make("foo", "1", "default"), make("foo", "2", "new"))
    assert operations(merged) == [(ADD, ["foo", "foo"])]


def test_a_second_pod_of_the_same_full_name_is_dropped() -> None:
    merged = merge(None, make("foo", "1"), make("foo", "2"), make("bar", "3"))
    assert operations(merged) == [(ADD, ["foo", "bar"])]
    assert [pod.metadata.uid for pod in merged.duplicates] == ["2"]


def test_the_first_empty_set_says_that_the_source_is_ready() -> None:
    merged = merge(None)
    assert operations(merged) == [(ADD, [])]
    assert operations(merge(merged)) == []


def test_the_same_pod_again_is_nothing() -> None:
    first = merge(None, make("foo"))
    assert operations(merge(first, make("foo"), now=LATER)) == []


def test_added_updated_and_removed() -> None:
    first = merge(None, make("foo"))
    second = merge(first, make("foo", image="y"), now=LATER)
    assert operations(second) == [(UPDATE, ["foo"])]
    updated = second.updates[0].pods[0]
    assert updated.spec.containers[0].image == "y"
    assert updated.metadata.annotations["kubernetes.io/config.seen"] == "2026-01-02T03:04:05.678901000Z"
    third = merge(second)
    assert operations(third) == [(REMOVE, ["foo"])]
    assert third.pods == {}


def test_a_deletion_mark_is_a_delete() -> None:
    first = merge(None, make("foo"))
    marked = make("foo", deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=5)
    second = merge(first, marked)
    assert operations(second) == [(DELETE, ["foo"])]
    assert second.pods["uid-foo"].metadata.deletion_grace_period_seconds == 5


def test_a_shorter_grace_period_of_a_marked_pod_is_another_delete() -> None:
    mark = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    first = merge(None, make("foo", **mark, deletionGracePeriodSeconds=5))
    assert operations(merge(first, make("foo", **mark, deletionGracePeriodSeconds=1))) == [(DELETE, ["foo"])]


def test_a_status_alone_is_a_reconcile_and_keeps_the_rest() -> None:
    first = merge(None, make("foo"), make("bar"))
    changed = attrs.evolve(make("foo"), status=attrs.evolve(make("foo").status, message="hello"))
    second = merge(first, changed, make("bar"))
    assert operations(second) == [(RECONCILE, ["foo"])]
    assert second.pods["uid-foo"].status.message == "hello"
    assert second.pods["uid-foo"].metadata.annotations == first.pods["uid-foo"].metadata.annotations


def test_updates_are_delivered_in_the_kubelets_order() -> None:
    first = merge(None, make("gone"), make("changed"), make("deleted"), make("reported"))
    reported = attrs.evolve(make("reported"), status=attrs.evolve(make("reported").status, message="x"))
    marked = make("deleted", deletionTimestamp="2026-01-01T00:00:00Z")
    second = merge(first, reported, marked, make("changed", image="y"), make("new"))
    assert operations(second) == [
        (REMOVE, ["gone"]),
        (ADD, ["new"]),
        (UPDATE, ["changed"]),
        (DELETE, ["deleted"]),
        (RECONCILE, ["reported"]),
    ]


def test_annotations_follow_the_new_version_and_local_ones_stay() -> None:
    first = merge(None, make("foo", annotations={"a": "1", "b": "2", "kubernetes.io/config.mirror": "m"}))
    second = merge(first, make("foo", annotations={"b": "3", "kubernetes.io/config.seen": "forged"}))
    assert operations(second) == [(UPDATE, ["foo"])]
    assert second.pods["uid-foo"].metadata.annotations == {
        "b": "3",
        "kubernetes.io/config.mirror": "m",
        "kubernetes.io/config.source": "test",
        "kubernetes.io/config.seen": "2026-01-02T03:04:05.678901000Z",
    }


def test_local_annotations_alone_are_no_update() -> None:
    first = merge(None, make("foo", annotations={"a": "1"}))
    forged = make("foo", annotations={"a": "1", "kubernetes.io/config.mirror": "x"})
    assert operations(merge(first, forged)) == []


def test_labels_are_an_update() -> None:
    first = merge(None, make("foo", labels={"a": "1"}))
    second = merge(first, make("foo", labels={"a": "2"}))
    assert operations(second) == [(UPDATE, ["foo"])]
    assert second.pods["uid-foo"].metadata.labels == {"a": "2"}


def test_a_new_uid_of_the_same_name_is_a_removal_and_an_addition() -> None:
    first = merge(None, make("foo", "1"))
    second = merge(first, make("foo", "2"))
    assert operations(second) == [(REMOVE, ["foo"]), (ADD, ["foo"])]


class Closed:
    """A spec that must not be looked into."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = object.__hash__


def test_an_object_that_was_sent_before_is_not_looked_into() -> None:
    closed: Any = Closed()
    pods = [attrs.evolve(make(f"pod-{number}"), spec=closed) for number in range(10)]
    pods[5] = make("pod-5")
    known = merge(None, *pods)
    changed = attrs.evolve(pods[5], status=attrs.evolve(pods[5].status, message="hello"))
    merged = merge(known, *pods[:5], changed, *pods[6:])
    assert operations(merged) == [(RECONCILE, ["pod-5"])]
    assert merged.pods["uid-pod-1"] is known.pods["uid-pod-1"]


def test_a_pod_that_went_and_came_back_as_the_same_object_is_added_again() -> None:
    pod = make("foo")
    gone = merge(merge(None, pod))
    assert operations(merge(gone, pod)) == [(ADD, ["foo"])]


def test_a_pod_that_was_hidden_by_a_duplicate_appears_when_that_is_gone() -> None:
    first, second = make("foo", "1"), make("foo", "2")
    hidden = merge(None, first, second)
    assert operations(merge(hidden, second)) == [(REMOVE, ["foo"]), (ADD, ["foo"])]


POD = st.builds(make, name=st.sampled_from("abc"), uid=st.sampled_from("123"), image=st.sampled_from("xy"))


@given(st.lists(st.lists(POD, max_size=4), max_size=5))
def test_following_the_updates_gives_what_the_source_wants(sets: list[list[Pod]]) -> None:
    known: Merged | None = None
    followed: dict[str, Pod] = {}
    for pods in sets:
        known = merge(known, *pods)
        for update in known.updates:
            for pod in update.pods:
                if update.op is REMOVE:
                    del followed[pod.metadata.uid]
                else:
                    followed[pod.metadata.uid] = pod
        assert followed == known.pods
        assert operations(merge(known, *pods)) == []
