"""The node's conditions: the kubelet's tables for pressure and readiness."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trikubelet.api import NodeCondition
from trikubelet.formats.aggregate import aggregate
from trikubelet.node.conditions import Pressure, is_ready, next_conditions

BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
WORDS = {
    ("MemoryPressure", "False"): ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("MemoryPressure", "True"): ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
    ("DiskPressure", "False"): ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("DiskPressure", "True"): ("KubeletHasDiskPressure", "kubelet has disk pressure"),
    ("PIDPressure", "False"): ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("PIDPressure", "True"): ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
}
EVENTS = {
    ("MemoryPressure", "False"): "NodeHasSufficientMemory",
    ("MemoryPressure", "True"): "NodeHasInsufficientMemory",
    ("DiskPressure", "False"): "NodeHasNoDiskPressure",
    ("DiskPressure", "True"): "NodeHasDiskPressure",
    ("PIDPressure", "False"): "NodeHasSufficientPID",
    ("PIDPressure", "True"): "NodeHasInsufficientPID",
}
PRESSURES = {
    "MemoryPressure": Pressure(memory=True),
    "DiskPressure": Pressure(disk=True),
    "PIDPressure": Pressure(pids=True),
}


def condition(type_: str, status: str, changed: datetime, message: str = "", reason: str = "") -> NodeCondition:
    return NodeCondition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        last_heartbeat_time=changed,
        last_transition_time=changed,
    )


def one(conditions: tuple[NodeCondition, ...], type_: str) -> NodeCondition:
    (found,) = (condition for condition in conditions if condition.type == type_)
    return found


@pytest.mark.parametrize("type_", PRESSURES)
@pytest.mark.parametrize("under", [False, True])
@pytest.mark.parametrize("before", [None, "True", "False", "Unknown"])
def test_a_pressure_condition_follows_the_pressure(type_: str, under: bool, before: str | None) -> None:
    old = () if before is None else (condition(type_, before, BEFORE, "old words", "Old"),)
    pressure = PRESSURES[type_] if under else Pressure()
    found, events = next_conditions(old, pressure=pressure, problems=(), now=NOW)
    status = str(under)
    new = one(found, type_)
    assert (new.status, new.last_heartbeat_time) == (status, NOW)
    if before == status:
        assert (new.reason, new.message, new.last_transition_time) == ("Old", "old words", BEFORE)
        assert EVENTS[type_, status] not in events
    else:
        assert (new.reason, new.message) == WORDS[type_, status]
        assert new.last_transition_time == NOW
        assert EVENTS[type_, status] in events


@pytest.mark.parametrize(
    ("before", "problems", "warnings", "status", "message", "event"),
    [
        (None, (), (), "True", "kubelet is posting ready status", None),
        (None, (), ("foo",), "True", "kubelet is posting ready status. WARNING: foo", None),
        (None, ("some storage error",), (), "False", "some storage error", None),
        (None, ("runtime", "network"), (), "False", "[runtime, network]", None),
        ("False", (), (), "True", "kubelet is posting ready status", "NodeReady"),
        ("True", ("foo",), (), "False", "foo", "NodeNotReady"),
        ("True", (), (), "True", "kubelet is posting ready status", None),
        ("False", ("foo",), (), "False", "foo", None),
        ("Unknown", (), (), "True", "kubelet is posting ready status", "NodeReady"),
    ],
)
def test_ready_says_what_is_wrong(
    before: str | None,
    problems: tuple[str, ...],
    warnings: tuple[str, ...],
    status: str,
    message: str,
    event: str | None,
) -> None:
    old = () if before is None else (condition("Ready", before, BEFORE),)
    found, events = next_conditions(old, pressure=Pressure(), problems=problems, warnings=warnings, now=NOW)
    ready = one(found, "Ready")
    reason = "KubeletReady" if status == "True" else "KubeletNotReady"
    assert (ready.status, ready.reason, ready.message) == (status, reason, message)
    assert ready.last_heartbeat_time == NOW
    assert ready.last_transition_time == (BEFORE if before == status else NOW)
    assert [reason for reason in events if reason in ("NodeReady", "NodeNotReady")] == ([event] if event else [])


def test_conditions_keep_their_places_and_ready_comes_last() -> None:
    found, _ = next_conditions((), pressure=Pressure(), problems=(), now=NOW)
    assert [each.type for each in found] == ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
    strange = condition("NetworkUnavailable", "False", BEFORE, "by the network plugin")
    again, _ = next_conditions((strange, *found), pressure=Pressure(), problems=(), now=NOW)
    assert again[0] == strange
    assert again[1:] == found


def test_a_problem_that_is_named_twice_is_told_once() -> None:
    assert aggregate(["a", "b", "a"]) == "[a, b]"
    assert aggregate(["a", "a"]) == "a"


def test_a_node_without_the_condition_is_not_ready() -> None:
    assert not is_ready(())
    assert is_ready((condition("Ready", "True", NOW),))
    assert not is_ready((condition("Ready", "Unknown", NOW),))
