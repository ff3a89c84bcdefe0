"""Lines of the agent's journal for tests, written shortly."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from trikubelet.api.timestamps import format_micro_time, parse_time
from trikubelet.pods.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterable

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def entry(seconds: float, kind: str, what: str, pod: str = "default/web", **more: Any) -> dict[str, Any]:
    """One that was noted so many seconds after the beginning."""
    told = {name: format_micro_time(value) if isinstance(value, datetime) else value for name, value in more.items()}
    if kind == "event":
        told = {"eventType": "Normal", "message": "", **told}
    return {
        "n": 1,
        "at": format_micro_time(at(seconds)),
        "uid": f"uid-{pod}",
        "pod": pod,
        "kind": kind,
        "what": what,
    } | told


def staged(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with the stages that the agent's journal makes of them, pod by pod."""
    pods: dict[str, Stages] = defaultdict(Stages)
    told = []
    for one in entries:
        moment = parse_time(one["at"])
        assert moment is not None
        begun = pods[one["pod"]].take(one["kind"], one["what"], moment, one.get("container", ""), one)
        told.append(one if begun is None else one | {"stage": begun.as_json()})
    return told


def line(seconds: float, kind: str, what: str, pod: str = "default/web", **more: Any) -> dict[str, Any]:
    """As the agent sends it; with the stage that begins with it if it is the first one of its pod."""
    return {"type": "ENTRY"} | staged([entry(seconds, kind, what, pod, **more)])[0]


def snapshot(*entries: dict[str, Any]) -> dict[str, Any]:
    """Of the pods that these entries are about."""
    of_pods: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in staged(entries):
        of_pods[each["pod"]].append(each)
    told = [
        {"uid": f"uid-{pod}", "pod": pod, "stages": [each["stage"] for each in its if "stage" in each], "entries": its}
        for pod, its in of_pods.items()
    ]
    return {"type": "SNAPSHOT", "n": 1, "now": format_micro_time(at(20)), "pods": told}


START: Final = (
    entry(0, "phase", "WaitingToStart"),
    entry(1, "phase", "Syncing"),
    entry(2, "event", "Pulling"),
    entry(4, "event", "Pulled"),
    entry(5, "container", "Started", container="main", id="a", restarts=0),
    entry(5, "status", "Running"),
    entry(8, "ready", "Ready"),
)
"""A pod that comes up in eight seconds."""
