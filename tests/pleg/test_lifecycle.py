"""Two observations of a pod and the events between them: the kubelet's table (`TestGenerateEvent…`)."""

from __future__ import annotations

import pytest

from trikubelet.container.model import ContainerState as State
from trikubelet.pleg.lifecycle import LifecycleEventType as Event
from trikubelet.pleg.lifecycle import PodLifecycleEvent, compare


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, State.CREATED, []),
        (None, State.RUNNING, [Event.CONTAINER_STARTED]),
        (None, State.EXITED, [Event.CONTAINER_DIED]),
        (State.CREATED, State.RUNNING, [Event.CONTAINER_STARTED]),
        (State.CREATED, None, [Event.CONTAINER_DIED, Event.CONTAINER_REMOVED]),
        (State.RUNNING, State.RUNNING, []),
        (State.RUNNING, State.UNKNOWN, []),
        (State.RUNNING, State.EXITED, [Event.CONTAINER_DIED]),
        (State.RUNNING, None, [Event.CONTAINER_DIED, Event.CONTAINER_REMOVED]),
        (State.UNKNOWN, State.EXITED, [Event.CONTAINER_DIED]),
        (State.EXITED, State.EXITED, []),
        (State.EXITED, None, [Event.CONTAINER_REMOVED]),
    ],
)
def test_a_change_of_state_yields_the_kubelets_events(
    before: State | None, after: State | None, expected: list[Event]
) -> None:
    states_before = {} if before is None else {"c1": before}
    states_after = {} if after is None else {"c1": after}
    assert compare("uid", states_before, states_after) == [PodLifecycleEvent("uid", kind, "c1") for kind in expected]


def test_each_container_of_a_pod_has_its_own_events() -> None:
    events = compare(
        "uid",
        {"kept": State.RUNNING, "died": State.RUNNING, "gone": State.EXITED},
        {"kept": State.RUNNING, "died": State.EXITED, "new": State.RUNNING},
    )
    assert {(event.container_id, event.type) for event in events} == {
        ("died", Event.CONTAINER_DIED),
        ("gone", Event.CONTAINER_REMOVED),
        ("new", Event.CONTAINER_STARTED),
    }
