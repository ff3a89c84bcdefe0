"""A container that is gone before anybody looked at its end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trikubelet.api import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    PodStatus,
)
from trikubelet.container import model
from trikubelet.status.generate import with_lost_ends

RUNNING = ContainerState(running=ContainerStateRunning())
TERMINATED = ContainerState(terminated=ContainerStateTerminated(exit_code=1))


def end(container_id: str, minute: int, name: str = "main") -> model.ContainerStatus:
    return model.ContainerStatus(
        model.ContainerID("sim", container_id),
        name,
        model.ContainerState.EXITED,
        exit_code=7,
        created_at=datetime(2026, 1, 1, 0, minute, tzinfo=UTC),
    )


def reported(container_id: str, state: ContainerState) -> ContainerStatus:
    return ContainerStatus(name="main", container_id=f"sim://{container_id}", state=state)


@pytest.mark.parametrize(
    ("state", "shown", "known", "expected"),
    [
        (RUNNING, [], ["a"], ["a"]),
        (RUNNING, [], [], []),  # nobody told of its end
        (RUNNING, ["a"], ["a"], ["a"]),  # it is still there
        (RUNNING, ["b"], ["a"], ["b", "a"]),  # its successor runs already
        (TERMINATED, [], ["a"], []),  # its end is reported, and stays
    ],
)
def test_the_end_of_what_ran_is_shown_if_it_is_known(
    state: ContainerState, shown: list[str], known: list[str], expected: list[str]
) -> None:
    ends = {"a": end("a", 1), "b": end("b", 2)}
    observed = model.PodRuntimeStatus("u", "p", "n", container_statuses=tuple(ends[one] for one in shown))
    previous = PodStatus(container_statuses=(reported("a", state),))
    status = with_lost_ends(observed, previous, lambda one: ends[one] if one in known else None)
    assert [one.id.id for one in status.container_statuses] == expected
