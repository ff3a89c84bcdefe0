"""What there is and who has it: the kubelet's tables of capacity, health, init containers and resources of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.node.devices.situations import R1, R2, book_of, container, make_pod, some
from trikubelet.admission.types import AllocationError
from trikubelet.node.devices.book import STOP_GRACE, DeviceBook
from trikubelet.node.devices.model import DeviceResources, Grant, Needs, PluginDevice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Pod

NOTHING = Needs()


def amounts(book: DeviceBook, resource: str = R1) -> tuple[int | None, int | None]:
    found = book.resources()
    return found.capacity.get(resource), found.allocatable.get(resource)


def give(book: DeviceBook, uid: str, container: str, *devices: str, resource: str = R1) -> None:
    book.give(uid, container, resource, devices, NOTHING)


def given_all(book: DeviceBook, pod: Pod) -> dict[str, set[str]]:
    """What each container would have of R1."""
    after = book.rehearsed(pod, runs_already=())
    granted = after.granted_to(pod.metadata.uid)
    return {name: set(resources[R1].devices) for name, resources in granted.items() if R1 in resources}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (some("a", "b", ill=["c"]), (3, 2)),
        (some("a", "b"), (2, 2)),
        (some("a", ill=["b", "c"]), (3, 1)),
        (some(ill=["b", "c"]), (2, 0)),
        (some(), (0, 0)),
        ([PluginDevice("a"), PluginDevice("a", healthy=False)], (1, 0)),
        ([PluginDevice("a", healthy=False), PluginDevice("a")], (1, 1)),
    ],
)
def test_capacity_is_all_and_allocatable_the_healthy(
    devices: Iterable[PluginDevice], expected: tuple[int, int]
) -> None:
    assert amounts(book_of({R1: devices})) == expected


def test_the_last_list_is_the_truth() -> None:
    book = book_of({R1: some("a", "b"), R2: some("x")})
    book.receive(R1, some("b", "c", "d"))
    assert [(resource, device.id) for resource, device in book.healthy_devices()] == [
        (R1, "b"),
        (R1, "c"),
        (R1, "d"),
        (R2, "x"),
    ]


def test_a_plugin_that_has_told_nothing_has_nothing() -> None:
    book = DeviceBook()
    book.connected(R1)
    assert amounts(book) == (None, None)
    assert not book.knows(R1)


def test_a_plugin_that_ends_before_it_told_anything_leaves_nothing_of_its_resource_for_five_minutes() -> None:
    book = DeviceBook()
    book.connected(R1)
    book.stopped(R1, 0)
    assert amounts(book) == (0, 0)
    assert not book.knows(R1)
    assert book.listed() == []
    assert book.next_end() == STOP_GRACE
    book.connected(R1)
    assert amounts(book) == (0, 0), "another one is there, and has told nothing either"
    book.stopped(R1, 1)
    assert book.end_stopped(1 + STOP_GRACE) == [R1]
    assert book.resources() == DeviceResources(gone=frozenset([R1]))


def test_a_resource_goes_five_minutes_after_its_plugin() -> None:
    book = book_of({R1: some("a", "b"), R2: some("x", ill=["y"])})
    book.stopped(R1, 10)
    assert amounts(book) == (2, 0)
    assert amounts(book, R2) == (2, 1)
    assert book.next_end() == 10 + STOP_GRACE
    assert book.end_stopped(9 + STOP_GRACE) == []
    assert book.end_stopped(10 + STOP_GRACE) == [R1]
    assert book.resources() == DeviceResources({R2: 2}, {R2: 1}, frozenset([R1]))
    assert not book.knows(R1)
    assert book.is_gone(R1)
    assert book.next_end() is None


def test_a_plugin_that_comes_back_in_time_has_lost_nothing() -> None:
    book = book_of({R1: some("a")})
    book.stopped(R1, 0)
    book.connected(R1)
    assert book.next_end() is None
    assert amounts(book) == (1, 0), "it has told nothing yet"
    book.receive(R1, some("a"))
    assert amounts(book) == (1, 1)


def test_a_plugin_that_comes_back_late_starts_anew() -> None:
    book = book_of({R1: some("a")})
    book.stopped(R1, 0)
    book.end_stopped(STOP_GRACE)
    book.connected(R1)
    assert book.resources().gone == {R1}
    book.stopped(R1, STOP_GRACE + 1)
    assert book.resources() == DeviceResources({R1: 0}, {R1: 0}), "it came and went without a word"
    book.connected(R1)
    book.receive(R1, some("a"))
    assert book.resources() == DeviceResources({R1: 1}, {R1: 1})


def test_a_plugin_that_takes_over_keeps_the_devices_until_it_tells() -> None:
    book = book_of({R1: some("a", "b")})
    book.connected(R1)
    assert amounts(book) == (2, 2)
    book.receive(R1, some("c"))
    assert amounts(book) == (1, 1)


def test_after_a_restart_resources_are_there_with_nothing() -> None:
    book = DeviceBook()
    grant = Grant({"a": (1,)}, NOTHING)
    book.restore([R1], {"p": {"main": {R1: grant, R2: grant}}}, now=100)
    assert book.resources() == DeviceResources({R1: 0}, {R1: 0})
    assert book.knows(R1)
    assert book.knows(R2), "a container has some"
    assert book.taken() == {R1: 1, R2: 1}
    assert book.end_stopped(100 + STOP_GRACE) == [R1]


def test_pods_hear_of_the_health_of_their_devices_alone() -> None:
    book = book_of({R1: some("a", "b", "c"), R2: some("a")})
    give(book, "one", "main", "a")
    give(book, "two", "main", "b")
    give(book, "three", "main", "a", resource=R2)
    assert book.receive(R1, some("a", "b", "c")) == frozenset()
    assert book.receive(R1, some("b", "c", ill=["a"])) == {"one"}
    assert book.receive(R1, some("b", ill=["a", "c"])) == frozenset()
    assert book.receive(R1, some("a", ill=["b"])) == {"one", "two"}


def test_a_device_that_is_not_told_of_any_more_is_ill() -> None:
    book = book_of({R1: some("a", "b")})
    give(book, "one", "main", "a")
    assert book.is_healthy(R1, "a")
    assert book.receive(R1, some("b")) == {"one"}
    assert not book.is_healthy(R1, "a")
    assert book.receive(R1, some("a", "b")) == {"one"}


def test_nobody_is_ill_before_the_plugin_has_told() -> None:
    book = DeviceBook()
    book.restore([R1], {"one": {"main": {R1: Grant({"a": (), "b": ()})}}}, now=0)
    assert book.is_healthy(R1, "a")
    assert book.receive(R1, some("a", ill=["b"])) == {"one"}


def test_the_end_of_a_plugin_does_not_make_devices_ill_that_are_in_use() -> None:
    book = book_of({R1: some("a")})
    give(book, "one", "main", "a")
    book.stopped(R1, 0)
    assert book.is_healthy(R1, "a")


def test_grants_know_where_devices_are() -> None:
    book = book_of({R1: [PluginDevice("a", numa_nodes=(0, 1)), PluginDevice("b")]})
    give(book, "one", "main", "a", "b")
    assert book.granted_to("one")["main"][R1].devices == {"a": (0, 1), "b": ()}


def test_devices_of_init_containers_go_to_later_ones() -> None:
    """`TestInitContainerDeviceAllocation`"""
    init = [container("init1", r1=1), container("init2", r1=2)]
    pod = make_pod("p", container("one", r1=1), container("two", r1=1), init=init)
    has = given_all(book_of({R1: some("dev1", "dev2")}), pod)
    assert [len(has[name]) for name in ("init1", "init2", "one", "two")] == [1, 2, 1, 1]
    assert has["init1"] | has["one"] | has["two"] <= has["init2"]
    assert not has["one"] & has["two"]


def test_devices_of_sidecars_stay_theirs() -> None:
    """`TestRestartableInitContainerDeviceAllocation`"""
    init = [container("init", r1=3), container("side1", r1=1, sidecar=True), container("side2", r1=2, sidecar=True)]
    pod = make_pod("p", container("one", r1=1), container("two", r1=2), init=init)
    has = given_all(book_of({R1: some(*(f"dev{number}" for number in range(1, 7)))}), pod)
    assert [len(ids) for ids in has.values()] == [3, 1, 2, 1, 2]
    assert has["side1"] | has["side2"] <= has["init"]
    lasting = [has[name] for name in ("side1", "side2", "one", "two")]
    assert len(set.union(*lasting)) == sum(map(len, lasting))


def test_a_rehearsal_changes_nothing() -> None:
    book = book_of({R1: some("a", "b")})
    give(book, "p", "other", "b")
    assert given_all(book, make_pod("p", container("main", r1=1)))["main"] == {"a"}
    assert book.taken() == {R1: 1}
    assert book.granted_to("p").keys() == {"other"}


def test_containers_that_run_need_nothing() -> None:
    pod = make_pod("p", container("main", r1=1))
    book = book_of({R1: some(ill=["a"])})
    with pytest.raises(AllocationError, match="no healthy devices"):
        book.rehearsed(pod, runs_already=())
    assert book.rehearsed(pod, runs_already=["main"]).taken() == {}


def test_what_a_plugin_is_asked_for_is_taken() -> None:
    book = book_of({R1: some("a", "b")})
    pod = make_pod("p", container("main", r1=1))
    with book.reserved(R1, ["a"]):
        assert given_all(book, pod)["main"] == {"b"}
        assert book.taken() == {R1: 1}
    assert given_all(book, pod)["main"] == {"a"}


def test_ended_pods_have_nothing() -> None:
    book = book_of({R1: some("a", "b", "c")})
    for uid, device in (("one", "a"), ("two", "b"), ("three", "c")):
        give(book, uid, "main", device)
    book.keep_only(lambda uid: uid == "two")
    assert book.grants().keys() == {"two"}
    book.forget("two")
    book.forget("two")
    assert not book.taken()


def test_what_is_taken_back_leaves_the_rest() -> None:
    book = book_of({R1: some("a", "b"), R2: some("x")})
    give(book, "p", "main", "a")
    give(book, "p", "other", "b")
    give(book, "p", "other", "x", resource=R2)
    book.take_back("p", "other", R1)
    assert {name: sorted(granted) for name, granted in book.granted_to("p").items()} == {"main": [R1], "other": [R2]}
    book.take_back("p", "other", R2)
    book.take_back("p", "main", R1)
    book.take_back("p", "main", R1)
    assert not book.grants()


def test_resources_of_others_are_none_of_the_books_business() -> None:
    book = book_of({R1: some("a")})
    one = container("main", r1=1, r2=1, cpu="1")
    assert book.wanted(make_pod("p", one), one) == {R1: 1}
    assert book.wants_devices(make_pod("p", one))
    assert not book.wants_devices(make_pod("p", container("main", r1=0, r2=1)))
