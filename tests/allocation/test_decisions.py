"""Who is asked about first (facts: `TestIsResizeIncreasingRequests`, `TestSortPendingResizes`)."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.allocation.situations import Amounts, amounts, container, make_pod, requirements, resized, simple_pod
from trikubelet.allocation.conditions import NONE
from trikubelet.allocation.decisions import PendingResize, in_order, is_increasing, makes_room

if TYPE_CHECKING:
    from trikubelet.api import Pod

START = datetime(2026, 1, 1, tzinfo=UTC)
FOUR = make_pod(
    "1111",
    container("c1", amounts("1", "1Gi")),
    container("c2", amounts("1", "1Gi")),
    container("c3"),
    container("c4"),
)
POD_LEVEL = resized(FOUR, pod=requirements(amounts("2500m", "2500Mi")))


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({"c1": amounts("1500m", "1500Mi")}, True),
        ({"c1": amounts("500m", "500Mi")}, False),
        ({"c1": amounts("1500m", "500Mi")}, True),
        ({"c1": amounts("500m", "1500Mi")}, True),
        ({"c1": amounts("1500m", "1536Mi"), "c2": amounts("500m", "512Mi")}, False),
        ({"c1": amounts("500m", "500Mi"), "c2": amounts("500m", "500Mi")}, False),
        ({"c1": {}}, False),
        ({"c3": amounts("1", "1Gi")}, True),
        ({"c4": amounts("1", "1Gi")}, True),
    ],
)
def test_a_resize_increases_when_the_containers_together_ask_for_more(
    requests: dict[str, Amounts], expected: bool
) -> None:
    wanted = resized(FOUR, **{name: requirements(one) for name, one in requests.items()})
    assert is_increasing(FOUR, wanted) == expected


@pytest.mark.parametrize(
    ("pod", "requests", "expected"),
    [
        (amounts("3", "2500Mi"), {}, True),
        (amounts("2500m", "2000Mi"), {}, False),
        (amounts("3", "2000Mi"), {}, True),
        (None, {"c1": amounts("1500m", "1Gi")}, False),
        (None, {"c1": amounts("500m", "1Gi")}, False),
        (amounts("2600m", "2500Mi"), {"c1": amounts("1500m", "1Gi")}, True),
        (amounts("2", "2500Mi"), {"c1": amounts("500m", "1Gi")}, False),
        (amounts("2500m", "2500Mi"), {"c1": amounts("1500m", "1Gi")}, False),
    ],
)
def test_what_a_pod_asks_for_as_a_whole_stands_for_its_containers(
    pod: Amounts | None, requests: dict[str, Amounts], expected: bool
) -> None:
    changes = {name: requirements(one) for name, one in requests.items()}
    if pod is not None:
        changes["pod"] = requirements(pod)
    assert is_increasing(POD_LEVEL, resized(POD_LEVEL, **changes)) == expected


def test_who_gives_back_cpu_makes_room_even_if_more_memory_is_asked_for() -> None:
    assert makes_room(FOUR, resized(FOUR, c1=requirements(amounts("500m", "2Gi"))))
    assert not makes_room(FOUR, resized(FOUR, c1=requirements(amounts("1", "2Gi"))))
    assert not makes_room(FOUR, FOUR)


def pending(wanted: Pod, *, since: datetime | None = None) -> PendingResize:
    conditions = NONE if since is None else NONE.with_pending("OutOfcpu", "some-message", 1, since)
    return PendingResize(wanted, simple_pod(wanted.metadata.uid), conditions)


def test_resizes_are_asked_about_in_the_kubelets_order() -> None:
    more = requirements(amounts("1500m", "1500Mi"))
    guaranteed = resized(simple_pod("guaranteed"), c1=more)
    expected = [
        pending(resized(simple_pod("less-cpu", priority=7), c1=requirements(amounts("500m", "1Gi")))),
        pending(resized(simple_pod("less-as-a-whole"), pod=requirements(amounts("500m", "500Mi")))),
        pending(resized(simple_pod("prior", priority=100), c1=more)),
        pending(attrs.evolve(guaranteed, status=attrs.evolve(guaranteed.status, qos_class="Guaranteed"))),
        pending(resized(simple_pod("deferred-first"), c1=more), since=START),
        pending(resized(simple_pod("deferred-later"), c1=more), since=START + timedelta(milliseconds=5)),
        pending(resized(simple_pod("new"), c1=more)),
    ]
    for seed in range(20):
        shuffled = random.Random(seed).sample(expected, k=len(expected))
        assert in_order(shuffled) == expected


def test_equals_stay_in_the_order_in_which_they_came() -> None:
    more = requirements(amounts("1500m", "1500Mi"))
    resizes = [pending(resized(simple_pod(str(number)), c1=more)) for number in (3, 1, 2)]
    assert in_order(resizes) == resizes
