"""The summary as the kubelet's JSON.

Which fields are there, and their names, follow from the classes in `model.py`: camelCase but for a few old ones; None
and empty lists are left out but for the few that are always there. Times are RFC 3339 with whole seconds, an unknown
one is null, as Go writes an empty `metav1.Time`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from trikubelet.api.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Hashable

    from trikubelet.node.stats.model import Summary

_NAMES: Final = {
    "process_stats": "process_stats",
    "process_count": "process_count",
    "ephemeral_storage": "ephemeral-storage",
}
"""Those that are not in camelCase."""
_TIMES: Final = {"time", "start_time"}
_LISTS: Final = {"containers"}
"""On the wire though they are empty, as times are."""
_NANOSECONDS: Final = 1_000_000_000


def summary_json(summary: Summary) -> bytes:
    """What `/stats/summary` answers. Pod by pod, so that a thread that does it lets others in between."""
    pods = ",".join(_dumps(_object(pod)) for pod in summary.pods)
    return f'{{"node":{_dumps(_object(summary.node))},"pods":[{pods}]}}'.encode()


def summary_dict(summary: Summary) -> dict[str, Any]:
    """The same as objects."""
    return {"node": _object(summary.node), "pods": [_object(pod) for pod in summary.pods]}


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _object(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, key, is_time in _fields(cast("Hashable", type(value))):
        member = getattr(value, name)
        if is_time:
            found[key] = None if member is None else _time(member // _NANOSECONDS)
        elif member is None or member == ():
            if name in _LISTS:
                found[key] = []
        elif isinstance(member, tuple):
            found[key] = [_object(item) for item in member]
        elif attrs.has(type(member)):
            found[key] = _object(member)
        else:
            found[key] = member
    return found


@cache
def _fields(kind: Hashable) -> tuple[tuple[str, str, bool], ...]:
    return tuple((field.name, _key(field.name), field.name in _TIMES) for field in attrs.fields(cast("Any", kind)))


def _key(name: str) -> str:
    first, *others = name.split("_")
    return _NAMES.get(name) or first + "".join(part.title() for part in others)


@lru_cache(maxsize=256)
def _time(seconds: int) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
