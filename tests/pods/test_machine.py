"""The tables say what the functions do: nothing more, nothing less."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.pods.factories import CREATE, KILL, SYNC, UPDATE, make_pod, request, running, runtime_status
from tests.pods.pure_node import PureNode
from trikubelet.pods import machine
from trikubelet.pods.machine import (
    STAYS,
    TRANSITIONS,
    Event,
    IllegalTransitionError,
    PhaseName,
    check_transition,
)
from trikubelet.pods.phases import (
    Cancelled,
    Completed,
    ConfigUpdate,
    Failed,
    Finished,
    Identity,
    Outcome,
    Phase,
    Syncing,
    WaitingToStart,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Cell = tuple[PhaseName, Event, PhaseName]


def _cells_of_the_tables() -> set[Cell]:
    leads = {(now, event, then) for now, row in TRANSITIONS.items() for event, cell in row.items() for then in cell}
    stays = {(now, event, now) for now, events in STAYS.items() for event in events}
    return leads | stays


def _walk_at_random(node: PureNode, choose: random.Random) -> None:
    """One step of anything that may happen to two static pods of one name, an API pod and what the runtime holds."""
    uid = choose.choice(["api", "static-1", "static-2"])
    pod = make_pod(
        uid,
        static=uid != "api",
        phase=choose.choice(["", "", "", "Failed"]),
        deletion_grace=choose.choice([None, None, None, 3]),
    )
    outcomes: list[Outcome] = [Completed(), Completed(), Completed(terminal=True), Failed(), Cancelled()]
    steps: list[Callable[[], object]] = [
        lambda: node.update(request(choose.choice([CREATE, UPDATE, SYNC]), pod), runtime_status(uid)),
        lambda: node.update(request(KILL, pod)),
        lambda: node.update(request(KILL, running_pod=running(uid))),
        lambda: None if uid in node.busy else node.begin(uid),
        lambda: None if uid in node.busy else node.begin(uid),
        lambda: node.done(uid, choose.choice(outcomes)) if uid in node.busy else None,
        lambda: node.done(uid, choose.choice(outcomes)) if uid in node.busy else None,
        lambda: node.retry(uid),
        lambda: node.begin_again(uid),
        lambda: node.sync_known_pods(*choose.sample(["api", "static-1", "static-2"], choose.randint(1, 3))),
    ]
    choose.choice(steps)()


def test_every_cell_of_the_tables_happens_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[Cell] = set()

    def note(uid: str, event: Event, before: Phase | None, after: Phase | None) -> None:
        seen.add((type(before) if before else None, event, type(after) if after else None))

    monkeypatch.setattr(machine, "check_transition", note)
    choose = random.Random(1)
    for _ in range(400):
        node = PureNode()
        for _ in range(30):
            _walk_at_random(node, choose)
    assert seen == _cells_of_the_tables()


def test_a_transition_outside_the_tables_is_refused_with_its_names() -> None:
    identity = Identity("1", "web_ns", static=False, first_seen=0)
    update = ConfigUpdate(update_type=SYNC, pod=make_pod("1"))
    syncing = Syncing(identity=identity, started_at=0, active=update)
    waiting = WaitingToStart(identity=identity, pending=update)
    with pytest.raises(
        IllegalTransitionError, match=r"pod 1: 'update' .* Syncing \(to become WaitingToStart\)"
    ) as info:
        check_transition("1", Event.UPDATE, syncing, waiting)
    assert (info.value.uid, info.value.event) == ("1", "update")
    with pytest.raises(IllegalTransitionError):
        check_transition("1", Event.DONE, waiting, waiting)
    with pytest.raises(IllegalTransitionError):
        check_transition("1", Event.DONE, None, None)


def test_the_tables_move_one_way() -> None:
    order = {phase: rank for rank, phase in enumerate(TRANSITIONS) if phase is not None}
    for now, row in TRANSITIONS.items():
        for then in (phase for cell in row.values() for phase in cell):
            assert now is None or then is None or order[then] > order[now]
    assert set(order) == set(STAYS) - {None}
    assert list(order)[-1] is Finished
