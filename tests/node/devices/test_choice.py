"""Which devices a container gets: the rows of `TestPodContainerDeviceToAllocate` and the rules around them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node.devices.situations import R1, R2, container, make_pod
from trikubelet.admission.types import AllocationError
from trikubelet.formats.cpu_list import set_of
from trikubelet.node.devices.choice import Pick, Request, Stock, device_limits, open_pick, picked, reusable
from trikubelet.node.devices.model import PluginDevice

if TYPE_CHECKING:
    from collections.abc import Iterable

IDS = st.sets(st.sampled_from([f"dev{number}" for number in range(8)]))


def ask(amount: int) -> Request:
    return Request("pod1", "con1", R1, amount)


@pytest.mark.parametrize(
    ("amount", "stock", "problem"),
    [
        (2, Stock(True, had={"dev1", "dev2"}), f"no healthy devices present; cannot allocate unhealthy devices {R1}"),
        (1, Stock(False, had={"dev5"}), f"cannot allocate unregistered device {R1}"),
        (1, Stock(False), f"cannot allocate unregistered device {R1}"),
        (
            1,
            Stock(True, healthy={"dev7", "dev8"}, had={"dev5"}),
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {R1}",
        ),
        (
            3,
            Stock(True, healthy={"dev1", "dev2"}, had={"dev1", "dev2"}),
            f'pod "pod1" container "con1" changed request for resource "{R1}" from 2 to 3',
        ),
        (
            1,
            Stock(True, healthy={"dev1", "dev2"}, taken={"dev1", "dev2"}),
            f"requested number of devices unavailable for {R1}. Requested: 1, Available: 0",
        ),
        (
            3,
            Stock(True, healthy={"a", "b", "c"}, taken={"a", "b"}, reusable={"a"}),
            f"requested number of devices unavailable for {R1}. Requested: 2, Available: 1",
        ),
    ],
)
def test_a_container_gets_none_for_a_reason(amount: int, stock: Stock, problem: str) -> None:
    with pytest.raises(AllocationError) as error:
        open_pick(ask(amount), stock)
    assert str(error.value) == problem
    assert error.value.refusal == f"Allocate failed due to {problem}, which is unexpected"


def test_a_container_keeps_what_it_has() -> None:
    assert open_pick(ask(2), Stock(True, healthy={"a", "b"}, taken={"a", "b"}, had={"a", "b"})) is None


def test_who_asks_for_nothing_needs_nothing() -> None:
    assert open_pick(ask(0), Stock(True)) is None


def test_what_init_containers_have_used_up_comes_first() -> None:
    pick = open_pick(ask(2), Stock(True, healthy={"a", "b", "c", "z"}, taken={"z"}, reusable={"z"}))
    assert pick == Pick(("z",), ("a", "b", "c"), 1)
    assert picked(pick) == ("a", "z")
    assert pick.selectable == ("a", "b", "c", "z")


def test_a_used_device_that_has_become_ill_is_not_used_again() -> None:
    pick = open_pick(ask(1), Stock(True, healthy={"a"}, taken={"z"}, reusable={"z"}))
    assert pick is not None
    assert picked(pick) == ("a",)


@pytest.mark.parametrize(
    ("preferred", "gets"),
    [
        ((), ("a", "b")),
        (("c", "d"), ("c", "d")),
        (("d",), ("a", "d")),
        (("d", "c", "b"), ("b", "c")),
        (("x", "y"), ("a", "b")),
        (("x", "c"), ("a", "c")),
    ],
)
def test_a_plugin_has_a_say_but_not_the_last_word(preferred: tuple[str, ...], gets: tuple[str, ...]) -> None:
    pick = open_pick(ask(2), Stock(True, healthy={"a", "b", "c", "d"}))
    assert pick is not None
    assert picked(pick, preferred) == gets


@given(healthy=IDS, taken=IDS, reusable=IDS, preferred=IDS, amount=st.integers(1, 5))
def test_a_container_gets_what_is_healthy_and_nobody_elses(
    healthy: set[str], taken: set[str], reusable: set[str], preferred: set[str], amount: int
) -> None:
    used_up = reusable & taken
    stock = Stock(True, healthy=healthy, taken=taken, reusable=used_up)
    possible = healthy - taken | healthy & used_up
    try:
        pick = open_pick(ask(amount), stock)
    except AllocationError:
        assert len(possible) < amount
        return
    assert pick is not None
    got = picked(pick, preferred)
    assert len(set(got)) == len(got) == amount
    assert set(got) <= possible
    assert got == picked(pick, preferred)


def test_only_limits_count_and_claims_are_not_devices() -> None:
    one = container(r1=2, r2="1", cpu="100m")
    assert device_limits(make_pod("p", one), one) == {R1: 2, R2: 1, "cpu": 1}
    assert device_limits(make_pod("p", one, claimed=[R1]), one) == {R2: 1, "cpu": 1}
    other = container("other", r1=1)
    assert device_limits(make_pod("p", one, other, claimed=[R1]), other) == {R1: 1}


@pytest.mark.parametrize(
    ("who", "held", "gets"),
    [
        ("main", {"first": {"a"}, "second": {"b"}}, {"a", "b"}),
        ("main", {"first": {"a"}, "side": {"b"}}, {"a"}),
        ("main", {"first": {"a", "b"}, "side": {"b"}}, {"a"}),
        ("other", {"first": {"a", "b"}, "main": {"a"}}, {"b"}),
        ("second", {"first": {"a"}, "second": {"b"}}, {"a"}),
        ("side", {"first": {"a"}, "main": {"a"}}, set()),
    ],
)
def test_devices_of_init_containers_can_be_used_again(who: str, held: dict[str, set[str]], gets: set[str]) -> None:
    init = [container("first"), container("second"), container("side", sidecar=True)]
    pod = make_pod("p", container("main"), container("other"), init=init)
    assert reusable(pod, who, held) == gets


def stock_on(*places: int | tuple[int, ...] | None, taken: Iterable[str] = (), reusable: Iterable[str] = ()) -> Stock:
    """`Dev0`, `Dev1` and so on, each on its node; None where the plugin does not tell."""
    devices = {
        f"Dev{number}": PluginDevice(
            f"Dev{number}", numa_nodes=() if place is None else (place,) if isinstance(place, int) else place
        )
        for number, place in enumerate(places)
    }
    return Stock(True, healthy=set(devices), taken=set(taken), reusable=set(reusable), devices=devices)


MANY_ON_0: Final = stock_on(*[0] * 100, *[1] * 100)
THREE_ON_0: Final = stock_on(*[0] * 3, *[1] * 97)


@pytest.mark.parametrize(
    ("amount", "stock", "nodes", "preferred", "must", "alignment"),
    [
        (1, stock_on(None, None), (0, 1), (), (), {}),
        (1, stock_on(None, 1), (1,), (), (), {1: 1}),
        (1, stock_on(0, 1), (0,), (), (), {0: 1}),
        (1, stock_on(0, 1), (1,), (), (), {1: 1}),
        (2, stock_on(0, 1, 0, 1), (0,), (), (), {0: 2}),
        (2, stock_on(0, 1, 0, 1), (1,), (), (), {1: 2}),
        (4, stock_on(0, 1, 0, 1, 0, 1), (0,), (), (), {0: 3, 1: 1}),
        (4, stock_on(0, 1, 0, 1, 0, 1), (1,), (), (), {0: 1, 1: 3}),
        (4, stock_on(0, 1, 2, 3, 0, 1, 2, 3), (1, 3), (), (), {1: 2, 3: 2}),
        (5, MANY_ON_0, (0,), (0, 19, 83, 42, 77), (0, 19, 83, 42, 77), {0: 5}),
        (5, MANY_ON_0, (0,), (0, 19, 83, 150, 186), (0, 19, 83), {0: 5}),
        (5, stock_on(*[1] * 100), (1,), (0, 19, 83, 1000, 1001), (0, 19, 83), {1: 5}),
        (5, THREE_ON_0, (0,), (0, 1, 2, 42, 83), (0, 1, 2, 42, 83), {0: 3, 1: 2}),
        (5, THREE_ON_0, (0,), (0, 1, 2, 42, 1000), (0, 1, 2, 42), {0: 3, 1: 2}),
        (3, stock_on(None, 1, 0), (0,), (), (), {0: 1, 1: 1}),
        (2, stock_on(None, 1, 0), (0,), (0,), (0,), {0: 1}),
        (2, stock_on(None, 1, 0), (0,), (), (), {0: 1, 1: 1}),
        (1, stock_on(1, (7, 0), -1, 2**62), (0,), (0,), (1,), {7: 1}),
        (2, stock_on(1, 0, 0, taken=["Dev0", "Dev1"], reusable=["Dev0", "Dev1"]), (0,), (), (0, 1), {0: 1, 1: 1}),
        (1, stock_on(1, 0, 0, taken=["Dev0", "Dev1"], reusable=["Dev0", "Dev1"]), (0,), (), (1,), {0: 1}),
    ],
)
def test_devices_are_of_the_nodes_that_were_agreed_on(
    amount: int,
    stock: Stock,
    nodes: tuple[int, ...],
    preferred: tuple[int, ...],
    must: tuple[int, ...],
    alignment: dict[int, int],
) -> None:
    """`TestTopologyAlignedAllocation`, and what its rows leave open."""
    pick = open_pick(attrs.evolve(ask(amount), nodes=set_of(nodes)), stock)
    assert pick is not None
    got = picked(pick, [f"Dev{number}" for number in preferred])
    assert len(got) == amount
    assert {f"Dev{number}" for number in must} <= set(got)
    assert Counter(stock.nodes_of(one)[0] for one in got if stock.nodes_of(one)) == alignment


@pytest.mark.parametrize(
    ("amount", "stock", "selectable", "included"),
    [
        (1, stock_on(0, 0, 0, 0), "0123", ""),
        (4, stock_on(*[0] * 8, taken=["Dev0", "Dev5"], reusable=["Dev0", "Dev5"]), "01234567", "05"),
        (4, stock_on(*[0] * 8, taken=["Dev0", "Dev5", "Dev4", "Dev1"], reusable=["Dev0", "Dev5"]), "023567", "05"),
        (6, stock_on(0, 0, 0, 0, 1, 1, 1, 1, taken=["Dev1", "Dev6"], reusable=["Dev1", "Dev6"]), "01234567", "01236"),
        (
            6,
            stock_on(0, 0, 0, 0, 1, 1, 1, 1, taken=["Dev0", "Dev1", "Dev6", "Dev7"], reusable=["Dev1", "Dev6"]),
            "123456",
            "1236",
        ),
    ],
)
def test_a_plugin_is_asked_about_the_aligned_devices_first(
    amount: int, stock: Stock, selectable: str, included: str
) -> None:
    """`TestGetPreferredAllocationParameters`"""
    pick = open_pick(attrs.evolve(ask(amount), nodes=0b1), stock)
    assert pick is not None
    assert pick.missing
    assert pick.selectable == tuple(f"Dev{number}" for number in selectable)
    assert sorted(pick.certain) == [f"Dev{number}" for number in included]


def test_a_plugin_has_no_say_where_the_nodes_have_just_enough() -> None:
    pick = open_pick(attrs.evolve(ask(2), nodes=0b1), stock_on(0, 1, 0))
    assert pick is not None
    assert not pick.missing
    assert picked(pick, ["Dev1"]) == ("Dev0", "Dev2")
