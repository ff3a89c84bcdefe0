from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pods.factories import CREATE, KILL, SYNC, UPDATE, make_pod, request, running
from trikubelet.pods.phases import asks_to_end, effective_grace_period

if TYPE_CHECKING:
    from trikubelet.pods.types import Request

seconds = st.none() | st.integers(0, 100)


@pytest.mark.parametrize(
    ("current", "spec", "deletion", "override", "expected"),
    [
        (None, 30, None, None, 30),
        (None, 30, 5, None, 5),
        (None, 30, 5, 2, 2),
        (None, 30, 0, None, 1),
        (None, 30, 5, 0, 1),
        (None, None, None, None, 1),
        (None, 0, None, None, 1),
        (None, 10, 60, None, 60),
        (20, 30, None, None, 20),
        (20, 10, None, None, 20),
        (20, 30, 25, None, 20),
        (20, 30, 15, 17, 15),
        (1, 30, 0, 0, 1),
    ],
)
def test_the_smallest_grace_that_was_asked_for_counts_else_the_specs(
    current: int | None, spec: int | None, deletion: int | None, override: int | None, expected: int
) -> None:
    assert effective_grace_period(current, make_pod("1", grace=spec, deletion_grace=deletion), override) == expected


def test_a_pod_without_a_spec_gets_what_the_kill_says_or_a_second() -> None:
    assert effective_grace_period(None, None, None) == 1
    assert effective_grace_period(None, None, 7) == 7


@given(current=st.integers(1, 100), spec=seconds, deletion=seconds, override=seconds)
def test_a_grace_in_force_never_grows_and_never_falls_below_a_second(
    current: int, spec: int | None, deletion: int | None, override: int | None
) -> None:
    pod = make_pod("1", grace=spec, deletion_grace=deletion)
    assert 1 <= effective_grace_period(current, pod, override) <= current


@pytest.mark.parametrize(
    ("asked", "asks"),
    [
        (request(CREATE, make_pod("1")), False),
        (request(UPDATE, make_pod("1", phase="Running")), False),
        (request(SYNC, make_pod("1", phase="Succeeded")), True),
        (request(SYNC, make_pod("1", phase="Failed")), True),
        (request(UPDATE, make_pod("1", deleted=True)), True),
        (request(KILL, make_pod("1")), True),
        (request(KILL, running_pod=running("1")), True),
    ],
)
def test_what_asks_a_pod_to_end(asked: Request, asks: bool) -> None:
    assert asks_to_end(asked) is asks
