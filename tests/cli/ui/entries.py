"""Lines of the agent's journal for tests, written shortly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from trikubelet.api.timestamps import format_micro_time

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


def line(seconds: float, kind: str, what: str, pod: str = "default/web", **more: Any) -> dict[str, Any]:
    """As the agent sends it."""
    return {"type": "ENTRY"} | entry(seconds, kind, what, pod, **more)


def snapshot(*entries: dict[str, Any]) -> dict[str, Any]:
    """Of the pods that these entries are about."""
    pods = dict.fromkeys(each["pod"] for each in entries)
    told = [
        {"uid": f"uid-{pod}", "pod": pod, "entries": [each for each in entries if each["pod"] == pod]} for pod in pods
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
