from __future__ import annotations

from tests.pods.factories import make_mirror, make_pod
from trikubelet.pods.manager import PodManager

NORMAL = make_pod("normal-uid", "normal")
STATIC = make_pod("static-uid", "static", static=True)
MIRROR = make_mirror(STATIC, "mirror-uid")


def test_pods_are_found_by_uid_and_by_their_mirror() -> None:
    manager = PodManager([NORMAL, STATIC, MIRROR])
    assert manager.pods() == (NORMAL, STATIC)
    assert manager.pod_by_uid("static-uid") is STATIC
    assert manager.pod_by_uid("mirror-uid") is None
    assert manager.pod_of_mirror(MIRROR) is STATIC


def test_a_static_pod_and_its_mirror_find_each_other_in_either_order() -> None:
    for order in ([STATIC, MIRROR], [MIRROR, STATIC]):
        manager = PodManager()
        for pod in order:
            manager.add_pod(pod)
        assert manager.mirror_pod_of(STATIC) is MIRROR
        assert manager.pod_of_mirror(MIRROR) is STATIC
        assert manager.resolve_uid("mirror-uid") == "static-uid"


def test_uids_that_are_no_mirrors_stay() -> None:
    manager = PodManager([NORMAL, STATIC])
    assert [manager.resolve_uid(uid) for uid in ("normal-uid", "unknown", "")] == ["normal-uid", "unknown", ""]


def test_a_pair_is_a_pod_with_its_counterpart() -> None:
    manager = PodManager([NORMAL, STATIC, MIRROR])
    pair = manager.pair(STATIC)
    assert (pair.pod, pair.mirror_pod, pair.was_mirror) == (STATIC, MIRROR, False)
    pair = manager.pair(MIRROR)
    assert (pair.pod, pair.mirror_pod, pair.was_mirror) == (STATIC, MIRROR, True)
    pair = manager.pair(NORMAL)
    assert (pair.pod, pair.mirror_pod, pair.was_mirror) == (NORMAL, None, False)
    manager.remove_pod(STATIC)
    assert manager.pair(MIRROR).pod is None


def test_a_mirror_pod_without_its_pod_is_an_orphan() -> None:
    manager = PodManager([NORMAL, STATIC, MIRROR])
    assert manager.pods_and_mirror_pods().orphaned_mirror_full_names == ()
    manager.remove_pod(STATIC)
    everything = manager.pods_and_mirror_pods()
    assert everything.pods == (NORMAL,)
    assert everything.mirror_pods == (MIRROR,)
    assert everything.orphaned_mirror_full_names == ("static_ns",)
    manager.remove_pod(MIRROR)
    assert manager.pods_and_mirror_pods().mirror_pods == ()
    assert manager.resolve_uid("mirror-uid") == "mirror-uid"


def test_an_update_replaces_the_pod() -> None:
    manager = PodManager([NORMAL])
    newer = make_pod("normal-uid", "normal", phase="Running")
    manager.update_pod(newer)
    assert manager.pods() == (newer,)
    assert manager.pod_by_uid("normal-uid") is newer


def test_the_removal_of_an_older_pod_leaves_the_newer_one_of_its_name() -> None:
    edited = make_pod("edited-uid", "static", static=True)
    manager = PodManager([STATIC, MIRROR])
    manager.add_pod(edited)
    manager.remove_pod(STATIC)
    assert manager.pod_of_mirror(MIRROR) is edited
    assert manager.resolve_uid("mirror-uid") == "edited-uid"
    assert manager.pods_and_mirror_pods().orphaned_mirror_full_names == ()


def test_removing_what_is_not_known_does_no_harm() -> None:
    manager = PodManager()
    manager.remove_pod(NORMAL)
    manager.remove_pod(MIRROR)
    assert manager.pods() == ()


def test_what_is_wanted_of_a_uid_now() -> None:
    manager = PodManager([NORMAL, STATIC, MIRROR])
    assert manager.desired("static-uid") == (STATIC, MIRROR)
    assert manager.desired("normal-uid") == (NORMAL, None)
    assert manager.desired("mirror-uid") is None


def test_static_pods_are_listed_with_their_mirrors() -> None:
    other = make_pod("other-uid", "other", static=True)
    manager = PodManager([NORMAL, STATIC, MIRROR, other])
    assert manager.static_pods_with_mirrors() == ((STATIC, MIRROR), (other, None))


def test_a_pod_is_found_by_its_full_name_and_a_mirror_pod_is_not() -> None:
    manager = PodManager([NORMAL, MIRROR])
    assert manager.pod_by_full_name(NORMAL.full_name) is NORMAL
    assert manager.pod_by_full_name(MIRROR.full_name) is None
