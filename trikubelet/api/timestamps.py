"""Times on the wire: RFC 3339 in UTC, whole seconds (`metav1.Time`) or microseconds (`metav1.MicroTime`)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))", re.ASCII
)

_SHORT: Final = 40
"""Characters of a text whose time is worth to be remembered."""


def parse_time(text: str) -> datetime | None:
    """Read an RFC 3339 time, any offset and any precision (cut to microseconds). None when it is none."""
    return _parse_short(text) if len(text) <= _SHORT else _parse(text)


def _parse(text: str) -> datetime | None:
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    microsecond = int((match[7] or "")[:6].ljust(6, "0"))
    zone = UTC
    try:
        if match[8] is None:
            offset = timedelta(hours=int(match[10]), minutes=int(match[11]))
            zone = timezone(-offset if match[9] == "-" else offset)
        return datetime(year, month, day, hour, minute, second, microsecond, zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


_parse_short = lru_cache(512)(_parse)
"""An object has most of its times several times, and again in its next version: one is read, and kept, for all."""


def format_time(time: datetime) -> str:
    """`2026-01-31T12:00:00Z`: fractions of a second are cut off, as Kubernetes does."""
    return _utc(time).isoformat()[: len("2026-01-31T12:00:00")] + "Z"


def format_micro_time(time: datetime) -> str:
    """`2026-01-31T12:00:00.000000Z`."""
    return _utc(time).isoformat(timespec="microseconds")[: len("2026-01-31T12:00:00.000000")] + "Z"


def _utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError(f"expected a time with a zone, got {time!r}")
    return time.astimezone(UTC)
