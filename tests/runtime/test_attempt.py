"""Which run of a container comes next."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.container.model import ContainerID, ContainerState, ContainerStatus, PodRuntimeStatus
from trikubelet.runtime.attempt import next_attempt

CREATED, RUNNING, EXITED, UNKNOWN = (
    ContainerState.CREATED,
    ContainerState.RUNNING,
    ContainerState.EXITED,
    ContainerState.UNKNOWN,
)
ENDED = st.sampled_from([EXITED, UNKNOWN])


def seen(*containers: tuple[ContainerState, int], name: str = "main") -> PodRuntimeStatus:
    """States and numbers, newest first."""
    statuses = [
        ContainerStatus(id=ContainerID("test", str(place)), name=name, state=state, restart_count=number)
        for place, (state, number) in enumerate(containers)
    ]
    return PodRuntimeStatus(uid="u", name="web", namespace="default", container_statuses=tuple(statuses))


@pytest.mark.parametrize(
    ("status", "number", "replaces"),
    [
        (seen(), None, None),
        (seen((EXITED, 0), name="other"), None, None),
        (seen((EXITED, 0)), 1, None),
        (seen((UNKNOWN, 3)), 4, None),
        (seen((CREATED, 0)), 0, "0"),
        (seen((CREATED, 4), (EXITED, 3)), 4, "0"),
        # What a kubelet left: each death of its agent has cost a number.
        (seen((CREATED, 2), (CREATED, 1), (EXITED, 0)), 2, "0"),
        (seen((EXITED, 2), (CREATED, 1), (EXITED, 0)), 3, None),
        # A runtime whose times are wrong.
        (seen((CREATED, 1), (EXITED, 1)), 2, "0"),
        (seen((CREATED, 1), (UNKNOWN, 5)), 6, "0"),
    ],
)
def test_only_runs_count(status: PodRuntimeStatus, number: int | None, replaces: str | None) -> None:
    attempt = next_attempt(status, "main")
    assert attempt.number == number
    assert (None if attempt.replaces is None else attempt.replaces.id) == replaces


@given(
    st.lists(st.tuples(st.sampled_from([CREATED, EXITED, UNKNOWN]), st.integers(0, 9)), min_size=1),
)
def test_a_number_is_never_one_that_ran_and_never_goes_back(containers: list[tuple[ContainerState, int]]) -> None:
    attempt = next_attempt(seen(*containers), "main")
    assert attempt.number is not None
    assert all(attempt.number > number for state, number in containers if attempt.replaces and state is not CREATED)
    assert attempt.number >= containers[0][1]
    assert (attempt.replaces is not None) == (containers[0][0] is CREATED)


@given(st.lists(ENDED, min_size=1, max_size=5), st.integers(0, 5))
def test_deaths_between_making_and_starting_cost_nothing(ends: list[ContainerState], deaths: int) -> None:
    """However often the agent dies before it starts what it made, the number is that of the next run."""
    ran = [(state, number) for number, state in enumerate(ends)][::-1]
    status = seen(*ran)
    for _ in range(deaths):
        attempt = next_attempt(status, "main")
        assert attempt.number == len(ends)
        left = tuple(one for one in status.container_statuses if one.id != attempt.replaces)
        made = attrs.evolve(left[0], id=ContainerID("test", "made"), state=CREATED, restart_count=attempt.number)
        status = attrs.evolve(status, container_statuses=(made, *left))
    assert next_attempt(status, "main").number == len(ends)
