"""The node's conditions: three pressures and, always last, whether it is ready (kubelet: `nodestatus/setters.go`).

A pressure condition keeps its words until its status changes; Ready says anew each time what is wrong. Only what the
agent itself knows is here: `NetworkUnavailable`, which network plugins set, is never touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import NodeCondition
from trikubelet.formats.aggregate import aggregate
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

READY: Final = "Ready"
_TRUE: Final = "True"
_FALSE: Final = "False"


@frozen
class Pressure:
    """What the node is short of."""

    memory: bool = False
    disk: bool = False
    pids: bool = False


@frozen
class _Words:
    """Of one status of a pressure condition."""

    reason: str
    message: str
    event: str


_PRESSURES: Final = {
    "MemoryPressure": (
        _Words("KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"),
        _Words(
            "KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"
        ),
    ),
    "DiskPressure": (
        _Words("KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"),
        _Words("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
    ),
    "PIDPressure": (
        _Words("KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"),
        _Words("KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"),
    ),
}
"""By type: the words without and with pressure."""


def next_conditions(
    old: Sequence[NodeCondition],
    *,
    pressure: Pressure,
    problems: Sequence[str],
    warnings: Sequence[str] = (),
    now: datetime,
) -> tuple[tuple[NodeCondition, ...], tuple[str, ...]]:
    """The conditions in the order in which they were, new ones behind, and the reasons of the events that they make.

    `problems`: why the node is not ready. `warnings`: what is not as it should be on a node that may be ready still.
    """
    conditions = {condition.type: condition for condition in old}
    events = []
    under = {"MemoryPressure": pressure.memory, "DiskPressure": pressure.disk, "PIDPressure": pressure.pids}
    for type_, words in _PRESSURES.items():
        status, said = (_TRUE, words[1]) if under[type_] else (_FALSE, words[0])
        before = conditions.get(type_)
        if before is not None and before.status == status:
            conditions[type_] = attrs.evolve(before, last_heartbeat_time=now)
        else:
            conditions[type_] = _changed(before, type_, status, said.reason, said.message, now)
            events.append(said.event)
    before = conditions.get(READY)
    ready = ready_condition(before, problems, warnings, now)
    if before is not None and before.status != ready.status:
        events.append("NodeReady" if ready.status == _TRUE else "NodeNotReady")
    conditions[READY] = ready
    return tuple(conditions.values()), tuple(events)


def ready_condition(
    before: NodeCondition | None, problems: Sequence[str], warnings: Sequence[str], now: datetime
) -> NodeCondition:
    """Whether pods may be put on the node."""
    if problems:
        status, reason, message = _FALSE, "KubeletNotReady", aggregate(problems)
    else:
        status, reason, message = _TRUE, "KubeletReady", "kubelet is posting ready status"
    if warnings:
        message = f"{message}. WARNING: {aggregate(warnings)}"
    if before is not None and before.status == status:
        return attrs.evolve(before, reason=reason, message=message, last_heartbeat_time=now)
    return _changed(before, READY, status, reason, message, now)


def is_ready(conditions: Iterable[NodeCondition]) -> bool:
    """Whether Ready is among them, and true."""
    return any(condition.type == READY and condition.status == _TRUE for condition in conditions)


def _changed(
    before: NodeCondition | None, type_: str, status: str, reason: str, message: str, now: datetime
) -> NodeCondition:
    return attrs.evolve(
        before or NodeCondition(type=type_),
        status=status,
        reason=reason,
        message=message,
        last_heartbeat_time=now,
        last_transition_time=now,
    )
